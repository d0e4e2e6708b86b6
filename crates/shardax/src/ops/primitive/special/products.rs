//! Logarithms, powers and beta functions whose terms cancel unless they are computed together.

use std::f64::consts::LN_2;

use super::super::expanded::expanded;
use super::{QUOTIENT, constant, widened};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::lax::polygamma;
use crate::ops::primitive::binary::POW;
use crate::ops::primitive::expanded::LOGADDEXP;
use crate::ops::primitive::special::slopes::INVERSE_PART;
use crate::ops::primitive::unary::{ABS, EXP, EXPM1, LGAMMA, LOG, LOG1P, LOGISTIC, TANH};
use crate::ops::select::where_;

expanded! {
    // log(2ˣ + 2ʸ) / log(2)
    LOGADDEXP2 "logaddexp2" Float, |a| {
        let gap = &a[0] - &a[1];
        let larger = a[0].maximum(&a[1]);
        let correction = LOG1P.apply(&EXP.apply(&(ABS.apply(&gap) * -LN_2))) / LN_2;
        where_(gap.not_equal(&gap), &a[0] + &a[1], larger + correction)
    }, |a, _, i, t| {
        // An infinite operand has the entire share.
        let gap = where_(a[i].equal(f64::INFINITY), &a[i], (&a[i] - &a[1 - i]) * LN_2);
        t * LOGISTIC.apply(&gap)
    };
    // log(p / q) of positive numbers
    LOG_RATIO "log_ratio" Float, |a| widened(a, |a| {
        let ratio = &a[0] / &a[1];
        let (low, high) = if ratio.dtype() == DType::F64 { (1e-300, 1e300) } else { (1e-37, 1e37) };
        let is_normal = ratio.greater(low) & ratio.less(high);
        Ok(where_(&is_normal, LOG.apply(&where_(&is_normal, ratio, 1)), LOG.apply(&a[0]) - LOG.apply(&a[1])))
    }), |a, _, i, t| if i == 0 { t / &a[0] } else { -t / &a[1] };
    // p log(p / q) of positive numbers
    RELATIVE_ENTROPY "relative_entropy" Float, |a| &a[0] * LOG_RATIO.apply(a),
        |a, _, i, t| if i == 0 { t * (LOG_RATIO.apply(a) + 1) } else { -t * QUOTIENT.apply(a) };
    // log(1 + x²)
    LOG1P_SQUARE "log1p_square" Float, |x| widened(x, |x| {
        let size = ABS.apply(&x[0]);
        let is_large = size.greater(1);
        let (small, large) = (where_(&is_large, 0, &size), where_(&is_large, &size, 1));
        let inverse = 1 / &large;
        Ok(where_(is_large, LOG.apply(&large) * 2 + LOG1P.apply(&(&inverse * &inverse)), LOG1P.apply(&(&small * &small))))
    }), |x, _, _, t| t * (INVERSE_PART.apply(&[x[0].clone(), where_(x[0].equal(&x[0]), 1, 1).astype(x[0].dtype())]) * 2);
    // The logarithm of the derivative of the logistic function
    LOG_LOGISTIC_SLOPE "log_logistic_slope" Float, |x| {
        let half = &x[0] * 0.5;
        LOGADDEXP.apply(&[half.clone(), -half]) * -2
    }, |x, _, _, t| t * TANH.apply(&(&x[0] * -0.5));
    // (xˡ - 1) / l
    BOXCOX "boxcox" Float, |a| widened(a, |a| Ok(power_of_log(&LOG.apply(&a[0]), &a[1]))),
        |a, _, i, t| match i {
            0 => t * POW.apply(&a[0], &(&a[1] - 1)),
            _ => t * power_of_log_slope(&LOG.apply(&a[0]), &a[1]),
        };
    // ((1 + x)ˡ - 1) / l
    BOXCOX1P "boxcox1p" Float, |a| widened(a, |a| Ok(power_of_log(&LOG1P.apply(&a[0]), &a[1]))),
        |a, _, i, t| match i {
            0 => t * POW.apply(&(&a[0] + 1), &(&a[1] - 1)),
            _ => t * power_of_log_slope(&LOG1P.apply(&a[0]), &a[1]),
        };
    // log |B(a, b)|
    LOG_BETA "log_beta" Float, |a| widened(a, |a| Ok(log_beta(&a[0], &a[1]))),
        |a, _, i, t| -t * POLYGAMMA_RISE_0.apply(&[a[i].clone(), a[1 - i].clone()]);
    // log |Γ(z + m) / Γ(z)|
    LOG_RISE "log_rise" Float, |a| LGAMMA.apply(&(&a[0] + &a[1])) - LGAMMA.apply(&a[0]),
        |a, _, i, t| match i {
            0 => t * POLYGAMMA_RISE_0.apply(a),
            _ => t * polygamma(0, &(&a[0] + &a[1])),
        };
    // ψ(a + b) - ψ(a)
    POLYGAMMA_RISE_0 "polygamma_rise_0" Float, |a| widened(a, |a| Ok(polygamma_rise(0, &a[0], &a[1]))),
        |a, _, i, t| match i {
            0 => t * POLYGAMMA_RISE_1.apply(a),
            _ => t * polygamma(1, &(&a[0] + &a[1])),
        };
    // ψ'(a + b) - ψ'(a)
    POLYGAMMA_RISE_1 "polygamma_rise_1" Float, |a| widened(a, |a| Ok(polygamma_rise(1, &a[0], &a[1]))),
        |a, _, i, t| match i {
            0 => t * polygamma_rise(2, &a[0], &a[1]),
            _ => t * polygamma(2, &(&a[0] + &a[1])),
        };
}

