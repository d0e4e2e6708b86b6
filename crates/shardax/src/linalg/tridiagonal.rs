//! Reduction of Hermitian matrices to tridiagonal form by Householder reflections, in the format of LAPACK's `sytrd` and `hetrd`
//! ([Golub and Van Loan, Matrix Computations, 8.3.1](https://math.ecnu.edu.cn/~jypan/Teaching/books/2013%20Matrix%20Computations%204th.pdf)).
//!
//! The algorithm is a loop of a program, so that it also runs on platforms without LAPACK.

use super::schur::{each_matrix, indices, squared_length};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::error::{Error, Result, err};
use crate::ops::constants::zeros_like;
use crate::ops::control_flow::fori_loop;
use crate::ops::lax;
use crate::ops::numpy::{complex, flip, frexp, ldexp, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite;
use crate::ops::primitive::matrix::{adjoint, product, square};

/// Reduces Hermitian matrices `[..., n, n]` to tridiagonal matrices `t` by unitary matrices `q`, such that `a = q t qᴴ`. Returns
/// `(a, d, e, taus)` like LAPACK.
///
/// `d`, `[..., n]`, is the diagonal of `t`, and `e`, `[..., n - 1]`, the diagonal next to it; both are real. With `lower`, only
/// the lower triangle of the matrix is read, and `q` is the product of `n - 1` reflections `1 - taus[i] v vᴴ`, where `v[..=i]`
/// is zero, `v[i + 1]` is 1, and `v[i + 2..]` is in the column `i` of the returned `a`, below the first subdiagonal. Without
/// `lower`, only the upper triangle is read, and the reflections, in descending order, are above the first superdiagonal.
///
/// Use [`eigh`](crate::linalg::eigh) to compute eigenvalues; it also returns eigenvectors.
///
/// ```
/// # use shardax::prelude::*;
/// let a = array([[2.0f32, 3.0, 4.0], [3.0, 1.0, 0.0], [4.0, 0.0, 5.0]]);
/// let (_, d, e, _) = lax::linalg::tridiagonal(&a, true);
/// assert!(allclose(d, array([2.0f32, 3.56, 2.44]), 1e-5, 1e-6)?);
/// assert!(allclose(e, array([-5.0f32, -1.92]), 1e-5, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The results carry an error for integers, half precision, and matrices that are empty or not square.
#[track_caller]
pub fn tridiagonal(a: impl ArrayLike, lower: bool) -> (Array, Array, Array, Array) {
    let a = &a.into_array();
    at_caller(|| match checked_reduction(a, lower).as_deref() {
        Ok([packed, d, e, taus]) => (packed.clone(), d.clone(), e.clone(), taus.clone()),
        Ok(results) => failed(
            a,
            err!(
                Runtime,
                "internal error: tridiagonal has {} results instead of four; please report this",
                results.len()
            ),
        ),
        Err(e) => failed(a, e.clone()),
    })
}

/// Returns four arrays that carry an error.
#[track_caller]
fn failed(like: &Array, error: Error) -> (Array, Array, Array, Array) {
    let x = Array::from_error(error, like);
    (x.clone(), x.clone(), x.clone(), x)
}

fn checked_reduction(a: &Array, lower: bool) -> Result<Vec<Array>> {
    a.check()?;
    if square("tridiagonal", &a.aval())? == 0 {
        return Err(err!(Value, "tridiagonal needs matrices of at least one row, got {}", a.type_name())
            .help("an empty matrix has no diagonal"));
    }
    composite("tridiagonal", lower, 4, std::slice::from_ref(a), |&lower, args| {
        each_matrix(args, |args| reduce(&args[0], lower).map(Vec::from))
    })
}

/// Returns the packed form, the diagonal, the diagonal next to it and the factors of the reflections of a matrix `[n, n]`. Reads only
/// one triangle.
fn reduce(a: &Array, lower: bool) -> Result<[Array; 4]> {
    if lower {
        return reduce_lower(a);
    }
    // The upper triangle, read from the last element to the first, is a lower triangle.
    let [packed, d, e, taus] = reduce_lower(&flip(a, [0, 1]))?;
    Ok([flip(packed, [0, 1]), flip(d, 0), flip(e, 0), flip(taus, 0)])
}

fn reduce_lower(a: &Array) -> Result<[Array; 4]> {
    let n = a.shape()[0];
    let dtype = a.dtype();
    let (rows, columns) = (indices(n, 0), indices(n, 1));
    let is_below = rows.greater(&columns);
    let strict = where_(&is_below, a, 0).astype(dtype);
    let diagonal = where_(rows.equal(&columns), a.real(), 0).astype(dtype);
    // A power of two, so that squares neither overflow nor lose digits.
    let hermitian = &strict + adjoint(&strict) + diagonal;
    let exponent = where_(hermitian.abs().max(..).isfinite(), frexp(hermitian.abs().max(..)).1, 0);
    let hermitian = scale_by_power(&hermitian, &-&exponent);
    let vector = zeros_like(hermitian.get((.., 0))).get(1..);
    let step = |j: Array, (h, packed, e, taus): (Array, Array, Array, Array)| {
        let is_column = columns.equal(&j);
        let column = lax::dynamic_slice_in_dim(&h, &j, 1, 1);
        let (v, tau, beta) = reflection(&where_(rows.greater(&j), column, 0).astype(dtype), &rows.equal(&j + 1));
        // `H A H` for `H = 1 - τ v vᴴ` is `A - v wᴴ - w vᴴ`.
        let x = where_(rows.greater(&j), product(&h, &v) * &tau, 0).astype(dtype);
        let half = (adjoint(&x) * v.t()).sum(..) * &tau * -0.5;
        let w = x + &half * &v;
        let h = h - product(&v, &adjoint(&w)) - product(&w, &adjoint(&v));
        let packed = where_(is_column & rows.greater(&j + 1), &v, packed);
        (h, packed, e.at(&j).set(&beta), taus.at(&j).set(tau))
    };
    let init = (hermitian, a.clone(), vector.real(), vector);
    let (h, packed, e, taus) = fori_loop(0, n as i32 - 1, step, init)?;
    let d = scale_by_power(&h.diagonal(0, 0, 1).real(), &exponent);
    let e = scale_by_power(&e, &exponent);
    let packed = where_(rows.equal(&columns), d.expand_dims(1).astype(dtype), packed);
    // Padded with an element that is not read, because no row is below the last one.
    let below = lax::pad(&e, zeros_like(d.get(0)), &[(0, 1, 0)]).expand_dims(0).astype(dtype);
    let packed = where_(rows.equal(&columns + 1), below, packed);
    Ok([packed, d, e, taus])
}

/// Returns `x` times 2 to the power `exponent`.
fn scale_by_power(x: &Array, exponent: &Array) -> Array {
    if x.dtype().is_complex() {
        complex(ldexp(x.real(), exponent), ldexp(x.imag(), exponent))
    } else {
        ldexp(x, exponent)
    }
}

/// Returns `v`, `τ` and `β` of the reflection `H = 1 - τ v vᴴ` with `Hᴴ x = β e`, for a column `[n, 1]` and the unit vector
/// `e` of `pivot`. The element of `v` at `pivot` is 1, and `β` is real.
fn reflection(x: &Array, pivot: &Array) -> (Array, Array, Array) {
    let alpha = where_(pivot, x, 0).astype(x.dtype()).sum(..);
    let rest = where_(pivot, 0, x).astype(x.dtype());
    let is_reduced = squared_length(&rest).equal(0) & alpha.imag().equal(0);
    let norm = where_(&is_reduced, 1, squared_length(x)).sqrt();
    let beta = where_(alpha.real().less(0), &norm, -&norm);
    let tau = where_(&is_reduced, 0, (&beta - &alpha) / &beta).astype(x.dtype());
    let v = where_(pivot, 1, rest / where_(&is_reduced, 1, &alpha - &beta)).astype(x.dtype());
    (v, tau, where_(is_reduced, alpha.real(), beta))
}
