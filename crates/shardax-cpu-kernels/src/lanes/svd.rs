//! The singular value decomposition in lanes, by one-sided Jacobi rotations: they make the columns of a matrix orthogonal.

use pulp::{Arch, Simd, WithSimd};

use super::refine::{normalize_columns, rayleigh_quotients};
use super::{LANES, Lanes, pair, rotate, rotation, scale, sort_columns};
use crate::real::Real;

/// Each sweep squares the deviation from orthogonal columns, so a few are enough for any matrix.
const MAX_SWEEPS: usize = 30;

/// Computes the decomposition of matrices of `m` rows and at most as many columns `n`. The left singular vectors replace the columns of
/// `a`, and the right singular vectors are the columns of `right`; `values` are in descending order. The results of a matrix that is not
/// finite are NaN. `scaled` is memory for matrices.
///
/// Returns the lanes that have singular values so small that their left singular vectors are not accurate.
pub(crate) fn svd<T: Real>(
    a: &mut [Lanes<T>],
    n: usize,
    right: &mut [Lanes<T>],
    values: &mut [Lanes<T>],
    scaled: &mut [Lanes<T>],
) -> [bool; LANES] {
    Arch::new().dispatch(Svd { a, n, right, values, scaled })
}

struct Svd<'a, T> {
    a: &'a mut [Lanes<T>],
    n: usize,
    right: &'a mut [Lanes<T>],
    values: &'a mut [Lanes<T>],
    scaled: &'a mut [Lanes<T>],
}

impl<T: Real> WithSimd for Svd<'_, T> {
    type Output = [bool; LANES];

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> [bool; LANES] {
        let Svd { a, n, right, values, scaled } = self;
        for i in 0..n {
            for j in 0..n {
                right[i * n + j] = [if i == j { T::ONE } else { T::ZERO }; LANES];
            }
        }
        let (powers, is_finite) = scale(a);
        scaled.copy_from_slice(a);
        for _ in 0..MAX_SWEEPS {
            let mut is_rotated = false;
            for p in 0..n {
                for q in p + 1..n {
                    is_rotated |= orthogonalize(a, n, right, p, q);
                }
            }
            if !is_rotated {
                break;
            }
        }
        let is_inaccurate = divide_by_lengths(a, n, values, is_finite);
        sort_columns(values, [&mut *a, &mut *right], |x, y| x > y);
        // Rounding errors of many rotations add up. The quotients correct the values to the accuracy of a single product.
        normalize_columns(a, n);
        normalize_columns(right, n);
        rayleigh_quotients(scaled, a, right, values);
        let mut smallest = values[0];
        for value in values.iter_mut() {
            for lane in 0..LANES {
                // Corrected values that are almost equal may have changed their order.
                smallest[lane] = if value[lane] > smallest[lane] { smallest[lane] } else { value[lane] };
                value[lane] = smallest[lane].magnitude() * powers[lane];
            }
        }
        for element in values.iter_mut().chain(a).chain(right) {
            for lane in 0..LANES {
                element[lane] = if is_finite[lane] { element[lane] } else { T::NAN };
            }
        }
        is_inaccurate
    }
}

/// Divides orthogonal columns by their lengths, which are the singular values. Returns the lanes that have lengths so small
/// that the divided columns are not accurate.
#[inline(always)]
fn divide_by_lengths<T: Real>(
    a: &mut [Lanes<T>],
    n: usize,
    values: &mut [Lanes<T>],
    is_finite: [bool; LANES],
) -> [bool; LANES] {
    let mut is_inaccurate = [false; LANES];
    // Squares of smaller numbers are no longer accurate.
    let smallest = (T::MIN_POSITIVE / T::EPSILON).root();
    for (j, value) in values.iter_mut().enumerate() {
        let mut squares = [T::ZERO; LANES];
        for row in a.chunks_exact(n) {
            for lane in 0..LANES {
                squares[lane] = squares[lane] + row[j][lane] * row[j][lane];
            }
        }
        let lengths = squares.map(T::root);
        for lane in 0..LANES {
            is_inaccurate[lane] |= is_finite[lane] & !(lengths[lane] > smallest);
        }
        for row in a.chunks_exact_mut(n) {
            for lane in 0..LANES {
                row[j][lane] = row[j][lane] / lengths[lane];
            }
        }
        *value = lengths;
    }
    is_inaccurate
}

/// Rotates columns `p` and `q` so that they are orthogonal, where they are not. Returns `true` if any lane was rotated.
#[inline(always)]
fn orthogonalize<T: Real>(a: &mut [Lanes<T>], n: usize, right: &mut [Lanes<T>], p: usize, q: usize) -> bool {
    let (mut square_p, mut square_q, mut product) = ([T::ZERO; LANES], [T::ZERO; LANES], [T::ZERO; LANES]);
    for row in a.chunks_exact(n) {
        let (x, y) = (row[p], row[q]);
        for lane in 0..LANES {
            square_p[lane] = square_p[lane] + x[lane] * x[lane];
            square_q[lane] = square_q[lane] + y[lane] * y[lane];
            product[lane] = product[lane] + x[lane] * y[lane];
        }
    }
    let (mut cos, mut sin) = ([T::ONE; LANES], [T::ZERO; LANES]);
    let mut is_rotated = [false; LANES];
    // Rounding errors of the product.
    let tolerance = T::EPSILON * (T::ONE + T::ONE);
    for lane in 0..LANES {
        let lengths = square_p[lane].root() * square_q[lane].root();
        is_rotated[lane] = product[lane].magnitude() > tolerance * lengths;
        let (c, s) = rotation(square_p[lane], square_q[lane], product[lane]);
        // A finished lane is rotated by an angle of 0, so that its bits do not depend on the other lanes.
        cos[lane] = if is_rotated[lane] { c } else { T::ONE };
        sin[lane] = if is_rotated[lane] { s } else { T::ZERO };
    }
    if !is_rotated.contains(&true) {
        return false;
    }
    for row in a.chunks_exact_mut(n).chain(right.chunks_exact_mut(n)) {
        let (x, y) = pair(row, p, q);
        rotate(x, y, &cos, &sin);
    }
    true
}
