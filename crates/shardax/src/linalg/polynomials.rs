//! Polynomials by least squares and by eigenvalues.

use super::{eigvals, lstsq};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::error::err;
use crate::ops::lax;
use crate::ops::numpy::{ConvolveMode, complex, convolve, ones_like, promote_dtypes, to_inexact, vander, zeros_dtype};
use crate::ops::operators::ArrayLike;

/// The largest degree: a matrix of as many columns is decomposed.
const MOST: usize = 1 << 12;

/// The coefficients, the highest power first, of the polynomial of degree `deg` that is closest to the points: `[deg + 1]`
/// for values `[n]`, `[deg + 1, k]` for `[n, k]`. Floating point.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([0.0f32, 1.0, 2.0, 3.0]);
/// let p = shardax::numpy::polyfit(&x, x.square() * 2 - 1, 2, None);
/// assert!(allclose(p, array([2.0f32, 0.0, -1.0]), 1e-4, 1e-4)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// `w` are weights of the distances, `[n]`. Fails for shapes that do not fit, and without points.
#[track_caller]
pub fn polyfit<'a>(x: impl ArrayLike, y: impl ArrayLike, deg: usize, w: impl Into<Option<&'a Array>>) -> Array {
    let (x, y, w) = (x.into_array(), y.into_array(), w.into());
    let made = at_caller(|| {
        let args = promote_dtypes(&[&x, &y], to_inexact)?;
        let fits = x.ndim() == 1 && x.size() > 0 && matches!(y.ndim(), 1 | 2) && y.shape()[0] == x.size();
        if !fits || w.is_some_and(|w| w.shape() != x.shape()) {
            return Err(err!(Value, "polyfit got incompatible x {} and y {}", x.type_name(), y.type_name())
                .help("give vectors of points and values of one length, with weights of that length; several sets of values are [n, k]"));
        }
        if deg > MOST {
            return Err(err!(Value, "polyfit of degree {deg} is too large").help(format!("ask for at most {MOST}")));
        }
        let (mut left, mut right) = (vander(&args[0], deg + 1), args[1].clone());
        if let Some(w) = w {
            let w = w.astype(right.dtype());
            left = left * w.expand_dims(1);
            right = if right.ndim() == 2 { right * w.expand_dims(1) } else { right * w };
        }
        let scale = left.square().sum(0).sqrt();
        let (c, ..) = lstsq(left / &scale, &right);
        Ok(if right.ndim() == 2 { c / scale.expand_dims(1) } else { c / scale })
    });
    Array::from_result(made, &y)
}

/// The roots of the polynomial with these coefficients, the highest power first: complex, in no order. Zeros at the ends
/// are left out where the values can be read; inside `jit` the first coefficient must not be 0.
///
/// ```
/// # use shardax::prelude::*;
/// let r = shardax::numpy::roots(array([1.0f32, -3.0, 2.0]));
/// assert!(allclose(r.real().sort(-1), array([1.0f32, 2.0]), 1e-4, 1e-4)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails for other than one dimension.
#[track_caller]
pub fn roots(p: impl ArrayLike) -> Array {
    let p = p.into_array();
    let made = at_caller(|| {
        let x = promote_dtypes(&[&p], to_inexact)?.swap_remove(0);
        if x.ndim() != 1 {
            return Err(err!(Value, "roots needs a vector of coefficients, got {}", p.type_name())
                .help("map over several polynomials with `vmap`"));
        }
        let (mut start, mut end) = (0, x.size());
        if !x.is_traced() {
            let is_zero: Vec<bool> = x.not_equal(0).to_vec::<bool>()?.into_iter().map(|b| !b).collect();
            start = is_zero.iter().position(|zero| !zero).unwrap_or(end);
            end = is_zero.iter().rposition(|zero| !zero).map_or(start, |last| last + 1);
        }
        // Zeros at the end are roots of 0.
        let zeros = if start == end { 0 } else { x.size() - end };
        let zeros = zeros_dtype([zeros], complex(x.real(), 0).dtype());
        if end - start < 2 {
            return Ok(zeros);
        }
        let found = eigvals(crate::scipy::linalg::companion(lax::slice_in_dim(&x, start, end, 0)))?;
        let zeros = zeros.astype(found.dtype());
        Ok(lax::concatenate(&[found, zeros], 0))
    });
    Array::from_result(made, &p)
}

/// The coefficients of the polynomial with these roots, or of the characteristic polynomial of a square matrix.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::numpy::poly(array([1.0f32, 2.0])).to_vec::<f32>()?, [1.0, -3.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails for other than one dimension, or two of a square matrix.
#[track_caller]
pub fn poly(seq_of_zeros: impl ArrayLike) -> Array {
    let given = seq_of_zeros.into_array();
    let made = at_caller(|| {
        let x = promote_dtypes(&[&given], to_inexact)?.swap_remove(0);
        let x = match *x.shape() {
            [_] => x,
            [m, n] if m == n && n > 0 => eigvals(x)?,
            _ => {
                return Err(err!(Value, "poly needs a vector or a square matrix, got {}", given.type_name())
                    .help("map over several polynomials with `vmap`"));
            }
        };
        let one = ones_like(x.sum(..)).expand_dims(0);
        Ok((0..x.size()).fold(one.clone(), |product, i| {
            let factor = lax::concatenate(&[one.clone(), -lax::slice_in_dim(&x, i, i + 1, 0)], 0);
            convolve(product, factor, ConvolveMode::Full)
        }))
    });
    Array::from_result(made, &given)
}
