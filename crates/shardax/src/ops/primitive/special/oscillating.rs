//! Sine, cosine and Fresnel integrals: series close to 0, and auxiliary functions without oscillation elsewhere.

use std::f64::consts::{FRAC_PI_2, PI, SQRT_2};

use super::constant;
use super::turns::{COS_PI, SIN_PI};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::lax::reduce_precision;
use crate::ops::primitive::unary::{ABS, COS, LOG, ROUND, SIGN, SIN, SQRT};
use crate::ops::select::where_;

/// Up to this argument the series lose less than a digit, and from it on the sums of [`laplace`] are exact.
const MAX_SERIES_ARGUMENT: f64 = 4.0;

/// Points `u` and weights of `∫ exp(-u) uᵖ f(u)` over positive u.
///
/// The trapezoidal rule after `u = exp(t - exp(-t))`, whose ends vanish twice exponentially.
pub(super) fn laplace_nodes(power: f64, dtype: DType) -> impl Iterator<Item = (f64, f64)> {
    let (step, first) = if dtype == DType::F64 { (0.25, -18) } else { (0.5, -9) };
    (first..).map(move |j| f64::from(j) * step).take_while(|t| *t < 3.8).map(move |t| {
        let u = (t - (-t).exp()).exp();
        (u, step * (1.0 + (-t).exp()) * u.powf(power + 1.0) * (-u).exp())
    })
}

/// `∫ exp(-u) uᵖ / (1 + z u²)` over positive u, for `z` up to 1 / 16. The poles, at a distance of `π / 2` from the line,
/// determine the error.
fn laplace(power: f64, z: &Array) -> Array {
    let terms = laplace_nodes(power, z.dtype()).map(|(u, weight)| weight / (1 + z * (u * u)));
    terms.reduce(|a, b| a + b).unwrap_or_else(|| constant(0.0, z))
}

/// Sums `Σ (-square)ᵏ cₖ`, where `ratio` is the quotient of each coefficient and the previous one.
fn alternating(square: &Array, ratio: impl Fn(f64) -> f64) -> Array {
    let terms = if square.dtype() == DType::F64 { 20 } else { 13 };
    (1..terms).rev().fold(constant(1.0, square), |sum, k| 1 - sum * square * ratio(f64::from(k)))
}

/// Replaces `x` by a safe number where a mask is true.
fn replace_unless(mask: &Array, x: &Array, safe: f64) -> Array {
    where_(mask, safe, x)
}

/// The auxiliary functions `f` and `g` of `Si` and `Ci` ([DLMF 6.7.13](https://dlmf.nist.gov/6.7.E13)), for `x` of at
/// least [`MAX_SERIES_ARGUMENT`].
fn trigonometric(x: &Array) -> [Array; 2] {
    let inverse = 1 / x;
    let z = &inverse * &inverse;
    [laplace(0.0, &z) * inverse, laplace(1.0, &z) * &z]
}

/// The sine integral, `∫ sin(t) / t` from 0.
pub(super) fn si(x: &Array) -> Array {
    let size = ABS.apply(x);
    let near = size.less_equal(MAX_SERIES_ARGUMENT);
    let small = where_(&near, &size, 0);
    let series = alternating(&(&small * &small), |k| (2.0 * k - 1.0) / ((2.0 * k + 1.0) * 2.0 * k * (2.0 * k + 1.0)));
    let infinite = size.equal(f64::INFINITY);
    let large = replace_unless(&(&near | &infinite), &size, MAX_SERIES_ARGUMENT);
    let [f, g] = trigonometric(&large);
    let far = FRAC_PI_2 - f * COS.apply(&large) - g * SIN.apply(&large);
    SIGN.apply(x) * where_(infinite, FRAC_PI_2, where_(near, series * small, far))
}

/// The ratio of the series' coefficients `k` and `k - 1`.
fn ci_ratio(k: f64) -> f64 {
    2.0 * k / ((2.0 * k + 2.0) * (2.0 * k + 1.0) * (2.0 * k + 2.0))
}

