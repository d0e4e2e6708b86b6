//! Logarithms of densities and of distribution functions whose terms cancel unless they are computed together.

use std::f64::consts::{LN_2, PI};

use super::super::expanded::expanded;
use super::products::{LOG1P_SQUARE, stirling_rest};
use super::zeta::BERNOULLI;
use super::{IGAMMA_GRAD_A, IGAMMAC, QUOTIENT, XLOGY, constant, eps, gamma_uniform, widened};
use crate::core::array::Array;
use crate::ops::lax::polygamma;
use crate::ops::primitive::binary::POW;
use crate::ops::primitive::unary::{ABS, DIGAMMA, EXP, EXPM1, LGAMMA, LOG, LOG1P, SIGN};
use crate::ops::select::where_;

expanded! {
    // Gumbel's log density, -(z + exp(-z))
    LOG_GUMBEL "log_gumbel" Float, |z| {
        let is_limit = z[0].equal(f64::NEG_INFINITY);
        // ∞ - ∞ would be NaN.
        let finite = where_(&is_limit, 0, &z[0]);
        where_(is_limit, f64::NEG_INFINITY, -(&finite + EXP.apply(&-&finite)))
    }, |z, _, _, t| t * EXPM1.apply(&-&z[0]);
    GUMBEL_BELOW "gumbel_below" Float, |z| EXP.apply(&-EXP.apply(&-&z[0])), |z, _, _, t| t * EXP.apply(&LOG_GUMBEL.apply(z));
    GUMBEL_ABOVE "gumbel_above" Float, |z| -EXPM1.apply(&-EXP.apply(&-&z[0])), |z, _, _, t| -t * EXP.apply(&LOG_GUMBEL.apply(z));
    // log(1 - exp(-exp(-z)))
    LOG_GUMBEL_ABOVE "log_gumbel_above" Float, |z| widened(z, |z| Ok(log_gumbel_above(&z[0]))),
        |z, _, _, t| -t * gumbel_hazard(&EXP.apply(&-&z[0]));
    // log(1 - exp(-x)) of positive numbers
    LOG1MEXP "log1mexp" Float, |x| {
        let is_small = x[0].less_equal(LN_2);
        let (near, far) = (where_(&is_small, &x[0], 0.5), where_(&is_small, 1, &x[0]));
        where_(is_small, LOG.apply(&-EXPM1.apply(&-near)), LOG1P.apply(&-EXP.apply(&-far)))
    }, |x, _, _, t| t * decay_quotient(&x[0]);
    // 1 - z⁻ᵇ. The power has more digits than exp(-b log(z)), whose logarithm is multiplied.
    POWER_BELOW "power_below" Float, |a| widened(a, |a| Ok(-EXPM1.apply(&(-&a[1] * LOG.apply(&a[0]))))), |a, _, i, t| {
        let above = POW.apply(&a[0], &-&a[1]);
        t * above * if i == 0 { &a[1] / &a[0] } else { LOG.apply(&a[0]) }
    };
    // The log density at x of the gamma distribution of shape a
    LOG_GAMMA_DENSITY "log_gamma_density" Float, |a| widened(a, |a| Ok(log_gamma_density(&a[0], &a[1]))),
        |a, _, i, t| {
            let (x, shape) = (&a[0], &a[1]);
            t * match i {
                0 => QUOTIENT.apply(&[shape - 1, x.clone()]) - 1,
                _ => log_gamma_density_slope(x, shape),
            }
        };
    GAMMA_DENSITY "gamma_density" Float, |a| EXP.apply(&LOG_GAMMA_DENSITY.apply(a)),
        |a, out, i, t| match i {
            0 => t * GAMMA_DENSITY_SLOPE.apply(a),
            _ => t * out * log_gamma_density_slope(&a[0], &a[1]),
        };
    // The derivative of the gamma density with respect to x. Close to 0, the terms of its derivative cancel unless powers of
    // 1 / x are collected.
    GAMMA_DENSITY_SLOPE "gamma_density_slope" Float,
        |a| GAMMA_DENSITY.apply(a) * (QUOTIENT.apply(&[&a[1] - 1, a[0].clone()]) - 1),
        |a, _, i, t| {
            let (power, density) = (&a[1] - 1, GAMMA_DENSITY.apply(a));
            // 0 · ∞ would be NaN where the density underflows.
            let inverse = 1 / where_(density.equal(0), 1, &a[0]);
            t * match i {
                0 => gamma_density_curve(&a[0], &power, &density, &inverse),
                _ => density * (log_gamma_density_slope(&a[0], &a[1]) * (power * &inverse - 1) + inverse),
            }
        };
    // log(Γ(k / 2) √(k / 2) / Γ((k + 1) / 2)), the logarithm of a ratio that is 1 at a large k
    LOG_STUDENT_RATIO "log_student_ratio" Float, |k| widened(k, |k| Ok(log_student_ratio(&k[0]))),
        |k, _, _, t| t * LOG_STUDENT_RATIO_SLOPE.apply(k);
    LOG_STUDENT_RATIO_SLOPE "log_student_ratio_slope" Float, |k| widened(k, |k| Ok(log_student_ratio_slope(&k[0]))),
        |k, _, _, t| t * log_student_ratio_curve(&k[0]);
    // log(1 + z² / k) of a positive k
    LOG1P_SQUARE_OVER "log1p_square_over" Float, |a| widened(a, |a| Ok(log1p_square_over(&a[0], &a[1]))),
        |a, _, i, t| t * log1p_square_over_slope(&a[0], &a[1], i);
    // The log density and the distribution function at x of the generalized normal distribution of shape β
    LOG_GENNORM_DENSITY "log_gennorm_density" Float,
        |a| widened(a, |a| Ok(LOG.apply(&(&a[1] * 0.5)) - LGAMMA.apply(&(1 / &a[1])) - POW.apply(&ABS.apply(&a[0]), &a[1]))),
        |a, _, i, t| t * log_gennorm_density_slope(&a[0], &a[1], i);
    GENNORM_BELOW "gennorm_below" Float, |a| widened(a, |a| Ok(gennorm_below(&a[0], &a[1]))), |a, _, i, t| match i {
        // The derivatives of the power of x and of the incomplete gamma function are infinite or 0 next to 0, and their
        // product is the density.
        0 => t * EXP.apply(&LOG_GENNORM_DENSITY.apply(a)),
        _ => t * gennorm_below_slope(&a[0], &a[1]),
    };
}

