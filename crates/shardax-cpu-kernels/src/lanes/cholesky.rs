//! The Cholesky decomposition in lanes.

use pulp::{Arch, Simd, WithSimd};

use super::{LANES, Lanes, subtract_product};
use crate::real::Real;

/// The number of rows whose sums are in registers at the same time.
const ROWS: usize = 4;

/// Replaces symmetric matrices by their factors; only the lower triangles are read. The factor of a matrix that is not finite
/// or not positive definite is NaN.
pub(crate) fn cholesky<T: Real>(a: &mut [Lanes<T>], n: usize) {
    // A lane that fails continues with the others, because lanes share their instructions; its factor is replaced by NaN at
    // the end.
    let is_bad = Arch::new().dispatch(Cholesky { a: &mut *a, n });
    if !is_bad.contains(&true) {
        return;
    }
    for (row, elements) in a.chunks_exact_mut(n).enumerate() {
        for element in &mut elements[..=row] {
            for lane in 0..LANES {
                element[lane] = if is_bad[lane] { T::NAN } else { element[lane] };
            }
        }
    }
}

/// Factorizes matrices, and returns the lanes that are not finite or not positive definite.
struct Cholesky<'a, T> {
    a: &'a mut [Lanes<T>],
    n: usize,
}

impl<T: Real> WithSimd for Cholesky<'_, T> {
    type Output = [bool; LANES];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [bool; LANES] {
        let Cholesky { a, n } = self;
        // Zero, or NaN in the lanes that have an element which is not finite.
        let mut zeros = [T::ZERO; LANES];
        let mut is_bad = [false; LANES];
        for j in 0..n {
            let (upper, below) = a.split_at_mut((j + 1) * n);
            let row = &mut upper[j * n..];
            let [mut diagonal] = reduce(simd, [&*row], &row[..j], &mut zeros);
            for lane in 0..LANES {
                is_bad[lane] |= !(diagonal[lane] > T::ZERO);
                diagonal[lane] = diagonal[lane].root();
            }
            row[j..].fill([T::ZERO; LANES]);
            row[j] = diagonal;
            let known = &row[..j];
            let mut groups = below.chunks_exact_mut(ROWS * n);
            for group in &mut groups {
                eliminate::<T, S, ROWS>(simd, group, known, &diagonal, &mut zeros);
            }
            for row in groups.into_remainder().chunks_exact_mut(n) {
                eliminate::<T, S, 1>(simd, row, known, &diagonal, &mut zeros);
            }
        }
        for lane in 0..LANES {
            is_bad[lane] |= zeros[lane] != T::ZERO;
        }
        is_bad
    }
}

/// Computes the elements of the next column of the factor in `R` rows.
#[inline(always)]
fn eliminate<T: Real, S: Simd, const R: usize>(
    simd: S,
    rows: &mut [Lanes<T>],
    known: &[Lanes<T>],
    diagonal: &Lanes<T>,
    zeros: &mut Lanes<T>,
) {
    let n = rows.len() / R;
    let sums = reduce(simd, std::array::from_fn::<_, R, _>(|i| &rows[i * n..(i + 1) * n]), known, zeros);
    for (row, sum) in rows.chunks_exact_mut(n).zip(&sums) {
        for lane in 0..LANES {
            row[known.len()][lane] = sum[lane] / diagonal[lane];
        }
    }
}

/// Returns the elements of a column, less the products of the elements before them and of the row `known`.
#[inline(always)]
fn reduce<T: Real, S: Simd, const R: usize>(
    simd: S,
    rows: [&[Lanes<T>]; R],
    known: &[Lanes<T>],
    zeros: &mut Lanes<T>,
) -> [Lanes<T>; R] {
    let mut sums = rows.map(|row| row[known.len()]);
    for sum in &sums {
        for lane in 0..LANES {
            zeros[lane] = zeros[lane] + sum[lane] * T::ZERO;
        }
    }
    let rows = rows.map(|row| &row[..known.len()]);
    for (k, known) in known.iter().enumerate() {
        for (sum, row) in sums.iter_mut().zip(&rows) {
            subtract_product(simd, sum, &row[k], known);
        }
    }
    sums
}
