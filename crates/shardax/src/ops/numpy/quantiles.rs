//! Quantiles of elements that are not NaN.

use super::axes::KeptAxes;
use super::statistics::{interpolate, lines, position_dtype};
use super::{IntoReduction, checked_or_failed, convert, isnan, over, to_inexact, to_strong_type};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::error::err;
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;

/// Returns the [`quantile`](super::quantile()) of the elements that are not NaN, or NaN where there are none.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([1.0f32, f32::NAN, 3.0]);
/// assert_eq!(shardax::numpy::nanquantile(&x, 0.5, ..).item::<f32>()?, 2.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for complex numbers, and axes out of range.
#[track_caller]
pub fn nanquantile(x: impl ArrayLike, q: impl ArrayLike, axes: impl IntoReduction) -> Array {
    let (x, q) = (x.into_array(), q.into_array());
    checked_or_failed(&x, || {
        q.check()?;
        if x.dtype().is_complex() || q.dtype().is_complex() {
            return Err(err!(Type, "nanquantile does not accept {} and {}", x.type_name(), q.type_name())
                .help("complex numbers have no order, so pass `real(..)` or `abs(..)` of the array"));
        }
        // As in JAX, the dtype of the result does not depend on `q`.
        let (dtype, weak) = (to_inexact(x.dtype()), x.weak_type());
        let reduction = KeptAxes::sorted("nanquantile", &x, axes)?;
        let axes = &reduction.axes;
        let count = axes.iter().map(|&a| x.shape()[a]).product::<usize>();
        // As in JAX, the quantile of no elements is NaN, as of elements that are all NaN. A sum has the sharding of the result.
        let elements =
            if count == 0 { convert(&x, dtype, weak).sum(over(&**axes).keepdims(true)) + f64::NAN } else { x.clone() };
        let args = [convert(&elements, dtype, weak), to_strong_type(&q, position_dtype(dtype, count))];
        let quantiles = composite1("nanquantile", axes.to_vec(), &args, |axes, args| {
            let (q, (batch, lines)) = (&args[1], lines(&args[0], axes));
            let axis = batch.len() as i32;
            // NaN sorts last, so the other elements are up to `last_index`.
            let sorted = lines.sort(-1);
            let last_index = (!isnan(&lines)).sum(-1).expand_dims(-1) - 1;
            let position = last_index.astype(q.dtype()) * q.ravel();
            let (low, high) = (position.floor(), position.ceil());
            let fraction = &position - &low;
            let [low, high] = [low, high].map(|position| {
                let index = super::minimum(position.astype(last_index.dtype()), &last_index).maximum(0);
                sorted.take_along_axis(index, axis)
            });
            let quantiles = interpolate(&low, &high, &fraction);
            Ok(vec![lax::reshape(&quantiles.moveaxis(-1, 0), &[q.shape(), &batch].concat())])
        })?;
        Ok(reduction.insert(&x, quantiles, q.ndim()))
    })
}

/// Like [`nanquantile`], with `q` in percent.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(nanpercentile(array([1.0f32, f32::NAN, 3.0]), 50.0, ..).item::<f32>()?, 2.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn nanpercentile(x: impl ArrayLike, q: impl ArrayLike, axes: impl IntoReduction) -> Array {
    let x = x.into_array();
    at_caller(|| nanquantile(&x, q.into_array() / 100, axes))
}

/// Returns the median of the elements that are not NaN.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(nanmedian(array([1.0f32, f32::NAN, 3.0, 5.0]), ..).item::<f32>()?, 3.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn nanmedian(x: impl ArrayLike, axes: impl IntoReduction) -> Array {
    let x = x.into_array();
    at_caller(|| nanquantile(&x, 0.5, axes))
}
