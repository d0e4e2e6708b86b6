//! Statistics: order statistics, averages, differences, interpolation, covariances.

use super::axes::{IntoReduction, KeptAxes, Options, Over, over};
use super::indexing::{IntoAxis, with_axis};
use super::options::options;
use super::{
    broadcast_args, checked_or_failed, convert, filled, isnan, promote_args, to_inexact, to_strong_type, where_,
};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::reduce::{accumulator, in_accumulator};
use crate::ops::primitive::stop_gradient::stop_gradient;
use crate::rank_promotion;
use crate::shape::{AxisNumber, normalize_axis};

/// Returns the weighted mean over `axes`: `sum(x * weights) / sum(weights)`. The weights have the shape of `x`, or
/// broadcast to it. A vector of weights belongs to the axis if `axes` is a single one.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::average;
/// assert_eq!(average(&array([1.0f32, 4.0]), array([2.0f32, 1.0]), ..).item::<f32>()?, 2.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn average(x: impl ArrayLike, weights: impl ArrayLike, axes: impl IntoReduction) -> Array {
    let x = &x.into_array();
    let weights = weights.into_array();
    checked_or_failed(x, || {
        let _ranks = rank_promotion::allow();
        let axes = axes.into_reduction();
        axes.check("average", x, Options::None)?;
        let weights = along_axis(x, weights, &axes)?;
        let args = promote_args("average", &[x, &weights])?;
        let dtype = to_inexact(args[0].dtype());
        let args: Vec<Array> = args.iter().map(|a| to_strong_type(a, accumulator(dtype))).collect();
        let args = broadcast_args("average", &args)?;
        Ok(to_strong_type(&((&args[0] * &args[1]).sum(axes.clone()) / args[1].sum(axes)), dtype))
    })
}

/// Reshapes a vector of weights so that it broadcasts along the averaged axis of `x`, if there is a single one.
fn along_axis(x: &Array, weights: Array, axes: &Over) -> Result<Array> {
    weights.check()?;
    let Some(axis) = axes.single_axis().filter(|_| weights.ndim() == 1 && x.ndim() > 1) else { return Ok(weights) };
    let axis = normalize_axis(axis as isize, x.ndim())?;
    let (count, size) = (weights.size(), x.shape()[axis]);
    if count != size && count != 1 {
        return Err(err!(
            Value,
            "average got {count} weights for axis {axis} of {}, which has size {size}",
            x.type_name()
        )
        .help("pass a weight for each element along the axis, or weights of the array's shape"));
    }
    let shape: Vec<usize> = (0..x.ndim()).map(|d| if d == axis { count } else { 1 }).collect();
    Ok(lax::reshape(&weights, &shape))
}

/// Returns the range of the elements over `axes`: maximum minus minimum.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(ptp(array([[1, 4], [2, 9]]), 1).to_vec::<i32>()?, [3, 7]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ptp(x: impl ArrayLike, axes: impl IntoReduction) -> Array {
    let x = &x.into_array();
    checked_or_failed(x, || {
        let axes = axes.into_reduction();
        axes.check("ptp", x, Options::Initial)?;
        Ok(x.max(axes.clone()) - x.min(axes))
    })
}

/// Returns the median over `axes`, floating point, or NaN if any element is NaN. For an even number of elements, it is
/// the mean of the middle two.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::median;
/// assert_eq!(median(&array([3.0f32, 1.0, 2.0, 10.0]), ..).item::<f32>()?, 2.5);
/// assert_eq!(median(ones([2, 4]), over(1).keepdims(true)).shape(), [2, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn median(x: impl ArrayLike, axes: impl IntoReduction) -> Array {
    let x = &x.into_array();
    at_caller(|| quantile(x, 0.5, axes))
}

