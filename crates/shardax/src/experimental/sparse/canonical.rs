//! The order of stored elements: sorting, adding duplicates, transposing, adding along dimensions.

use super::bcoo::{BCOO, bounds, column_arrays, columns, per_element};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::{AtCaller, Result, err};
use crate::ops::lax;
use crate::ops::numpy::{filled, given_or_counted, stack, where_};
use crate::ops::primitive::composite::composite;
use crate::shape::normalize_axis;

impl BCOO {
    /// An equal array with its stored elements in the order of their indices. Equal indices keep their order.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::sparse::BCOO;
    /// let m = BCOO::new(array([1.0f32, 2.0]), array([[1, 0], [0, 1]]), [2, 2])?.sort_indices()?;
    /// assert_eq!(m.data.to_vec::<f32>()?, [2.0, 1.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn sort_indices(&self) -> Result<BCOO> {
        let sorted = at_caller(|| {
            self.check()?;
            composite("bcoo_sort_indices", (), 2, &[self.data.clone(), self.indices.clone()], |_, args| {
                let (indices, order) = sorted_rows(&args[1])?;
                Ok(vec![args[0].get(order), indices])
            })
        });
        BCOO::of_parts(sorted.at_caller()?, self.shape.clone())
    }

    /// An equal array with sorted indices, each of them once, and without stored zeros. With an `nse`, that many elements
    /// are stored: fewer are padded, more are dropped. Without one (`None`) as many as there are, which waits for the
    /// values. The gradient of a stored zero is zero; [`bcoo_sum_duplicates`] keeps zeros.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::sparse::BCOO;
    /// let m = BCOO::new(array([1.0f32, 2.0, 3.0]), array([[1], [0], [1]]), [2])?.sum_duplicates(None)?;
    /// assert_eq!(m.data.to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// Fails inside of `jit`, `vmap` and `grad` without an `nse`.
    #[track_caller]
    pub fn sum_duplicates(&self, nse: impl Into<Option<usize>>) -> Result<BCOO> {
        bcoo_eliminate_zeros(self, nse)
    }

    /// The array with its dimensions in this order; all of them, reversed, for an empty list.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::sparse::BCOO;
    /// let m = BCOO::fromdense(array([[0.0f32, 2.0, 0.0], [1.0, 0.0, 4.0]]), None)?;
    /// assert_eq!(m.transpose(&[])?.shape(), [3, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// Fails for an order that is not a permutation, and for one that exchanges sparse and dense dimensions.
    #[track_caller]
    pub fn transpose(&self, axes: &[i32]) -> Result<BCOO> {
        let reversed: Vec<i32> = (0..self.ndim() as i32).rev().collect();
        let axes = if axes.is_empty() { &reversed } else { axes };
        at_caller(|| {
            self.check()?;
            let order = normalized(axes, self.ndim())?;
            let n = self.n_sparse();
            if order.len() != self.ndim() || order.iter().take(n).any(|&d| d >= n) {
                return Err(err!(
                    Value,
                    "transpose of a sparse array of {} dimensions, {n} of them sparse, got the order {axes:?}",
                    self.ndim()
                )
                .help("name each dimension once, the sparse ones first"));
            }
            let (sparse, dense) = order.split_at(n);
            let columns = column_arrays(&self.indices);
            let indices = match n {
                0 => self.indices.clone(),
                _ => stack(sparse.iter().map(|&d| &columns[d]), 1),
            };
            let data: Vec<usize> = std::iter::once(0).chain(dense.iter().map(|d| d - n + 1)).collect();
            let shape = order.iter().map(|&d| self.shape[d]).collect();
            BCOO::of_parts(vec![lax::transpose(&self.data, &data), indices], shape)
        })
        .at_caller()
    }

    /// The transpose of all dimensions; see [`transpose`](Self::transpose).
    #[track_caller]
    pub fn t(&self) -> Result<BCOO> {
        self.transpose(&[])
    }

    /// The sum along these dimensions, as a sparse array: elements with the same remaining indices are duplicates. An
    /// empty list stands for all dimensions.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::experimental::sparse::BCOO;
    /// let m = BCOO::fromdense(array([[0.0f32, 2.0, 0.0], [1.0, 0.0, 4.0]]), None)?;
    /// assert_eq!(m.sum(&[1])?.todense().to_vec::<f32>()?, [2.0, 5.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// Fails for a dimension that the array does not have. Elements whose index is out of range along a summed dimension
    /// are not part of the sum.
    #[track_caller]
    pub fn sum(&self, axes: &[i32]) -> Result<BCOO> {
        let all: Vec<i32> = (0..self.ndim() as i32).collect();
        let axes = if axes.is_empty() { &all } else { axes };
        at_caller(|| {
            self.check()?;
            let axes = normalized(axes, self.ndim())?;
            let n = self.n_sparse();
            let left = |from: usize, to: usize| (from..to).filter(|d| !axes.contains(d)).collect::<Vec<_>>();
            let dense: Vec<i32> = axes.iter().filter(|&&d| d >= n).map(|&d| (d - n + 1) as i32).collect();
            let data = if dense.is_empty() { self.data.clone() } else { self.data.sum(dense.as_slice()) };
            let is_summed = |d: &usize| axes.contains(d);
            let inside = columns_inside(&self.indices, &self.shape, (0..n).filter(is_summed));
            let data = match inside {
                Some(inside) => where_(per_element(&inside, data.ndim()), &data, 0),
                None => data,
            };
            let (sparse, columns) = (left(0, n), column_arrays(&self.indices));
            let indices = match sparse.is_empty() {
                true => filled(&[self.nse(), 0], Scalar::Int(0), self.indices.dtype()),
                false => stack(sparse.iter().map(|&d| &columns[d]), 1),
            };
            let shape = left(0, self.ndim()).iter().map(|&d| self.shape[d]).collect();
            BCOO::of_parts(vec![data, indices], shape)
        })
        .at_caller()
    }
}

