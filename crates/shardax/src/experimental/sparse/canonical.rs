//! Operations on the stored elements: sorting, adding duplicates, transposing, summing along dimensions.

use super::bcoo::{BCOO, bounds, column_arrays, columns, per_element};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::{AtCaller, Result, err};
use crate::ops::lax;
use crate::ops::numpy::{filled, size_or_count, stack, where_};
use crate::ops::primitive::composite::composite;
use crate::shape::normalize_axis;

impl BCOO {
    /// Sorts the stored elements by their indices. Elements with equal indices keep their order.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::sparse::BCOO;
    /// let m = BCOO::new(array([1.0f32, 2.0]), array([[1, 0], [0, 1]]), [2, 2])?.sort_indices()?;
    /// assert_eq!(m.data.to_vec::<f32>()?, [2.0, 1.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the shapes of the parts do not match each other.
    #[track_caller]
    pub fn sort_indices(&self) -> Result<BCOO> {
        let sorted = at_caller(|| {
            self.check()?;
            composite("bcoo_sort_indices", (), 2, &[self.data.clone(), self.indices.clone()], |_, args| {
                let (indices, order) = sorted_rows(&args[1])?;
                Ok(vec![args[0].get(order), indices])
            })
        });
        BCOO::from_parts(sorted.at_caller()?, self.shape.clone())
    }

    /// Sorts the indices, adds elements with equal indices, and removes stored zeros.
    ///
    /// If you pass an `nse`, the result has exactly that many elements: missing ones are padded, and excess ones are
    /// dropped. With `None` the elements are counted, which waits for their values. A removed zero has the gradient zero;
    /// [`bcoo_sum_duplicates`] keeps zeros instead.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::sparse::BCOO;
    /// let m = BCOO::new(array([1.0f32, 2.0, 3.0]), array([[1], [0], [1]]), [2])?.sum_duplicates(None)?;
    /// assert_eq!(m.data.to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// You must pass an `nse` inside of `jit`, `vmap` and `grad`, because values are unknown there.
    ///
    /// # Errors
    /// Returns an error if the shapes of the parts do not match each other, or if `nse` is `None` while the array is
    /// traced.
    #[track_caller]
    pub fn sum_duplicates(&self, nse: impl Into<Option<usize>>) -> Result<BCOO> {
        bcoo_eliminate_zeros(self, nse)
    }

    /// Permutes the dimensions into this order. An empty list reverses all dimensions.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::sparse::BCOO;
    /// let m = BCOO::fromdense(array([[0.0f32, 2.0, 0.0], [1.0, 0.0, 4.0]]), None)?;
    /// assert_eq!(m.transpose(&[])?.shape(), [3, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error for an order that is not a permutation, and for one that exchanges sparse and dense dimensions.
    #[track_caller]
    pub fn transpose(&self, axes: &[i32]) -> Result<BCOO> {
        let reversed: Vec<i32> = (0..self.ndim() as i32).rev().collect();
        let axes = if axes.is_empty() { &reversed } else { axes };
        at_caller(|| {
            self.check()?;
            let order = distinct_axes(axes, self.ndim())?;
            let n = self.n_sparse();
            if order.len() != self.ndim() || order.iter().take(n).any(|&d| d >= n) {
                return Err(err!(
                    Value,
                    "transpose of a sparse array of {} dimensions, {n} of them sparse, got the order {axes:?}",
                    self.ndim()
                )
                .help("name each dimension only once, and the sparse dimensions before the dense ones"));
            }
            let (sparse, dense) = order.split_at(n);
            let columns = column_arrays(&self.indices);
            let indices = match n {
                0 => self.indices.clone(),
                _ => stack(sparse.iter().map(|&d| &columns[d]), 1),
            };
            // The first dimension of the data counts the stored elements.
            let data_order: Vec<usize> = std::iter::once(0).chain(dense.iter().map(|d| d - n + 1)).collect();
            let shape = order.iter().map(|&d| self.shape[d]).collect();
            BCOO::from_parts(vec![lax::transpose(&self.data, &data_order), indices], shape)
        })
        .at_caller()
    }

    /// Reverses all dimensions; see [`transpose`](Self::transpose).
    ///
    /// # Errors
    /// Returns an error if sparse dimensions would come after dense ones, or if the shapes of the parts do not match
    /// each other.
    #[track_caller]
    pub fn t(&self) -> Result<BCOO> {
        self.transpose(&[])
    }

