//! Special functions without a StableHLO operation: series, continued fractions and sums, written as programs.
//!
//! Half precision is computed in float32, and rounded once.

mod bessel;
mod beta;
mod dawson;
mod dilogarithm;
pub(crate) mod distributions;
mod expint;
mod exponential;
mod gamma;
mod gamma_uniform;
mod log_gamma;
mod normal;
mod oscillating;
mod owens;
mod polygamma;
pub(crate) mod products;
pub(crate) mod scaled_error;
pub(crate) mod slopes;
pub(crate) mod truncated;
pub(crate) mod turns;
mod zeta;

pub(crate) use bessel::bessel_i1e_slope;
pub(crate) use bessel::i1e;
use expint::grown;
pub(crate) use exponential::expm1;
pub(crate) use log_gamma::{digamma, log_gamma};
pub(crate) use normal::{cumulative, density, log_density};
pub(super) use polygamma::polygamma;
pub(crate) use scaled_error::ERFCX;
use scaled_error::{ERFC_INV_SLOPE, NDTRI_SLOPE};
pub(crate) use zeta::{zeta_decay, zeta_slope};

use self::turns::{COS_PI, SIN_PI};
use super::binary::ZETA;
use super::expanded::expanded;
use super::unary::{ABS, BESSEL_I1E, COS, LOG, LOG1P, SIGN};
use crate::core::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::control_flow::while_loop;
use crate::ops::elementwise::integer_pow;
use crate::ops::select::where_;

/// The distance from 1 to the next float32 or float64.
fn eps(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) }
}

/// A constant of the dtype of `like`.
fn constant(v: f64, like: &Array) -> Array {
    Array::literal(Scalar::float(v), like.dtype(), false)
}

/// A Chebyshev series at `x`, from -1 to 1. The terms that the dtype of `x` does not resolve are left out.
fn chebyshev(x: &Array, coefficients: &[f64]) -> Array {
    let smallest = coefficients[0].abs() * eps(x.dtype()) / 16.0;
    let count = coefficients.iter().rposition(|c| c.abs() >= smallest).map_or(1, |last| last + 1);
    let twice = x * 2;
    // Clenshaw's recurrence.
    let (mut before, mut sum) = (constant(0.0, x), constant(0.0, x));
    for &c in coefficients[1..count].iter().rev() {
        (sum, before) = (&twice * &sum - before + c, sum);
    }
    x * sum - before + coefficients[0]
}

/// The derivative of `Σ c x⁻ᵖ`, for coefficients and powers, which increase in steps of 2.
fn asymptotic_slope(x: &Array, terms: &[(f64, f64)]) -> Array {
    let inverse = 1 / x;
    let square = &inverse * &inverse;
    let sum = terms.iter().rev().fold(constant(0.0, x), |sum, (c, power)| sum * &square - c * power);
    let first_power = terms.first().map_or(0.0, |(_, power)| *power);
    sum * integer_pow(&inverse, first_power as i32 + 1)
}

/// Applies `f` to an operand, at least in float32.
pub(crate) fn widened_unary(x: &Array, f: impl FnOnce(&Array) -> Array) -> Array {
    widened(std::slice::from_ref(x), |x| Ok(f(&x[0])))
}

/// Applies `f` to operands of one shape, at least in float32.
fn widened(args: &[Array], f: impl FnOnce(&[Array]) -> Result<Array>) -> Array {
    let dtype = args[0].dtype();
    let wide = if dtype.bits() < 32 { DType::F32 } else { dtype };
    let rank = args.iter().map(Array::ndim).max().unwrap_or(0);
    let like = args.iter().find(|x| x.ndim() == rank).unwrap_or(&args[0]);
    let spread: Vec<Array> = args.iter().map(|x| x.astype(wide).broadcast_to(like.shape())).collect();
    Array::from_result(f(&spread), like).astype(dtype)
}

