//! Cholesky decompositions of single matrices, by blocks of rows of the transposed factor.

use ndarray::{Array2, ArrayView2, ArrayViewMut2, s};
use pulp::{Arch, Simd, WithSimd};

use crate::product::{Before, product};
use crate::real::Real;
use crate::substitution::Equations;

/// The number of rows of a block.
const BLOCK: usize = 32;

/// The number of rows and columns that are transposed together.
const TILE: usize = 16;

/// Computes the lower triangular `l` of `a = l lᵀ`, both in row order. Returns `false` if the matrix is not positive definite; `l` is
/// then unspecified. Reads the lower triangle of `a`, and allocates a matrix.
pub(crate) fn factorize<T: Real>(a: &[T], n: usize, l: &mut [T]) -> bool {
    // An odd number of cache lines between rows, so that the rows of a column do not share a few sets of the cache.
    let stride = n.next_multiple_of(2 * TILE) + TILE;
    let mut upper = vec![T::ZERO; n * stride];
    transpose_lower(a, n, &mut upper, stride);
    let mut diagonal = vec![T::ZERO; BLOCK.min(n) * BLOCK.min(n)];
    let mut factors = diagonal.clone();
    for start in (0..n).step_by(BLOCK) {
        let end = (start + BLOCK).min(n);
        let count = end - start;
        let (known, rows) = upper.split_at_mut(start * stride);
        let rows = &mut rows[..count * stride];
        // The rows of the block, less the products of the rows above.
        if let (Ok(known), Ok(mut rows)) =
            (ArrayView2::from_shape((start, stride), &*known), ArrayViewMut2::from_shape((count, stride), &mut *rows))
        {
            let negated: Array2<T> = known.slice(s![.., start..end]).t().map(|x| -*x);
            product(
                &negated.view(),
                &known.slice(s![.., start..n]),
                Before::Added,
                &mut rows.slice_mut(s![.., start..n]),
            );
        }
        let diagonal = &mut diagonal[..count * count];
        for (to, from) in diagonal.chunks_exact_mut(count).zip(rows.chunks_exact(stride)) {
            to.copy_from_slice(&from[start..end]);
        }
        if !Arch::new().dispatch(DiagonalBlock { rows: diagonal, count }) {
            return false;
        }
        for (i, (from, to)) in diagonal.chunks_exact(count).zip(rows.chunks_exact_mut(stride)).enumerate() {
            to[start + i..end].copy_from_slice(&from[i..]);
        }
        // The part of the rows to the right is the solution of a system with the transposed block.
        let factors = &mut factors[..count * count];
        (0..count).for_each(|i| (0..=i).for_each(|j| factors[i * count + j] = diagonal[j * count + i]));
        if end < n {
            let columns = n - end;
            let x = &mut rows[end..];
            Equations { factors, count, has_unit_diagonal: false, is_forward: true, x, stride, columns }.solve();
        }
    }
    l.fill(T::ZERO);
    for (i, j) in tiles(n) {
        for row in i..(i + TILE).min(n) {
            for column in j..(j + TILE).min(row + 1) {
                l[row * n + column] = upper[column * stride + row];
            }
        }
    }
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

/// The first rows and columns of the tiles with elements of the lower triangle.
fn tiles(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).step_by(TILE).flat_map(|i| (0..=i).step_by(TILE).map(move |j| (i, j)))
}

/// The upper triangle of a symmetric matrix, which its factor replaces. The result is whether all pivots are positive.
struct DiagonalBlock<'a, T> {
    rows: &'a mut [T],
    count: usize,
}

impl<T: Real> WithSimd for DiagonalBlock<'_, T> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> bool {
        let count = self.count;
        for k in 0..count {
            let (row, below) = self.rows[k * count..].split_at_mut(count);
            let pivot = row[k];
            if !(pivot > T::ZERO && pivot.is_finite()) {
                return false;
            }
            let root = pivot.root();
            row[k] = root;
            row[k + 1..].iter_mut().for_each(|x| *x = *x / root);
            for (i, other) in (k + 1..).zip(below.chunks_exact_mut(count)) {
                let factor = row[i];
                other[i..].iter_mut().zip(&row[i..]).for_each(|(x, y)| *x = *x - factor * *y);
            }
        }
        true
    }
}
