//! Matrix functions, as in [`jax.scipy.linalg`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.linalg).

mod combinatorial;
mod factors;
mod matrices;
mod schur;
mod solve;

pub use combinatorial::*;
pub use factors::*;
pub use matrices::*;
pub use schur::*;
pub use solve::*;

pub use crate::linalg::{det, eigh, inv, qr, svd};

use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, bail, err};
use crate::linalg::solve as solve_general;
use crate::ops::control_flow::{cond, scan};
use crate::ops::lax::{self, Triangular};
use crate::ops::numpy::{conj, convert, promote_dtypes, to_inexact, where_};
use crate::ops::operators::{ArrayLike, IntoArrays};
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::matrix::{eye_like, product, square, square_of_inexact};
use crate::ops::primitive::stop_gradient::stop_gradient;
use crate::ops::primitive::unary::{ABS, CEIL, LOG};
use crate::shape::broadcast_shapes;

/// Solves `l lᴴ x = b` for `x`, where `l` is the lower triangular factor that
/// [`linalg::cholesky`](crate::linalg::cholesky()) returns.
///
/// `b` is one vector `[n]`, or matrices `[..., n, k]` with the leading dimensions of `l`.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::linalg::cho_solve;
/// let a = array([[4.0f32, 2.0], [2.0, 5.0]]);
/// let x = cho_solve(shardax::linalg::cholesky(&a), array([6.0f32, 7.0]));
/// assert!(allclose(x, array([1.0f32, 1.0]), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit.
#[track_caller]
pub fn cho_solve(l: impl ArrayLike, b: impl ArrayLike) -> Array {
    let (l, b) = (l.into_array(), b.into_array());
    or_failed(&b, || {
        let args = promote_dtypes(&[&l, &b], to_inexact)?;
        square_of_inexact("cho_solve", &args[0].aval())?;
        composite1("cho_solve", (), &args, |(), args| {
            let (l, b) = (&args[0], &args[1]);
            let columns = if b.ndim() == 1 { b.expand_dims(-1) } else { b.clone() };
            let lower = Triangular { left_side: true, lower: true, ..Triangular::default() };
            let y = lax::triangular_solve(l, &columns, lower);
            let adjoint = Triangular { transpose_a: true, conjugate_a: true, ..lower };
            let x = lax::triangular_solve(l, &y, adjoint);
            Ok(vec![if b.ndim() == 1 { x.squeeze(-1) } else { x }])
        })
    })
}

/// Returns the Cholesky factor for [`cho_solve`]: SciPy's name of [`linalg::cholesky`](crate::linalg::cholesky()).
///
/// ```
/// # use shardax::prelude::*;
/// let l = shardax::scipy::linalg::cho_factor(array([[4.0f32, 2.0], [2.0, 5.0]]));
/// assert_eq!(l.to_vec::<f32>()?, [2.0, 0.0, 1.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn cho_factor(x: impl ArrayLike) -> Array {
    crate::linalg::cholesky(x)
}

/// Returns the block diagonal matrix of these blocks. A vector is a row, a scalar is a matrix of one element.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::linalg::block_diag(&[ones([1, 2]), array([[3.0f32]])]);
/// assert_eq!(x.to_vec::<f32>()?, [1.0, 1.0, 0.0, 0.0, 0.0, 3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for arrays of more than two dimensions.
#[track_caller]
pub fn block_diag<Form>(arrays: impl IntoArrays<Form>) -> Array {
    let arrays = &arrays.into_arrays();
    let like = arrays.first().cloned().unwrap_or_else(|| Array::from(0.0f32));
    or_failed(&like, || {
        let arrays = promote_dtypes(&arrays.iter().collect::<Vec<_>>(), |d| d)?;
        let mut blocks = Vec::with_capacity(arrays.len());
        for x in &arrays {
            match x.ndim() {
                0..=2 => blocks.push(lax::reshape(x, &[vec![1; 2 - x.ndim()], x.shape().to_vec()].concat())),
                _ => bail!(Value, "block_diag requires arrays of at most two dimensions, got {}", x.type_name()),
            }
        }
        // Each block becomes complete rows of the result, with zeros on both sides.
        let columns: usize = blocks.iter().map(|x| x.shape()[1]).sum();
        let mut before = 0;
        let rows = blocks.iter().map(|x| {
            let after = columns - before - x.shape()[1];
            let zero = Array::literal(Scalar::Int(0), x.dtype(), false);
            let row = lax::pad(x, &zero, &[(0, 0, 0), (before as i64, after as i64, 0)]);
            before += x.shape()[1];
            row
        });
        let rows: Vec<Array> = rows.collect();
        Ok(if rows.is_empty() {
            crate::ops::numpy::zeros_dtype([1, 0], DType::F32)
        } else {
            lax::concatenate(&rows, 0)
        })
    })
}

