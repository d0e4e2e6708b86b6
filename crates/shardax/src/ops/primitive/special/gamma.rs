//! The incomplete gamma function: a series if `x` is small compared with `a`, otherwise a continued fraction, and an
//! expansion if both are large and close
//! ([DLMF 8.7.1](https://dlmf.nist.gov/8.7.E1), [8.9.2](https://dlmf.nist.gov/8.9.E2)).

use super::distributions::{LOG_GAMMA_DENSITY, LOG1MEXP};
use super::{IGAMMAC_EXCESS, IGAMMAC_RATE, constant, eps, gamma_uniform, no_slope, until_converged};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::primitive::unary::{ABS, DIGAMMA, EXP, EXPM1, LGAMMA, LOG, LOG1P};
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
        let moving = if derivative {
            ABS.apply(&next_slope).greater(ABS.apply(&slopes) * tolerance)
        } else {
            next_term.greater(&sum * tolerance)
        };
        (vec![next_term, sum, next_slope, slopes], moving)
    })?;
    Ok(Dual { value: state[1].clone(), slope: state[3].clone() })
}

/// `1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / …))`, by Lentz's method, whose convergents are ratios of
/// numerators and denominators that change slowly.
///
/// `first` is the number of levels that are left out.
fn fraction(a: &Array, x: &Array, enabled: &Array, derivative: bool, first: i32) -> Result<Dual> {
    let tolerance = eps(a.dtype());
    let start = x + (1 + 2 * first) - a;
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
        let level = n + first;
        let (up, down) = (&level * (a - &level), &start + 2 * n);
        let u: Array = &up * d + &down;
        let u_slope = &level * d + &up * d_slope - 1;
        let v: Array = &down + &up / c;
        let v_slope = level / c - &up * c_slope / (c * c) - 1;
        let next_d: Array = 1 / &u;
        let next_d_slope = -(&u_slope * &next_d * &next_d);
        let ratio: Array = &v * &next_d;
        let ratio_slope = (&v_slope - &ratio * &u_slope) * &next_d;
        let (next, next_slope) = (value * &ratio, slope * &ratio + value * ratio_slope);
        let moving = if derivative {
            ABS.apply(&(&next_slope - slope)).greater(ABS.apply(&next_slope) * tolerance)
        } else {
            ABS.apply(&(ratio - 1)).greater(tolerance)
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
        fraction: fraction(a, x, &(usable & by_fraction), derivative, 0)?,
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
    let y = if !upper {
        where_(&by_fraction, 1 - q, p)
    } else {
        where_(&by_fraction, q, where_(is_small_shape(a, x), upper_of_small_shape(a, x), 1 - p))
    };
    let y = where_(close, gamma_uniform::regularized(a, x, upper), y);
    let (at_nothing, at_all) = if upper { (1.0, 0.0) } else { (0.0, 1.0) };
    let y = where_(nothing, constant(at_nothing, a), y);
    Ok(nan_where(&outside, where_(all, constant(at_all, a), y)))
}

/// The logarithm of `P`, or of `Q` if `upper` is set, which is a number where the function underflows, and small where the
/// function is next to 1.
pub(super) fn log_regularized(a: &Array, x: &Array, upper: bool) -> Result<Array> {
    let outside = is_outside(a, x);
    let (nothing, all) = (x.equal(0), x.equal(f64::INFINITY) | a.equal(0));
    let by_fraction = x.greater_equal(1) & x.greater(a);
    let close = gamma_uniform::is_close(a, x);
    let usable = !(&outside | &nothing | &all | &close);
    let parts = parts(a, x, &by_fraction, &usable, false)?;
    // The fraction is Q, the series is P. One is 1 without the other.
    let part = where_(&by_fraction, parts.fraction.value, parts.series.value / a);
    let direct = (log_scale(a, x) + LOG.apply(&part)).minimum(0);
    let rest = LOG1MEXP.apply(&[-&direct]);
    let y = if upper { where_(&by_fraction, &direct, rest) } else { where_(&by_fraction, rest, &direct) };
    let small = upper_of_small_shape(a, x);
    let y = where_(is_small_shape(a, x), if upper { LOG.apply(&small) } else { LOG1P.apply(&-small) }, y);
    let near = gamma_uniform::regularized(a, x, upper);
    let complement = gamma_uniform::regularized(a, x, !upper);
    let near = where_(near.less(0.5), LOG.apply(&near), LOG1P.apply(&-complement));
    let y = where_(close, near, y);
    let (at_nothing, at_all) = if upper { (0.0, f64::NEG_INFINITY) } else { (f64::NEG_INFINITY, 0.0) };
    let y = where_(nothing, constant(at_nothing, a), y);
    Ok(nan_where(&outside, where_(all, constant(at_all, a), y)))
}

/// The quotient of the density and of `P`, or of `Q` if `upper` is set. The common factor of series and fraction cancels, so the
/// quotient has all digits where both are small.
pub(super) fn rate(a: &Array, x: &Array, upper: bool) -> Result<Array> {
    let by_fraction = x.greater_equal(1) & x.greater(a);
    let usable = !(is_outside(a, x) | x.equal(0) | x.equal(f64::INFINITY) | a.equal(0));
    let parts = parts(a, x, &by_fraction, &usable, false)?;
    let direct = 1 / (x * where_(&by_fraction, parts.fraction.value, parts.series.value / a));
    let log = log_regularized(a, x, upper)?;
    let turned = EXP.apply(&(LOG_GAMMA_DENSITY.apply(&[x.clone(), a.clone()]) - log));
    let by_direct = if upper { by_fraction } else { !by_fraction };
    Ok(where_(usable & by_direct, direct, turned))
}

/// The tangent of [`rate`] for an operand: the logarithm of the rate has the slope of the log density, and plus or minus the rate.
pub(super) fn rate_slope(a: &[Array], rate: &Array, operand: usize, tangent: &Array, sign: f64) -> Array {
    match operand {
        0 => no_slope("the derivative of the incomplete gamma function", "its operands", rate),
        _ if sign > 0.0 => tangent * (rate * IGAMMAC_EXCESS.apply(a)),
        _ => tangent * (rate * ((&a[0] - 1) / &a[1] - 1 + rate * sign)),
    }
}

/// The rate of `Q` without its limit for large `x`: `rate + (a - 1) / x - 1`. Where the fraction is used, the difference is
/// the rest of the fraction after its first level, which has all digits. With shape 1 the rate is 1 everywhere.
pub(super) fn excess(a: &Array, x: &Array) -> Result<Array> {
    let by_fraction = x.greater_equal(1) & x.greater(a);
    let usable = !(is_outside(a, x) | x.equal(f64::INFINITY) | a.equal(0)) & by_fraction;
    let rest = fraction(a, x, &usable, false, 1)?.value;
    let difference = IGAMMAC_RATE.apply(&[a.clone(), x.clone()]) + (a - 1) / x - 1;
    let difference = where_(a.equal(1) & x.greater_equal(0), constant(0.0, a), difference);
    Ok(where_(usable, (a - 1) * rest / x, difference))
}

/// The derivative of [`log_regularized`] with respect to `a`.
pub(super) fn log_slope(a: &Array, x: &Array, upper: bool) -> Result<Array> {
    let outside = is_outside(a, x) | a.equal(0);
    let by_fraction = x.greater_equal(1) & x.greater(a);
    let usable = !(&outside | x.equal(0) | x.equal(f64::INFINITY));
    let parts = parts(a, x, &by_fraction, &usable, true)?;
    let log_x = LOG.apply(x);
    let of_series = parts.series.slope / parts.series.value - DIGAMMA.apply(&(a + 1));
    let of_fraction = parts.fraction.slope / parts.fraction.value - DIGAMMA.apply(a);
    let direct = where_(&by_fraction, of_fraction, of_series) + log_x;
    // P and Q have opposite slopes.
    let change = log_regularized(a, x, !upper)? - log_regularized(a, x, upper)?;
    let turned = -&direct * EXP.apply(&change);
    let y = if upper { where_(by_fraction, direct, turned) } else { where_(by_fraction, turned, direct) };
    Ok(nan_where(&outside, y))
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
