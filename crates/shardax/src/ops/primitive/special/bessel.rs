//! Modified Bessel functions of the first kind, scaled by `exp(-|x|)`.

use super::expint::grown;
use super::{BESSEL_I0E, constant};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::primitive::unary::{ABS, BESSEL_I1E, EXP, SIGN, SQRT};
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

/// The derivative of `exp(-|x|) I(x)` of this order from [`LARGE`] on, term by term of the asymptotic series
/// ([DLMF 10.40.1](https://dlmf.nist.gov/10.40.E1)): the difference of two functions of neighbouring orders would cancel.
fn asymptotic_derivative(order: f64, x: &Array) -> Array {
    let terms = if x.dtype() == DType::F64 { 30 } else { 8 };
    let coefficients = (0..terms).scan(1.0, |c, k| {
        let coefficient = *c;
        let (odd, next) = (f64::from(2 * k + 1), f64::from(k + 1));
        *c *= (odd * odd - 4.0 * order * order) / (8.0 * next);
        Some((coefficient, f64::from(k) + 0.5))
    });
    // The derivative of `c x⁻ᵖ` is `-c p x⁻ᵖ⁻¹`.
    let inverse = 1 / x;
    let sum = coefficients
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .fold(constant(0.0, x), |sum, (c, power)| sum * &inverse - c * power);
    sum * &inverse / (SQRT.apply(x) * (2.0 * std::f64::consts::PI).sqrt())
}

/// The derivative of `i0e(x)`, given `y = i0e(x)`.
pub(super) fn i0e_slope(x: &Array, y: &Array) -> Array {
    let is_near = !ABS.apply(x).greater(LARGE);
    let near = where_(&is_near, x, 0);
    let slope = BESSEL_I1E.apply(&near) - SIGN.apply(&near) * where_(&is_near, y, 0);
    let far = ABS.apply(&where_(&is_near, LARGE, x));
    where_(is_near, slope, SIGN.apply(x) * asymptotic_derivative(0.0, &far))
}

/// The derivative of `i1e(x)`, given `y = i1e(x)`.
pub(crate) fn bessel_i1e_slope(x: &Array, y: &Array) -> Array {
    if x.dtype().bits() < 32 {
        return bessel_i1e_slope(&x.astype(DType::F32), &y.astype(DType::F32)).astype(x.dtype());
    }
    let size = ABS.apply(x);
    let (is_small, is_large) = (size.less(1), size.greater(LARGE));
    let small = where_(&is_small, x, 0);
    // exp(-|x|) (I₁'(x) - sign(x) I₁(x))
    let decay = EXP.apply(&-ABS.apply(&small));
    let first = decay * (i1_slope_series(&small) - SIGN.apply(&small) * i1_series(&small));
    let is_between = !&is_small & !&is_large;
    let between = where_(&is_between, x, 1);
    let slope = BESSEL_I0E.apply(std::slice::from_ref(&between))
        - where_(&is_between, y, 0) * (SIGN.apply(&between) + 1 / &between);
    let far = where_(&is_large, size, LARGE);
    where_(is_small, first, where_(is_large, asymptotic_derivative(1.0, &far), slope))
}

/// `exp(|x|) y`, for the size `y` of a scaled function at `x`. At infinities, where that is 0, it is infinite.
pub(super) fn unscaled(x: &Array, y: &Array) -> Array {
    let size = ABS.apply(x);
    grown(&size, &where_(size.equal(f64::INFINITY), 1, y))
}

/// The number of terms of the series for arguments up to 1.
fn terms(dtype: DType) -> i32 {
    if dtype == DType::F64 { 12 } else { 7 }
}

/// `I₁(x)` up to 1 ([DLMF 10.25.2](https://dlmf.nist.gov/10.25.E2)).
fn i1_series(x: &Array) -> Array {
    let square = x * x * 0.25;
    let sum = (1..terms(x.dtype())).rev().fold(constant(1.0, x), |sum, k| sum * &square / f64::from(k * (k + 1)) + 1);
    sum * x * 0.5
}

/// The derivative of [`i1_series`].
fn i1_slope_series(x: &Array) -> Array {
    let square = x * x * 0.25;
    let sum = (1..terms(x.dtype())).rev().fold(constant(1.0, x), |sum, k| {
        let growth = f64::from(2 * k + 1) / f64::from((2 * k - 1) * k * (k + 1));
        sum * &square * growth + 1
    });
    sum * 0.5
}

/// The derivative of `I₁(x)`.
pub(super) fn i1_slope(x: &Array) -> Array {
    let is_small = ABS.apply(x).less(1);
    let far = where_(&is_small, 1, x);
    let scaled = BESSEL_I0E.apply(std::slice::from_ref(&far)) - BESSEL_I1E.apply(&far) / &far;
    where_(&is_small, i1_slope_series(&where_(&is_small, x, 0)), grown(&ABS.apply(&far), &scaled))
}

/// The second derivative of `I₁(x)`.
pub(super) fn i1_curve(x: &Array) -> Array {
    let is_small = ABS.apply(x).less(1);
    let small = where_(&is_small, x, 0);
    let square = &small * &small * 0.25;
    let sum = (2..terms(x.dtype()) + 1).rev().fold(constant(1.0, x), |sum, k| {
        let growth = f64::from(2 * k + 1) / f64::from((k - 1) * (2 * k - 1) * (k + 1));
        sum * &square * growth + 1
    });
    let near = sum * small * 0.375;
    let far = where_(&is_small, 1, x);
    let inverse = 1 / &far;
    let scaled =
        BESSEL_I1E.apply(&far) * (1 + 2 * &inverse * &inverse) - BESSEL_I0E.apply(std::slice::from_ref(&far)) * inverse;
    where_(is_small, near, grown(&ABS.apply(&far), &scaled))
}