/// Returns the quantiles `q`, between 0 and 1, over `axes`, floating point, with linear interpolation (NumPy's method
/// "linear"). `q` is a number or an array, whose dimensions come first in the result. The result is NaN if any element
/// is NaN.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::quantile;
/// let x = array([1.0f32, 2.0, 3.0, 5.0]);
/// assert_eq!(quantile(&x, array([0.0f32, 0.5, 1.0]), ..).to_vec::<f32>()?, [1.0, 2.5, 5.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn quantile(x: impl ArrayLike, q: impl ArrayLike, axes: impl IntoReduction) -> Array {
    let x = &x.into_array();
    let q = q.into_array();
    checked_or_failed(x, || {
        q.check()?;
        if x.dtype().is_complex() || q.dtype().is_complex() {
            return Err(err!(Type, "quantile does not accept {} and {}", x.type_name(), q.type_name())
                .help("complex numbers have no order, so pass `real(..)` or `abs(..)` of the array"));
        }
        // As in JAX, the dtype of the result does not depend on `q`.
        let (dtype, weak) = (to_inexact(x.dtype()), x.weak_type());
        let reduction = KeptAxes::sorted("quantile", x, axes)?;
        let axes = &reduction.axes;
        let count: usize = axes.iter().map(|&a| x.shape()[a]).product();
        if count == 0 {
            return Err(err!(Value, "quantile of {} over axes {axes:?} has no elements", x.type_name())
                .help("reduce over dimensions that have elements, or check the size before"));
        }
        let args = [convert(x, dtype, weak), to_strong_type(&q, position_dtype(dtype, count))];
        let quantiles =
            composite1("quantile", axes.to_vec(), &args, |axes, args| Ok(vec![quantiles(&args[0], &args[1], axes)]))?;
        Ok(reduction.insert(x, quantiles, q.ndim()))
    })
}

/// Moves the reduced axes to the end and merges them. Returns the sizes of the other axes, and the array.
pub(super) fn lines(x: &Array, axes: &[usize]) -> (Vec<usize>, Array) {
    let batch_axes: Vec<usize> = (0..x.ndim()).filter(|d| !axes.contains(d)).collect();
    let order: Vec<usize> = batch_axes.iter().chain(axes).copied().collect();
    let batch: Vec<usize> = batch_axes.iter().map(|&d| x.shape()[d]).collect();
    let count: usize = axes.iter().map(|&a| x.shape()[a]).product();
    let lines = lax::reshape(&lax::transpose(x, &order), &[batch.as_slice(), &[count]].concat());
    (batch, lines)
}

/// The dtype of positions among `count` elements of `dtype`, which half precision and, for many elements, float32 would round.
pub(super) fn position_dtype(dtype: DType, count: usize) -> DType {
    if count > 1 << 24 { DType::F64 } else { accumulator(dtype) }
}

/// Interpolates between neighbors, and rounds the result to their dtype. At a position of an element the result is this element,
/// even if it is infinite, because infinity times 0 is NaN.
#[track_caller]
pub(super) fn interpolate(low: &Array, high: &Array, fraction: &Array) -> Array {
    let [wide_low, wide_high] = [low, high].map(|x| convert(x, fraction.dtype(), x.weak_type()));
    let between = wide_low * (1.0 - fraction) + wide_high * fraction;
    let between = convert(&between, low.dtype(), low.weak_type());
    where_(fraction.equal(0), low, between)
}

fn quantiles(x: &Array, q: &Array, axes: &[usize]) -> Array {
    let (batch, lines) = lines(x, axes);
    let count = lines.shape()[batch.len()];
    let sorted = lines.sort(-1);
    let position = q.ravel() * (count as f64 - 1.0);
    let (low, high) = (position.floor(), position.ceil());
    let fraction = &position - &low;
    let [low, high] =
        [low, high].map(|position| sorted.take(position.astype(DType::for_indices(&[count])).clip(0, count - 1), -1));
    let quantiles = interpolate(&low, &high, &fraction);
    // NaN is sorted last, so that the other elements need not be read again.
    let has_nan = isnan(lax::slice_in_dim(&sorted, count - 1, count, batch.len()));
    let quantiles = where_(has_nan, f64::NAN, quantiles);
    // The dimensions of `q` come first in the result.
    let out = quantiles.moveaxis(-1, 0);
    lax::reshape(&out, &[q.shape(), &batch].concat())
}