/// Returns the Toeplitz matrix, which has constant diagonals. `c` is its first column and `r` its first row, where
/// `r[0]` is ignored in favor of `c[0]`. Leading dimensions are a batch of vectors and broadcast: the result is `[..., m, n]`.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::linalg::toeplitz(array([1, 2, 3]), array([0, 4]));
/// assert_eq!(x.to_vec::<i32>()?, [1, 4, 2, 1, 3, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if the leading dimensions do not broadcast.
#[track_caller]
pub fn toeplitz(c: impl ArrayLike, r: impl ArrayLike) -> Array {
    let (c, r) = (c.into_array(), r.into_array());
    or_failed(&c, || {
        let args: Vec<Array> = promote_dtypes(&[&c, &r], |d| d)?.into_iter().map(at_least_a_vector).collect();
        composite1("toeplitz", (), &args, |(), args| {
            let (c, r) = (&args[0], &args[1]);
            let (rows, columns) = (c.shape()[c.ndim() - 1], r.shape()[r.ndim() - 1]);
            let batch = broadcast_shapes(&[&c.shape()[..c.ndim() - 1], &r.shape()[..r.ndim() - 1]]).ok_or_else(|| {
                err!(Value, "toeplitz: the batches of {} and {} do not broadcast", c.type_name(), r.type_name())
                    .help("pass vectors, or batches whose leading dimensions broadcast; flatten a matrix with `ravel()`")
            })?;
            if rows == 0 || columns == 0 {
                let shape = [batch.as_slice(), &[rows, columns]].concat();
                return Ok(vec![Array::zeros_of(&c.aval().with_shape(shape.as_slice()).strip_weak_type())]);
            }
            let broadcast = |x: &Array, n: usize| x.broadcast_to([batch.as_slice(), &[n]].concat());
            let later_columns = lax::slice_in_dim(&broadcast(r, columns), 1, columns, -1).flip(-1);
            let diagonals = lax::concatenate(&[later_columns, broadcast(c, rows)], -1);
            let [row, column] = [0, 1].map(|d| lax::iota(DType::I32, &[rows, columns], d));
            Ok(vec![diagonals.take(row - column + (columns as i32 - 1), -1)])
        })
    })
}

/// A scalar as a vector of one element, like `atleast_1d`.
fn at_least_a_vector(x: Array) -> Array {
    if x.ndim() == 0 { x.expand_dims(0) } else { x }
}

/// Returns the symmetric [`toeplitz`] matrix of this first column; Hermitian for complex numbers.
///
/// ```
/// # use shardax::prelude::*;
/// let t = shardax::scipy::linalg::toeplitz_symmetric(array([1, 2]));
/// assert_eq!(t.to_vec::<i32>()?, [1, 2, 2, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn toeplitz_symmetric(c: impl ArrayLike) -> Array {
    let c = c.into_array();
    toeplitz(&c, conj(&c))
}

/// Returns the matrix exponentials of square matrices `[..., n, n]`. The matrix is divided by a power of two, and its
/// Padé approximant is then squared repeatedly ([Higham, The scaling and squaring method for the matrix exponential
/// revisited](https://doi.org/10.1137/04061101X)). The result is NaN for matrices that would need more than 16
/// squarings.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::linalg::expm(array([[0.0f32, 1.0], [0.0, 0.0]]));
/// assert!(allclose(x, array([[1.0f32, 1.0], [0.0, 1.0]]), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions, and matrices that are not square.
#[track_caller]
pub fn expm(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    or_failed(&x, || {
        let a = promote_dtypes(&[&x], to_inexact)?.swap_remove(0);
        square("expm", &a.aval())?;
        composite1("expm", (), &[a], |(), a| Ok(vec![exponential(&convert(&a[0], a[0].dtype(), false))?]))
    })
}

