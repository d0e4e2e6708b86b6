//! Functions that join and divide arrays: blocks, parts, insertion and deletion.

use super::indexing::{IntoAxis, with_axis};
use super::options::options;
use super::{IntoSections, Sections, broadcast_any_ranks, checked_or_failed, concatenate, convert, filled, where_};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::{AtCaller, Result, err};
use crate::ops::lax;
use crate::ops::operators::{ArrayLike, IntoArrays};
use crate::ops::primitive::gather::wide;
use crate::shape::{AxisNumber, normalize_axis};
use crate::source;

/// Joins a matrix of blocks. The arrays of each row are concatenated along the last dimension, the rows along the
/// second to last. Arrays of fewer dimensions get leading dimensions of size 1.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::block;
/// let m = block([[eye(1), zeros([1, 2])], [ones([2, 1]), eye(2)]]);
/// assert_eq!(m.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn block<Form>(rows: impl IntoIterator<Item = impl IntoArrays<Form>>) -> Array {
    let rows: Vec<Vec<Array>> = rows.into_iter().map(IntoArrays::into_arrays).collect();
    at_caller(|| {
        let rank = rows.iter().flatten().map(Array::ndim).max().unwrap_or(0).max(2);
        let rows = rows.iter().map(|row| {
            let blocks = row.iter().map(|block| with_leading_dims(block, rank));
            concatenate(blocks.collect::<Vec<_>>(), -1)
        });
        concatenate(rows.collect::<Vec<_>>(), -2)
    })
}

/// Adds leading dimensions of size 1 until there are `rank` dimensions.
fn with_leading_dims(x: &Array, rank: usize) -> Array {
    let shape = [vec![1; rank - x.ndim()], x.shape().to_vec()].concat();
    lax::reshape(x, &shape)
}

/// Broadcasts the arrays to one shape. Each keeps its dtype.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::broadcast_arrays;
/// let all = broadcast_arrays([zeros([3, 1]), ones([2])])?;
/// assert_eq!((all[0].shape(), all[1].shape()), (&[3, 2][..], &[3, 2][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for shapes that do not broadcast.
#[track_caller]
pub fn broadcast_arrays<Form>(arrays: impl IntoArrays<Form>) -> Result<Vec<Array>> {
    let _line = source::enter();
    let arrays = arrays.into_arrays();
    arrays.iter().try_for_each(Array::check)?;
    let arrays = broadcast_any_ranks("broadcast_arrays", &arrays).at_caller()?;
    let shape = arrays.iter().find(|x| x.ndim() > 0).map(Array::shape_owned).unwrap_or_default();
    Ok(arrays.iter().map(|x| x.broadcast_to(&shape)).collect())
}

/// Splits along `axis` into a number of arrays whose sizes differ by at most 1, larger arrays first, or before each of
/// several places, as [`Array::split`] does.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::array_split;
/// let parts = array_split(arange(0..5), 3, 0)?;
/// assert_eq!((parts[0].size(), parts[1].size(), parts[2].size()), (2, 2, 1));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for 0 parts.
#[track_caller]
pub fn array_split(x: impl ArrayLike, sections: impl IntoSections, axis: impl AxisNumber) -> Result<Vec<Array>> {
    let axis = axis.axis_number();
    let x = x.into_array();
    let parts = match sections.into_sections() {
        Sections::Parts(parts) => parts,
        Sections::Places(places) => return x.split(places, axis),
    };
    let _line = source::enter();
    x.check()?;
    let axis_index = normalize_axis(axis as isize, x.ndim()).at_caller()?;
    let n = x.shape()[axis_index];
    if parts == 0 || (parts > n && parts > 1 << 16) {
        return Err(err!(Value, "array_split cannot divide {} into {parts} parts", x.type_name())
            .help("pass a number of parts of at least 1"))
        .at_caller();
    }
    let places: Vec<usize> = (1..parts).map(|i| i * (n / parts) + i.min(n % parts)).collect();
    x.split_at(&places, axis)
}

/// Splits into parts of equal size, or before each of several places; see [`Array::split`].
///
/// # Errors
/// Returns an error in the same cases as [`Array::split`].
#[track_caller]
pub fn split(x: impl ArrayLike, sections: impl IntoSections, axis: impl AxisNumber) -> Result<Vec<Array>> {
    x.into_array().split(sections, axis)
}