/// Iterates `step` on the index of the iteration and the state until nothing is `moving`, for a limited number of
/// steps. A step returns the next state, and marks the elements that have not converged; converged elements are
/// unchanged.
fn until_converged(
    steps: usize,
    moving: Array,
    state: Vec<Array>,
    step: impl Fn(&Array, &[Array]) -> (Vec<Array>, Array),
) -> Result<Vec<Array>> {
    let zero = constant(0.0, &state[0]);
    Ok(while_loop(
        |(n, moving, _): (Array, Array, Vec<Array>)| moving.any(..) & n.less(steps as f64),
        // An element that has converged keeps its state.
        |(n, moving, state): (Array, Array, Vec<Array>)| {
            let n = n + 1;
            let (after, still_moving) = step(&n, &state);
            let state = state.iter().zip(&after).map(|(before, after)| where_(&moving, after, before));
            (n, &moving & still_moving, state.collect::<Vec<_>>())
        },
        (zero, moving, state),
    )?
    .2)
}

/// The tangent of an operand without an implemented derivative.
fn no_slope(function: &str, operand: &str, like: &Array) -> Array {
    let e = err!(NotImplemented, "{function} cannot be differentiated with respect to {operand}")
        .help("stop the gradient there, with `stop_gradient`");
    Array::from_result(Err(e), like)
}

/// The product, or 0 where the first operand is 0, unless the second is NaN.
fn or_zero(a: &[Array], product: Array) -> Array {
    where_(a[0].not_equal(0) | a[1].not_equal(&a[1]), product, constant(0.0, &a[0]))
}

