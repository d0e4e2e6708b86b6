//! Chains of products, condition numbers, and equations of tensors.

use super::norm::NormOrder;
use super::{inv, norm, solve, svdvals};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::numpy::{isnan, matmul, where_};
use crate::ops::operators::{ArrayLike, into_arrays};

/// The product of two or more matrices, in the order that takes the fewest operations. The first and the last may be
/// vectors.
///
/// ```
/// # use shardax::prelude::*;
/// let (a, b, c) = (ones([2, 30]), ones([30, 3]), ones(3));
/// assert_eq!(linalg::multi_dot([a, b, c]).to_vec::<f32>()?, [90.0, 90.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails for less than two arrays, others of other than two dimensions, and sizes that do not fit.
#[track_caller]
pub fn multi_dot(arrays: impl IntoIterator<Item = impl ArrayLike>) -> Array {
    let arrays = into_arrays(arrays);
    let like = arrays.first().cloned().unwrap_or_else(|| Array::from(0.0f32));
    let made = at_caller(|| {
        arrays.iter().try_for_each(Array::check)?;
        let last = arrays.len().wrapping_sub(1);
        let fits = |(i, x): (usize, &Array)| x.ndim() == 2 || (x.ndim() == 1 && (i == 0 || i == last));
        if arrays.len() < 2 || !arrays.iter().enumerate().all(fits) {
            let of: Vec<String> = arrays.iter().map(Array::type_name).collect();
            return Err(err!(
                Value,
                "multi_dot needs at least two matrices, of which the ends may be vectors, got {of:?}"
            )
            .help("multiply other arrays with `matmul`"));
        }
        Ok(chain(&arrays))
    });
    Array::from_result(made, &like)
}

/// The product of a chain, divided where that is cheapest.
fn chain(arrays: &[Array]) -> Array {
    let n = arrays.len();
    let rows = |x: &Array| if x.ndim() == 2 { x.shape()[0] } else { 1 };
    let mut sizes: Vec<f64> = arrays.iter().map(|x| rows(x) as f64).collect();
    // A vector at the front is a row, at the end a column.
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
            let at = |k: usize| costs[i][k].0 + costs[k + 1][j].0 + sizes[i] * sizes[k + 1] * sizes[j + 1];
            let best = (i..j).map(|k| (at(k), k)).min_by(|a, b| a.0.total_cmp(&b.0));
            costs[i][j] = best.unwrap_or((0.0, i));
        }
    }
    fn product(arrays: &[Array], costs: &[Vec<(f64, usize)>], i: usize, j: usize) -> Array {
        if i == j {
            return arrays[i].clone();
        }
        let k = costs[i][j].1;
        matmul(product(arrays, costs, i, k), product(arrays, costs, k + 1, j))
    }
    product(arrays, &costs, 0, n - 1)
}

/// The condition numbers of matrices `[..., m, n]`: the norm of each times that of its inverse; for `None` the largest
/// singular value over the smallest. Infinite for singular matrices.
///
/// ```
/// # use shardax::prelude::*;
/// assert!(allclose(linalg::cond(array([[2.0f32, 0.0], [0.0, 4.0]]), None), 2.0f32, 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails for less than two dimensions; with an order for matrices that are not square.
#[track_caller]
pub fn cond(x: impl ArrayLike, p: impl Into<Option<NormOrder>>) -> Array {
    let (x, p) = (x.into_array(), p.into());
    let made = at_caller(|| {
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
        let is_own = isnan(&x).any([-2, -1]);
        Ok(where_(isnan(&value) & !is_own, f64::INFINITY, value))
    });
    Array::from_result(made, &x)
}

/// The inverse of a tensor as a linear map from its last dimensions, from `ind` on, to its first ones.
///
/// ```
/// # use shardax::prelude::*;
/// let x = linalg::tensorinv(eye(6).reshape([2, 3, 6]), 2);
/// assert_eq!(x.shape(), [6, 2, 3]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails unless both groups of dimensions have the same number of elements.
#[track_caller]
pub fn tensorinv(a: impl ArrayLike, ind: usize) -> Array {
    let a = a.into_array();
    let made = at_caller(|| {
        a.check()?;
        let (first, last) = a.shape().split_at(ind.min(a.ndim()));
        let (m, n): (usize, usize) = (first.iter().product(), last.iter().product());
        if m != n || ind == 0 {
            return Err(err!(
                Value,
                "tensorinv of {} at ind={ind} is of no square matrix: {m} elements before, {n} from there",
                a.type_name()
            )
            .help("give a tensor that is a square matrix of two groups of dimensions"));
        }
        let shape = [last, first].concat();
        Ok(lax::reshape(&inv(lax::reshape(&a, &[m, n])), &shape))
    });
    Array::from_result(made, &a)
}

/// The solution `x` of `tensordot(a, x, x.ndim()) = b`.
///
/// ```
/// # use shardax::prelude::*;
/// let a = (eye(6) * 2).reshape([2, 3, 6]);
/// assert_eq!(linalg::tensorsolve(a, ones([2, 3])).to_vec::<f32>()?, [0.5; 6]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails unless the dimensions of `b` are the first of `a`, and the others have as many elements.
#[track_caller]
pub fn tensorsolve(a: impl ArrayLike, b: impl ArrayLike) -> Array {
    let (a, b) = (a.into_array(), b.into_array());
    let made: Result<Array> = at_caller(|| {
        a.check()?;
        b.check()?;
        let rest = a.shape().get(b.ndim()..).unwrap_or_default();
        let n: usize = rest.iter().product();
        if !a.shape().starts_with(b.shape()) || n != b.size() {
            return Err(err!(Value, "tensorsolve got incompatible a {} and b {}", a.type_name(), b.type_name())
                .help("the first dimensions of `a` are those of `b`, and the others have as many elements"));
        }
        Ok(lax::reshape(&solve(lax::reshape(&a, &[n, n]), b.ravel()), rest))
    });
    Array::from_result(made, &b)
}
