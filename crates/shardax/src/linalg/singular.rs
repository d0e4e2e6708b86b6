//! Singular value decomposition, and functions based on it.

use super::inexact;
use crate::core::array::Array;
use crate::core::function::Function as _;
use crate::core::program::trace::{at_caller, or_failed};
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::control_flow::custom_jvp;
use crate::ops::numpy::{promote_dtypes, to_inexact, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::{composite, composite1};
use crate::ops::primitive::matrix::{adjoint, eye_like, matrix, product};
use crate::ops::primitive::svd::Svd;

/// Returns the three outputs, or three arrays that carry the error.
#[track_caller]
fn triple(outputs: Result<Vec<Array>>, like: &Array) -> (Array, Array, Array) {
    match outputs.as_deref() {
        Ok([a, b, c]) => (a.clone(), b.clone(), c.clone()),
        Ok(outputs) => triple(
            Err(err!(
                Runtime,
                "internal error: a decomposition has {} results instead of three; please report this",
                outputs.len()
            )),
            like,
        ),
        Err(e) => {
            let failed = Array::from_result(Err(e.clone()), like);
            (failed.clone(), failed.clone(), failed)
        }
    }
}

/// Computes the singular value decomposition `(u, s, vh)` of matrices `[..., m, n]`, such that `u diag(s) vh = x`. With
/// `k = min(m, n)`, `u` has shape `[..., m, k]` and orthonormal columns, and `vh` has shape `[..., k, n]` and
/// orthonormal rows. The singular values `s`, of shape `[..., k]`, are real and descending. The signs of the columns of
/// `u` are not specified. It is JAX's `full_matrices=False`; see [`svd_full`] for the other.
///
/// If singular values are equal, gradients of `u` and `vh` are NaN or infinite.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]]);
/// let (u, s, vh) = linalg::svd(&x);
/// assert!(allclose((&u * s.expand_dims(-2)).matmul(&vh), &x, 1e-5, 1e-5)?);
/// assert!(allclose(s, array([9.525518f32, 0.514301]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions.
#[track_caller]
pub fn svd(x: impl ArrayLike) -> (Array, Array, Array) {
    svd_with(x.into_array(), false)
}

/// Computes the singular value decomposition with all columns of `u`, of shape `[..., m, m]`, and all rows of `vh`, of
/// shape `[..., n, n]` (JAX's `full_matrices=True`). See [`svd`].
///
/// You can differentiate it only for square matrices.
///
/// ```
/// # use shardax::prelude::*;
/// let (u, s, vh) = linalg::svd_full(ones([2, 3]));
/// assert_eq!((u.shape(), s.shape(), vh.shape()), (&[2, 2][..], &[2][..], &[3, 3][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions.
#[track_caller]
pub fn svd_full(x: impl ArrayLike) -> (Array, Array, Array) {
    svd_with(x.into_array(), true)
}

#[track_caller]
fn svd_with(x: Array, full: bool) -> (Array, Array, Array) {
    triple(at_caller(|| Ok(Svd { full }.apply(&inexact(&x)?).into_vec())), &x)
}

/// Computes the singular values of matrices; see [`svd`].
///
/// ```
/// # use shardax::prelude::*;
/// let s = linalg::svdvals(array([[3.0f32, 0.0], [0.0, 4.0]]));
/// assert!(allclose(s, array([4.0f32, 3.0]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn svdvals(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    or_failed(&x, || {
        let x = inexact(&x)?;
        matrix("svd", &x.aval())?;
        // Without a use of the vectors, they are not computed on CPU.
        composite1("svdvals", (), &[x], |(), x| Ok(vec![Svd { full: false }.apply(&x[0])[1].clone()]))
    })
}

/// Returns the distance from 1 to the next larger number of the dtype.
fn eps(dtype: DType) -> f64 {
    match dtype.real() {
        DType::F64 => f64::EPSILON,
        DType::F16 => f64::from(half::f16::EPSILON),
        DType::Bf16 => f64::from(half::bf16::EPSILON),
        _ => f64::from(f32::EPSILON),
    }
}

/// Returns `true` for each singular value that is at least `rcond` times the largest.
fn is_significant(s: &Array, rcond: f64) -> Array {
    let largest = s.max_keepdims(-1);
    s.greater(0) & s.greater_equal(largest * rcond)
}

/// Computes the Moore-Penrose inverses of matrices `[..., m, n]`, of shape `[..., n, m]`. Singular values of at most
/// `10 max(m, n) eps` times the largest are treated as zero.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[1.0f32, 0.0], [0.0, 2.0], [0.0, 0.0]]);
/// assert!(allclose(linalg::pinv(x), array([[1.0f32, 0.0, 0.0], [0.0, 0.5, 0.0]]), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions.
#[track_caller]
pub fn pinv(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    or_failed(&x, || {
        let x = inexact(&x)?;
        matrix("pinv", &x.aval())?;
        composite1("pinv", (), &[x], |(), x| {
            Ok(vec![custom_jvp(pseudoinverse).defjvp(pseudoinverse_jvp).apply((x[0].clone(),))?])
        })
    })
}

/// Returns the inverse of `a` and its tangent ([Golub and Pereyra, 4.12](https://doi.org/10.1137/0710036)).
fn pseudoinverse_jvp((a,): (Array,), (da,): (Array,)) -> Result<(Array, Array)> {
    let p = pseudoinverse(a.clone())?;
    let (ph, dah) = (adjoint(&p), adjoint(&da));
    let left_null_space = product(&product(&product(&p, &ph), &dah), &eye_minus(product(&a, &p)));
    let null_space = product(&product(&eye_minus(product(&p, &a)), &dah), &product(&ph, &p));
    let dp = left_null_space + null_space - product(&product(&p, &da), &p);
    Ok((p, dp))
}

