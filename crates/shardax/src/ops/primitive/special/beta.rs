//! The regularized incomplete beta function, by its continued fraction ([DLMF
//! 8.17.22](https://dlmf.nist.gov/8.17.E22)).

use std::f64::consts::PI;

use super::super::expanded::expanded;
use super::distributions::LOG1MEXP;
use super::products::{LOG_BETA, stirling_rest};
use super::{constant, eps, no_slope, until_converged, widened};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::primitive::binary::POLYGAMMA;
use crate::ops::primitive::unary::{ABS, DIGAMMA, EXP, EXPM1, LOG, LOG1P};
use crate::ops::select::where_;

expanded! {
    // The density of the beta distribution, of operands a, b and x
    BETA_DENSITY "beta_density" Float, |a| widened(a, |a| Ok(density(&a[0], &a[1], &a[2]))), |a, y, i, t| {
        let (a, b, x) = (&a[0], &a[1], &a[2]);
        t * y * match i {
            0 => LOG.apply(x) - DIGAMMA.apply(a) + DIGAMMA.apply(&(a + b)),
            1 => LOG1P.apply(&-x) - DIGAMMA.apply(b) + DIGAMMA.apply(&(a + b)),
            // 0 · ∞ would be NaN where the density underflows.
            _ => {
                let x = where_(y.equal(0), 0.5, x);
                (a - 1) / &x - (b - 1) / (1 - x)
            }
        }
    };
}

/// `I(x; a, b)`.
pub(super) fn regularized(a: &Array, b: &Array, x: &Array) -> Result<Array> {
    let Parts { is_zero, is_one, outside, is_below, scale_parameter, sum, rest } = parts(a, b, x)?;
    let y = sum * (EXP.apply(&log_power(a, b, x)) / scale_parameter);
    let y = where_(is_below, &y, where_(rest.is_small, rest.value, 1 - &y));
    let y = where_(is_one, constant(1.0, a), where_(is_zero, constant(0.0, a), y));
    Ok(where_(outside, constant(f64::NAN, a), y))
}

/// The logarithm of `I(x; a, b)`, or of `1 - I(x; a, b)` if `upper` is set, which is a number where the function underflows, and
/// small where the function is next to 1.
pub(super) fn log_regularized(a: &Array, b: &Array, x: &Array, upper: bool) -> Result<Array> {
    let Parts { is_zero, is_one, outside, is_below, scale_parameter, sum, rest } = parts(a, b, x)?;
    let direct = (log_power(a, b, x) + LOG.apply(&(sum / scale_parameter))).minimum(0);
    let direct = where_(&rest.is_small, LOG1P.apply(&-&rest.value), direct);
    let rest = where_(&rest.is_small, LOG.apply(&rest.value), LOG1MEXP.apply(&[-&direct]));
    let y = if upper { where_(is_below, rest, &direct) } else { where_(is_below, &direct, rest) };
    let (at_zero, at_one) = if upper { (0.0, f64::NEG_INFINITY) } else { (f64::NEG_INFINITY, 0.0) };
    let y = where_(is_one, constant(at_one, a), where_(is_zero, constant(at_zero, a), y));
    Ok(where_(outside, constant(f64::NAN, a), y))
}

/// The quotient of the density and of `I(x; a, b)`, or of `1 - I(x; a, b)` if `upper` is set. The power that the fraction is
/// multiplied with cancels, so the quotient has all digits where both are small.
pub(super) fn rate(a: &Array, b: &Array, x: &Array, upper: bool) -> Result<Array> {
    let Parts { is_zero, is_one, outside, is_below, scale_parameter, sum, rest: _ } = parts(a, b, x)?;
    let is_inside = !(is_zero | is_one | outside);
    let inside = where_(&is_inside, x, 0.5);
    let direct = scale_parameter / (&inside * (1 - &inside) * sum);
    let log_density = log_power(a, b, &inside) - LOG.apply(&inside) - LOG1P.apply(&-inside);
    let log = log_regularized(a, b, x, upper)?;
    let turned = EXP.apply(&(log_density - where_(&is_inside, &log, 0)));
    let by_direct = if upper { !is_below } else { is_below };
    let at_ends = density(a, b, x) / EXP.apply(&log);
    Ok(where_(is_inside, where_(by_direct, direct, turned), at_ends))
}

