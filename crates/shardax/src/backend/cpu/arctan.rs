//! The arctangent on CPU, as a polynomial.
//!
//! XLA (xla-cpu-pjrt 0.0.1) calls the C library for each element, which takes ten times as long.

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::lax::bitcast_convert_type;
use crate::ops::primitive::unary::{ABS, SIGN};
use crate::ops::select::where_;

/// Coefficients of (arctan(t) / t - 1) / t² as a polynomial of t² from 0 to 1, interpolated at Chebyshev nodes.
/// `numbers/arctangents` bounds the error of the result.
const F32: [f64; 9] = [
    -0.3333333173306352,
    0.1999973932983558,
    -0.14278568748210602,
    0.11033764115313455,
    -0.08656880430154522,
    0.06250169444749563,
    -0.03587153898204336,
    0.013507771427020535,
    -0.002386997316724113,
];

/// The coefficients for float64.
const F64: [f64; 22] = [
    -0.3333333333333333,
    0.1999999999999992,
    -0.14285714285701234,
    0.11111111110268297,
    -0.0909090906193528,
    0.07692307078827029,
    -0.06666657934573768,
    0.05882264416776449,
    -0.052624922290256754,
    0.04758080083637821,
    -0.043306538430670664,
    0.03938687540798632,
    -0.035271331066871296,
    0.030330719265790507,
    -0.024191345810140718,
    0.01718398172211335,
    -0.010412153260359241,
    0.005140912856746939,
    -0.0019612554271685326,
    0.0005376839297396244,
    -9.371186345052626e-05,
    7.767624330289919e-06,
];

/// π/2 minus its rounded values in float64 and float32.
pub(super) const REST_OF_HALF_PI_F64: f64 = 6.123233995736766e-17;
pub(super) const REST_OF_HALF_PI_F32: f64 = -4.371138828673793e-8;

/// Lowers the arctangent of real numbers. Half precision is computed in float32.
pub(super) fn lower(cx: &mut Lowering, args: &[Value], out: &Aval) -> Result<Vec<Value>> {
    let dtype = out.dtype;
    cx.expand(args, |args| {
        let x = &args[0];
        Ok(vec![match dtype {
            DType::F64 => arctan(x, &F64),
            DType::F32 => arctan(x, &F32),
            _ => arctan(&x.astype(DType::F32), &F32).astype(dtype),
        }])
    })
}

/// arctan(x) is π/2 - arctan(1 / x) for numbers above 1, and an odd function.
fn arctan(x: &Array, coefficients: &[f64]) -> Array {
    let magnitude = ABS.apply(x);
    let is_large = magnitude.greater(1);
    let t = where_(&is_large, -1, &magnitude) / where_(&is_large, &magnitude, 1);
    let square = &t * &t;
    let mut sum = &square * 0;
    for coefficient in coefficients.iter().rev() {
        sum = sum * &square + *coefficient;
    }
    let near = sum * &square * &t + &t;
    let far = (&near + REST_OF_HALF_PI_F64) + std::f64::consts::FRAC_PI_2;
    where_(is_large, far, near) * SIGN.apply(x)
}

/// Lowers the angle of the point (x, y), from y and x. Half precision is computed in float32.
pub(super) fn lower_quotient(cx: &mut Lowering, args: &[Value], out: &Aval) -> Result<Vec<Value>> {
    let dtype = out.dtype;
    cx.expand(args, |args| {
        let [y, x] = [&args[0], &args[1]].map(|x| if dtype.bits() < 32 { x.astype(DType::F32) } else { x.clone() });
        Ok(vec![angle(&y, &x).astype(dtype)])
    })
}

/// The angle is the arctangent of a quotient of at most 1, or the difference of this arctangent from a multiple of π/2.
fn angle(y: &Array, x: &Array) -> Array {
    let is_double = x.dtype() == DType::F64;
    let (coefficients, rest_of_half_pi, integer, least) = if is_double {
        (&F64[..], REST_OF_HALF_PI_F64, DType::I64, 1e-290)
    } else {
        (&F32[..], REST_OF_HALF_PI_F32, DType::I32, 1e-30)
    };
    let (width, height) = (ABS.apply(x), ABS.apply(y));
    let is_steep = height.greater(&width);
    let (large, small) = (where_(&is_steep, &height, &width), where_(&is_steep, &width, &height));
    // A quotient of zeros is 0 here, and a quotient of infinities is 1. A smaller number that is NaN stays NaN.
    let quotient = where_(large.equal(0), &small, &small / &large);
    let at_infinity = where_(small.equal(f64::INFINITY), 1, &small * 0);
    let is_infinite = large.equal(f64::INFINITY);
    let t = where_(&is_infinite, at_infinity, quotient);
    // The rounding error of the quotient, if the multiplication and the subtraction are rounded once. Products of the smallest
    // numbers are subnormal.
    let error = (&small - &t * &large) / &large;
    let error = where_(small.greater(least) & is_infinite.not_equal(true), error, 0);
    let square = &t * &t;
    let sum = coefficients.iter().rev().fold(&square * 0, |sum, coefficient| sum * &square + *coefficient);
    let correction = sum * &square * &t + error;

    // The sign bit is also the sign of a zero.
    let [is_left, is_below] = [x, y].map(|number| bitcast_convert_type(number, integer).less(0));
    // The multiple of π/2: 1 for steep angles, otherwise 2 for negative x.
    let turns = where_(&is_steep, 1.0, where_(&is_left, 2.0, 0.0)).astype(x.dtype());
    let is_subtracted = is_steep.not_equal(&is_left);
    let (t, correction) = (where_(&is_subtracted, -&t, &t), where_(&is_subtracted, -&correction, &correction));
    let result = (&turns * std::f64::consts::FRAC_PI_2 + t) + (turns * rest_of_half_pi + correction);
    where_(is_below, -&result, result)
}