/// Splits along the second dimension; a vector is split along its only dimension.
///
/// ```
/// # use shardax::prelude::*;
/// let parts = hsplit(array([[1, 2], [3, 4]]), 2)?;
/// assert_eq!(parts[1].to_vec::<i32>()?, [2, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `x` failed, has no such dimension, or cannot be divided into `parts` equal parts.
#[track_caller]
pub fn hsplit(x: impl ArrayLike, sections: impl IntoSections) -> Result<Vec<Array>> {
    let x = x.into_array();
    x.split(sections, i32::from(x.ndim() > 1))
}

/// Splits along the first dimension.
///
/// ```
/// # use shardax::prelude::*;
/// let parts = vsplit(array([[1, 2], [3, 4]]), 2)?;
/// assert_eq!(parts[1].to_vec::<i32>()?, [3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `x` failed, has no such dimension, or cannot be divided into `parts` equal parts.
#[track_caller]
pub fn vsplit(x: impl ArrayLike, sections: impl IntoSections) -> Result<Vec<Array>> {
    x.into_array().split(sections, 0)
}

/// Splits along the third dimension.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(dsplit(ones([2, 3, 4]), 2)?[0].shape(), [2, 3, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `x` failed, has no such dimension, or cannot be divided into `parts` equal parts.
#[track_caller]
pub fn dsplit(x: impl ArrayLike, sections: impl IntoSections) -> Result<Vec<Array>> {
    x.into_array().split(sections, 2)
}

/// Indices along an axis: a number, a list, or an array of integers. Negative indices count from the end.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an index along an axis",
    label = "neither an integer nor integers",
    note = "an integer, a list of integers, or an array of them: `delete(&x, 0, 1)`, `delete(&x, [0, 2], 1)`"
)]
pub trait IntoPlaces {
    /// The indices as they were passed.
    fn into_places(self) -> Places;
}

/// Indices that are known, or an array of them.
#[derive(Clone, Debug)]
pub enum Places {
    /// A single index. Its values have one dimension less than the values of a list.
    One(i64),
    /// A list of indices.
    Known(Vec<i64>),
    /// A scalar or a vector of integers, which can be traced.
    Array(Array),
}

impl Places {
    /// Reads the indices of an array whose values are known.
    fn read(self, name: &str) -> Result<Places> {
        let Places::Array(places) = self else { return Ok(self) };
        places.check()?;
        if !places.dtype().is_integer() || places.ndim() > 1 {
            return Err(err!(Value, "{name} got indices of type {}", places.type_name())
                .help("pass an integer, or integers of one dimension"));
        }
        if places.is_traced() {
            return Ok(Places::Array(places));
        }
        let known = convert(&places, DType::I64, false).to_vec::<i64>()?;
        Ok(if places.ndim() == 0 { Places::One(known[0]) } else { Places::Known(known) })
    }
}

macro_rules! into_places {
    ($($t:ty)*) => {$(
        impl IntoPlaces for $t {
            fn into_places(self) -> Places {
                Places::One(i64::from(self))
            }
        }
        impl<const N: usize> IntoPlaces for [$t; N] {
            fn into_places(self) -> Places {
                self.as_slice().into_places()
            }
        }
        impl IntoPlaces for &[$t] {
            fn into_places(self) -> Places {
                Places::Known(self.iter().copied().map(i64::from).collect())
            }
        }
        impl IntoPlaces for Vec<$t> {
            fn into_places(self) -> Places {
                self.as_slice().into_places()
            }
        }
        impl IntoPlaces for &Vec<$t> {
            fn into_places(self) -> Places {
                self.as_slice().into_places()
            }
        }
    )*};
}

into_places!(i32 i64);

impl IntoPlaces for Array {
    fn into_places(self) -> Places {
        Places::Array(self)
    }
}

impl IntoPlaces for &Array {
    fn into_places(self) -> Places {
        Places::Array(self.clone())
    }
}

/// Converts indices to indices from the front of an axis of `n` elements. They must be less than `end`.
fn places_in(name: &str, x: &Array, places: Vec<i64>, n: usize, end: usize) -> Result<Vec<usize>> {
    let indices = places.into_iter().map(|place| {
        let index = if place < 0 { place + n as i64 } else { place };
        usize::try_from(index).ok().filter(|index| *index < end).ok_or_else(|| {
            err!(Index, "index {place} is out of bounds of {name} in {n} elements of {}", x.type_name())
                .help("indices count from 0, and negative indices from the end")
        })
    });
    indices.collect()
}