/// Like [`quantile`], with `q` in percent.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(percentile(array([1.0f32, 2.0, 3.0]), 50.0, ..).item::<f32>()?, 2.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn percentile(x: impl ArrayLike, q: impl ArrayLike, axes: impl IntoReduction) -> Array {
    let x = &x.into_array();
    at_caller(|| quantile(x, q.into_array() / 100, axes))
}

macro_rules! without_nan {
    ($($(#[$doc:meta])* $name:ident($x:ident, $valid:ident, $axes:ident) => $value:expr;)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name($x: impl ArrayLike, axes: impl IntoReduction) -> Array {
            let $x = &$x.into_array();
            checked_or_failed($x, || {
                let $axes = axes.into_reduction();
                // As in JAX, a result over no elements is a constant, whose slope is 0 although the value is 0 / 0.
                let $x = &if $x.shape().contains(&0) { stop_gradient($x.clone()) } else { $x.clone() };
                let $valid = if $x.dtype().is_inexact() { !isnan($x) } else { $x.equal($x) };
                Ok($value)
            })
        }
    )*};
}

without_nan! {
    /// The sum over `axes` of the elements that are not NaN.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(nansum(&array([1.0f32, f32::NAN, 2.0]), ..).item::<f32>()?, 3.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    nansum(x, valid, axes) => where_(valid, x, 0).sum(axes);
    /// The product over `axes` of the elements that are not NaN.
    nanprod(x, valid, axes) => where_(valid, x, 1).prod(axes);
    /// The mean over `axes` of the elements that are not NaN, or NaN where all elements are.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(nanmean(&array([1.0f32, f32::NAN, 3.0]), ..).item::<f32>()?, 2.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    nanmean(x, valid, axes) => {
        axes.check("nanmean", x, Options::DType)?;
        where_(&valid, x, 0).mean(axes.and_mask(&valid))
    };
    /// The variance over `axes` of the elements that are not NaN, or NaN where all elements are.
    nanvar(x, valid, axes) => {
        axes.check("nanvar", x, Options::DType)?;
        where_(&valid, x, 0).var(axes.and_mask(&valid))
    };
    /// The standard deviation over `axes` of the elements that are not NaN, or NaN where all elements are.
    nanstd(x, valid, axes) => {
        axes.check("nanstd", x, Options::DType)?;
        where_(&valid, x, 0).std(axes.and_mask(&valid))
    };
    /// The largest element over `axes` that is not NaN; NaN where all are.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// assert_eq!(nanmax(&array([1.0f32, f32::NAN, 3.0]), ..).item::<f32>()?, 3.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    nanmax(x, valid, axes) => extreme(x, &valid, axes, true)?;
    /// The smallest element over `axes` that is not NaN; NaN where all are.
    nanmin(x, valid, axes) => extreme(x, &valid, axes, false)?;
}

fn extreme(x: &Array, valid: &Array, axes: Over, largest: bool) -> Result<Array> {
    axes.check(if largest { "nanmax" } else { "nanmin" }, x, Options::Initial)?;
    if !x.dtype().is_inexact() {
        return Ok(max_or_min(x, axes, largest));
    }
    let least = if largest { f64::NEG_INFINITY } else { f64::INFINITY };
    let numbers = where_(valid, x, least);
    // As in JAX, an initial value is the result where all elements are NaN.
    if axes.has_initial() {
        return Ok(max_or_min(&numbers, axes, largest));
    }
    Ok(where_(valid.any(axes.clone()), max_or_min(&numbers, axes, largest), f64::NAN))
}

fn max_or_min(x: &Array, axes: Over, largest: bool) -> Array {
    if largest { x.max(axes) } else { x.min(axes) }
}

