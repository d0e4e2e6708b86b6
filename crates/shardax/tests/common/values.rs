//! Arrays for tests, and their elements.

use shardax::Error;
use shardax::prelude::*;

pub fn ints(x: &Array) -> Vec<i32> {
    x.to_vec().expect("int32 values")
}

/// Over which axes of its mesh the array is split.
pub fn spec(x: &Array) -> Result<PartitionSpec> {
    Ok(x.sharding()?.spec()?.clone())
}

/// Values of any real dtype.
pub fn numbers(x: &Array) -> Vec<f64> {
    x.to_f64_vec().expect("values")
}

/// float32 numbers 0, 1, 2, …
pub fn ramp(shape: impl IntoShape + Clone) -> Array {
    let n: i64 = shape.clone().into_dims().iter().product();
    arange(0..n as i32).astype(DType::F32).reshape(shape)
}

/// Numbers of no pattern, between -1 and 1.
pub fn noise(shape: impl IntoShape + Clone) -> Array {
    ((ramp(shape) + 0.3) * 1.7).sin()
}

/// Both have the same shape, and the same values but for a few roundings of float32.
#[track_caller]
pub fn close(a: &Array, b: &Array) {
    assert_eq!(a.shape(), b.shape());
    let (x, y) = (numbers(a), numbers(b));
    assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() <= 2e-4 * (1.0 + y.abs())), "{a}\nis not\n{b}");
}

/// The error that a call returned.
#[track_caller]
pub fn error<T>(result: Result<T>) -> Error {
    result.err().expect("an error")
}

/// Its text, with line and help.
#[track_caller]
pub fn message<T>(result: Result<T>) -> String {
    error(result).to_string()
}

/// The error that an array carries.
#[track_caller]
pub fn error_of(x: Array) -> Error {
    x.error().cloned().expect("an array that carries an error")
}

#[track_caller]
pub fn assert_says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}
