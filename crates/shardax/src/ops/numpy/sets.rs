//! Unique elements, and operations on sets of elements. You pass the size of a result or, outside of `jit`, it is determined by the
//! values.

use super::nonzero::{places, size_or_count};
use super::options::options;
use super::{checked_or_failed, filled, where_};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::{ArrayLike, IntoArrays};
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::sort::Sort;
use crate::shape::{AxisNumber, normalize_axis};

/// The unique entries of an array and their indices; see [`unique_all`].
#[derive(Clone, Debug)]
pub struct Unique {
    /// The unique entries, ascending.
    pub values: Array,
    /// The index of the first occurrence of each unique entry, int32.
    pub indices: Array,
    /// For each entry of the array, its index in `values`: int32 with the shape of the array.
    pub inverse_indices: Array,
    /// The number of occurrences of each unique entry, int32; 0 for padding.
    pub counts: Array,
}

options! {
    /// Options of [`unique`](unique()) and [`unique_all`](unique_all()).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # use shardax::numpy::UniqueOptions;
    /// let x = array([3, 1, 3]);
    /// assert_eq!(UniqueOptions::new().fill_value(9).unique(&x, 4).to_vec::<i32>()?, [1, 3, 9, 9]);
    /// let rows = UniqueOptions::new().axis(0).unique(array([[2, 1], [1, 5], [2, 1]]), None);
    /// assert_eq!(rows.to_vec::<i32>()?, [1, 5, 2, 1]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    UniqueOptions {
        /// The dimension whose entries are compared. Default: the elements of the flat array.
        axis: Option<i32> = None, |axis: impl Into<Option<i32>>| axis.into();
        /// If true, all NaN count as the same element. Default `true`.
        equal_nan: bool = true, |equal_nan: bool| equal_nan;
        /// The padding after the last entry. Default: the smallest entry.
        fill_value: Option<Array> = None, |value: impl ArrayLike| Some(value.into_array());
    }
}

impl UniqueOptions {
    /// See [`unique`](unique()).
    #[track_caller]
    pub fn unique(&self, x: impl ArrayLike, size: impl Into<Option<usize>>) -> Array {
        self.unique_all(x, size).values
    }

    /// See [`unique_all`](unique_all()).
    #[track_caller]
    pub fn unique_all(&self, x: impl ArrayLike, size: impl Into<Option<usize>>) -> Unique {
        let (x, size) = (x.into_array(), size.into());
        at_caller(|| {
            self.find(&x, size).unwrap_or_else(|e| {
                let odd = Array::from_result(Err(e), &x);
                Unique { values: odd.clone(), indices: odd.clone(), inverse_indices: odd.clone(), counts: odd }
            })
        })
    }

    /// Sorts the entries, marks the first of each run of equal entries, then selects them. Everything else follows from the order of
    /// the sort and from the marks.
    fn find(&self, x: &Array, size: Option<usize>) -> Result<Unique> {
        x.check()?;
        if x.dtype().is_complex() {
            return Err(err!(Type, "unique does not accept {}: complex numbers have no order", x.type_name())
                .help("pass the real or the imaginary part"));
        }
        let (axis, lines) = match self.axis {
            None => (None, lax::reshape(x, &[x.size(), 1])),
            Some(axis) => {
                let axis = normalize_axis(axis as isize, x.ndim())?;
                let entries = x.moveaxis(axis as i32, 0);
                let n = entries.shape()[0];
                (Some(axis), lax::reshape(&entries, &[n, entries.size().checked_div(n).unwrap_or(0)]))
            }
        };
        let n = lines.shape()[0];
        let dtype = DType::for_indices(&[n]);
        if lines.size() == 0 {
            return self.find_in_empty(x, axis, n, size);
        }
        let columns: Vec<Array> = (0..lines.shape()[1]).rev().map(|c| lines.get((.., c as i32))).collect();
        let order = lexsort(columns, 0);
        let sorted = lines.get(&order);
        let is_first = mark_first(&sorted, self.equal_nan)?;
        let size = size_or_count("unique", size, || super::count_nonzero(&is_first, ..))?;
        let starts = places(&is_first, size, 0)?;
        let is_entry = lax::iota(DType::for_indices(&[size]), &[size], 0).less(super::count_nonzero(&is_first, ..));
        let mut values = sorted.get(&starts);
        if let Some(fill) = &self.fill_value {
            fill.check()?;
            values = where_(is_entry.expand_dims(1), values, super::convert(fill, x.dtype(), false));
        }
        let values = match axis {
            None => values.ravel(),
            Some(axis) => {
                let mut shape = x.moveaxis(axis as i32, 0).shape_owned();
                shape[0] = size;
                lax::reshape(&values, &shape).moveaxis(0, axis as i32)
            }
        };
        let rank = is_first.astype(dtype).cumsum(0) - 1;
        let inverse = zero_indices(n).at(&order).set(rank);
        // A run of equal entries ends where the next run starts.
        let ends = places(&is_first, size + 1, n as i64)?;
        let counts = lax::slice_in_dim(&ends, 1, size + 1, 0usize) - lax::slice_in_dim(&ends, 0, size, 0usize);
        let inverse_indices = if axis.is_some() { inverse } else { lax::reshape(&inverse, x.shape()) };
        Ok(Unique { values, indices: order.get(&starts), inverse_indices, counts })
    }

