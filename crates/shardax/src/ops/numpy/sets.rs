//! Nonzero elements and unique elements. The size of a result is given, or, outside of `jit`, determined by
//! the values.

use super::{filled, made, where_};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;

/// The given size, or the one determined by the values.
fn size_of(name: &str, given: Option<usize>, count: impl FnOnce() -> Array) -> Result<usize> {
    if let Some(size) = given {
        return Ok(size);
    }
    let count = count();
    match count.is_traced() {
        false => Ok(count.item::<i32>()?.max(0) as usize),
        true => Err(err!(
            Type,
            "The size argument of {name} must be statically specified to use it within JAX transformations"
        )
        .help(format!("give the number of results, `{name}(&x, 8)`: fewer are filled up, more are cut off"))),
    }
}

/// The indices of the nonzero elements in the flat array, ascending, int32. At most `size`; fewer are padded
/// with `fill_value`.
fn places(x: &Array, size: usize, fill_value: i32) -> Result<Array> {
    let args = [if x.dtype() == DType::Bool { x.ravel() } else { x.ravel().not_equal(0) }];
    composite1("flatnonzero", (size, fill_value), &args, |&(size, fill_value), args| {
        let n = args[0].size();
        let before = args[0].astype(DType::I32).cumsum(0);
        // The k-th is where the count reaches k.
        let at = before.searchsorted(lax::iota(DType::I32, &[size], 0) + 1);
        Ok(vec![where_(at.less(n as i32), at, fill_value)])
    })
}

/// The indices of the nonzero elements in the flat array, ascending, int32. With a `size`, fewer are padded
/// with 0, more are cut off. Without one (`None`) as many as there are, which waits for the values.
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
    let x = &x.into_array();
    made(x, || {
        let size = size_of("flatnonzero", size.into(), || super::count_nonzero(x, ..))?;
        places(x, size, 0)
    })
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
    let x = &x.into_array();
    let size = size.into();
    at_caller(|| {
        if x.error().is_some() || x.ndim() == 0 {
            let made = x.check().and_then(|()| {
                Err(err!(Value, "Calling nonzero on 0d arrays is not allowed.").help("use `atleast_1d(&x)`"))
            });
            return vec![Array::from_result(made, x)];
        }
        let shape = x.shape_owned();
        let flat = made(x, || {
            let size = size_of("nonzero", size, || super::count_nonzero(x, ..))?;
            // Padding is 0 in each dimension, and an empty dimension has no indices.
            places(x, size, 0)
        });
        unravel(&flat, &shape)
    })
}

/// The indices of the nonzero elements, one row each: int32 of shape `[size, x.ndim()]`. For the size see
/// [`flatnonzero`].
#[track_caller]
pub fn argwhere(x: impl ArrayLike, size: impl Into<Option<usize>>) -> Array {
    let x = &x.into_array();
    made(x, || {
        if x.ndim() == 0 {
            let size = size_of("argwhere", size.into(), || super::count_nonzero(x, ..))?;
            return Ok(filled(&[size, 0], Scalar::Int(0), DType::I32));
        }
        Ok(super::stack(&nonzero(x, size), 1))
    })
}

/// The coordinates in an array of this shape of indices into the flat array.
fn unravel(flat: &Array, shape: &[usize]) -> Vec<Array> {
    let mut left = flat.clone();
    let mut out: Vec<Array> = Vec::with_capacity(shape.len());
    for &n in shape.iter().rev() {
        let n = n.max(1) as i32;
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
                err!(Value, "unravel_index of {} in an array of shape {shape:?}", places.type_name())
                    .help("give integers, and a shape of at most 2147483647 elements")
            })?;
            let from_end = where_(places.less(0), places + total, places);
            Ok(from_end.clip(0, (total - 1).max(0)))
        });
        unravel(&flat, shape)
    })
}

/// The unique elements, ascending. With a `size`, fewer are padded with the smallest, more are cut off.
/// Without one (`None`) as many as there are, which waits for the values. NaNs count as one element.
///
/// Fails for complex numbers, and inside of `jit`, `vmap` and `grad` without a size.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::unique;
/// let x = array([3, 1, 3, 2]);
/// assert_eq!(unique(&x, None).to_vec::<i32>()?, [1, 2, 3]);
/// assert_eq!(unique(&x, 5).to_vec::<i32>()?, [1, 2, 3, 1, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn unique(x: impl ArrayLike, size: impl Into<Option<usize>>) -> Array {
    let x = &x.into_array();
    made(x, || {
        if x.dtype().category() == Category::Complex {
            return Err(err!(Type, "unique does not accept {}: complex numbers have no order", x.type_name())
                .help("take the real and the imaginary part"));
        }
        let sorted = x.ravel().sort(0);
        let first = firsts(&sorted)?;
        let size = size_of("unique", size.into(), || super::count_nonzero(&first, ..))?;
        if sorted.size() == 0 {
            return match size {
                0 => Ok(sorted),
                _ => Err(err!(Value, "unique of {}: there is no element to fill {size} places with", x.type_name())
                    .help("leave the size out, or 0, where there may be no elements")),
            };
        }
        Ok(sorted.get(places(&first, size, 0)?))
    })
}

/// Marks the elements of an ascending array that differ from the previous one.
fn firsts(sorted: &Array) -> Result<Array> {
    composite1("firsts", (), std::slice::from_ref(sorted), |(), args| {
        let x = &args[0];
        let n = x.size();
        if n == 0 {
            return Ok(vec![filled(&[0], Scalar::Bool(false), DType::Bool)]);
        }
        let (after, before) = (lax::slice_in_dim(x, 1, n, 0usize), lax::slice_in_dim(x, 0, n - 1, 0usize));
        let mut other = after.not_equal(&before);
        if x.dtype().is_float() {
            other = other & !(super::isnan(&after) & super::isnan(&before));
        }
        let yes = filled(&[1], Scalar::Bool(true), DType::Bool);
        Ok(vec![lax::concatenate(&[yes, other], 0)])
    })
}
