//! Quantiles of elements that are not NaN.

use super::statistics::lines;
use super::{IntoAxes, convert, isnan, made, normalize_axes, to_inexact};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::error::err;
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;

/// [`quantile`](super::quantile()) without the elements that are NaN. NaN where all are.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([1.0f32, f32::NAN, 3.0]);
/// assert_eq!(shardax::numpy::nanquantile(&x, 0.5, ..).item::<f32>()?, 2.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails for complex numbers, axes out of range, and without elements.
#[track_caller]
pub fn nanquantile(x: impl ArrayLike, q: impl ArrayLike, axes: impl IntoAxes) -> Array {
    let (x, q) = (x.into_array(), q.into_array());
    made(&x, || {
        q.check()?;
        if x.dtype().is_complex() || q.dtype().is_complex() {
            return Err(err!(Type, "nanquantile does not accept {} and {}", x.type_name(), q.type_name())
                .help("complex numbers have no order: take `real(..)` or `abs(..)` first"));
        }
        let (dtype, weak) = crate::dtype::promote((x.dtype(), x.weak_type()), (q.dtype(), q.weak_type()))?;
        let dtype = to_inexact(dtype);
        let axes = normalize_axes(axes, x.ndim())?;
        if axes.iter().map(|&a| x.shape()[a]).product::<usize>() == 0 {
            return Err(err!(Value, "nanquantile of {} over axes {axes:?} has no elements", x.type_name())
                .help("leave empty dimensions out, or check the size before"));
        }
        let args = [convert(&x, dtype, weak), convert(&q, dtype, weak)];
        composite1("nanquantile", axes.to_vec(), &args, |axes, args| {
            let (q, (rest, lines)) = (&args[1], lines(&args[0], axes));
            let axis = rest.len() as i32;
            let sorted = lines.sort(-1);
            let last = (!isnan(&lines)).sum(-1).expand_dims(-1) - 1;
            let at = last.astype(q.dtype()) * q.ravel();
            let (low, high) = (at.floor(), at.ceil());
            let part = &at - &low;
            let value = |at: &Array| {
                let place = super::minimum(at.astype(last.dtype()), &last).maximum(0);
                sorted.take_along_axis(place, axis)
            };
            let between = value(&low) * (1.0 - &part) + value(&high) * part;
            Ok(vec![lax::reshape(&between.moveaxis(-1, 0), &[q.shape(), &rest].concat())])
        })
    })
}

/// [`nanquantile`] with `q` in percent.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(nanpercentile(array([1.0f32, f32::NAN, 3.0]), 50.0, ..).item::<f32>()?, 2.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn nanpercentile(x: impl ArrayLike, q: impl ArrayLike, axes: impl IntoAxes) -> Array {
    let x = x.into_array();
    at_caller(|| nanquantile(&x, q.into_array() / 100, axes))
}

/// The median without the elements that are NaN.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(nanmedian(array([1.0f32, f32::NAN, 3.0, 5.0]), ..).item::<f32>()?, 3.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn nanmedian(x: impl ArrayLike, axes: impl IntoAxes) -> Array {
    let x = x.into_array();
    at_caller(|| nanquantile(&x, 0.5, axes))
}
