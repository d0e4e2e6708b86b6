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

/// A batch of models over an axis: gradients stay split, also with one input for all kernels.
#[test]
fn vmap_of_convolutions_over_explicit_axes() -> Result<()> {
    let (_, _mesh) = mesh(4);
    fn loss(x: Array, kernel: Array) -> Array {
        lax::conv(x, kernel, [1], "SAME").square().sum(..)
    }
    let inputs = |spec: PartitionSpec| num(&[8, 2, 3, 9], 0.3, 0.1, spec);
    let kernels = |spec: PartitionSpec| num(&[8, 4, 3, 3], 0.7, 0.2, spec);
    let slopes = jit(vmap(grad(loss).argnums((Arg::<0>, Arg::<1>))));
    let (dx, dkernel) = slopes.call((inputs(P!["x"]), kernels(P!["x"])))?;
    assert_eq!((typed(&dx), typed(&dkernel)), ("float32[8@x,2,3,9]".into(), "float32[8@x,4,3,3]".into()));
    let (expected_dx, expected_dkernel) = slopes.call((inputs(P![]), kernels(P![])))?;
    same(&dx, &host(&expected_dx));
    same(&dkernel, &host(&expected_dkernel));

    // The gradient of the input of one kernel: a larger batch, whose sharding is not the sharding of an entry.
    let kernel = kernels(P![]).get(0);
    let one_kernel = jit(vmap(grad(move |x: Array| loss(x, kernel.clone()))));
    let dx = one_kernel.call(inputs(P!["x"]))?;
    assert_eq!(typed(&dx), "float32[8@x,2,3,9]");
    same(&dx, &host(&one_kernel.call(inputs(P![]))?));

    let input = inputs(P![]).get(0);
    let one_input = jit(vmap(move |kernel: Array| lax::conv(&input, kernel, [1], "SAME")));
    let out = one_input.call(kernels(P!["x"]))?;
    assert_eq!(typed(&out), "float32[8@x,2,4,9]");
    same(&out, &host(&one_input.call(kernels(P![]))?));
    Ok(())
}

/// Tables and arrays of zeros are the same for all entries; no mesh is in context.
#[test]
fn vmap_with_values_of_all_entries_without_a_context_mesh() -> Result<()> {
    let mesh = {
        let (mesh, _guard) = mesh(4);
        mesh
    };
    let x = device_put(ramp_values(), NamedSharding::new(&mesh, P!["x"]))?;
    let check = |f: fn(Array) -> Array, ty: &str| -> Result<()> {
        let f = jit(vmap(f));
        let (split, expected) = (f.call(&x)?, f.call(ramp_values())?);
        assert_eq!(typed(&split), ty);
        same(&split, &host(&expected));
        Ok(())
    };
    check(|x| zeros([5, 6]).at(array([0, 2, 2, 4])).add(&x), "float32[8@x,5,6]")?;
    check(|x| interp(x.get(0), arange(0..4).astype(DType::F32), array([1.0f32, 3.0, 2.0, 5.0])), "float32[8@x,6]")?;
    check(|x| array([1.0f32, 3.0, 2.0]).get(x.get(0).argmax(0) % 3), "float32[8@x]")?;
    let slopes = jit(vmap(grad(|x: Array| (zeros([5, 6]).at(array([0, 2, 2, 4])).add(&x)).square().sum(..))));
    let split = slopes.call(&x)?;
    assert_eq!(typed(&split), "float32[8@x,4,6]");
    same(&split, &host(&slopes.call(ramp_values())?));
    Ok(())
}

fn ramp_values() -> Array {
    (arange(0..192).astype(DType::F32) * 0.37).sin().reshape([8, 4, 6])
}

#[test]
fn vmap_of_loops_that_start_from_constants_without_a_context_mesh() -> Result<()> {
    let (mesh, guard) = mesh(4);
    let x = ramp(&[8, 4], P!["x", None]);
    drop(guard);
    fn sums(row: Array) -> Result<(Array, Array)> {
        // The entries of the carry have no sharding until a row is added.
        shardax::scan_n(|sum: Array| Ok((&sum + &row, sum)), zeros(4), 3)
    }
    let expected: Vec<f32> =
        (0..8).flat_map(|i| (0..3).flat_map(move |n| (0..4).map(move |j| (n * (4 * i + j)) as f32))).collect();
    for compiled in [false, true] {
        let mapped = vmap(sums);
        let (last, before) = if compiled { jit(mapped).call(&x)? } else { mapped.call(&x)? };
        assert_eq!((typed(&last), typed(&before)), ("float32[8@x,4]".into(), "float32[8@x,3,4]".into()));
        same(&before, &expected);
    }
    // Both types are known while the program is traced.
    let _guard = set_mesh(&mesh)?;
    let (_, before) = jit(vmap(sums)).call(&x)?;
    assert_eq!(typed(&before), "float32[8@x,3,4]");
    Ok(())
}
