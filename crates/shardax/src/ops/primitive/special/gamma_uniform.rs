//! The incomplete gamma function of a large parameter and an argument close to it, where the series and the continued
//! fraction take long and their scale cancels: Temme's uniform expansion ([DLMF 8.12](https://dlmf.nist.gov/8.12)).

use super::constant;
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::primitive::unary::{ABS, ERFC, EXP, SIGN, SQRT};

/// The least parameter that the expansion is used for.
const MIN_SHAPE: f64 = 200.0;

/// The largest distance of argument and parameter, in parts of the parameter.
const MAX_RELATIVE_DISTANCE: f64 = 0.25;

/// The coefficients of Stirling's series, [DLMF 5.11.4](https://dlmf.nist.gov/5.11.E4).
const STIRLING: [f64; 7] = [
    1.0,
    1.0 / 12.0,
    1.0 / 288.0,
    -139.0 / 51_840.0,
    -571.0 / 2_488_320.0,
    163_879.0 / 209_018_880.0,
    5_246_819.0 / 75_246_796_800.0,
];

/// True where the expansion holds.
pub(super) fn is_close(a: &Array, x: &Array) -> Array {
    a.greater(MIN_SHAPE) & ABS.apply(&(x - a)).less(a * MAX_RELATIVE_DISTANCE)
}

/// `(x - a) / a - log(x / a)`, half the square of Temme's variable, without cancellation: by the series of `atanh`.
pub(super) fn half_square(a: &Array, x: &Array) -> Array {
    let mu = (x - a) / a;
    let z = &mu / (&mu + 2);
    let square = &z * &z;
    let sum = polynomial(&square, (0..10).map(|j| 1.0 / f64::from(2 * j + 3)));
    mu * &z - z * square * sum * 2
}

/// The numbers of powers of `1 / a` and of Temme's variable that the dtype's precision needs.
fn counts(dtype: DType) -> (usize, usize) {
    if dtype == DType::F64 { (7, 16) } else { (3, 8) }
}

/// `P(a, x)`, or `Q(a, x)` where `upper`.
pub(super) fn regularized(a: &Array, x: &Array, upper: bool) -> Array {
    let half_square = half_square(a, x);
    let eta = SIGN.apply(&(x - a)) * SQRT.apply(&(&half_square * 2));
    let (powers, terms) = counts(a.dtype());
    let inverse = 1 / a;
    let rows: Vec<Array> =
        coefficients(powers, terms).into_iter().map(|row| polynomial(&eta, row.into_iter())).collect();
    let sum = rows.into_iter().rev().reduce(|sum, row| sum * &inverse + row).unwrap_or_else(|| constant(0.0, a));
    let correction = EXP.apply(&-(a * half_square)) / SQRT.apply(&(a * (2.0 * std::f64::consts::PI))) * sum;
    let scaled = eta * SQRT.apply(&(a * 0.5));
    if upper { ERFC.apply(&scaled) * 0.5 + correction } else { ERFC.apply(&-scaled) * 0.5 - correction }
}

/// The derivative of `P(a, x)` with respect to `x`.
pub(super) fn density(a: &Array, x: &Array) -> Array {
    let gamma = polynomial(&(1 / a), STIRLING.into_iter().take(counts(a.dtype()).0));
    EXP.apply(&-(a * half_square(a, x))) * SQRT.apply(&(a / (2.0 * std::f64::consts::PI))) / (gamma * x)
}

/// `Σ cₙ xⁿ`.
fn polynomial(x: &Array, coefficients: impl DoubleEndedIterator<Item = f64>) -> Array {
    coefficients.rev().fold(constant(0.0, x), |sum, c| sum * x + c)
}

/// `d[k][n]` of [DLMF 8.12.12](https://dlmf.nist.gov/8.12.E12), the expansion's coefficients of `ηⁿ / aᵏ`.
fn coefficients(powers: usize, terms: usize) -> Vec<Vec<f64>> {
    let count = terms + 2 * powers;
    let mut alpha = vec![0.0, 1.0, 1.0 / 3.0];
    for n in alpha.len()..count + 2 {
        let sum: f64 = (2..n).map(|j| j as f64 * alpha[j] * alpha[n + 1 - j]).sum();
        alpha.push((alpha[n - 1] - sum) / (n + 1) as f64);
    }
    let mut rows: Vec<Vec<f64>> =
        vec![(0..count).map(|n| if n == 0 { -1.0 / 3.0 } else { (n + 2) as f64 * alpha[n + 2] }).collect()];
    for (k, stirling) in STIRLING.iter().enumerate().take(powers).skip(1) {
        let sign = if k % 2 == 0 { 1.0 } else { -1.0 };
        let before = &rows[k - 1];
        let row = (0..before.len() - 2).map(|n| sign * stirling * rows[0][n] + (n + 2) as f64 * before[n + 2]);
        rows.push(row.collect());
    }
    rows.iter_mut().for_each(|row| row.truncate(terms));
    rows
}