    /// Sums along these dimensions, or along all for an empty list. The result is sparse, and has duplicates where
    /// elements share their remaining indices.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::sparse::BCOO;
    /// let m = BCOO::fromdense(array([[0.0f32, 2.0, 0.0], [1.0, 0.0, 4.0]]), None)?;
    /// assert_eq!(m.sum(&[1])?.todense().to_vec::<f32>()?, [2.0, 5.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// Elements whose index is out of range along a summed dimension are not part of the sum.
    ///
    /// # Errors
    /// Returns an error for a dimension that the array does not have.
    #[track_caller]
    pub fn sum(&self, axes: &[i32]) -> Result<BCOO> {
        let every_axis: Vec<i32> = (0..self.ndim() as i32).collect();
        let axes = if axes.is_empty() { &every_axis } else { axes };
        at_caller(|| {
            self.check()?;
            let axes = distinct_axes(axes, self.ndim())?;
            let n = self.n_sparse();
            let dense: Vec<i32> = axes.iter().filter(|&&d| d >= n).map(|&d| (d - n + 1) as i32).collect();
            let data = if dense.is_empty() { self.data.clone() } else { self.data.sum(dense.as_slice()) };
            // The result has no index along a summed sparse dimension, so padding along it must become zero here.
            let summed = (0..n).filter(|d| axes.contains(d));
            let data = match columns_in_range(&self.indices, &self.shape, summed) {
                Some(in_range) => where_(per_element(&in_range, data.ndim()), &data, 0),
                None => data,
            };
            let columns = column_arrays(&self.indices);
            let sparse: Vec<usize> = (0..n).filter(|d| !axes.contains(d)).collect();
            let indices = if sparse.is_empty() {
                filled(&[self.nse(), 0], Scalar::Int(0), self.indices.dtype())
            } else {
                stack(sparse.iter().map(|&d| &columns[d]), 1)
            };
            let shape = (0..self.ndim()).filter(|d| !axes.contains(d)).map(|d| self.shape[d]).collect();
            BCOO::from_parts(vec![data, indices], shape)
        })
        .at_caller()
    }
}

/// Normalizes axes, and checks that each is named once.
fn distinct_axes(axes: &[i32], ndim: usize) -> Result<Vec<usize>> {
    let dims: Vec<usize> = axes.iter().map(|&d| normalize_axis(d as isize, ndim)).collect::<Result<_>>()?;
    if dims.iter().enumerate().any(|(i, d)| dims[..i].contains(d)) {
        Err(err!(Value, "the dimensions {axes:?} of a sparse array name one twice")
            .help("name each dimension only once"))
    } else {
        Ok(dims)
    }
}

/// Returns `true` for each element whose indices along these dimensions are in range; `None` if there are no dimensions.
fn columns_in_range(indices: &Array, shape: &[usize], dims: impl Iterator<Item = usize>) -> Option<Array> {
    let columns = column_arrays(indices);
    dims.map(|d| {
        let size = bounds(&shape[d..=d], indices.dtype());
        columns[d].less(&size) & columns[d].greater_equal(if indices.dtype().is_signed() { -size } else { size * 0 })
    })
    .reduce(|a, b| a & b)
}

/// Adds elements with equal indices, and sorts the indices. Stored zeros are kept. [`BCOO::sum_duplicates`] explains `nse`.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::experimental::sparse::{BCOO, bcoo_sum_duplicates};
/// let m = BCOO::new(array([1.0f32, 0.0, 3.0]), array([[1], [0], [1]]), [2])?;
/// assert_eq!(bcoo_sum_duplicates(&m, 3)?.indices.to_vec::<i32>()?, [0, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// You must pass an `nse` inside of `jit`, `vmap` and `grad`, because values are unknown there.
///
/// # Errors
/// Returns an error if the shapes of the parts do not match each other, or if `nse` is `None` while the array is
/// traced.
#[track_caller]
pub fn bcoo_sum_duplicates(m: &BCOO, nse: impl Into<Option<usize>>) -> Result<BCOO> {
    let nse = nse.into();
    at_caller(|| {
        m.check()?;
        merge_duplicates(m, nse)
    })
    .at_caller()
}

