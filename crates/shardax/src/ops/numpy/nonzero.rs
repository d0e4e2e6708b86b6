//! Nonzero elements. The size of a result is given, or, outside of `jit`, determined by
//! the values.

use super::options::options;
use super::{filled, made, where_};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;

/// The given size, or the one determined by the values.
pub(crate) fn given_or_counted(name: &str, given: Option<usize>, count: impl FnOnce() -> Array) -> Result<usize> {
    if let Some(size) = given {
        return match size < i32::MAX as usize {
            true => Ok(size),
            false => Err(err!(Value, "{name} of size {size} is too large")
                .help("a dimension may have up to 2147483647 elements")),
        };
    }
    let count = count();
    match count.is_traced() {
        false => Ok(count.to_scalars()?.first().map_or(0, |count| count.to_i128().max(0) as usize)),
        true => Err(err!(
            Type,
            "The size argument of {name} must be statically specified to use it within JAX transformations"
        )
        .help(format!("give the number of results, `{name}(&x, 8)`: fewer are filled up, more are cut off"))),
    }
}

/// The indices of the nonzero elements in the flat array, ascending, int32. At most `size`; fewer are padded
/// with `fill_value`.
pub(super) fn places(x: &Array, size: usize, fill_value: i32) -> Result<Array> {
    let args = [if x.dtype() == DType::Bool { x.ravel() } else { x.ravel().not_equal(0) }];
    composite1("flatnonzero", (size, fill_value), &args, |&(size, fill_value), args| {
        let n = args[0].size();
        let dtype = DType::of_indices(&[n]);
        let before = args[0].astype(dtype).cumsum(0);
        // The k-th is where the count reaches k.
        let at = before.searchsorted(lax::iota(dtype, &[size], 0) + 1);
        Ok(vec![where_(at.less(n), at, fill_value)])
    })
}

/// The indices of the nonzero elements in the flat array, ascending, int32. With a `size`, fewer are padded
/// with 0 ([`NonzeroOptions`] has other values), more are cut off. Without one (`None`) as many as there are, which waits for the values.
///
/// Fails inside of `jit`, `vmap` and `grad` without a size.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::flatnonzero;
/// let x = array([0, 7, 0, 8]);
/// assert_eq!(flatnonzero(&x, None).to_vec::<i32>()?, [1, 3]);
/// assert_eq!(flatnonzero(&x, 3).to_vec::<i32>()?, [1, 3, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn flatnonzero(x: impl ArrayLike, size: impl Into<Option<usize>>) -> Array {
    NonzeroOptions::new().flatnonzero(x, size)
}

options! {
    /// Options of [`nonzero`](nonzero()), [`flatnonzero`](flatnonzero()) and [`argwhere`](argwhere()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::NonzeroOptions;
    /// let options = NonzeroOptions::new().fill_value(-1);
    /// assert_eq!(options.nonzero(array([0, 7, 0]), 3)[0].to_vec::<i32>()?, [1, -1, -1]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    NonzeroOptions {
        /// The indices after the last: one for all dimensions, or one for each. Default 0.
        fill_value: Array = Array::literal(Scalar::Int(0), DType::I32, true), |value: impl ArrayLike| value.into_array();
    }
}

impl NonzeroOptions {
    /// See [`flatnonzero`](flatnonzero()).
    #[track_caller]
    pub fn flatnonzero(&self, x: impl ArrayLike, size: impl Into<Option<usize>>) -> Array {
        let x = &x.into_array();
        made(x, || Ok(self.coordinates("flatnonzero", &x.ravel(), size.into())?.remove(0)))
    }

    /// See [`nonzero`](nonzero()).
    #[track_caller]
    pub fn nonzero(&self, x: impl ArrayLike, size: impl Into<Option<usize>>) -> Vec<Array> {
        let x = &x.into_array();
        let size = size.into();
        at_caller(|| {
            let made = x.check().and_then(|()| match x.ndim() {
                0 => Err(err!(Value, "Calling nonzero on 0d arrays is not allowed.")
                    .help("add a dimension first, with `atleast_1d(&x)`")),
                _ => self.coordinates("nonzero", x, size),
            });
            made.unwrap_or_else(|e| vec![Array::from_result(Err(e), x); x.ndim().max(1)])
        })
    }

