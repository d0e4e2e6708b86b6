//! Chains of products, condition numbers, and linear equations of tensors.

use super::norm::NormOrder;
use super::{inv, norm, solve, svdvals};
use crate::core::array::Array;
use crate::core::program::trace::{at_caller, or_failed};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::numpy::{isnan, matmul, where_};
use crate::ops::operators::{ArrayLike, IntoArrays};

/// Multiplies two or more matrices in the order that needs the fewest operations. The first and the last array can be
/// vectors.
///
/// ```
/// # use shardax::prelude::*;
/// let (a, b, c) = (ones([2, 30]), ones([30, 3]), ones(3));
/// assert_eq!(linalg::multi_dot([a, b, c]).to_vec::<f32>()?, [90.0, 90.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two arrays, for arrays between the ends that are not matrices, and for
/// sizes that do not fit.
#[track_caller]
pub fn multi_dot<Form>(arrays: impl IntoArrays<Form>) -> Array {
    let arrays = arrays.into_arrays();
    let like = arrays.first().cloned().unwrap_or_else(|| Array::from(0.0f32));
    or_failed(&like, || {
        arrays.iter().try_for_each(Array::check)?;
        let count = arrays.len();
        let mut ranks = arrays.iter().enumerate().map(|(i, x)| (x.ndim(), i == 0 || i + 1 == count));
        if count < 2 || !ranks.all(|(rank, is_end)| rank == 2 || (rank == 1 && is_end)) {
            let types: Vec<String> = arrays.iter().map(Array::type_name).collect();
            return Err(err!(
                Value,
                "multi_dot needs at least two matrices, and only the first and the last can be vectors, got {types:?}"
            )
            .help("multiply other arrays with `matmul`"));
        }
        Ok(multiply_chain(&arrays))
    })
}

/// Multiplies a chain of matrices. `costs[i][j]` is the smallest number of operations for the matrices from `i` to `j`, and
/// the place where this product must be divided; it follows from the costs of shorter chains.
fn multiply_chain(arrays: &[Array]) -> Array {
    let n = arrays.len();
    // Matrix `i` is `[sizes[i], sizes[i + 1]]`. A vector at the front is a row, and a vector at the end is a column.
    let rows = arrays.iter().map(|x| if x.ndim() == 2 { x.shape()[0] } else { 1 });
    let mut sizes: Vec<f64> = rows.map(|rows| rows as f64).collect();
    if arrays[n - 1].ndim() == 1 {
        sizes[n - 1] = arrays[n - 1].size() as f64;
        sizes.push(1.0);
    } else {
        sizes.push(arrays[n - 1].shape()[1] as f64);
    }
    let mut costs = vec![vec![(0.0, 0); n]; n];
    for length in 1..n {
        for i in 0..n - length {
            let j = i + length;
            let divisions =
                (i..j).map(|k| (costs[i][k].0 + costs[k + 1][j].0 + sizes[i] * sizes[k + 1] * sizes[j + 1], k));
            let cheapest = divisions.min_by(|a, b| a.0.total_cmp(&b.0));
            costs[i][j] = cheapest.unwrap_or((0.0, i));
        }
    }
    multiply_range(arrays, &costs, 0, n - 1)
}

/// Multiplies the matrices from `i` to `j` as the costs say.
fn multiply_range(arrays: &[Array], costs: &[Vec<(f64, usize)>], i: usize, j: usize) -> Array {
    if i == j {
        return arrays[i].clone();
    }
    let k = costs[i][j].1;
    matmul(multiply_range(arrays, costs, i, k), multiply_range(arrays, costs, k + 1, j))
}

/// Computes the condition numbers of matrices `[..., m, n]`: the norm of the matrix times the norm of its inverse. For
/// `None` it is the largest singular value divided by the smallest. The condition number of a singular matrix is
/// infinite.
///
/// ```
/// # use shardax::prelude::*;
/// assert!(allclose(linalg::cond(array([[2.0f32, 0.0], [0.0, 4.0]]), None), 2.0f32, 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions. If you pass an order, it also fails for matrices that are
/// not square.
#[track_caller]
pub fn cond(x: impl ArrayLike, p: impl Into<Option<NormOrder>>) -> Array {
    let (x, p) = (x.into_array(), p.into());
    or_failed(&x, || {
        x.check()?;
        let value = match p {
            None => {
                let s = svdvals(&x);
                s.check()?;
                s.take(0, -1) / s.take(-1, -1)
            }
            Some(p) => norm(&x, p, [-2, -1]) * norm(inv(&x), p, [-2, -1]),
        };
        value.check()?;
        // A NaN that does not come from the matrix comes from the inverse of a singular matrix.
        let has_nan = isnan(&x).any([-2, -1]);
        Ok(where_(isnan(&value) & !has_nan, f64::INFINITY, value))
    })
}

/// Inverts a tensor as a linear map from its dimensions `ind..` to its dimensions `..ind`.
///
/// ```
/// # use shardax::prelude::*;
/// let x = linalg::tensorinv(eye(6).reshape([2, 3, 6]), 2);
/// assert_eq!(x.shape(), [6, 2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Both groups of dimensions must have the same number of elements; otherwise it fails.
#[track_caller]
pub fn tensorinv(a: impl ArrayLike, ind: usize) -> Array {
    let a = a.into_array();
    or_failed(&a, || {
        a.check()?;
        let (rows, columns) = a.shape().split_at(ind.min(a.ndim()));
        let (m, n): (usize, usize) = (rows.iter().product(), columns.iter().product());
        if m != n || ind == 0 {
            return Err(err!(
                Value,
                "tensorinv of {} at ind={ind} is not a square matrix: there are {m} elements before `ind` and {n} from it on",
                a.type_name()
            )
            .help("choose `ind` so that the dimensions before it and the others have the same number of elements"));
        }
        let shape = [columns, rows].concat();
        Ok(lax::reshape(&inv(lax::reshape(&a, &[m, n])), &shape))
    })
}

/// Solves `tensordot(a, x, x.ndim()) = b` for `x`.
///
/// ```
/// # use shardax::prelude::*;
/// let a = (eye(6) * 2).reshape([2, 3, 6]);
/// assert_eq!(linalg::tensorsolve(a, ones([2, 3])).to_vec::<f32>()?, [0.5; 6]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// The first dimensions of `a` must be the dimensions of `b`, and its other dimensions must have the same number of elements;
/// otherwise it fails.
#[track_caller]
pub fn tensorsolve(a: impl ArrayLike, b: impl ArrayLike) -> Array {
    let (a, b) = (a.into_array(), b.into_array());
    let solution: Result<Array> = at_caller(|| {
        a.check()?;
        b.check()?;
        let solution_shape = a.shape().get(b.ndim()..).unwrap_or_default();
        let n: usize = solution_shape.iter().product();
        if !a.shape().starts_with(b.shape()) || n != b.size() {
            return Err(err!(Value, "tensorsolve got incompatible a {} and b {}", a.type_name(), b.type_name())
                .help("the shape of `a` must start with the shape of `b`, and its other dimensions must have the same number of elements as `b`"));
        }
        Ok(lax::reshape(&solve(lax::reshape(&a, &[n, n]), b.ravel()), solution_shape))
    });
    Array::from_result(solution, &b)
}