/// Removes the entries at these indices along `axis` (`..`: of the flat array). Duplicate indices count once.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::delete;
/// assert_eq!(delete(array([1, 2, 3, 4]), [0, -1], 0).to_vec::<i32>()?, [2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for indices out of bounds.
#[track_caller]
pub fn delete(x: impl ArrayLike, places: impl IntoPlaces, axis: impl IntoAxis) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || {
        let (x, axis) = with_axis(&x, axis)?;
        let n = x.shape()[axis];
        let places = match places.into_places().read("delete")? {
            Places::One(place) => vec![place],
            Places::Known(places) => places,
            Places::Array(places) => {
                return Err(err!(Type, "delete got traced indices of type {}", places.type_name()).help(
                    "the size of the result depends on equal indices; pass numbers, or select with `where_` or a mask",
                ));
            }
        };
        let mut deleted = places_in("delete", &x, places, n, n)?;
        deleted.sort_unstable();
        deleted.dedup();
        // The result consists of the parts between deleted indices. Parts without elements are left out.
        let starts = std::iter::once(0).chain(deleted.iter().map(|index| index + 1));
        let ends = deleted.iter().copied().chain(std::iter::once(n));
        let parts: Vec<Array> = starts
            .zip(ends)
            .filter(|(start, end)| start < end)
            .map(|(start, end)| lax::slice_in_dim(&x, start, end, axis))
            .collect();
        Ok(if parts.is_empty() { lax::slice_in_dim(&x, 0, 0, axis) } else { lax::concatenate(&parts, axis) })
    })
}

/// Inserts `values` before these indices along `axis` (`..`: of the flat array). The values are converted to the
/// array's dtype and broadcast. With a single index, the first dimension of `values` becomes the axis, if they have as
/// many dimensions as the array.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::insert;
/// assert_eq!(insert(array([1, 2, 3]), 1, array([8, 9]), 0).to_vec::<i32>()?, [1, 8, 9, 2, 3]);
/// assert_eq!(insert(array([1, 2, 3]), [0, 3], 7, 0).to_vec::<i32>()?, [7, 1, 2, 3, 7]);
/// let inserted = jit(|places: Array| insert(array([1, 2, 3]), places, array([8, 9]), 0));
/// assert_eq!(inserted.call(array([3, -2]))?.to_vec::<i32>()?, [1, 9, 2, 3, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for indices out of bounds. Traced indices are clamped instead.
#[track_caller]
pub fn insert(x: impl ArrayLike, places: impl IntoPlaces, values: impl ArrayLike, axis: impl IntoAxis) -> Array {
    let (x, values) = (x.into_array(), values.into_array());
    checked_or_failed(&x, || {
        values.check()?;
        let (x, axis) = with_axis(&x, axis)?;
        let n = x.shape()[axis];
        let (places, single) = match places.into_places().read("insert")? {
            Places::One(place) => (vec![place], true),
            Places::Known(places) => (places, false),
            Places::Array(places) => return insert_at_traced(&x, &places, &values, axis),
        };
        let places = places_in("insert", &x, places, n, n + 1)?;
        let mut shape = x.shape_owned();
        // With a single index, all values along the axis are inserted before it.
        let values = if single && values.ndim() <= x.ndim() {
            with_leading_dims(&values, x.ndim()).moveaxis(0, axis as i32)
        } else {
            values
        };
        let count = if single { values.shape().get(axis).copied().unwrap_or(1) } else { places.len() };
        shape[axis] = count;
        let values = super::convert(&values, x.dtype(), x.weak_type()).broadcast_to(&shape);
        values.check()?;
        if single {
            let [before, after] = [(0, places[0]), (places[0], n)].map(|(a, b)| lax::slice_in_dim(&x, a, b, axis));
            let mut parts = vec![before, values, after];
            parts.retain(|part| part.shape()[axis] > 0);
            return Ok(if parts.is_empty() { x } else { lax::concatenate(&parts, axis) });
        }
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|&i| places[i]);
        let (mut parts, mut done) = (Vec::new(), 0);
        for i in order {
            if places[i] > done {
                parts.push(lax::slice_in_dim(&x, done, places[i], axis));
                done = places[i];
            }
            parts.push(lax::slice_in_dim(&values, i, i + 1, axis));
        }
        if done < n || parts.is_empty() {
            parts.push(lax::slice_in_dim(&x, done, n, axis));
        }
        Ok(lax::concatenate(&parts, axis))
    })
}

