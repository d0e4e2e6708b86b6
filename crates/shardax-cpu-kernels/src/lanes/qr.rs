//! The QR decomposition by Householder's reflections, in lanes.

use pulp::{Arch, Simd, WithSimd};

use super::{LANES, Lanes, scale};
use crate::real::Real;

/// Replaces matrices of `m` rows and `n` columns by the upper triangular factor, with the reflections below it, and computes the first
/// `columns` columns of `q`. The signs are LAPACK's. The results of a matrix that is not finite are NaN. `sums` is memory for as many elements
/// as the longer row of the two results.
pub(crate) fn qr<T: Real>(
    a: &mut [Lanes<T>],
    sizes: [usize; 2],
    q: &mut [Lanes<T>],
    columns: usize,
    sums: &mut [Lanes<T>],
) {
    Arch::new().dispatch(Qr { a, sizes, q, columns, sums });
}

struct Qr<'a, T> {
    a: &'a mut [Lanes<T>],
    sizes: [usize; 2],
    q: &'a mut [Lanes<T>],
    columns: usize,
    sums: &'a mut [Lanes<T>],
}

impl<T: Real> WithSimd for Qr<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Qr { a, sizes: [m, n], q, columns, sums } = self;
        // Scaled matrices have a largest element between 1 and 2, so that squares of elements neither overflow nor vanish.
        let (powers, is_finite) = scale(a);
        let steps = m.min(n);
        let mut factors = vec![[T::ZERO; LANES]; steps];
        for k in 0..steps {
            factors[k] = reflection(simd, a, n, k);
            let (upper, below) = a.split_at_mut((k + 1) * n);
            let row = &mut upper[k * n + k + 1..];
            let sums = &mut sums[..n - k - 1];
            // The vector of the reflection is 1, and then the elements below the diagonal.
            sums.copy_from_slice(row);
            for other in below.chunks_exact(n) {
                add_products(simd, sums, &other[k], &other[k + 1..]);
            }
            for (sum, x) in sums.iter_mut().zip(row) {
                for lane in 0..LANES {
                    sum[lane] = -sum[lane] * factors[k][lane];
                    x[lane] = x[lane] + sum[lane];
                }
            }
            for other in below.chunks_exact_mut(n) {
                let (vector, other) = other[k..].split_at_mut(1);
                add_products(simd, other, &vector[0], sums);
            }
        }
        for (i, row) in q.chunks_exact_mut(columns.max(1)).enumerate() {
            row.iter_mut().enumerate().for_each(|(j, x)| *x = [if i == j { T::ONE } else { T::ZERO }; LANES]);
        }
        for k in (0..steps).rev() {
            let (upper, below) = q.split_at_mut((k + 1) * columns);
            let row = &mut upper[k * columns + k..];
            let sums = &mut sums[..columns - k];
            sums.copy_from_slice(row);
            let vectors = a.chunks_exact(n).skip(k + 1).map(|row| &row[k]);
            for (vector, other) in vectors.clone().zip(below.chunks_exact(columns)) {
                add_products(simd, sums, vector, &other[k..]);
            }
            for (sum, x) in sums.iter_mut().zip(row) {
                for lane in 0..LANES {
                    sum[lane] = -sum[lane] * factors[k][lane];
                    x[lane] = x[lane] + sum[lane];
                }
            }
            for (vector, other) in vectors.zip(below.chunks_exact_mut(columns)) {
                add_products(simd, &mut other[k..], vector, sums);
            }
        }
        for (i, row) in a.chunks_exact_mut(n.max(1)).enumerate() {
            for (j, x) in row.iter_mut().enumerate() {
                for lane in 0..LANES {
                    let value = if j < i { T::ZERO } else { x[lane] * powers[lane] };
                    x[lane] = if is_finite[lane] { value } else { T::NAN };
                }
            }
        }
        for x in q {
            for lane in 0..LANES {
                x[lane] = if is_finite[lane] { x[lane] } else { T::NAN };
            }
        }
    }
}

/// Computes the reflection of column `k` from the diagonal on: the diagonal becomes the element of `r`, and the elements below it the
/// vector, whose first element is 1. Returns the factor of the reflection, which is 0 if the elements below the diagonal are 0.
#[inline(always)]
fn reflection<T: Real, S: Simd>(simd: S, a: &mut [Lanes<T>], n: usize, k: usize) -> Lanes<T> {
    let (upper, below) = a.split_at_mut((k + 1) * n);
    let diagonal = &mut upper[k * n + k];
    let mut squares = [T::ZERO; LANES];
    for row in below.chunks_exact(n) {
        for lane in 0..LANES {
            squares[lane] = T::multiply_add(simd, row[k][lane], row[k][lane], squares[lane]);
        }
    }
    let (mut factor, mut inverse) = ([T::ZERO; LANES], [T::ZERO; LANES]);
    for lane in 0..LANES {
        let alpha = diagonal[lane];
        let length = (alpha * alpha + squares[lane]).root();
        let beta = if alpha < T::ZERO { length } else { -length };
        let is_reflected = squares[lane] > T::ZERO;
        let divisor = if is_reflected { beta } else { T::ONE };
        factor[lane] = if is_reflected { (beta - alpha) / divisor } else { T::ZERO };
        let difference = if is_reflected { alpha - beta } else { T::ONE };
        inverse[lane] = if is_reflected { T::ONE / difference } else { T::ZERO };
        diagonal[lane] = if is_reflected { beta } else { alpha };
    }
    for row in below.chunks_exact_mut(n) {
        for lane in 0..LANES {
            row[k][lane] = row[k][lane] * inverse[lane];
        }
    }
    factor
}

/// Adds the products with one number for each lane to a row.
#[inline(always)]
fn add_products<T: Real, S: Simd>(simd: S, sums: &mut [Lanes<T>], factor: &Lanes<T>, row: &[Lanes<T>]) {
    for (sum, x) in sums.iter_mut().zip(row) {
        for lane in 0..LANES {
            sum[lane] = T::multiply_add(simd, factor[lane], x[lane], sum[lane]);
        }
    }
}