    /// See [`argwhere`](argwhere()).
    #[track_caller]
    pub fn argwhere(&self, x: impl ArrayLike, size: impl Into<Option<usize>>) -> Array {
        let x = &x.into_array();
        made(x, || {
            if x.ndim() == 0 {
                let size = given_or_counted("argwhere", size.into(), || super::count_nonzero(x, ..))?;
                return Ok(filled(&[size, 0], Scalar::Int(0), DType::I32));
            }
            Ok(super::stack(&self.coordinates("argwhere", x, size.into())?, 1))
        })
    }

    /// The coordinates of the nonzero elements, an array for each dimension.
    fn coordinates(&self, name: &str, x: &Array, size: Option<usize>) -> Result<Vec<Array>> {
        x.check()?;
        self.fill_value.check()?;
        let fill = &self.fill_value;
        if fill.ndim() > 1 || !matches!(fill.size(), 1) && fill.size() != x.ndim() {
            return Err(err!(Value, "{name} of {} got a fill_value of shape {:?}", x.type_name(), fill.shape())
                .help("give one value, or one for each dimension"));
        }
        let size = given_or_counted(name, size, || super::count_nonzero(x, ..))?;
        let dtype = DType::of_indices(&[x.size()]);
        let args = [if x.dtype() == DType::Bool { x.clone() } else { x.not_equal(0) }, fill.astype(dtype)];
        let rank = x.ndim();
        crate::ops::primitive::composite::composite("nonzero", size, rank, &args, |&size, args| {
            let (x, fill) = (&args[0], args[1].broadcast_to([args[0].ndim()]));
            let before = x.ravel().astype(fill.dtype()).cumsum(0);
            let n = x.size();
            // The k-th is where the count reaches k.
            let at = before.searchsorted(lax::iota(fill.dtype(), &[size], 0) + 1);
            let found = at.less(n);
            let places = unravel(&at.minimum(n.saturating_sub(1)), x.shape());
            let filled = |(place, d): (&Array, i32)| where_(&found, place, fill.get(d));
            Ok(places.iter().zip(0..).map(filled).collect())
        })
    }
}

/// The indices of the nonzero elements: an array for each dimension, in row-major order, int32. For the size see
/// [`flatnonzero`].
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::nonzero;
/// let found = nonzero(&array([[0, 1], [1, 0]]), None);
/// assert_eq!(found[0].to_vec::<i32>()?, [0, 1]);
/// assert_eq!(found[1].to_vec::<i32>()?, [1, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn nonzero(x: impl ArrayLike, size: impl Into<Option<usize>>) -> Vec<Array> {
    NonzeroOptions::new().nonzero(x, size)
}

/// The indices of the nonzero elements, one row each: int32 of shape `[size, x.ndim()]`. For the size see
/// [`flatnonzero`].
///
/// ```
/// # use shardax::prelude::*;
/// let places = argwhere(array([[0, 1], [2, 0]]), None);
/// assert_eq!(places.to_vec::<i32>()?, [0, 1, 1, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn argwhere(x: impl ArrayLike, size: impl Into<Option<usize>>) -> Array {
    NonzeroOptions::new().argwhere(x, size)
}

/// The coordinates in an array of this shape of indices into the flat array.
fn unravel(flat: &Array, shape: &[usize]) -> Vec<Array> {
    let mut left = flat.clone();
    let mut out: Vec<Array> = Vec::with_capacity(shape.len());
    for &n in shape.iter().rev() {
        let n = n.max(1);
        out.push(super::remainder(&left, n));
        left = super::floor_divide(&left, n);
    }
    out.reverse();
    out
}

/// Converts indices into the flat array to coordinates in an array of this shape: an integer array for each dimension.
/// Indices out of range are clipped; negative ones count from the end.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::unravel_index;
/// let at = unravel_index(&array([4, 5]), &[2, 3]);
/// assert_eq!((at[0].to_vec::<i32>()?, at[1].to_vec::<i32>()?), (vec![1, 1], vec![1, 2]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn unravel_index(places: impl ArrayLike, shape: &[usize]) -> Vec<Array> {
    let places = &places.into_array();
    at_caller(|| {
        let total = shape.iter().try_fold(1i32, |n, &d| n.checked_mul(i32::try_from(d).ok()?));
        let whole = places.dtype().is_integer();
        let flat = made(places, || {
            let total = total.filter(|_| whole).ok_or_else(|| {
                err!(
                    Value,
                    "unravel_index takes integers and a shape whose flat indices fit int32, got {} and {shape:?}",
                    places.type_name()
                )
                .help("give integers, and a shape of at most 2147483647 elements")
            })?;
            let from_end = where_(places.less(0), places + total, places);
            Ok(from_end.clip(0, (total - 1).max(0)))
        });
        unravel(&flat, shape)
    })
}
