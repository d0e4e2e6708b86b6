//! Convolutions of vectors, and polynomials. Coefficients start with the highest power.

use std::ops::Range;

use super::{checked_or_failed, promote_dtypes, to_inexact, to_strong_type};
use crate::choice::{Choice, IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::shape::{AxisNumber, broadcast_shapes};

fn vector(name: &str, x: &Array) -> Result<()> {
    x.check()?;
    match x.ndim() {
        1 => Ok(()),
        _ => Err(err!(Value, "{name} needs a vector of coefficients, got {}", x.type_name())
            .help("map over several polynomials with `vmap`")),
    }
}

/// Evaluates a polynomial at `x` by Horner's rule. Extra dimensions of the coefficients are a batch of polynomials and
/// broadcast against `x`.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::polyval;
/// // x² - 1
/// assert_eq!(polyval(array([1, 0, -1]), array([2, 3])).to_vec::<i32>()?, [3, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if the coefficients are a scalar.
#[track_caller]
pub fn polyval(p: impl ArrayLike, x: impl ArrayLike) -> Array {
    let (p, x) = (p.into_array(), x.into_array());
    checked_or_failed(&x, || {
        p.check()?;
        let args = promote_dtypes(&[&p, &x], |d| d)?;
        let [p, x] = [&args[0], &args[1]].map(|x| to_strong_type(x, x.dtype()));
        let shape = p.shape().get(1..).and_then(|batch| broadcast_shapes(&[batch, x.shape()])).ok_or_else(|| {
            err!(Value, "polyval got incompatible shapes for broadcasting: {} and {}", p.type_name(), x.type_name())
                .help("pass a vector of coefficients, or coefficients whose other dimensions broadcast against `x`")
        })?;
        let zero = super::filled(&shape, Scalar::Int(0), x.dtype());
        // A long polynomial is evaluated in a loop, so that the program stays short.
        if p.shape()[0] > 32 {
            return Ok(crate::ops::control_flow::scan(|y: Array, c: Array| (y * &x + c, ()), zero, p.clone())?.0);
        }
        Ok((0..p.shape()[0]).fold(zero, |y, i| y * &x + p.get(i as i32)))
    })
}

/// Returns the sum of two polynomials.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(polyadd(array([1, 2]), array([1, 0, 5])).to_vec::<i32>()?, [1, 1, 7]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn polyadd(p: impl ArrayLike, q: impl ArrayLike) -> Array {
    let (p, q) = (p.into_array(), q.into_array());
    checked_or_failed(&p, || padded("polyadd", &p, &q).map(|[p, q]| p + q))
}

/// Converts the coefficients to a common dtype, and pads the shorter vector with leading zeros.
fn padded(name: &str, p: &Array, q: &Array) -> Result<[Array; 2]> {
    vector(name, p)?;
    vector(name, q)?;
    let args = promote_dtypes(&[p, q], |d| d)?;
    let n = p.size().max(q.size());
    Ok([&args[0], &args[1]].map(|x| super::pad(x, (n - x.size(), 0), super::PadMode::Constant(0.0))))
}

/// Returns the difference of two polynomials.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(polysub(array([1, 2, 3]), array([1, 1])).to_vec::<i32>()?, [1, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn polysub(p: impl ArrayLike, q: impl ArrayLike) -> Array {
    let (p, q) = (p.into_array(), q.into_array());
    // The difference is computed in the common dtype, because the negative of an unsigned integer wraps in its own.
    checked_or_failed(&p, || padded("polysub", &p, &q).map(|[p, q]| p - q))
}

/// Returns the product of two polynomials, floating point.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::polymul;
/// assert_eq!(polymul(array([1.0f32, 1.0]), array([1.0f32, -1.0])).to_vec::<f32>()?, [1.0, 0.0, -1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn polymul(p: impl ArrayLike, q: impl ArrayLike) -> Array {
    // A polynomial without coefficients is 0.
    let [p, q] = [p.into_array(), q.into_array()]
        .map(|x| if x.shape() == [0] { super::filled(&[1], Scalar::Int(0), x.dtype()) } else { x });
    convolve(p, q, ConvolveMode::Full)
}

