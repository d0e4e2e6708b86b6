//! `vmap`, `lax::map` and Jacobians of functions whose types have shardings.

use shardax::random;

use super::*;

#[test]
fn where_vmap() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", None]);
    let f = vmap(|x: Array| where_(x.greater(3), &x, 0));
    let out = jit(f).call(&x)?;
    assert_eq!(typed(&out), "float32[8@x,8]");
    assert_eq!(host(&out)[..6], [0.0, 0.0, 0.0, 0.0, 4.0, 5.0]);
    Ok(())
}

#[test]
fn explicit_ctx_vmap_over_auto_axes() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[16, 4], P![("x", "y")]);
    let f = vmap(|x: Array| auto_axes(|x: Array| x.cumsum(0)).out_sharding(P![]).call(x));
    assert_eq!(typed(&jit(f).call(&x)?), "float32[16@(x,y),4]");
    Ok(())
}

#[test]
fn vmap_grad_sharded_gather() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let rows = [1, 1, 3, 5, 7, 0, 2, 2];
    let (x, at) = (num(&[8, 8], 0.3, 0.0, P!["x", None]), device_put(&array(rows), P!["x"])?);
    let f = value_and_grad(|x: Array, at: Array| x.at(&at).out_sharding(P![]).get().sin());
    let (v, g) = jit(vmap(move |x: Array, at: Array| f.call((x, at)))).call((&x, &at))?;
    assert_eq!((typed(&v), typed(&g)), ("float32[8@x]".into(), "float32[8@x,8]".into()));
    let x = host(&x);
    fn chosen(row: usize, x: &[f32], rows: &[i32; 8]) -> f32 {
        x[row * 8 + rows[row] as usize]
    }
    same(&v, &(0..8).map(|row| chosen(row, &x, &rows).sin()).collect::<Vec<_>>());
    fn slope(n: usize, rows: &[i32; 8], x: &[f32]) -> f32 {
        if n % 8 == rows[n / 8] as usize { chosen(n / 8, x, rows).cos() } else { 0.0 }
    }
    same(&g, &(0..64).map(|n: usize| slope(n, &rows, &x)).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn jacrev_sharded_broadcast() -> Result<()> {
    let (_, _mesh) = mesh(4);
    for (spec, to, want) in [
        (P!["x"], P!["y", "x"], "float32[4,8,8@x]"),
        (P!["x"], P![None, "x"], "float32[4,8,8@x]"),
        (P![], P!["y", "x"], "float32[4,8,8]"),
    ] {
        let j = jit(jacrev(move |x: Array| x.broadcast_to_sharded([4, 8], to.clone()))).call(&ramp(&[8], spec))?;
        assert_eq!(typed(&j), want);
        same(&j, &host(&device_put(&eye(8), P![])?).repeat(4));
    }
    let j = jit(jacrev(|x: Array| x.sin())).call(&ramp(&[8], P!["x"]))?;
    assert_eq!(j.type_name(), "float32[8,8@x]");
    near(host(&j)[9].into(), f64::from(1f32.cos()), 1e-5);
    Ok(())
}

#[test]
fn lax_map() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[6, 8], P![None, "x"]);
    fn double(x: Array) -> Array {
        assert_eq!(x.type_name(), "float32[8@x]");
        x * 2
    }
    let out = jit(move |x: Array| lax::map(double, x)).call(&x)?;
    assert_eq!(typed(&out), "float32[6,8@x]");
    same(&out, &host(&(&x * 2)));
    // In batches of two, as `batch_size` in JAX: a vmap in each step.
    fn pairs(x: Array) -> Result<Array> {
        let rows: Array = lax::map(|x: Array| vmap(double).call(x), x.reshape([3, 2, 8]))?;
        Ok::<_, shardax::Error>(rows.reshape([6, 8]))
    }
    let out = jit(pairs).call(&x)?;
    assert_eq!(typed(&out), "float32[6,8@x]");
    same(&out, &host(&(&x * 2)));
    Ok(())
}

#[test]
fn vmap_random_categorical_sample() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let keys = reshard(random::split(random::key(0), 2), P!["x"]);
    let logits = num(&[2, 10], 0.3, 0.0, P!["x"]);
    fn f(keys: Array, logits: Array) -> Array {
        random::categorical(&keys, &logits, -1)
    }
    let drawn = jit(vmap(f)).call((&keys, &logits))?;
    assert_eq!(typed(&drawn), "int32[2@x]");
    let _none = shardax::set_mesh(None)?;
    assert_eq!(drawn.to_vec::<i32>()?, vmap(f).call((&whole(&keys), &whole(&logits)))?.to_vec::<i32>()?);
    Ok(())
}
