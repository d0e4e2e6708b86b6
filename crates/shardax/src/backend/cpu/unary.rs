//! Elementwise functions on CPU.

#[cfg(feature = "cpu-kernels")]
use super::kernels;
use super::{arcsin, arctan, erf_inv, log1p};
use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::unary::Unary;
use crate::shape::size;

/// Operations that are computed via an integer exponent.
const BY_EXPONENT: [&str; 5] = ["exp", "logistic", "sinh", "cosh", "erfc"];

/// The number of elements from which a function is written out. The plugin runs a program of 1,000 operations of elements on
/// another thread, which takes 10 µs longer, and counts its own functions as one operation. In float64 its `log1p` loses
/// digits, so that it is written out at all sizes.
pub(super) const MIN_ELEMENTS: usize = 1024;

/// Lowers the operation, and selects NaN if the operand is NaN. For a constant NaN the plugin computes an undefined
/// integer, and can then read uninitialized memory, as in `exp(where(p, NaN, x))`.
pub(super) fn lower(unary: &Unary, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if outs[0].dtype.is_float() && outs[0].dtype.bits() >= 16 {
        #[cfg(feature = "cpu-kernels")]
        if let Some(y) = kernels::elementwise::lower(unary.name(), cx, args[0], &outs[0]) {
            return Ok(Some(vec![y]));
        }
        let is_small = size(cx.shape(args[0])) < MIN_ELEMENTS;
        match unary.name() {
            "asin" | "acos" | "atan" | "asinh" | "atanh" if is_small => return Ok(None),
            "log1p" if is_small && outs[0].dtype != DType::F64 => return Ok(None),
            name @ ("asin" | "acos") => return arcsin::lower(name, cx, args, &outs[0]).map(Some),
            "atan" => return arctan::lower(cx, args, &outs[0]).map(Some),
            name @ ("log1p" | "asinh" | "atanh") => return log1p::lower(name, cx, args, &outs[0]).map(Some),
            "erf_inv" if outs[0].dtype != DType::F64 => return erf_inv::lower(cx, args, &outs[0]).map(Some),
            _ => {}
        }
    }
    // The plugin computes these operations with an integer exponent, which is undefined for a constant NaN.
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
