//! The context mesh, meshes of other axes or devices, and the shardings of compiled functions.

use shardax::count;

use super::*;
use shardax::lax::DotOptions;

#[test]
fn set_mesh_of_none() -> Result<()> {
    let (explicit, _guard) = mesh(4);
    {
        let _none = shardax::set_mesh(None)?;
        assert_eq!((get_mesh(), get_abstract_mesh()), (None, None));
        assert!(ones(8).aval().sharding().is_none());
    }
    assert_eq!(get_mesh(), Some(explicit.clone()));
    let text = shardax::set_mesh(explicit.abstract_mesh()).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(text.contains("set_mesh takes a mesh with devices") && text.contains("use_abstract_mesh"), "{text}");
    Ok(())
}

#[test]
fn set_mesh() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2)])?.with_axis_types([AxisType::Explicit])?;
    let _mesh = shardax::set_mesh(&mesh)?;
    let out = reshard(arange(0..8), P!["x"]);
    assert_eq!(out.sharding()?.as_named(), Some(&NamedSharding::new(&mesh, P!["x"])));
    assert_eq!(get_mesh(), Some(mesh));
    Ok(())
}

#[test]
fn return_output_different_context() -> Result<()> {
    let (mesh, _guard) = mesh(4);
    let x = ramp(&[8, 2], P!["x"]);
    let auto = mesh.abstract_mesh().update_axis_types([("x", AxisType::Auto), ("y", AxisType::Auto)])?;
    let f = jit(move |x: Array| use_abstract_mesh(&auto, || reshard(x, P![None, None])));
    let out = f.call(&x)?;
    assert_eq!(host(&out), host(&x));
    assert!(out.aval().sharding().is_none(), "{}", out.type_name());
    assert_eq!(out.sharding()?.as_named().map(|s| s.mesh().axis_types().to_vec()), Some(vec![AxisType::Auto; 2]));
    Ok(())
}

#[test]
fn abstract_mesh_changing_names_sizes_grad() -> Result<()> {
    let (mesh, _guard) = mesh(2);
    let x = num(&[8, 2], 0.3, 0.0, P!["x", "y"]);
    let another = AbstractMesh::new([("a", 4), ("b", 1)]).with_axis_types([AxisType::Explicit; 2])?;
    assert_eq!(mesh.abstract_mesh().size(), another.size());
    let f = move |x: Array| {
        let x = x.sin();
        let inner = use_abstract_mesh(&another, || {
            let y = reshard(x, P![("a", "b"), None]) * 2;
            assert_eq!(y.type_name(), "float32[8@(a,b),2]");
            y
        })?;
        Ok::<_, shardax::Error>(reshard(inner, P!["y", None]))
    };
    let out = jit(f.clone()).call(&x)?;
    assert_eq!(typed(&out), "float32[8@y,2]");
    same(&out, &host(&x).iter().map(|v| 2.0 * v.sin()).collect::<Vec<_>>());
    let g = jit(grad(move |x: Array| Ok::<_, shardax::Error>(f(x)?.sum(..)))).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x,2@y]");
    same(&g, &host(&x).iter().map(|v| 2.0 * v.cos()).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn abstract_mesh_context_trace() -> Result<()> {
    setup();
    let mesh = AbstractMesh::new([("x", 2)]).with_axis_types([AxisType::Explicit])?;
    let f = jit(|x: Array| x * 2);
    let text =
        use_abstract_mesh(&mesh, || f.lower(shape_dtype_struct([8, 2], DType::F32)).map(|l| l.as_text().to_owned()))??;
    assert!(text.contains("mhlo.num_partitions = 2"), "{text}");
    let text = use_abstract_mesh(&mesh, || {
        f.lower(shape_dtype_struct_on([8, 2], DType::F32, P!["x"])).map(|l| l.as_text().to_owned())
    })??;
    assert!(text.contains("mhlo.num_partitions = 2") && text.contains("[{\"x\"}, {}]"), "{text}");
    let g = jit(|| arange(0.0f32..8.0));
    let text = use_abstract_mesh(&mesh, || g.lower(()).map(|l| l.as_text().to_owned()))??;
    assert!(text.contains("mhlo.num_partitions = 2"), "{text}");
    let large = AbstractMesh::new([("x", 128)]).with_axis_types([AxisType::Explicit])?;
    let text =
        use_abstract_mesh(&large, || f.lower(shape_dtype_struct([8, 2], DType::F32)).err().map(|e| e.to_string()))?;
    assert!(text.is_some_and(|text| text.contains("128 devices") && text.contains("Topology")));
    Ok(())
}

#[test]
fn compilation_cache_miss_when_devices_change() -> Result<()> {
    setup();
    let types = [AxisType::Explicit; 2];
    let single = make_mesh([("x", 2), ("y", 2)])?.with_axis_types(types)?;
    let reversed = single.devices().iter().rev().cloned().collect();
    let two = Mesh::new(reversed, [("x", 2), ("y", 2)])?.with_axis_types(types)?;
    let data = array((0..16).map(|i| i as f32).collect::<Vec<_>>()).reshape([8, 2]);
    fn on(mesh: &Mesh, data: &Array) -> Result<Array> {
        device_put(data, &NamedSharding::new(mesh, P!["x", "y"]))
    }
    let (a, b) = (on(&single, &data)?, on(&two, &data)?);
    let f = jit(|x: Array| x * 3);
    let (outs, counts) = count(|| {
        let first = shardax::set_mesh(&single).and_then(|_mesh| f.call(&a));
        let second = shardax::set_mesh(&two).and_then(|_mesh| f.call(&b));
        first.and_then(|first| Ok((first, second?)))
    });
    let (first, second) = outs?;
    assert_eq!((counts.traces, counts.compilations), (1, 2), "{counts:?}");
    assert_eq!(first.sharding()?.as_named().map(NamedSharding::mesh), Some(&single));
    assert_eq!(second.sharding()?.as_named().map(NamedSharding::mesh), Some(&two));
    assert_eq!(host(&first), host(&second));
    Ok(())
}

#[test]
fn out_aval_matches_out_sharding_override() -> Result<()> {
    let (_, _mesh) = mesh(2);
    let x = ramp(&[4, 2], P!["x", None]);
    let out = jit(|x: Array| x * 2).out_shardings(P!["x", "y"]).call(&x)?;
    assert_eq!(typed(&out), "float32[4@x,2@y]");
    assert_eq!(out.sharding()?.spec()?, &P!["x", "y"]);
    assert_eq!(typed(&jit(|x: Array| x * 2).call(&x)?), "float32[4@x,2]");
    Ok(())
}

#[test]
fn in_aval_matches_in_sharding() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let data = array((0..8).map(|i| i as f32).collect::<Vec<_>>());
    let f = jit(|x: Array| {
        assert_eq!(x.type_name(), "float32[8@x]");
        x * 2
    });
    let f = f.in_shardings(P!["x"]).out_shardings(P!["x"]);
    let lowered = f.lower(&data)?;
    assert_eq!(lowered.args_info().leaves()[0].aval.to_string(), "float32[8@x]");
    let compiled = lowered.compile()?;
    assert_eq!(compiled.args_info().leaves()[0].aval.to_string(), "float32[8@x]");
    for out in [compiled.call(&data)?, f.call(&data)?] {
        assert_eq!(typed(&out), "float32[8@x]");
        assert_eq!(host(&out)[7], 14.0);
    }
    Ok(())
}

