//! Cholesky decompositions of single matrices, by blocks of rows of the transposed factor.

use ndarray::{ArrayView2, ArrayViewMut2, s};
use pulp::{Arch, Simd, WithSimd};

use crate::product::{Before, product};
use crate::real::Real;
use crate::substitution::{Equations, Triangular};

/// The number of rows of a block.
const BLOCK: usize = 32;

/// The largest number of rows of a matrix that is one block: the division into blocks takes longer than it saves.
const SMALL: usize = 64;

/// The number of rows and columns that are transposed together.
const TILE: usize = 16;

/// Computes the lower triangular `l` of `a = l lᵀ`, both in row order. Returns `false` if the matrix is not positive definite; `l` is
/// then unspecified. Reads the lower triangle of `a`, and allocates a matrix.
pub(crate) fn factorize<T: Real>(a: &[T], n: usize, l: &mut [T]) -> bool {
    if n <= BLOCK {
        factorize_block::<T, BLOCK>(a, n, l)
    } else if n <= SMALL {
        factorize_block::<T, SMALL>(a, n, l)
    } else {
        factorize_blocks(a, n, l)
    }
}

/// Factorizes a matrix of at most `N` rows.
fn factorize_block<T: Real, const N: usize>(a: &[T], n: usize, l: &mut [T]) -> bool {
    let mut upper = [[T::ZERO; N]; N];
    transpose_lower(a, n, upper.as_flattened_mut(), N);
    if !Arch::new().dispatch(DiagonalBlock { rows: &mut upper, count: n }) {
        return false;
    }
    transpose_upper(upper.as_flattened(), N, n, l);
    true
}

fn factorize_blocks<T: Real>(a: &[T], n: usize, l: &mut [T]) -> bool {
    // An odd number of cache lines between rows, so that the rows of a column do not share a few sets of the cache.
    let stride = n.next_multiple_of(2 * TILE) + TILE;
    let mut upper = vec![T::ZERO; n * stride];
    transpose_lower(a, n, &mut upper, stride);
    for start in (0..n).step_by(BLOCK) {
        let end = (start + BLOCK).min(n);
        let count = end - start;
        let (known, rows) = upper.split_at_mut(start * stride);
        let rows = &mut rows[..count * stride];
        // The rows of the block, less the products of the rows above.
        if let (Ok(known), Ok(mut rows)) =
            (ArrayView2::from_shape((start, stride), &*known), ArrayViewMut2::from_shape((count, stride), &mut *rows))
        {
            product(
                &known.slice(s![.., start..end]).t(),
                &known.slice(s![.., start..n]),
                Before::Reduced,
                &mut rows.slice_mut(s![.., start..n]),
            );
        }
        let mut diagonal = [[T::ZERO; BLOCK]; BLOCK];
        for (i, (to, from)) in diagonal.iter_mut().zip(rows.chunks_exact(stride)).enumerate() {
            to[i..count].copy_from_slice(&from[start + i..end]);
        }
        if !Arch::new().dispatch(DiagonalBlock { rows: &mut diagonal, count }) {
            return false;
        }
        for (i, (from, to)) in diagonal.iter().zip(rows.chunks_exact_mut(stride)).enumerate() {
            to[start + i..end].copy_from_slice(&from[i..count]);
        }
        // The part of the rows to the right is the solution of a system with the transposed block.
        let matrix = Triangular {
            data: diagonal.as_flattened(),
            stride: BLOCK,
            count,
            is_transposed: true,
            is_forward: true,
            has_unit_diagonal: false,
        };
        if end < n {
            Equations { matrix, x: &mut rows[end..], stride, columns: n - end }.solve();
        }
    }
    transpose_upper(&upper, stride, n, l);
    true
}

/// Copies the lower triangle to the upper one of a matrix.
fn transpose_lower<T: Real>(a: &[T], n: usize, upper: &mut [T], stride: usize) {
    for (i, j) in tiles(n) {
        for column in j..(j + TILE).min(n) {
            for row in i.max(column)..(i + TILE).min(n) {
                upper[column * stride + row] = a[row * n + column];
            }
        }
    }
}

/// Copies the upper triangle of a matrix to the lower one, and sets the other elements to 0.
fn transpose_upper<T: Real>(upper: &[T], stride: usize, n: usize, l: &mut [T]) {
    l.fill(T::ZERO);
    for (i, j) in tiles(n) {
        for row in i..(i + TILE).min(n) {
            for column in j..(j + TILE).min(row + 1) {
                l[row * n + column] = upper[column * stride + row];
            }
        }
    }
}

/// The first rows and columns of the tiles with elements of the lower triangle.
fn tiles(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).step_by(TILE).flat_map(|i| (0..=i).step_by(TILE).map(move |j| (i, j)))
}

/// The number of elements of a row that are updated together.
const CHUNK: usize = 8;

/// The upper triangle of a symmetric matrix of `count` rows, which its factor replaces. Elements of the other triangle may change. The result
/// is whether all pivots are positive.
struct DiagonalBlock<'a, T, const N: usize> {
    rows: &'a mut [[T; N]; N],
    count: usize,
}

impl<T: Real, const N: usize> WithSimd for DiagonalBlock<'_, T, N> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> bool {
        let chunks = self.count.div_ceil(CHUNK);
        for k in 0..self.count {
            let (row, below) = self.rows[k..].split_at_mut(1);
            let row = &mut row[0];
            let pivot = row[k];
            if !(pivot > T::ZERO && pivot.is_finite()) {
                return false;
            }
            let root = pivot.root();
            row[k] = root;
            for x in &mut row[k + 1..self.count] {
                *x = *x / root;
            }
            for (i, other) in (k + 1..self.count).zip(below) {
                let factor = -row[i];
                // Entire vectors, from the one with the diagonal on.
                let (to, from) = (other.as_chunks_mut::<CHUNK>().0, row.as_chunks::<CHUNK>().0);
                for (to, from) in to.iter_mut().zip(from).take(chunks).skip(i / CHUNK) {
                    for (x, y) in to.iter_mut().zip(from) {
                        *x = T::multiply_add(simd, factor, *y, *x);
                    }
                }
            }
        }
        true
    }
}
