//! Determinants.

use super::{inexact, pair};
use crate::core::array::Array;
use crate::core::program::trace::{at_caller, or_failed};
use crate::ops::lax;
use crate::ops::numpy::{convert, ones_like, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::{composite, composite1};
use crate::ops::primitive::det::{Det, parity};
use crate::ops::primitive::lu::Lu;
use crate::ops::primitive::matrix::{square, square_of_inexact};
use crate::ops::primitive::unary::{ABS, LOG, SIGN};

/// Computes the determinants of square matrices `[..., n, n]`, of shape `[...]`. The determinant for `n = 0` is 1.
///
/// Determinants of large matrices overflow easily; use [`slogdet`] for their logarithms.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(linalg::det(array([[1.0f32, 2.0], [3.0, 4.0]])).item::<f32>()?, -2.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions, and for matrices that are not square.
#[track_caller]
pub fn det(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    or_failed(&x, || {
        let x = inexact(&x)?;
        square_of_inexact("det", &x.aval())?;
        composite1("det_by_size", (), &[x], |(), x| Ok(vec![det_by_size(&x[0])]))
    })
}

/// Computes determinants. The formulas for small matrices are written out, because they are exact for small integers and
/// have gradients at singular matrices.
fn det_by_size(x: &Array) -> Array {
    match x.shape()[x.ndim() - 1] {
        0 => ones_like(&x.sum([-2, -1])),
        1 => element(x, 0, 0),
        2 => minor(x, [0, 1], [0, 1]),
        3 => {
            element(x, 0, 0) * minor(x, [1, 2], [1, 2]) - element(x, 0, 1) * minor(x, [1, 2], [0, 2])
                + element(x, 0, 2) * minor(x, [1, 2], [0, 1])
        }
        _ => Det.apply(x),
    }
}

/// Returns the element at row `i` and column `j` of each matrix.
fn element(x: &Array, i: usize, j: usize) -> Array {
    let row = lax::slice_in_dim(x, i, i + 1, -2);
    lax::slice_in_dim(&row, j, j + 1, -1).squeeze([-2, -1])
}

/// Returns the determinant of two rows and two columns of each matrix.
fn minor(x: &Array, rows: [usize; 2], columns: [usize; 2]) -> Array {
    let [i, j] = rows;
    let [k, l] = columns;
    element(x, i, k) * element(x, j, l) - element(x, i, l) * element(x, j, k)
}

/// Computes the signs and logarithms `(sign, logabsdet)` of the determinants of square matrices `[..., n, n]`, both of
/// shape `[...]`. The determinant is `sign * exp(logabsdet)`, which can overflow. A singular matrix has the sign 0 and
/// the logarithm -inf. The sign of a complex determinant is complex and has absolute value 1.
///
/// ```
/// # use shardax::prelude::*;
/// let (sign, logabsdet) = linalg::slogdet(array([[0.0f32, 2.0], [2.0, 0.0]]));
/// assert_eq!(sign.item::<f32>()?, -1.0);
/// assert_eq!(logabsdet.item::<f32>()?, 4.0f32.ln());
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for less than two dimensions, and for matrices that are not square.
#[track_caller]
pub fn slogdet(x: impl ArrayLike) -> (Array, Array) {
    let x = x.into_array();
    let outputs = at_caller(|| {
        let x = inexact(&x)?;
        let n = square_of_inexact("slogdet", &x.aval())?;
        if n > 2 {
            square("slogdet", &x.aval())?;
        }
        composite("slogdet", (), 2, &[x], |(), x| {
            let weak = x[0].weak_type();
            Ok(slogdet_by_size(&x[0]).iter().map(|y| convert(y, y.dtype(), weak)).collect())
        })
    });
    pair(outputs, &x)
}

/// Computes signs and logarithms. Large matrices use the diagonal of an LU decomposition, because determinants overflow.
fn slogdet_by_size(x: &Array) -> Vec<Array> {
    if x.shape()[x.ndim() - 1] <= 2 {
        let det = det_by_size(x);
        return vec![SIGN.apply(&det), LOG.apply(&ABS.apply(&det))];
    }
    let lu = Lu.apply(x);
    let diagonal = lu[0].last_diagonal(0);
    let size = ABS.apply(&diagonal);
    let signs = if x.dtype().is_complex() {
        where_(size.equal(0), 0, &diagonal / size.astype(x.dtype()))
    } else {
        SIGN.apply(&diagonal)
    };
    vec![signs.prod(-1) * parity(&lu[1], x.dtype()), LOG.apply(&size).sum(-1)]
}
