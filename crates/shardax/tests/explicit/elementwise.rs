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

/// A parameter that is broadcast to a batch: each device sums its part of the cotangent, and the sums are added up. What is
/// gathered has the size of the parameter, not of the batch.
#[test]
fn gradients_of_broadcast_operands_are_summed_on_their_devices() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 4, 8], P!["x", None, "y"]);
    let of_features = device_put(&ones(8), P![])?;
    let of_rows = device_put(&ones([8, 1, 1]), P![])?;
    fn loss(w: Array, b: Array, x: Array) -> Array {
        ((x * w + b) * 0.5).square().sum(..)
    }
    for args in [(&of_features, &of_rows, &x), (&of_rows, &of_features, &x)] {
        let f = jit(grad(loss).argnums((Arg::<0>, Arg::<1>)));
        let sent = f.lower(args)?.compile()?.collectives()?;
        assert!(sent.iter().all(|each| each.bytes <= 8 * 4), "{sent}");
        let (w, b) = f.call(args)?;
        assert_eq!((typed(&w), typed(&b)), (args.0.type_name(), args.1.type_name()));
    }
    Ok(())
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
    let replicated = ramp(&[8, 8], P![]);
    let wrong = f.call((x.greater(3), &x, &replicated)).unwrap_err().to_string();
    assert!(wrong.contains("select cases must have the same sharding"), "{wrong}");
    assert!(wrong.contains("float32[8,8]") && wrong.contains("float32[8@x,8@y]"), "{wrong}");
    let wrong = f.call((ramp(&[8, 8], P!["y", "x"]).greater(3), &x, &y)).unwrap_err().to_string();
    assert!(wrong.contains("which must be scalar or have the same shardings as cases"), "{wrong}");
    // A replicated predicate can be combined with cases of any sharding.
    assert_eq!(typed(&f.call((replicated.greater(3), &x, &y))?), "float32[8@x,8@y]");
    Ok(())
}

#[test]
fn broadcasting_nary_error() -> Result<()> {
    setup();
    let other_mesh = make_mesh([("x", 4), ("y", 2)])?.with_axis_types([AxisType::Explicit; 2])?;
    let two = make_mesh([("a", 4), ("b", 2)])?.with_axis_types([AxisType::Explicit; 2])?;
    let x = device_put(&array([1.0f32; 8]), &NamedSharding::new(&other_mesh, P!["x"]))?;
    let y = device_put(&array([1.0f32; 8]), &NamedSharding::new(&two, P!["a"]))?;
    let text = jit(|x: Array, y: Array| x + y).call((&x, &y)).unwrap_err().to_string();
    assert!(text.contains("float32[8@a]") && text.contains("which is not that of another operand"), "{text}");
    Ok(())
}

/// Functions of two operands, of which one is broadcast: the result has the sharding of the other.
#[test]
fn numpy_functions_of_two_operands_broadcast() -> Result<()> {
    use shardax::numpy as np;
    // The result must be sharded like the operand that is not broadcast.
    type Function = fn(&Array, &Array) -> Array;
    let (_, _guard) = mesh(4);
    let floats: [(&str, Function); 22] = [
        ("add", |x, y| np::add(x, y)),
        ("subtract", |x, y| np::subtract(x, y)),
        ("multiply", |x, y| np::multiply(x, y)),
        ("divide", |x, y| np::divide(x, y)),
        ("floor_divide", |x, y| np::floor_divide(x, y)),
        ("remainder", |x, y| np::remainder(x, y)),
        ("fmod", |x, y| np::fmod(x, y)),
        ("divmod", |x, y| np::divmod(x, y).1),
        ("power", |x, y| np::power(np::abs(x), y)),
        ("float_power", |x, y| np::float_power(np::abs(x), y)),
        ("maximum", |x, y| np::maximum(x, y)),
        ("minimum", |x, y| np::minimum(x, y)),
        ("fmax", |x, y| np::fmax(x, y)),
        ("fmin", |x, y| np::fmin(x, y)),
        ("hypot", |x, y| np::hypot(x, y)),
        ("arctan2", |x, y| np::arctan2(x, y)),
        ("copysign", |x, y| np::copysign(x, y)),
        ("nextafter", |x, y| np::nextafter(x, y)),
        ("heaviside", |x, y| np::heaviside(x, y)),
        ("logaddexp", |x, y| np::logaddexp(x, y)),
        ("logaddexp2", |x, y| np::logaddexp2(x, y)),
        ("isclose", |x, y| np::isclose(x, y, 1e-5, 1e-8).astype(DType::F32)),
    ];
    let integers: [(&str, Function); 8] = [
        ("floor_divide", |x, y| np::floor_divide(x, y)),
        ("remainder", |x, y| np::remainder(x, y)),
        ("power", |x, y| np::power(x, y)),
        ("gcd", |x, y| np::gcd(x, y)),
        ("lcm", |x, y| np::lcm(x, y)),
        ("left_shift", |x, y| np::left_shift(x, y)),
        ("right_shift", |x, y| np::right_shift(x, y)),
        ("ldexp", |x, y| np::ldexp(x.astype(DType::F32), y)),
    ];
    let mut wrong = Vec::new();
    let mut check = |name: &str, f: Function, made: &dyn Fn(&[usize], PartitionSpec) -> Array| {
        let (whole, split) = (made(&[4, 2], P![]), made(&[4, 2], P!["x"]));
        let row = made(&[2], P![]);
        for (have, want) in [(f(&split, &row), f(&whole, &row)), (f(&row, &split), f(&row, &whole))] {
            let ends = have.type_name().ends_with("[4@x,2]");
            match have.error() {
                Some(e) => wrong.push(format!("{name}: {e}")),
                None if !ends || have.to_bytes().unwrap() != want.to_bytes().unwrap() => {
                    wrong.push(format!("{name}: {} {have} is not {want}", have.type_name()));
                }
                None => {}
            }
        }
    };
    for (name, f) in floats.into_iter().step_by(one_of(4)) {
        check(name, f, &|shape, spec| num(shape, 1.3, 0.4, spec));
    }
    for (name, f) in integers.into_iter().step_by(one_of(4)) {
        check(name, f, &|shape, spec| {
            let n: usize = shape.iter().product();
            device_put(&(arange(0..n as i32) + 1).reshape(shape), spec).unwrap()
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
