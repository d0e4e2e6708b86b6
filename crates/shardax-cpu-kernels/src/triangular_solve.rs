//! The solution of triangular linear systems, by substitution.

use std::ops::Range;

use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis, s};

use crate::lanes::{self, LANES, MAX_SIDE, MIN_BATCH, deinterleave, interleave};
use crate::product::{Before, product};
use crate::real::Real;
use crate::substitution::Equations;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, View};

/// The number of equations that are solved one by one, before the others are updated.
const BLOCK: usize = 32;

/// The form of the systems that [`triangular_solve`] solves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Triangle {
    /// True for `a x = b`, with the matrix on the left, and false for `x a = b`.
    pub is_left: bool,
    /// True if the lower triangle of the matrix is read, and false for the upper one. The other triangle can have any values.
    pub is_lower: bool,
    /// True if the matrix is transposed.
    pub transposes: bool,
    /// True if the diagonal is 1. Then it is not read, so the matrix can have any values there.
    pub has_unit_diagonal: bool,
}

impl Triangle {
    /// The matrix is transposed if the equations are written with it on the left.
    pub(crate) fn is_transposed(self) -> bool {
        self.transposes == self.is_left
    }

    /// The first equation has one unknown, and not the last one.
    pub(crate) fn is_forward(self) -> bool {
        self.is_lower != self.is_transposed()
    }
}

/// Solves a batch of triangular systems: `a` is `[batch, n, n]`, and `b` and the solution `x` are `[batch, n, k]`, or `[batch, k, n]` if the
/// matrices are on the right.
///
/// An unknown depends only on its own equation and the ones before it. Therefore a NaN or a zero on the diagonal cannot
/// change the unknowns before it. Allocates two matrices of the size of `b` for each thread.
///
/// # Errors
/// Returns an error if the shapes do not agree with this description.
pub fn triangular_solve<T: Real>(
    a: View<'_, T>,
    b: View<'_, T>,
    triangle: Triangle,
    x: &mut [T],
    threads: usize,
) -> Result<()> {
    T::triangular_solve(a, b, triangle, x, threads)
}

pub(crate) fn triangular_solve_of<T: Real>(
    a: View<'_, T>,
    b: View<'_, T>,
    triangle: Triangle,
    x: &mut [T],
    threads: usize,
) -> Result<()> {
    let ([batch, n, columns], [b_batch, b_rows, b_columns]) =
        (a.dims("the matrices")?, b.dims("the right-hand sides")?);
    check("the columns of a square matrix", columns, n)?;
    check("the batch of the right-hand sides", b_batch, batch)?;
    let (equations, k) = if triangle.is_left { (b_rows, b_columns) } else { (b_columns, b_rows) };
    check("the equations", equations, n)?;
    check("the elements of the solution", x.len(), b.data().len())?;
    if x.is_empty() {
        return Ok(());
    }
    let threads = threads.min(batch * n * n * k / lanes::MIN_MULTIPLY_ADDS_PER_THREAD);
    // Large systems are solved one by one, and small ones side by side in the lanes of vectors.
    let size = if n <= MAX_SIDE && batch >= MIN_BATCH { LANES } else { 1 };
    let systems = b.data().chunks(size * n * k).zip(x.chunks_mut(size * n * k));
    let tasks = a.data().chunks(size * n * n).zip(systems).collect();
    if size == 1 {
        run_tasks(tasks, threads, || (), |(), (a, (b, x))| solve(a, b, [n, k], triangle, x));
        return Ok(());
    }
    run_tasks(
        tasks,
        threads,
        || (lanes::zeros(n * n), lanes::zeros(n * k)),
        |(matrix, solution), (a, (b, x))| {
            interleave(a, n * n, matrix);
            interleave(b, n * k, solution);
            lanes::triangular_solve(matrix, n, triangle, solution);
            deinterleave(solution, n * k, x);
        },
    );
    Ok(())
}

/// Solves one system.
fn solve<T: Real>(a: &[T], b: &[T], [n, k]: [usize; 2], triangle: Triangle, x: &mut [T]) {
    let Ok(a) = ArrayView2::from_shape((n, n), a) else { return };
    let a = if triangle.is_transposed() { a.reversed_axes() } else { a };
    if triangle.is_left {
        x.copy_from_slice(b);
        if let Ok(x) = ArrayViewMut2::from_shape((n, k), x) {
            substitute(a, triangle, x);
        }
        return;
    }
    let Ok(b) = ArrayView2::from_shape((k, n), b) else { return };
    let mut solution = Array2::zeros((n, k));
    solution.assign(&b.reversed_axes());
    substitute(a, triangle, solution.view_mut());
    if let Ok(mut x) = ArrayViewMut2::from_shape((k, n), x) {
        x.assign(&solution.reversed_axes());
    }
}

/// The row that a step solves: the first one first for a forward substitution, otherwise the last one.
fn solve_order(triangle: Triangle, rows: &Range<usize>, step: usize) -> usize {
    if triangle.is_forward() { rows.start + step } else { rows.end - 1 - step }
}

/// Solves a system with the matrix on the left; `x` has the right-hand sides, in row order.
fn substitute<T: Real>(a: ArrayView2<'_, T>, triangle: Triangle, mut x: ArrayViewMut2<'_, T>) {
    let n = a.nrows();
    for block in 0..n.div_ceil(BLOCK) {
        let (start, end) = (block * BLOCK, ((block + 1) * BLOCK).min(n));
        // Backwards the last equations come first.
        let rows = if triangle.is_forward() { start..end } else { n - end..n - start };
        let solved = if triangle.is_forward() { 0..start } else { n - start..n };
        if !solved.is_empty() {
            let factors: Array2<T> = a.slice(s![rows.clone(), solved.clone()]).map(|x| -*x);
            let (above, below) =
                x.view_mut().split_at(Axis(0), if triangle.is_forward() { rows.start } else { rows.end });
            let (known, mut unknown) = if triangle.is_forward() {
                (above, below.slice_move(s![..rows.len(), ..]))
            } else {
                (below, above.slice_move(s![rows.start.., ..]))
            };
            product(&factors.view(), &known.view(), Before::Added, &mut unknown);
        }
        let count = rows.len();
        let order: Vec<usize> = (0..count).map(|step| solve_order(triangle, &rows, step)).collect();
        let factors: Vec<T> = (0..count * count).map(|e| a[(order[e / count], order[e % count])]).collect();
        let columns = x.ncols();
        let Some(x) = x.slice_mut(s![rows.clone(), ..]).into_slice() else { return };
        let (has_unit_diagonal, is_forward) = (triangle.has_unit_diagonal, triangle.is_forward());
        Equations { factors: &factors, count, has_unit_diagonal, is_forward, x, stride: columns, columns }.solve();
    }
}