/// The dimensions, each of them once.
fn normalized(axes: &[i32], ndim: usize) -> Result<Vec<usize>> {
    let made: Vec<usize> = axes.iter().map(|&d| normalize_axis(d as isize, ndim)).collect::<Result<_>>()?;
    match made.iter().enumerate().any(|(i, d)| made[..i].contains(d)) {
        true => {
            Err(err!(Value, "the dimensions {axes:?} of a sparse array name one twice")
                .help("name each dimension once"))
        }
        false => Ok(made),
    }
}

/// True where the indices along these dimensions are within range; `None` for no dimension.
fn columns_inside(indices: &Array, shape: &[usize], dims: impl Iterator<Item = usize>) -> Option<Array> {
    let columns = column_arrays(indices);
    let inside = |d: usize| {
        let size = bounds(&shape[d..=d], indices.dtype());
        columns[d].less(&size) & columns[d].greater_equal(if indices.dtype().is_signed() { -size } else { size * 0 })
    };
    dims.map(inside).reduce(|a, b| a & b)
}

/// Adds the elements with the same indices, and sorts these. Stored zeros are kept. For the number of elements see
/// [`BCOO::sum_duplicates`].
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::experimental::sparse::{BCOO, bcoo_sum_duplicates};
/// let m = BCOO::new(array([1.0f32, 0.0, 3.0]), array([[1], [0], [1]]), [2])?;
/// assert_eq!(bcoo_sum_duplicates(&m, 3)?.indices.to_vec::<i32>()?, [0, 1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails inside of `jit`, `vmap` and `grad` without an `nse`.
#[track_caller]
pub fn bcoo_sum_duplicates(m: &BCOO, nse: impl Into<Option<usize>>) -> Result<BCOO> {
    let nse = nse.into();
    at_caller(|| {
        m.check()?;
        summed(m, nse)
    })
    .at_caller()
}

