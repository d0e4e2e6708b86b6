//! Decompositions and triangular solves that programs know as primitives; `lax::linalg` of `lib.rs` describes them.

use crate::core::array::Array;
use crate::core::program::trace::{at_caller, or_failed};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::cholesky::Cholesky;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::lu::Lu;
use crate::ops::primitive::matrix::{adjoint, square};
use crate::ops::primitive::qr::Qr;
use crate::ops::primitive::triangular_solve::{Op, TriangularSolve};
use crate::ops::primitive::unary::conj;

pub use super::tridiagonal::tridiagonal_solve;

/// Returns the Cholesky factor of positive definite matrices `[..., n, n]`: the lower triangular `l` with `l lᴴ = x`,
/// which is zero above the diagonal.
///
/// Decomposes the mean of `x` and its conjugate transpose. The result is NaN for a matrix that is not positive
/// definite.
///
/// ```
/// # use shardax::prelude::*;
/// let l = lax::cholesky(&array([[4.0f32, 2.0], [2.0, 5.0]]));
/// assert_eq!(l.to_vec::<f32>()?, [2.0, 0.0, 1.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for integers, less than two dimensions, and matrices that are not square.
#[track_caller]
pub fn cholesky(x: impl ArrayLike) -> Array {
    let x = &x.into_array();
    or_failed(x, || {
        x.check()?;
        square("cholesky", &x.aval())?;
        composite1("cholesky_symmetrized", (), std::slice::from_ref(x), |(), x| {
            Ok(vec![Cholesky.apply(&((&x[0] + adjoint(&x[0])) / 2))])
        })
    })
}

/// Options of [`triangular_solve`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Triangular {
    /// Solves `a x = b` instead of `x a = b`.
    pub left_side: bool,
    /// Uses the lower triangle instead of the upper triangle. The other triangle is not read.
    pub lower: bool,
    /// Transposes `a`.
    pub transpose_a: bool,
    /// Conjugates `a`.
    pub conjugate_a: bool,
    /// Assumes a diagonal of ones, which is not read.
    pub unit_diagonal: bool,
}

/// Solves `x a = b`, or `a x = b`, for triangular matrices `a`.
///
/// `a` is `[..., n, n]`. `b` and the result are `[..., k, n]`, or `[..., n, k]` with `a` on the left, and have the
/// leading dimensions and the dtype of `a`. A zero on the diagonal results in infinity or NaN.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::lax::Triangular;
/// let (a, b) = (array([[2.0f32, 0.0], [1.0, 4.0]]), array([[4.0f32], [10.0]]));
/// let x = lax::triangular_solve(&a, &b, Triangular { left_side: true, lower: true, ..Default::default() });
/// assert_eq!(x.to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for integers, different dtypes, and shapes that do not fit.
#[track_caller]
pub fn triangular_solve(a: impl ArrayLike, b: impl ArrayLike, options: Triangular) -> Array {
    let (a, b) = (&a.into_array(), &b.into_array());
    let Triangular { left_side, lower, transpose_a, conjugate_a, unit_diagonal } = options;
    at_caller(|| {
        let a = if conjugate_a && !transpose_a { &conj(a) } else { a };
        let op = match (transpose_a, conjugate_a) {
            (false, _) => Op::Plain,
            (true, false) => Op::Transpose,
            (true, true) => Op::Adjoint,
        };
        TriangularSolve { left_side, lower, op, unit_diagonal }.apply(a, b)
    })
}

/// Returns the LU decomposition `(lu, pivots, permutation)` of matrices `[..., m, n]`, with `x[permutation] = l u`.
///
/// `lu` has the shape of `x`. Its upper triangle is `u`; below the diagonal is `l`, whose diagonal is ones and not
/// stored. `pivots`, int32 `[..., min(m, n)]`, has the row with which each row was exchanged, in order. `permutation`,
/// int32 `[..., m]`, is the order of the rows after all exchanges.
///
/// ```
/// # use shardax::prelude::*;
/// let (lu, pivots, permutation) = lax::linalg::lu(&array([[1.0f32, 2.0], [4.0, 4.0]]));
/// assert_eq!(lu.to_vec::<f32>()?, [4.0, 4.0, 0.25, 1.0]);
/// assert_eq!(pivots.to_vec::<i32>()?, [1, 1]);
/// assert_eq!(permutation.to_vec::<i32>()?, [1, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for integers, and less than two dimensions.
#[track_caller]
pub fn lu(x: impl ArrayLike) -> (Array, Array, Array) {
    let x = &x.into_array();
    let outs = Lu.apply(x);
    (outs[0].clone(), outs[1].clone(), outs[2].clone())
}

/// The size of the factors of [`qr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QrMode {
    /// `min(m, n)` columns of `q` (JAX's `full_matrices=False`).
    Reduced,
    /// All columns of `q`, a square matrix (JAX's `full_matrices=True`).
    Complete,
}

/// Returns the QR decomposition `(q, r)` with `q r = x`, for matrices `[..., m, n]`: orthonormal columns in `q`, `r`
/// upper triangular.
///
/// [`QrMode::Complete`] gives `q` as `[..., m, m]` and `r` as `[..., m, n]`; [`QrMode::Reduced`], with the smaller of
/// the two sizes as `k`, `q` as `[..., m, k]` and `r` as `[..., k, n]`. The diagonal of `r` is real, but not
/// necessarily positive.
///
/// ```
/// # use shardax::prelude::*;
/// let (q, r) = lax::linalg::qr(&array([[3.0f32], [4.0]]), lax::linalg::QrMode::Reduced);
/// assert!(allclose(&q * &r, array([[3.0f32], [4.0]]), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for integers, and less than two dimensions; and if the complete decomposition of a tall
/// matrix is differentiated.
#[track_caller]
pub fn qr(x: impl ArrayLike, mode: QrMode) -> (Array, Array) {
    let x = &x.into_array();
    let outs = Qr { full: mode == QrMode::Complete }.apply(x);
    (outs[0].clone(), outs[1].clone())
}
