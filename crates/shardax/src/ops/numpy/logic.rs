//! Logical functions and comparisons.

use super::axes::IntoReduction;
use super::options::options;
use super::{broadcast_args, checked_or_failed, isfinite, isnan, promote_args, where_};
use crate::core::array::Array;
use crate::dtype::{DType, Scalar};
use crate::ops::elementwise::of_both_parts;
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;

/// Converts elements to booleans: `true` unless 0; NaN is `true`.
fn truth(x: &Array) -> Array {
    if x.dtype() == DType::Bool { x.clone() } else { x.not_equal(0) }
}

#[track_caller]
fn logical(name: &'static str, x: impl ArrayLike, y: impl ArrayLike, f: impl FnOnce(&Array, &Array) -> Array) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(if x.ndim() >= y.ndim() { &x } else { &y }, || {
        x.check()?;
        y.check()?;
        let args = broadcast_args(name, &[truth(&x), truth(&y)])?;
        Ok(f(&args[0], &args[1]))
    })
}

/// Computes the logical "and" of two arrays, which broadcast together. Elements of any dtype are true unless they are 0. The
/// result is boolean.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::logical_and;
/// assert_eq!(logical_and(array([0, 2, 3]), array([1.0, 0.5, 0.0])).to_vec::<bool>()?, [false, true, false]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn logical_and(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    logical("logical_and", x, y, |x, y| x & y)
}

/// Computes the logical "or" of two arrays, which broadcast together. Elements of any dtype are true unless they are 0. The
/// result is boolean.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(logical_or(array([0, 0, 2]), array([0, 1, 1])).to_vec::<bool>()?, [false, true, true]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn logical_or(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    logical("logical_or", x, y, |x, y| x | y)
}

/// Computes the logical "exclusive or" of two arrays, which broadcast together. Elements of any dtype are true unless they
/// are 0. The result is boolean.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(logical_xor(array([0, 0, 2]), array([0, 1, 1])).to_vec::<bool>()?, [false, true, false]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn logical_xor(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    logical("logical_xor", x, y, |x, y| x ^ y)
}

/// Returns `true` for each pair of elements that differ by at most `atol + rtol * |y|` or are equal infinities. Integers must
/// be equal, and NaN is not close to any number. NumPy's defaults are `rtol = 1e-5` and `atol = 1e-8`.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::isclose;
/// assert_eq!(isclose(array([1.0f32, 2.0]), array([1.0f32, 2.1]), 1e-5, 1e-8).to_vec::<bool>()?, [true, false]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn isclose(x: impl ArrayLike, y: impl ArrayLike, rtol: f64, atol: f64) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(if x.ndim() >= y.ndim() { &x } else { &y }, || {
        let args = promote_args("isclose", &[&x, &y])?;
        if !args[0].dtype().is_inexact() {
            return Ok(args[0].equal(&args[1]));
        }
        composite1("isclose", (rtol.to_bits(), atol.to_bits()), &args, |&(rtol, atol), args| {
            let (x, y) = (&args[0], &args[1]);
            let (rtol, atol) = (f64::from_bits(rtol), f64::from_bits(atol));
            let near = (x - y).abs().less_equal(y.abs() * rtol + atol);
            Ok(vec![(near & isfinite(x) & isfinite(y)) | x.equal(y)])
        })
    })
}

/// Returns a boolean scalar: `true` if the shapes and all elements are equal. NaN is not equal to NaN, unless you set
/// [`ArrayEqualOptions::equal_nan`].
///
/// ```
/// # use shardax::prelude::*;
/// assert!(array_equal(array([1, 2]), array([1, 2])).item::<bool>()?);
/// assert!(!array_equal(array([1, 1]), 1).item::<bool>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn array_equal(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    ArrayEqualOptions::new().array_equal(x, y)
}

options! {
    /// Options of [`array_equal`](array_equal()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::ArrayEqualOptions;
    /// let x = array([1.0f32, f32::NAN]);
    /// assert!(ArrayEqualOptions::new().equal_nan(true).array_equal(&x, &x).item::<bool>()?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ArrayEqualOptions {
        /// If true, NaN is equal to NaN. Default `false`.
        equal_nan: bool = false, |equal_nan: bool| equal_nan;
    }
}

impl ArrayEqualOptions {
    /// Compares two arrays like [`array_equal`](array_equal()), with these options.
    #[track_caller]
    pub fn array_equal(&self, x: impl ArrayLike, y: impl ArrayLike) -> Array {
        let (x, y) = (x.into_array(), y.into_array());
        checked_or_failed(&x, || {
            y.check()?;
            if x.shape() != y.shape() {
                return Ok(Array::literal(Scalar::Bool(false), DType::Bool, false));
            }
            let equal = x.equal(&y);
            Ok(if self.equal_nan { equal | (isnan(&x) & isnan(&y)) } else { equal }.all(..))
        })
    }
}

