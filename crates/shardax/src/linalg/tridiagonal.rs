//! Reduction of Hermitian matrices to tridiagonal form by Householder reflections, in the format of LAPACK's `sytrd` and `hetrd`
//! ([Golub and Van Loan, Matrix Computations, 8.3.1](https://math.ecnu.edu.cn/~jypan/Teaching/books/2013%20Matrix%20Computations%204th.pdf)).
//!
//! The algorithm is a loop of a program, so that it also runs on platforms without LAPACK.

use super::schur::{indices, squared_length};
use crate::core::array::Array;
use crate::error::Result;
use crate::ops::constants::zeros_like;
use crate::ops::control_flow::fori_loop;
use crate::ops::lax;
use crate::ops::numpy::{complex, flip, frexp, ldexp, where_};
use crate::ops::primitive::matrix::{adjoint, product};

/// Returns the packed form, the diagonal, the diagonal next to it and the factors of the reflections of a matrix `[n, n]`, of which
/// only one triangle is read.
pub(crate) fn reduce(a: &Array, lower: bool) -> Result<[Array; 4]> {
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
