//! Eigenvalues and eigenvectors of symmetric matrices in lanes, by Jacobi's method.

use pulp::{Arch, Simd, WithSimd};

use super::refine::{normalize_columns, rayleigh_quotients};
use super::{LANES, Lanes, pair, rotate, rotation, scale, sort_columns};
use crate::real::Real;

/// Each sweep squares the deviation from a diagonal matrix, so a few are enough for any matrix.
const MAX_SWEEPS: usize = 30;

/// Computes the eigenvectors (as columns) and the eigenvalues (in ascending order) of symmetric matrices. Only the lower
/// triangles are read, and the matrices are overwritten. The results of a matrix that is not finite are NaN. `scaled` is memory for
/// matrices.
pub(crate) fn eigh<T: Real>(
    a: &mut [Lanes<T>],
    n: usize,
    vectors: &mut [Lanes<T>],
    values: &mut [Lanes<T>],
    scaled: &mut [Lanes<T>],
) {
    Arch::new().dispatch(Eigh { a, n, vectors, values, scaled });
}

struct Eigh<'a, T> {
    a: &'a mut [Lanes<T>],
    n: usize,
    vectors: &'a mut [Lanes<T>],
    values: &'a mut [Lanes<T>],
    scaled: &'a mut [Lanes<T>],
}

impl<T: Real> WithSimd for Eigh<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Eigh { a, n, vectors, values, scaled } = self;
        for i in 0..n {
            for j in 0..n {
                vectors[i * n + j] = [if i == j { T::ONE } else { T::ZERO }; LANES];
                if j > i {
                    a[i * n + j] = a[j * n + i];
                }
            }
        }
        // Scaled matrices have a largest element between 1 and 2, so that squares of elements neither overflow nor vanish.
        let (powers, is_finite) = scale(a);
        scaled.copy_from_slice(a);
        for _ in 0..MAX_SWEEPS {
            let mut is_rotated = false;
            for p in 0..n {
                for q in p + 1..n {
                    is_rotated |= annihilate(a, n, vectors, p, q);
                }
            }
            if !is_rotated {
                break;
            }
        }
        values.iter_mut().enumerate().for_each(|(i, value)| *value = a[i * n + i]);
        sort_columns(values, [&mut *vectors], |x, y| x < y);
        normalize_columns(vectors, n);
        rayleigh_quotients(scaled, vectors, vectors, values);
        let mut largest = values[0];
        for value in values.iter_mut() {
            for lane in 0..LANES {
                // Corrected values that are almost equal may have changed their order.
                largest[lane] = if value[lane] < largest[lane] { largest[lane] } else { value[lane] };
                value[lane] = largest[lane] * powers[lane];
            }
        }
        for element in values.iter_mut().chain(vectors) {
            for lane in 0..LANES {
                element[lane] = if is_finite[lane] { element[lane] } else { T::NAN };
            }
        }
    }
}

/// Rotates rows and columns `p` and `q` so that their common element is 0, where it is not small. Returns `true` if any lane was rotated.
#[inline(always)]
fn annihilate<T: Real>(a: &mut [Lanes<T>], n: usize, vectors: &mut [Lanes<T>], p: usize, q: usize) -> bool {
    let (diagonal_p, diagonal_q, off) = (a[p * n + p], a[q * n + q], a[p * n + q]);
    let (mut cos, mut sin) = ([T::ONE; LANES], [T::ZERO; LANES]);
    let mut is_rotated = [false; LANES];
    // The largest element of the matrix is between 1 and 2: such elements change eigenvalues by less than rounding does.
    let two = T::ONE + T::ONE;
    let negligible = T::EPSILON / (two * two * two * two);
    for lane in 0..LANES {
        let size = off[lane].magnitude();
        let diagonals = diagonal_p[lane].magnitude().root() * diagonal_q[lane].magnitude().root();
        is_rotated[lane] = size > T::EPSILON * diagonals + negligible;
        let (c, s) = rotation(diagonal_p[lane], diagonal_q[lane], off[lane]);
        // A lane that is finished is rotated by nothing, so that its bits do not depend on the others.
        cos[lane] = if is_rotated[lane] { c } else { T::ONE };
        sin[lane] = if is_rotated[lane] { s } else { T::ZERO };
    }
    if !is_rotated.contains(&true) {
        return false;
    }
    for row in a.chunks_exact_mut(n).chain(vectors.chunks_exact_mut(n)) {
        let (x, y) = pair(row, p, q);
        rotate(x, y, &cos, &sin);
    }
    let (upper, lower) = a.split_at_mut(q * n);
    for (x, y) in upper[p * n..(p + 1) * n].iter_mut().zip(&mut lower[..n]) {
        rotate(x, y, &cos, &sin);
    }
    for lane in 0..LANES {
        if is_rotated[lane] {
            a[p * n + q][lane] = T::ZERO;
            a[q * n + p][lane] = T::ZERO;
        }
    }
    true
}
