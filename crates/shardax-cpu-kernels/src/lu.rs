//! The LU decomposition with partial pivoting. XLA (xla-cpu-pjrt 0.0.1) has none, so a program would need a loop over
//! columns, which takes five times as long to run, and a second to compile.

use ndarray::{Array2, ArrayView2, ArrayViewMut2, s};
use pulp::{Arch, Simd, WithSimd};

use crate::lanes::{self, LANES, MAX_SIDE, MIN_BATCH, deinterleave, interleave};
use crate::product::{Before, product};
use crate::real::Real;
use crate::substitution::Equations;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, View};

/// The number of columns that are eliminated one by one, before the rest of the matrix is updated.
const PANEL: usize = 32;

/// Computes the decomposition `a[permutation] = l u` of a batch of matrices `[batch, m, n]`.
///
/// `factors` has both triangles in one matrix, without the unit diagonal of `l`. `pivots`, `[batch, min(m, n)]`, are the rows
/// that each row was exchanged with, so that you can repeat the exchanges on other arrays; `permutation`, `[batch, m]`, is their
/// product. The pivot is the largest element, or the first NaN. Allocates an eighth of a matrix for each thread.
///
/// # Errors
/// Returns an error if the results do not have these sizes.
pub fn lu<T: Real>(
    a: View<'_, T>,
    factors: &mut [T],
    pivots: &mut [i32],
    permutation: &mut [i32],
    threads: usize,
) -> Result<()> {
    T::lu(a, factors, pivots, permutation, threads)
}

pub(crate) fn lu_of<T: Real>(
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
    let threads = threads.min(batch * m * n * k / lanes::MIN_MULTIPLY_ADDS_PER_THREAD);
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
    let mut columns = vec![T::ZERO; PANEL.min(steps) * m];
    let mut factors = [T::ZERO; PANEL * PANEL];
    for start in (0..steps).step_by(PANEL) {
        let end = (start + PANEL).min(steps);
        let (count, rows) = (end - start, m - start);
        // The columns of the panel lie next to each other while they are eliminated.
        let columns = &mut columns[..count * rows];
        for (i, row) in a[start * n..].chunks_exact(n).enumerate() {
            (0..count).for_each(|j| columns[j * rows + i] = row[start + j]);
        }
        let pivots = &mut pivots[start..end];
        Arch::new().dispatch(Panel { columns, rows, pivots });
        for (k, pivot) in (start..).zip(pivots) {
            *pivot += start as i32;
            let pivot = *pivot as usize;
            permutation.swap(k, pivot);
            if pivot > k {
                let (upper, lower) = a.split_at_mut(pivot * n);
                upper[k * n..(k + 1) * n].swap_with_slice(&mut lower[..n]);
            }
        }
        for (i, row) in a[start * n..].chunks_exact_mut(n).enumerate() {
            (0..count).for_each(|j| row[start + j] = columns[j * rows + i]);
        }
        if end == n {
            break;
        }
        // The rows of the panel right of it, and then all rows below.
        let factors = &mut factors[..count * count];
        (0..count * count).for_each(|e| factors[e] = columns[e % count * rows + e / count]);
        let (upper, below) = a.split_at_mut(end * n);
        let x = &mut upper[start * n + end..];
        Equations { factors, count, has_unit_diagonal: true, is_forward: true, x, stride: n, columns: n - end }.solve();
        if let (Ok(upper), Ok(mut below)) =
            (ArrayView2::from_shape((end, n), &*upper), ArrayViewMut2::from_shape((m - end, n), below))
        {
            let factors: Array2<T> = below.slice(s![.., start..end]).map(|x| -*x);
            let rows = upper.slice(s![start..end, end..]);
            product(&factors.view(), &rows, Before::Added, &mut below.slice_mut(s![.., end..]));
        }
    }
}

/// Some columns that are eliminated one after the other; `pivots` are relative to their first row.
struct Panel<'a, T> {
    columns: &'a mut [T],
    rows: usize,
    pivots: &'a mut [i32],
}

impl<T: Real> WithSimd for Panel<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let rows = self.rows;
        for (k, place) in self.pivots.iter_mut().enumerate() {
            let pivot = find_pivot(&self.columns[k * rows..(k + 1) * rows], k);
            *place = pivot as i32;
            if pivot > k {
                self.columns.chunks_exact_mut(rows).for_each(|column| column.swap(k, pivot));
            }
            let (before, following) = self.columns.split_at_mut((k + 1) * rows);
            let (diagonal, factors) = before[k * rows + k..].split_at_mut(1);
            // A column of zeros needs no elimination.
            if diagonal[0] != T::ZERO {
                factors.iter_mut().for_each(|x| *x = *x / diagonal[0]);
            }
            for column in following.chunks_exact_mut(rows) {
                let (upper, lower) = column.split_at_mut(k + 1);
                let factor = upper[k];
                lower.iter_mut().zip(&*factors).for_each(|(x, y)| *x = *x - factor * *y);
            }
        }
    }
}

/// The place of the largest element of a column from place `k` on; of the first NaN if there is one.
#[inline(always)]
fn find_pivot<T: Real>(column: &[T], k: usize) -> usize {
    let mut pivot = k;
    let mut largest = column[k].magnitude();
    for (i, x) in column.iter().enumerate().skip(k + 1) {
        let size = x.magnitude();
        if !(size <= largest) && largest == largest {
            (pivot, largest) = (i, size);
        }
    }
    pivot
}