/// The tangent of [`rate`] for an operand: the logarithm of the rate has the slope of the log density, and plus or minus the rate.
pub(super) fn rate_slope(args: &[Array], rate: &Array, operand: usize, tangent: &Array, sign: f64) -> Array {
    let (a, b, x) = (&args[0], &args[1], &args[2]);
    match operand {
        2 => tangent * (rate * ((a - 1) / x - (b - 1) / (1 - x) + rate * sign)),
        _ => no_slope("the incomplete beta function", "its parameters", rate),
    }
}

/// The continued fraction, and where it is not used.
struct Parts {
    is_zero: Array,
    is_one: Array,
    outside: Array,
    /// The fraction is of `x`, not of `1 - x`, whose parameters are exchanged.
    is_below: Array,
    /// The parameter that the fraction is divided by.
    scale_parameter: Array,
    sum: Array,
    rest: Rest,
}

/// The difference of the fraction's function from 1, for parameters with which it loses its digits.
struct Rest {
    is_small: Array,
    value: Array,
}

fn parts(a: &Array, b: &Array, x: &Array) -> Result<Parts> {
    let (no_a, no_b) = (a.equal(0) | b.equal(f64::INFINITY), b.equal(0) | a.equal(f64::INFINITY));
    let (first, last) = (x.equal(0), x.equal(1));
    let is_zero = (&no_b & !&last) | (&no_a & &first) | &first;
    let is_one = (&no_a & !&first) | (&no_b & &last) | &last;

    let outside = a.less(0) | b.less(0) | x.less(0) | x.greater(1) | (no_a & no_b);
    let outside = outside | a.not_equal(a) | b.not_equal(b) | x.not_equal(x);

    // The fraction converges fast below the mean; above it, the symmetry relation is used.
    // With a small parameter one of the function and its complement is small almost everywhere, and a difference from 1 would lose
    // its digits. It is computed if the fraction converges in time.
    let is_below = x.less((a + 1) / (a + b + 2));
    let is_small = b.less(SMALL_PARAMETER) & b.less_equal(a) & x.less(0.999);
    let is_large = a.less(SMALL_PARAMETER) & a.less(b) & x.greater(0.001);
    let is_below = (is_below | is_small) & !is_large;
    let (p, q) = (where_(&is_below, a, b), where_(&is_below, b, a));
    let z = where_(&is_below, x, 1 - x);
    let usable = !(&is_zero | &is_one | &outside);
    let sum = fraction(&p, &q, &z, &usable)?;
    let rest = rest_of_small_parameter(&p, &q, &z, &usable);
    Ok(Parts { is_zero, is_one, outside, is_below, scale_parameter: p, sum, rest })
}

/// `1 - I(x; a, b)` without cancellation, for a small `a` next to 0: the terms of the series of `I` ([DLMF
/// 8.17.7](https://dlmf.nist.gov/8.17.E7)) that do not vanish with `a` are `xᵃ Γ(a + b) / Γ(a + 1) / Γ(b)`, whose logarithm is
/// small.
fn rest_of_small_parameter(a: &Array, b: &Array, x: &Array, usable: &Array) -> Rest {
    let is_small = usable & a.less(VANISHING_PARAMETER) & a.less_equal(b) & x.less_equal(0.001) & (b * x).less(2);
    let (a, x) = (where_(&is_small, a, VANISHING_PARAMETER / 2.0), where_(&is_small, x, 0.0005));
    let b = where_(&is_small, b, 1);
    // log(Γ(a + b + 1) / Γ(b + 1)) - log(Γ(a + 1)) to the third power of `a`.
    let [trigamma, tetragamma] =
        [1.0, 2.0].map(|n| POLYGAMMA.apply(&constant(n, &a).broadcast_to(a.shape()), &(&b + 1)));
    let (first, second) = (DIGAMMA.apply(&(&b + 1)) + EULER, trigamma - PI * PI / 6.0);
    let third = tetragamma + 2.0 * ZETA_OF_3;
    let log_gammas = &a * (first + &a * (second * 0.5 + &a * third * (1.0 / 6.0)));
    let log_power = &a * LOG.apply(&x) + log_gammas - LOG1P.apply(&(&a / &b));
    // Σ (1 - b)ₖ xᵏ / ((a + k) k!)
    let (mut term, mut sum) = (constant(1.0, &a), constant(0.0, &a));
    for k in 1..20 {
        let k = f64::from(k);
        term = term * ((k - &b) / k) * &x;
        sum = sum + &term / (&a + k);
    }
    let value = -EXPM1.apply(&log_power) - EXP.apply(&log_power) * a * sum;
    Rest { is_small, value }
}

