//! Stacking of arrays, and minimum numbers of dimensions.

use super::indexing::{IntoAxis, with_axis};
use super::{checked_or_failed, concatenate, stack};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::ops::lax;
use crate::ops::operators::{ArrayLike, IntoArrays};

/// Converts a scalar to an array of one element. Other arrays are unchanged.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(atleast_1d(7).shape(), [1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn atleast_1d(x: impl ArrayLike) -> Array {
    let x = &x.into_array();
    checked_or_failed(x, || Ok(if x.ndim() == 0 { lax::reshape(x, &[1]) } else { x.clone() }))
}

/// Adds leading dimensions of size 1 until there are two.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::atleast_2d;
/// assert_eq!(atleast_2d(&array([1, 2, 3])).shape(), [1, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn atleast_2d(x: impl ArrayLike) -> Array {
    let x = &x.into_array();
    checked_or_failed(x, || match x.ndim() {
        0 | 1 => Ok(lax::reshape(x, &[1, x.size()])),
        _ => Ok(x.clone()),
    })
}

/// Adds dimensions until there are three: `[n]` becomes `[1, n, 1]`, `[m, n]` becomes `[m, n, 1]`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(atleast_3d(ones([4])).shape(), [1, 4, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn atleast_3d(x: impl ArrayLike) -> Array {
    let x = &x.into_array();
    checked_or_failed(x, || match x.shape() {
        [] | [_] => Ok(lax::reshape(x, &[1, x.size(), 1])),
        &[m, n] => Ok(lax::reshape(x, &[m, n, 1])),
        _ => Ok(x.clone()),
    })
}

/// Concatenates the arrays along their second dimension; vectors are concatenated along their only dimension.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::{hstack, vstack};
/// let (a, b) = (array([1, 2]), array([3, 4]));
/// assert_eq!(hstack(&[a.clone(), b.clone()]).to_vec::<i32>()?, [1, 2, 3, 4]);
/// assert_eq!(vstack(&[a, b]).shape(), [2, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn hstack<Form>(arrays: impl IntoArrays<Form>) -> Array {
    let arrays = &arrays.into_arrays();
    at_caller(|| {
        let arrays: Vec<Array> = arrays.iter().map(atleast_1d).collect();
        let axis = arrays.first().map_or(0, |x| i32::from(x.ndim() > 1));
        concatenate(&arrays, axis)
    })
}

/// Concatenates the arrays along their rows; a vector is one row.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(vstack([array([1, 2]), array([3, 4])]).to_vec::<i32>()?, [1, 2, 3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn vstack<Form>(arrays: impl IntoArrays<Form>) -> Array {
    let arrays = &arrays.into_arrays();
    at_caller(|| concatenate(&arrays.iter().map(atleast_2d).collect::<Vec<_>>(), 0))
}

/// Concatenates the arrays along their third dimension, after [`atleast_3d`].
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(dstack([ones([2, 3]), ones([2, 3])]).shape(), [2, 3, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn dstack<Form>(arrays: impl IntoArrays<Form>) -> Array {
    let arrays = &arrays.into_arrays();
    at_caller(|| concatenate(&arrays.iter().map(atleast_3d).collect::<Vec<_>>(), 2))
}

/// Concatenates the arrays as columns; a vector is one column.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(column_stack([array([1, 2]), array([3, 4])]).to_vec::<i32>()?, [1, 3, 2, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn column_stack<Form>(arrays: impl IntoArrays<Form>) -> Array {
    let arrays = &arrays.into_arrays();
    at_caller(|| {
        if arrays.iter().all(|x| x.ndim() == 1) {
            return stack(arrays, 1);
        }
        let columns = arrays.iter().map(|x| if x.ndim() < 2 { lax::reshape(x, &[x.size(), 1]) } else { x.clone() });
        concatenate(&columns.collect::<Vec<_>>(), 1)
    })
}

/// Appends values to the array along `axis`; `..` flattens both first.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(append(array([1, 2]), array([3]), 0).to_vec::<i32>()?, [1, 2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn append(x: impl ArrayLike, values: impl ArrayLike, axis: impl IntoAxis) -> Array {
    let x = &x.into_array();
    let values = values.into_array();
    checked_or_failed(x, || {
        values.check()?;
        let axis = axis.into_axis();
        match axis {
            None => Ok(concatenate(&[x.ravel(), values.ravel()], 0)),
            Some(axis) => with_axis(x, axis).map(|(x, axis)| concatenate(&[x, values.clone()], axis as i32)),
        }
    })
}