    /// Fills `size` entries of an array without elements. It has `n` lines along `axis`, which are empty and equal: one
    /// entry, if there is a line.
    fn find_in_empty(&self, x: &Array, axis: Option<usize>, n: usize, size: Option<usize>) -> Result<Unique> {
        let has_entry = axis.is_some() && n > 0;
        let size = size.unwrap_or(usize::from(has_entry));
        if size > 0 && !has_entry && self.fill_value.is_none() {
            return Err(err!(Value, "unique of {}: there is no element to fill {size} places with", x.type_name())
                .help("pass size 0 or a `fill_value` if the array can be empty"));
        }
        let mut shape = x.shape_owned();
        match axis {
            Some(axis) => shape[axis] = size,
            None => shape = [size].as_slice().into(),
        }
        let fill = self.fill_value.clone().unwrap_or_else(|| 0.into()).astype(x.dtype());
        let inverse_indices = if axis.is_some() { zero_indices(n) } else { lax::reshape(&zero_indices(0), x.shape()) };
        Ok(Unique {
            values: fill.broadcast_to(&shape),
            indices: zero_indices(size),
            inverse_indices,
            counts: if has_entry && size > 0 { zero_indices(size).at(0).set(n as i64) } else { zero_indices(size) },
        })
    }
}

/// Returns the unique elements, ascending. With a `size`, fewer elements are padded with the smallest and surplus
/// elements are dropped. With `None`, the call waits for the values and returns all unique elements. All NaN count as
/// the same element. [`UniqueOptions`] has other padding, and compares rows instead of elements.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::unique;
/// let x = array([3, 1, 3, 2]);
/// assert_eq!(unique(&x, None).to_vec::<i32>()?, [1, 2, 3]);
/// assert_eq!(unique(&x, 5).to_vec::<i32>()?, [1, 2, 3, 1, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for complex numbers, and inside of `jit`, `vmap` and `grad` without a size.
#[track_caller]
pub fn unique(x: impl ArrayLike, size: impl Into<Option<usize>>) -> Array {
    UniqueOptions::new().unique(x, size)
}

/// Returns the unique elements, ascending, with the indices of their first occurrences, the index of every element
/// among them, and their counts. As in the array API, every NaN is a different element. For the size, see
/// [`unique`](unique()).
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::unique_all;
/// let found = unique_all(array([3, 1, 3, 2]), None);
/// assert_eq!(found.indices.to_vec::<i32>()?, [1, 3, 0]);
/// assert_eq!(found.inverse_indices.to_vec::<i32>()?, [2, 0, 2, 1]);
/// assert_eq!(found.counts.to_vec::<i32>()?, [1, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn unique_all(x: impl ArrayLike, size: impl Into<Option<usize>>) -> Unique {
    UniqueOptions::new().equal_nan(false).unique_all(x, size)
}

/// Returns the unique elements, ascending, and their counts.
///
/// ```
/// # use shardax::prelude::*;
/// let (values, counts) = unique_counts(array([3, 1, 3]), None);
/// assert_eq!((values.to_vec::<i32>()?, counts.to_vec::<i32>()?), (vec![1, 3], vec![1, 2]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn unique_counts(x: impl ArrayLike, size: impl Into<Option<usize>>) -> (Array, Array) {
    let unique = unique_all(x, size);
    (unique.values, unique.counts)
}

/// Returns the unique elements, ascending, and the index of each element among them.
///
/// ```
/// # use shardax::prelude::*;
/// let (values, inverse) = unique_inverse(array([3, 1, 3]), None);
/// assert_eq!((values.to_vec::<i32>()?, inverse.to_vec::<i32>()?), (vec![1, 3], vec![1, 0, 1]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn unique_inverse(x: impl ArrayLike, size: impl Into<Option<usize>>) -> (Array, Array) {
    let unique = unique_all(x, size);
    (unique.values, unique.inverse_indices)
}

/// Marks the rows of a sorted matrix that differ from the previous row.
fn mark_first(sorted: &Array, equal_nan: bool) -> Result<Array> {
    composite1("firsts", equal_nan, std::slice::from_ref(sorted), |&equal_nan, args| {
        let x = &args[0];
        let n = x.shape()[0];
        let (after, before) = (lax::slice_in_dim(x, 1, n, 0usize), lax::slice_in_dim(x, 0, n - 1, 0usize));
        let mut differs = after.not_equal(&before);
        if x.dtype().is_float() && equal_nan {
            differs = differs & !(super::isnan(&after) & super::isnan(&before));
        }
        let first_row = filled(&[1], Scalar::Bool(true), DType::Bool);
        Ok(vec![lax::concatenate(&[first_row, differs.any(1)], 0)])
    })
}

