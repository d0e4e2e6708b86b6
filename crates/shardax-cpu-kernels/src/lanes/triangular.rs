//! Triangular systems in lanes.

use pulp::{Arch, Simd, WithSimd};

use super::{LANES, Lanes, subtract_product};
use crate::real::Real;
use crate::triangular_solve::Triangle;

/// The number of right-hand sides whose sums are in registers at the same time.
const COLUMNS: usize = 4;

/// Solves triangular systems of `n` equations and as many right-hand sides as `b` has columns, or rows if the matrices are on the right. The
/// solutions replace `b`.
pub(crate) fn triangular_solve<T: Real>(a: &[Lanes<T>], n: usize, triangle: Triangle, b: &mut [Lanes<T>]) {
    Arch::new().dispatch(Equations { a, n, triangle, b });
}

struct Equations<'a, T> {
    a: &'a [Lanes<T>],
    n: usize,
    triangle: Triangle,
    b: &'a mut [Lanes<T>],
}

impl<T: Real> WithSimd for Equations<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let columns = self.b.len() / self.n;
        let mut column = 0;
        while column + COLUMNS <= columns {
            self.solve::<S, COLUMNS>(simd, column);
            column += COLUMNS;
        }
        for column in column..columns {
            self.solve::<S, 1>(simd, column);
        }
    }
}

impl<T: Real> Equations<'_, T> {
    /// Solves for `C` right-hand sides.
    #[inline(always)]
    fn solve<S: Simd, const C: usize>(&mut self, simd: S, first: usize) {
        let Equations { a, n, triangle, b } = self;
        let (n, triangle, columns) = (*n, *triangle, b.len() / *n);
        // A matrix on the right has the same equations as its transpose on the left, with transposed right-hand sides.
        let [row_stride, column_stride] = if triangle.is_transposed() { [1, n] } else { [n, 1] };
        let [b_row_stride, b_column_stride] = if triangle.is_left { [columns, 1] } else { [1, n] };
        for step in 0..n {
            let i = solve_order(triangle, n, step);
            let divisor = a[i * n + i];
            let mut sums: [Lanes<T>; C] =
                std::array::from_fn(|column| b[i * b_row_stride + (first + column) * b_column_stride]);
            for earlier in 0..step {
                let solved = solve_order(triangle, n, earlier);
                let factor = a[i * row_stride + solved * column_stride];
                for (column, sum) in sums.iter_mut().enumerate() {
                    let known = &b[solved * b_row_stride + (first + column) * b_column_stride];
                    subtract_product(simd, sum, &factor, known);
                }
            }
            for (column, sum) in sums.iter_mut().enumerate() {
                if !triangle.has_unit_diagonal {
                    for lane in 0..LANES {
                        sum[lane] = sum[lane] / divisor[lane];
                    }
                }
                b[i * b_row_stride + (first + column) * b_column_stride] = *sum;
            }
        }
    }
}

/// The row that a step solves: the first one first for a forward substitution, otherwise the last one.
#[inline(always)]
fn solve_order(triangle: Triangle, n: usize, step: usize) -> usize {
    if triangle.is_forward() { step } else { n - 1 - step }
}
