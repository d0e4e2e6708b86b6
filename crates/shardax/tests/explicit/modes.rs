//! `auto_axes`, `explicit_axes`, meshes with axes of several types, and constraints.

use super::*;
use shardax::lax::DotOptions;

#[test]
fn auto_axes_top_level() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (a, b) = (num(&[8, 8], 0.1, 0.0, P!["x", "y"]), num(&[8, 8], 0.2, 1.0, P!["x", "y"]));
    fn f(a: Array, b: Array) -> Array {
        assert_eq!(a.type_name(), "float32[8,8]");
        a.matmul(b)
    }
    let g = auto_axes(f).out_sharding(P!["x", "y"]);
    let out = jit(move |a: Array, b: Array| g.call((a, b))).call((&a, &b))?;
    assert_eq!(typed(&out), "float32[8@x,8@y]");
    let eager = auto_axes(f).out_sharding(P!["x", "y"]).call((&a, &b))?;
    assert_eq!(typed(&eager), "float32[8@x,8@y]");
    same(&eager, &host(&out));
    let (ha, hb) = (host(&a), host(&b));
    near(host(&out)[9].into(), (0..8).map(|k| f64::from(ha[8 + k] * hb[k * 8 + 1])).sum(), 1e-4);
    Ok(())
}

#[test]
fn auto_axes_computation_follows_data() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 4), ("y", 2)])?.with_axis_types([AxisType::Explicit; 2])?;
    let split = NamedSharding::new(&mesh, P!["x", "y"]);
    let x = device_put(&array([[1.0f32; 2]; 8]), &split)?;
    let f = auto_axes(|x: Array| x * 2).out_sharding(split.clone());
    assert_eq!(typed(&f.call(&x)?), "float32[8@x,2@y]");
    Ok(())
}

#[test]
fn full_user_to_auto_user_mix() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (a, b) = (num(&[8, 4], 0.1, 0.0, P!["x", "y"]), num(&[4, 8], 0.2, 1.0, P!["y", "x"]));
    fn inner(a: Array, b: Array) -> Array {
        assert_eq!(a.type_name(), "float32[8,4@y]");
        DotOptions::new().out_sharding(P![None, "y"]).einsum("xy,yz->xz", &[&a, &b])
    }
    let f = auto_axes(inner).axes("x").out_sharding(P!["x", None]);
    let out = jit(move |a: Array, b: Array| f.call((a, b))).call((&a, &b))?;
    assert_eq!(typed(&out), "float32[8@x,8]");
    let _none = set_mesh(None)?;
    same(&out, &host(&whole(&a).matmul(whole(&b))));
    Ok(())
}

#[test]
fn user_auto_mix_error() {
    let (_, _mesh) = mesh(4);
    let a = ramp(&[8, 4], P!["x", "y"]);
    fn f(x: Array) -> Result<Array> {
        let outer = x.clone();
        let inner = auto_axes(move |y: Array| y * &outer).out_sharding(P!["x", "y"]);
        inner.call(x)
    }
    let text = jit(f).call(&a).unwrap_err().to_string();
    assert!(
        text.contains("the mesh of an operand of type float32[8@x,4@y]")
            && text.contains("which is not the context mesh"),
        "{text}"
    );
}

#[test]
fn gradients_through_auto_axes() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = num(&[8, 4], 0.3, 0.0, P!["x"]);
    let f = || auto_axes(|x: Array| x.cumsum(0)).out_sharding(P!["x"]);
    let g = jit(grad(move |x: Array| Ok::<_, shardax::Error>((f().call(x)? * 2).sum(..)))).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x,4]");
    assert_eq!(host(&g)[..5], [16.0, 16.0, 16.0, 16.0, 14.0]);
    let rows = vmap(move |x: Array| auto_axes(|x: Array| sort(x, 0)).out_sharding(P![]).call(x));
    assert_eq!(typed(&jit(rows).call(&x)?), "float32[8@x,4]");
    Ok(())
}

#[test]
fn auto_axes_inside_scan() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = num(&[8, 4], 0.3, 0.0, P!["x"]);
    fn f(x: Array) -> Result<Array> {
        fn step(h: Array) -> Result<(Array, Array)> {
            let h = auto_axes(|h: Array| h.cumsum(0).tanh()).out_sharding(P!["x"]).call(h)?;
            Ok((h.clone(), h.sum(..)))
        }
        Ok::<_, shardax::Error>(shardax::scan_n(step, x, 3)?.0.sum(..))
    }
    let g = jit(grad(f)).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x,4]");
    fn plain(x: Array) -> Result<Array> {
        fn step(h: Array) -> Result<(Array, Array)> {
            let h = h.cumsum(0).tanh();
            Ok((h.clone(), h.sum(..)))
        }
        Ok::<_, shardax::Error>(shardax::scan_n(step, x, 3)?.0.sum(..))
    }
    let _none = set_mesh(None)?;
    same(&g, &host(&jit(grad(plain)).call(whole(&x))?));
    Ok(())
}

