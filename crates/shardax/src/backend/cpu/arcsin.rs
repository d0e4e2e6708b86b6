//! The arcsine and the arccosine on CPU, as a polynomial.
//!
//! XLA (xla-cpu-pjrt 0.0.1) computes them from the arctangent of a quotient of roots, for which it calls the C library for each
//! element.

use std::f64::consts::{FRAC_PI_2, PI};

use super::arctan::{REST_OF_HALF_PI_F32, REST_OF_HALF_PI_F64};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::primitive::unary::{ABS, SIGN, SQRT};
use crate::ops::select::where_;

/// Coefficients of (arcsin(t) / t - 1) / t² as a polynomial of t² from 0 to 1/4, interpolated at Chebyshev nodes.
/// `numbers/arcsines` bounds the errors of the results.
const F32: [f64; 6] = [
    0.16666666337430908,
    0.07500094543497424,
    0.04459940152851218,
    0.03110066273549457,
    0.017149238357677253,
    0.03369084720283012,
];

/// The coefficients for float64.
const F64: [f64; 13] = [
    0.16666666666666669,
    0.07499999999998433,
    0.04464285714635543,
    0.030381944138531247,
    0.02237217294214989,
    0.017352392720869973,
    0.013971212973552933,
    0.011479177415184906,
    0.01032281435018578,
    0.005457506718640358,
    0.01740087944269402,
    -0.014851887071247204,
    0.028757851367421566,
];

/// Lowers `asin` and `acos` of real numbers. Half precision is computed in float32.
pub(super) fn lower(name: &str, cx: &mut Lowering, args: &[Value], out: &Aval) -> Result<Vec<Value>> {
    let function = if name == "asin" { arcsin } else { arccos };
    let dtype = out.dtype;
    cx.expand(args, |args| {
        let x = &args[0];
        Ok(vec![if dtype.bits() < 32 { function(&x.astype(DType::F32)).astype(dtype) } else { function(x) }])
    })
}

/// The arcsine of a number of at most 1/2, as a sum of two numbers. For a larger x, half of the arccosine of x, which is the
/// arcsine of the root of (1 - x) / 2.
struct Half {
    is_large: Array,
    root: Array,
    rest: Array,
    /// π/2 minus its rounded value.
    rest_of_half_pi: f64,
}

impl Half {
    fn of(x: &Array) -> Half {
        let (coefficients, rest_of_half_pi) = match x.dtype() {
            DType::F64 => (&F64[..], REST_OF_HALF_PI_F64),
            _ => (&F32[..], REST_OF_HALF_PI_F32),
        };
        let size = ABS.apply(x);
        let is_large = size.greater(0.5);
        let square = where_(&is_large, (1 - &size) * 0.5, x * x);
        let root = where_(&is_large, SQRT.apply(&square), size);
        let sum = coefficients.iter().rev().fold(&square * 0, |sum, coefficient| sum * &square + *coefficient);
        let rest = &root * (sum * square);
        Half { is_large, root, rest, rest_of_half_pi }
    }
}

fn arcsin(x: &Array) -> Array {
    let Half { is_large, root, rest, rest_of_half_pi } = Half::of(x);
    let far = (FRAC_PI_2 - &root * 2) - (&rest * 2 - rest_of_half_pi);
    where_(is_large, far, root + rest) * SIGN.apply(x)
}

fn arccos(x: &Array) -> Array {
    let Half { is_large, root, rest, rest_of_half_pi } = Half::of(x);
    let is_negative = x.less(0);
    let (double, double_rest) = (&root * 2, &rest * 2);
    // π is exactly twice its half.
    let below = (PI - &double) - (&double_rest - 2.0 * rest_of_half_pi);
    let outer = where_(&is_negative, below, double + double_rest);
    let (near, near_rest) = (where_(&is_negative, -&root, root), where_(&is_negative, -&rest, rest));
    where_(is_large, outer, (FRAC_PI_2 - near) - (near_rest - rest_of_half_pi))
}
