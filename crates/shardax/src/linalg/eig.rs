//! Eigenvalues and eigenvectors of general matrices.

use super::schur::{block_eigenvalues, each_matrix, schur, triangular_eigenvectors, triangular_of_real};
use super::{inexact, pair, solve};
use crate::core::array::Array;
use crate::core::function::Function;
use crate::core::program::trace::at_caller;
use crate::error::{AtCaller, Result, err};
use crate::ops::control_flow::custom_jvp;
use crate::ops::lax;
use crate::ops::numpy::{conj, convert, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite;
use crate::ops::primitive::matrix::{eye_like, product, square};

/// Computes the eigendecomposition `(w, v)` of square matrices `[..., n, n]`, such that `a v = v diag(w)`. Both are
/// complex. The eigenvalues `w`, of shape `[..., n]`, have no order. The columns of `v`, of shape `[..., n, n]`, are
/// the right eigenvectors; they have length 1, and their element of largest absolute value is real.
///
/// You can differentiate both if the eigenvalues are distinct. If the iteration does not converge for a matrix, its
/// results are NaN. It runs on every platform.
///
/// ```
/// # use shardax::prelude::*;
/// // A rotation by a right angle.
/// let (w, v) = linalg::eig(array([[0.0f32, -1.0], [1.0, 0.0]]))?;
/// assert!(allclose(w.imag(), array([1.0f32, -1.0]), 1e-6, 1e-6)?);
/// assert!(allclose(v.abs(), full([2, 2], 0.5f32.sqrt()), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for less than two dimensions, and for matrices that are not square.
#[track_caller]
pub fn eig(a: impl ArrayLike) -> Result<(Array, Array)> {
    at_caller(|| {
        let a = checked("eig", &a.into_array())?;
        let f = custom_jvp(|a: Array| decompose(&a)).defjvp(|(a,): (Array,), (da,): (Array,)| -> Result<_> {
            let (w, v) = decompose(&a)?;
            let tangents = eig_tangents(&w, &v, &da);
            Ok(((w, v), tangents))
        });
        f.call(a)
    })
    .at_caller()
}

/// Computes the eigenvalues of square matrices `[..., n, n]`: complex numbers `[..., n]` in no order. See [`eig`].
///
/// ```
/// # use shardax::prelude::*;
/// let w = linalg::eigvals(array([[2.0f32, 1.0], [0.0, 3.0]]))?;
/// assert!(allclose(w.real().sort(-1), array([2.0f32, 3.0]), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `a` is not an array of square matrices of numbers.
#[track_caller]
pub fn eigvals(a: impl ArrayLike) -> Result<Array> {
    at_caller(|| {
        let a = checked("eigvals", &a.into_array())?;
        let f = custom_jvp(|a: Array| eigenvalues(&a)).defjvp(|(a,): (Array,), (da,): (Array,)| -> Result<_> {
            let (w, v) = decompose(&a)?;
            let dw = solve(&v, product(&da.astype(v.dtype()), &v)).last_diagonal(0);
            Ok((w, dw))
        });
        f.call(a)
    })
    .at_caller()
}

/// Converts to a dtype that has decompositions, and checks that the matrices are square.
pub(crate) fn checked(name: &'static str, a: &Array) -> Result<Array> {
    let a = inexact(a)?;
    square(name, &a.aval())?;
    Ok(convert(&a, a.dtype(), false))
}

/// Computes the eigenvalues from the Schur form.
fn eigenvalues(a: &Array) -> Result<Array> {
    let outs = composite("eigvals", (), 1, std::slice::from_ref(a), |(), args| {
        each_matrix(args, |args| {
            let (t, _) = schur(&args[0])?;
            Ok(vec![if t.dtype().is_complex() { t.diagonal(0, 0, 1) } else { block_eigenvalues(&t) }])
        })
    })?;
    outs.into_iter().next().ok_or_else(|| err!(Runtime, "internal error: eigvals has no result; please report this"))
}

/// Computes eigenvalues and eigenvectors from the Schur form: the eigenvectors of the triangular matrix are computed by
/// substitution, multiplied by the unitary matrix, and normalized.
fn decompose(a: &Array) -> Result<(Array, Array)> {
    let outs = composite("eig", (), 2, std::slice::from_ref(a), |(), args| {
        each_matrix(args, |args| {
            let (t, z) = schur(&args[0])?;
            let is_real = !t.dtype().is_complex();
            let w = if is_real { block_eigenvalues(&t) } else { t.diagonal(0, 0, 1) };
            let (t, z) = if is_real { triangular_of_real(&t, &z)? } else { (t, z) };
            let v = normalize_columns(&product(&z, &triangular_eigenvectors(&t, &w)?));
            // A real eigenvalue of a real matrix has a real eigenvector; rounding errors would make it complex.
            let v = if is_real { where_(w.imag().equal(0).expand_dims(0), v.real().astype(v.dtype()), &v) } else { v };
            Ok(vec![w, v])
        })
    });
    let (w, v) = pair(outs, a);
    w.check()?;
    Ok((w, v))
}

/// Scales the columns to length 1, so that their largest elements are real and positive. Squares are computed of elements
/// that are divided by the largest, so that they do not overflow.
fn normalize_columns(v: &Array) -> Array {
    if v.size() == 0 {
        return v.clone();
    }
    let size = v.abs();
    let norm = (&size / size.max([-2]).maximum(f64::MIN_POSITIVE).expand_dims(-2)).square();
    let norm = norm.sum(-2).sqrt().expand_dims(-2) * size.max([-2]).expand_dims(-2);
    let largest = largest_elements(v);
    let phase = conj(&largest) / largest.abs().astype(v.dtype());
    v * phase / norm.astype(v.dtype())
}

/// Returns the element of largest absolute value of each column.
fn largest_elements(v: &Array) -> Array {
    let index = v.abs().argmax(-2).expand_dims(-2);
    v.take_along_axis(index, -2)
}

/// Returns the tangents of eigenvalues and eigenvectors. An eigenvector keeps its length, and its largest element stays real,
/// so the components of its tangent that would change them are subtracted.
fn eig_tangents(w: &Array, v: &Array, da: &Array) -> (Array, Array) {
    if v.size() == 0 {
        return (w.clone(), v.clone());
    }
    let n = w.shape()[w.ndim() - 1];
    let p = solve(v, product(&da.astype(v.dtype()), v));
    let dw = p.last_diagonal(0);
    let eye = eye_like(v, n);
    let gaps = w.expand_dims(-2) - w.expand_dims(-1) + &eye;
    let du = product(v, &(p * (1 - &eye) / gaps));
    let largest_index = v.abs().argmax(-2).expand_dims(-2);
    let stretch = (conj(v) * &du).sum(-2).expand_dims(-2).real();
    let rotation = du.take_along_axis(&largest_index, -2).imag() / v.take_along_axis(&largest_index, -2).real();
    let correction = crate::ops::numpy::complex(-stretch, -rotation);
    (dw, du + v * lax::convert_element_type(correction, v.dtype()))
}
