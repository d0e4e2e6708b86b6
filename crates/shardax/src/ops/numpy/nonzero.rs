//! Nonzero elements. You pass the size of a result or, outside of `jit`, it is determined by the values.

use super::options::options;
use super::{checked_or_failed, filled, where_};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::gather::wide;
use crate::ops::primitive::reduce::highest;
use crate::shape::IntoSizes;

/// Returns the requested size; otherwise counts the elements: outside of `jit`, the size can be read from the values.
pub(crate) fn size_or_count(name: &str, given: Option<usize>, count: impl FnOnce() -> Array) -> Result<usize> {
    if let Some(size) = given {
        return if size < i32::MAX as usize {
            Ok(size)
        } else {
            Err(err!(Value, "{name} of size {size} is too large")
                .help("a dimension may have up to 2147483647 elements"))
        };
    }
    let count = count();
    if !count.is_traced() {
        Ok(count.to_scalars()?.first().map_or(0, |count| count.to_i128().max(0) as usize))
    } else {
        Err(err!(
            Type,
            "The size argument of {name} must be statically specified to use it within JAX transformations"
        )
        .help(format!(
            "pass the number of results, such as `{name}(&x, 8)`; fewer results are padded and surplus results are dropped"
        )))
    }
}

/// The indices of the first `size` nonzero elements in the flat array, ascending, int32, or int64 if int32 cannot count the elements. If
/// there are fewer, `fill_value` follows.
pub(super) fn places(x: &Array, size: usize, fill_value: i64) -> Result<Array> {
    let args = [if x.dtype() == DType::Bool { x.ravel() } else { x.ravel().not_equal(0) }];
    composite1("flatnonzero", (size, fill_value), &args, |&(size, fill_value), args| {
        let n = args[0].size();
        let dtype = DType::for_indices(&[n, size]);
        let before = args[0].astype(dtype).cumsum(0);
        // The k-th nonzero element is where the count reaches k.
        let index = before.searchsorted(lax::iota(dtype, &[size], 0) + 1);
        let fill_value = Array::literal(Scalar::Int(fill_value.into()), dtype, false);
        Ok(vec![where_(index.less(n), index, fill_value)])
    })
}

/// Returns the indices of the nonzero elements in the flat array, ascending, int32. With a `size`, fewer indices are
/// padded with 0 ([`NonzeroOptions`] has other values) and surplus indices are dropped. With `None`, the call waits for
/// the values and returns all indices.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::flatnonzero;
/// let x = array([0, 7, 0, 8]);
/// assert_eq!(flatnonzero(&x, None).to_vec::<i32>()?, [1, 3]);
/// assert_eq!(flatnonzero(&x, 3).to_vec::<i32>()?, [1, 3, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error inside of `jit`, `vmap` and `grad` without a size.
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
        /// The padding after the last index: one for all dimensions, or one for each dimension. Default 0.
        fill_value: Array = Array::literal(Scalar::Int(0), DType::I32, true), |value: impl ArrayLike| value.into_array();
    }
}

impl NonzeroOptions {
    /// See [`flatnonzero`](flatnonzero()).
    #[track_caller]
    pub fn flatnonzero(&self, x: impl ArrayLike, size: impl Into<Option<usize>>) -> Array {
        let x = &x.into_array();
        checked_or_failed(x, || Ok(self.coordinates("flatnonzero", &x.ravel(), size.into())?.remove(0)))
    }

    /// See [`nonzero`](nonzero()).
    #[track_caller]
    pub fn nonzero(&self, x: impl ArrayLike, size: impl Into<Option<usize>>) -> Vec<Array> {
        let x = &x.into_array();
        let size = size.into();
        at_caller(|| {
            let coordinates = x.check().and_then(|()| match x.ndim() {
                0 => Err(err!(Value, "Calling nonzero on 0d arrays is not allowed.")
                    .help("add a dimension first, with `atleast_1d(&x)`")),
                _ => self.coordinates("nonzero", x, size),
            });
            coordinates.unwrap_or_else(|e| vec![Array::from_result(Err(e), x); x.ndim().max(1)])
        })
    }

