//! Batches of products of small matrices, which are multiplied without `gemm`, because a call of it takes longer than such a product.

use pulp::{Arch, Simd, WithSimd};

use crate::Float;
use crate::tasks::run_tasks;

/// The maximum number of rows, of columns and of contracted elements.
pub const MAX_SMALL_SIDE: usize = 16;

/// The approximate number of tasks per thread.
const TASKS: usize = 2;

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
    let part = if threads == 1 { batch } else { batch.div_ceil(TASKS * threads) };
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
    fn with_simd<S: Simd>(self, _: S) {
        match self.right.sizes[1] {
            ..=8 => self.multiply::<8>(),
            _ => self.multiply::<MAX_SMALL_SIDE>(),
        }
    }
}

impl<T: Float> Task<'_, T> {
    /// Multiplies matrices of at most `W` columns. `W` elements of a row are read and written where the arrays have as many, because
    /// copying a known number of elements needs no call of `memcpy`: elements of the next row make sums that the next row overwrites.
    #[inline(always)]
    fn multiply<const W: usize>(self) {
        let Task { left, right, first, out } = self;
        let ([rows, depth], columns) = (left.sizes, right.sizes[1]);
        let ([row_stride, element_stride], [right_row, right_column]) = (left.strides(), right.strides());
        let mut padded = [[T::zero(); W]; MAX_SMALL_SIDE];
        for index in 0..out.len() / (rows * columns) {
            let (a, b) = (left.matrix(first + index), right.matrices_from(first + index));
            for (k, padded) in padded[..depth].iter_mut().enumerate() {
                match (right.is_transposed, b[k * right_row..].first_chunk::<W>()) {
                    (false, Some(row)) => *padded = *row,
                    (false, None) => padded[..columns].copy_from_slice(&b[k * right_row..][..columns]),
                    (true, _) => (0..columns).for_each(|j| padded[j] = b[k * right_row + j * right_column]),
                }
            }
            for i in 0..rows {
                let mut sums = [T::zero(); W];
                for (k, row) in padded[..depth].iter().enumerate() {
                    let factor = a[i * row_stride + k * element_stride];
                    for (sum, element) in sums.iter_mut().zip(row) {
                        *sum = *sum + factor * *element;
                    }
                }
                let out = &mut out[(index * rows + i) * columns..];
                match out.first_chunk_mut::<W>() {
                    Some(out) => *out = sums,
                    None => out[..columns].copy_from_slice(&sums[..columns]),
                }
            }
        }
    }
}