#[test]
fn shardings_of_a_jit_inside_another_are_in_types() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", None]);
    let inner = || {
        let f = jit(|x: Array| {
            assert_eq!(x.type_name(), "float32[8,8@y]");
            x.sin()
        });
        f.in_shardings(P![None, "y"]).out_shardings(P!["y", "x"])
    };
    let f = move |x: Array| {
        let y = inner().call(x)?;
        assert_eq!(y.type_name(), "float32[8@y,8@x]");
        Ok::<_, shardax::Error>(y)
    };
    let out = jit(f).call(&x)?;
    assert_eq!(typed(&out), "float32[8@y,8@x]");
    same(&out, &host(&x).iter().map(|v| v.sin()).collect::<Vec<_>>());
    let g = jit(grad(move |x: Array| Ok::<_, shardax::Error>(f(x)?.sum(..)))).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x,8]");
    same(&g, &host(&x).iter().map(|v| v.cos()).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn eval_shape() -> Result<()> {
    let (mesh, _guard) = mesh(2);
    let x = device_put(&ones([8, 2]), P!["x", "y"])?;
    let out = shardax::eval_shape(|x: Array| x * 2, &x)?;
    assert_eq!(out.type_name(), "float32[8@x,2@y]");
    assert_eq!(
        out.aval().sharding().map(|typed| (typed.mesh().clone(), typed.spec())),
        Some((mesh.abstract_mesh().clone(), P!["x", "y"]))
    );
    // An abstract array is an argument of `lower` with this sharding.
    let text = jit(|x: Array| x.sin()).lower(&out)?.as_text().to_owned();
    assert!(text.lines().any(|line| line.contains("@main") && line.contains("[{\"x\"}, {\"y\"}]")), "{text}");
    Ok(())
}

#[test]
fn error_on_canonicalize_under_auto_mode() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 4), ("y", 2)])?.auto();
    let _mesh = shardax::set_mesh(&mesh)?;
    let (a, b) = (ones([8, 2]), ones([2, 8]));
    let to = DotOptions::new().out_sharding(NamedSharding::new(&mesh, P!["x", "y"]));
    let f = jit(move |a: Array, b: Array| to.einsum("xy,yz->xz", &[&a, &b]));
    let text = f.call((a, b)).unwrap_err().to_string();
    assert!(
        text.contains("out_sharding can only refer to axes that are Explicit") && text.contains("of type Auto"),
        "{text}"
    );
    Ok(())
}

#[test]
fn axes_api_error_manual_to_auto_explicit() -> Result<()> {
    let (mesh, _guard) = mesh(4);
    fn inside(x: Array) -> Result<Array> {
        auto_axes(|a: Array| a * 2).axes(["x", "y"]).out_sharding(P!["x", "y"]).call(x)
    }
    let f = shard_map(inside, &mesh).in_specs(P!["x", "y"]).out_specs(P!["x", "y"]);
    let text = jit(f).call(ramp(&[8, 8], P!["x", "y"])).unwrap_err().to_string();
    assert!(text.contains("auto_axes cannot change the type of axis 'x', which is Manual"), "{text}");
    Ok(())
}

#[test]
fn use_abstract_mesh_override() -> Result<()> {
    let (mesh, _guard) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    let another = AbstractMesh::new([("a", 4), ("b", 2)]).with_axis_types([AxisType::Explicit; 2])?;
    let f = move |x: Array| {
        let y = use_abstract_mesh(&another, || reshard(x, P!["a", "b"]) * 2)?;
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
fn types_of_programs_for_other_axes_cost_nothing() {
    setup();
    let _mesh = shardax::set_mesh(&make_mesh([("x", 8)]).unwrap().auto()).unwrap();
    let x = device_put(&array([1.0f32; 8]), P!["x"]).unwrap();
    assert!(x.aval().sharding().is_none() && (x * 2).aval().sharding().is_none());
}
