//! The incomplete gamma function: a series where `x` is small beside `a`, a continued fraction where it is not, and an
//! expansion where both are large and close
//! ([DLMF 8.7.1](https://dlmf.nist.gov/8.7.E1), [8.9.2](https://dlmf.nist.gov/8.9.E2)).

use super::{constant, eps, gamma_uniform, until_converged};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::primitive::unary::{ABS, DIGAMMA, EXP, EXPM1, LGAMMA, LOG};
use crate::ops::select::where_;

/// A sum and its derivative with respect to `a`.
struct Dual {
    value: Array,
    slope: Array,
}

/// `log(xᵃ exp(-x) / Γ(a))`, the common factor of series and fraction.
fn log_scale(a: &Array, x: &Array) -> Array {
    a * LOG.apply(x) - x - LGAMMA.apply(a)
}

/// The derivative of the regularized function with respect to `x`.
pub(super) fn density(a: &Array, x: &Array) -> Array {
    let density = EXP.apply(&(-x + (a - 1) * LOG.apply(x) - LGAMMA.apply(a)));
    // Where the expansion does not hold its slope may be NaN, which would multiply a cotangent of 0.
    let is_close = gamma_uniform::is_close(a, x);
    let close = gamma_uniform::density(&where_(&is_close, a, 1e3), &where_(&is_close, x, 1e3));
    where_(is_close, close, density)
}

/// Marks factors that underflow to 0.
fn underflows(log_scale: &Array) -> Array {
    let largest = if log_scale.dtype() == DType::F64 { f64::MAX } else { f64::from(f32::MAX) };
    log_scale.less(-largest.ln())
}

/// `Σ xⁿ / ((a + 1) … (a + n))`, with the derivative if `derivative` is set.
fn series(a: &Array, x: &Array, enabled: &Array, derivative: bool) -> Result<Dual> {
    let tolerance = eps(a.dtype());
    let (one, zero) = (constant(1.0, a).broadcast_to(a.shape()), constant(0.0, a).broadcast_to(a.shape()));
    let state = vec![one.clone(), one, zero.clone(), zero];
    let state = until_converged(10_000, enabled.clone(), state, |n, state| {
        let [term, sum, slope, slopes] = [0, 1, 2, 3].map(|i| &state[i]);
        let factor: Array = x / (a + n);
        let next_slope: Array = slope * &factor - term * &factor / (a + n);
        let next_term: Array = term * factor;
        let (sum, slopes) = (sum + &next_term, slopes + &next_slope);
        let moving = match derivative {
            true => ABS.apply(&next_slope).greater(ABS.apply(&slopes) * tolerance),
            false => next_term.greater(&sum * tolerance),
        };
        (vec![next_term, sum, next_slope, slopes], moving)
    })?;
    Ok(Dual { value: state[1].clone(), slope: state[3].clone() })
}

/// `1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / …))`, by Lentz's method, whose convergents are ratios of
/// numerators and denominators that change slowly.
fn fraction(a: &Array, x: &Array, enabled: &Array, derivative: bool) -> Result<Dual> {
    let tolerance = eps(a.dtype());
    let start = x + 1 - a;
    // The first denominator must not be zero: elements where it is are computed by the series.
    let start = where_(start.equal(0), constant(tolerance, a), start);
    let first_convergent: Array = 1 / &start;
    let first_slope = &first_convergent * &first_convergent;
    let infinite = constant(1.0 / tolerance / tolerance, a).broadcast_to(a.shape());
    let zero = constant(0.0, a).broadcast_to(a.shape());
    let state = vec![first_convergent.clone(), first_slope.clone(), infinite, zero, first_convergent, first_slope];
    let state = until_converged(2000, enabled.clone(), state, |n, state| {
        let [d, d_slope, c, c_slope, value, slope] = [0, 1, 2, 3, 4, 5].map(|i| &state[i]);
        // The next numerator and denominator; their derivatives are n and -1.
        let (up, down) = (n * (a - n), &start + 2 * n);
        let u: Array = &up * d + &down;
        let u_slope = n * d + &up * d_slope - 1;
        let v: Array = &down + &up / c;
        let v_slope = n / c - &up * c_slope / (c * c) - 1;
        let next_d: Array = 1 / &u;
        let next_d_slope = -(&u_slope * &next_d * &next_d);
        let ratio: Array = &v * &next_d;
        let ratio_slope = (&v_slope - &ratio * &u_slope) * &next_d;
        let (next, next_slope) = (value * &ratio, slope * &ratio + value * ratio_slope);
        let moving = match derivative {
            true => ABS.apply(&(&next_slope - slope)).greater(ABS.apply(&next_slope) * tolerance),
            false => ABS.apply(&(ratio - 1)).greater(tolerance),
        };
        (vec![next_d, next_d_slope, v, v_slope, next, next_slope], moving)
    })?;
    Ok(Dual { value: state[4].clone(), slope: state[5].clone() })
}

/// Marks arguments outside of the function's domain.
fn is_outside(a: &Array, x: &Array) -> Array {
    x.less(0) | a.less(0) | (a.equal(0) & x.equal(0)) | a.not_equal(a) | x.not_equal(x)
}

/// Series and fraction where each converges, and their common factor: `log_scale`.
struct Parts {
    series: Dual,
    fraction: Dual,
}

