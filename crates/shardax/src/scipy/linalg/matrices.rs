//! Matrices that a rule builds from numbers or vectors.

use std::f64::consts::PI;

use super::toeplitz;
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::constants::eye_offset_dtype;
use crate::ops::lax;
use crate::ops::numpy::{complex, promote_dtypes, to_inexact, where_, zeros_dtype};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;

fn places(n: usize, axis: usize) -> Array {
    lax::iota(DType::F32, &[n, n], axis)
}

/// Returns the Hilbert matrix, `1 / (i + j + 1)`, in float32.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::scipy::linalg::hilbert(2).to_vec::<f32>()?, [1.0, 0.5, 0.5, 1.0 / 3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn hilbert(n: usize) -> Array {
    1 / (places(n, 0) + places(n, 1) + 1)
}

/// Returns the matrix whose columns are the rotations of a vector; several vectors are `[..., n]`.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::linalg::circulant(array([1, 2, 3]));
/// assert_eq!(x.to_vec::<i32>()?, [1, 3, 2, 2, 1, 3, 3, 2, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for a scalar.
#[track_caller]
pub fn circulant(c: impl ArrayLike) -> Array {
    let c = c.into_array();
    or_failed(&c, || {
        vector("circulant", &c)?;
        composite1("circulant", (), std::slice::from_ref(&c), |(), args| {
            let n = args[0].shape()[args[0].ndim() - 1];
            let index = lax::iota(DType::I32, &[n, n], 0) - lax::iota(DType::I32, &[n, n], 1);
            Ok(vec![args[0].take(where_(index.less(0), &index + n as i32, &index), -1)])
        })
    })
}

fn vector(name: &str, x: &Array) -> Result<()> {
    x.check()?;
    match x.ndim() {
        0 => Err(err!(Value, "{name} needs a vector, got {}", x.type_name())
            .help("make a vector of the scalar with `reshape([1])`")),
        _ => Ok(()),
    }
}

/// Returns the Hankel matrix, which has constant antidiagonals. `c` is its first column and `r` its last row, where
/// `r[0]` is ignored in favor of the last element of `c`.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::linalg::hankel(array([1, 2, 3]), array([0, 4]));
/// assert_eq!(x.to_vec::<i32>()?, [1, 2, 2, 3, 3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn hankel(c: impl ArrayLike, r: impl ArrayLike) -> Array {
    let (c, r) = (c.into_array().ravel(), r.into_array());
    toeplitz(c.flip(0), hankel_row(&c, &r)).flip(0)
}

/// The last row, whose first element is replaced by the last element of the first column.
fn hankel_row(c: &Array, r: &Array) -> Array {
    let r = r.ravel();
    if c.size() == 0 || r.size() == 0 || c.error().is_some() || r.error().is_some() {
        return r;
    }
    let args = [lax::slice_in_dim(c, c.size() - 1, c.size(), 0), lax::slice_in_dim(&r, 1, r.size(), 0)];
    crate::ops::numpy::concatenate(args, 0)
}

/// Returns the companion matrix of a polynomial. The coefficients start with the highest power.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::linalg::companion(array([1.0f32, -3.0, 2.0]));
/// assert_eq!(x.to_vec::<f32>()?, [3.0, -2.0, 1.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error unless `a` is a vector of at least two coefficients.
#[track_caller]
pub fn companion(a: impl ArrayLike) -> Array {
    let a = a.into_array();
    or_failed(&a, || {
        let x = promote_dtypes(&[&a], to_inexact)?.swap_remove(0);
        if x.ndim() != 1 || x.size() < 2 {
            return Err(err!(Value, "companion needs a vector of at least two coefficients, got {}", x.type_name())
                .help("map over several polynomials with `vmap`"));
        }
        composite1("companion", (), &[x], |(), args| {
            let n = args[0].size();
            let row = -lax::slice_in_dim(&args[0], 1, n, 0) / args[0].get(0);
            let below = eye_offset_dtype(n - 2, n - 1, 0, DType::F32).astype(args[0].dtype());
            Ok(vec![lax::concatenate(&[row.expand_dims(0), below], 0)])
        })
    })
}

/// The factor by which [`dft`] multiplies its matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DftScale {
    /// One.
    #[default]
    None,
    /// `1 / √n`, for which the matrix is unitary.
    Sqrtn,
    /// `1 / n`.
    N,
}

/// Returns the matrix of the discrete Fourier transform, in complex64.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::linalg::{DftScale, dft};
/// let x = array([1.0f32, 2.0, 4.0]);
/// let y = dft(3, DftScale::None).matmul(x.astype(DType::Complex64));
/// assert!(allclose(y, shardax::fft::fft(&x), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn dft(n: usize, scale: DftScale) -> Array {
    // The products are reduced modulo the period first, because large angles would lose digits.
    let product = crate::ops::numpy::remainder(places(n, 0) * places(n, 1), n.max(1) as f64);
    let angle = product * (-2.0 * PI / n.max(1) as f64);
    let matrix = complex(angle.cos(), angle.sin());
    match scale {
        DftScale::None => matrix,
        DftScale::Sqrtn => matrix / (n as f64).sqrt(),
        DftScale::N => matrix / n as f64,
    }
}

