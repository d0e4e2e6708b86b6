//! Types, the context mesh, `device_put` and `reshard`.

use super::*;

#[test]
fn aval_repr() {
    let (_, _mesh) = mesh(4);
    fn text(shape: &[usize], spec: PartitionSpec) -> String {
        typed(&ramp(shape, spec))
    }
    assert_eq!(text(&[8, 8, 4], P!["x", "y", None]), "float32[8@x,8@y,4]");
    assert_eq!(text(&[8, 8, 4], P![("x", "y")]), "float32[8@(x,y),8,4]");
    assert_eq!(text(&[8, 8], P![None, "x"]), "float32[8,8@x]");
    assert_eq!(text(&[8], P![]), "float32[8]");
    assert_eq!(text(&[4, 8], P![None, ("y", "x")]), "float32[4,8@(y,x)]");
    // One type, however the spec is written.
    assert_eq!(ramp(&[8, 4], P!["x"]).aval(), ramp(&[8, 4], P!["x", None]).aval());
    assert_ne!(ramp(&[8, 4], P!["x"]).aval(), ramp(&[8, 4], P!["y"]).aval());
}

#[test]
fn aval_spec_explicit_auto_complete() {
    let (_, _mesh) = mesh(4);
    assert_eq!(spec_of(&ramp(&[8, 4, 2], P!["x"])), P!["x", None, None]);
}

#[test]
fn divisbility_aval_error() {
    let (_, _mesh) = mesh(4);
    let wrong = jit(|x: Array| reshard(x, P!["y"])).call(ones([6, 4])).unwrap_err();
    let text = wrong.to_string();
    assert!(
        text.contains("array axis 0 is partitioned 4 times, but does not evenly divide the dimension size 6"),
        "{text}"
    );
    assert!(text.contains("types.rs:") && text.contains("help:"), "{text}");
}

#[test]
fn basic_mul() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    assert_eq!(typed(&(&x * 2)), "float32[8@x,8@y]");
    assert_eq!(typed(&(&x * &x)), "float32[8@x,8@y]");
    let f = jit(|x: Array| {
        let x = x * 2;
        assert_eq!(x.type_name(), "float32[8@x,8@y]");
        let x = &x * &x;
        assert_eq!(x.type_name(), "float32[8@x,8@y]");
        x
    });
    let out = f.call(&x)?;
    assert_eq!(typed(&out), "float32[8@x,8@y]");
    assert_eq!(out.sharding()?.spec()?, &P!["x", "y"]);
    assert_eq!(host(&out)[63], 15876.0);
    let text = f.lower(&x)?.as_text().to_owned();
    assert_eq!(text_of(&text, "\"sdy.sharding_constraint\""), 3, "{text}");
    let g = jit(grad(|x: Array| (&x * 2 * &x).sum(..))).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x,8@y]");
    assert_eq!(host(&g)[63], 252.0);
    Ok(())
}

#[test]
fn explicit_mode_no_context_mesh() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 4), ("y", 2)])?.with_axis_types([AxisType::Explicit; 2])?;
    let x = device_put(&array([[1.0f32; 2]; 8]), &NamedSharding::new(&mesh, P!["x", "y"]))?;
    let f = jit(|x: Array| {
        let x = x * 2;
        assert_eq!(x.type_name(), "float32[8@x,2@y]");
        x
    });
    assert_eq!(typed(&f.call(&x)?), "float32[8@x,2@y]");
    assert_eq!(typed(&(x.sin() + 1)), "float32[8@x,2@y]");
    Ok(())
}

#[test]
fn device_put_typeof() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8], P!["x"]);
    assert_eq!(typed(&x), "float32[8@x]");
    let x = device_put(&x, &devices()?[0])?;
    assert_eq!(x.type_name(), "float32[8]");
    assert!(x.aval().sharding().is_none());
    Ok(())
}

#[test]
fn typeof_not_mesh_context_dependent() -> Result<()> {
    let (_, first) = mesh(4);
    let x = ramp(&[8], P!["x"]);
    drop(first);
    let auto = make_mesh([("a", 8)])?;
    let _other = set_mesh(&auto)?;
    assert_eq!(x.type_name(), "float32[8@x]");
    let text = (&x * 2).error().map(|e| e.to_string()).unwrap_or_default();
    assert!(text.contains("float32[8@x]") && text.contains("which is not the context mesh"), "{text}");
    Ok(())
}

#[test]
fn reshard_api() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", None]);
    let y = reshard(x.clone(), P![None, "y"]);
    assert_eq!(typed(&y), "float32[8,8@y]");
    same(&y, &host(&x));
    fn f(x: Array) -> Array {
        let y = reshard(x, P!["y", "x"]);
        assert_eq!(y.type_name(), "float32[8@y,8@x]");
        (y * 2).sum(..)
    }
    near(jit(f).call(&x)?.item::<f32>()?.into(), 4032.0, 1e-6);
    let g = jit(grad(f)).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x,8]");
    same(&g, &[2.0; 64]);
    let g = grad(f).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x,8]");
    // The mapped dimension keeps its axis.
    let v = jit(vmap(|x: Array| reshard(x, P!["y"]))).call(&x)?;
    assert_eq!(typed(&v), "float32[8@x,8@y]");
    let wrong = vmap(|x: Array| reshard(x, P!["x"])).call(&x).unwrap_err().to_string();
    assert!(wrong.contains("maps over a dimension that is sharded over 'x'"), "{wrong}");
    Ok(())
}

#[test]
fn reshard_with_np_array() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let data = array([[1.0f32; 8]; 8]);
    assert_eq!(typed(&reshard(data.clone(), P!["x", "y"])), "float32[8@x,8@y]");
    assert_eq!(typed(&jit(|x: Array| reshard(x, P!["y"])).call(&data)?), "float32[8@y,8]");
    Ok(())
}

#[test]
fn set_mesh_is_a_guard_and_mesh_types_are_known() -> Result<()> {
    let (explicit, guard) = mesh(4);
    assert_eq!(get_mesh(), Some(explicit.clone()));
    assert_eq!(get_abstract_mesh().as_ref(), Some(explicit.abstract_mesh()));
    assert_eq!(explicit.axis_types(), [AxisType::Explicit; 2]);
    drop(guard);
    assert_eq!(get_abstract_mesh(), None);
    let mixed = explicit.abstract_mesh().update_axis_types([("y", AxisType::Auto)])?;
    assert_eq!(mixed.to_string(), "AbstractMesh('x': 2, 'y': 4, axis_types=(Explicit, Auto))");
    assert!(explicit.abstract_mesh().update_axis_types([("z", AxisType::Auto)]).is_err());
    Ok(())
}

#[test]
fn new_arrays_are_replicated_over_the_context_mesh() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ones([8, 2]);
    assert_eq!(typed(&x), "float32[8,2]");
    assert!(x.aval().sharding().is_some());
    assert_eq!(typed(&(ramp(&[8, 2], P!["x"]) + x)), "float32[8@x,2]");
    assert_eq!(zeros_like(&ramp(&[8], P!["x"])).type_name(), "float32[8@x]");
    assert_eq!(jit(|x: Array| zeros_like(&x)).call(&ramp(&[8], P!["x"]))?.type_name(), "float32[8@x]");
    Ok(())
}
