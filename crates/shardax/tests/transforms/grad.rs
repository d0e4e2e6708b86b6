//! `grad` and `value_and_grad` with their options, beyond real functions of real arguments.

use shardax::ErrorKind;
use shardax::prelude::*;

use crate::common::quick::setup;
use crate::{close, message, noise, numbers, ramp};

/// Float literals of Rust have 64 bits, and `ones` has 32: JAX's `arange(3.)` and `ones(3)` have one dtype.
#[test]
fn tangents_of_weakly_typed_values_are_converted() -> Result<()> {
    setup();
    let cube = |x: Array| x.pow(3);
    let (_, tangent) = jvp(cube, arange(3.0), ones(3))?;
    assert_eq!(tangent.to_vec::<f64>()?, [0.0, 3.0, 12.0]);
    let (_, pullback) = vjp(cube, arange(3.0))?;
    assert_eq!(pullback.call(ones(3))?.0.to_vec::<f64>()?, [0.0, 3.0, 12.0]);
    // The dtype of other values is a choice, and complex tangents belong to complex values.
    assert!(jvp(cube, ones(3), ones(3).astype(f64)).is_err());
    assert!(jvp(cube, arange(3.0).astype(f64), ones(3)).is_err());
    assert!(jvp(cube, arange(3.0), complex(ones(3), ones(3))).is_err());
    Ok(())
}

#[test]
fn integers_have_float0_gradients() -> Result<()> {
    setup();
    fn f(x: Array, n: (Array, Array)) -> Array {
        (x * &n.0).sum(..) + n.1.astype(DType::F32).sum(..)
    }
    let n = (arange(0..3), array([true, false]));
    let g = grad(f).argnums((Arg::<0>, Arg::<1>)).allow_int();
    let (dx, (di, db)) = g.call((noise(3), n.clone()))?;
    close(&dx, &ramp(3));
    assert_eq!((di.dtype(), di.shape(), db.dtype(), db.shape()), (DType::Float0, &[3][..], DType::Float0, &[2][..]));
    let only = grad(|n: Array| n.astype(DType::F32).sum(..)).allow_int().call(arange(0..3))?;
    assert_eq!((only.dtype(), only.shape()), (DType::Float0, &[3][..]));
    let (v, g) = jit(value_and_grad(f).argnums(Arg::<1>).allow_int()).call((noise(3), n.clone()))?;
    assert_eq!((v.shape().len(), g.0.dtype()), (0, DType::Float0));
    let mapped = pmap(grad(f).argnums(Arg::<1>).allow_int()).in_axes((None, 0));
    let gradients = mapped.call((noise(3), (arange(0..24).reshape([8, 3]), ones([8, 2]).greater(0))))?;
    assert_eq!((gradients.0.dtype(), gradients.0.shape()), (DType::Float0, &[8, 3][..]));
    assert!(message(grad(f).argnums(Arg::<1>).call((noise(3), n))).contains("allow_int"));
    Ok(())
}

#[test]
fn complex_arguments_and_results() -> Result<()> {
    setup();
    let z = complex(noise(4), noise(4).cos());
    let g = grad(|z: Array| z.abs().square().sum(..)).call(&z)?;
    close(&real(&g), &(real(&z) * 2));
    close(&imag(&g), &(imag(&z) * -2));
    // d sin z / dz = cos z.
    let d = vmap(grad(|z: Array| z.sin()).holomorphic()).call(&z)?;
    close(&real(&d), &real(&z.cos()));
    close(&imag(&d), &imag(&z.cos()));
    let (v, d) = value_and_grad(|z: Array| (&z * &z * z).sum(..)).holomorphic().call(&z)?;
    close(&real(&v), &real(&(&z * &z * &z).sum(..)));
    close(&imag(&d), &imag(&(&z * &z * 3)));
    for (f, what) in [
        (
            grad(|z: Array| z.sum(..)).holomorphic().call(noise(3)),
            "requires inputs with complex dtype, but got float32",
        ),
        (
            grad(|z: Array| z.abs().sum(..)).holomorphic().call(&z),
            "requires outputs with complex dtype, but got float32",
        ),
        (grad(|z: Array| z.sum(..)).call(&z), "For holomorphic differentiation, call `.holomorphic()`"),
    ] {
        let error = f.err().expect("an error");
        assert_eq!(error.kind(), ErrorKind::Type);
        assert!(error.to_string().contains(what), "{error}");
    }
    Ok(())
}

