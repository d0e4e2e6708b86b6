//! Elementwise functions on CPU.

use super::arctan;
use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::ops::primitive::unary::Unary;

/// Operations that are computed via an integer exponent.
const BY_EXPONENT: [&str; 5] = ["exp", "logistic", "sinh", "cosh", "erfc"];

/// Lowers the operation, and selects NaN if the operand is NaN. For a constant NaN the plugin computes an undefined
/// integer, and may then read uninitialized memory, as in `exp(where(p, NaN, x))`.
pub(super) fn lower(unary: &Unary, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if unary.name() == "atan" && outs[0].dtype.is_float() && outs[0].dtype.bits() >= 16 {
        return arctan::lower(cx, args, &outs[0]).map(Some);
    }
    if outs[0].dtype.is_complex()
        || !BY_EXPONENT.contains(&unary.name())
        || !cx.has_quirk("exponential-of-constant-nan")
    {
        return Ok(None);
    }
    let y = cx.op(unary.operation(), args, "", &outs[0]);
    let is_nan = cx.compare("NE", args[0], args[0]);
    Ok(Some(vec![cx.op("stablehlo.select", &[is_nan, args[0], y], "", &outs[0])]))
}
