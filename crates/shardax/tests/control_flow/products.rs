//! Products that CPU programs compute for all steps of a loop at once.

use super::*;

/// Numbers between -1 and 1.
fn numbers(shape: &[usize], seed: i32) -> Array {
    let size = shape.iter().product::<usize>() as i32;
    ((arange(size) * 7 + seed) % 23 - 11).astype(DType::F32).reshape(shape) / 11
}

/// A step of a recurrent layer: products of its input and of its state, whose weights are stored by rows.
fn step(state: &Array, x: &Array, [w, u, b]: [&Array; 3]) -> Array {
    (x.matmul(w.t()) + state.matmul(u.t()) + b).tanh()
}

fn layer(xs: Array, [w, u, b]: [Array; 3]) -> Result<Array> {
    let start = zeros((xs.shape()[1], u.shape()[0]));
    let (last, states) = scan(
        move |state: Array, x: Array| {
            let state = step(&state, &x, [&w, &u, &b]);
            (state.clone(), state)
        },
        start,
        xs,
    )?;
    Ok(states.square().sum(..) + last.sum(..))
}

fn layer_without_loop(xs: Array, [w, u, b]: [Array; 3]) -> Array {
    let mut state = zeros((xs.shape()[1], u.shape()[0]));
    let mut sum = Array::from(0.0f32);
    for t in 0..xs.shape()[0] {
        state = step(&state, &xs.get(t), [&w, &u, &b]);
        sum = sum + state.square().sum(..);
    }
    sum + state.sum(..)
}

#[test]
fn products_of_recurrent_layers_leave_the_loop() -> Result<()> {
    for (steps, rows, features, hidden) in [(7, 3, 50, 46), (5, 1, 47, 49), (2, 9, 64, 48)] {
        let xs = numbers(&[steps, rows, features], 3);
        let weights = [numbers(&[hidden, features], 5) / 9, numbers(&[hidden; 2], 8) / 9, numbers(&[hidden], 2)];
        let gradient = jit(value_and_grad(layer).argnums((Arg::<0>, Arg::<1>)));
        let expected = jit(value_and_grad(layer_without_loop).argnums((Arg::<0>, Arg::<1>)));
        let (value, (xs_gradient, gradients)) = gradient.call((&xs, weights.clone()))?;
        let (expected_value, (expected_xs, expected)) = expected.call((&xs, weights.clone()))?;
        same(&value, &expected_value);
        same(&xs_gradient, &expected_xs);
        gradients.iter().zip(&expected).for_each(|(gradient, expected)| same(gradient, expected));
        let text = gradient.lower((&xs, weights))?.as_text().to_string();
        if common::quick::is_on_cpu() {
            // The product of all inputs, and the gradients of both matrices and of the inputs.
            assert!(text.contains(&format!("-> tensor<{steps}x{rows}x{hidden}xf32>")), "{text}");
            assert_eq!(text.matches("lhs_contracting_dimensions = [0, 1]").count(), 2, "{text}");
        }
    }
    Ok(())
}

/// Sums of products with other terms, of values that the loop computes, and of products that are also used in the loop.
#[test]
fn sums_of_products_in_loops_equal_steps() -> Result<()> {
    let [xs, ys] = [numbers(&[6, 5, 41], 1), numbers(&[6, 5, 53], 4)];
    fn sums(xs: Array, ys: Array) -> Result<(Array, Array, Array)> {
        let start = (zeros((53, 41)), ones((53, 41)), Array::from(1.0f32));
        fn body((sum, other, factor): (Array, Array, Array), (x, y): (Array, Array)) -> ((Array, Array, Array), ()) {
            let product = (&y * &factor).t().matmul(&x);
            let used = y.t().matmul(x.sin());
            // The second sum adds a product that the step uses, and a term that is no product.
            let sum = sum + (product + x.cos().t().matmul(&y).t());
            let other = other + &used + x.get(0);
            ((sum, other, factor * 0.5 + used.max(..)), ())
        }
        Ok(scan(body, start, (xs, ys))?.0)
    }
    let (sum, other, factor) = jit(sums).call((&xs, &ys))?;
    let (mut expected, mut expected_other, mut expected_factor) =
        (zeros((53, 41)), ones((53, 41)), Array::from(1.0f32));
    for t in 0..6 {
        let (x, y) = (xs.get(t), ys.get(t));
        let used = y.t().matmul(x.sin());
        expected = expected + (&y * &expected_factor).t().matmul(&x) + x.cos().t().matmul(&y).t();
        expected_other = expected_other + &used + x.get(0);
        expected_factor = expected_factor * 0.5 + used.max(..);
    }
    same(&sum, &expected);
    same(&other, &expected_other);
    same(&factor, &expected_factor);
    Ok(())
}
