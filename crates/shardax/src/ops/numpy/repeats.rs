//! Repeating and padding arrays: tile, repeat, pad, meshgrid.

use super::convert;
use super::indexing::{IntoAxis, with_axis};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax::{self, GatherScatterMode};
use crate::ops::operators::ArrayLike;

/// The padding mode of [`pad`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PadMode {
    /// A constant, converted to the array's dtype.
    Constant(f64),
    /// The element at the edge.
    Edge,
    /// The elements mirrored at the edge, without repeating the edge.
    Reflect,
    /// The elements from the other end.
    Wrap,
}

/// Pads `x` with `widths[i]` elements before and after it in dimension `i`.
///
/// Fails unless there is one pair of widths per dimension, and if an empty dimension is to be extended by its own
/// elements.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([1, 2, 3]);
/// assert_eq!(pad(&x, &[(1, 2)], PadMode::Constant(0.0)).to_vec::<i32>()?, [0, 1, 2, 3, 0, 0]);
/// assert_eq!(pad(&x, &[(2, 1)], PadMode::Reflect).to_vec::<i32>()?, [3, 2, 1, 2, 3, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn pad(x: impl ArrayLike, widths: &[(usize, usize)], mode: PadMode) -> Array {
    let x = &x.into_array();
    at_caller(|| {
        let made = x.check().and_then(|()| {
            if widths.len() != x.ndim() {
                return Err(err!(
                    Value,
                    "pad of {} needs {} pairs of widths, got {}",
                    x.type_name(),
                    x.ndim(),
                    widths.len()
                )
                .help("give (before, after) for each dimension"));
            }
            match mode {
                PadMode::Constant(value) => {
                    let of = x.aval().strip_weak_type();
                    let value = convert(&Array::literal(Scalar::float(value), DType::F64, false), of.dtype, of.weak);
                    let signed = |width: usize| i64::try_from(width).unwrap_or(i64::MAX);
                    let config: Vec<_> = widths.iter().map(|&(lo, hi)| (signed(lo), signed(hi), 0)).collect();
                    Ok(lax::pad(x, &value, &config))
                }
                _ => widths.iter().enumerate().try_fold(x.clone(), |x, (d, &w)| extend(&x, d, w, mode)),
            }
        });
        Array::from_result(made, x)
    })
}

/// Extends one dimension by its own elements.
fn extend(x: &Array, dim: usize, (low, high): (usize, usize), mode: PadMode) -> Result<Array> {
    let n = x.shape()[dim] as i64;
    if (low, high) == (0, 0) {
        return Ok(x.clone());
    }
    if n == 0 {
        return Err(err!(Value, "pad cannot extend the empty dimension {dim} of {} with {mode:?}", x.type_name())
            .help("pad it with `PadMode::Constant`"));
    }
    let (low, high) =
        (i64::from(i32::try_from(low).unwrap_or(i32::MAX)), i64::from(i32::try_from(high).unwrap_or(i32::MAX)));
    if low + n + high > i64::from(i32::MAX) {
        return Err(err!(Value, "pad of dimension {dim} of {} by {low} and {high} is too large", x.type_name())
            .help("a dimension may have up to 2147483647 elements"));
    }
    let places: Vec<i32> = (-low..n + high)
        .map(|i| match mode {
            PadMode::Edge => i.clamp(0, n - 1),
            PadMode::Wrap => i.rem_euclid(n),
            _ if n == 1 => 0,
            // Reflection alternates the direction.
            _ => {
                let i = i.rem_euclid(2 * (n - 1));
                i.min(2 * (n - 1) - i)
            }
        })
        .map(|i| i as i32)
        .collect();
    Ok(x.take_mode(Array::from_slice(&places, &[places.len()])?, dim as i32, GatherScatterMode::PromiseInBounds))
}

/// Repeats `x` `reps[i]` times along dimension `i`; the shorter of shape and `reps` is extended with leading ones.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(tile(&array([1, 2]), &[2]).to_vec::<i32>()?, [1, 2, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn tile(x: impl ArrayLike, reps: &[usize]) -> Array {
    let x = &x.into_array();
    let rank = reps.len().max(x.ndim());
    let of = |own: &[usize], i: usize| if i + own.len() < rank { 1 } else { own[i + own.len() - rank] };
    let (mut before, mut between, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..rank {
        let (n, r) = (of(x.shape(), i), of(reps, i));
        before.extend([1, n]);
        between.extend([r, n]);
        after.push(usize::saturating_mul(r, n));
    }
    at_caller(|| {
        let spread = lax::broadcast_in_dim(&lax::reshape(x, &before), &between, &(0..2 * rank).collect::<Vec<_>>());
        lax::reshape(&spread, &after)
    })
}

/// Repeats each element `repeats` times along `axis`; `..` repeats those of the flat array.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(repeat(&array([1, 2]), 2, ..).to_vec::<i32>()?, [1, 1, 2, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn repeat(x: impl ArrayLike, repeats: usize, axis: impl IntoAxis) -> Array {
    let x = &x.into_array();
    at_caller(|| {
        let made = with_axis(x, axis).map(|(x, axis)| {
            let mut shape = x.shape_owned();
            shape.insert(axis + 1, repeats);
            let dims: Vec<usize> = (0..shape.len()).filter(|&d| d != axis + 1).collect();
            let spread = lax::broadcast_in_dim(&x, &shape, &dims);
            shape.remove(axis + 1);
            shape[axis] = shape[axis].saturating_mul(repeats);
            lax::reshape(&spread, &shape)
        });
        Array::from_result(made, x)
    })
}

/// Coordinate grids: for vectors `x` and `y`, arrays of shape `[y.len(), x.len()]` with the values of `x` along
/// rows and those of `y` along columns; further vectors add dimensions at the end.
#[track_caller]
pub fn meshgrid(vectors: &[&Array]) -> Vec<Array> {
    at_caller(|| {
        // The first two dimensions are exchanged: rows are y.
        let place = |i: usize| if vectors.len() > 1 && i < 2 { 1 - i } else { i };
        let mut shape = vec![1; vectors.len()];
        for (i, v) in vectors.iter().enumerate() {
            shape[place(i)] = v.size();
        }
        let spread = |(i, v): (usize, &&Array)| lax::broadcast_in_dim(&v.ravel(), &shape, &[place(i)]);
        vectors.iter().enumerate().map(spread).collect()
    })
}
