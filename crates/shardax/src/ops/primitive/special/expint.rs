//! Exponential integrals.

use super::{EXPN, constant, eps, until_converged};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::primitive::unary::{DIGAMMA, EXP, LGAMMA, LOG};
use crate::ops::select::where_;

const EULER_GAMMA: f64 = 0.577_215_664_901_532_9;

/// Terms of the series up to 1, which has digits enough for float64.
const TERMS: u32 = 20;

/// `∫ exp(-x t) / tⁿ` over t from 1: the series [DLMF 8.19.8](https://dlmf.nist.gov/8.19.E8) up to 1, the continued
/// fraction [8.19.17](https://dlmf.nist.gov/8.19.E17) above.
pub(super) fn expn(n: &Array, x: &Array) -> Array {
    let small = x.less_equal(1);
    let outside = n.less(0) | x.less(0) | x.not_equal(x) | n.not_equal(n);
    let y = where_(&small, series(n, x), fraction(n, x));
    let y = where_(n.equal(0), EXP.apply(&-x) / x, y);
    let at_zero = where_(n.less(2), f64::INFINITY, 1 / (n - 1));
    let y = where_(x.equal(0), at_zero, where_(x.equal(f64::INFINITY), 0, y));
    where_(outside, constant(f64::NAN, x), y)
}

/// [`expn`] of the order `n - 1`, also for `n = 0`.
pub(super) fn expn_lower(n: &Array, x: &Array) -> Array {
    let is_lowest = n.equal(0);
    // The slope of each form may be infinite or NaN where the other one is taken, and multiplies a cotangent of 0 there.
    let inverse = 1 / where_(&is_lowest, x, 1);
    let lowest = EXP.apply(&-x) * &inverse * (1 + &inverse);
    let lower = where_(&is_lowest, 1, n - 1).astype(n.dtype());
    where_(is_lowest, lowest, EXPN.apply(&[lower, x.clone()]))
}

fn series(n: &Array, x: &Array) -> Array {
    // (-x)ᵐ / m!, and its quotient by m - n + 1, but for the term of the logarithm.
    let mut power = constant(1.0, x).broadcast_to(x.shape());
    let mut sum = constant(0.0, x).broadcast_to(x.shape());
    for m in 0..TERMS {
        if m > 0 {
            power = -power * x / f64::from(m);
        }
        let below = f64::from(m + 1) - n;
        let special = below.equal(0);
        sum = sum + where_(&special, 0, &power / where_(&special, 1, below));
    }
    let odd = ((n - 1) * 0.5).floor() * 2 - (n - 1);
    let sign = where_(odd.equal(0), 1.0, -1.0);
    let log_x = LOG.apply(x);
    let logarithmic_term = sign * EXP.apply(&((n - 1) * &log_x - LGAMMA.apply(n))) * (DIGAMMA.apply(n) - log_x);
    logarithmic_term - sum
}

/// The continued fraction, from its last term to the first, so that roundings do not add up. The number of terms is enough
/// for `x = 1`; it converges faster for larger arguments and orders.
fn fraction(n: &Array, x: &Array) -> Array {
    let terms: u32 = if x.dtype() == DType::F64 { 96 } else { 28 };
    let start = x + n;
    let denominator = (1..=terms).rev().fold(&start + f64::from(2 * terms), |inner, k| {
        let k = f64::from(k);
        &start + 2.0 * (k - 1.0) - (n + (k - 1.0)) * k / inner
    });
    EXP.apply(&-x) / denominator
}

/// Below it the series is summed, above it the asymptotic one.
const MIN_ARGUMENT_OF_ASYMPTOTIC_SERIES: f64 = 40.0;

/// `-∫ exp(-t) / t` over t from `-x`: the series [DLMF 6.6.2](https://dlmf.nist.gov/6.6.E2), for large numbers
/// [6.12.2](https://dlmf.nist.gov/6.12.E2); for negative ones from [`expn`].
pub(super) fn expi(x: &Array) -> Result<Array> {
    let unit = constant(1.0, x).broadcast_to(x.shape());
    let negative = -expn(&unit, &where_(x.less(0), -x, &unit));
    let inside = x.greater(0) & x.less(MIN_ARGUMENT_OF_ASYMPTOTIC_SERIES);
    let small = where_(&inside, x, &unit);
    let state = vec![small.clone(), small.clone()];
    let tolerance = eps(x.dtype());
    let state = until_converged(200, inside, state, |k, state| {
        let k = k + 1;
        let term = &state[0] * &small * (&k - 1) / (&k * &k);
        let moving = term.greater(&state[1] * tolerance);
        (vec![term.clone(), &state[1] + &term], moving)
    })?;
    let near = &state[1] + LOG.apply(&small) + EULER_GAMMA;
    let large = x.maximum(MIN_ARGUMENT_OF_ASYMPTOTIC_SERIES);
    let sum = (1..30).rev().fold(constant(1.0, x), |sum, k| sum * f64::from(k) / &large + 1);
    // An infinite argument has the exponential's limit.
    let far = where_(x.equal(f64::INFINITY), f64::INFINITY, grown(&large, &(sum / &large)));
    let y = where_(x.less(0), negative, where_(x.less(MIN_ARGUMENT_OF_ASYMPTOTIC_SERIES), near, far));
    let y = where_(x.equal(0), f64::NEG_INFINITY, y);
    Ok(where_(x.not_equal(x), constant(f64::NAN, x), y))
}

/// `exp(x) y`, which can be a number where `exp(x)` is infinite.
pub(super) fn grown(x: &Array, y: &Array) -> Array {
    let half = EXP.apply(&(x * 0.5));
    y * &half * half
}
