//! Matrices that a rule builds from numbers or vectors.

use std::f64::consts::PI;

use super::{at_least_a_vector, toeplitz};
use crate::choice::{IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::constants::eye_offset_dtype;
use crate::ops::lax;
use crate::ops::numpy::{ConvolveMode, complex, maximum, promote_dtypes, to_inexact, where_, zeros_dtype};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::rank_promotion;

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
/// `r[0]` is ignored in favor of the last element of `c`. Leading dimensions are a batch of vectors and broadcast.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::linalg::hankel(array([1, 2, 3]), array([0, 4]));
/// assert_eq!(x.to_vec::<i32>()?, [1, 2, 2, 3, 3, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if the leading dimensions do not broadcast.
#[track_caller]
pub fn hankel(c: impl ArrayLike, r: impl ArrayLike) -> Array {
    // A Toeplitz matrix upside down: its first row is the last row here, whose first element `toeplitz` ignores as well.
    let c = at_least_a_vector(c.into_array());
    toeplitz(c.flip(-1), r).flip(-2)
}

/// Returns the companion matrix of a polynomial. The coefficients start with the highest power. Leading dimensions are a
/// batch of polynomials.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::linalg::companion(array([1.0f32, -3.0, 2.0]));
/// assert_eq!(x.to_vec::<f32>()?, [3.0, -2.0, 1.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two coefficients.
#[track_caller]
pub fn companion(a: impl ArrayLike) -> Array {
    let a = a.into_array();
    or_failed(&a, || {
        let x = promote_dtypes(&[&a], to_inexact)?.swap_remove(0);
        if x.shape().last().is_none_or(|&n| n < 2) {
            return Err(err!(Value, "companion needs at least two coefficients, got {}", x.type_name())
                .help("pass a vector of coefficients, the highest power first"));
        }
        composite1("companion", (), &[x], |(), args| {
            let a = &args[0];
            let (n, batch) = (a.shape()[a.ndim() - 1], &a.shape()[..a.ndim() - 1]);
            let row = monic_coefficients(a).expand_dims(-2);
            let below = eye_offset_dtype(n - 2, n - 1, 0, DType::F32).astype(a.dtype());
            Ok(vec![lax::concatenate(&[row, below.broadcast_to([batch, &[n - 2, n - 1]].concat())], -2)])
        })
    })
}

/// The coefficients after the first, divided by the first, with the sign that companion matrices have.
fn monic_coefficients(a: &Array) -> Array {
    -lax::slice_in_dim(a, 1, a.shape()[a.ndim() - 1], -1) / lax::slice_in_dim(a, 0, 1, -1)
}

/// Returns Fiedler's companion matrix of a polynomial, which has five diagonals and the eigenvalues of [`companion`]
/// ([Fiedler, A note on companion matrices](https://doi.org/10.1016/S0024-3795(03)00548-2)). The coefficients start with
/// the highest power. Leading dimensions are a batch of polynomials.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::linalg::fiedler_companion(array([1.0f32, -3.0, 2.0]));
/// assert_eq!(x.to_vec::<f32>()?, [3.0, -2.0, 1.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error without coefficients.
#[track_caller]
pub fn fiedler_companion(a: impl ArrayLike) -> Array {
    let a = at_least_a_vector(a.into_array());
    or_failed(&a, || {
        let x = promote_dtypes(&[&a], to_inexact)?.swap_remove(0);
        if x.shape()[x.ndim() - 1] == 0 {
            return Err(err!(Value, "fiedler_companion needs at least one coefficient, got {}", x.type_name())
                .help("pass a vector of coefficients, the highest power first"));
        }
        composite1("fiedler_companion", (), &[x], |(), args| Ok(vec![fiedler_companion_of(&args[0])]))
    })
}

fn fiedler_companion_of(a: &Array) -> Array {
    let n = a.shape()[a.ndim() - 1] - 1;
    let [row, column] = [0, 1].map(|d| lax::iota(DType::I64, &[n, n], d));
    let right = column.clone() - &row;
    let is_even = (&row & 1).equal(0);
    let is_corner = (&row + &column).equal(0);
    // In even rows, the coefficients are next to the diagonal; in the others, the ones lead to the next pair of them.
    let is_coefficient = (is_even.clone() & right.abs().equal(1)) | is_corner;
    let is_one = (is_even.clone() & right.equal(2)) | (!is_even & right.equal(-2)) | (row.equal(1) & column.equal(0));
    let coefficients = monic_coefficients(a).take(where_(is_coefficient.clone(), maximum(row, column), 0), -1);
    where_(is_coefficient, coefficients, is_one.astype(a.dtype()))
}

/// Returns the matrix whose product with a vector `[n]` is the convolution of `a` with it, as
/// [`convolve`](crate::numpy::convolve()) returns. The matrix has `m + n - 1` rows in the mode
/// [`ConvolveMode::Full`], for `a` of `m` elements. Leading dimensions are a batch.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::ConvolveMode;
/// let (a, x) = (array([1.0f32, 2.0]), array([3.0f32, 4.0, 5.0]));
/// let matrix = shardax::scipy::linalg::convolution_matrix(&a, 3, ConvolveMode::Full);
/// assert_eq!(matrix.matmul(&x).to_vec::<f32>()?, convolve(&a, &x, ConvolveMode::Full).to_vec::<f32>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for scalars, arrays without elements, and `n` of 0.
#[track_caller]
pub fn convolution_matrix(a: impl ArrayLike, n: usize, mode: impl IntoChoice<ConvolveMode>) -> Array {
    let (a, mode) = (a.into_array(), mode.into_choice());
    or_failed(&a, || {
        let mode = mode.value("convolution_matrix")?;
        vector("convolution_matrix", &a)?;
        let m = a.shape()[a.ndim() - 1];
        if m == 0 || n == 0 {
            return Err(err!(
                Value,
                "convolution_matrix needs elements and columns, got {} and n = {n}",
                a.type_name()
            )
            .help("pass a vector of at least one element, and the size of the vectors that the matrix multiplies"));
        }
        let trimmed = m.min(n) - 1;
        let (before, after) = match mode {
            ConvolveMode::Full => (0, 0),
            ConvolveMode::Same => (trimmed / 2, trimmed - trimmed / 2),
            ConvolveMode::Valid => (trimmed, trimmed),
        };
        let zeros = Array::literal(Scalar::Int(0), a.dtype(), false);
        let pads: Vec<_> = (0..a.ndim()).map(|d| (0, if d + 1 == a.ndim() { n as i64 - 1 } else { 0 }, 0)).collect();
        let (column, row) = (lax::pad(&a, &zeros, &pads), lax::pad(&a.flip(-1), &zeros, &pads));
        let end = m + n - 1;
        Ok(toeplitz(
            lax::slice_in_dim(&column, before, end - after, -1),
            lax::slice_in_dim(&row, m - 1 - before, end - before, -1),
        ))
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

/// JAX's names.
impl NamedOption for DftScale {
    const KIND: &'static str = "scale";
    const NAMES: &'static [(&'static str, Self)] = &[("sqrtn", DftScale::Sqrtn), ("n", DftScale::N)];
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
pub fn dft(n: usize, scale: impl IntoChoice<DftScale>) -> Array {
    // The products are reduced modulo the period first, because large angles would lose digits.
    let product = crate::ops::numpy::remainder(places(n, 0) * places(n, 1), n.max(1) as f64);
    let angle = product * (-2.0 * PI / n.max(1) as f64);
    let matrix = complex(angle.cos(), angle.sin());
    let scale = scale.into_choice();
    or_failed(&matrix, || {
        Ok(match scale.value("dft")? {
            DftScale::None => matrix.clone(),
            DftScale::Sqrtn => &matrix / (n as f64).sqrt(),
            DftScale::N => &matrix / n as f64,
        })
    })
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

/// Returns the Leslie matrix of a population. The first row has the fecundities `f` of `[..., n]`, the first subdiagonal the
/// survivals `s` of `[..., n - 1]`. Leading dimensions are a batch of populations and broadcast.
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
        let (n, survivals) = match (f.shape().last(), s.shape().last()) {
            (Some(&n), Some(&survivals)) if n == survivals + 1 && survivals > 0 => (n, survivals),
            _ => {
                return Err(err!(
                    Value,
                    "leslie needs vectors of n and n - 1 elements, got {} and {}",
                    f.type_name(),
                    s.type_name()
                )
                .help("pass one survival fewer than fecundities, because the last age has none"));
            }
        };
        let _ranks = rank_promotion::allow();
        let below = args[1].expand_dims(-1) * eye_offset_dtype(survivals, n, 0, args[1].dtype());
        let shape = crate::shape::broadcast_shapes(&[&f.shape()[..f.ndim() - 1], &s.shape()[..s.ndim() - 1]]);
        let batch = shape.ok_or_else(|| {
            err!(Value, "leslie: the batches of {} and {} do not broadcast", f.type_name(), s.type_name())
                .help("pass leading dimensions that broadcast")
        })?;
        let first = args[0].expand_dims(-2).broadcast_to([batch.as_slice(), &[1, n]].concat());
        Ok(lax::concatenate(&[first, below.broadcast_to([batch.as_slice(), &[survivals, n]].concat())], -2))
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

/// JAX's names.
impl NamedOption for PolarSide {
    const KIND: &'static str = "side";
    const NAMES: &'static [(&'static str, Self)] = &[("right", PolarSide::Right), ("left", PolarSide::Left)];
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
pub fn polar(a: impl ArrayLike, side: impl IntoChoice<PolarSide>) -> (Array, Array) {
    use crate::ops::primitive::matrix::{adjoint, product};
    let (side, a) = (side.into_choice(), a.into_array());
    let (w, s, vh) = crate::linalg::svd(&a);
    if w.error().is_some() {
        return (w.clone(), w);
    }
    let side = match side.value("polar") {
        Ok(side) => side,
        Err(error) => {
            let failed = or_failed(&a, || Err(error));
            return (failed.clone(), failed);
        }
    };
    let s = s.expand_dims(-2).astype(w.dtype());
    let p = match side {
        PolarSide::Right => product(&(adjoint(&vh) * s), &vh),
        PolarSide::Left => product(&(&w * s), &adjoint(&w)),
    };
    (product(&w, &vh), p)
}
