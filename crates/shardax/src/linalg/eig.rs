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

/// The eigenvalues and the right eigenvectors of square matrices `[..., n, n]`, complex: `[..., n]` in no order, and
/// `[..., n, n]`, whose columns have length 1 and a real element of largest absolute value: `a v = v diag(w)`.
///
/// Differentiable, the eigenvectors too, where the eigenvalues are distinct. A matrix whose eigenvalues are not found gives
/// NaN. It runs on every platform.
///
/// Fails for less than two dimensions, and matrices that are not square.
///
/// ```
/// # use shardax::prelude::*;
/// // A rotation by a right angle.
/// let (w, v) = linalg::eig(array([[0.0f32, -1.0], [1.0, 0.0]]))?;
/// assert!(allclose(w.imag(), array([1.0f32, -1.0]), 1e-6, 1e-6)?);
/// assert!(allclose(v.abs(), full([2, 2], 0.5f32.sqrt()), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn eig(a: impl ArrayLike) -> Result<(Array, Array)> {
    at_caller(|| {
        let a = checked("eig", &a.into_array())?;
        let f = custom_jvp(|a: Array| decomposed(&a)).defjvp(|(a,): (Array,), (da,): (Array,)| -> Result<_> {
            let (w, v) = decomposed(&a)?;
            let tangents = tangents(&w, &v, &da);
            Ok(((w, v), tangents))
        });
        f.call(a)
    })
    .at_caller()
}

/// The eigenvalues of square matrices `[..., n, n]`: complex `[..., n]`, in no order. See [`eig`].
///
/// ```
/// # use shardax::prelude::*;
/// let w = linalg::eigvals(array([[2.0f32, 1.0], [0.0, 3.0]]))?;
/// assert!(allclose(w.real().sort(-1), array([2.0f32, 3.0]), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn eigvals(a: impl ArrayLike) -> Result<Array> {
    at_caller(|| {
        let a = checked("eigvals", &a.into_array())?;
        let f = custom_jvp(|a: Array| values(&a)).defjvp(|(a,): (Array,), (da,): (Array,)| -> Result<_> {
            let (w, v) = decomposed(&a)?;
            let dw = solve(&v, product(&da.astype(v.dtype()), &v)).last_diagonal(0);
            Ok((w, dw))
        });
        f.call(a)
    })
    .at_caller()
}

/// Matrices in a dtype that has decompositions.
pub(crate) fn checked(name: &'static str, a: &Array) -> Result<Array> {
    let a = inexact(a)?;
    square(name, &a.aval())?;
    Ok(convert(&a, a.dtype(), false))
}

fn values(a: &Array) -> Result<Array> {
    let outs = composite("eigvals", (), 1, std::slice::from_ref(a), |(), args| {
        each_matrix(args, |args| {
            let (t, _) = schur(&args[0])?;
            Ok(vec![if t.dtype().is_complex() { t.diagonal(0, 0, 1) } else { block_eigenvalues(&t) }])
        })
    })?;
    outs.into_iter().next().ok_or_else(|| err!(Runtime, "eigvals gave no result"))
}

fn decomposed(a: &Array) -> Result<(Array, Array)> {
    let outs = composite("eig", (), 2, std::slice::from_ref(a), |(), args| {
        each_matrix(args, |args| {
            let (t, z) = schur(&args[0])?;
            let is_real = !t.dtype().is_complex();
            let w = if is_real { block_eigenvalues(&t) } else { t.diagonal(0, 0, 1) };
            let (t, z) = if is_real { triangular_of_real(&t, &z)? } else { (t, z) };
            let v = scaled(&product(&z, &triangular_eigenvectors(&t, &w)?));
            // Eigenvectors of a real matrix with real eigenvalues are real.
            let v = match is_real {
                true => where_(w.imag().equal(0).expand_dims(0), v.real().astype(v.dtype()), &v),
                false => v,
            };
            Ok(vec![w, v])
        })
    });
    let (w, v) = pair(outs, a);
    w.check()?;
    Ok((w, v))
}

/// Columns of length 1, whose largest elements are real and positive.
fn scaled(v: &Array) -> Array {
    if v.size() == 0 {
        return v.clone();
    }
    let size = v.abs();
    let norm = (&size / size.max([-2]).maximum(f64::MIN_POSITIVE).expand_dims(-2)).square();
    let norm = norm.sum(-2).sqrt().expand_dims(-2) * size.max([-2]).expand_dims(-2);
    let largest = largest(v);
    let phase = conj(&largest) / largest.abs().astype(v.dtype());
    v * phase / norm.astype(v.dtype())
}

/// The element of largest absolute value of each column.
fn largest(v: &Array) -> Array {
    let at = v.abs().argmax(-2).expand_dims(-2);
    v.take_along_axis(at, -2)
}

/// The tangents of eigenvalues and eigenvectors, which keep their length and their real element.
fn tangents(w: &Array, v: &Array, da: &Array) -> (Array, Array) {
    if v.size() == 0 {
        return (w.clone(), v.clone());
    }
    let n = w.shape()[w.ndim() - 1];
    let p = solve(v, product(&da.astype(v.dtype()), v));
    let dw = p.last_diagonal(0);
    let eye = eye_like(v, n);
    let gaps = w.expand_dims(-2) - w.expand_dims(-1) + &eye;
    let du = product(v, &(p * (1 - &eye) / gaps));
    let at = v.abs().argmax(-2).expand_dims(-2);
    let along = (conj(v) * &du).sum(-2).expand_dims(-2).real();
    let turn = du.take_along_axis(&at, -2).imag() / v.take_along_axis(&at, -2).real();
    let back = crate::ops::numpy::complex(-along, -turn);
    (dw, du + v * lax::convert_element_type(back, v.dtype()))
}
