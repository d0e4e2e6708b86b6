//! Elementwise operations, select and comparisons.

use super::*;

#[test]
fn operands_of_one_sharding_or_whole_join() {
    let (_, _mesh) = mesh(4);
    let (a, b) = (ramp(&[8, 8], P!["x", None]), ramp(&[8, 8], P![None, "y"]));
    assert_eq!(typed(&(&a * &b)), "float32[8@x,8@y]");
    assert_eq!(typed(&(&a + ramp(&[8], P!["y"]))), "float32[8@x,8@y]");
    assert_eq!(typed(&(ramp(&[8, 1], P!["x", None]) * &b)), "float32[8@x,8@y]");
    same(&(&a * &b), &host(&a).iter().map(|v| v * v).collect::<Vec<_>>());
    assert_eq!(typed(&a.less(3.0)), "bool[8@x,8]");
    assert_eq!(typed(&a.astype(DType::I32)), "int32[8@x,8]");
    assert_eq!(typed(&clip(&a, 1.0, 4.0)), "float32[8@x,8]");
    assert_eq!(typed(&a.pow(2)), "float32[8@x,8]");
}

#[test]
fn where_with_scalar() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    assert_eq!(typed(&where_(x.greater(0), &x, 0)), "float32[8@x,8@y]");
    let relu = jit(|x: Array| where_(x.greater(0), &x, 0).sum(..));
    near(relu.call(&x)?.item::<f32>()?.into(), 2016.0, 1e-6);
    Ok(())
}

#[test]
fn select() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, y) = (ramp(&[8, 8], P!["x", "y"]), ramp(&[8, 8], P!["x", "y"]));
    let f = jit(|p: Array, x: Array, y: Array| where_(p, x, y));
    assert_eq!(typed(&f.call((x.greater(3), &x, &y))?), "float32[8@x,8@y]");
    let whole = ramp(&[8, 8], P![]);
    let wrong = f.call((x.greater(3), &x, &whole)).unwrap_err().to_string();
    assert!(wrong.contains("select cases must have the same sharding"), "{wrong}");
    assert!(wrong.contains("float32[8,8]") && wrong.contains("float32[8@x,8@y]"), "{wrong}");
    let wrong = f.call((ramp(&[8, 8], P!["y", "x"]).greater(3), &x, &y)).unwrap_err().to_string();
    assert!(wrong.contains("which must be scalar or have the same shardings as cases"), "{wrong}");
    // A predicate that all devices have whole goes with any cases.
    assert_eq!(typed(&f.call((whole.greater(3), &x, &y))?), "float32[8@x,8@y]");
    Ok(())
}

#[test]
fn broadcasting_nary_error() -> Result<()> {
    setup();
    let one = make_mesh([("x", 4), ("y", 2)])?.with_axis_types([AxisType::Explicit; 2])?;
    let two = make_mesh([("a", 4), ("b", 2)])?.with_axis_types([AxisType::Explicit; 2])?;
    let x = device_put(&array([1.0f32; 8]), &NamedSharding::new(&one, P!["x"]))?;
    let y = device_put(&array([1.0f32; 8]), &NamedSharding::new(&two, P!["a"]))?;
    let text = jit(|x: Array, y: Array| x + y).call((&x, &y)).unwrap_err().to_string();
    assert!(text.contains("float32[8@a]") && text.contains("which is not that of another operand"), "{text}");
    Ok(())
}
