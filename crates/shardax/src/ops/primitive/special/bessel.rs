//! Modified Bessel functions of the first kind, scaled by `exp(-|x|)`.

use super::expint::grown;
use super::{BESSEL_I0E, chebyshev, constant};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::primitive::unary::{ABS, BESSEL_I1E, EXP, RSQRT, SIGN, SQRT};
use crate::ops::select::where_;

/// The argument from which the derivatives use the asymptotic series.
const MIN_ASYMPTOTIC_ARGUMENT: f64 = 20.0;

/// The argument up to which the power series is summed.
const MAX_SERIES_ARGUMENT: f64 = 8.0;

/// Chebyshev coefficients of `sqrt(x) exp(-x) I₀(x)` as a function of `MAX_SERIES_ARGUMENT / x` from 0 to 1.
const I0E_FAR: [f64; 23] = [
    0.4022452055070544,
    0.0033691164782556943,
    6.889758346916825e-05,
    2.8913705208347567e-06,
    2.0489185894690636e-07,
    2.266668990498178e-08,
    3.396232025708386e-09,
    4.94060238822497e-10,
    1.1889147107846437e-11,
    -3.1499165279632416e-11,
    -1.3215811840447713e-11,
    -1.7941785315068062e-12,
    7.180124451383666e-13,
    3.8527783827421426e-13,
    1.54008621752141e-14,
    -4.150569347287222e-14,
    -9.554846698828307e-15,
    3.8116806693526224e-15,
    1.7725601330565263e-15,
    -3.425485619677219e-16,
    -2.8276239805165836e-16,
    3.461222867697461e-17,
    4.46562142029676e-17,
];

/// Chebyshev coefficients of `sqrt(x) exp(-x) I₁(x)`.
const I1E_FAR: [f64; 23] = [
    0.38928811750914005,
    -0.009761097491361469,
    -0.00011058893876262371,
    -3.882564808877691e-06,
    -2.512236237870209e-07,
    -2.6314688468895196e-08,
    -3.835380385964237e-09,
    -5.589743462196584e-10,
    -1.8974958123505413e-11,
    3.2526035830154884e-11,
    1.4125807436613782e-11,
    2.0356285441470896e-12,
    -7.198551776245908e-13,
    -4.0835511110921974e-13,
    -2.1015418427726643e-14,
    4.272440016711951e-14,
    1.0420276984128802e-14,
    -3.8144030724370075e-15,
    -1.8803547755107825e-15,
    3.3082023109209285e-16,
    2.96262899764595e-16,
    -3.209525921993424e-17,
    -4.6503053684893586e-17,
];

/// `exp(-|x|) I₀(x)`.
pub(super) fn i0e(x: &Array) -> Array {
    scaled(0, &ABS.apply(x), &I0E_FAR)
}

/// `exp(-|x|) I₁(x)`.
pub(crate) fn i1e(x: &Array) -> Array {
    SIGN.apply(x) * scaled(1, &ABS.apply(x), &I1E_FAR)
}

/// `exp(-x) I(x)` of order 0 or 1 for positive numbers. Small ones use the power series
/// ([DLMF 10.25.2](https://dlmf.nist.gov/10.25.E2)), whose terms are all positive.
fn scaled(order: i32, x: &Array, far: &[f64]) -> Array {
    let small = x.minimum(MAX_SERIES_ARGUMENT);
    let half = &small * 0.5;
    let square = &half * &half;
    let terms = if x.dtype() == DType::F64 { 24 } else { 16 };
    let coefficients = (1..terms).scan(1.0, |coefficient, k| {
        *coefficient /= f64::from(k * (k + order));
        Some(*coefficient)
    });
    let coefficients: Vec<f64> = coefficients.collect();
    let sum = coefficients.iter().rev().fold(constant(0.0, x), |sum, coefficient| (sum + *coefficient) * &square) + 1;
    let sum = if order == 0 { sum } else { half * sum };
    // The root of the inverse is one operation, and its square replaces a division.
    let root = RSQRT.apply(&x.maximum(MAX_SERIES_ARGUMENT));
    let far = chebyshev(&(&root * &root * (2.0 * MAX_SERIES_ARGUMENT) - 1), far) * root;
    where_(x.less_equal(MAX_SERIES_ARGUMENT), EXP.apply(&-&small) * sum, far)
}

/// The derivative of `exp(-|x|) I(x)` of this order from [`MIN_ASYMPTOTIC_ARGUMENT`] on, term by term of the asymptotic series
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
    let is_near = !ABS.apply(x).greater(MIN_ASYMPTOTIC_ARGUMENT);
    let near = where_(&is_near, x, 0);
    let slope = BESSEL_I1E.apply(&near) - SIGN.apply(&near) * where_(&is_near, y, 0);
    let far = ABS.apply(&where_(&is_near, MIN_ASYMPTOTIC_ARGUMENT, x));
    where_(is_near, slope, SIGN.apply(x) * asymptotic_derivative(0.0, &far))
}

/// The derivative of `i1e(x)`, given `y = i1e(x)`.
pub(crate) fn bessel_i1e_slope(x: &Array, y: &Array) -> Array {
    if x.dtype().bits() < 32 {
        return bessel_i1e_slope(&x.astype(DType::F32), &y.astype(DType::F32)).astype(x.dtype());
    }
    let size = ABS.apply(x);
    let (is_small, is_large) = (size.less(1), size.greater(MIN_ASYMPTOTIC_ARGUMENT));
    let small = where_(&is_small, x, 0);
    // exp(-|x|) (I₁'(x) - sign(x) I₁(x))
    let decay = EXP.apply(&-ABS.apply(&small));
    let near_slope = decay * (i1_slope_series(&small) - SIGN.apply(&small) * i1_series(&small));
    let is_between = !&is_small & !&is_large;
    let between = where_(&is_between, x, 1);
    let slope = BESSEL_I0E.apply(std::slice::from_ref(&between))
        - where_(&is_between, y, 0) * (SIGN.apply(&between) + 1 / &between);
    let far = where_(&is_large, size, MIN_ASYMPTOTIC_ARGUMENT);
    where_(is_small, near_slope, where_(is_large, asymptotic_derivative(1.0, &far), slope))
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
