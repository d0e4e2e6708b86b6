//! The LU decomposition with partial pivoting, in lanes.

use pulp::{Arch, Simd, WithSimd};

use super::{LANES, Lanes, exchange, pair, subtract_product};
use crate::real::Real;

/// Replaces matrices of `m` rows and `n` columns by their factors. `pivots` are the rows that each row is exchanged with, and `permutation`
/// the product of all exchanges.
pub(crate) fn lu<T: Real>(
    a: &mut [Lanes<T>],
    [m, n]: [usize; 2],
    pivots: &mut [Lanes<i32>],
    permutation: &mut [Lanes<i32>],
) {
    Arch::new().dispatch(Lu { a, sizes: [m, n], pivots, permutation });
}

struct Lu<'a, T> {
    a: &'a mut [Lanes<T>],
    sizes: [usize; 2],
    pivots: &'a mut [Lanes<i32>],
    permutation: &'a mut [Lanes<i32>],
}

impl<T: Real> WithSimd for Lu<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Lu { a, sizes: [m, n], pivots, permutation } = self;
        permutation.iter_mut().zip(0..).for_each(|(row, index)| *row = [index; LANES]);
        for k in 0..m.min(n) {
            let pivot = find_pivot(a, [m, n], k);
            pivots[k] = pivot;
            for i in k + 1..m {
                let is_exchanged = pivot.map(|row| row == i as i32);
                if !is_exchanged.contains(&true) {
                    continue;
                }
                let (upper, lower) = a.split_at_mut(i * n);
                for (x, y) in upper[k * n..(k + 1) * n].iter_mut().zip(&mut lower[..n]) {
                    exchange(x, y, &is_exchanged);
                }
                let (x, y) = pair(permutation, k, i);
                exchange(x, y, &is_exchanged);
            }
            let (upper, below) = a.split_at_mut((k + 1) * n);
            let row = &upper[k * n..];
            // A column of zeros needs no elimination.
            let divisor = row[k].map(|x| if x == T::ZERO { T::ONE } else { x });
            for other in below.chunks_exact_mut(n) {
                for lane in 0..LANES {
                    other[k][lane] = other[k][lane] / divisor[lane];
                }
                let factor = other[k];
                for (sum, x) in other[k + 1..].iter_mut().zip(&row[k + 1..]) {
                    subtract_product(simd, sum, &factor, x);
                }
            }
        }
    }
}

/// The rows of the largest elements of column `k`, on and below the diagonal; of the first NaN if there is one.
#[inline(always)]
fn find_pivot<T: Real>(a: &[Lanes<T>], [m, n]: [usize; 2], k: usize) -> Lanes<i32> {
    let mut largest = a[k * n + k].map(T::magnitude);
    let mut pivot = [k as i32; LANES];
    for i in k + 1..m {
        for lane in 0..LANES {
            let size = a[i * n + k][lane].magnitude();
            // Nothing is larger than a NaN.
            let is_larger = !(size <= largest[lane]) & (largest[lane] == largest[lane]);
            largest[lane] = if is_larger { size } else { largest[lane] };
            pivot[lane] = if is_larger { i as i32 } else { pivot[lane] };
        }
    }
    pivot
}