/// `(exp(l log) - 1) / l`, or the logarithm if the product is too small to matter.
fn power_of_log(log: &Array, l: &Array) -> Array {
    let product = log * l;
    let none = product.equal(0);
    where_(&none, log, EXPM1.apply(&product) / where_(&none, 1, l))
}

/// The derivative of [`power_of_log`] with respect to `l`: `log² (exp(u) (u - 1) + 1) / u²` for `u = l log`. Close to 0
/// it is computed by the series `Σ uᵏ / (k! (k + 2))`.
fn power_of_log_slope(log: &Array, l: &Array) -> Array {
    let product = log * l;
    let is_near = ABS.apply(&product).less(1);
    let near = where_(&is_near, &product, 0);
    let series = (0..20).rev().fold(constant(0.0, log), |sum, k| {
        let k = f64::from(k);
        sum * &near / (k + 1.0) + 1.0 / (k + 2.0)
    });
    let far = where_(&is_near, 1, product);
    let direct = (EXP.apply(&far) * (&far - 1) + 1) / &far / &far;
    where_(is_near, series, direct) * log * log
}

/// `ψₙ(a + b) - ψₙ(a)`. For a small `b` the difference would cancel, so it is computed from the derivatives at the
/// midpoint instead.
fn polygamma_rise(n: i32, a: &Array, b: &Array) -> Array {
    let small = if a.dtype() == DType::F64 { 1e-3 } else { 1.0 / 16.0 };
    let is_small = ABS.apply(b).less(ABS.apply(a) * small);
    let step = where_(&is_small, b, 0);
    let middle = a + &step * 0.5;
    let third = polygamma(n + 3, &middle) * &step * &step / 24.0;
    let near = (polygamma(n + 1, &middle) + third) * step;
    where_(is_small, near, polygamma(n, &(a + b)) - polygamma(n, a))
}

/// The logarithm of the beta function. For large numbers the logarithms of the gamma functions cancel, so it uses
/// Stirling's series ([DLMF 5.11.1](https://dlmf.nist.gov/5.11.E1)), with the large terms cancelled symbolically.
fn log_beta(a: &Array, b: &Array) -> Array {
    let (small, large) = (a.minimum(b), a.maximum(b));
    let direct = LGAMMA.apply(&small) + (LGAMMA.apply(&large) - LGAMMA.apply(&(&small + &large)));
    let enough = large.maximum(8.0).astype(large.dtype());
    let sum = &small + &enough;
    let quotient = LOG1P.apply(&(&small / &enough));
    let difference =
        &small - &small * LOG.apply(&enough) - (&sum - 0.5) * quotient + stirling_rest(&enough) - stirling_rest(&sum);
    where_(large.less(8), direct, LGAMMA.apply(&small) + difference)
}

/// The terms of Stirling's series that vanish for large `x`.
pub(super) fn stirling_rest(x: &Array) -> Array {
    let inverse = 1 / (x * x);
    let terms = [1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0, -1.0 / 1680.0, 1.0 / 1188.0, -691.0 / 360_360.0];
    terms.iter().rev().fold(constant(0.0, x), |sum, c| sum * &inverse + *c) / x
}