/// The second derivative of the gamma density with respect to x: `density` times (power / x - 1)² - power / x².
fn gamma_density_curve(x: &Array, power: &Array, density: &Array, inverse: &Array) -> Array {
    // Close to the mode, where x is the power, the squared term vanishes. Elsewhere powers of 1 / x are collected, because
    // the terms cancel next to 0; the density is the first factor because 1 / x² may overflow.
    let is_near = (ABS.apply(&(power - x)) * 2).less(x);
    let (near_x, near_power) = (where_(&is_near, x, 1), where_(&is_near, power, 1));
    let difference = (&near_power - &near_x) / &near_x;
    let quotient = QUOTIENT.apply(&[QUOTIENT.apply(&[near_power, near_x.clone()]), near_x]);
    let near = density * (&difference * &difference - quotient);
    let far = density * ((power * (power - 1)) * inverse - power * 2) * inverse + density;
    where_(is_near, near, far)
}

fn log_gumbel_above(z: &Array) -> Array {
    let y = EXP.apply(&-z);
    // There `1 - exp(-y)` is `y`.
    let is_far = z.greater(40);
    let is_small = y.less(LN_2);
    let near = where_(&(&is_small & !&is_far), &y, 0.5);
    let large = where_(&is_small, 1, y);
    let inside = where_(is_small, LOG.apply(&-EXPM1.apply(&-near)), LOG1P.apply(&-EXP.apply(&-large)));
    where_(is_far, -z, inside)
}