/// Returns the identity minus `x`.
fn eye_minus(x: Array) -> Array {
    eye_like(&x, x.shape()[x.ndim() - 1]) - x
}

/// Computes the Moore-Penrose inverse from the singular value decomposition.
fn pseudoinverse(a: Array) -> Result<Array> {
    let outs = Svd { full: false }.apply(&a);
    let (u, s, vh) = (&outs[0], &outs[1], &outs[2]);
    if s.size() == 0 {
        return Ok(adjoint(&a) * 0);
    }
    let longest = a.shape()[a.ndim() - 2..].iter().copied().max().unwrap_or(0);
    let rcond = 10.0 * longest as f64 * eps(a.dtype());
    let is_significant = s.greater(s.max_keepdims(-1) * rcond);
    let inverse = where_(&is_significant, 1 / where_(&is_significant, s, 1), 0).astype(a.dtype());
    Ok(product(&(adjoint(vh) * inverse.expand_dims(-2)), &adjoint(u)))
}

/// Returns the rank of matrices: the number of singular values above `max(m, n) eps` times the largest, as an int32
/// array.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(linalg::matrix_rank(array([[1.0f32, 2.0], [2.0, 4.0]])).item::<i32>()?, 1);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn matrix_rank(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    or_failed(&x, || {
        let a = inexact(&x)?;
        let (m, n) = matrix("matrix_rank", &a.aval())?;
        let s = svdvals(&a);
        s.check()?;
        if m.min(n) == 0 {
            return Ok(s.sum(-1).astype(DType::I32));
        }
        let rcond = m.max(n) as f64 * eps(a.dtype());
        Ok(s.greater(s.max_keepdims(-1) * rcond).astype(DType::I32).sum(-1))
    })
}

/// Returns the least-squares solution `(x, residuals, rank, s)` of `a x = b` for one matrix `a` of shape `[m, n]`, and
/// `b` of shape `[m]` or `[m, k]`.
///
/// - `x`, of shape `[n]` or `[n, k]`, minimizes the length of `a x - b`; if several do, it is the shortest.
/// - `residuals` are the squared lengths of the columns of `a x - b`.
/// - `rank` is the number of singular values of at least `max(m, n) eps` times the largest.
/// - `s` are the singular values.
///
/// ```
/// # use shardax::prelude::*;
/// let a = array([[0.0f32, 1.0], [1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]);
/// let (x, residuals, rank, _) = linalg::lstsq(&a, array([-1.0f32, 0.2, 0.9, 2.1]));
/// assert!(allclose(x, array([1.0f32, -0.95]), 1e-4, 1e-4)?);
/// assert!((residuals.item::<f32>()? - 0.05).abs() < 1e-4);
/// assert_eq!(rank.item::<i32>()?, 2);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit.
#[track_caller]
pub fn lstsq(a: impl ArrayLike, b: impl ArrayLike) -> (Array, Array, Array, Array) {
    let (a, b) = (a.into_array(), b.into_array());
    let outputs = at_caller(|| {
        let args = promote_dtypes(&[&a, &b], to_inexact)?;
        let fits = a.ndim() == 2 && matches!(b.ndim(), 1 | 2) && a.shape()[0] == b.shape()[0];
        if !fits {
            return Err(err!(
                Value,
                "lstsq got the matrix {} and incompatible right-hand sides {}",
                a.type_name(),
                b.type_name()
            )
            .help("the matrix must be [m, n], and the right-hand sides must be [m] or [m, k]"));
        }
        composite("lstsq", (), 4, &args, |(), args| {
            let (a, b) = (&args[0], &args[1]);
            let columns = if b.ndim() == 1 { b.expand_dims(-1) } else { b.clone() };
            let outs = Svd { full: false }.apply(a);
            let (u, s, vh) = (&outs[0], &outs[1], &outs[2]);
            // The minimum-norm solution, by the pseudoinverse without insignificant singular values.
            let longest = a.shape().iter().copied().max().unwrap_or(0);
            // An empty matrix has no singular values, so that the solution is zero.
            let is_significant =
                if s.size() == 0 { s.greater(0) } else { is_significant(s, longest as f64 * eps(a.dtype())) };
            let rank = is_significant.astype(DType::I32).sum(..);
            let inverse = where_(&is_significant, 1 / where_(&is_significant, s, 1), 0).astype(a.dtype());
            let x = product(&adjoint(vh), &(inverse.expand_dims(-1) * product(&adjoint(u), &columns)));
            let distance = (&columns - product(a, &x)).abs();
            let residuals = (&distance * &distance).sum(0);
            let x = if b.ndim() == 1 { x.squeeze(-1) } else { x };
            Ok(vec![x, residuals, rank, s.clone()])
        })
    });
    match outputs.as_deref() {
        Ok([x, residuals, rank, s]) => (x.clone(), residuals.clone(), rank.clone(), s.clone()),
        other => {
            let e = other.err().cloned().unwrap_or_else(|| {
                err!(Runtime, "internal error: lstsq does not have four results; please report this")
            });
            let failed = Array::from_result(Err(e), &b);
            (failed.clone(), failed.clone(), failed.clone(), failed)
        }
    }
}