/// [`insert`] at indices that are not known yet, which are clamped to the array.
fn insert_at_traced(x: &Array, places: &Array, values: &Array, axis: usize) -> Result<Array> {
    let (n, single) = (x.shape()[axis], places.ndim() == 0);
    let places = wide(places, &[n]);
    let places = where_(places.less(0), &places + n, &places).clip(0, n);
    // A single index is the index of all values.
    let values = if single && values.ndim() <= x.ndim() {
        with_leading_dims(values, x.ndim()).moveaxis(0, axis as i32)
    } else {
        values.clone()
    };
    let count = if single { values.shape().get(axis).copied().unwrap_or(1) } else { places.size() };
    let mut shape = x.shape_owned();
    shape[axis] = count;
    let values = convert(&values, x.dtype(), x.weak_type()).broadcast_to(&shape);
    values.check()?;
    let places = places.broadcast_to(&[count]);
    let order = places.argsort(0);
    // These are the indices of the sorted values in the result. All other entries are the elements of `x` in their
    // order.
    let of_values = places.take(&order, 0) + lax::iota(places.dtype(), &[count], 0);
    let is_value = filled(&[n + count], Scalar::Bool(false), DType::Bool).at(&of_values).set(true);
    let values_before = convert(&is_value, places.dtype(), false).cumsum(0);
    let of_x = lax::iota(places.dtype(), &[n + count], 0) - &values_before;
    let sources = match count {
        0 => of_x,
        _ => where_(is_value, order.take((values_before - 1).clip(0, count - 1), 0).astype(places.dtype()) + n, of_x),
    };
    Ok(lax::concatenate(&[x.clone(), values], axis).take(&sources, axis as i32))
}

/// Selects the elements of the first array of `choices` whose condition is true, or `default` where no condition is.
/// The arrays are broadcast and promoted.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::select;
/// let x = arange(0..5);
/// let y = select([x.less(2), x.less(4)], [&x * 10, &x * 100], -1);
/// assert_eq!(y.to_vec::<i32>()?, [0, 10, 200, 300, -1]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error unless there is one boolean condition for each choice.
#[track_caller]
pub fn select<Form1, Form2>(
    conditions: impl IntoArrays<Form1>,
    choices: impl IntoArrays<Form2>,
    default: impl ArrayLike,
) -> Array {
    let (conditions, choices, default) = (conditions.into_arrays(), choices.into_arrays(), default.into_array());
    checked_or_failed(&default, || {
        if conditions.len() != choices.len() || choices.is_empty() {
            return Err(err!(
                Value,
                "condlist must have length equal to choicelist ({} vs {})",
                conditions.len(),
                choices.len()
            )
            .help("pass one condition for each choice, and at least one choice"));
        }
        if let Some(odd) = conditions.iter().find(|c| c.dtype() != DType::Bool) {
            return Err(err!(Type, "select needs boolean conditions, got {}", odd.type_name())
                .help("compare the conditions with 0: `c.not_equal(0)`"));
        }
        let cases = conditions.iter().zip(&choices).rev();
        Ok(cases.fold(default.clone(), |otherwise, (condition, choice)| where_(condition, choice, otherwise)))
    })
}

/// Rotates by 90 degrees `k` times in the plane of two dimensions, from the first towards the second.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::rot90;
/// assert_eq!(rot90(array([[1, 2], [3, 4]]), 1, (0, 1)).to_vec::<i32>()?, [2, 4, 1, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn rot90(x: impl ArrayLike, k: i32, axes: (i32, i32)) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || {
        x.check()?;
        let (a, b) = (normalize_axis(axes.0 as isize, x.ndim())?, normalize_axis(axes.1 as isize, x.ndim())?);
        if a == b {
            return Err(err!(Value, "Axes must be different: rot90 got {axes:?}").help("pass two different dimensions"));
        }
        Ok(match k.rem_euclid(4) {
            0 => x.clone(),
            1 => lax::rev(&x, &[b]).swapaxes(a as i32, b as i32),
            2 => lax::rev(&x, &[a, b]),
            _ => lax::rev(&x.swapaxes(a as i32, b as i32), &[b]),
        })
    })
}