/// The logarithm of `xᵃ (1 - x)ᵇ / B(a, b)`. Its terms are large and cancel if the parameters are large. Close to the mean
/// a / (a + b) it is computed from the distance to the mean, and by Stirling's series.
fn log_power(a: &Array, b: &Array, x: &Array) -> Array {
    let distance = (a + b) * x - a;
    let is_close = a.greater(MIN_SERIES_PARAMETER)
        & b.greater(MIN_SERIES_PARAMETER)
        & ABS.apply(&distance).less(a.minimum(b) * 0.5);
    let [a_near, b_near] = [a, b].map(|parameter| where_(&is_close, parameter, MIN_SERIES_PARAMETER));
    let distance = where_(&is_close, distance, 0);
    let sum = &a_near + &b_near;
    let exponent = &a_near * excess(&(&distance / &a_near)) + &b_near * excess(&(-&distance / &b_near));
    let rests = stirling_rest(&sum) - stirling_rest(&a_near) - stirling_rest(&b_near);
    let near = LOG.apply(&(&a_near / sum * &b_near * (0.5 / PI))) * 0.5 + rests - exponent;
    let far = a * LOG.apply(x) + b * LOG1P.apply(&-x) - LOG_BETA.apply(&[a.clone(), b.clone()]);
    where_(is_close, near, far)
}

/// Below it, the beta distribution is almost all at one end.
const SMALL_PARAMETER: f64 = 0.05;

/// Below it, the third power of a parameter is below the precision of float64.
const VANISHING_PARAMETER: f64 = 1e-4;

const EULER: f64 = 0.577_215_664_901_532_9;

/// `ζ(3)`.
const ZETA_OF_3: f64 = 1.202_056_903_159_594_2;

/// Above it, `stirling_rest` has all digits.
const MIN_SERIES_PARAMETER: f64 = 8.0;

/// `m - log(1 + m)` for `m` within ±1/2, by the series of `atanh`, since the terms cancel.
fn excess(m: &Array) -> Array {
    let terms = if m.dtype() == DType::F64 { 16 } else { 8 };
    let z = m / (m + 2);
    let square = &z * &z;
    let sum = (0..terms).rev().fold(constant(0.0, m), |sum, j| sum * &square + 1.0 / f64::from(2 * j + 3));
    m * &z - z * square * sum * 2
}

fn density(a: &Array, b: &Array, x: &Array) -> Array {
    let is_large = a.greater(MIN_SERIES_PARAMETER) & b.greater(MIN_SERIES_PARAMETER);
    let is_inside = x.greater(0) & x.less(1);
    let inside = where_(&is_inside, x, 0.5);
    let large = EXP.apply(&log_power(a, b, &inside)) / &inside / (1 - &inside);
    let log = (a - 1) * LOG.apply(x) + (b - 1) * LOG1P.apply(&-x) - LOG_BETA.apply(&[a.clone(), b.clone()]);
    where_(is_large & is_inside, large, EXP.apply(&log))
}

/// `1 / (1 + d₁ / (1 + d₂ / …))`, by Lentz's method, two terms at a time.
fn fraction(a: &Array, b: &Array, x: &Array, enabled: &Array) -> Result<Array> {
    let (tolerance, steps) = (eps(a.dtype()), if a.dtype() == DType::F64 { 600 } else { 200 });
    let tiny = constant(tolerance * tolerance, a);
    let unit = constant(1.0, a).broadcast_to(a.shape());
    let d: Array = 1 / at_least(1 - (a + b) * x / (a + 1), &tiny);
    let state = until_converged(steps, enabled.clone(), vec![d.clone(), unit, d], |m, state| {
        let (d, c, value) = (&state[0], &state[1], &state[2]);
        let twice: Array = a + 2 * m;
        let even: Array = m * (b - m) * x / ((&twice - 1) * &twice);
        let (d, c) = (1 / at_least(&even * d + 1, &tiny), at_least(&even / c + 1, &tiny));
        let value: Array = value * &d * &c;
        let odd: Array = -((a + m) * (a + b + m) * x) / (&twice * (&twice + 1));
        let (d, c) = (1 / at_least(&odd * d + 1, &tiny), at_least(&odd / c + 1, &tiny));
        let ratio: Array = &d * &c;
        let moving = ABS.apply(&(&ratio - 1)).greater(tolerance);
        (vec![d, c, value * ratio], moving)
    })?;
    Ok(state[2].clone())
}

/// Replaces elements that are smaller than `tiny` with it, because they are divisors.
fn at_least(x: Array, tiny: &Array) -> Array {
    where_(ABS.apply(&x).less(tiny), tiny, x)
}
