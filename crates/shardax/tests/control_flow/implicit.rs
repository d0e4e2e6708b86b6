//! Solutions that are differentiated by the implicit function theorem.

use shardax::control_flow::custom_root;
use shardax::prelude::*;

use crate::common::quick::setup;

/// The root of x³ - a x - 1 next to 1.5, by Newton's method until it converges, which reverse mode cannot differentiate.
fn root(a: Array) -> Result<Array> {
    fn newton(f: &dyn Fn(Array) -> Result<Array>, start: Array) -> Result<Array> {
        let step = |(x, i): (Array, Array)| -> Result<(Array, Array)> {
            Ok((&x - f(x.clone())? / grad(|x: Array| f(x)).call(&x)?, i + 1))
        };
        let is_open = |(x, i): (Array, Array)| -> Result<Array> { Ok(f(x)?.abs().greater(1e-6) & i.less(50)) };
        Ok(while_loop(is_open, step, (start, Array::from(0)))?.0)
    }
    custom_root(|x: Array| x.pow(3) - &a * &x - 1, array(1.5f32), newton, |g, y: Array| Ok(&y / g(ones_like(&y))?))
}

/// The numbers are from JAX 0.12.
#[test]
fn higher_derivatives_of_custom_root_do_not_differentiate_the_solver() -> Result<()> {
    setup();
    let first = grad(root);
    let second = grad(&first);
    let third = grad(&second);
    let point = array(2.0f32);
    for (value, expected) in [
        (root(point.clone())?, 1.618_034f32),
        (first.call(&point)?, 0.276_393_2),
        (second.call(&point)?, -0.032_260_187),
        (third.call(&point)?, 0.006_187_368),
        (jacfwd(&first).call(&point)?, -0.032_260_17),
        (jit(jacfwd(jacfwd(root))).call(&point)?, -0.032_260_17),
    ] {
        let value = value.item::<f32>()?;
        assert!((value - expected).abs() < 2e-5 * expected.abs().max(0.1), "{value} is not {expected}");
    }
    let mapped = vmap(&second).call(array([1.0f32, 2.0, 3.0]))?;
    assert!(allclose(mapped, array([-0.034_159_23f32, -0.032_260_187, -0.025_725_652]), 1e-4, 0.0)?);
    Ok(())
}