#[test]
fn auxiliary_results_and_several_arguments() -> Result<()> {
    setup();
    fn f(x: Array, y: Array, z: (Array, Array)) -> (Array, (Array, Array)) {
        ((&x * &y).sum(..) + (&z.0 * &z.1).sum(..), (y, z.0))
    }
    fn args() -> (Array, Array, (Array, Array)) {
        (noise(3), ramp(3), (ramp(2), noise(2)))
    }
    let ((v, (aux, _)), (dz, dx)) = value_and_grad(f).has_aux().argnums((Arg::<2>, Arg::<0>)).call(args())?;
    assert_eq!(v.ndim(), 0);
    close(&aux, &ramp(3));
    close(&dx, &ramp(3));
    close(&dz.1, &ramp(2));
    let (dy, (aux, _)) = jit(grad(f).argnums(Arg::<1>).has_aux()).call(args())?;
    close(&dy, &noise(3));
    close(&aux, &ramp(3));
    // A number is an argument too, and so is nothing at all.
    assert_eq!(numbers(&grad(|x: Array, _: ()| x.square()).call((3.0f32, ()))?), [6.0]);
    grad(|_: (), x: Array| x.sum(..)).call(((), ramp(3)))?;
    Ok(())
}

#[test]
fn transposes_of_linear_functions() -> Result<()> {
    setup();
    let w = noise([3, 4]);
    fn f(x: Array, y: (Array, Array), w: &Array) -> (Array, Array) {
        (w.dot(&x) + y.0.sum(..), y.1 * 2)
    }
    fn args() -> (Array, (Array, Array)) {
        (noise(4), (noise(2), noise(3)))
    }
    let (_, pull) = vjp(|x: Array, y: (Array, Array)| f(x, y, &w), args())?;
    let back = linear_transpose(
        |x: Array, y: (Array, Array)| f(x, y, &w),
        (shape_dtype_struct(4, DType::F32), (noise(2), noise(3))),
    )?;
    fn ct() -> (Array, Array) {
        (ramp(3), ramp(3) + 1)
    }
    let ((x, (a, b)), (vx, (va, vb))) = (back.call(ct())?, pull.call(ct())?);
    [(x, vx), (a, va), (b, vb)].iter().for_each(|(got, want)| close(got, want));
    // A linearized function can be transposed, in a checked map too.
    let mesh = make_mesh([("i", 8)])?;
    fn there_and_back(p: Array, t: Array) -> Result<Array> {
        let (_, push) = linearize(|x: Array| x.square().mean(..), &p)?;
        let back = linear_transpose(|t: Array| push.call(t), &p)?;
        Ok(back.call(push.call(t)?)?.0)
    }
    let mapped = shard_map(there_and_back, &mesh).in_specs((P!["i"], P!["i"])).out_specs(P!["i"]);
    close(&mapped.call((ramp(8), ones(8)))?, &(ramp(8).square() * 4));
    let error = linear_transpose(|x: Array| x.sin(), noise(3))?.call(noise(3)).err().expect("not linear");
    assert_eq!(error.kind(), ErrorKind::NotImplemented);
    let error = linear_transpose(|x: Array| &x * &x, noise(3))?.call(noise(3)).err().expect("not linear");
    assert_eq!(error.kind(), ErrorKind::NotImplemented);
    let error = linear_transpose(|x: Array| x * 2, arange(0..3)).err().expect("integers");
    assert_eq!(error.kind(), ErrorKind::Type);
    Ok(())
}

