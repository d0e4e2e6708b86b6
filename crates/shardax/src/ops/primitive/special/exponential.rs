//! `exp(x) - 1` without a loss of digits.

use std::f64::consts::LN_2;

use super::{constant, eps};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::lax::bitcast_convert_type;
use crate::ops::primitive::unary::{ABS, ROUND};
use crate::ops::select::where_;

/// With `x = n log 2 + r`, `exp(x) - 1` is `2ⁿ (exp(r) - 1 + (1 - 2⁻ⁿ))`.
pub(crate) fn expm1(x: &Array) -> Array {
    // The sizes of the mantissa and of the exponent, the arguments beyond which the result is -1 or infinite, log 2 in two
    // parts (products of the first with n are exact), and the first power of r that the series leaves out.
    let (mantissa, bias, bits, low, high, upper, lower, terms) = match x.dtype() {
        DType::F64 => (52, 1023, DType::I64, -60.0, 720.0, 0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10, 14),
        _ => (23, 127, DType::I32, -30.0, 89.0, 0.693_359_375, -0.000_212_194_440_054_690_6, 9),
    };
    // Conversion of NaN to an integer is undefined, so it is taken out here, and put back at the end.
    let is_nan = x.not_equal(x);
    let within = where_(&is_nan, 0, x.maximum(low).minimum(high));
    let n = ROUND.apply(&(&within * (1.0 / LN_2)));
    let r = (&within - &n * upper) - &n * lower;
    // The Taylor series of exp(r) - 1, for r within half of log 2.
    let factorials = (2..terms).scan(1.0, |factorial, k| {
        *factorial *= f64::from(k);
        Some(1.0 / *factorial)
    });
    let factorials: Vec<f64> = factorials.collect();
    let series = factorials.iter().rev().fold(constant(0.0, &r), |sum, coefficient| (sum + *coefficient) * &r);
    let exponential = &r + &r * series;
    // The largest n is one more than the largest exponent, so there are two factors; next to 1, small ones vanish.
    let half = (&n * 0.5).floor();
    let [inverse, factor, other_factor] = [-n.minimum(f64::from(mantissa + 2)), half.clone(), n - half]
        .map(|n| bitcast_convert_type(&((n.astype(bits) + bias) << mantissa), x.dtype()));
    let y = (exponential + (1 - inverse)) * factor * other_factor;
    // A number next to 0 is the result, with its sign.
    where_(ABS.apply(x).less(eps(x.dtype()) / 4.0) | is_nan, x, y)
}