/// Removes stored zeros, adds the elements with the same indices, and sorts these; as [`BCOO::sum_duplicates`].
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::experimental::sparse::{BCOO, bcoo_eliminate_zeros};
/// let m = BCOO::new(array([1.0f32, 0.0, 3.0]), array([[1], [0], [2]]), [3])?;
/// assert_eq!(bcoo_eliminate_zeros(&m, None)?.nse(), 2);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn bcoo_eliminate_zeros(m: &BCOO, nse: impl Into<Option<usize>>) -> Result<BCOO> {
    let nse = nse.into();
    at_caller(|| {
        m.check()?;
        let dense: Vec<i32> = (1..m.data.ndim() as i32).collect();
        let is_zero = m.data.equal(0).all(dense.as_slice());
        let outside = bounds(&m.shape[..m.n_sparse()], m.indices.dtype());
        let indices = where_(per_element(&is_zero, 2), outside, &m.indices);
        summed(&BCOO { indices, ..m.clone() }, nse)
    })
    .at_caller()
}

fn summed(m: &BCOO, nse: Option<usize>) -> Result<BCOO> {
    let sizes = m.shape[..m.n_sparse()].to_vec();
    let args = [m.indices.clone()];
    let groups = composite("bcoo_unique_indices", sizes, 3, &args, |sizes, args| unique_rows(&args[0], sizes))?;
    let [indices, group, count] =
        <[Array; 3]>::try_from(groups).map_err(|_| err!(Runtime, "unique indices gave other results"))?;
    let nse = given_or_counted("sum_duplicates", nse, || count)?;
    let indices = match nse.checked_sub(indices.shape()[0]) {
        None | Some(0) => lax::slice_in_dim(&indices, 0, nse, 0),
        Some(more) => {
            let outside = bounds(&m.shape[..m.n_sparse()], indices.dtype());
            lax::concatenate(&[indices.clone(), outside.broadcast_to([more, m.n_sparse()])], 0)
        }
    };
    let shape = [&[nse], &m.data.shape()[1..]].concat();
    let data = filled(&shape, Scalar::Int(0), m.data.dtype()).at(&group).add(&m.data);
    BCOO::of_parts(vec![data, indices], m.shape.clone())
}

/// The rows of a matrix of indices in ascending order, and where each was.
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

/// The different rows of a matrix of indices, ascending and padded with indices out of range; the number of each row among
/// them; and how many of them are in range. All rows out of range count as one.
fn unique_rows(indices: &Array, sizes: &[usize]) -> Result<Vec<Array>> {
    let (nse, n) = (indices.shape()[0], sizes.len());
    let int = |value: i128, shape: &[usize]| filled(shape, Scalar::Int(value), DType::I32);
    if n == 0 {
        return Ok(vec![indices.clone(), int(0, &[nse]), int(1, &[])]);
    }
    if nse == 0 {
        return Ok(vec![indices.clone(), int(0, &[nse]), int(0, &[])]);
    }
    let outside = bounds(sizes, indices.dtype());
    let is_outside = indices.greater_equal(&outside).any(1);
    let indices = where_(per_element(&is_outside, 2), &outside, indices);
    let (sorted, order) = sorted_rows(&indices)?;
    let (before, after) = (lax::slice_in_dim(&sorted, 0, nse - 1, 0), lax::slice_in_dim(&sorted, 1, nse, 0));
    let is_new = before.not_equal(after).any(1).astype(DType::I32);
    let of_sorted = lax::concatenate(&[int(0, &[1]), is_new], 0).cumsum(0);
    let rows = outside.broadcast_to([nse, n]).at(columns(&per_element(&of_sorted, 2))).set(&sorted);
    let group = int(0, &[nse]).at(&order).set(&of_sorted);
    let count = of_sorted.max(..) + 1 - is_outside.any(..).astype(DType::I32);
    Ok(vec![rows, group, count])
}
