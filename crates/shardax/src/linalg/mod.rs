//! Linear algebra, as in [`jax.numpy.linalg`](https://docs.jax.dev/en/latest/jax.numpy.linalg.html).
//!
//! The last two dimensions hold matrices, and the leading dimensions are batch dimensions. Integers and booleans are
//! converted to floating point. Half precision is decomposed in float32.
//!
//! ```
//! # use shardax::prelude::*;
//! let a = array([[2.0f32, 1.0], [1.0, 3.0]]);
//! let x = linalg::solve(&a, array([3.0f32, 5.0]));
//! assert!(allclose(a.matmul(&x), array([3.0f32, 5.0]), 1e-6, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

mod determinant;
pub(crate) mod eig;
pub(crate) mod factors;
mod norm;
pub(crate) mod polynomials;
mod products;
pub(crate) mod schur;
mod singular;
pub(crate) mod tridiagonal;

pub use determinant::{det, slogdet};
pub use eig::{eig, eigvals};
pub use norm::{NormOrder, matrix_norm, norm, norm_keepdims, vector_norm};
pub use products::{cond, multi_dot, tensorinv, tensorsolve};
pub use singular::{lstsq, matrix_rank, pinv, svd, svd_full, svdvals};
// The array API standard also has these functions in `linalg`.
pub use crate::ops::numpy::{cross, diagonal, matmul, matrix_transpose, outer, tensordot, trace, vecdot};

use crate::core::array::Array;
use crate::core::program::trace::{at_caller, or_failed};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::numpy::{promote_dtypes, to_inexact};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::{composite, composite1};
use crate::ops::primitive::eigh::Eigh;
use crate::ops::primitive::lu::{Lu, Solve};
use crate::ops::primitive::matrix::{adjoint, eye_like, square, square_of_any};
use crate::ops::primitive::qr::Qr;
use crate::shape::broadcast_shapes;

/// Converts the operand to floating point or complex elements.
#[track_caller]
fn inexact(x: impl ArrayLike) -> Result<Array> {
    Ok(promote_dtypes(&[&x.into_array()], to_inexact)?.swap_remove(0))
}

/// Returns the two outputs, or two arrays that carry the error.
#[track_caller]
pub(crate) fn pair(outputs: Result<Vec<Array>>, like: &Array) -> (Array, Array) {
    match outputs.as_deref() {
        Ok([a, b]) => (a.clone(), b.clone()),
        Ok(outputs) => pair(
            Err(err!(
                Runtime,
                "internal error: a decomposition has {} results instead of two; please report this",
                outputs.len()
            )),
            like,
        ),
        Err(e) => {
            let failed = Array::from_result(Err(e.clone()), like);
            (failed.clone(), failed)
        }
    }
}

/// Computes the Cholesky decomposition: the lower triangular factor `l` with `l lᴴ = x`. See [`lax::cholesky`].
///
/// ```
/// # use shardax::prelude::*;
/// let l = linalg::cholesky(array([[4, 2], [2, 5]]));
/// assert_eq!(l.to_vec::<f32>()?, [2.0, 0.0, 1.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions, and for matrices that are not square.
#[track_caller]
pub fn cholesky(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    or_failed(&x, || Ok(lax::cholesky(&inexact(&x)?)))
}

/// Computes the QR decomposition `(q, r)` of matrices `[..., m, n]`, such that `q r = x`. With `k = min(m, n)`, `q` has
/// shape `[..., m, k]` and orthonormal columns, and `r` has shape `[..., k, n]` and is upper triangular.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]]);
/// let (q, r) = linalg::qr(&x);
/// assert_eq!((q.shape(), r.shape()), (&[3, 2][..], &[2, 2][..]));
/// assert!(allclose(q.matmul(&r), &x, 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions.
#[track_caller]
pub fn qr(x: impl ArrayLike) -> (Array, Array) {
    qr_with(x.into_array(), false)
}