/// Returns the quotient and the remainder of two polynomials, floating point. The remainder has the size of `p`.
///
/// ```
/// # use shardax::prelude::*;
/// let (quotient, rest) = polydiv(array([1.0f32, 0.0, -1.0]), array([1.0f32, 1.0]));
/// assert_eq!(quotient.to_vec::<f32>()?, [1.0, -1.0]);
/// assert_eq!(rest.to_vec::<f32>()?, [0.0, 0.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn polydiv(p: impl ArrayLike, q: impl ArrayLike) -> (Array, Array) {
    let (p, q) = (p.into_array(), q.into_array());
    crate::core::program::trace::at_caller(|| {
        divide(&p, &q).unwrap_or_else(|e| {
            let failed = Array::from_result(Err(e), &p);
            (failed.clone(), failed)
        })
    })
}

/// Long division: eliminates the leading coefficient of the remainder until the remainder has a lower degree than `q`.
fn divide(p: &Array, q: &Array) -> Result<(Array, Array)> {
    vector("polydiv", p)?;
    vector("polydiv", q)?;
    let args = promote_dtypes(&[p, q], to_inexact)?;
    let [mut remainder, q] = [&args[0], &args[1]].map(|x| to_strong_type(x, x.dtype()));
    if q.size() == 0 {
        return Err(err!(Value, "polydiv cannot divide by a polynomial without coefficients, got {}", q.type_name())
            .help("pass at least one coefficient"));
    }
    let scale = 1 / q.get(0);
    let mut quotient = Vec::new();
    for k in 0..(remainder.size() + 1).saturating_sub(q.size()) {
        let factor = &scale * remainder.get(k as i32);
        let end = (k + q.size()) as i64;
        remainder = remainder.at(crate::ops::index::Slice::new(k as i64, end, 1)).add(-(&factor * &q));
        quotient.push(factor);
    }
    if quotient.is_empty() {
        quotient.push(super::filled(&[], Scalar::Int(0), remainder.dtype()));
    }
    Ok((super::stack(&quotient, 0), remainder))
}

/// Returns the `m`-th derivative of a polynomial, floating point.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::{polyder, polyint};
/// assert_eq!(polyder(array([1.0f32, 2.0, 3.0]), 1).to_vec::<f32>()?, [2.0, 2.0]);
/// assert_eq!(polyint(array([2.0f32, 2.0]), 1, 3.0).to_vec::<f32>()?, [1.0, 2.0, 3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn polyder(p: impl ArrayLike, m: usize) -> Array {
    let p = p.into_array();
    checked_or_failed(&p, || {
        vector("polyder", &p)?;
        let p = to_strong_type(&p, to_inexact(p.dtype()));
        let n = p.size();
        let factors: Vec<f64> = (m..n).rev().map(|power| (0..m).map(|i| (power - i) as f64).product()).collect();
        let coefficients = lax::slice_in_dim(&p, 0, n.saturating_sub(m), 0usize);
        Ok(coefficients * Array::from_slice(&factors, &[factors.len()])?.astype(p.dtype()))
    })
}

/// Returns the `m`-th integral of a polynomial, floating point. `k` has one constant of integration for each integral,
/// or one for all.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(polyint(array([2, 1]), 1, 5).to_vec::<f32>()?, [1.0, 1.0, 5.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn polyint(p: impl ArrayLike, m: usize, k: impl ArrayLike) -> Array {
    let (p, k) = (p.into_array(), k.into_array());
    checked_or_failed(&p, || {
        vector("polyint", &p)?;
        let args = promote_dtypes(&[&p, &k], to_inexact)?;
        let [p, k] = [&args[0], &args[1]].map(|x| to_strong_type(x, x.dtype()));
        let k = if k.size() == 1 { k.ravel().broadcast_to([m]) } else { k };
        if k.shape() != [m] {
            return Err(err!(Value, "k must be a scalar or a rank-1 array of length 1 or m, got {}", k.type_name())
                .help("pass one constant for each integral"));
        }
        let n = p.size() + m;
        let divisors: Vec<f64> =
            (0..n).rev().map(|power| (0..m).map(|i| power.saturating_sub(i).max(1) as f64).product()).collect();
        Ok(lax::concatenate(&[p.clone(), k], 0) / Array::from_slice(&divisors, &[n])?.astype(p.dtype()))
    })
}