/// The cosine integral, `γ + log(x) + ∫ (cos(t) - 1) / t` from 0, of `|x|`; NaN at negative infinity.
pub(super) fn ci(x: &Array) -> Array {
    const GAMMA: f64 = 0.577_215_664_901_532_9;
    let size = ABS.apply(x);
    let near = size.less_equal(MAX_SERIES_ARGUMENT);
    let small = where_(&near, &size, 1);
    let square = &small * &small;
    let series = GAMMA + LOG.apply(&small) - alternating(&square, ci_ratio) * &square * 0.25;
    let infinite = size.equal(f64::INFINITY);
    let large = replace_unless(&(&near | &infinite), &size, MAX_SERIES_ARGUMENT);
    let [f, g] = trigonometric(&large);
    let far = f * SIN.apply(&large) - g * COS.apply(&large);
    let value = where_(&infinite, 0, where_(near, series, far));
    where_(infinite & x.less(0), f64::NAN, value)
}

/// The phase, `π x² / 2`.
fn phase(x: &Array) -> Array {
    x * x * FRAC_PI_2
}

/// The Fresnel integral of the sine, or the cosine, of `π t² / 2` from 0
/// ([DLMF 7.5.3, 7.7.10](https://dlmf.nist.gov/7.5.E3)).
pub(super) fn fresnel(x: &Array, sine: bool) -> Array {
    let size = ABS.apply(x);
    let near = phase(&size).less_equal(MAX_SERIES_ARGUMENT);
    let small = where_(&near, &size, 0);
    let a = phase(&small);
    let square = &a * &a;
    // (4k + 1) (2k)! for the cosine, (4k + 3) (2k + 1)! for the sine.
    let series = if sine {
        alternating(&square, |k: f64| (4.0 * k - 1.0) / ((4.0 * k + 3.0) * 2.0 * k * (2.0 * k + 1.0))) * a / 3.0
    } else {
        alternating(&square, |k| (4.0 * k - 3.0) / ((4.0 * k + 1.0) * 2.0 * k * (2.0 * k - 1.0)))
    };
    // Beyond this size, the integrals are 1/2 to the last digit.
    let infinite = size.greater(1e18);
    let large = replace_unless(&(&near | &infinite), &size, 2.0);
    let a = phase(&large);
    let inverse = 1 / &a;
    let z = &inverse * &inverse;
    let f = laplace(-0.5, &z) * SQRT.apply(&inverse) / (PI * SQRT_2);
    let g = laplace(0.5, &z) * &inverse * SQRT.apply(&inverse) / (PI * SQRT_2);
    let turns = [half_square(&large)];
    let (sin, cos) = (SIN_PI.apply(&turns), COS_PI.apply(&turns));
    let far = if sine { 0.5 - f * cos - g * sin } else { f * sin - g * cos + 0.5 };
    SIGN.apply(x) * where_(infinite, 0.5, where_(near, series * small, far))
}

/// `x² / 2` modulo 2, which keeps the digits of the phase. `x` is split into parts with half of its digits, because
/// their products are exact. Above a limit, all squares are multiples of 4.
pub(super) fn half_square(x: &Array) -> Array {
    let (exponent, mantissa, limit) =
        if x.dtype() == DType::F64 { (11, 26, 2f64.powi(54)) } else { (8, 11, 2f64.powi(25)) };
    let x = where_(ABS.apply(x).greater(limit), 0, x);
    let high = reduce_precision(&x, exponent, mantissa);
    let low = &x - &high;
    // Removes whole turns from each part, so that the sum stays small.
    let parts = [&high * &high * 0.5, &high * &low, &low * &low * 0.5];
    let [a, b, c] = parts.map(|part: Array| &part - ROUND.apply(&(&part * 0.5)) * 2);
    a + b + c
}

/// `sin(x) / x`, computed by its series close to 0 because the terms of the quotient's derivative cancel there.
pub(super) fn sine_ratio(x: &Array) -> Array {
    let is_near = ABS.apply(x).less(1);
    let near = replace_unless(&!&is_near, x, 0.0);
    let series = alternating(&(&near * &near), |k| 1.0 / (2.0 * k * (2.0 * k + 1.0)));
    let far = replace_unless(&is_near, x, 1.0);
    where_(is_near, series, SIN.apply(&far) / &far)
}
