//! Batches of products of small matrices, which are multiplied without `gemm`, because a call of it takes longer than such a product.

use pulp::{Arch, Simd, WithSimd};

use crate::Float;
use crate::tasks::run_tasks;

/// The maximum number of rows, of columns and of contracted elements.
pub const MAX_SMALL_SIDE: usize = 16;

/// The approximate number of tasks per thread.
const TASKS_PER_THREAD: usize = 2;

/// A batch of matrices, each in row order, or in column order.
#[derive(Clone, Copy)]
pub(crate) struct SmallMatrices<'a, T> {
    pub data: &'a [T],
    /// The number of rows and of columns.
    pub sizes: [usize; 2],
    pub is_transposed: bool,
}

impl<T: Copy> SmallMatrices<'_, T> {
    #[inline(always)]
    fn strides(&self) -> [usize; 2] {
        let [rows, columns] = self.sizes;
        if self.is_transposed { [1, rows] } else { [columns, 1] }
    }

    /// The elements of a matrix and of those after it.
    #[inline(always)]
    fn matrices_from(&self, index: usize) -> &[T] {
        &self.data[index * self.sizes[0] * self.sizes[1]..]
    }

    /// The elements of a matrix.
    #[inline(always)]
    fn matrix(&self, index: usize) -> &[T] {
        let size = self.sizes[0] * self.sizes[1];
        &self.data[index * size..(index + 1) * size]
    }
}

/// Multiplies matrices without empty sides.
pub(crate) fn multiply_small<T: Float>(
    left: SmallMatrices<'_, T>,
    right: SmallMatrices<'_, T>,
    out: &mut [T],
    threads: usize,
) {
    let size = left.sizes[0] * right.sizes[1];
    let batch = out.len() / size;
    let part = if threads == 1 { batch } else { batch.div_ceil(TASKS_PER_THREAD * threads) };
    let tasks: Vec<Task<'_, T>> = out
        .chunks_mut(part * size)
        .enumerate()
        .map(|(index, out)| Task { left, right, first: index * part, out })
        .collect();
    run_tasks(tasks, threads, || (), |(), task| Arch::new().dispatch(task));
}

/// Products of some matrices of a batch.
struct Task<'a, T> {
    left: SmallMatrices<'a, T>,
    right: SmallMatrices<'a, T>,
    first: usize,
    out: &'a mut [T],
}

impl<T: Float> WithSimd for Task<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.right.sizes, self.left.is_transposed) {
            ([2, ..=8], false) => self.multiply_rows::<S, 8, 2>(simd),
            ([3, ..=8], false) => self.multiply_rows::<S, 8, 3>(simd),
            ([4, ..=8], false) => self.multiply_rows::<S, 8, 4>(simd),
            ([5, ..=8], false) => self.multiply_rows::<S, 8, 5>(simd),
            ([6, ..=8], false) => self.multiply_rows::<S, 8, 6>(simd),
            ([7, ..=8], false) => self.multiply_rows::<S, 8, 7>(simd),
            ([8, ..=8], false) => self.multiply_rows::<S, 8, 8>(simd),
            ([_, ..=8], _) => self.multiply::<S, 8>(simd),
            _ => self.multiply::<S, MAX_SMALL_SIDE>(simd),
        }
    }
}

impl<T: Float> Task<'_, T> {
    /// Multiplies matrices of at most `W` columns and exactly `D` contracted elements, whose left operand is in row order. The rows of a
    /// right operand stay in registers.
    #[inline(always)]
    fn multiply_rows<S: Simd, const W: usize, const D: usize>(self, simd: S) {
        let Task { left, right, first, out } = self;
        let columns = right.sizes[1];
        let size = left.sizes[0] * columns;
        for index in 0..out.len() / size {
            let mut rows = [[T::zero(); W]; D];
            load(&right, first + index, &mut rows);
            let (left, _) = left.matrix(first + index).as_chunks::<D>();
            for (i, factors) in left.iter().enumerate() {
                let mut sums = [T::zero(); W];
                for (factor, row) in factors.iter().zip(&rows) {
                    for (sum, element) in sums.iter_mut().zip(row) {
                        *sum = T::multiply_add(simd, *factor, *element, *sum);
                    }
                }
                write(&sums, columns, &mut out[index * size + i * columns..]);
            }
        }
    }

    /// Multiplies matrices of at most `W` columns.
    #[inline(always)]
    fn multiply<S: Simd, const W: usize>(self, simd: S) {
        let Task { left, right, first, out } = self;
        let ([rows, depth], columns) = (left.sizes, right.sizes[1]);
        let [row_stride, element_stride] = left.strides();
        let mut padded = [[T::zero(); W]; MAX_SMALL_SIDE];
        for index in 0..out.len() / (rows * columns) {
            load(&right, first + index, &mut padded[..depth]);
            let a = left.matrix(first + index);
            let out = &mut out[index * rows * columns..];
            // Several rows at a time, so that the processor need not wait for one sum after the other.
            for start in (0..rows).step_by(ROWS_PER_STEP) {
                let mut sums = [[T::zero(); W]; ROWS_PER_STEP];
                for (k, row) in padded[..depth].iter().enumerate() {
                    for (i, sums) in sums.iter_mut().enumerate() {
                        // A row beyond the last one computes the last one again.
                        let factor = a[(start + i).min(rows - 1) * row_stride + k * element_stride];
                        for (sum, element) in sums.iter_mut().zip(row) {
                            *sum = T::multiply_add(simd, factor, *element, *sum);
                        }
                    }
                }
                for (i, sums) in sums.iter().enumerate().take(rows - start) {
                    write(sums, columns, &mut out[(start + i) * columns..]);
                }
            }
        }
    }
}

/// The number of rows that are multiplied together.
const ROWS_PER_STEP: usize = 4;

/// Reads the rows of a matrix. If the array has as many, `W` elements are read, because the compiler can copy a known
/// number of elements without a call of `memcpy`. The surplus elements belong to the next row, and their sums are
/// overwritten by the sums of that row.
#[inline(always)]
fn load<T: Float, const W: usize>(matrices: &SmallMatrices<'_, T>, index: usize, rows: &mut [[T; W]]) {
    let (elements, columns) = (matrices.matrices_from(index), matrices.sizes[1]);
    let [row_stride, column_stride] = matrices.strides();
    for (k, row) in rows.iter_mut().enumerate() {
        match (matrices.is_transposed, elements[k * row_stride..].first_chunk::<W>()) {
            (false, Some(elements)) => *row = *elements,
            (false, None) => row[..columns].copy_from_slice(&elements[k * row_stride..][..columns]),
            // A closure would be a call for each row.
            (true, _) => {
                for (j, element) in row[..columns].iter_mut().enumerate() {
                    *element = elements[k * row_stride + j * column_stride];
                }
            }
        }
    }
}

/// Writes `W` sums where the array has room for as many. The next row overwrites those beyond the columns.
#[inline(always)]
fn write<T: Float, const W: usize>(sums: &[T; W], columns: usize, out: &mut [T]) {
    match out.first_chunk_mut::<W>() {
        Some(out) => *out = *sums,
        None => out[..columns].copy_from_slice(&sums[..columns]),
    }
}