/// Returns the Vandermonde matrix: the powers of `x` from `n - 1` down to 0 as columns.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::vander;
/// assert_eq!(vander(array([2, 3]), 3).to_vec::<i32>()?, [4, 2, 1, 9, 3, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn vander(x: impl ArrayLike, n: usize) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || {
        vector("vander", &x)?;
        let powers = super::convert(&lax::rev(&lax::iota(DType::I32, &[n], 0), &[0usize]), x.dtype(), false);
        Ok(super::power(x.expand_dims(1), powers.expand_dims(0)))
    })
}

/// The part of a [`convolve`] that is returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConvolveMode {
    /// All positions where the vectors overlap: `n + m - 1` elements.
    #[default]
    Full,
    /// The center of `Full`, with the size of the longer vector.
    Same,
    /// The positions where the shorter vector is entirely inside the longer vector.
    Valid,
}

/// JAX's names.
impl NamedOption for ConvolveMode {
    const KIND: &'static str = "mode";
    const NAMES: &'static [(&'static str, Self)] =
        &[("full", ConvolveMode::Full), ("same", ConvolveMode::Same), ("valid", ConvolveMode::Valid)];
}

/// Returns the convolution of two vectors, floating point.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::{ConvolveMode, convolve, correlate};
/// let (x, y) = (array([1.0f32, 2.0, 3.0]), array([0.0f32, 1.0, 0.5]));
/// assert_eq!(convolve(&x, &y, ConvolveMode::Full).to_vec::<f32>()?, [0.0, 1.0, 2.5, 4.0, 1.5]);
/// assert_eq!(correlate(&x, &y, ConvolveMode::Valid).to_vec::<f32>()?, [3.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for arrays that are empty or not vectors.
#[track_caller]
pub fn convolve(x: impl ArrayLike, y: impl ArrayLike, mode: impl IntoChoice<ConvolveMode>) -> Array {
    sliding("convolve", x, y, mode.into_choice(), false)
}

/// Returns the correlation of two vectors, floating point. The second vector is conjugated. NumPy's default mode is
/// [`ConvolveMode::Valid`].
///
/// ```
/// # use shardax::prelude::*;
/// let y = correlate(array([1, 2, 3]), array([0, 1]), ConvolveMode::Valid);
/// assert_eq!(y.to_vec::<f32>()?, [2.0, 3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn correlate(x: impl ArrayLike, y: impl ArrayLike, mode: impl IntoChoice<ConvolveMode>) -> Array {
    sliding("correlate", x, y, mode.into_choice(), true)
}

#[track_caller]
fn sliding(name: &str, x: impl ArrayLike, y: impl ArrayLike, mode: Choice<ConvolveMode>, correlated: bool) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(&x, || {
        let mode = mode.value(name)?;
        let args = promote_dtypes(&[&x, &y], to_inexact)?;
        if let Some(odd) = args.iter().find(|x| x.ndim() != 1 || x.size() == 0) {
            return Err(err!(
                Value,
                "{name}() only support 1-dimensional inputs that are not empty, got {}",
                odd.type_name()
            )
            .help("use `lax::conv_general_dilated` for several dimensions"));
        }
        let [x, y] = [&args[0], &args[1]].map(|x| to_strong_type(x, x.dtype()));
        let exchanged = x.size() < y.size();
        let y = if correlated { super::conj(&y) } else { y };
        let (long, short) = if exchanged { (y, x) } else { (x, y) };
        let short = if correlated { short } else { short.flip(0) };
        let m = short.size() as i64;
        let padding = match mode {
            ConvolveMode::Full => (m - 1, m - 1),
            ConvolveMode::Same => (m / 2, m - m / 2 - 1),
            ConvolveMode::Valid => (0, 0),
        };
        // A batch of one line with one feature.
        let [input, kernel] = [&long, &short].map(|x| lax::reshape(x, &[1, 1, x.size()]));
        let padding = lax::Padding::Explicit(vec![padding]);
        let out = lax::conv_general_dilated(input, kernel, [1], padding, lax::ConvOptions::new()).ravel();
        Ok(if correlated && exchanged { out.flip(0) } else { out })
    })
}