#[test]
fn full_explicit_mode() -> Result<()> {
    setup();
    let auto = make_mesh([("x", 2), ("y", 4)])?.auto();
    let _mesh = set_mesh(&auto)?;
    let f = explicit_axes(|x: Array| {
        assert_eq!(x.type_name(), "float32[8@x,8@y]");
        x * 2
    });
    let f = jit(f.in_sharding(P!["x", "y"]));
    let out = f.call(ones([8, 8]))?;
    assert_eq!(out.type_name(), "float32[8,8]");
    assert_eq!(host(&out), [2.0; 64]);
    Ok(())
}

#[test]
fn auto_user() -> Result<()> {
    setup();
    for (types, want, constraint) in [
        ([AxisType::Auto, AxisType::Auto], "float32[8,8]", ""),
        ([AxisType::Explicit, AxisType::Auto], "float32[8@x,8]", "[{\"x\", ?}, {?}]>"),
        ([AxisType::Auto, AxisType::Explicit], "float32[8,8@y]", "[{?}, {\"y\", ?}]>"),
    ] {
        let mesh = make_mesh([("x", 2), ("y", 4)])?.with_axis_types(types)?;
        let _mesh = set_mesh(&mesh)?;
        let x = device_put(&array([[0.5f32; 8]; 8]), P!["x", "y"])?;
        assert_eq!(x.type_name(), want);
        let f = jit(move |x: Array| {
            let y = x.sin();
            assert_eq!(y.type_name(), want);
            y
        });
        let out = f.call(&x)?;
        assert_eq!(out.type_name(), want);
        assert_eq!(out.sharding()?.spec()?, &P!["x", "y"]);
        let text = f.lower(&x)?.as_text().to_owned();
        assert!(text.contains(constraint), "{text}");
    }
    Ok(())
}

#[test]
fn out_sharding_mix_axis_types() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2), ("y", 2), ("z", 2)])?;
    let mesh = mesh.with_axis_types([AxisType::Explicit, AxisType::Explicit, AxisType::Auto])?;
    let _mesh = set_mesh(&mesh)?;
    let x = device_put(&array([[0.5f32; 4]; 4]), P!["x", None])?;
    let f = jit(|x: Array| x.sin());
    let text = f.lower(&x)?.as_text().to_owned();
    assert!(text.contains("[{\"x\", ?}, {?}], replicated={\"y\"}>"), "{text}");
    Ok(())
}

#[test]
fn wsc_error() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 4], P!["x", "y"]);
    fn f(x: Array) -> Array {
        with_sharding_constraint(x, P!["x", "y"])
    }
    assert_eq!(typed(&jit(f).call(&x)?), "float32[8@x,4@y]");
    let text = jit(|x: Array| with_sharding_constraint(x, P!["y", "x"])).call(&x).unwrap_err().to_string();
    assert!(text.contains("acts as an assert when all axes of mesh are of type `Explicit`"), "{text}");
    assert!(
        text.contains("P('x', 'y') did not match the sharding provided: P('y', 'x')")
            && text.contains("reshard(x, spec)"),
        "{text}"
    );
    let open = PartitionSpec::new([shardax::sharding::DimSpec::Unconstrained]);
    let text = jit(move |x: Array| with_sharding_constraint(x, open.clone())).call(&x).unwrap_err().to_string();
    assert!(text.contains("cannot contain UNCONSTRAINED when no mesh axes are of type Auto"), "{text}");
    Ok(())
}

#[test]
fn wsc_mix_axis_types() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2), ("y", 4)])?.with_axis_types([AxisType::Explicit, AxisType::Auto])?;
    let _mesh = set_mesh(&mesh)?;
    let x = device_put(&array([[0.5f32; 8]; 8]), P!["x", None])?;
    let f = jit(|x: Array| with_sharding_constraint(x * 2, P!["y"]));
    let out = f.call(&x)?;
    assert_eq!(out.type_name(), "float32[8@x,8]");
    assert_eq!(out.sharding()?.spec()?.trimmed(), P![("x", "y")]);
    Ok(())
}
