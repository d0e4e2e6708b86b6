//! Singular value decomposition, and functions based on it.

use super::inexact;
use crate::core::array::Array;
use crate::core::function::Function as _;
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::control_flow::custom_jvp;
use crate::ops::numpy::{promote_dtypes, to_inexact, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::{composite, composite1};
use crate::ops::primitive::matrix::{adjoint, eye_like, matrix, product};
use crate::ops::primitive::svd::Svd;

/// Three results, or three arrays that carry the error.
#[track_caller]
fn triple(made: Result<Vec<Array>>, like: &Array) -> (Array, Array, Array) {
    match made.as_deref() {
        Ok([a, b, c]) => (a.clone(), b.clone(), c.clone()),
        Ok(_) => triple(Err(err!(Runtime, "a decomposition did not give three results")), like),
        Err(e) => {
            let failed = Array::from_result(Err(e.clone()), like);
            (failed.clone(), failed.clone(), failed)
        }
    }
}

/// The singular value decomposition `(u, s, vh)` of matrices `[..., m, n]`, with `k = min(m, n)`: `u` of `[..., m, k]`
/// and `vh` of `[..., k, n]` have orthonormal columns and rows, `s` of `[..., k]` has the singular values, real and in
/// descending order, and `u diag(s) vh = x`. Signs of columns are not specified. (JAX's `full_matrices=False`.)
///
/// For equal singular values, gradients of `u` and `vh` are NaN or infinite.
///
/// Fails for less than two dimensions.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]]);
/// let (u, s, vh) = linalg::svd(&x);
/// assert!(allclose((&u * s.expand_dims(-2)).matmul(&vh), &x, 1e-5, 1e-5)?);
/// assert!(allclose(s, array([9.525518f32, 0.514301]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn svd(x: impl ArrayLike) -> (Array, Array, Array) {
    svd_with(x.into_array(), false)
}

/// Like [`svd`] with all columns of `u`, `[..., m, m]`, and all rows of `vh`, `[..., n, n]` (JAX's
/// `full_matrices=True`).
///
/// Fails for less than two dimensions. Not differentiable for matrices that are not square.
///
/// ```
/// # use shardax::prelude::*;
/// let (u, s, vh) = linalg::svd_full(ones([2, 3]));
/// assert_eq!((u.shape(), s.shape(), vh.shape()), (&[2, 2][..], &[2][..], &[3, 3][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn svd_full(x: impl ArrayLike) -> (Array, Array, Array) {
    svd_with(x.into_array(), true)
}

#[track_caller]
fn svd_with(x: Array, full: bool) -> (Array, Array, Array) {
    triple(at_caller(|| Ok(Svd { full }.apply(&inexact(&x)?).into_vec())), &x)
}

/// The singular values of matrices; see [`svd`].
///
/// ```
/// # use shardax::prelude::*;
/// let s = linalg::svdvals(array([[3.0f32, 0.0], [0.0, 4.0]]));
/// assert!(allclose(s, array([4.0f32, 3.0]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn svdvals(x: impl ArrayLike) -> Array {
    svd(x).1
}

fn eps(dtype: DType) -> f64 {
    match dtype.real() {
        DType::F64 => f64::EPSILON,
        DType::F16 => f64::from(half::f16::EPSILON),
        DType::Bf16 => f64::from(half::bf16::EPSILON),
        _ => f64::from(f32::EPSILON),
    }
}

/// Marks the singular values of at least `rcond` times the largest.
fn counted(s: &Array, rcond: f64) -> Array {
    let largest = s.max_keepdims(-1);
    s.greater(0) & s.greater_equal(largest * rcond)
}

/// The Moore-Penrose inverses, `[..., n, m]` of `[..., m, n]`: singular values below `10 max(m, n) eps` of the largest
/// count as zeros.
///
/// Fails for less than two dimensions.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[1.0f32, 0.0], [0.0, 2.0], [0.0, 0.0]]);
/// assert!(allclose(linalg::pinv(x), array([[1.0f32, 0.0, 0.0], [0.0, 0.5, 0.0]]), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn pinv(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    let made = at_caller(|| {
        let x = inexact(&x)?;
        matrix("pinv", &x.aval())?;
        composite1("pinv", (), &[x], |(), x| {
            let rule = |(a,): (Array,), (da,): (Array,)| -> Result<(Array, Array)> {
                let p = inverse(a.clone())?;
                let (ph, dah) = (adjoint(&p), adjoint(&da));
                let rest = |x: Array| eye_like(&x, x.shape()[x.ndim() - 1]) - x;
                // Golub and Pereyra, https://doi.org/10.1137/0710036, 4.12.
                let beyond = product(&product(&product(&p, &ph), &dah), &rest(product(&a, &p)));
                let before = product(&product(&rest(product(&p, &a)), &dah), &product(&ph, &p));
                let dp = beyond + before - product(&product(&p, &da), &p);
                Ok((p, dp))
            };
            Ok(vec![custom_jvp(inverse).defjvp(rule).apply((x[0].clone(),))?])
        })
    });
    Array::from_result(made, &x)
}