/// Removes stored zeros, adds elements with equal indices, and sorts the indices, like [`BCOO::sum_duplicates`].
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::experimental::sparse::{BCOO, bcoo_eliminate_zeros};
/// let m = BCOO::new(array([1.0f32, 0.0, 3.0]), array([[1], [0], [2]]), [3])?;
/// assert_eq!(bcoo_eliminate_zeros(&m, None)?.nse(), 2);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the shapes of the parts do not match each other, or if `nse` is `None` while the array is
/// traced.
#[track_caller]
pub fn bcoo_eliminate_zeros(m: &BCOO, nse: impl Into<Option<usize>>) -> Result<BCOO> {
    let nse = nse.into();
    at_caller(|| {
        m.check()?;
        let dense: Vec<i32> = (1..m.data.ndim() as i32).collect();
        let is_zero = m.data.equal(0).all(dense.as_slice());
        let outside = bounds(&m.shape[..m.n_sparse()], m.indices.dtype());
        let indices = where_(per_element(&is_zero, 2), outside, &m.indices);
        merge_duplicates(&BCOO { indices, ..m.clone() }, nse)
    })
    .at_caller()
}

/// Adds elements with equal indices, and returns `nse` elements, or as many as there are different indices.
fn merge_duplicates(m: &BCOO, nse: Option<usize>) -> Result<BCOO> {
    let sizes = m.shape[..m.n_sparse()].to_vec();
    let args = [m.indices.clone()];
    let groups = composite("bcoo_unique_indices", sizes, 3, &args, |sizes, args| unique_rows(&args[0], sizes))?;
    let [indices, group, count] = <[Array; 3]>::try_from(groups).map_err(|groups| {
        err!(Runtime, "internal error: unique indices are {} arrays instead of three; please report this", groups.len())
    })?;
    let nse = size_or_count("sum_duplicates", nse, || count)?;
    let indices = match nse.checked_sub(indices.shape()[0]) {
        None | Some(0) => lax::slice_in_dim(&indices, 0, nse, 0),
        Some(missing) => {
            let padding = bounds(&m.shape[..m.n_sparse()], indices.dtype());
            lax::concatenate(&[indices.clone(), padding.broadcast_to([missing, m.n_sparse()])], 0)
        }
    };
    let shape = [&[nse], &m.data.shape()[1..]].concat();
    let data = filled(&shape, Scalar::Int(0), m.data.dtype()).at(&group).add(&m.data);
    BCOO::from_parts(vec![data, indices], m.shape.clone())
}

/// Sorts the rows of a matrix of indices, and also returns the original position of each row.
fn sorted_rows(indices: &Array) -> Result<(Array, Array)> {
    let order = lax::iota(DType::I32, &indices.shape()[..1], 0);
    let mut columns = column_arrays(indices);
    let keys = columns.len();
    if keys == 0 {
        return Ok((indices.clone(), order));
    }
    columns.push(order.clone());
    let mut sorted = lax::sort(&columns, 0, keys)?;
    let order = sorted.pop().unwrap_or(order);
    Ok((stack(&sorted, 1), order))
}

/// Returns three arrays: the different rows of a matrix of indices, sorted and padded with indices out of range; the
/// position of each original row among them; and the number of different rows in range. All rows out of range count as
/// equal.
fn unique_rows(indices: &Array, sizes: &[usize]) -> Result<Vec<Array>> {
    let (nse, n) = (indices.shape()[0], sizes.len());
    if n == 0 {
        return Ok(vec![indices.clone(), filled_i32(0, &[nse]), filled_i32(1, &[])]);
    }
    if nse == 0 {
        return Ok(vec![indices.clone(), filled_i32(0, &[nse]), filled_i32(0, &[])]);
    }
    let outside = bounds(sizes, indices.dtype());
    let is_outside = indices.greater_equal(&outside).any(1);
    let indices = where_(per_element(&is_outside, 2), &outside, indices);
    let (sorted, order) = sorted_rows(&indices)?;
    let (before, after) = (lax::slice_in_dim(&sorted, 0, nse - 1, 0), lax::slice_in_dim(&sorted, 1, nse, 0));
    let is_new = before.not_equal(after).any(1).astype(DType::I32);
    // A sorted row that differs from the row before it starts a new group.
    let sorted_groups = lax::concatenate(&[filled_i32(0, &[1]), is_new], 0).cumsum(0);
    let rows = outside.broadcast_to([nse, n]).at(columns(&per_element(&sorted_groups, 2))).set(&sorted);
    let groups = filled_i32(0, &[nse]).at(&order).set(&sorted_groups);
    let count = sorted_groups.max(..) + 1 - is_outside.any(..).astype(DType::I32);
    Ok(vec![rows, groups, count])
}

/// Returns an int32 array whose elements all are `value`.
fn filled_i32(value: i128, shape: &[usize]) -> Array {
    filled(shape, Scalar::Int(value), DType::I32)
}
