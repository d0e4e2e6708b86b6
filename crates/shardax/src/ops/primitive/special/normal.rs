//! The standard normal distribution.

use std::f64::consts::{FRAC_1_SQRT_2, PI, SQRT_2};

use super::constant;
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::primitive::unary::{ABS, ERF_INV, ERFC, EXP, LOG, LOG1P, SQRT};
use crate::ops::select::where_;

/// The logarithm of the probability density.
pub(crate) fn log_density(x: &Array) -> Array {
    -(x * x) * 0.5 - 0.5 * (2.0 * PI).ln()
}

/// The probability density.
pub(crate) fn density(x: &Array) -> Array {
    EXP.apply(&log_density(x))
}

/// The cumulative distribution function. The complementary error function is accurate far from the mean.
pub(crate) fn cumulative(x: &Array) -> Array {
    ERFC.apply(&(x * -FRAC_1_SQRT_2)) * 0.5
}

/// The logarithm of [`cumulative`]: far below the mean by the asymptotic series ([DLMF
/// 7.12.1](https://dlmf.nist.gov/7.12.E1)).
pub(super) fn log_cumulative(x: &Array) -> Array {
    let (low, terms) = tail_terms(x.dtype());
    let tail = cumulative(&-ABS.apply(&x.maximum(low)));
    let above = where_(x.greater(0), LOG1P.apply(&-&tail), LOG.apply(&tail));
    let far = x.minimum(low);
    let below = log_density(&far) + LOG.apply(&(tail_series(&far, terms) / -&far));
    where_(x.greater(low), above, below)
}

/// The derivative of [`log_cumulative`], given its value `y`. Far below the mean the difference of the logarithms would have no
/// digits left, and would be NaN at last.
pub(super) fn log_cumulative_slope(x: &Array, y: &Array) -> Array {
    let (low, terms) = tail_terms(x.dtype());
    let is_near = x.greater(low) | x.not_equal(x);
    let near = EXP.apply(&(log_density(&where_(&is_near, x, 0)) - where_(&is_near, y, 0)));
    let far = where_(&is_near, low, x);
    where_(is_near, near, -&far / tail_series(&far, terms))
}

/// The argument below which [`tail_series`] is used, and the number of its terms.
fn tail_terms(dtype: DType) -> (f64, i32) {
    match dtype {
        DType::F64 => (-20.0, 10),
        _ => (-10.0, 4),
    }
}

/// The asymptotic series of `Φ(x) (-x) / φ(x)` for large negative numbers.
fn tail_series(x: &Array, terms: i32) -> Array {
    let inverse = 1 / x;
    let square = &inverse * &inverse;
    (1..terms).rev().fold(constant(1.0, x), |sum, k| 1 - sum * &square * f64::from(2 * k - 1))
}

/// The quantile function, by Newton's method on the logarithm, which is concave, starting from the inverse
/// error function or, far from the mean, from the first terms of the series.
pub(super) fn quantile(p: &Array) -> Array {
    let upper = p.greater(0.5);
    let tail = where_(&upper, 1 - p, p);
    let inside = p.greater(0) & p.less(1);
    let tail = where_(&inside, tail, constant(0.25, p));
    let log_tail = LOG.apply(&tail);
    let near = ERF_INV.apply(&(2 * tail.maximum(0.01) - 1)) * SQRT_2;
    let approximation = SQRT.apply(&(-2 * &log_tail));
    let far = -(&approximation - (LOG.apply(&approximation) + 0.5 * (2.0 * PI).ln()) / &approximation);
    let start = where_(tail.greater(0.01), near, far);
    let x = (0..4).fold(start, |x, _| {
        let log = log_cumulative(&x);
        &x - (&log - &log_tail) * EXP.apply(&(log - log_density(&x)))
    });
    let x = where_(upper, -&x, &x);
    let x = where_(p.equal(0), constant(f64::NEG_INFINITY, p), where_(p.equal(1), constant(f64::INFINITY, p), x));
    where_(inside | p.equal(0) | p.equal(1), x, constant(f64::NAN, p))
}

/// The inverse of the complementary error function: in the tail by [`quantile`]; elsewhere `1 - y` is exact.
pub(super) fn erfc_inv(y: &Array) -> Array {
    let upper = y.greater(1);
    let tail = where_(&upper, 2 - y, y);
    let far = -quantile(&(&tail.minimum(0.5) * 0.5)) * FRAC_1_SQRT_2;
    let near = ERF_INV.apply(&(1 - tail.maximum(0.5)));
    let x = where_(tail.less(0.5), far, near);
    where_(upper, -&x, x)
}
