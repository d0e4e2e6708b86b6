//! `log(1 + x)` on CPU, and the inverse hyperbolic functions that contain it.
//!
//! XLA (xla-cpu-pjrt 0.0.1) evaluates two rational functions for each element of `log1p`, which takes three times as
//! long, and loses digits in float64.

use std::f64::consts::LN_2;

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::{DType, Scalar};
use crate::error::Result;
use crate::ops::lax::bitcast_convert_type;
use crate::ops::primitive::unary::{ABS, LOG, SIGN, SQRT};
use crate::ops::select::where_;

/// The numbers of a floating-point format that the evaluation depends on.
struct Format {
    integer: DType,
    mantissa: i64,
    bias: i64,
    /// The bits of the square root of 1/2.
    root_of_half: i64,
    /// log 2 in two parts. Products of the first one with an exponent are exact.
    log_2: [f64; 2],
    /// Coefficients of (log(1 + f) - f + f²/2) / f³ as a polynomial of f, from √½ - 1 to √2 - 1, interpolated at Chebyshev nodes.
    coefficients: &'static [f64],
}

impl Format {
    /// An integer of the format's width.
    fn literal(&self, value: i64) -> Array {
        Array::literal(Scalar::Int(value.into()), self.integer, false)
    }
}

const F32: Format = Format {
    integer: DType::I32,
    mantissa: 23,
    bias: 127,
    root_of_half: 0x3f35_04f3,
    log_2: [0.693_359_375, LN_2 - 0.693_359_375],
    coefficients: &[
        0.33333331179972575,
        -0.24999996957625975,
        0.2000071576352166,
        -0.16667802367579132,
        0.14249057141902147,
        -0.1242568569282142,
        0.11685423571105265,
        -0.11479748625389889,
        0.06971620541003427,
    ],
};

const F64: Format = Format {
    integer: DType::I64,
    mantissa: 52,
    bias: 1023,
    root_of_half: 0x3fe6_a09e_667f_3bcc,
    log_2: [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10],
    coefficients: &[
        0.33333333333333337,
        -0.2499999999999993,
        0.19999999999993223,
        -0.16666666666697305,
        0.14285714287591833,
        -0.12499999997109347,
        0.11111110909832436,
        -0.09999999996301737,
        0.09090919876381333,
        -0.08333345057395608,
        0.07691988111278561,
        -0.07142232019364049,
        0.06671985657097806,
        -0.06265032338632677,
        0.0583701796940326,
        -0.05368276743430882,
        0.05371875573304733,
        -0.06129572238733394,
        0.05666440988260401,
        -0.025061306730966473,
    ],
};

/// Lowers `log1p`, `asinh` and `atanh` of real numbers. Half precision is computed in float32.
pub(super) fn lower(name: &str, cx: &mut Lowering, args: &[Value], out: &Aval) -> Result<Vec<Value>> {
    let function = match name {
        "asinh" => arcsinh,
        "atanh" => arctanh,
        _ => log1p,
    };
    let dtype = out.dtype;
    cx.expand(args, |args| {
        let x = &args[0];
        Ok(vec![if dtype.bits() < 32 { function(&x.astype(DType::F32)).astype(dtype) } else { function(x) }])
    })
}

/// 1 + x is 2ᵏ (1 + f), with 1 + f between the roots of 1/2 and 2 up to a rounding error.
fn log1p(x: &Array) -> Array {
    let dtype = x.dtype();
    let format = if dtype == DType::F64 { &F64 } else { &F32 };
    let bits = bitcast_convert_type(&(x + 1), format.integer);
    let k = (bits - format.literal(format.root_of_half)) >> format.literal(format.mantissa);
    // The inverse of 2ᵏ, times 4 because the smallest one is subnormal.
    let scale =
        bitcast_convert_type(&((format.literal(format.bias + 2) - &k) << format.literal(format.mantissa)), dtype);

    // f is a sum of exact numbers, and so is its rounding error. XLA may simplify a sum only if it contains constants.
    let (scaled, shift) = (x * &scale * 0.25, scale * 0.25 - 1);
    let f = &scaled + &shift;
    let rounded_shift = &f - &scaled;
    let error = (&scaled - (&f - &rounded_shift)) + (&shift - &rounded_shift);
    // Divided by 1 + f, up to terms of f².
    let error = &error - &error * &f;

    let polynomial = format.coefficients.iter().rev().fold(&f * 0, |sum, coefficient| (sum * &f) + *coefficient);
    let square = &f * &f;
    let exponent = k.astype(dtype);
    // f is added last, so that the errors of the other terms are small next to it.
    let small = &f * &square * polynomial + (&exponent * format.log_2[1] + error);
    let y = exponent * format.log_2[0] - ((square * 0.5 - small) - f);

    // Infinities, NaN, and zeros, whose sign the sums lose.
    let limit = where_(x.less(-1), f64::NAN, where_(x.equal(-1), f64::NEG_INFINITY, x));
    let is_regular = x.greater(-1) & x.less(f64::INFINITY) & x.not_equal(0);
    where_(is_regular, y, limit) / opaque_one(&k, dtype)
}

/// 1 as the result of operations. XLA computes cheap operations again in the loop of each user, which multiplies the work of
/// long chains, but no division. LLVM leaves the division by 1 out.
fn opaque_one(k: &Array, dtype: DType) -> Array {
    k.maximum(1).minimum(1).astype(dtype)
}

fn arcsinh(x: &Array) -> Array {
    let size = ABS.apply(x);
    // The square of a larger number overflows, and 1 vanishes next to it.
    let is_large = size.greater(if x.dtype() == DType::F64 { 1e150 } else { 1e18 });
    let near = where_(&is_large, 1, &size);
    let square = &near * &near;
    let near = log1p(&(&near + &square / (SQRT.apply(&(&square + 1)) + 1)));
    SIGN.apply(x) * where_(is_large, LOG.apply(&size) + LN_2, near)
}

fn arctanh(x: &Array) -> Array {
    (log1p(x) - log1p(&-x)) * 0.5
}