    /// See [`argwhere`](argwhere()).
    #[track_caller]
    pub fn argwhere(&self, x: impl ArrayLike, size: impl Into<Option<usize>>) -> Array {
        let x = &x.into_array();
        checked_or_failed(x, || {
            if x.ndim() == 0 {
                let size = size_or_count("argwhere", size.into(), || super::count_nonzero(x, ..))?;
                return Ok(filled(&[size, 0], Scalar::Int(0), DType::I32));
            }
            Ok(super::stack(&self.coordinates("argwhere", x, size.into())?, 1))
        })
    }

    /// The coordinates of the nonzero elements, one array for each dimension.
    fn coordinates(&self, name: &str, x: &Array, size: Option<usize>) -> Result<Vec<Array>> {
        x.check()?;
        self.fill_value.check()?;
        let fill = &self.fill_value;
        if fill.ndim() > 1 || !matches!(fill.size(), 1) && fill.size() != x.ndim() {
            return Err(err!(Value, "{name} of {} got a fill_value of shape {:?}", x.type_name(), fill.shape())
                .help("pass one value, or one for each dimension"));
        }
        let size = size_or_count(name, size, || super::count_nonzero(x, ..))?;
        let dtype = DType::for_indices(&[x.size()]);
        let args = [if x.dtype() == DType::Bool { x.clone() } else { x.not_equal(0) }, fill.astype(dtype)];
        let rank = x.ndim();
        crate::ops::primitive::composite::composite("nonzero", size, rank, &args, |&size, args| {
            let (x, fill) = (&args[0], args[1].broadcast_to([args[0].ndim()]));
            let before = x.ravel().astype(fill.dtype()).cumsum(0);
            let n = x.size();
            // The k-th nonzero element is where the count reaches k.
            let index = before.searchsorted(lax::iota(fill.dtype(), &[size], 0) + 1);
            let exists = index.less(n);
            let places = unravel(&index.minimum(n.saturating_sub(1)), x.shape());
            Ok(places.iter().zip(0..).map(|(place, d)| where_(&exists, place, fill.get(d))).collect())
        })
    }
}

/// Returns the indices of the nonzero elements in row-major order, int32, as one array for each dimension. For the
/// size, see [`flatnonzero`].
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

/// Returns the indices of the nonzero elements as rows: int32 of shape `[size, x.ndim()]`. For the size, see
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

/// Converts indices into the flat array to coordinates in an array of this shape.
fn unravel(flat: &Array, shape: &[usize]) -> Vec<Array> {
    let mut quotient = flat.clone();
    let mut out: Vec<Array> = Vec::with_capacity(shape.len());
    for &n in shape.iter().rev() {
        let n = n.max(1);
        out.push(super::remainder(&quotient, n));
        quotient = super::floor_divide(&quotient, n);
    }
    out.reverse();
    out
}

/// Converts indices into the flat array to coordinates in an array of this shape: an integer array for each dimension.
/// Indices out of range are clipped; negative indices count from the end.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::unravel_index;
/// let at = unravel_index(array([4, 5]), [2, 3]);
/// assert_eq!((at[0].to_vec::<i32>()?, at[1].to_vec::<i32>()?), (vec![1, 1], vec![1, 2]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn unravel_index(places: impl ArrayLike, shape: impl IntoSizes) -> Vec<Array> {
    let (places, shape) = (&places.into_array(), &shape.into_sizes()[..]);
    at_caller(|| {
        let total = shape.iter().try_fold(1i32, |n, &d| n.checked_mul(i32::try_from(d).ok()?));
        let is_integer = places.dtype().is_integer();
        let flat = checked_or_failed(places, || {
            let total = total.filter(|_| is_integer).ok_or_else(|| {
                err!(
                    Value,
                    "unravel_index requires integers and a shape whose flat indices fit int32, got {} and {shape:?}",
                    places.type_name()
                )
                .help("pass integers, and a shape of at most 2147483647 elements")
            })?;
            // Indices of a narrow dtype are widened if the dtype cannot represent the number of elements.
            let fits = highest(places.dtype()).to_i128() >= total.into();
            let places = if fits { places.clone() } else { wide(places, shape) };
            let from_end = where_(places.less(0), &places + total, &places);
            Ok(from_end.clip(0, (total - 1).max(0)))
        });
        unravel(&flat, shape)
    })
}
