//! The scaled complementary error function `erfcx`, and what its values make accurate: slopes of inverse error functions.
//!
//! For positive numbers, `erfcx` and its derivatives are Chebyshev series in `(x - 3) / (x + 3)`, times a power of `x`
//! (M. M. Shepherd and J. G. Laframboise, "Chebyshev approximation of `(1 + 2x) exp(x²) erfc(x)`", 1981). The coefficients
//! were computed by mpmath with 80 digits.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use super::super::expanded::expanded;
use super::{ERFC_INV, NDTRI, chebyshev, widened_unary};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::primitive::unary::{ABS, ERF_INV, EXP, ROUND};
use crate::ops::select::where_;

expanded! {
    ERFCX "erfcx" Float, |x| widened_unary(&x[0], erfcx), |x, _, _, t| t * ERFCX_SLOPE.apply(x);
    ERFCX_SLOPE "erfcx_slope" Float, |x| widened_unary(&x[0], erfcx_slope), |x, _, _, t| t * ERFCX_CURVE.apply(x);
    ERFCX_CURVE "erfcx_curve" Float, |x| widened_unary(&x[0], erfcx_curve),
        |x, y, _, t| t * (ERFCX_SLOPE.apply(x) * 4 + &x[0] * y * 2);
    // exp(-x²)
    GAUSSIAN "gaussian" Float, |x| widened_unary(&x[0], |x| exp_of_square(x, -1.0)), |x, y, _, t| t * (&x[0] * y * -2);
    // The derivative of an inverse is 1 / f'(x). The exponential of f' is erfc(x) / erfcx(x), where erfc(x) is the argument.
    ERFC_INV_SLOPE "erfc_inv_slope" Float, |y| widened_unary(&y[0], erfc_inv_slope),
        |y, slope, _, t| t * (ERFC_INV.apply(y) * 2 * slope) * slope;
    ERF_INV_SLOPE "erf_inv_slope" Float, |x| widened_unary(&x[0], erf_inv_slope),
        |x, slope, _, t| t * (ERF_INV.apply(&x[0]) * 2 * slope) * slope;
    NDTRI_SLOPE "ndtri_slope" Float, |p| widened_unary(&p[0], ndtri_slope),
        |p, slope, _, t| t * (NDTRI.apply(p) * slope) * slope;
}

/// The argument of the series for `x` of at least 0, which may be infinite.
fn series_argument(x: &Array) -> Array {
    1 - 6 / (x + 3)
}

fn erfcx(x: &Array) -> Array {
    let size = ABS.apply(x);
    let above = chebyshev(&series_argument(&size), &SCALED) / (size * 2 + 1);
    where_(x.less(0), exp_of_square(x, 1.0) * 2 - &above, above)
}

fn erfcx_slope(x: &Array) -> Array {
    let size = ABS.apply(x);
    let above = chebyshev(&series_argument(&size), &SCALED_SLOPE) / (&size * &size * 2 + 1) * -FRAC_2_SQRT_PI;
    // 2 x erfcx(x) - 2 / √π, whose terms have one sign.
    let below = x * erfcx(&x.minimum(0)) * 2 - FRAC_2_SQRT_PI;
    where_(x.less(0), below, above)
}

fn erfcx_curve(x: &Array) -> Array {
    let size = ABS.apply(x);
    let above = chebyshev(&series_argument(&size), &SCALED_CURVE) / (&size * &size * &size + 1) * FRAC_2_SQRT_PI;
    let negative = x.minimum(0);
    let below = (erfcx(&negative) + &negative * erfcx_slope(&negative)) * 2;
    where_(x.less(0), below, above)
}

/// `exp(sign x²)`: the rounding error of the square would be an error of the result, so the square of the first digits is
/// exact.
fn exp_of_square(x: &Array, sign: f64) -> Array {
    // A power of two, whose product with x has half of the digits of the dtype, and a number whose result is infinite or 0.
    let (scale, limit) = if x.dtype() == DType::F64 { (1024.0, 30.0) } else { (64.0, 10.0) };
    let x = x.maximum(-limit).minimum(limit);
    let first = ROUND.apply(&(&x * scale)) * (1.0 / scale);
    EXP.apply(&(&first * &first * sign)) * EXP.apply(&((&x - &first) * (&x + &first) * sign))
}