/// Returns the `n`-th differences between neighbors along `axis`. Each order has one element fewer.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::diff;
/// assert_eq!(diff(&array([1, 4, 9]), 1, -1).to_vec::<i32>()?, [3, 5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn diff(x: impl ArrayLike, n: usize, axis: impl IntoAxis) -> Array {
    let x = &x.into_array();
    checked_or_failed(x, || {
        let (x, axis) = with_axis(x, axis)?;
        if n > x.shape()[axis] {
            // Each order removes an element, so the result is empty.
            let mut shape = x.shape_owned();
            shape[axis] = 0;
            return Ok(filled(&shape, Scalar::Int(0), x.dtype()));
        }
        composite1("diff", (n, axis), std::slice::from_ref(&x), |&(n, axis), args| {
            Ok(vec![(0..n).fold(args[0].clone(), |x, _| {
                let size = x.shape()[axis];
                let (after, before) = (lax::slice_in_dim(&x, 1, size, axis), lax::slice_in_dim(&x, 0, size - 1, axis));
                if x.dtype() == DType::Bool { after.not_equal(before) } else { after - before }
            })])
        })
    })
}

/// Integrates samples with spacing `dx` along `axis` with the trapezoidal rule.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(trapezoid(array([0.0f32, 1.0, 2.0]), 0.5, 0).item::<f32>()?, 1.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn trapezoid(y: impl ArrayLike, dx: f64, axis: impl AxisNumber) -> Array {
    let axis = axis.axis_number();
    let y = &y.into_array();
    checked_or_failed(y, || {
        let (y, axis) = with_axis(y, axis)?;
        let y = to_strong_type(&y, to_inexact(y.dtype()));
        let n = y.shape()[axis];
        let sums = lax::slice_in_dim(&y, 1.min(n), n, axis) + lax::slice_in_dim(&y, 0, n.saturating_sub(1), axis);
        Ok((sums * dx).sum(axis as i32) * 0.5)
    })
}

/// Interpolates linearly, piece by piece, at `x` of the points `(xp, fp)`, where `xp` is ascending. The function is
/// constant before the first and after the last point. Floating point; the values `fp` can be complex.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::interp;
/// let y = interp(array([0.5f32, 3.0]), array([0.0f32, 1.0, 2.0]), array([0.0f32, 10.0, 20.0]));
/// assert_eq!(y.to_vec::<f32>()?, [5.0, 20.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error unless `xp` and `fp` are vectors of the same size with at least one element, and for
/// complex positions.
#[track_caller]
pub fn interp(x: impl ArrayLike, xp: impl ArrayLike, fp: impl ArrayLike) -> Array {
    let (x, xp, fp) = (x.into_array(), xp.into_array(), fp.into_array());
    checked_or_failed(&x, || {
        // Integers become floating point first, so that they do not take the dtype of half-precision values.
        let mut args = super::promote_dtypes(&[&x, &xp], to_inexact)?;
        args.append(&mut super::promote_dtypes(&[&fp], to_inexact)?);
        args = super::promote_dtypes(&[&args[0], &args[1], &args[2]], to_inexact)?;
        if args[1].ndim() != 1 || args[1].shape() != args[2].shape() || args[1].size() == 0 {
            return Err(err!(
                Value,
                "xp and fp must be one-dimensional arrays of equal size, got {} and {}",
                xp.type_name(),
                fp.type_name()
            )
            .help("pass the positions and the values of at least one point"));
        }
        for positions in [&x, &xp] {
            if positions.dtype().is_complex() {
                return Err(err!(Type, "interp got complex positions, {}", positions.type_name())
                    .help("only the values `fp` can be complex; pass the real part of the positions"));
            }
        }
        if fp.dtype().is_complex() {
            for positions in &mut args[..2] {
                *positions = positions.astype(positions.dtype().real());
            }
        }
        composite1("interp", (), &args, |(), args| {
            let (x, xp, fp) = (&args[0], &args[1], &args[2]);
            let n = xp.size();
            let i = xp.searchsorted_right(x).clip(1, (n - 1).max(1));
            // The points before and after `x`; values outside of the points are replaced at the end.
            let before = &i - 1;
            let (i, before) = (i.minimum(n - 1), before);
            let df = fp.get(&i) - fp.get(&before);
            let dx = xp.get(&i) - xp.get(&before);
            let delta = x - xp.get(&before);
            let flat = dx.abs().less_equal(super::finfo(x.dtype())?.eps);
            let line = fp.get(&before) + (&delta / where_(&flat, 1, &dx)) * df;
            let f = where_(&flat, fp.get(&before), line);
            let f = where_(x.less(xp.get(0)), fp.get(0), f);
            Ok(vec![where_(x.greater(xp.get(-1)), fp.get(-1), f)])
        })
    })
}

