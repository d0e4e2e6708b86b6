//! Polynomials by least squares and by eigenvalues.

use super::{eigvals, lstsq};
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::error::err;
use crate::ops::lax;
use crate::ops::numpy::{ConvolveMode, complex, convolve, ones_like, promote_dtypes, to_inexact, vander, zeros_dtype};
use crate::ops::operators::ArrayLike;
use crate::rank_promotion;

/// The largest degree of [`polyfit`], which decomposes a matrix with one column more.
const MAX_DEGREE: usize = 1 << 12;

/// Fits a polynomial of degree `deg` to points by least squares. Returns the floating point coefficients, the highest
/// power first: `[deg + 1]` for values `y` of shape `[n]`, and `[deg + 1, k]` for values of shape `[n, k]`.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([0.0f32, 1.0, 2.0, 3.0]);
/// let p = shardax::numpy::polyfit(&x, x.square() * 2 - 1, 2, None);
/// assert!(allclose(p, array([2.0f32, 0.0, -1.0]), 1e-4, 1e-4)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// `w` are weights of the distances, of shape `[n]`.
///
/// # Errors
/// The result carries an error for shapes that do not fit, and if there are no points.
#[track_caller]
pub fn polyfit<'a>(x: impl ArrayLike, y: impl ArrayLike, deg: usize, w: impl Into<Option<&'a Array>>) -> Array {
    let (x, y, w) = (x.into_array(), y.into_array(), w.into());
    or_failed(&y, || {
        let args = promote_dtypes(&[&x, &y], to_inexact)?;
        let fits = x.ndim() == 1 && x.size() > 0 && matches!(y.ndim(), 1 | 2) && y.shape()[0] == x.size();
        if !fits || w.is_some_and(|w| w.shape() != x.shape()) {
            return Err(err!(Value, "polyfit got incompatible x {} and y {}", x.type_name(), y.type_name())
                .help("`x`, `y` and the weights must be vectors of the same length; for several sets of values, pass `y` of shape [n, k]"));
        }
        if deg > MAX_DEGREE {
            return Err(err!(Value, "polyfit of degree {deg} is too large")
                .help(format!("choose a degree of at most {MAX_DEGREE}")));
        }
        let _ranks = rank_promotion::allow();
        let (mut left, mut right) = (vander(&args[0], deg + 1), args[1].clone());
        if let Some(w) = w {
            let w = w.astype(right.dtype());
            left = left * w.expand_dims(1);
            right = if right.ndim() == 2 { right * w.expand_dims(1) } else { right * w };
        }
        // Columns of equal length make the least-squares problem better conditioned.
        let scale = left.square().sum(0).sqrt();
        let (c, ..) = lstsq(left / &scale, &right);
        Ok(if right.ndim() == 2 { c / scale.expand_dims(1) } else { c / scale })
    })
}

/// Computes the complex roots of a polynomial in no order. `p` are the coefficients, the highest power first.
///
/// Zeros at both ends of the coefficients are removed if their values are known. Inside of `jit` they are not, so the first
/// coefficient must not be 0.
///
/// ```
/// # use shardax::prelude::*;
/// let r = shardax::numpy::roots(array([1.0f32, -3.0, 2.0]));
/// assert!(allclose(r.real().sort(-1), array([1.0f32, 2.0]), 1e-4, 1e-4)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// The coefficients must be a vector; otherwise it fails.
#[track_caller]
pub fn roots(p: impl ArrayLike) -> Array {
    let p = p.into_array();
    or_failed(&p, || {
        let x = promote_dtypes(&[&p], to_inexact)?.swap_remove(0);
        if x.ndim() != 1 {
            return Err(err!(Value, "roots needs a vector of coefficients, got {}", p.type_name())
                .help("use `vmap` for several polynomials"));
        }
        let (mut start, mut end) = (0, x.size());
        if !x.is_traced() {
            let is_zero: Vec<bool> = x.not_equal(0).to_vec::<bool>()?.into_iter().map(|b| !b).collect();
            start = is_zero.iter().position(|zero| !zero).unwrap_or(end);
            end = is_zero.iter().rposition(|zero| !zero).map_or(start, |last| last + 1);
        }
        // Each zero at the end is a root at 0.
        let zeros = if start == end { 0 } else { x.size() - end };
        let zeros = zeros_dtype([zeros], complex(x.real(), 0).dtype());
        if end - start < 2 {
            return Ok(zeros);
        }
        let nonzero = eigvals(crate::scipy::linalg::companion(lax::slice_in_dim(&x, start, end, 0)))?;
        let zeros = zeros.astype(nonzero.dtype());
        Ok(lax::concatenate(&[nonzero, zeros], 0))
    })
}

/// Returns the coefficients of the polynomial with these roots, or of the characteristic polynomial of a square matrix.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::numpy::poly(array([1.0f32, 2.0])).to_vec::<f32>()?, [1.0, -3.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// The argument must be a vector or a square matrix; otherwise it fails.
#[track_caller]
pub fn poly(seq_of_zeros: impl ArrayLike) -> Array {
    let seq_of_zeros = seq_of_zeros.into_array();
    or_failed(&seq_of_zeros, || {
        let x = promote_dtypes(&[&seq_of_zeros], to_inexact)?.swap_remove(0);
        let x = match *x.shape() {
            [_] => x,
            [m, n] if m == n && n > 0 => eigvals(x)?,
            _ => {
                return Err(err!(Value, "poly needs a vector or a square matrix, got {}", seq_of_zeros.type_name())
                    .help("use `vmap` for several polynomials"));
            }
        };
        let unit = ones_like(x.sum(..)).expand_dims(0);
        Ok((0..x.size()).fold(unit.clone(), |product, i| {
            let factor = lax::concatenate(&[unit.clone(), -lax::slice_in_dim(&x, i, i + 1, 0)], 0);
            convolve(product, factor, ConvolveMode::Full)
        }))
    })
}
