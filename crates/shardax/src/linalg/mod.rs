//! Linear algebra, as in [`jax.numpy.linalg`](https://docs.jax.dev/en/latest/jax.numpy.linalg.html).
//!
//! Matrices are in the last two dimensions; the leading dimensions are batch dimensions.
//! Integers and booleans are converted to floating point; half precision is decomposed in float32.
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
mod norm;
pub(crate) mod polynomials;
mod products;
pub(crate) mod schur;
mod singular;

pub use determinant::{det, slogdet};
pub use eig::{eig, eigvals};
pub use norm::{NormOrder, norm, norm_keepdims};
pub use products::{cond, multi_dot, tensorinv, tensorsolve};
pub use singular::{lstsq, matrix_rank, pinv, svd, svd_full, svdvals};
// The array API has these here too.
pub use crate::ops::numpy::{cross, diagonal, outer, tensordot, trace, vecdot};

use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::numpy::{matmul, promote_dtypes, to_inexact};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::{composite, composite1};
use crate::ops::primitive::eigh::Eigh;
use crate::ops::primitive::lu::{Lu, Solve};
use crate::ops::primitive::matrix::{adjoint, eye_like, square, square_of_any};
use crate::ops::primitive::qr::Qr;
use crate::shape::broadcast_shapes;

/// The operand converted to floating point or complex elements.
#[track_caller]
fn inexact(x: impl ArrayLike) -> Result<Array> {
    Ok(promote_dtypes(&[&x.into_array()], to_inexact)?.swap_remove(0))
}

/// Two results, or two arrays that carry the error.
#[track_caller]
pub(crate) fn pair(made: Result<Vec<Array>>, like: &Array) -> (Array, Array) {
    match made.as_deref() {
        Ok([a, b]) => (a.clone(), b.clone()),
        Ok(_) => pair(Err(err!(Runtime, "a decomposition did not give two results")), like),
        Err(e) => {
            let failed = Array::from_result(Err(e.clone()), like);
            (failed.clone(), failed)
        }
    }
}

/// The lower triangular factor `l` with `l lᴴ = x`; see [`lax::cholesky`].
///
/// Fails for less than two dimensions, and matrices that are not square.
///
/// ```
/// # use shardax::prelude::*;
/// let l = linalg::cholesky(array([[4, 2], [2, 5]]));
/// assert_eq!(l.to_vec::<f32>()?, [2.0, 0.0, 1.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn cholesky(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    Array::from_result(at_caller(|| Ok(lax::cholesky(&inexact(&x)?))), &x)
}

/// The QR decomposition `(q, r)` of `[..., m, n]`, with `k = min(m, n)`: `q` of `[..., m, k]` with orthonormal columns,
/// and the upper triangular `r` of `[..., k, n]`, so that `q r = x`.
///
/// Fails for less than two dimensions.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]]);
/// let (q, r) = linalg::qr(&x);
/// assert_eq!((q.shape(), r.shape()), (&[3, 2][..], &[2, 2][..]));
/// assert!(allclose(q.matmul(&r), &x, 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn qr(x: impl ArrayLike) -> (Array, Array) {
    qr_with(x.into_array(), false)
}

/// [`qr`] with all `m` columns of `q`, which is `[..., m, m]`; `r` is `[..., m, n]`.
///
/// Fails for less than two dimensions. It cannot be differentiated where `m` is larger than `n`.
///
/// ```
/// # use shardax::prelude::*;
/// let (q, r) = linalg::qr_complete(ones([3, 2]));
/// assert_eq!((q.shape(), r.shape()), (&[3, 3][..], &[3, 2][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn qr_complete(x: impl ArrayLike) -> (Array, Array) {
    qr_with(x.into_array(), true)
}

#[track_caller]
fn qr_with(x: Array, full: bool) -> (Array, Array) {
    pair(at_caller(|| Ok(Qr { full }.apply(&inexact(&x)?).into_vec())), &x)
}

/// The eigendecomposition `(w, v)` of Hermitian matrices `[..., n, n]`: real eigenvalues in ascending order, `[...,
/// n]`, and eigenvectors as columns of `[..., n, n]`, so that `x v = v w`. Signs of eigenvectors are not specified.
///
/// Decomposes the mean of `x` and its conjugate transpose. For equal eigenvalues, gradients of eigenvectors are NaN
/// or infinite.
///
/// Fails for less than two dimensions, and matrices that are not square.
///
/// ```
/// # use shardax::prelude::*;
/// let (w, v) = linalg::eigh(array([[2.0f32, 1.0], [1.0, 2.0]]));
/// assert!(allclose(&w, array([1.0f32, 3.0]), 1e-5, 1e-5)?);
/// assert_eq!(v.shape(), [2, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn eigh(x: impl ArrayLike) -> (Array, Array) {
    let x = x.into_array();
    let made = at_caller(|| {
        let x = inexact(&x)?;
        square("eigh", &x.aval())?;
        composite("eigh_symmetrized", (), 2, &[x], |(), x| {
            let mut outs = Eigh.apply(&((&x[0] + adjoint(&x[0])) / 2)).into_vec();
            outs.reverse();
            Ok(outs)
        })
    });
    pair(made, &x)
}

