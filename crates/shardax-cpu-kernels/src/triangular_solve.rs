//! The solution of triangular linear systems, by substitution.

use ndarray::{ArrayView2, ArrayViewMut2, s};
use pulp::{Arch, Simd, WithSimd};

use crate::lanes::{self, LANES, MAX_SIDE, MIN_BATCH, deinterleave, interleave};
use crate::product::{Before, product};
use crate::real::Real;
use crate::substitution::{Equations, Triangular};
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, View};

/// The number of equations that are solved one by one, before the others are updated.
const BLOCK: usize = 64;

/// The largest number of right-hand sides that are solved one after the other, each as a vector.
const MAX_VECTORS: usize = 3;

/// The number of rows and columns that are transposed together.
const TILE: usize = 16;

/// The numbers of rows or columns, and of vectors of each row, whose products are summed at the same time.
const ROWS: usize = 4;
const VECTORS: usize = 2;

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
    if triangle.is_left {
        x.copy_from_slice(b);
        return substitute(a, [n, k], triangle, x);
    }
    let mut solution = vec![T::ZERO; n * k];
    transpose(b, [k, n], &mut solution);
    substitute(a, [n, k], triangle, &mut solution);
    transpose(&solution, [n, k], x);
}

/// Copies a matrix in row order to its transpose.
fn transpose<T: Real>(from: &[T], [rows, columns]: [usize; 2], to: &mut [T]) {
    if rows == 1 || columns == 1 {
        return to.copy_from_slice(from);
    }
    for first in (0..rows).step_by(TILE) {
        let height = TILE.min(rows - first);
        let block = &from[first * columns..(first + height) * columns];
        for start in (0..columns).step_by(TILE) {
            for (column, to) in (start..columns.min(start + TILE)).zip(to[start * rows..].chunks_exact_mut(rows)) {
                let elements = block[column..].iter().step_by(columns);
                to[first..first + height].iter_mut().zip(elements).for_each(|(to, x)| *to = *x);
            }
        }
    }
}

/// Solves a system of `n` equations with the matrix on the left; `x` has `k` right-hand sides, in row order.
fn substitute<T: Real>(a: &[T], [n, k]: [usize; 2], triangle: Triangle, x: &mut [T]) {
    if k <= MAX_VECTORS {
        let mut vector = vec![T::ZERO; n];
        for column in 0..k {
            vector.iter_mut().zip(x.chunks_exact(k)).for_each(|(to, row)| *to = row[column]);
            substitute_by_blocks(a, [n, 1], triangle, &mut vector);
            vector.iter().zip(x.chunks_exact_mut(k)).for_each(|(from, row)| row[column] = *from);
        }
        return;
    }
    substitute_by_blocks(a, [n, k], triangle, x);
}

fn substitute_by_blocks<T: Real>(a: &[T], [n, k]: [usize; 2], triangle: Triangle, x: &mut [T]) {
    let (is_transposed, is_forward) = (triangle.is_transposed(), triangle.is_forward());
    for block in 0..n.div_ceil(BLOCK) {
        let (start, end) = (block * BLOCK, ((block + 1) * BLOCK).min(n));
        // Backwards the last equations come first.
        let (rows, solved) = if is_forward { (start..end, 0..start) } else { (n - end..n - start, n - start..n) };
        if !solved.is_empty() {
            let (above, below) = x.split_at_mut(k * if is_forward { rows.start } else { rows.end });
            let (known, unknown) = match is_forward {
                true => (&*above, &mut below[..k * rows.len()]),
                false => (&*below, &mut above[k * rows.start..]),
            };
            if k == 1 {
                let [row, column] = if is_transposed { [&solved, &rows] } else { [&rows, &solved] };
                let matrix = &a[row.start * n + column.start..];
                Reduction { matrix, stride: n, known, unknown }.run(is_transposed);
            } else {
                let Ok(a) = ArrayView2::from_shape((n, n), a) else { return };
                let a = if is_transposed { a.reversed_axes() } else { a };
                let (known, unknown) = (
                    ArrayView2::from_shape((solved.len(), k), known),
                    ArrayViewMut2::from_shape((rows.len(), k), unknown),
                );
                let (Ok(known), Ok(mut unknown)) = (known, unknown) else { return };
                product(&a.slice(s![rows.clone(), solved]), &known, Before::Reduced, &mut unknown);
            }
        }
        let matrix = Triangular {
            data: &a[rows.start * (n + 1)..],
            stride: n,
            count: rows.len(),
            is_transposed,
            is_forward,
            has_unit_diagonal: triangle.has_unit_diagonal,
        };
        Equations { matrix, x: &mut x[rows.start * k..rows.end * k], stride: k, columns: k }.solve();
    }
}