/// `y / (exp(y) - 1)`, close to 0 by its series ([DLMF 24.2.1](https://dlmf.nist.gov/24.2.E1)).
fn gumbel_hazard(y: &Array) -> Array {
    let is_near = y.less(1);
    let near = where_(&is_near, y, 0);
    let square = &near * &near;
    let series = BERNOULLI.iter().rev().fold(constant(0.0, y), |sum, c| sum * &square + *c) * &square - &near * 0.5 + 1;
    // Beyond it the result is 0.
    let far = where_(is_near.clone(), 1, y.minimum(2e3));
    where_(is_near, series, EXP.apply(&-&far) / -EXPM1.apply(&-&far) * far)
}

/// `1 / (exp(x) - 1)`
fn decay_quotient(x: &Array) -> Array {
    EXP.apply(&-x) / -EXPM1.apply(&-x)
}

/// Close to a large shape, the large terms cancel symbolically.
fn log_gamma_density(x: &Array, a: &Array) -> Array {
    let is_close = gamma_uniform::is_close(a, x);
    let (shape, point) = (where_(&is_close, a, 1e3), where_(&is_close, x, 1e3));
    let close = LOG.apply(&(&shape / (2.0 * PI))) * 0.5
        - LOG.apply(&point)
        - &shape * gamma_uniform::half_square(&shape, &point)
        - stirling_rest(&shape);
    let direct = XLOGY.apply(&[a - 1, x.clone()]) - x - LGAMMA.apply(a);
    where_(is_close, close, direct)
}

/// The derivative with respect to the shape, `log(x) - ψ(a)`.
fn log_gamma_density_slope(x: &Array, a: &Array) -> Array {
    let is_close = gamma_uniform::is_close(a, x);
    let (shape, point) = (where_(&is_close, a, 1e3), where_(&is_close, x, 1e3));
    let inverse = 1 / &shape;
    // log(a) - ψ(a), by the terms of the asymptotic series.
    let corrections =
        &inverse * (0.5 + &inverse * (1.0 / 12.0 - &inverse * &inverse * (1.0 / 120.0 - &inverse * &inverse / 252.0)));
    let close = LOG1P.apply(&((&point - &shape) * &inverse)) + corrections;
    where_(is_close, close, LOG.apply(x) - DIGAMMA.apply(a))
}

/// Coefficients of `log(Γ(h) √h / Γ(h + 1/2))` in odd powers of `1 / h`
/// ([DLMF 5.11.8](https://dlmf.nist.gov/5.11.E8)).
const STUDENT: [f64; 6] = [1.0 / 8.0, -1.0 / 192.0, 1.0 / 640.0, -17.0 / 14336.0, 31.0 / 18432.0, -691.0 / 180_224.0];

/// True where the series holds, and a number that is in its range.
fn student_series(k: &Array) -> (Array, Array) {
    let is_large = k.greater(40);
    let h = where_(&is_large, k, 80) * 0.5;
    (is_large, h)
}

fn log_student_ratio(k: &Array) -> Array {
    let (is_large, h) = student_series(k);
    let square = 1 / (&h * &h);
    let series = STUDENT.iter().rev().fold(constant(0.0, k), |sum, c| sum * &square + *c) / h;
    let half = where_(&is_large, 1, k) * 0.5;
    let direct = LGAMMA.apply(&half) + LOG.apply(&half) * 0.5 - LGAMMA.apply(&(&half + 0.5));
    where_(is_large, series, direct)
}

fn log_student_ratio_slope(k: &Array) -> Array {
    let (is_large, h) = student_series(k);
    let square = 1 / (&h * &h);
    let terms = STUDENT.iter().enumerate().rev();
    let series = terms.fold(constant(0.0, k), |sum, (n, c)| sum * &square - (2 * n + 1) as f64 * c) * &square * 0.5;
    let half = where_(&is_large, 1, k) * 0.5;
    let direct = (DIGAMMA.apply(&half) + 0.5 / &half - DIGAMMA.apply(&(&half + 0.5))) * 0.5;
    where_(is_large, series, direct)
}