/// The eigenvalues of Hermitian matrices; see [`eigh`].
///
/// ```
/// # use shardax::prelude::*;
/// let w = linalg::eigvalsh(array([[2.0f32, 0.0], [0.0, 1.0]]));
/// assert!(allclose(&w, array([1.0f32, 2.0]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn eigvalsh(x: impl ArrayLike) -> Array {
    eigh(x).0
}

/// The solution `x` of `a x = b`, for square matrices `a` of `[..., n, n]`.
///
/// `b` is one vector `[n]`, or matrices `[..., n, k]`; the result is `[..., n]`, or `[..., n, k]`. Leading dimensions
/// broadcast. A singular matrix gives infinity or NaN.
///
/// Fails for less than two dimensions, matrices that are not square, and shapes that do not fit.
///
/// ```
/// # use shardax::prelude::*;
/// let a = array([[1.0f32, 2.0], [3.0, 4.0]]);
/// assert!(allclose(linalg::solve(&a, array([5.0f32, 11.0])), array([1.0f32, 2.0]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn solve(a: impl ArrayLike, b: impl ArrayLike) -> Array {
    let (a, b) = (a.into_array(), b.into_array());
    let made = at_caller(|| {
        let args = promote_dtypes(&[&a, &b], to_inexact)?;
        let n = square("solve", &args[0].aval())?;
        let own = if b.ndim() == 1 { 0 } else { b.ndim().wrapping_sub(2) };
        let lead = (b.ndim() > 0 && b.shape()[own] == n)
            .then(|| broadcast_shapes(&[&a.shape()[..a.ndim() - 2], &b.shape()[..own]]))
            .flatten();
        if lead.is_none() {
            return Err(err!(
                Value,
                "solve got matrices {} and incompatible right-hand sides {}",
                a.type_name(),
                b.type_name()
            )
            .help(format!(
                "right-hand sides have the shape [{n}], or [..., {n}, k] with leading dimensions that broadcast"
            )));
        }
        composite1("solve", (), &args, |(), args| solve_traced(&args[0], &args[1]))
    });
    Array::from_result(made, &b)
}

fn solve_traced(a: &Array, b: &Array) -> Result<Vec<Array>> {
    let rank = a.ndim();
    let factors = Lu.apply(&crate::ops::primitive::stop_gradient::stop_gradient(a.clone()));
    let columns = if b.ndim() == 1 { b.expand_dims(-1) } else { b.clone() };
    let lead = broadcast_shapes(&[&a.shape()[..rank - 2], &columns.shape()[..columns.ndim() - 2]]).unwrap_or_default();
    let spread = |x: &Array, own: usize| x.broadcast_to([&lead, &x.shape()[x.ndim() - own..]].concat());
    let (lu, permutation) = (spread(&factors[0], 2), spread(&factors[2], 1));
    let x = Solve { transpose: false }.apply(&spread(a, 2), &lu, &permutation, &spread(&columns, 2));
    Ok(vec![if b.ndim() == 1 { x.squeeze(-1) } else { x }])
}

/// The inverses of square matrices `[..., n, n]`. The inverse of a singular matrix is infinity or NaN.
///
/// To multiply with an inverse, [`solve`] is faster and more accurate.
///
/// Fails for less than two dimensions, and matrices that are not square.
///
/// ```
/// # use shardax::prelude::*;
/// let x = linalg::inv(array([[2.0f32, 0.0], [0.0, 4.0]]));
/// assert_eq!(x.to_vec::<f32>()?, [0.5, 0.0, 0.0, 0.25]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn inv(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    let made = at_caller(|| {
        let x = inexact(&x)?;
        square("inv", &x.aval())?;
        composite1("inv", (), &[x], |(), x| solve_traced(&x[0], &eye_like(&x[0], x[0].shape()[x[0].ndim() - 1])))
    });
    Array::from_result(made, &x)
}

/// Powers of square matrices `[..., n, n]`; negative powers are those of the inverse. Integers stay integers
/// for non-negative powers.
///
/// Fails for less than two dimensions, and matrices that are not square.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(linalg::matrix_power(array([[1, 1], [0, 1]]), 5).to_vec::<i32>()?, [1, 5, 0, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn matrix_power(x: impl ArrayLike, n: i32) -> Array {
    let x = x.into_array();
    let made = at_caller(|| {
        x.check()?;
        square_of_any("matrix_power", &x.aval())?;
        let base = if n < 0 { inv(&x) } else { x.clone() };
        base.check()?;
        composite1("matrix_power", n.unsigned_abs(), &[base], |n, x| Ok(vec![power(&x[0], *n)]))
    });
    Array::from_result(made, &x)
}

fn power(x: &Array, n: u32) -> Array {
    let mut result: Option<Array> = None;
    let (mut square, mut left) = (x.clone(), n);
    while left > 0 {
        if left & 1 == 1 {
            result = Some(result.map_or_else(|| square.clone(), |r| matmul(r, &square)));
        }
        left >>= 1;
        if left > 0 {
            square = matmul(&square, &square);
        }
    }
    result.unwrap_or_else(|| eye_like(x, x.shape()[x.ndim() - 1]))
}
