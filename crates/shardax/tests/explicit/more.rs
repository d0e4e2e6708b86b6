//! Creation, random numbers, vectorization of what the other files show once, stages.

use super::*;
use shardax::lax::DotOptions;

#[test]
fn jnp_zeros_out_sharding() -> Result<()> {
    let (mesh, _guard) = mesh(4);
    assert_eq!(typed(&full_sharded([8, 8], array(0.0f32), P!["x", "y"])), "float32[8@x,8@y]");
    let named = NamedSharding::new(&mesh, P!["x"]);
    assert_eq!(typed(&jit(move || full_sharded([8, 8], 1.0, named.clone())).call(())?), "float32[8@x,8]~");
    Ok(())
}

#[test]
fn no_op_broadcast_except_for_sharding_change() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[4, 8], P![]);
    let f = |x: Array| x.broadcast_to_sharded([4, 8], P!["x", "y"]);
    assert_eq!(typed(&jit(f).call(&x)?), "float32[4@x,8@y]");
    let g = jit(grad(move |x: Array| f(x).sum(..))).call(&x)?;
    assert_eq!(typed(&g), "float32[4,8]");
    same(&g, &[1.0; 32]);
    Ok(())
}

#[test]
fn reshape() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[4, 6, 8], P![None, None, "y"]);
    assert_eq!(typed(&x.reshape([24, 8])), "float32[24,8@y]");
    assert_eq!(typed(&x.reshape([1, 4, 6, 8])), "float32[1,4,6,8@y]");
    let out = x.reshape_sharded([8, 24], P!["x", "y"]);
    assert_eq!(typed(&out), "float32[8@x,24@y]");
    same(&out, &host(&x));
    let g = jit(grad(|x: Array| x.reshape_sharded([8, 24], P!["x", "y"]).sin().sum(..))).call(&x)?;
    assert_eq!(typed(&g), "float32[4,6,8@y]");
    Ok(())
}

#[test]
fn concat_vmap() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, y) = (ramp(&[8, 4, 2], P!["x"]), ramp(&[2], P![]));
    let f = |x: Array, y: Array| vmap(|x: Array, y: Array| concatenate(&[x, y], 0)).in_axes((0, None)).call((x, y));
    let out = jit(move |x: Array, y: Array| vmap(f).in_axes((0, None)).call((x, y))).call((&x, &y))?;
    assert_eq!(typed(&out), "float32[8@x,4,4]");
    Ok(())
}

#[test]
fn where_vmap() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", None]);
    let f = vmap(|x: Array| where_(x.greater(3), &x, 0));
    assert_eq!(typed(&jit(f).call(&x)?), "float32[8@x,8]");
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
    let (x, at) = (num(&[8, 8], 0.3, 0.0, P!["x", None]), device_put(&array([1, 1, 3, 5, 7, 0, 2, 2]), P!["x"])?);
    let f = value_and_grad(|x: Array, at: Array| x.at(&at).out_sharding(P![]).get().sin());
    let (v, g) = jit(vmap(move |x: Array, at: Array| f.call((x, at)))).call((&x, &at))?;
    assert_eq!((typed(&v), typed(&g)), ("float32[8@x]".into(), "float32[8@x,8]".into()));
    Ok(())
}

#[test]
fn jacrev_sharded_broadcast() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8], P!["x"]);
    let j = jit(jacrev(|x: Array| x.sin())).call(&x)?;
    assert_eq!(j.type_name(), "float32[8,8@x]");
    near(host(&j)[9].into(), f64::from(1f32.cos()), 1e-5);
    Ok(())
}

#[test]
fn random_functions() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let f = jit(|| {
        let key = shardax::random::key(1);
        reshard(shardax::random::normal(&key, [8, 8]), P!["x", "y"])
    });
    let draw = f.call(())?;
    assert_eq!(typed(&draw), "float32[8@x,8@y]");
    let plain = device_put(&shardax::random::normal(&shardax::random::key(1), [8, 8]), &devices()?[0])?;
    same(&draw, &host(&plain));
    Ok(())
}

#[test]
fn lax_map() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[3, 8], P![None, "x"]);
    let out = jit(|x: Array| lax::map(|x: Array| x * 2, x)).call(&x)?;
    assert_eq!(typed(&out), "float32[3,8@x]");
    Ok(())
}

#[test]
fn topk_and_tile_and_unstack() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 4], P!["x", None]);
    assert_eq!(typed(&lax::top_k(&x, 2).0), "float32[8@x,2]");
    assert!(refused(&lax::top_k(&ramp(&[8, 4], P![None, "y"]), 2).0).contains("dimension 1 must not be sharded"));
    assert_eq!(typed(&tile(&x, &[1, 2])), "float32[8@x,8]");
    Ok(())
}

#[test]
fn bitcast_convert_type() {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 4], P!["x", None]);
    assert_eq!(typed(&lax::bitcast_convert_type(&x, DType::U8)), "uint8[8@x,4,4]");
    assert_eq!(typed(&lax::bitcast_convert_type(&x, DType::U32)), "uint32[8@x,4]");
}

#[test]
fn eval_shape_and_stages() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    let out = eval_shape(|x: Array| x.sum(0), &x)?;
    assert_eq!(out.type_name(), "float32[8@y]");
    let f = jit(|x: Array| x.sin());
    let compiled = f.lower(&x)?.compile()?;
    assert_eq!(typed(&compiled.call(&x)?), "float32[8@x,8@y]");
    let text = compiled.call(&ramp(&[8, 8], P!["y", "x"])).unwrap_err().to_string();
    assert!(text.contains("float32[8@") || text.contains("sharding"), "{text}");
    Ok(())
}

#[test]
fn use_abstract_mesh_override() -> Result<()> {
    let (mesh, _guard) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    let other = AbstractMesh::new([("a", 4), ("b", 2)]).with_axis_types([AxisType::Explicit; 2])?;
    let f = move |x: Array| {
        let y = use_abstract_mesh(&other, || reshard(x, P!["a", "b"]) * 2)?;
        assert_eq!(y.type_name(), "float32[8@a,8@b]");
        Ok::<_, shardax::Error>(reshard(y, P!["y", None]).sum(..))
    };
    near(jit(f.clone()).call(&x)?.item::<f32>()?.into(), 4032.0, 1e-6);
    assert_eq!(typed(&jit(grad(f)).call(&x)?), "float32[8@x,8@y]");
    let small = AbstractMesh::new([("a", 4)]);
    let text = use_abstract_mesh(&small, || ()).unwrap_err().to_string();
    assert!(
        text.contains("cannot change the size of the mesh") && text.contains(&mesh.abstract_mesh().to_string()),
        "{text}"
    );
    Ok(())
}

#[test]
fn intermediate_einsum() {
    let (_, _mesh) = mesh(4);
    let at = |spec| num(&[8, 8], 0.1, 0.0, spec);
    let out = DotOptions::new()
        .out_sharding(P![None, "x"])
        .einsum("ij,jk,kl->il", &[&at(P!["x", "y"]), &at(P!["y", "x"]), &at(P!["x", "y"])]);
    assert_eq!(typed(&out), "float32[8,8@x]");
}

#[test]
fn types_of_programs_for_other_axes_cost_nothing() {
    setup();
    let _mesh = set_mesh(&make_mesh([("x", 8)]).unwrap()).unwrap();
    let x = device_put(&array([1.0f32; 8]), P!["x"]).unwrap();
    assert!(x.aval().sharding().is_none() && (x * 2).aval().sharding().is_none());
}