fn log_student_ratio_curve(k: &Array) -> Array {
    let (is_large, h) = student_series(k);
    let square = 1 / (&h * &h);
    let terms = STUDENT.iter().enumerate().rev();
    let coefficients = terms.map(|(n, c)| ((2 * n + 1) * (2 * n + 2)) as f64 * c);
    let series = coefficients.fold(constant(0.0, k), |sum, c| sum * &square + c) * &square / h * 0.25;
    let half = where_(&is_large, 1, k) * 0.5;
    let inverse = 1 / &half;
    let direct = (polygamma(1, &half) - polygamma(1, &(&half + 0.5)) - &inverse * &inverse * 0.5) * 0.25;
    where_(is_large, series, direct)
}

/// If `z²` is much larger than `k`, the value can exceed the dtype.
fn log1p_square_over(z: &Array, k: &Array) -> Array {
    let size = ABS.apply(z);
    let is_far = size.greater(k * 1e5);
    let (far, near) = (where_(&is_far, &size, 1), where_(&is_far, 0, z));
    let quotient = k / &far / far.clone();
    where_(is_far, LOG.apply(&far) * 2 - LOG.apply(k) + LOG1P.apply(&quotient), LOG1P_SQUARE.apply(&[near / k.sqrt()]))
}

/// The derivatives, from the part `w = z² / (k + z²)`: `2 w / z` and `-w / k`.
fn log1p_square_over_slope(z: &Array, k: &Array, operand: usize) -> Array {
    let is_large = ABS.apply(z).greater(k.sqrt());
    let (large, small) = (where_(&is_large, z, 1), where_(&is_large, 0, z));
    match operand {
        0 => where_(&is_large, 2 / (&large + k / &large), &small * 2 / (k + &small * &small)),
        _ => {
            let inverse = 1 / &large;
            let part = where_(&is_large, 1 / (k * (&inverse * &inverse) + 1), &small * &small / (k + &small * &small));
            -part / k
        }
    }
}

fn log_gennorm_density_slope(x: &Array, beta: &Array, operand: usize) -> Array {
    let size = ABS.apply(x);
    match operand {
        0 => -beta * POW.apply(&size, &(beta - 1)) * SIGN.apply(x),
        _ => {
            let inverse = 1 / beta;
            let power = POW.apply(&size, beta);
            &inverse + DIGAMMA.apply(&inverse) * &inverse * &inverse - XLOGY.apply(&[power, size])
        }
    }
}

/// `x / Γ(1 + 1 / β) / 2`, the distance of the distribution function from its center where `|x|^β` is negligible, and where
/// it is.
fn gennorm_center(x: &Array, beta: &Array) -> (Array, Array) {
    let is_near = POW.apply(&ABS.apply(x), beta).less(eps(x.dtype()));
    (EXP.apply(&-LGAMMA.apply(&(1 / beta + 1))) * where_(&is_near, x, 0) * 0.5, is_near)
}

/// The lower tail is half of the upper incomplete gamma function, without a difference from 1.
fn gennorm_below(x: &Array, beta: &Array) -> Array {
    let (center, is_near) = gennorm_center(x, beta);
    let tail = IGAMMAC.apply(&[1 / beta, POW.apply(&ABS.apply(x), beta)]) * 0.5;
    where_(is_near, center + 0.5, where_(x.less(0), &tail, 1 - &tail))
}

/// The derivative with respect to the shape, by the parameter and by the argument of the incomplete gamma function.
fn gennorm_below_slope(x: &Array, beta: &Array) -> Array {
    let (center, is_near) = gennorm_center(x, beta);
    let inverse = 1 / beta;
    let near = center * DIGAMMA.apply(&(&inverse + 1)) * &inverse * &inverse;
    let (far, size) = (where_(&is_near, 1, x), where_(&is_near, 1, ABS.apply(x)));
    let by_parameter = IGAMMA_GRAD_A.apply(&[inverse.clone(), POW.apply(&size, beta)]) * &inverse * &inverse * -0.5;
    let density = EXP.apply(&LOG_GENNORM_DENSITY.apply(&[far.clone(), beta.clone()]));
    let by_argument = QUOTIENT.apply(&[density * &size, beta.clone()]) * LOG.apply(&size);
    where_(is_near, near, SIGN.apply(&far) * (by_parameter + by_argument))
}
