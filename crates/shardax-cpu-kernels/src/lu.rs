//! The LU decomposition with partial pivoting. XLA (xla-cpu-pjrt 0.0.1) has none, so a program would need a loop over
//! columns, which takes five times as long to run, and a second to compile.

use ndarray::{ArrayView2, ArrayViewMut2, s};
use pulp::{Arch, Simd, WithSimd};

use crate::lanes::{self, LANES, MAX_SIDE, MIN_BATCH, deinterleave, interleave};
use crate::product::{Before, product};
use crate::real::Real;
use crate::substitution::{Equations, Triangular};
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, View};

/// The number of columns that are eliminated one by one, before the rest of the matrix is updated.
const PANEL: usize = 32;

/// The number of columns of a panel that are eliminated together from the following ones.
const GROUP: usize = 4;

/// The number of rows that are copied together.
const TILE: usize = 16;

/// The number of elements of a column that are compared at the same time.
const CHUNK: usize = 16;

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
    for start in (0..steps).step_by(PANEL) {
        let end = (start + PANEL).min(steps);
        let (count, rows) = (end - start, m - start);
        // The columns of the panel lie next to each other while they are eliminated.
        let columns = &mut columns[..count * rows];
        let lower = &mut a[start * n..];
        for (first, block) in (0..rows).step_by(TILE).zip(lower.chunks(TILE * n)) {
            for (j, column) in columns.chunks_exact_mut(rows).enumerate() {
                let elements = block[start + j..].iter().step_by(n);
                column[first..].iter_mut().zip(elements).for_each(|(to, x)| *to = *x);
            }
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
        for (first, block) in (0..rows).step_by(TILE).zip(a[start * n..].chunks_mut(TILE * n)) {
            for (i, row) in block.chunks_exact_mut(n).enumerate() {
                let elements = columns[first + i..].iter().step_by(rows);
                row[start..end].iter_mut().zip(elements).for_each(|(to, x)| *to = *x);
            }
        }
        if end == n {
            break;
        }
        // The rows of the panel right of it, and then all rows below.
        let matrix = Triangular {
            data: columns,
            stride: rows,
            count,
            is_transposed: true,
            is_forward: true,
            has_unit_diagonal: true,
        };
        let (upper, below) = a.split_at_mut(end * n);
        Equations { matrix, x: &mut upper[start * n + end..], stride: n, columns: n - end }.solve();
        if let (Ok(factors), Ok(upper), Ok(mut below)) = (
            ArrayView2::from_shape((count, rows), columns),
            ArrayView2::from_shape((end, n), upper),
            ArrayViewMut2::from_shape((m - end, n), below),
        ) {
            let rows = upper.slice(s![start.., end..]);
            let factors = factors.slice(s![.., count..]);
            product(&factors.t(), &rows, Before::Reduced, &mut below.slice_mut(s![.., end..]));
        }
    }
}

/// Some columns that are eliminated; `pivots` are relative to their first row.
struct Panel<'a, T> {
    columns: &'a mut [T],
    rows: usize,
    pivots: &'a mut [i32],
}

impl<T: Real> WithSimd for Panel<'_, T> {
    type Output = ();

    /// Eliminates a group of columns one after the other, and then all of them from the following columns, so that these are loaded and
    /// stored once.
    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        for first in (0..self.pivots.len()).step_by(GROUP) {
            let end = (first + GROUP).min(self.pivots.len());
            for k in first..end {
                self.eliminate(simd, k, end);
            }
            if end == first + GROUP {
                self.update(simd, first);
            }
        }
    }
}

impl<T: Real> Panel<'_, T> {
    /// Exchanges the row of the pivot, and eliminates column `k` from the columns up to `end`.
    #[inline(always)]
    fn eliminate<S: Simd>(&mut self, simd: S, k: usize, end: usize) {
        let rows = self.rows;
        let pivot = k + find_pivot(&self.columns[k * rows + k..(k + 1) * rows]);
        self.pivots[k] = pivot as i32;
        if pivot > k {
            self.columns.chunks_exact_mut(rows).for_each(|column| column.swap(k, pivot));
        }
        let (before, following) = self.columns.split_at_mut((k + 1) * rows);
        let (diagonal, factors) = before[k * rows + k..].split_at_mut(1);
        // A column of zeros needs no elimination.
        if diagonal[0] != T::ZERO {
            for x in factors.iter_mut() {
                *x = *x / diagonal[0];
            }
        }
        for column in following.chunks_exact_mut(rows).take(end - k - 1) {
            let (upper, lower) = column.split_at_mut(k + 1);
            let factor = -upper[k];
            for (x, y) in lower.iter_mut().zip(&*factors) {
                *x = T::multiply_add(simd, factor, *y, *x);
            }
        }
    }

    /// Eliminates a group of columns from all columns after it.
    #[inline(always)]
    fn update<S: Simd>(&mut self, simd: S, first: usize) {
        let rows = self.rows;
        let (group, following) = self.columns[first * rows..].split_at_mut(GROUP * rows);
        let group: [&[T]; GROUP] = std::array::from_fn(|i| &group[i * rows + first..(i + 1) * rows]);
        for column in following.chunks_exact_mut(rows) {
            let (upper, lower) = column[first..].split_at_mut(GROUP);
            let mut factors = [T::ZERO; GROUP];
            for i in 0..GROUP {
                let mut x = upper[i];
                for j in 0..i {
                    x = T::multiply_add(simd, factors[j], group[j][i], x);
                }
                upper[i] = x;
                factors[i] = -x;
            }
            let group = group.map(|column| &column[GROUP..][..lower.len()]);
            for (i, x) in lower.iter_mut().enumerate() {
                for (column, factor) in group.iter().zip(&factors) {
                    *x = T::multiply_add(simd, *factor, column[i], *x);
                }
            }
        }
    }
}

/// The place of the largest element of a column; of the first NaN if there is one.
#[inline(always)]
fn find_pivot<T: Real>(column: &[T]) -> usize {
    let (chunks, rest) = column.as_chunks::<CHUNK>();
    let mut largest = [T::ZERO; CHUNK];
    let mut zeros = [T::ZERO; CHUNK];
    for chunk in chunks {
        for i in 0..CHUNK {
            let size = chunk[i].magnitude();
            largest[i] = if size > largest[i] { size } else { largest[i] };
            // NaN if any element is.
            zeros[i] = if size == size { zeros[i] } else { T::NAN };
        }
    }
    let mut most = T::ZERO;
    for size in largest.into_iter().chain(rest.iter().map(|x| x.magnitude())).chain(zeros) {
        most = if size <= most { most } else { size };
        if most != most {
            return column.iter().position(|x| x != x).unwrap_or_default();
        }
    }
    let is_most = |x: &T| x.magnitude() == most;
    let chunk = chunks.iter().position(|chunk| chunk.iter().fold(false, |found, x| found | is_most(x)));
    let start = chunk.unwrap_or(chunks.len()) * CHUNK;
    start + column[start..].iter().position(is_most).unwrap_or_default()
}
