//! Triangular systems in lanes.

use super::{LANES, Lanes, subtract_product};
use crate::real::Real;
use crate::triangular_solve::Triangle;

/// Solves triangular systems of `n` equations and as many right-hand sides as `b` has columns, or rows if the matrices are on the right. The
/// solutions replace `b`.
pub(crate) fn triangular_solve<T: Real>(a: &[Lanes<T>], n: usize, triangle: Triangle, b: &mut [Lanes<T>]) {
    let columns = b.len() / n;
    // The equations of a matrix on the right are those of the transposed one on the left, for transposed right-hand sides.
    let element = |i: usize, j: usize| if triangle.is_transposed() { a[j * n + i] } else { a[i * n + j] };
    let place = |i: usize, column: usize| if triangle.is_left { i * columns + column } else { column * n + i };
    for step in 0..n {
        let row = |step: usize| if triangle.is_forward() { step } else { n - 1 - step };
        let i = row(step);
        let divisor = element(i, i);
        for column in 0..columns {
            let mut sum = b[place(i, column)];
            for solved in (0..step).map(row) {
                subtract_product(&mut sum, &element(i, solved), &b[place(solved, column)]);
            }
            if !triangle.has_unit_diagonal {
                for lane in 0..LANES {
                    sum[lane] = sum[lane] / divisor[lane];
                }
            }
            b[place(i, column)] = sum;
        }
    }
}
