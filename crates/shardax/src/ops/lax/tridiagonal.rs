//! Tridiagonal systems of equations.

use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::error::{Result, err};
use crate::ops::constants::zeros_like;
use crate::ops::control_flow::{ScanOptions, scan};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::select::where_;

/// Solves `a x = b` for tridiagonal matrices with the diagonals `dl` (below), `d` and `du` (above), each `[..., n]`, and
/// `b` of `[..., n, k]`. The first element of `dl` and the last element of `du` are not read.
///
/// Uses Gaussian elimination with partial pivoting, in `n` sequential steps. The result for a singular matrix is infinite or NaN.
///
/// ```
/// # use shardax::prelude::*;
/// let (dl, d, du) = (array([0.0f32, 1.0, 1.0]), array([2.0f32, 2.0, 2.0]), array([1.0f32, 1.0, 0.0]));
/// let b = array([[4.0f32], [8.0], [8.0]]);
/// let x = lax::linalg::tridiagonal_solve(&dl, &d, &du, &b);
/// assert!(allclose(x, array([[1.0f32], [2.0], [3.0]]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for integers, different dtypes, and shapes that do not fit.
#[track_caller]
pub fn tridiagonal_solve(dl: impl ArrayLike, d: impl ArrayLike, du: impl ArrayLike, b: impl ArrayLike) -> Array {
    let args = [dl.into_array(), d.into_array(), du.into_array(), b.into_array()];
    or_failed(&args[3], || {
        args.iter().try_for_each(Array::check)?;
        check_system(&args)?;
        composite1("tridiagonal_solve", (), &args, |(), args| Ok(vec![eliminate(args)?]))
    })
}

/// Returns an error unless the diagonals have one shape, which fits the right side, and all have one inexact dtype.
fn check_system(args: &[Array; 4]) -> Result<()> {
    let [dl, d, du, b] = args;
    let types = args.iter().map(Array::type_name).collect::<Vec<_>>().join(", ");
    let fits = d.ndim() > 0 && b.ndim() == d.ndim() + 1 && b.shape()[..d.ndim()] == *d.shape();
    if !fits || dl.shape() != d.shape() || du.shape() != d.shape() {
        return Err(err!(
            Value,
            "tridiagonal_solve needs three diagonals [..., n] of one shape and a right side [..., n, k], got {types}"
        )
        .help("pad the diagonals to the size of the matrix, and pass a vector as `b.expand_dims(-1)`"));
    }
    if !d.dtype().is_inexact() || args.iter().any(|x| x.dtype() != d.dtype()) {
        return Err(err!(Type, "tridiagonal_solve needs one floating point or complex dtype, got {types}")
            .help("convert the arrays with `astype`"));
    }
    Ok(())
}

/// Three consecutive elements of a row, from its first one that is not zero, and the row's right side.
type Row = (Array, Array, Array, Array);

/// Eliminates the lower diagonal from the first row to the last, and substitutes backwards.
fn eliminate(args: &[Array]) -> Result<Array> {
    if args[3].size() == 0 {
        return Ok(args[3].clone());
    }
    let rank = args[1].ndim();
    // The rows come first, so that scans run over them; the diagonals broadcast over the columns of the right side.
    let [dl, d, du] = [&args[0], &args[1], &args[2]].map(|x| x.expand_dims(-1).moveaxis(rank as i32 - 1, 0));
    let b = args[3].moveaxis(rank as i32 - 1, 0);
    // Whatever is stored there, the last row has nothing above the diagonal.
    let du = du.at(-1).set(0);
    let first = (d.get(0), du.get(0), zeros_like(d.get(0)), b.get(0));
    let rows = [dl, d, du, b.clone()].map(|x| x.get(1..));
    let [dl, d, du, right] = rows;
    let (last, upper) = scan(eliminate_row, first, (dl, d, du, right))?;
    let x = substitute_row((zeros_like(b.get(0)), zeros_like(b.get(0))), last).1;
    let options = ScanOptions::new().reverse(true);
    let (_, xs) = options.scan(substitute_row, (x.clone(), zeros_like(&x)), upper)?;
    Ok(super::concatenate(&[xs, x.expand_dims(0)], 0).moveaxis(0, rank as i32 - 1))
}

/// Eliminates the first element of the remaining or of the next row, whichever is smaller. Returns the new remaining row, and the
/// row of the upper triangle.
fn eliminate_row(remaining: Row, (dl, d, du, b): Row) -> (Row, Row) {
    let is_swapped = dl.abs().greater(remaining.0.abs());
    let next = (dl, d, du, b);
    // The order is chosen before the division, so that gradients divide by no zero of the other order.
    let choose = |on_true: &Array, on_false: &Array| where_(&is_swapped, on_true, on_false);
    let pivot = (
        choose(&next.0, &remaining.0),
        choose(&next.1, &remaining.1),
        choose(&next.2, &remaining.2),
        choose(&next.3, &remaining.3),
    );
    let factor = choose(&remaining.0, &next.0) / &pivot.0;
    let rest = (
        choose(&remaining.1, &next.1) - &factor * &pivot.1,
        choose(&remaining.2, &next.2) - &factor * &pivot.2,
        zeros_like(&pivot.2),
        choose(&remaining.3, &next.3) - &factor * &pivot.3,
    );
    (rest, pivot)
}

/// Solves a row of the upper triangle, given the solutions of the two rows below.
fn substitute_row((next, after): (Array, Array), (d, du, du2, right): Row) -> ((Array, Array), Array) {
    let x = (right - du * &next - du2 * after) / d;
    ((x.clone(), next), x)
}