/// Reverses the rows.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(flipud(array([[1, 2], [3, 4]])).to_vec::<i32>()?, [3, 4, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn flipud(x: impl ArrayLike) -> Array {
    x.into_array().flip(0)
}

/// Reverses the columns.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(fliplr(array([[1, 2], [3, 4]])).to_vec::<i32>()?, [2, 1, 4, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn fliplr(x: impl ArrayLike) -> Array {
    x.into_array().flip(1)
}

/// Moves the dimension `axis` before the dimension `start`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(rollaxis(ones([3, 4, 5]), 2, 0).shape(), [5, 3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn rollaxis(x: impl ArrayLike, axis: impl AxisNumber, start: i32) -> Array {
    let axis = axis.axis_number();
    let x = x.into_array();
    checked_or_failed(&x, || {
        x.check()?;
        let (axis, start) = (normalize_axis(axis as isize, x.ndim())?, normalize_axis(start as isize, x.ndim() + 1)?);
        Ok(x.moveaxis(axis as i32, (start - usize::from(axis < start)) as i32))
    })
}

/// Repeats or truncates the elements to a new shape, in row-major order.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::resize;
/// assert_eq!(resize(array([1, 2, 3]), [2, 2]).to_vec::<i32>()?, [1, 2, 3, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn resize(x: impl ArrayLike, shape: impl super::IntoShape) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || {
        let shape = crate::shape::shape_of(shape)?;
        crate::core::program::Aval::new(x.dtype(), shape.as_slice()).byte_size()?;
        let size: usize = shape.iter().product();
        if size == 0 || x.size() == 0 {
            return Ok(super::filled(&shape, Scalar::Int(0), x.dtype()));
        }
        let flat = super::tile(x.ravel(), &[size.div_ceil(x.size())]);
        Ok(lax::reshape(&lax::slice_in_dim(&flat, 0, size, 0usize), &shape))
    })
}

/// Returns the matrix with these elements on its diagonal `k`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(diagflat(array([1, 2]), 0).to_vec::<i32>()?, [1, 0, 0, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn diagflat(x: impl ArrayLike, k: i32) -> Array {
    super::diag(x.into_array().ravel(), k)
}

/// Replaces the main diagonal by `values`, a number or a vector that is repeated.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(fill_diagonal(array([[1, 2], [3, 4]]), 0).to_vec::<i32>()?, [0, 2, 3, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for fewer than two dimensions, and for more than two dimensions of different sizes.
#[track_caller]
pub fn fill_diagonal(x: impl ArrayLike, values: impl ArrayLike) -> Array {
    let (x, values) = (x.into_array(), values.into_array());
    checked_or_failed(&x, || {
        values.check()?;
        let n = x.shape().iter().copied().min().unwrap_or(0);
        if x.ndim() < 2 || (x.ndim() > 2 && x.shape().iter().any(|&m| m != n)) {
            return Err(err!(
                Value,
                "All dimensions of input must be of equal length, at least two, got {}",
                x.type_name()
            )
            .help("pass a matrix, or an array whose dimensions have equal sizes"));
        }
        let line = lax::iota(DType::for_indices(&[n]), &[n], 0);
        let places: Vec<crate::ops::index::IndexItem> =
            (0..x.ndim()).map(|_| crate::ops::index::IndexItem::Array(line.clone())).collect();
        let values = if values.ndim() == 0 { values } else { resize(values, [n]) };
        Ok(x.at(places).set(super::convert(&values, x.dtype(), x.weak_type())))
    })
}

options! {
    /// Options of [`compress`](compress()) and [`extract`](extract()).
    CompressOptions {
        /// The number of entries of the result, which you must set inside `jit`. If fewer entries are selected, `fill_value` follows.
        size: Option<usize> = None, |size: impl Into<Option<usize>>| size.into();
        /// The value after the last entry. Default 0.
        fill_value: Array = Array::literal(Scalar::Int(0), DType::I32, true), |value: impl ArrayLike| value.into_array();
    }
}