/// Subtracts the product of a matrix and a vector from another vector. The matrix has rows or columns `stride` apart.
struct Reduction<'a, T> {
    matrix: &'a [T],
    stride: usize,
    known: &'a [T],
    unknown: &'a mut [T],
}

impl<T: Real> Reduction<'_, T> {
    fn run(self, is_by_columns: bool) {
        if is_by_columns { Arch::new().dispatch(ByColumns(self)) } else { Arch::new().dispatch(ByRows(self)) }
    }
}

/// Sums products of rows.
struct ByRows<'a, T>(Reduction<'a, T>);

impl<T: Real> WithSimd for ByRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Reduction { matrix, stride, known, unknown } = self.0;
        let mut first = 0;
        while first + ROWS <= unknown.len() {
            let sums = products::<T, S, ROWS>(simd, &matrix[first * stride..], stride, known);
            unknown[first..].iter_mut().zip(sums).for_each(|(x, sum)| *x = *x - sum);
            first += ROWS;
        }
        for row in first..unknown.len() {
            let [sum] = products(simd, &matrix[row * stride..], stride, known);
            unknown[row] = unknown[row] - sum;
        }
    }
}

/// The products of `R` rows and a vector.
#[expect(clippy::needless_range_loop, reason = "indices of constant loops keep the sums in registers")]
#[inline(always)]
fn products<T: Real, S: Simd, const R: usize>(simd: S, matrix: &[T], stride: usize, vector: &[T]) -> [T; R] {
    let step = VECTORS * size_of::<T::Vector<S>>() / size_of::<T>();
    let mut sums = [[T::splat(simd, T::ZERO); VECTORS]; R];
    for first in (0..vector.len()).step_by(step) {
        let end = vector.len().min(first + step);
        for v in 0..VECTORS {
            let place = end.min(first + v * (step / VECTORS));
            let known = T::load(simd, &vector[place..end]);
            for i in 0..R {
                let row = T::load(simd, &matrix[i * stride + place..i * stride + end]);
                sums[i][v] = T::multiply_add_vectors(simd, row, known, sums[i][v]);
            }
        }
    }
    // Closures are not always inlined, and without vector instructions each of these would be a call.
    let mut products = [T::ZERO; R];
    for i in 0..R {
        let [first, second] = sums[i];
        products[i] = T::sum(simd, T::add_vectors(simd, first, second));
    }
    products
}

/// Subtracts columns.
struct ByColumns<'a, T>(Reduction<'a, T>);

impl<T: Real> WithSimd for ByColumns<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Reduction { matrix, stride, known, unknown } = self.0;
        let (groups, rest) = known.as_chunks::<ROWS>();
        for (index, factors) in groups.iter().enumerate() {
            let columns: [&[T]; ROWS] =
                std::array::from_fn(|i| &matrix[(index * ROWS + i) * stride..][..unknown.len()]);
            for (place, sum) in unknown.iter_mut().enumerate() {
                for (column, factor) in columns.iter().zip(factors) {
                    *sum = T::multiply_add(simd, -*factor, column[place], *sum);
                }
            }
        }
        for (column, factor) in (groups.len() * ROWS..).zip(rest) {
            for (sum, x) in unknown.iter_mut().zip(&matrix[column * stride..]) {
                *sum = T::multiply_add(simd, -*factor, *x, *sum);
            }
        }
    }
}
