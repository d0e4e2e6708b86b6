//! Dawson's integral.

use std::f64::consts::PI;

use super::{asymptotic_slope, constant};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::primitive::unary::{ABS, EXP};
use crate::ops::select::where_;

/// The distance of the points of the sum, and their number on each side: the error is `exp(-(π / 2h)²)`.
const STEP: f64 = 0.2;
const POINTS: i32 = 16;

/// The derivative of [`dawson`], given its value `y`.
pub(super) fn dawson_slope(x: &Array, y: &Array) -> Array {
    let (limit, terms) = if x.dtype() == DType::F64 { (MIN_ARGUMENT_OF_ASYMPTOTIC_SERIES, 10) } else { (5.0, 12) };
    let is_large = ABS.apply(x).greater(limit);
    let near = 1 - where_(&is_large, 0, x) * where_(&is_large, 0, y) * 2;
    let coefficients = (0..terms).scan(0.5, |c, k| {
        let coefficient = *c;
        *c *= f64::from(2 * k + 1) / 2.0;
        Some((coefficient, f64::from(2 * k + 1)))
    });
    let far = asymptotic_slope(&where_(&is_large, x, limit), &coefficients.collect::<Vec<_>>());
    where_(is_large, far, near)
}

/// Above it the asymptotic series is used ([DLMF 7.12](https://dlmf.nist.gov/7.12)): offsets would lose their digits.
const MIN_ARGUMENT_OF_ASYMPTOTIC_SERIES: f64 = 20.0;

/// `exp(-x²) ∫ exp(t²)` over t up to `x`, by Rybicki's sum
/// ([Press et al., Numerical Recipes, 6.9](https://numerical.recipes)); close to 0 by its series.
pub(super) fn dawson(x: &Array) -> Array {
    let center = (x / (2.0 * STEP)).round() * 2;
    let offset = x - &center * STEP;
    let terms = (-POINTS..POINTS).map(|j| {
        let n = f64::from(2 * j + 1);
        let distance = &offset - n * STEP;
        EXP.apply(&-(&distance * &distance)) / (&center + n)
    });
    let sum = terms.reduce(|a, b| a + b).unwrap_or_else(|| constant(0.0, x)) / PI.sqrt();
    // 2ᵏ / (2k + 1)!!, with alternating signs.
    let square = x * x;
    let series = (1..12).rev().fold(constant(1.0, x), |sum, k| 1 - sum * &square * (2.0 / f64::from(2 * k + 1))) * x;
    let large = ABS.apply(x).greater(MIN_ARGUMENT_OF_ASYMPTOTIC_SERIES);
    let far = where_(&large, x, MIN_ARGUMENT_OF_ASYMPTOTIC_SERIES);
    let inverse = 1 / (&far * &far * 2);
    let asymptotic =
        (1..10).rev().fold(constant(1.0, x), |sum, k| sum * &inverse * f64::from(2 * k - 1) + 1) / (far * 2);
    where_(large, asymptotic, where_(ABS.apply(x).less(0.5), series, sum))
}