/// Computes the derivative of the sine of this order with one transformation.
fn derivative_of_sine(name: &'static str, order: usize, x: Array) -> Result<Array> {
    if order == 0 {
        return Ok(x.sin());
    }
    let lower = move |x: Array| derivative_of_sine(name, order - 1, x);
    match name {
        "jvp" => Ok(jvp(lower, x, 1.0f32)?.1),
        "vjp" => Ok(vjp(lower, x)?.1.call(1.0f32)?.0),
        "linearize" => linearize(lower, x)?.1.call(1.0f32),
        "jacfwd" => jacfwd(lower).call(x),
        "jacrev" => jacrev(lower).call(x),
        "hessian" if order > 1 => hessian(move |x: Array| derivative_of_sine(name, order - 2, x)).call(x),
        _ => grad(lower).call(x),
    }
}

/// Each derivative computes parts of the function again; these are merged, since their number would double with each order.
#[test]
fn derivatives_of_high_order_are_programs_of_few_equations() -> Result<()> {
    setup();
    for (name, order, most_lines) in [
        ("grad", 40, 200),
        ("jvp", 40, 200),
        ("vjp", 40, 200),
        ("linearize", 40, 200),
        ("jacfwd", 12, 400),
        ("jacrev", 12, 400),
        ("hessian", 12, 400),
    ] {
        let derivative = move |x: Array| derivative_of_sine(name, order, x);
        let lines = make_program(derivative, array(0.7f32))?.to_string().lines().count();
        assert!(lines < most_lines, "{name}: {lines} lines");
        close(&derivative(array(0.7f32))?, &array(0.7f32).sin());
    }
    Ok(())
}

/// `exp(y - stop_gradient(y))` is 1, and has the derivatives of `exp(y)`, divided by `exp(y)`. Second derivatives differentiated
/// through `stop_gradient`, because the first derivative returned its operand in its place.
#[test]
fn every_derivative_stops_at_stop_gradient() -> Result<()> {
    setup();
    fn weight(x: Array) -> Array {
        let y = x.square();
        (&y - stop_gradient(y.clone())).exp()
    }
    fn derivatives(f: impl Function<(Array,), Output = Array> + Clone) -> Result<[f32; 5]> {
        let x = array(1.0f32);
        Ok([
            grad(f.clone()).call(&x)?.item()?,
            grad(grad(f.clone())).call(&x)?.item()?,
            jacfwd(jacfwd(f.clone())).call(&x)?.item()?,
            jit(jacfwd(jacrev(f.clone()))).call(&x)?.item()?,
            jacrev(jacfwd(grad(f))).call(&x)?.item()?,
        ])
    }
    // y' = y'' = 2: the derivatives are y', y'² + y'', and y'³ + 3 y' y''.
    let expected = [2.0, 6.0, 6.0, 6.0, 20.0];
    assert_eq!(derivatives(weight)?, expected);
    assert_eq!(derivatives(|x: Array| jit(weight).call(x))?, expected);
    assert_eq!(derivatives(|x: Array| checkpoint(weight).call(x))?, expected);
    assert_eq!(
        derivatives(|x: Array| -> Result<Array> { Ok(vmap(weight).call(x.expand_dims(0))?.sum(..)) })?,
        expected
    );
    assert_eq!(derivatives(|x: Array| cond(x.greater(0.0), weight, |x: Array| x, x))?, expected);
    assert_eq!(derivatives(|x: Array| fori_loop(0, 1, |_, x: Array| weight(x), x))?, expected);
    assert_eq!(derivatives(|x: Array| -> Result<Array> { Ok(vjp(weight, &x)?.0) })?, expected);
    // The slope of the line `x * c` does not change.
    assert_eq!(grad(grad(|x: Array| &x * stop_gradient(x.square()))).call(3.0)?.item::<f32>()?, 0.0);
    Ok(())
}