fn parts(a: &Array, x: &Array, by_fraction: &Array, usable: &Array, derivative: bool) -> Result<Parts> {
    Ok(Parts {
        series: series(a, x, &(usable & !by_fraction), derivative)?,
        fraction: fraction(a, x, &(usable & by_fraction), derivative)?,
    })
}

fn nan_where(outside: &Array, x: Array) -> Array {
    let nan = constant(f64::NAN, &x);
    where_(outside, nan, x)
}

/// `P(a, x)`, the lower function divided by `Γ(a)`.
pub(super) fn lower(a: &Array, x: &Array) -> Result<Array> {
    regularized(a, x, false)
}

/// `Q(a, x) = 1 - P(a, x)`.
pub(super) fn upper(a: &Array, x: &Array) -> Result<Array> {
    regularized(a, x, true)
}

fn regularized(a: &Array, x: &Array, upper: bool) -> Result<Array> {
    let log_scale = log_scale(a, x);
    let outside = is_outside(a, x);
    let (nothing, all) = (x.equal(0), x.equal(f64::INFINITY) | a.equal(0));
    let by_fraction = x.greater_equal(1) & x.greater(a);
    let close = gamma_uniform::is_close(a, x);
    let usable = !(&outside | &nothing | &all | &close | underflows(&log_scale));
    let parts = parts(a, x, &by_fraction, &usable, false)?;
    let scale = EXP.apply(&log_scale);
    let (p, q) = (parts.series.value * &scale / a, parts.fraction.value * scale);
    let y = match upper {
        false => where_(&by_fraction, 1 - q, p),
        true => where_(&by_fraction, q, where_(is_small_shape(a, x), upper_of_small_shape(a, x), 1 - p)),
    };
    let y = where_(close, gamma_uniform::regularized(a, x, upper), y);
    let (at_nothing, at_all) = if upper { (1.0, 0.0) } else { (0.0, 1.0) };
    let y = where_(nothing, constant(at_nothing, a), y);
    Ok(nan_where(&outside, where_(all, constant(at_all, a), y)))
}

fn is_small_shape(a: &Array, x: &Array) -> Array {
    a.less(0.01) & x.less(1)
}

/// `1 - P(a, x)` without cancellation, for a small shape: the terms of the series of `P` that do not vanish with `a` are
/// `xᵃ / Γ(a + 1)`, whose logarithm is small.
fn upper_of_small_shape(a: &Array, x: &Array) -> Array {
    // log(Γ(a + 1)), -γ a + Σ (-1)ⁿ ζ(n) aⁿ / n (DLMF 5.7.3).
    const LOG_GAMMA: [f64; 8] = [
        -0.577_215_664_901_532_9,
        0.822_467_033_424_113_2,
        -0.400_685_634_386_531_43,
        0.270_580_808_427_784_54,
        -0.207_385_551_028_673_98,
        0.169_557_176_997_408_2,
        -0.144_049_896_768_846_1,
        0.125_509_669_524_743_04,
    ];
    let is_small = is_small_shape(a, x);
    let (a, x) = (where_(&is_small, a, 0.001), where_(&is_small, x, 0.5));
    let log_gamma = LOG_GAMMA.iter().rev().fold(constant(0.0, &a), |sum, c| (sum + *c) * &a);
    let log_power = &a * LOG.apply(&x) - log_gamma;
    // Σ (-x)ᵏ / ((a + k) k!)
    let (mut term, mut sum) = (constant(1.0, &a), constant(0.0, &a));
    for k in 1..20 {
        term = term * &x * (-1.0 / f64::from(k));
        sum = sum + &term / (&a + f64::from(k));
    }
    -EXPM1.apply(&log_power) - EXP.apply(&log_power) * a * sum
}

/// The derivative of `P(a, x)` with respect to `a`.
pub(super) fn lower_slope(a: &Array, x: &Array) -> Result<Array> {
    slope(a, x, false)
}

/// The derivative of a sample `x` of the gamma distribution with respect to its parameter `a`, at constant `P(a, x)`
/// ([Figurnov et al., Implicit reparameterization gradients](https://arxiv.org/abs/1805.08498)).
pub(super) fn sample_slope(a: &Array, x: &Array) -> Result<Array> {
    slope(a, x, true)
}

fn slope(a: &Array, x: &Array, of_sample: bool) -> Result<Array> {
    let log_scale = log_scale(a, x);
    let outside = x.less(0) | a.less_equal(0) | a.not_equal(a) | x.not_equal(x);
    let by_fraction = x.greater(1) & x.greater(a);
    let usable = !(&outside | x.equal(0) | x.equal(f64::INFINITY) | underflows(&log_scale));
    let parts = parts(a, x, &by_fraction, &usable, true)?;
    // The derivatives of the logarithms of both factors.
    let log_x = LOG.apply(x);
    let p = (&parts.series.slope + &parts.series.value * (&log_x - DIGAMMA.apply(&(a + 1)))) / a;
    let q = &parts.fraction.slope + &parts.fraction.value * (log_x - DIGAMMA.apply(a));
    let y = where_(by_fraction, -q, p);
    let y = if of_sample { -y * x } else { y * EXP.apply(&log_scale) };
    Ok(nan_where(&outside, where_(x.equal(0), constant(0.0, a), y)))
}
