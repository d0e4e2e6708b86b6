//! The LU decomposition with partial pivoting. XLA (xla-cpu-pjrt 0.0.1) has none, and a loop over columns as a program takes five times as
//! long to run, and a second to compile.

use ndarray::{Array2, ArrayView2, ArrayViewMut2, s};

use crate::lanes::{self, LANES, MAX_SIDE, MIN_BATCH, deinterleave, interleave};
use crate::product::{Before, product};
use crate::real::Real;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, View};

/// The number of columns that are eliminated one by one, before the rest of the matrix is updated.
const PANEL: usize = 32;

/// The decomposition `a[permutation] = l u` of a batch of matrices `[batch, m, n]`.
///
/// `factors` has both triangles in one matrix, without the unit diagonal of `l`. `pivots`, `[batch, min(m, n)]`, are the rows
/// that each row was exchanged with, so that you can repeat the exchanges on other arrays; `permutation`, `[batch, m]`, is their
/// product. The pivot is the largest element, or the first NaN. Allocates an eighth of a matrix for each thread.
///
/// # Errors
/// The results must have these sizes.
pub fn lu<T: Real>(
    a: View<'_, T>,
    factors: &mut [T],
    pivots: &mut [i32],
    permutation: &mut [i32],
    threads: usize,
) -> Result<()> {
    let [batch, m, n] = a.dims("the operand")?;
    let k = m.min(n);
    check("the elements of the factors", factors.len(), batch * m * n)?;
    check("the pivots", pivots.len(), batch * k)?;
    check("the elements of the permutation", permutation.len(), batch * m)?;
    if factors.is_empty() {
        permutation.chunks_mut(m.max(1)).for_each(identity);
        return Ok(());
    }
    let threads = threads.min(batch * m * n * k / lanes::THREAD);
    let size = if m.max(n) <= MAX_SIDE && batch >= MIN_BATCH { LANES } else { 1 };
    let results =
        factors.chunks_mut(size * m * n).zip(pivots.chunks_mut(size * k)).zip(permutation.chunks_mut(size * m));
    let tasks = a.data().chunks(size * m * n).zip(results).collect();
    // Large matrices are factorized one by one, and small ones side by side in the lanes of vectors.
    if size == 1 {
        run_tasks(
            tasks,
            threads,
            || (),
            |(), (a, ((factors, pivots), permutation))| {
                factors.copy_from_slice(a);
                factorize(factors, [m, n], pivots, permutation);
            },
        );
        return Ok(());
    }
    run_tasks(
        tasks,
        threads,
        || (lanes::zeros(m * n), vec![[0; LANES]; k], vec![[0; LANES]; m]),
        |(matrix, exchanged, order), (a, ((factors, pivots), permutation))| {
            interleave(a, m * n, matrix);
            lanes::lu(matrix, [m, n], exchanged, order);
            deinterleave(matrix, m * n, factors);
            deinterleave(exchanged, k, pivots);
            deinterleave(order, m, permutation);
        },
    );
    Ok(())
}

fn identity(permutation: &mut [i32]) {
    permutation.iter_mut().zip(0..).for_each(|(row, index)| *row = index);
}

/// Factorizes a matrix in place.
fn factorize<T: Real>(a: &mut [T], [m, n]: [usize; 2], pivots: &mut [i32], permutation: &mut [i32]) {
    identity(permutation);
    let steps = m.min(n);
    for start in (0..steps).step_by(PANEL) {
        let end = (start + PANEL).min(steps);
        for k in start..end {
            let pivot = find_pivot(a, n, k);
            pivots[k] = pivot as i32;
            permutation.swap(k, pivot);
            let (upper, below) = a.split_at_mut((k + 1) * n);
            let row = &mut upper[k * n..];
            if pivot > k {
                row.swap_with_slice(&mut below[(pivot - k - 1) * n..][..n]);
            }
            // A column of zeros needs no elimination.
            let divisor = if row[k] == T::ZERO { T::ONE } else { row[k] };
            for other in below.chunks_exact_mut(n) {
                other[k] = other[k] / divisor;
                let factor = other[k];
                subtract_row(&mut other[k + 1..end], factor, &row[k + 1..end]);
            }
        }
        if end == n {
            break;
        }
        // The rows of the panel right of it, and then all rows below.
        for k in start + 1..end {
            let (upper, row) = a.split_at_mut(k * n);
            let (factors, right_of_panel) = row[..n].split_at_mut(end);
            for i in start..k {
                subtract_row(right_of_panel, factors[i], &upper[i * n + end..(i + 1) * n]);
            }
        }
        let (upper, below) = a.split_at_mut(end * n);
        if let (Ok(upper), Ok(mut below)) =
            (ArrayView2::from_shape((end, n), &*upper), ArrayViewMut2::from_shape((m - end, n), below))
        {
            let factors: Array2<T> = below.slice(s![.., start..end]).map(|x| -*x);
            let rows = upper.slice(s![start..end, end..]);
            product(&factors.view(), &rows, Before::Added, &mut below.slice_mut(s![.., end..]));
        }
    }
}

/// The row of the largest element of column `k`, on and below the diagonal; of the first NaN if there is one.
fn find_pivot<T: Real>(a: &[T], n: usize, k: usize) -> usize {
    let mut pivot = k;
    let mut largest = a[k * n + k].magnitude();
    for (i, row) in a.chunks_exact(n).enumerate().skip(k + 1) {
        let size = row[k].magnitude();
        if !(size <= largest) && largest == largest {
            (pivot, largest) = (i, size);
        }
    }
    pivot
}

fn subtract_row<T: Real>(row: &mut [T], factor: T, other: &[T]) {
    row.iter_mut().zip(other).for_each(|(x, y)| *x = *x - factor * *y);
}
