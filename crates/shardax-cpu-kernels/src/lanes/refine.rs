//! Corrections after Jacobi's rotations. Rounded rotations are not exactly orthogonal, so they change the lengths of
//! vectors, and with them the eigenvalues and singular values, which must be computed again.

use super::{LANES, Lanes};
use crate::real::Real;

/// Scales each column of matrices of `n` columns to length 1.
#[inline(always)]
pub(super) fn normalize_columns<T: Real>(matrix: &mut [Lanes<T>], n: usize) {
    for column in 0..n {
        let mut squares = [0.0f64; LANES];
        for row in matrix.chunks_exact(n) {
            for lane in 0..LANES {
                let x = row[column][lane].widen();
                squares[lane] += x * x;
            }
        }
        let lengths = squares.map(f64::sqrt);
        for row in matrix.chunks_exact_mut(n) {
            for lane in 0..LANES {
                row[column][lane] = T::narrow(row[column][lane].widen() / lengths[lane]);
            }
        }
    }
}

/// Computes the values `uᵢᵀ a vᵢ` of the columns of `u` and `v`. Their errors are squares of the errors of the vectors.
#[inline(always)]
pub(super) fn rayleigh_quotients<T: Real>(a: &[Lanes<T>], u: &[Lanes<T>], v: &[Lanes<T>], values: &mut [Lanes<T>]) {
    let n = values.len();
    for (i, value) in values.iter_mut().enumerate() {
        let mut sums = [0.0f64; LANES];
        for (row, u) in a.chunks_exact(n).zip(u.chunks_exact(n)) {
            let mut product = [T::ZERO; LANES];
            for (x, v) in row.iter().zip(v.chunks_exact(n)) {
                for lane in 0..LANES {
                    product[lane] = product[lane] + x[lane] * v[i][lane];
                }
            }
            for lane in 0..LANES {
                sums[lane] += u[i][lane].widen() * product[lane].widen();
            }
        }
        *value = sums.map(T::narrow);
    }
}
