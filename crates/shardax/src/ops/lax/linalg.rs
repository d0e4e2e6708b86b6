//! Decompositions and triangular solves, close to the primitives like the rest of [`lax`](crate::lax).
//!
//! Matrices are in the last two dimensions; leading dimensions are batch dimensions, which the results have too. Dtypes are floating
//! point or complex; half precision is computed in float32. [`crate::linalg`] is built on these functions, and also converts integers.

use crate::core::array::Array;
use crate::core::program::trace::{at_caller, or_failed};
use crate::error::{Result, err};
use crate::ops::constants::zeros_like;
use crate::ops::control_flow::{ScanOptions, scan};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::cholesky::Cholesky;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::lu::Lu;
use crate::ops::primitive::matrix::{adjoint, square};
use crate::ops::primitive::qr::Qr;
use crate::ops::primitive::triangular_solve::{Op, TriangularSolve};
use crate::ops::primitive::unary::conj;

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

/// Solves `a x = b` for tridiagonal matrices with the diagonals `dl` (below), `d` and `du` (above), each `[..., n]`, and
/// `b` of `[..., n, k]`. The first element of `dl` and the last element of `du` are not read.
///
/// Uses Gaussian elimination without pivoting, in `n` sequential steps, which loses digits unless the matrix is
/// diagonally dominant or positive definite.
///
/// ```
/// # use shardax::prelude::*;
/// let (dl, d, du) = (array([0.0f32, 1.0, 1.0]), array([2.0f32, 2.0, 2.0]), array([1.0f32, 1.0, 0.0]));
/// let b = array([[4.0f32], [8.0], [8.0]]);
/// let x = lax::linalg::tridiagonal_solve(&dl, &d, &du, &b);
/// assert!(allclose(x, array([[1.0f32], [2.0], [3.0]]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for integers, different dtypes, and shapes that do not fit.
#[track_caller]
pub fn tridiagonal_solve(dl: impl ArrayLike, d: impl ArrayLike, du: impl ArrayLike, b: impl ArrayLike) -> Array {
    let args = [dl.into_array(), d.into_array(), du.into_array(), b.into_array()];
    or_failed(&args[3], || {
        args.iter().try_for_each(Array::check)?;
        check_tridiagonal(&args)?;
        composite1("tridiagonal_solve", (), &args, |(), args| Ok(vec![eliminate(args)?]))
    })
}

/// Returns an error unless the diagonals have one shape, which fits the right side, and all have one inexact dtype.
fn check_tridiagonal(args: &[Array; 4]) -> Result<()> {
    let [dl, d, du, b] = args;
    let types = args.iter().map(Array::type_name).collect::<Vec<_>>().join(", ");
    let fits = d.ndim() > 0 && b.ndim() == d.ndim() + 1 && b.shape()[..d.ndim()] == *d.shape();
    if !fits || dl.shape() != d.shape() || du.shape() != d.shape() {
        return Err(err!(
            Value,
            "tridiagonal_solve needs three diagonals [..., n] of one shape and a right side [..., n, k], got {types}"
        )
        .help("pad the diagonals to the size of the matrix, and pass a vector as `b.expand_dims(-1)`"));
    }
    if !d.dtype().is_inexact() || args.iter().any(|x| x.dtype() != d.dtype()) {
        return Err(err!(Type, "tridiagonal_solve needs one floating point or complex dtype, got {types}")
            .help("convert the arrays with `astype`"));
    }
    Ok(())
}

/// Eliminates the lower diagonal from the first row to the last, and substitutes backwards (the Thomas algorithm).
fn eliminate(args: &[Array]) -> Result<Array> {
    if args[3].size() == 0 {
        return Ok(args[3].clone());
    }
    let rank = args[1].ndim();
    // The rows come first, so that scans run over them; the diagonals broadcast over the columns of the right side.
    let [dl, d, du] = [&args[0], &args[1], &args[2]].map(|x| x.expand_dims(-1).moveaxis(rank as i32 - 1, 0));
    let b = args[3].moveaxis(rank as i32 - 1, 0);
    let first = (zeros_like(d.get(0)), zeros_like(b.get(0)));
    // The first row has no row above, whatever is stored there.
    let dl = dl.at(0).set(0);
    let (_, (upper, right)) = scan(eliminate_row, first.clone(), (dl, d, du, b))?;
    let upper = upper.at(-1).set(0);
    let (_, x) = ScanOptions::new().reverse(true).scan(substitute_row, first.1, (upper, right))?;
    Ok(x.moveaxis(0, rank as i32 - 1))
}

/// Eliminates the lower diagonal from a row, given the upper diagonal and the right side of the row above.
fn eliminate_row(
    (upper, right): (Array, Array),
    (dl, d, du, b): (Array, Array, Array, Array),
) -> ((Array, Array), (Array, Array)) {
    let pivot = d - &dl * upper;
    let (upper, right) = (du / &pivot, (b - dl * right) / pivot);
    ((upper.clone(), right.clone()), (upper, right))
}

/// Solves a row, given the solution of the row below.
fn substitute_row(next: Array, (upper, right): (Array, Array)) -> (Array, Array) {
    let x = right - upper * next;
    (x.clone(), x)
}
