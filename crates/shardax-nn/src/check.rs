//! Checks of arguments: numbers in range, array dtypes, array shapes.

use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};

use shardax::prelude::*;
use shardax::{Error, ErrorKind};

/// Returns from the enclosing function with an array that carries the error of a failed check.
macro_rules! require {
    ($like:expr, $($check:expr),+ $(,)?) => {
        $(if let Err(error) = $check {
            return Array::from_error(error, $like);
        })+
    };
}

pub(crate) use require;

/// Every finite number.
pub(crate) const FINITE: (Bound<f64>, Bound<f64>) =
    (Bound::Excluded(f64::NEG_INFINITY), Bound::Excluded(f64::INFINITY));
/// Every finite number that is at least 0.
pub(crate) const NOT_NEGATIVE: (Bound<f64>, Bound<f64>) = (Bound::Included(0.0), Bound::Excluded(f64::INFINITY));
/// The range of a decay rate: at least 0 and less than 1, so that bias correction is defined.
pub(crate) const DECAY: std::ops::Range<f64> = 0.0..1.0;

/// Checks that the parameter `name` of `owner` is in its range; NaN is in none.
#[track_caller]
pub(crate) fn within(owner: &str, name: &str, value: f64, range: impl RangeBounds<f64>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    // The message states the range in words, because the notation of ranges differs between fields.
    let bounds = [
        match range.start_bound() {
            // In decimal notation this number has more than 300 zeros.
            Bound::Included(low) if *low == f64::MIN_POSITIVE => Some("above 0".to_owned()),
            Bound::Included(low) => Some(format!("at least {low}")),
            Bound::Excluded(low) if low.is_finite() => Some(format!("above {low}")),
            _ => None,
        },
        match range.end_bound() {
            Bound::Included(high) => Some(format!("at most {high}")),
            Bound::Excluded(high) if high.is_finite() => Some(format!("below {high}")),
            Bound::Excluded(_) => Some("finite".to_owned()),
            Bound::Unbounded => None,
        },
    ];
    let expected = bounds.into_iter().flatten().collect::<Vec<_>>().join(" and ");
    reject(owner, name, value, &if expected.is_empty() { "a number".to_owned() } else { expected })
}

/// Checks that the parameter `name` of `owner` is at least 1.
#[track_caller]
pub(crate) fn positive(owner: &str, name: &str, value: usize) -> Result<()> {
    if value > 0 { Ok(()) } else { reject(owner, name, value, "at least 1") }
}

#[track_caller]
fn reject<T>(owner: &str, name: &str, value: impl Debug, expected: &str) -> Result<T> {
    value_error(format!("{owner}: {name} must be {expected}, got {value:?}"))
}

/// Returns a value error with the caller's line.
#[track_caller]
pub(crate) fn value_error<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorKind::Value, message).at(std::panic::Location::caller()))
}

/// Returns an array that carries a value error with the caller's line, instead of a result.
#[track_caller]
pub(crate) fn rejected(message: impl Into<String>, like: &Array) -> Array {
    let error = Error::new(ErrorKind::Value, message).at(std::panic::Location::caller());
    Array::from_error(error, like)
}

/// Checks that the array `name` of `owner` has a real floating-point dtype, as Optax's losses do.
pub(crate) fn floating(owner: &str, name: &str, x: &Array) -> Result<()> {
    kind(owner, name, x, "floating", DType::is_float)
}

/// Checks that the array `name` of `owner` has an integer dtype.
pub(crate) fn integer(owner: &str, name: &str, x: &Array) -> Result<()> {
    kind(owner, name, x, "integer", DType::is_integer)
}

/// Checks that the dtype of an array is of a kind.
fn kind(owner: &str, name: &str, x: &Array, expected: &str, accepts: fn(DType) -> bool) -> Result<()> {
    // An earlier error takes precedence.
    x.check()?;
    if accepts(x.dtype()) {
        return Ok(());
    }
    let message = format!(
        "{owner}: expected {name} to have a dtype that is a subdtype of {expected}, got {} instead",
        x.type_name()
    );
    Err(Error::new(ErrorKind::Type, message).help("convert the array with `astype`"))
}

/// Checks that every parameter is real, for an optimizer that compares gradients, since complex numbers have no order.
#[track_caller]
pub(crate) fn real_parameters<P: Tree>(owner: &str, params: &P) -> Result<()> {
    for (path, param) in tree::leaves_with_path(params) {
        if param.dtype().is_complex() {
            let name = if path.is_empty() { "the parameter".to_owned() } else { format!("`{path}`") };
            let message = format!("{owner} is for real parameters, but {name} is {}", param.type_name());
            return Err(Error::new(ErrorKind::Type, message)
                .at(std::panic::Location::caller())
                .help("update real and imaginary parts as separate arrays with `contrib::split_real_and_imaginary`"));
        }
    }
    Ok(())
}

/// Checks that the last dimension of an input of `owner` has the number of features of its kernel, `[in, out]`.
pub(crate) fn input_features(owner: &str, x: &Array, kernel: &Array) -> Result<()> {
    x.check()?;
    kernel.check()?;
    let &[expected, _] = kernel.shape() else { return Ok(()) };
    let (shape, input) = (x.shape(), x.type_name());
    let Some((&features, leading)) = shape.split_last() else {
        let message = format!("{owner}: the input {input} is one number, and the layer takes {expected} features");
        return Err(Error::new(ErrorKind::Value, message).help("pass an array of the shape [..., features]"));
    };
    if features == expected {
        return Ok(());
    }
    let message = format!(
        "{owner}: the input {input} has {features} features in its last dimension, and the layer takes {expected}"
    );
    let product = |dims: &[usize]| dims.iter().try_fold(1, |product: usize, dim| product.checked_mul(*dim));
    let flattened = (1..shape.len()).find(|start| product(&shape[*start..]) == Some(expected));
    let help = if let Some(start) = flattened {
        let batch_sizes: String = shape[..start].iter().map(|dim| format!("{dim}, ")).collect();
        format!("flatten the input: `x.reshape([{batch_sizes}-1])`")
    } else if let Some(dim) = leading.iter().position(|size| *size == expected) {
        format!("move the features to the last dimension: `x.moveaxis({dim}, -1)`")
    } else {
        format!("make the layer with {features} input features, or pass an array of the shape [..., {expected}]")
    };
    Err(Error::new(ErrorKind::Value, message).help(help))
}

/// Checks that two named arrays of `owner` have equal shapes.
pub(crate) fn same_shape(owner: &str, a: (&str, &[usize]), b: (&str, &[usize])) -> Result<()> {
    if a.1 == b.1 {
        return Ok(());
    }
    let message = format!("{owner}: shape mismatch: {} {:?} and {} {:?}", a.0, a.1, b.0, b.1);
    Err(Error::new(ErrorKind::Value, message)
        .help("pass arrays of equal shapes; repeat a value that is the same for all with `broadcast_to`"))
}