/// Computes the QR decomposition with all `m` columns of `q`, which has shape `[..., m, m]`; `r` has shape `[..., m,
/// n]`. See [`qr`].
///
/// You cannot differentiate it if `m` is larger than `n`.
///
/// ```
/// # use shardax::prelude::*;
/// let (q, r) = linalg::qr_complete(ones([3, 2]));
/// assert_eq!((q.shape(), r.shape()), (&[3, 3][..], &[3, 2][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions.
#[track_caller]
pub fn qr_complete(x: impl ArrayLike) -> (Array, Array) {
    qr_with(x.into_array(), true)
}

#[track_caller]
fn qr_with(x: Array, full: bool) -> (Array, Array) {
    pair(at_caller(|| Ok(Qr { full }.apply(&inexact(&x)?).into_vec())), &x)
}

/// Computes the eigendecomposition `(w, v)` of Hermitian matrices `[..., n, n]`, such that `x v = v w`. The eigenvalues
/// `w`, of shape `[..., n]`, are real and ascending; the columns of `v`, of shape `[..., n, n]`, are the eigenvectors.
/// Their signs are not specified.
///
/// It decomposes the mean of `x` and its conjugate transpose. If eigenvalues are equal, gradients of eigenvectors are
/// NaN or infinite.
///
/// ```
/// # use shardax::prelude::*;
/// let (w, v) = linalg::eigh(array([[2.0f32, 1.0], [1.0, 2.0]]));
/// assert!(allclose(&w, array([1.0f32, 3.0]), 1e-5, 1e-5)?);
/// assert_eq!(v.shape(), [2, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions, and for matrices that are not square.
#[track_caller]
pub fn eigh(x: impl ArrayLike) -> (Array, Array) {
    let x = x.into_array();
    let outputs = at_caller(|| {
        let x = inexact(&x)?;
        square("eigh", &x.aval())?;
        composite("eigh_symmetrized", (), 2, &[x], |(), x| {
            let mut outs = Eigh.apply(&symmetrized(&x[0])).into_vec();
            outs.reverse();
            Ok(outs)
        })
    });
    pair(outputs, &x)
}

/// The mean of matrices and their conjugate transposes.
fn symmetrized(x: &Array) -> Array {
    (x + adjoint(x)) / 2
}

/// Computes the eigenvalues of Hermitian matrices; see [`eigh`].
///
/// ```
/// # use shardax::prelude::*;
/// let w = linalg::eigvalsh(array([[2.0f32, 0.0], [0.0, 1.0]]));
/// assert!(allclose(&w, array([1.0f32, 2.0]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn eigvalsh(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    or_failed(&x, || {
        let x = inexact(&x)?;
        square("eigvalsh", &x.aval())?;
        // Without a use of the vectors, they are not computed on CPU.
        composite1("eigvalsh", (), &[x], |(), x| Ok(vec![Eigh.apply(&symmetrized(&x[0]))[1].clone()]))
    })
}

/// Solves `a x = b` for square matrices `a` of shape `[..., n, n]`.
///
/// `b` is one vector `[n]` or matrices `[..., n, k]`, and the result has shape `[..., n]` or `[..., n, k]`. Leading
/// dimensions broadcast. The solution for a singular matrix is infinite or NaN.
///
/// ```
/// # use shardax::prelude::*;
/// let a = array([[1.0f32, 2.0], [3.0, 4.0]]);
/// assert!(allclose(linalg::solve(&a, array([5.0f32, 11.0])), array([1.0f32, 2.0]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions, for matrices that are not square, and for shapes that do
/// not fit.
#[track_caller]
pub fn solve(a: impl ArrayLike, b: impl ArrayLike) -> Array {
    let (a, b) = (a.into_array(), b.into_array());
    or_failed(&b, || {
        let args = promote_dtypes(&[&a, &b], to_inexact)?;
        let n = square("solve", &args[0].aval())?;
        let batch_dims = if b.ndim() == 1 { 0 } else { b.ndim().wrapping_sub(2) };
        let batch = (b.ndim() > 0 && b.shape()[batch_dims] == n)
            .then(|| broadcast_shapes(&[&a.shape()[..a.ndim() - 2], &b.shape()[..batch_dims]]))
            .flatten();
        if batch.is_none() {
            return Err(err!(
                Value,
                "solve got matrices {} and incompatible right-hand sides {}",
                a.type_name(),
                b.type_name()
            )
            .help(format!(
                "right-hand sides must have the shape [{n}], or [..., {n}, k] with leading dimensions that broadcast"
            )));
        }
        composite1("solve", (), &args, |(), args| solve_by_lu(&args[0], &args[1]))
    })
}