/// Returns a boolean scalar: `true` if the arrays broadcast together and all elements are equal.
///
/// ```
/// # use shardax::prelude::*;
/// assert!(array_equiv(array([1, 1]), 1).item::<bool>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn array_equiv(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(&x, || {
        y.check()?;
        Ok(match crate::shape::broadcast_shapes(&[x.shape(), y.shape()]) {
            Some(_) => x.equal(&y).all(..),
            None => Array::literal(Scalar::Bool(false), DType::Bool, false),
        })
    })
}

/// Counts the nonzero elements along `axes`. The counts are int32.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(count_nonzero(array([[0, 1], [2, 3]]), 1).to_vec::<i32>()?, [1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn count_nonzero(x: impl ArrayLike, axes: impl IntoReduction) -> Array {
    let x = &x.into_array();
    checked_or_failed(x, || Ok(truth(x).sum(axes)))
}

/// Replaces NaN by 0, and infinities by the largest and smallest number of the dtype. You can set other numbers with
/// [`NanToNumOptions`].
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::nan_to_num;
/// let x = nan_to_num(&array([1.0f32, f32::NAN, f32::INFINITY]));
/// assert_eq!(x.to_vec::<f32>()?, [1.0, 0.0, f32::MAX]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn nan_to_num(x: impl ArrayLike) -> Array {
    NanToNumOptions::new().nan_to_num(x)
}

options! {
    /// Options of [`nan_to_num`](nan_to_num()): numbers or arrays, which are converted to the dtype.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::NanToNumOptions;
    /// let finite = NanToNumOptions::new().nan(-1).posinf(1e6).nan_to_num(&array([f32::NAN, f32::INFINITY]));
    /// assert_eq!(finite.to_vec::<f32>()?, [-1.0, 1e6]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    NanToNumOptions {
        /// The replacement of NaN. Default 0.
        nan: Array = Array::literal(Scalar::Int(0), DType::F32, true), |nan: impl ArrayLike| nan.into_array();
        /// The replacement of infinity. Default: the largest number of the dtype.
        posinf: Option<Array> = None, |posinf: impl ArrayLike| Some(posinf.into_array());
        /// The replacement of negative infinity. Default: the smallest number of the dtype.
        neginf: Option<Array> = None, |neginf: impl ArrayLike| Some(neginf.into_array());
    }
}

impl NanToNumOptions {
    /// Replaces non-finite elements like [`nan_to_num`](nan_to_num()), with these options.
    #[track_caller]
    pub fn nan_to_num(&self, x: impl ArrayLike) -> Array {
        let x = &x.into_array();
        checked_or_failed(x, || {
            x.check()?;
            if !x.dtype().is_inexact() {
                return Ok(x.clone());
            }
            let limits = super::finfo(x.dtype())?;
            let infinities = [(&self.posinf, limits.max), (&self.neginf, limits.min)];
            let [posinf, neginf] = infinities.map(|(replacement, limit)| {
                replacement.clone().unwrap_or_else(|| Array::literal(Scalar::float(limit), DType::F32, true))
            });
            let args = [self.nan.clone(), posinf, neginf];
            args.iter().try_for_each(Array::check)?;
            let args = [vec![x.clone()], args.map(|value| super::convert(&value, x.dtype().real(), false)).to_vec()];
            composite1("nan_to_num", (), &args.concat(), |(), args| Ok(vec![replace_non_finite(&args[0], &args[1..])]))
        })
    }
}

fn replace_non_finite(x: &Array, values: &[Array]) -> Array {
    if x.dtype().is_complex() {
        return of_both_parts(x, |part| replace_non_finite(part, values));
    }
    let x = where_(isnan(x), &values[0], x);
    let x = where_(x.equal(f64::INFINITY), &values[1], &x);
    where_(x.equal(f64::NEG_INFINITY), &values[2], &x)
}

/// Returns `true` for each element of `x` that is equal to an element of `test`, which can have any shape. NaN is not equal to
/// any element.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::isin;
/// assert_eq!(isin(array([1, 2, 3]), array([3, 1])).to_vec::<bool>()?, [true, false, true]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn isin(x: impl ArrayLike, test: impl ArrayLike) -> Array {
    let (x, test) = (x.into_array(), test.into_array());
    checked_or_failed(&x, || {
        let args = super::promote_args_of("isin", &[&x, &test])?;
        composite1("isin", (), &args, |(), args| {
            let (x, test) = (&args[0], args[1].ravel());
            if test.size() == 0 {
                return Ok(vec![super::filled(x.shape(), Scalar::Bool(false), DType::Bool)]);
            }
            if x.dtype().is_complex() {
                // Complex numbers have no order to search in.
                let equal = x.expand_dims(-1).equal(test.expand_dims((0..x.ndim() as i32).collect::<Vec<_>>()));
                return Ok(vec![equal.any(-1)]);
            }
            // Bisection needs no more memory than the operands, unlike a comparison of all pairs.
            let sorted = test.sort(0);
            let index = sorted.searchsorted(x.ravel()).minimum(test.size() - 1);
            Ok(vec![lax::reshape(&sorted.get(&index), x.shape()).equal(x)])
        })
    })
}