impl CompressOptions {
    /// See [`compress`](compress()).
    #[track_caller]
    pub fn compress(&self, condition: impl ArrayLike, x: impl ArrayLike, axis: impl IntoAxis) -> Array {
        let (condition, x) = (condition.into_array(), x.into_array());
        checked_or_failed(&x, || {
            condition.check()?;
            let (x, axis) = with_axis(&x, axis)?;
            let n = x.shape()[axis].min(condition.size());
            if condition.ndim() != 1 {
                return Err(err!(Value, "condition must be a 1D array, got {}", condition.type_name())
                    .help("flatten the array with `ravel`"));
            }
            let chosen = lax::slice_in_dim(&condition, 0, n, 0usize).not_equal(0);
            let x = lax::slice_in_dim(&x, 0, n, axis);
            let indices = super::NonzeroOptions::new().fill_value(n).flatnonzero(&chosen, self.size);
            indices.check()?;
            let fill = super::convert(&self.fill_value, x.dtype(), false);
            // Positions beyond the chosen entries have the index `n`, and get the fill value.
            let mut mask_shape = vec![1; x.ndim()];
            mask_shape[axis] = indices.size();
            let is_entry = lax::reshape(&indices.less(n), &mask_shape);
            match n {
                0 => {
                    let mut shape = x.shape_owned();
                    shape[axis] = indices.size();
                    Ok(fill.broadcast_to(&shape))
                }
                _ => Ok(where_(is_entry, x.take(indices.minimum(n - 1), axis as i32), fill)),
            }
        })
    }

    /// See [`extract`](extract()).
    #[track_caller]
    pub fn extract(&self, condition: impl ArrayLike, x: impl ArrayLike) -> Array {
        self.compress(condition.into_array().ravel(), x.into_array().ravel(), 0)
    }
}

/// Selects the entries along `axis` (`..`: of the flat array) for which a vector of conditions is true. Inside `jit`, you must set a
/// fixed size with [`CompressOptions`].
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::{CompressOptions, compress};
/// let x = array([[1, 2], [3, 4], [5, 6]]);
/// assert_eq!(compress(array([true, false, true]), &x, 0).to_vec::<i32>()?, [1, 2, 5, 6]);
/// let sized = CompressOptions::new().size(2).fill_value(-1).compress(array([false, true]), &x, 1);
/// assert_eq!(sized.to_vec::<i32>()?, [2, -1, 4, -1, 6, -1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn compress(condition: impl ArrayLike, x: impl ArrayLike, axis: impl IntoAxis) -> Array {
    CompressOptions::new().compress(condition, x, axis)
}

/// Selects the elements for which a condition of the same shape is true, as a vector.
///
/// ```
/// # use shardax::prelude::*;
/// let x = arange(0..5);
/// assert_eq!(extract(x.greater(2), &x).to_vec::<i32>()?, [3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn extract(condition: impl ArrayLike, x: impl ArrayLike) -> Array {
    CompressOptions::new().extract(condition, x)
}

/// Replaces the elements that [`take_along_axis`](super::take_along_axis()) would read by `values`:
/// `out[indices[i, j], j] = values[i, j]` for axis 0.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::put_along_axis;
/// let x = put_along_axis(zeros([2, 2]), array([[1], [0]]), 5.0, 1);
/// assert_eq!(x.to_vec::<f32>()?, [0.0, 5.0, 5.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn put_along_axis(
    x: impl ArrayLike,
    indices: impl ArrayLike,
    values: impl ArrayLike,
    axis: impl AxisNumber,
) -> Array {
    let axis = axis.axis_number();
    let (x, indices, values) = (x.into_array(), indices.into_array(), values.into_array());
    checked_or_failed(&x, || {
        indices.check()?;
        values.check()?;
        let axis = normalize_axis(axis as isize, x.ndim())?;
        if indices.ndim() != x.ndim() || !indices.dtype().is_integer() {
            return Err(err!(
                Value,
                "put_along_axis indices must be integers of the rank of the array {}, got {}",
                x.type_name(),
                indices.type_name()
            )
            .help("pass integers with as many dimensions as the array"));
        }
        // The other dimensions are indexed by their own positions.
        let mut shape = x.shape_owned();
        shape[axis] = indices.shape()[axis];
        let indices = indices.broadcast_to(&shape);
        indices.check()?;
        let index: Vec<crate::ops::index::IndexItem> = (0..x.ndim())
            .map(|d| if d == axis { indices.clone() } else { lax::iota(DType::for_indices(&shape), &shape, d) })
            .map(crate::ops::index::IndexItem::Array)
            .collect();
        Ok(x.at(index).set(super::convert(&values, x.dtype(), x.weak_type()).broadcast_to(&shape)))
    })
}
