//! The Cholesky decomposition in lanes.

use super::{LANES, Lanes, subtract_product};
use crate::real::Real;

/// Replaces symmetric matrices by their factors; only the lower triangles are read. The factor of a matrix that is not finite
/// or not positive definite is NaN.
pub(crate) fn cholesky<T: Real>(a: &mut [Lanes<T>], n: usize) {
    // A lane that fails continues with the others, because lanes share their instructions; its factor is replaced by NaN at
    // the end.
    let mut is_bad = [false; LANES];
    for j in 0..n {
        for i in j..n {
            let mut sum = a[i * n + j];
            for lane in 0..LANES {
                is_bad[lane] |= !sum[lane].is_finite();
            }
            let (row, other) = (&a[i * n..i * n + j], &a[j * n..j * n + j]);
            row.iter().zip(other).for_each(|(x, y)| subtract_product(&mut sum, x, y));
            if i == j {
                for lane in 0..LANES {
                    is_bad[lane] |= !(sum[lane] > T::ZERO);
                    sum[lane] = sum[lane].root();
                }
            } else {
                let diagonal = a[j * n + j];
                for lane in 0..LANES {
                    sum[lane] = sum[lane] / diagonal[lane];
                }
            }
            a[i * n + j] = sum;
        }
        for i in 0..j {
            a[i * n + j] = [T::ZERO; LANES];
        }
    }
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