/// Returns Hadamard's matrix of entries 1 and -1, in this dtype. The size must be a power of two.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::scipy::linalg::hadamard(2, DType::I32).to_vec::<i32>()?, [1, 1, 1, -1]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for other sizes.
#[track_caller]
pub fn hadamard(n: usize, dtype: DType) -> Array {
    if !n.is_power_of_two() || n > 1 << 15 {
        let e = err!(Value, "n must be a positive integer, and n must be a power of 2; got {n}")
            .help("pass a power of two, such as 8 or 16, at most 32768");
        return Array::from_result(Err(e), &zeros_dtype([1, 1], dtype));
    }
    let [row, column] = [0, 1].map(|d| lax::iota(DType::U32, &[n, n], d));
    let common = row & column;
    let odd = crate::ops::numpy::population_count(common) & 1;
    (1 - odd.astype(DType::I32) * 2).astype(dtype)
}

/// Returns the symmetric matrix of the absolute differences between the elements of a vector. Leading dimensions are a
/// batch of vectors.
///
/// ```
/// # use shardax::prelude::*;
/// let f = shardax::scipy::linalg::fiedler(array([1, 4]));
/// assert_eq!(f.to_vec::<i32>()?, [0, 3, 3, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for a scalar.
#[track_caller]
pub fn fiedler(a: impl ArrayLike) -> Array {
    let a = a.into_array();
    or_failed(&a, || {
        vector("fiedler", &a)?;
        Ok((a.expand_dims(-1) - a.expand_dims(-2)).abs())
    })
}

/// Returns the Leslie matrix of a population. The first row has the fecundities `f` of `[n]`, the first subdiagonal the
/// survivals `s` of `[n - 1]`.
///
/// ```
/// # use shardax::prelude::*;
/// let l = shardax::scipy::linalg::leslie(array([0.5f32, 2.0]), array([0.25f32]));
/// assert_eq!(l.to_vec::<f32>()?, [0.5, 2.0, 0.25, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit.
#[track_caller]
pub fn leslie(f: impl ArrayLike, s: impl ArrayLike) -> Array {
    let (f, s) = (f.into_array(), s.into_array());
    or_failed(&f, || {
        let args = promote_dtypes(&[&f, &s], |d| d)?;
        if f.ndim() != 1 || s.ndim() != 1 || f.size() != s.size() + 1 || s.size() == 0 {
            return Err(err!(
                Value,
                "leslie needs vectors of n and n - 1 elements, got {} and {}",
                f.type_name(),
                s.type_name()
            )
            .help("pass one survival fewer than fecundities, because the last age has none"));
        }
        let below = lax::pad(
            &crate::ops::numpy::diag(&args[1], 0),
            &Array::literal(crate::dtype::Scalar::Int(0), args[0].dtype(), false),
            &[(0, 0, 0), (0, 1, 0)],
        );
        Ok(lax::concatenate(&[args[0].expand_dims(0), below], 0))
    })
}

/// The symmetric matrix with this diagonal and this first subdiagonal.
fn tridiagonal(d: &Array, e: &Array) -> Array {
    let side = crate::ops::numpy::diag(e, 1);
    crate::ops::numpy::diag(d, 0) + &side + crate::ops::numpy::conj(&side.t())
}

/// Returns the eigenvalues of the symmetric matrix with diagonal `d`, `[n]`, and first subdiagonal `e`, `[n - 1]`, in
/// ascending order; see [`linalg::eigvalsh`](crate::linalg::eigvalsh).
///
/// ```
/// # use shardax::prelude::*;
/// let w = shardax::scipy::linalg::eigh_tridiagonal(array([2.0f32, 2.0]), array([1.0f32]));
/// assert!(allclose(w, array([1.0f32, 3.0]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit.
#[track_caller]
pub fn eigh_tridiagonal(d: impl ArrayLike, e: impl ArrayLike) -> Array {
    let (d, e) = (d.into_array(), e.into_array());
    or_failed(&d, || {
        let args = promote_dtypes(&[&d, &e], to_inexact)?;
        if d.ndim() != 1 || e.ndim() != 1 || d.size() != e.size() + 1 {
            return Err(err!(
                Value,
                "eigh_tridiagonal needs vectors of n and n - 1 elements, got {} and {}",
                d.type_name(),
                e.type_name()
            )
            .help("map over several matrices with `vmap`"));
        }
        Ok(crate::linalg::eigvalsh(tridiagonal(&args[0], &args[1])))
    })
}

/// The side of the unitary factor in [`polar`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolarSide {
    /// `a = u p`.
    #[default]
    Right,
    /// `a = p u`.
    Left,
}

/// Returns the polar decomposition `(u, p)` of a matrix `[m, n]`: `u` with orthonormal columns or rows, and `p`
/// Hermitian and positive semidefinite.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::linalg::{PolarSide, polar};
/// let a = array([[1.0f32, -2.0], [3.0, 4.0]]);
/// let (u, p) = polar(&a, PolarSide::Right);
/// assert!(allclose(u.matmul(&p), &a, 1e-5, 1e-5)? && allclose(&p, p.t(), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn polar(a: impl ArrayLike, side: PolarSide) -> (Array, Array) {
    use crate::ops::primitive::matrix::{adjoint, product};
    let (w, s, vh) = crate::linalg::svd(a);
    if w.error().is_some() {
        return (w.clone(), w);
    }
    let s = s.expand_dims(-2).astype(w.dtype());
    let p = match side {
        PolarSide::Right => product(&(adjoint(&vh) * s), &vh),
        PolarSide::Left => product(&(&w * s), &adjoint(&w)),
    };
    (product(&w, &vh), p)
}
