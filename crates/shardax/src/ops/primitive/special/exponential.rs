//! `exp(x) - 1` without a loss of digits.

use std::f64::consts::LN_2;

use super::{chebyshev, eps};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::lax::bitcast_convert_type;
use crate::ops::primitive::unary::{ABS, ROUND};
use crate::ops::select::where_;

/// Chebyshev coefficients of `(exp(r) - 1 - r) / r²` for r within half of log 2 around 0.
const REST: [f64; 11] = [
    0.502_510_390_568_467_9,
    0.058_028_916_109_833_406,
    0.002_512_903_020_491_546_8,
    8.706_191_408_374_229e-5,
    2.513_799_053_952_552_3e-6,
    6.221_742_238_724_225e-8,
    1.347_479_708_425_347e-9,
    2.594_157_865_080_951e-11,
    4.494_964_362_544_574e-13,
    7.080_665_206_906_156e-15,
    1.022_449_796_664_022_5e-16,
];

/// Half of the interval of [`REST`].
const HALF: f64 = LN_2 / 2.0 * 1.0001;

/// With `x = n log 2 + r`, `exp(x) - 1` is `2ⁿ (exp(r) - 1 + (1 - 2⁻ⁿ))`.
pub(in crate::ops::primitive) fn expm1(x: &Array) -> Array {
    // The sizes of the mantissa and of the exponent, the arguments beyond which the result is -1 or infinite, and
    // log 2 in two parts: products of the first with n are exact.
    let (mantissa, bias, bits, low, high, upper, lower) = match x.dtype() {
        DType::F64 => (52, 1023, DType::I64, -60.0, 720.0, 0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10),
        _ => (23, 127, DType::I32, -30.0, 89.0, 0.693_359_375, -0.000_212_194_440_054_690_6),
    };
    // Conversion of NaN to an integer is undefined, so it is taken out here, and put back at the end.
    let is_nan = x.not_equal(x);
    let within = where_(&is_nan, 0, x.maximum(low).minimum(high));
    let n = ROUND.apply(&(&within * (1.0 / LN_2)));
    let r = (&within - &n * upper) - &n * lower;
    let exponential = &r + &r * &r * chebyshev(&(&r / HALF), &REST);
    let power = |n: Array| bitcast_convert_type(&((n.astype(bits) + bias) << mantissa), x.dtype());
    // The largest n is one more than the largest exponent, so there are two factors; next to 1, small ones vanish.
    let half = (&n * 0.5).floor();
    let y = (exponential + (1 - power(-n.minimum(f64::from(mantissa + 2))))) * power(half.clone()) * power(n - half);
    // A number next to 0 is the result, with its sign.
    where_(ABS.apply(x).less(eps(x.dtype()) / 4.0) | is_nan, x, y)
}