/// Returns the indices, int32, that sort by several keys of the same shape along `axis`. The last key is the primary
/// key; earlier keys decide between elements whose later keys are equal.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::lexsort;
/// assert_eq!(lexsort([array([2, 1, 3]), array([1, 1, 0])], 0).to_vec::<i32>()?, [2, 1, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for no keys, or keys of unlike shapes.
#[track_caller]
pub fn lexsort<Form>(keys: impl IntoArrays<Form>, axis: impl AxisNumber) -> Array {
    let axis = axis.axis_number();
    let keys = keys.into_arrays();
    let none = Array::literal(Scalar::Int(0), DType::I32, false);
    checked_or_failed(keys.first().unwrap_or(&none), || {
        let Some(first_key) = keys.first() else {
            return Err(
                err!(Type, "need sequence of keys with len > 0 in lexsort").help("pass at least one array of keys")
            );
        };
        keys.iter().try_for_each(Array::check)?;
        if let Some(odd) = keys.iter().find(|key| key.shape() != first_key.shape()) {
            return Err(err!(
                Value,
                "lexsort got keys of different shapes: {} and {}",
                first_key.type_name(),
                odd.type_name()
            )
            .help("pass keys of the same shape"));
        }
        let axis = normalize_axis(axis as isize, first_key.ndim())?;
        let keys: Vec<Array> =
            keys.iter().rev().cloned().map(crate::ops::primitive::stop_gradient::stop_gradient).collect();
        composite1("lexsort", axis, &keys, |&dimension, keys| {
            // Sorts the positions with the keys; the last key of the list is the first to compare.
            let shape = keys[0].shape();
            let places = lax::iota(DType::for_indices(&shape[dimension..=dimension]), shape, dimension);
            let sort = Sort { operands: keys.len() + 1, dimension, num_keys: keys.len(), is_stable: true };
            Ok(vec![sort.apply(&[keys, &[places]].concat())[keys.len()].clone()])
        })
    })
}

/// Returns the elements of either array, unique and ascending. For the size, see [`unique`](unique()).
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::{intersect1d, setdiff1d, setxor1d, union1d};
/// let (x, y) = (array([3, 1, 2]), array([5, 3]));
/// assert_eq!(union1d(&x, &y, None).to_vec::<i32>()?, [1, 2, 3, 5]);
/// assert_eq!(intersect1d(&x, &y).to_vec::<i32>()?, [3]);
/// assert_eq!(setdiff1d(&x, &y).to_vec::<i32>()?, [1, 2]);
/// assert_eq!(setxor1d(&x, &y).to_vec::<i32>()?, [1, 2, 5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn union1d(x: impl ArrayLike, y: impl ArrayLike, size: impl Into<Option<usize>>) -> Array {
    at_caller(|| unique(super::concatenate([x.into_array().ravel(), y.into_array().ravel()], 0), size))
}

/// Returns the elements that both arrays have, unique and ascending. The call waits for the values.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(intersect1d(array([1, 2, 3]), array([3, 2, 5])).to_vec::<i32>()?, [2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn intersect1d(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    select_by_count("intersect1d", x, y, |count| count.equal(2))
}

/// Returns the elements that exactly one of the arrays has, unique and ascending. The call waits for the values.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(setxor1d(array([1, 2, 3]), array([3, 2, 5])).to_vec::<i32>()?, [1, 5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn setxor1d(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    select_by_count("setxor1d", x, y, |count| count.equal(1))
}

/// Selects unique elements by the number of arrays that have them.
#[track_caller]
fn select_by_count(
    name: &'static str,
    x: impl ArrayLike,
    y: impl ArrayLike,
    chosen: impl FnOnce(Array) -> Array,
) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(&x, || {
        let args = super::promote_args_of(name, &[&x, &y])?;
        let elements = super::concatenate([unique(&args[0], None), unique(&args[1], None)], 0);
        let unique = unique_all(elements, None);
        unique.values.check()?;
        Ok(super::compress(chosen(unique.counts), unique.values, 0))
    })
}

/// Returns the elements of `x` that are not in `y`, unique and ascending. The call waits for the values.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(setdiff1d(array([1, 2, 3]), array([3, 2, 5])).to_vec::<i32>()?, [1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn setdiff1d(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(&x, || {
        let x = unique(&x, None);
        x.check()?;
        Ok(super::compress(!super::isin(&x, &y), &x, 0))
    })
}

fn zero_indices(n: usize) -> Array {
    filled(&[n], Scalar::Int(0), DType::for_indices(&[n]))
}
