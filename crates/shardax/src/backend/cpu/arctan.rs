//! The arctangent on CPU, as a polynomial.
//!
//! XLA (xla-cpu-pjrt 0.0.1) calls the C library for each element, which takes ten times as long.

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;
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

/// π/2 minus its rounded value in float64.
const REST_OF_HALF_PI: f64 = 6.123233995736766e-17;

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
    let far = (&near + REST_OF_HALF_PI) + std::f64::consts::FRAC_PI_2;
    where_(is_large, far, near) * SIGN.apply(x)
}