/// Solves by an LU decomposition. The factors have no gradient, because [`Solve`] differentiates with respect to `a`.
fn solve_by_lu(a: &Array, b: &Array) -> Result<Vec<Array>> {
    let rank = a.ndim();
    let factors = Lu.apply(&crate::ops::primitive::stop_gradient::stop_gradient(a.clone()));
    let columns = if b.ndim() == 1 { b.expand_dims(-1) } else { b.clone() };
    let batch = broadcast_shapes(&[&a.shape()[..rank - 2], &columns.shape()[..columns.ndim() - 2]]).unwrap_or_default();
    let (lu, permutation) = (broadcast_batch(&factors[0], &batch, 2), broadcast_batch(&factors[2], &batch, 1));
    let (a, columns) = (broadcast_batch(a, &batch, 2), broadcast_batch(&columns, &batch, 2));
    let x = Solve { transpose: false }.apply(&a, &lu, &permutation, &columns);
    Ok(vec![if b.ndim() == 1 { x.squeeze(-1) } else { x }])
}

/// Broadcasts the leading dimensions to `batch`, and keeps the last `kept_dims` dimensions.
fn broadcast_batch(x: &Array, batch: &[usize], kept_dims: usize) -> Array {
    x.broadcast_to([batch, &x.shape()[x.ndim() - kept_dims..]].concat())
}

/// Computes the inverses of square matrices `[..., n, n]`. The inverse of a singular matrix is infinite or NaN.
///
/// If you only multiply by the inverse, use [`solve`] instead, because it is faster and more accurate.
///
/// ```
/// # use shardax::prelude::*;
/// let x = linalg::inv(array([[2.0f32, 0.0], [0.0, 4.0]]));
/// assert_eq!(x.to_vec::<f32>()?, [0.5, 0.0, 0.0, 0.25]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions, and for matrices that are not square.
#[track_caller]
pub fn inv(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    or_failed(&x, || {
        let x = inexact(&x)?;
        square("inv", &x.aval())?;
        composite1("inv", (), &[x], |(), x| solve_by_lu(&x[0], &eye_like(&x[0], x[0].shape()[x[0].ndim() - 1])))
    })
}

/// Computes powers of square matrices `[..., n, n]`; a negative power is a power of the inverse. Integers stay integers
/// if the power is not negative.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(linalg::matrix_power(array([[1, 1], [0, 1]]), 5).to_vec::<i32>()?, [1, 5, 0, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions, and for matrices that are not square.
#[track_caller]
pub fn matrix_power(x: impl ArrayLike, n: i32) -> Array {
    let x = x.into_array();
    or_failed(&x, || {
        x.check()?;
        square_of_any("matrix_power", &x.aval())?;
        let base = if n < 0 { inv(&x) } else { x.clone() };
        base.check()?;
        composite1("matrix_power", n.unsigned_abs(), &[base], |n, x| Ok(vec![power_by_squaring(&x[0], *n)]))
    })
}

/// Computes the power from the squares of `x` for the bits of `n`.
fn power_by_squaring(x: &Array, n: u32) -> Array {
    let mut result: Option<Array> = None;
    let (mut square, mut bits) = (x.clone(), n);
    while bits > 0 {
        if bits & 1 == 1 {
            result = Some(result.map_or_else(|| square.clone(), |r| matmul(r, &square)));
        }
        bits >>= 1;
        if bits > 0 {
            square = matmul(&square, &square);
        }
    }
    result.unwrap_or_else(|| eye_like(x, x.shape()[x.ndim() - 1]))
}
