//! Triangular systems in lanes.

use super::{LANES, Lanes, subtract_product};
use crate::real::Real;
use crate::triangular_solve::Triangle;

/// Solves triangular systems of `n` equations and as many right-hand sides as `b` has columns, or rows if the matrices are on the right. The
/// solutions replace `b`.
pub(crate) fn triangular_solve<T: Real>(a: &[Lanes<T>], n: usize, triangle: Triangle, b: &mut [Lanes<T>]) {
    let columns = b.len() / n;
    // A matrix on the right has the same equations as its transpose on the left, with transposed right-hand sides.
    let [row_stride, column_stride] = if triangle.is_transposed() { [1, n] } else { [n, 1] };
    let [b_row_stride, b_column_stride] = if triangle.is_left { [columns, 1] } else { [1, n] };
    for step in 0..n {
        let i = solve_order(triangle, n, step);
        let divisor = a[i * n + i];
        for column in 0..columns {
            let mut sum = b[i * b_row_stride + column * b_column_stride];
            for solved in (0..step).map(|step| solve_order(triangle, n, step)) {
                let factor = a[i * row_stride + solved * column_stride];
                subtract_product(&mut sum, &factor, &b[solved * b_row_stride + column * b_column_stride]);
            }
            if !triangle.has_unit_diagonal {
                for lane in 0..LANES {
                    sum[lane] = sum[lane] / divisor[lane];
                }
            }
            b[i * b_row_stride + column * b_column_stride] = sum;
        }
    }
}

/// The row that a step solves: the first one first for a forward substitution, otherwise the last one.
fn solve_order(triangle: Triangle, n: usize, step: usize) -> usize {
    if triangle.is_forward() { step } else { n - 1 - step }
}
