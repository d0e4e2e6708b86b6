//! Sums over the rows of matrices, for each column: gradients of biases and scales, statistics of batch normalization.
//!
//! XLA (xla-cpu-pjrt 0.0.1) fuses the computation of the operand with the sum, and then goes down each column: of a product
//! of two f32[32768,64] it takes 24 ms, instead of 1.5 for the product and the sum by rows.

use std::ops::AddAssign;

use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Float, Result, View};

/// The rows of a part. Parts are added afterwards, so that rounding errors grow with their number and their size, not with
/// the number of rows.
const PART: usize = 256;

/// The elements of a thread, at least.
const THREAD: usize = 1 << 18;

/// Sums `x`, `[batch, rows, columns]`, over the rows. The result is `[batch, columns]`; without rows it is 0.
///
/// Allocates a 256th of the operand, if it has more than 256 rows.
///
/// ```
/// use shardax_cpu_kernels::{View, column_sums};
///
/// let mut sums = [0.0; 3];
/// column_sums(View::new(&[1, 2, 3], &[1.0f32, 2.0, 3.0, 10.0, 20.0, 30.0])?, &mut sums, 1)?;
/// assert_eq!(sums, [11.0, 22.0, 33.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// The shapes do not fit.
pub fn column_sums<T>(x: View<'_, T>, out: &mut [T], threads: usize) -> Result<()>
where
    T: Float + Copy + Default + AddAssign + Send + Sync,
{
    let [batch, rows, columns] = x.dims("the operand")?;
    check("the elements of the result", out.len(), batch * columns)?;
    out.fill(T::default());
    if x.data().is_empty() {
        return Ok(());
    }
    let parts = rows.div_ceil(PART);
    let mut sums = vec![T::default(); if parts > 1 { batch * parts * columns } else { 0 }];
    let into = if parts > 1 { &mut sums[..] } else { &mut *out };
    let matrices = x.data().chunks(rows * columns);
    let operands = matrices.flat_map(|matrix| matrix.chunks(PART * columns));
    let tasks = operands.zip(into.chunks_mut(columns)).collect();
    run_tasks(tasks, threads.min(x.data().len() / THREAD), || (), |(), (rows, sums)| add_up(rows, sums));
    if parts > 1 {
        for (out, parts) in out.chunks_mut(columns).zip(sums.chunks(parts * columns)) {
            add_up(parts, out);
        }
    }
    Ok(())
}

/// Adds rows, four at once, to their sums.
fn add_up<T: Copy + AddAssign>(rows: &[T], sums: &mut [T]) {
    let n = sums.len();
    let mut fours = rows.chunks_exact(4 * n);
    for four in &mut fours {
        let (first, second) = four.split_at(2 * n);
        let ((a, b), (c, d)) = (first.split_at(n), second.split_at(n));
        for (sum, (((a, b), c), d)) in sums.iter_mut().zip(a.iter().zip(b).zip(c).zip(d)) {
            *sum += *a;
            *sum += *b;
            *sum += *c;
            *sum += *d;
        }
    }
    for row in fours.remainder().chunks_exact(n) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += *x);
    }
}