/// Returns the covariance matrix of the rows of a matrix, whose columns are observations. It is normalized by the
/// number of observations minus one. [`CovOptions`] has more variables, weights and other divisors.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[0.0f32, 2.0], [4.0, 0.0]]);
/// assert_eq!(cov(x).to_vec::<f32>()?, [2.0, -4.0, -4.0, 8.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn cov(x: impl ArrayLike) -> Array {
    CovOptions::new().cov(x)
}

/// Returns the correlation coefficients of the rows of a matrix: covariances divided by both standard deviations.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::corrcoef;
/// let r = corrcoef(array([[1.0f32, 2.0, 3.0], [6.0, 4.0, 2.0]]));
/// assert!((r.get((0, 1)).item::<f32>()? + 1.0).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn corrcoef(x: impl ArrayLike) -> Array {
    CovOptions::new().corrcoef(x)
}

options! {
    /// Options of [`cov`](cov()) and [`corrcoef`](corrcoef()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::CovOptions;
    /// let x = array([[1.0f32, 2.0], [3.0, 6.0]]);
    /// assert_eq!(CovOptions::new().rowvar(false).bias(true).cov(&x).to_vec::<f32>()?, [1.0, 2.0, 2.0, 4.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    CovOptions {
        /// More variables, with the same number of observations.
        y: Option<Array> = None, |y: impl ArrayLike| Some(y.into_array());
        /// If true, rows are variables and columns observations. Default `true`.
        rowvar: bool = true, |rowvar: bool| rowvar;
        /// If true, the divisor is the number of observations, otherwise the number minus one. Default `false`.
        bias: bool = false, |bias: bool| bias;
        /// The number that is subtracted from the number of observations in the divisor. It overrides `bias`.
        ddof: Option<i32> = None, |ddof: i32| Some(ddof);
        /// The number of times that each observation counts, as integers.
        fweights: Option<Array> = None, |weights: impl ArrayLike| Some(weights.into_array());
        /// The importance of each observation.
        aweights: Option<Array> = None, |weights: impl ArrayLike| Some(weights.into_array());
    }
}

impl CovOptions {
    /// See [`cov`](cov()).
    #[track_caller]
    pub fn cov(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        checked_or_failed(&x, || {
            let y = self.y.clone();
            let variables: Vec<&Array> = std::iter::once(&x).chain(&y).collect();
            if let Some(odd) = variables.iter().find(|x| x.ndim() > 2) {
                return Err(err!(Value, "cov needs an array of at most two dimensions, got {}", odd.type_name())
                    .help("map over several matrices with `vmap`"));
            }
            let args = super::promote_dtypes(&variables, to_inexact)?;
            let rows = args.iter().enumerate().map(|(i, x)| {
                // A single row of `y` is a variable even if rows are observations.
                let is_transposed = !self.rowvar && x.ndim() == 2 && !(i > 0 && x.shape()[0] == 1);
                let x = super::atleast_2d(&to_strong_type(x, x.dtype()));
                if is_transposed { x.t() } else { x }
            });
            let mut rows: Vec<Array> = rows.collect();
            // A copy would hide a transpose from the product.
            let x = if rows.len() == 1 { rows.remove(0) } else { super::concatenate(rows, 0) };
            x.check()?;
            let count = x.shape()[1];
            let weights = self.weights(count)?;
            let ddof = self.ddof.unwrap_or(if self.bias { 0 } else { 1 });
            // Weights take part in promotion: float32 weights of bfloat16 variables have a float32 covariance.
            let operands: Vec<&Array> = std::iter::once(&x).chain(&weights).collect();
            let mut args = vec![super::promote_dtypes(&operands, to_inexact)?.swap_remove(0)];
            args.extend(weights);
            let params = (ddof, self.fweights.is_some(), self.aweights.is_some());
            composite1("cov", params, &args, |&(ddof, has_fweights, has_aweights), args| {
                Ok(vec![covariance(&args[0], &args[1..], ddof.into(), [has_fweights, has_aweights])])
            })
        })
    }