const MAX_SQUARINGS: i32 = 16;

/// The sum of matrices times these numbers.
fn combination(matrices: &[Array], coefficients: &[f64]) -> Array {
    let terms = matrices.iter().zip(coefficients).map(|(matrix, coefficient)| matrix * *coefficient);
    terms.reduce(|sum, term| sum + term).unwrap_or_else(|| &matrices[0] * 0)
}

fn exponential(a: &Array) -> Result<Array> {
    let n = a.shape()[a.ndim() - 1];
    if a.size() == 0 {
        return Ok(a.clone());
    }
    // The order of the approximant, and the largest norm for which its error is below the rounding error.
    let (order, bound) = if a.dtype().real() == DType::F64 { (13, 5.371920351148152) } else { (7, 3.92572478313866) };
    let norm = stop_gradient(ABS.apply(a)).sum(-2).max(-1);
    let squarings = CEIL.apply(&(LOG.apply(&(&norm / bound)) / std::f64::consts::LN_2));
    let squarings = squarings.maximum(0).minimum(f64::from(MAX_SQUARINGS + 1));
    // Multiplies by 1/2 repeatedly, so that the scale is an exact power of two.
    let shrunk = (0..=MAX_SQUARINGS).fold(&squarings * 0 + 1, |scale, i| {
        where_(squarings.greater(f64::from(i)), &scale * 0.5, &scale).astype(scale.dtype())
    });
    let a = a * shrunk.expand_dims([-2, -1]).astype(a.dtype());

    // cₖ = (2q - k)! q! / ((2q)! k! (q - k)!). Numerator and denominator have the same even coefficients, and odd coefficients of
    // opposite sign.
    let mut coefficients = vec![1.0];
    for k in 1..=order {
        let (q, k) = (f64::from(order), f64::from(k));
        let previous = coefficients.last().copied().unwrap_or(1.0);
        coefficients.push(previous * (q - k + 1.0) / ((2.0 * q - k + 1.0) * k));
    }
    // Each polynomial of the square is split at the cube, so that it takes one product, or none.
    let square = product(&a, &a);
    let fourth = product(&square, &square);
    let cube = product(&fourth, &square);
    let powers = [eye_like(&a, n), square, fourth, cube];
    let even: Vec<f64> = coefficients.iter().step_by(2).copied().collect();
    let odd: Vec<f64> = coefficients.iter().skip(1).step_by(2).copied().collect();
    let (even, odd) = (polynomial(&powers, &even), product(&a, &polynomial(&powers, &odd)));
    let r = solve_general(&even - &odd, even + odd);

    // Most matrices need few squarings, or none. A loop of conditions has a gradient, unlike one of as many steps as needed.
    let (r, ()) = scan(
        |r: Array, i: Array| {
            let is_squared = squarings.greater(i);
            let any = is_squared.any(..);
            let r: Array = cond(
                any,
                |(r, is_squared): (Array, Array)| {
                    where_(is_squared.expand_dims([-2, -1]), product(&r, &r), &r).astype(r.dtype())
                },
                |(r, _): (Array, Array)| r,
                (r, is_squared),
            )?;
            Ok((r, ()))
        },
        r,
        lax::iota(squarings.dtype(), &[MAX_SQUARINGS as usize], 0),
    )?;
    let much = squarings.greater(f64::from(MAX_SQUARINGS)).expand_dims([-2, -1]);
    Ok(where_(much, f64::NAN, &r).astype(r.dtype()))
}

/// Evaluates a polynomial of a matrix from its powers 0 to 3.
fn polynomial(powers: &[Array; 4], coefficients: &[f64]) -> Array {
    let (low, high) = coefficients.split_at(powers.len());
    let low = combination(powers, low);
    if high.is_empty() { low } else { low + product(&powers[3], &combination(&powers[1..], high)) }
}
