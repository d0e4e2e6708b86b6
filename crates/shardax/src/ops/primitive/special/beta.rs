//! The regularized incomplete beta function, by its continued fraction ([DLMF
//! 8.17.22](https://dlmf.nist.gov/8.17.E22)).

use super::{constant, eps, until_converged};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::primitive::unary::{ABS, EXP, LGAMMA, LOG, LOG1P};
use crate::ops::select::where_;

/// `I(x; a, b)`.
pub(super) fn regularized(a: &Array, b: &Array, x: &Array) -> Result<Array> {
    let (no_a, no_b) = (a.equal(0) | b.equal(f64::INFINITY), b.equal(0) | a.equal(f64::INFINITY));
    let (first, last) = (x.equal(0), x.equal(1));
    let is_zero = (&no_b & !&last) | (&no_a & &first) | &first;
    let is_one = (&no_a & !&first) | (&no_b & &last) | &last;

    let outside = a.less(0) | b.less(0) | x.less(0) | x.greater(1) | (no_a & no_b);
    let outside = outside | a.not_equal(a) | b.not_equal(b) | x.not_equal(x);

    // The fraction converges fast below the mean; above it, the symmetry relation is used.
    let below = x.less((a + 1) / (a + b + 2));
    let (p, q) = (where_(&below, a, b), where_(&below, b, a));
    let (z, rest) = (where_(&below, x, 1 - x), where_(&below, 1 - x, x));
    let usable = !(&is_zero | &is_one | &outside);
    let sum = fraction(&p, &q, &z, &usable)?;
    let log_beta = LGAMMA.apply(&p) + (LGAMMA.apply(&q) - LGAMMA.apply(&(&p + &q)));
    // 1 - z is inaccurate for a small z.
    let log_rest = where_(&below, LOG1P.apply(&-&z), LOG.apply(&rest));
    let scale = EXP.apply(&(LOG.apply(&z) * &p + log_rest * &q - log_beta)) / p;
    let y = sum * scale;
    let y = where_(below, &y, 1 - &y);
    let y = where_(is_one, constant(1.0, a), where_(is_zero, constant(0.0, a), y));
    Ok(where_(outside, constant(f64::NAN, a), y))
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