/// Returns the derivative along `axis`, floating point. `dx` is the spacing of the samples, or a vector of their
/// coordinates. The derivative is computed with second-order differences, and with first-order differences at the ends.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::gradient;
/// let x = array([1.0f32, 2.0, 4.0, 7.0]);
/// assert_eq!(gradient(&x, 1.0, 0).to_vec::<f32>()?, [1.0, 1.5, 2.5, 3.0]);
/// assert_eq!(gradient(x.square(), &x, 0).to_vec::<f32>()?, [3.0, 4.0, 8.0, 11.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for fewer than two elements, and for another number of coordinates than elements.
#[track_caller]
pub fn gradient(x: impl ArrayLike, dx: impl ArrayLike, axis: impl AxisNumber) -> Array {
    let axis = axis.axis_number();
    let (x, dx) = (x.into_array(), dx.into_array());
    checked_or_failed(&x, || {
        let x = inexact_beside_number(&x, &dx)?;
        let args = promote_dtypes(&[&x, &dx], to_inexact)?;
        let [x, dx] = [&args[0], &args[1]].map(|x| to_strong_type(x, x.dtype()));
        let axis = crate::shape::normalize_axis(axis as isize, x.ndim())?;
        let n = x.shape()[axis];
        if n < 2 || !(dx.ndim() == 0 || dx.shape() == [n]) {
            return Err(err!(
                Value,
                "Shape of array too small to calculate a numerical gradient: {} with spacing {}",
                x.type_name(),
                dx.type_name()
            )
            .help("pass at least 2 elements along the axis, and a scalar or one coordinate for each element as the spacing"));
        }
        if dx.ndim() == 1 {
            // The coordinates of each element, with their dimension at `axis`.
            let coordinates = dx.expand_dims((1..(x.ndim() - axis) as i32).collect::<Vec<_>>());
            let steps = difference(&coordinates, 1..n, 0..n - 1, 0);
            let slopes = difference(&x, 1..n, 0..n - 1, axis) / &steps;
            let (before, after) = (lax::slice_in_dim(&steps, 0, n - 2, 0), lax::slice_in_dim(&steps, 1, n - 1, 0));
            // The mean of the two slopes, in which the closer neighbor has more weight.
            let inner = lax::slice_in_dim(&slopes, 0, n - 2, axis) * &after
                + lax::slice_in_dim(&slopes, 1, n - 1, axis) * &before;
            let inner = inner / (before + after);
            let (first, last) =
                (lax::slice_in_dim(&slopes, 0, 1, axis), lax::slice_in_dim(&slopes, n - 2, n - 1, axis));
            return Ok(lax::concatenate(&[first, inner, last], axis));
        }
        let inner = difference(&x, 2..n, 0..n - 2, axis) * 0.5 / &dx;
        let at_start = difference(&x, 1..2, 0..1, axis) / &dx;
        let at_end = difference(&x, n - 1..n, n - 2..n - 1, axis) / &dx;
        Ok(lax::concatenate(&[at_start, inner, at_end], axis))
    })
}

/// Converts integers to floating point before they meet a plain number. Otherwise int64 would become float32, which loses the
/// digits of differences.
fn inexact_beside_number(x: &Array, number: &Array) -> Result<Array> {
    if number.weak_type() { Ok(promote_dtypes(&[x], to_inexact)?.remove(0)) } else { Ok(x.clone()) }
}

/// Returns the differences between neighbors of the flat array. `to_begin` and `to_end` are added before and after
/// them.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(ediff1d(array([1, 4, 9]), array([-1]), array([0])).to_vec::<i32>()?, [0, 3, 5, -1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ediff1d(x: impl ArrayLike, to_end: impl ArrayLike, to_begin: impl ArrayLike) -> Array {
    let (x, end, begin) = (x.into_array(), to_end.into_array(), to_begin.into_array());
    checked_or_failed(&x, || {
        let begin = flat_of_dtype(&begin, x.dtype())?;
        let differences = to_strong_type(&super::diff(x.ravel(), 1, 0), x.dtype());
        Ok(super::concatenate([begin, differences, flat_of_dtype(&end, x.dtype())?], 0))
    })
}