    /// See [`corrcoef`](corrcoef()).
    #[track_caller]
    pub fn corrcoef(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        checked_or_failed(&x, || match (&self.y, &self.aweights) {
            // The variances may exceed the range of half precision, but the coefficients do not.
            (None, None) => Ok(in_accumulator(&x, |x| checked_or_failed(x, || self.coefficients(x)))),
            // Other arrays take part in promotion, so their dtypes decide the dtype of the result.
            _ => self.coefficients(&x),
        })
    }

    /// Divides the covariances of the variables by their standard deviations.
    #[track_caller]
    fn coefficients(&self, x: &Array) -> Result<Array> {
        let c = self.cov(x);
        c.check()?;
        if c.ndim() == 0 {
            return Ok(&c / &c);
        }
        let deviation = super::real(c.diagonal(0, 0, 1)).sqrt().astype(c.dtype());
        let c = c / deviation.expand_dims(1) / deviation.expand_dims(0);
        Ok(if c.dtype().is_complex() {
            super::complex(super::real(&c).clip(-1, 1), super::imag(&c).clip(-1, 1))
        } else {
            c.clip(-1, 1)
        })
    }

    /// Checks that the weights fit `count` observations, and returns them.
    fn weights(&self, count: usize) -> Result<Vec<Array>> {
        let all_weights = self.fweights.iter().chain(&self.aweights).cloned().collect::<Vec<_>>();
        for weights in &all_weights {
            weights.check()?;
            if weights.shape() != [count] {
                return Err(err!(
                    Value,
                    "cov weights must be a vector of {count}, one for each observation, got {}",
                    weights.type_name()
                )
                .help("pass a vector with one weight for each observation"));
            }
        }
        match &self.fweights {
            Some(weights) if !weights.dtype().is_integer() => {
                Err(err!(Type, "fweights must be integer, got {}", weights.type_name())
                    .help("pass weights that are not integers as `aweights`"))
            }
            _ => Ok(all_weights),
        }
    }
}

fn covariance(x: &Array, weights: &[Array], ddof: f64, [has_fweights, has_aweights]: [bool; 2]) -> Array {
    // Sums of squares leave the range of float16, and the digits of bfloat16, where their mean does not.
    let (dtype, is_weak) = (x.dtype(), x.weak_type());
    let x = &convert(x, accumulator(dtype), is_weak);
    let count = x.shape()[1] as f64;
    let product = match weights {
        [] => {
            let x = x - x.mean(over(1).keepdims(true));
            // As in NumPy, too few observations have an undefined covariance: 0 / 0.
            x.matmul(adjoint(x.clone())) / (count - ddof).max(0.0)
        }
        _ => {
            let weight = weights.iter().map(Array::abs).reduce(|a, b| a * b).unwrap_or_else(|| 1.into_array());
            let (x, weight) = (x.clone(), weight.astype(x.dtype()));
            let sum = weight.sum(..);
            let x = &x - ((&x * &weight).sum(1) / &sum).expand_dims(1);
            let divisor = match (has_fweights, has_aweights) {
                (_, true) if ddof != 0.0 => {
                    let aweights = weights[usize::from(has_fweights)].abs().astype(weight.dtype());
                    &sum - (&weight * aweights).sum(..) * ddof / &sum
                }
                _ => sum - ddof,
            };
            x.matmul(adjoint(&x * weight)) / divisor
        }
    };
    let product = convert(&product, dtype, is_weak);
    if product.shape() == [1, 1] { lax::reshape(&product, &[]) } else { product }
}

/// The conjugate transpose.
fn adjoint(x: Array) -> Array {
    if x.dtype().category() == Category::Complex { super::conj(x.t()) } else { x.t() }
}
