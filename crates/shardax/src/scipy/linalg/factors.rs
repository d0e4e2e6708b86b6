//! Factors of matrices in SciPy's form.

use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::ops::constants::eye_offset_dtype;
use crate::ops::index::Ellipsis;
use crate::ops::lax;
use crate::ops::numpy::{convert, promote_dtypes, to_inexact};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::matrix::adjoint;
use crate::rank_promotion;

/// Returns the Cholesky factor of positive definite matrices `[..., n, n]`: the lower triangular `l` with `l lᴴ = a` if
/// `lower`, otherwise the upper triangular `r` with `rᴴ r = a`, which is the default of SciPy.
///
/// Only the mean of `a` and its conjugate transpose is decomposed. The result is NaN for a matrix that is not positive definite.
///
/// ```
/// # use shardax::prelude::*;
/// let a = array([[4.0f32, 2.0], [2.0, 5.0]]);
/// let r = shardax::scipy::linalg::cholesky(&a, false);
/// assert_eq!(r.to_vec::<f32>()?, [2.0, 1.0, 0.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions, and matrices that are not square.
#[track_caller]
pub fn cholesky(a: impl ArrayLike, lower: bool) -> Array {
    let factor = crate::linalg::cholesky(a);
    or_failed(&factor, || {
        factor.check()?;
        Ok(if lower { factor.clone() } else { adjoint(&factor) })
    })
}

/// Returns the factors `(p, l, u)` of matrices `a` of shape `[..., m, n]`, with `p l u = a`: a real permutation `[..., m, m]`, a lower
/// triangle `[..., m, k]` with ones on the diagonal, and an upper triangle `[..., k, n]`, where `k` is the smaller of `m` and `n`.
///
/// ```
/// # use shardax::prelude::*;
/// let a = array([[1.0f32, 2.0], [4.0, 4.0]]);
/// let (p, l, u) = shardax::scipy::linalg::lu(&a);
/// assert_eq!(l.to_vec::<f32>()?, [1.0, 0.0, 0.25, 1.0]);
/// assert_eq!(u.to_vec::<f32>()?, [4.0, 4.0, 0.0, 1.0]);
/// assert_eq!(p.matmul(&l).matmul(&u).to_vec::<f32>()?, a.to_vec::<f32>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The results carry an error for less than two dimensions.
#[track_caller]
pub fn lu(a: impl ArrayLike) -> (Array, Array, Array) {
    let a = a.into_array();
    let a = or_failed(&a, || Ok(promote_dtypes(&[&a], to_inexact)?.remove(0)));
    let (packed, _, permutation) = lax::linalg::lu(&a);
    if let Err(e) = packed.check() {
        let failed = Array::from_result(Err(e), &a);
        return (failed.clone(), failed.clone(), failed);
    }
    let (rows, columns) = (a.shape()[a.ndim() - 2], a.shape()[a.ndim() - 1]);
    let size = rows.min(columns);
    let lower = packed.get((Ellipsis, .., ..size));
    let upper = packed.get((Ellipsis, ..size, ..));
    let _ranks = rank_promotion::allow();
    let ones = eye_offset_dtype(rows, size, 0, a.dtype());
    let rows = lax::iota_of_size(DType::I32, rows).expand_dims(1);
    let is_moved = rows.equal(permutation.expand_dims(-2));
    (convert(&is_moved, a.dtype().real(), false), lower.tril(-1) + ones, upper.triu(0))
}
