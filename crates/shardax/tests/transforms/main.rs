//! `grad` and `vmap` with all their options. (Values are compared with JAX's in `golden.rs`.)

#[path = "../common/mod.rs"]
mod common;
mod grad;
mod jacobian;
mod vmap;

use shardax::prelude::*;

fn numbers(x: &Array) -> Vec<f64> {
    x.to_f64_vec().expect("values")
}

/// float32 numbers 0, 1, 2, …
fn ramp(shape: impl IntoShape + Clone) -> Array {
    let n: i64 = shape.clone().into_dims().iter().product();
    arange(0..n as i32).astype(DType::F32).reshape(shape)
}

/// Numbers of no pattern, between -1 and 1.
fn noise(shape: impl IntoShape + Clone) -> Array {
    ((ramp(shape) + 0.3) * 1.7).sin()
}

#[track_caller]
fn close(a: &Array, b: &Array) {
    assert_eq!(a.shape(), b.shape());
    let (x, y) = (numbers(a), numbers(b));
    assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() <= 2e-4 * (1.0 + y.abs())), "{a}\nis not\n{b}");
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error").to_string()
}