fn inverse(a: Array) -> Result<Array> {
    let outs = Svd { full: false }.apply(&a);
    let (u, s, vh) = (&outs[0], &outs[1], &outs[2]);
    if s.size() == 0 {
        return Ok(adjoint(&a) * 0);
    }
    let longest = a.shape()[a.ndim() - 2..].iter().copied().max().unwrap_or(0);
    let rcond = 10.0 * longest as f64 * eps(a.dtype());
    let used = s.greater(s.max_keepdims(-1) * rcond);
    let inverse = where_(&used, 1 / where_(&used, s, 1), 0).astype(a.dtype());
    Ok(product(&(adjoint(vh) * inverse.expand_dims(-2)), &adjoint(u)))
}

/// The rank of matrices: the number of singular values above `max(m, n) eps` times the largest. int32 of `[...]`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(linalg::matrix_rank(array([[1.0f32, 2.0], [2.0, 4.0]])).item::<i32>()?, 1);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn matrix_rank(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    let made = at_caller(|| {
        let a = inexact(&x)?;
        let (m, n) = matrix("matrix_rank", &a.aval())?;
        let s = svdvals(&a);
        s.check()?;
        if m.min(n) == 0 {
            return Ok(s.sum(-1).astype(DType::I32));
        }
        let rcond = m.max(n) as f64 * eps(a.dtype());
        Ok(s.greater(s.max_keepdims(-1) * rcond).astype(DType::I32).sum(-1))
    });
    Array::from_result(made, &x)
}

/// The least-squares solution `(x, residuals, rank, s)`: the smallest `x` of `[n]` or `[n, k]` that minimizes `a x -
/// b`; the squared length of each column's residual; the rank of `a`, which counts singular values
/// of at least `max(m, n) eps` times the largest; and the singular values. `a` is one matrix `[m, n]`, `b` `[m]` or
/// `[m, k]`.
///
/// Fails for shapes that do not fit.
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
#[track_caller]
pub fn lstsq(a: impl ArrayLike, b: impl ArrayLike) -> (Array, Array, Array, Array) {
    let (a, b) = (a.into_array(), b.into_array());
    let made = at_caller(|| {
        let args = promote_dtypes(&[&a, &b], to_inexact)?;
        let fits = a.ndim() == 2 && matches!(b.ndim(), 1 | 2) && a.shape()[0] == b.shape()[0] && a.size() > 0;
        if !fits {
            return Err(err!(
                Value,
                "lstsq got the matrix {} and incompatible right-hand sides {}",
                a.type_name(),
                b.type_name()
            )
            .help("the matrix is [m, n], and not empty, the right-hand sides are [m] or [m, k]"));
        }
        composite("lstsq", (), 4, &args, |(), args| {
            let (a, b) = (&args[0], &args[1]);
            let columns = if b.ndim() == 1 { b.expand_dims(-1) } else { b.clone() };
            let outs = Svd { full: false }.apply(a);
            let (u, s, vh) = (&outs[0], &outs[1], &outs[2]);
            let longest = a.shape().iter().copied().max().unwrap_or(0);
            let used = counted(s, longest as f64 * eps(a.dtype()));
            let rank = used.astype(DType::I32).sum(..);
            let inverse = where_(&used, 1 / where_(&used, s, 1), 0).astype(a.dtype());
            let x = product(&adjoint(vh), &(inverse.expand_dims(-1) * product(&adjoint(u), &columns)));
            let left = (&columns - product(a, &x)).abs();
            let residuals = (&left * &left).sum(0);
            let x = if b.ndim() == 1 { x.squeeze(-1) } else { x };
            Ok(vec![x, residuals, rank, s.clone()])
        })
    });
    match made.as_deref() {
        Ok([x, residuals, rank, s]) => (x.clone(), residuals.clone(), rank.clone(), s.clone()),
        other => {
            let e = other.err().cloned().unwrap_or_else(|| err!(Runtime, "lstsq did not give four results"));
            let failed = Array::from_result(Err(e), &b);
            (failed.clone(), failed.clone(), failed.clone(), failed)
        }
    }
}
