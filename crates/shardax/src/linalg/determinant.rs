//! Determinants.

use super::{inexact, pair};
use crate::core::array::Array;
use crate::core::program::trace::at_caller;
use crate::ops::lax;
use crate::ops::numpy::{convert, ones_like, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::{composite, composite1};
use crate::ops::primitive::det::{Det, parity};
use crate::ops::primitive::lu::Lu;
use crate::ops::primitive::matrix::{square, square_of_inexact};
use crate::ops::primitive::unary::{ABS, LOG, SIGN};

/// The determinants of square matrices: `[...]` of `[..., n, n]`; 1 for `n = 0`.
///
/// Fails for less than two dimensions, and matrices that are not square.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(linalg::det(array([[1.0f32, 2.0], [3.0, 4.0]])).item::<f32>()?, -2.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn det(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    let made = at_caller(|| {
        let x = inexact(&x)?;
        square_of_inexact("det", &x.aval())?;
        composite1("det_by_size", (), &[x], |(), x| Ok(vec![det_traced(&x[0])]))
    });
    Array::from_result(made, &x)
}

/// Small determinants are written out: exact for small integers, with gradients at singular matrices too.
fn det_traced(x: &Array) -> Array {
    let at = |i: usize, j: usize| {
        let row = lax::slice_in_dim(x, i, i + 1, -2);
        lax::slice_in_dim(&row, j, j + 1, -1).squeeze([-2, -1])
    };
    let minor = |i: [usize; 2], j: [usize; 2]| at(i[0], j[0]) * at(i[1], j[1]) - at(i[0], j[1]) * at(i[1], j[0]);
    match x.shape()[x.ndim() - 1] {
        0 => ones_like(&x.sum([-2, -1])),
        1 => at(0, 0),
        2 => minor([0, 1], [0, 1]),
        3 => at(0, 0) * minor([1, 2], [1, 2]) - at(0, 1) * minor([1, 2], [0, 2]) + at(0, 2) * minor([1, 2], [0, 1]),
        _ => Det.apply(x),
    }
}

/// `(sign, logabsdet)` of the determinants of square matrices `[..., n, n]`, each `[...]`: the determinant is
/// `sign * exp(logabsdet)`, where that does not overflow. A singular matrix has sign 0 and the logarithm -inf; a
/// complex determinant has a complex sign of absolute value 1.
///
/// Fails for less than two dimensions, and matrices that are not square.
///
/// ```
/// # use shardax::prelude::*;
/// let (sign, logabsdet) = linalg::slogdet(array([[0.0f32, 2.0], [2.0, 0.0]]));
/// assert_eq!(sign.item::<f32>()?, -1.0);
/// assert_eq!(logabsdet.item::<f32>()?, 4.0f32.ln());
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn slogdet(x: impl ArrayLike) -> (Array, Array) {
    let x = x.into_array();
    let made = at_caller(|| {
        let x = inexact(&x)?;
        let n = square_of_inexact("slogdet", &x.aval())?;
        if n > 2 {
            square("slogdet", &x.aval())?;
        }
        composite("slogdet", (), 2, &[x], |(), x| {
            let weak = x[0].weak_type();
            Ok(slogdet_traced(&x[0]).iter().map(|y| convert(y, y.dtype(), weak)).collect())
        })
    });
    pair(made, &x)
}

fn slogdet_traced(x: &Array) -> Vec<Array> {
    if x.shape()[x.ndim() - 1] <= 2 {
        let det = det_traced(x);
        return vec![SIGN.apply(&det), LOG.apply(&ABS.apply(&det))];
    }
    let lu = Lu.apply(x);
    let diagonal = lu[0].last_diagonal(0);
    let size = ABS.apply(&diagonal);
    let signs = match x.dtype().is_complex() {
        true => where_(size.equal(0), 0, &diagonal / size.astype(x.dtype())),
        false => SIGN.apply(&diagonal),
    };
    vec![signs.prod(-1) * parity(&lu[1], x.dtype()), LOG.apply(&size).sum(-1)]
}