expanded! {
    IGAMMA "igamma" Float, |a| widened(a, |a| gamma::lower(&a[0], &a[1])), |a, _, i, t| match i {
        0 => t * IGAMMA_GRAD_A.apply(a),
        _ => t * gamma::density(&a[0], &a[1]),
    };
    IGAMMAC "igammac" Float, |a| widened(a, |a| gamma::upper(&a[0], &a[1])), |a, _, i, t| match i {
        0 => -t * IGAMMA_GRAD_A.apply(a),
        _ => -t * gamma::density(&a[0], &a[1]),
    };
    IGAMMA_GRAD_A "igamma_grad_a" Float, |a| widened(a, |a| gamma::lower_slope(&a[0], &a[1])),
        |_, out, _, _| no_slope("the derivative of the incomplete gamma function", "its operands", out);
    // The logarithms of both functions
    LOG_IGAMMA "log_igamma" Float, |a| widened(a, |a| gamma::log_regularized(&a[0], &a[1], false)), |a, _, i, t| match i {
        0 => t * LOG_IGAMMA_GRAD_A.apply(a),
        _ => t * IGAMMA_RATE.apply(a),
    };
    LOG_IGAMMAC "log_igammac" Float, |a| widened(a, |a| gamma::log_regularized(&a[0], &a[1], true)), |a, _, i, t| match i {
        0 => t * LOG_IGAMMAC_GRAD_A.apply(a),
        _ => -t * IGAMMAC_RATE.apply(a),
    };
    // The quotients of the density and of each function
    IGAMMA_RATE "igamma_rate" Float, |a| widened(a, |a| gamma::rate(&a[0], &a[1], false)),
        |a, rate, i, t| gamma::rate_slope(a, rate, i, t, -1.0);
    IGAMMAC_RATE "igammac_rate" Float, |a| widened(a, |a| gamma::rate(&a[0], &a[1], true)),
        |a, rate, i, t| gamma::rate_slope(a, rate, i, t, 1.0);
    IGAMMAC_EXCESS "igammac_excess" Float, |a| widened(a, |a| gamma::excess(&a[0], &a[1])), |a, excess, i, t| match i {
        0 => no_slope("the derivative of the incomplete gamma function", "its operands", excess),
        _ => t * (IGAMMAC_RATE.apply(a) * excess - (&a[0] - 1) / &a[1] / &a[1]),
    };
    LOG_IGAMMA_GRAD_A "log_igamma_grad_a" Float, |a| widened(a, |a| gamma::log_slope(&a[0], &a[1], false)),
        |_, out, _, _| no_slope("the derivative of the incomplete gamma function", "its operands", out);
    LOG_IGAMMAC_GRAD_A "log_igammac_grad_a" Float, |a| widened(a, |a| gamma::log_slope(&a[0], &a[1], true)),
        |_, out, _, _| no_slope("the derivative of the incomplete gamma function", "its operands", out);
    RANDOM_GAMMA_GRAD "random_gamma_grad" Float, |a| widened(a, |a| gamma::sample_slope(&a[0], &a[1])),
        |_, out, _, _| no_slope("the derivative of a gamma sample", "its operands", out);
    // Horner's rule, for at least two coefficients.
    POLYNOMIAL "polynomial" Number,
        |args| args[1..].iter().cloned().rev().reduce(|sum, c| sum * &args[0] + c).unwrap_or_else(|| args[0].clone()),
        polynomial_tangent;
    BETAINC "regularized_incomplete_beta" Float, |a| widened(a, |a| beta::regularized(&a[0], &a[1], &a[2])),
        |a, out, i, t| {
            if i < 2 {
                return no_slope("betainc", "its parameters", out);
            }
            t * beta::BETA_DENSITY.apply(a)
        };
    // The logarithms of the function and of its complement
    LOG_BETAINC "log_betainc" Float, |a| widened(a, |a| beta::log_regularized(&a[0], &a[1], &a[2], false)),
        |a, y, i, t| match i {
            2 => t * BETAINC_RATE.apply(a),
            _ => no_slope("the incomplete beta function", "its parameters", y),
        };
    LOG_BETAINCC "log_betaincc" Float, |a| widened(a, |a| beta::log_regularized(&a[0], &a[1], &a[2], true)),
        |a, y, i, t| match i {
            2 => -t * BETAINCC_RATE.apply(a),
            _ => no_slope("the incomplete beta function", "its parameters", y),
        };
    // The quotients of the density and of each function
    BETAINC_RATE "betainc_rate" Float, |a| widened(a, |a| beta::rate(&a[0], &a[1], &a[2], false)),
        |a, rate, i, t| beta::rate_slope(a, rate, i, t, -1.0);
    BETAINCC_RATE "betaincc_rate" Float, |a| widened(a, |a| beta::rate(&a[0], &a[1], &a[2], true)),
        |a, rate, i, t| beta::rate_slope(a, rate, i, t, 1.0);
    BESSEL_I0E "bessel_i0e" Float, |x| widened(x, |x| Ok(bessel::i0e(&x[0]))),
        |x, y, _, t| t * bessel::i0e_slope(&x[0], y);
    BESSEL_I0 "bessel_i0" Float, |x| widened(x, |x| Ok(bessel::unscaled(&x[0], &BESSEL_I0E.apply(x)))),
        |x, _, _, t| t * BESSEL_I1.apply(x);
    BESSEL_I1 "bessel_i1" Float, |x| widened(x, |x| Ok(SIGN.apply(&x[0]) * bessel::unscaled(&x[0], &ABS.apply(&BESSEL_I1E.apply(&x[0]))))),
        |x, _, _, t| t * BESSEL_I1_SLOPE.apply(x);
    BESSEL_I1_SLOPE "bessel_i1_slope" Float, |x| widened(x, |x| Ok(bessel::i1_slope(&x[0]))),
        |x, _, _, t| t * bessel::i1_curve(&x[0]);
    NDTRI "ndtri" Float, |p| widened(p, |p| Ok(normal::quantile(&p[0]))),
        |p, _, _, t| t * NDTRI_SLOPE.apply(p);
    ERFC_INV "erfc_inv" Float, |y| widened(y, |y| Ok(normal::erfc_inv(&y[0]))),
        |y, _, _, t| t * ERFC_INV_SLOPE.apply(y);
    LOG_NDTR "log_ndtr" Float, |x| widened(x, |x| Ok(normal::log_cumulative(&x[0]))),
        |x, y, _, t| t * normal::log_cumulative_slope(&x[0], y);
    EXPN "expn" Float, |a| widened(a, |a| Ok(expint::expn(&a[0], &a[1]))), |a, out, i, t| match i {
        0 => no_slope("expn", "its order", out),
        _ => -t * expint::expn_lower(&a[0], &a[1]),
    };
    EXPI "expi" Float, |x| widened(x, |x| expint::expi(&x[0])), |x, _, _, t| t * EXPI_SLOPE.apply(x);
    EXPI_SLOPE "expi_slope" Float, |x| grown(&x[0], &(1 / &x[0])),
        |x, _, _, t| t * grown(&x[0], &((&x[0] - 1) / &x[0] / &x[0]));
    SPENCE "spence" Float, |x| widened(x, |x| Ok(dilogarithm::spence(&x[0]))),
        |x, _, _, t| t * dilogarithm::slope(&x[0]);
    DAWSON "dawsn" Float, |x| widened(x, |x| Ok(dawson::dawson(&x[0]))), |x, y, _, t| t * dawson::dawson_slope(&x[0], y);
    SI "sine_integral" Float, |x| widened(x, |x| Ok(oscillating::si(&x[0]))),
        |x, _, _, t| t * oscillating::sine_ratio(&x[0]);
    CI "cosine_integral" Float, |x| widened(x, |x| Ok(oscillating::ci(&x[0]))),
        |x, _, _, t| t * (COS.apply(&x[0]) / &x[0]);
    FRESNEL_S "fresnel_sine" Float, |x| widened(x, |x| Ok(oscillating::fresnel(&x[0], true))),
        |x, _, _, t| t * FRESNEL_SIN.apply(x);
    FRESNEL_C "fresnel_cosine" Float, |x| widened(x, |x| Ok(oscillating::fresnel(&x[0], false))),
        |x, _, _, t| t * FRESNEL_COS.apply(x);
    FRESNEL_SIN "fresnel_sine_slope" Float, |x| widened(x, |x| Ok(SIN_PI.apply(&[oscillating::half_square(&x[0])]))),
        |x, _, _, t| t * (&x[0] * FRESNEL_COS.apply(x) * std::f64::consts::PI);
    FRESNEL_COS "fresnel_cosine_slope" Float, |x| widened(x, |x| Ok(COS_PI.apply(&[oscillating::half_square(&x[0])]))),
        |x, _, _, t| t * (&x[0] * FRESNEL_SIN.apply(x) * -std::f64::consts::PI);
    NORMAL_DENSITY "normal_density" Float, |x| widened(x, |x| Ok(density(&x[0]))), |x, y, _, t| t * -(&x[0] * y);
    OWENS_T "owens_t" Float, |a| widened(a, |a| Ok(owens::owens_t(&a[0], &a[1]))),
        |a, _, i, t| t * owens::slope(&a[0], &a[1], i);
    LOGIT "logit" Float, |x| LOG.apply(&(&x[0] / (1 - &x[0]))),
        |x, _, _, t| t * (1 / &x[0] + 1 / (1 - &x[0]));
    // A quotient in derivatives. XLA computes x / y / y as x / y², whose denominator underflows or overflows.
    QUOTIENT "quotient" Inexact, |a| &a[0] / &a[1],
        |a, out, i, t| if i == 0 { t * (1 / &a[1]) } else { -t * out * (1 / &a[1]) };
    XLOGY "xlogy" Inexact, |a| or_zero(a, &a[0] * LOG.apply(&a[1])),
        |a, _, i, t| if i == 0 { t * LOG.apply(&a[1]) } else { t * QUOTIENT.apply(a) };
    XLOG1PY "xlog1py" Inexact, |a| or_zero(a, &a[0] * LOG1P.apply(&a[1])),
        |a, _, i, t| if i == 0 { t * LOG1P.apply(&a[1]) } else { t * QUOTIENT.apply(&[a[0].clone(), 1 + &a[1]]) };
    XLOGX "xlogx" Inexact, |x| XLOGY.apply(&[x[0].clone(), x[0].clone()]), |x, _, _, t| t * (LOG.apply(&x[0]) + 1);
}

/// The slope of a polynomial is one of a lower degree, so that slopes of every order take no more operations.
fn polynomial_tangent(args: &[Array], _out: &Array, operand: usize, tangent: &Array) -> Array {
    let x = &args[0];
    match operand {
        0 if args.len() == 3 => tangent * &args[2],
        0 => {
            let slopes = args[2..].iter().enumerate().map(|(k, c)| c * (k as i32 + 1));
            tangent * POLYNOMIAL.apply(&std::iter::once(x.clone()).chain(slopes).collect::<Vec<_>>())
        }
        1 => tangent.clone(),
        k => tangent * integer_pow(x, k as i32 - 1),
    }
}

/// The Hurwitz zeta function.
#[track_caller]
pub(crate) fn zeta(s: &Array, q: &Array) -> Array {
    ZETA.apply(s, q)
}