fn erf_inv_slope(x: &Array) -> Array {
    let tail = 1 - ABS.apply(x);
    let slope = ERFCX.apply(&[ABS.apply(&ERF_INV.apply(x))]) / &tail * (1.0 / FRAC_2_SQRT_PI);
    where_(tail.equal(0), f64::INFINITY, slope)
}

fn erfc_inv_slope(y: &Array) -> Array {
    let tail = y.minimum(2 - y);
    let slope = ERFCX.apply(&[ABS.apply(&ERFC_INV.apply(std::slice::from_ref(y)))]) / &tail * (-1.0 / FRAC_2_SQRT_PI);
    where_(tail.equal(0), f64::NEG_INFINITY, slope)
}

fn ndtri_slope(p: &Array) -> Array {
    let tail = p.minimum(1 - p);
    let size = ABS.apply(&NDTRI.apply(std::slice::from_ref(p))) * FRAC_1_SQRT_2;
    let slope = ERFCX.apply(&[size]) / &tail * (PI / 2.0).sqrt();
    where_(tail.equal(0), f64::INFINITY, slope)
}

/// Chebyshev coefficients of `(1 + 2 x) erfcx(x)`.
const SCALED: [f64; 27] = [
    1.17756257419656,
    0.005353904539615676,
    -0.09377550342284209,
    0.05436652555744322,
    -0.018976596707845208,
    0.004453426061462712,
    -0.0006335531710553147,
    1.7661719523171593e-05,
    1.2841532864056671e-05,
    -2.0072285659059913e-06,
    -1.807522790414837e-07,
    7.549828343825093e-08,
    1.885668523838603e-09,
    -2.699519049798364e-09,
    -1.460079119939105e-11,
    1.0361607445969489e-10,
    1.475715976623473e-12,
    -4.277340064396911e-12,
    -2.07922492859799e-13,
    1.8134502003176963e-13,
    1.973425574544739e-14,
    -7.287943737592673e-15,
    -1.5169878690228116e-15,
    2.3514112258781403e-16,
    1.0006111691821667e-16,
    -2.0572528169538546e-18,
    -5.608608218863183e-18,
];

/// Chebyshev coefficients of `(1 + 2 x²) (1 - √π x erfcx(x))`.
const SCALED_SLOPE: [f64; 29] = [
    0.8983020427745623,
    0.11262785225761364,
    0.03571305852948175,
    -0.08726578763158488,
    0.059453479214879104,
    -0.02438560091618397,
    0.006522770600882268,
    -0.001005650624929731,
    1.2794620962747412e-05,
    2.978488482221082e-05,
    -4.347826728577626e-06,
    -6.093356111432701e-07,
    2.10743212981155e-07,
    1.1652759571892747e-08,
    -9.038074775178108e-09,
    -3.030761419449976e-10,
    3.982604818145382e-10,
    1.7577574077580366e-11,
    -1.8236389678792617e-11,
    -1.5040092030317944e-12,
    8.316356698523843e-13,
    1.2574718318109538e-13,
    -3.4581066655988014e-14,
    -9.476313500734717e-15,
    1.0395855246885352e-15,
    6.309879635822399e-16,
    8.575482470432927e-18,
    -3.562663873637638e-17,
    -4.9147812293757106e-18,
];

/// Chebyshev coefficients of `(1 + x³) √π / 2` times the second derivative of `erfcx`.
const SCALED_CURVE: [f64; 31] = [
    0.9682719877075741,
    -0.09513943799506104,
    0.30074104010886654,
    -0.26837520485960525,
    0.11992567720394577,
    -0.025895858687149352,
    -0.0018154093195246262,
    0.0031158061934117606,
    -0.0009232914419071237,
    7.443834626697311e-05,
    2.7420118528896345e-05,
    -7.0122769858314565e-06,
    -5.031651942630203e-07,
    3.604777473106939e-07,
    4.1660456775889496e-09,
    -1.7490776337010176e-08,
    6.593354394785173e-11,
    8.834751367198405e-10,
    1.0784393956913717e-11,
    -4.6388304291246595e-11,
    -2.5743679337876135e-12,
    2.4180941324217228e-12,
    3.0543625532970484e-13,
    -1.1529605445055637e-13,
    -2.791906497847094e-14,
    4.166297179407252e-15,
    2.1335580120566833e-15,
    -1.2298857629944976e-17,
    -1.3518816320617676e-16,
    -1.6915983740861775e-17,
    6.391524853977569e-18,
];
