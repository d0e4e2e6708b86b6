//! Quotients and remainders of arrays of int32 on CPU, by divisions of float64.
//!
//! XLA (xla-cpu-pjrt 0.0.1) divides one integer after the other, because processors have no instruction that divides vectors of integers.
//! The quotient of two int32 in float64, without its fraction, is exact: a quotient that is no integer is farther from the next integer than
//! float64 rounds. A scalar divisor is left to XLA, which replaces the division by a product if it knows the scalar.

use super::unary::MIN_ELEMENTS;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::select::where_;

/// Lowers a division or a remainder, if it is worthwhile.
pub(super) fn lower(name: &str, cx: &mut Lowering, args: &[Value], out: &Aval) -> Result<Option<Vec<Value>>> {
    if out.dtype != DType::I32 || out.size() < MIN_ELEMENTS || cx.shape(args[1]).is_empty() {
        return Ok(None);
    }
    let is_remainder = name == "rem";
    cx.expand(args, |args| {
        let quotient = quotient(&args[0], &args[1]);
        Ok(vec![if is_remainder { &args[0] - quotient * &args[1] } else { quotient }])
    })
    .map(Some)
}

/// The quotients, rounded towards zero. They are XLA's where there is none: -1 for a divisor of 0, and the smallest integer divided by -1 wraps
/// around to itself.
fn quotient(x: &Array, y: &Array) -> Array {
    let (is_zero, is_minus_one) = (y.equal(0), y.equal(-1));
    let divisor = where_(&is_zero | &is_minus_one, 1, y);
    let quotient = (x.astype(DType::F64) / divisor.astype(DType::F64)).astype(DType::I32);
    where_(is_zero, -1, where_(is_minus_one, -x, quotient))
}
