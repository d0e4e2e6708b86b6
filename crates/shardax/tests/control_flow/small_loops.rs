//! Loops over short arrays, which CPU programs call as one function.

use shardax::numpy::{arange, concatenate, stack, where_};
use shardax::prelude::*;

use crate::common::quick::setup;

const CALL: &str = "xla_cpu_small_call";

/// Checks whether the loop is one function, and that its results are equal to the results of `steps` calls of the body.
fn check_loop(
    body: impl Fn(Array) -> Result<Array> + Clone + 'static,
    x: &Array,
    steps: usize,
    is_function: bool,
) -> Result<()> {
    let step = body.clone();
    let looped = jit(move |x: Array| fori_loop(0, steps as i32, |_, x: Array| step(x), x));
    let text = looped.lower(x)?.as_text().to_string();
    assert_eq!(text.contains(CALL), is_function && shardax::devices()?[0].platform() == "cpu", "{text}");
    let single = jit(body);
    let mut expected = x.clone();
    for _ in 0..steps {
        expected = single.call(&expected)?;
    }
    let (result, expected) = (looped.call(x)?.to_f64_vec()?, expected.to_f64_vec()?);
    assert_eq!(result, expected, "{text}");
    Ok(())
}

#[test]
fn small_loops_are_one_function() -> Result<()> {
    setup();
    for n in [3, 300, 5000] {
        let x = arange(n).astype(DType::F32) / n;
        check_loop(|x| Ok(0.5 * &x + 1), &x, 9, true)?;
        check_loop(|x| Ok(where_(x.greater(0.5), &x - 0.5, &x * 2)), &x, 9, true)?;
        check_loop(|x| Ok(concatenate(&[x.get(1..), x.get(0..1)], 0) - x.max(..)), &x, 9, true)?;
        check_loop(|x| Ok((&x * &x).reshape((-1, 1)).sum(1) - 1), &x, 9, true)?;
        // The array of positions is a constant of the loop.
        check_loop(|x| Ok(&x + (arange(x.shape()[0] as i32) % 7).astype(DType::F32)), &x, 9, true)?;
        for dtype in [DType::F64, DType::Bf16, DType::F16, DType::I8, DType::U32, DType::I64] {
            check_loop(|x| Ok(&x * 2 + 1), &(&x * 8).astype(dtype), 5, true)?;
        }
    }
    let matrix = arange(60).astype(DType::F32).reshape((12, 5));
    check_loop(
        |x| Ok(stack(&[x.get((.., 0)), -x.get((.., 1)), x.get((.., 4)), x.max(1), x.sum(1)], -1)),
        &matrix,
        4,
        true,
    )?;
    check_loop(|x| Ok(x.t().reshape((12, 5))), &matrix, 5, true)
}

#[test]
fn other_loops_are_not() -> Result<()> {
    setup();
    let x = arange(300).astype(DType::F32) / 300;
    check_loop(|x| Ok(x.tanh()), &x, 4, false)?;
    check_loop(|x| Ok(x.sort(0)), &x, 4, false)?;
    check_loop(|x| Ok(x.at(1..-1).multiply(0.5)), &x, 4, false)?;
    check_loop(|x| Ok(&x * 0.5), &arange(20_000).astype(DType::F32), 4, false)?;
    let square = (x.get(0..256) / 100).reshape((16, 16));
    check_loop(|x| Ok(x.dot(&x)), &square, 4, false)
}

/// The inner loop is part of the function of the outer one, and a loop next to another operation is a function of its own.
#[test]
fn nested_and_stacked_loops() -> Result<()> {
    setup();
    let sums = |xs: Array| -> Result<(Array, Array)> {
        scan(
            |sum: Array, x: Array| -> Result<(Array, Array)> {
                let x = fori_loop(0, 3, |i, x: Array| 2 * x + i, x)?;
                Ok((&sum + &x, x))
            },
            Array::from(0),
            xs,
        )
    };
    let f = jit(sums);
    let xs = arange(5);
    let text = f.lower(&xs)?.as_text().to_string();
    let expected_calls = usize::from(shardax::devices()?[0].platform() == "cpu");
    assert_eq!(text.matches(CALL).count(), expected_calls, "{text}");
    let (sum, ys) = f.call(&xs)?;
    // 2 (2 (2 x + 0) + 1) + 2
    assert_eq!(ys.to_vec::<i32>()?, [4, 12, 20, 28, 36]);
    assert_eq!(sum.item::<i32>()?, 100);
    // The inner loop alone.
    let g = jit(move |xs: Array| sums(xs.sin().astype(DType::I32) + arange(5)));
    assert_eq!(g.call(&xs)?.0.item::<i32>()?, 100);
    let product = |w: Array, xs: Array| -> Result<Array> {
        let (last, ys) = scan(|c: Array, x: Array| ((&w * &c + &x), c), array([1.0f32, 2.0]), xs)?;
        Ok((last + ys.sum(0)).sum(..))
    };
    // With c1 = w c0 + x0 and c2 = w c1 + x1, the derivative of c0 + c1 + c2 is c0 + (c1 + w c0) = 3 + 2.5 + 1.5.
    let gradient = grad(product).call((array(0.5f32), array([[1.0f32, 0.0], [0.0, 1.0]])))?;
    assert_eq!(gradient.item::<f32>()?, 7.0);
    Ok(())
}
