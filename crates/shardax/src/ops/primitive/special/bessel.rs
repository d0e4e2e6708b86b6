//! Modified Bessel functions of the first kind, scaled by `exp(-|x|)`.

use super::{BESSEL_I0E, constant, eps};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::primitive::unary::{ABS, EXP, SIGN, SQRT};
use crate::ops::select::where_;

/// Below it the integral is summed, above it the asymptotic series.
const LARGE: f64 = 20.0;

/// The number of points of the quadrature: the error is the Bessel function of this order.
const POINTS: usize = 40;

/// The mean of `exp(|x| (cos θ - 1))` over the circle ([DLMF 10.32.1](https://dlmf.nist.gov/10.32.E1)), which equally
/// spaced points give to all digits; for large numbers the series [10.40.1](https://dlmf.nist.gov/10.40.E1).
pub(super) fn i0e(x: &Array) -> Array {
    let x = ABS.apply(x);
    let small = x.minimum(LARGE);
    let angle = |j: usize| 2.0 * std::f64::consts::PI * j as f64 / POINTS as f64;
    // Both halves of the circle are equal by symmetry.
    let half = (1..POINTS / 2).map(|j| EXP.apply(&(&small * (angle(j).cos() - 1.0))));
    let half = half.reduce(|a, b| a + b).map_or_else(|| constant(0.0, &small), |sum| sum * 2);
    let mean = (half + EXP.apply(&(&small * -2)) + 1) / POINTS as f64;

    let large = x.maximum(LARGE);
    let inverse = 1 / (&large * 8);
    let terms = if x.dtype() == DType::F64 { 30 } else { 8 };
    let series = (1..=terms).rev().fold(constant(1.0, &x), |sum, k| {
        let odd = f64::from(2 * k - 1);
        sum * &inverse * (odd * odd / f64::from(k)) + 1
    });
    // The roots apart: their product may be too large for the type.
    let root = SQRT.apply(&large) * (2.0 * std::f64::consts::PI).sqrt();
    where_(x.less_equal(LARGE), mean, series / root)
}

/// The derivative of `i1e(x)`, given `y = i1e(x)`: ½ at 0, where the quotient is undefined.
pub(crate) fn bessel_i1e_slope(x: &Array, y: &Array) -> Array {
    let tolerance = if x.dtype().bits() < 32 { f64::from(half::bf16::EPSILON) } else { eps(x.dtype()) };
    let far = ABS.apply(x).greater(tolerance);
    let safe = where_(&far, x, constant(tolerance, x));
    let slope = BESSEL_I0E.apply(std::slice::from_ref(&safe)) - y * (SIGN.apply(&safe) + 1 / &safe);
    where_(far, slope, constant(0.5, x))
}