/// Flattens `x` and converts it to `dtype`.
fn flat_of_dtype(x: &Array, dtype: DType) -> Result<Array> {
    x.check()?;
    Ok(super::convert(&x.ravel(), dtype, false))
}

/// Removes jumps of more than half a `period` between neighboring phases along `axis`, by adding multiples of the period.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::unwrap;
/// assert_eq!(unwrap(array([0.0f32, 3.0, 1.0]), 4.0, 0).to_vec::<f32>()?, [0.0, -1.0, -3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn unwrap(x: impl ArrayLike, period: impl ArrayLike, axis: impl AxisNumber) -> Array {
    let axis = axis.axis_number();
    let (x, period) = (x.into_array(), period.into_array());
    checked_or_failed(&x, || {
        let x = if period.dtype().is_inexact() { inexact_beside_number(&x, &period)? } else { x.clone() };
        let args = promote_dtypes(&[&x, &period], |d| d)?;
        let [x, period] = [&args[0], &args[1]].map(|x| to_strong_type(x, x.dtype()));
        if x.dtype().is_complex() || x.dtype() == DType::Bool || period.ndim() != 0 {
            return Err(err!(Value, "unwrap does not support {} with period {}", x.type_name(), period.type_name())
                .help("pass real phases, and a scalar as the period"));
        }
        let axis = crate::shape::normalize_axis(axis as isize, x.ndim())?;
        let n = x.shape()[axis];
        if n == 0 {
            return Ok(x);
        }
        let half = if x.dtype().is_integer() { super::floor_divide(&period, 2) } else { &period / 2 };
        let limit = &period / 2;
        let steps = super::diff(&x, 1, axis as i32);
        let short = super::remainder(&steps + &half, &period) - &half;
        let short = super::where_(short.equal(-&half) & steps.greater(0), &half, &short);
        let correction = super::where_(steps.abs().less(limit), 0, short - &steps);
        let unwrapped = lax::slice_in_dim(&x, 1, n, axis) + correction.cumsum(axis as i32);
        Ok(lax::concatenate(&[lax::slice_in_dim(&x, 0, 1, axis), to_strong_type(&unwrapped, x.dtype())], axis))
    })
}

/// Returns the dot products of vectors along the last dimension. The vectors of `x` are conjugated; the other
/// dimensions broadcast.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::{matvec, vecdot, vecmat};
/// let (m, v) = (array([[1, 2], [3, 4]]), array([1, 10]));
/// assert_eq!(vecdot(&m, &v).to_vec::<i32>()?, [21, 43]);
/// assert_eq!(matvec(&m, &v).to_vec::<i32>()?, [21, 43]);
/// assert_eq!(vecmat(&v, &m).to_vec::<i32>()?, [31, 42]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn vecdot(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (super::conj(x.into_array()), y.into_array());
    checked_or_failed(if x.ndim() >= y.ndim() { &x } else { &y }, || {
        Ok(x.expand_dims(-2).matmul(y.expand_dims(-1)).squeeze([-2, -1]))
    })
}

/// Returns the products of matrices (in the last two dimensions) and vectors (in the last dimension). The other
/// dimensions broadcast.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(matvec(array([[1, 2], [3, 4]]), array([1, 1])).to_vec::<i32>()?, [3, 7]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn matvec(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(&x, || Ok(x.matmul(y.expand_dims(-1)).squeeze(-1)))
}

/// Returns the products of conjugated vectors (in the last dimension) and matrices (in the last two dimensions). The
/// other dimensions broadcast.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(vecmat(array([1, 1]), array([[1, 2], [3, 4]])).to_vec::<i32>()?, [4, 6]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn vecmat(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (super::conj(x.into_array()), y.into_array());
    checked_or_failed(&y, || Ok(x.expand_dims(-2).matmul(&y).squeeze(-2)))
}

/// Returns the elements of `x` in `after` minus the elements in `before`, along an axis.
fn difference(x: &Array, after: Range<usize>, before: Range<usize>, axis: usize) -> Array {
    lax::slice_in_dim(x, after.start, after.end, axis) - lax::slice_in_dim(x, before.start, before.end, axis)
}
