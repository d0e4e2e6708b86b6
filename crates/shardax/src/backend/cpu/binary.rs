//! Elementwise functions of two numbers on CPU.

#[cfg(feature = "cpu-kernels")]
use super::kernels;
use super::unary::MIN_ELEMENTS;
use super::{arctan, integer_division};
use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::ops::primitive::binary::Binary;

pub(super) fn lower(binary: &Binary, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let out = &outs[0];
    if let name @ ("div" | "rem") = binary.name()
        && !out.dtype.is_float()
    {
        return integer_division::lower(name, cx, args, out);
    }
    if !out.dtype.is_float() || out.dtype.bits() < 16 {
        return Ok(None);
    }
    match binary.name() {
        "atan2" if out.size() >= MIN_ELEMENTS => arctan::lower_quotient(cx, args, out).map(Some),
        #[cfg(feature = "cpu-kernels")]
        "pow" => Ok(kernels::elementwise::lower_power(cx, args, out).map(|value| vec![value])),
        #[cfg(feature = "cpu-kernels")]
        "rem" => Ok(kernels::remainder::lower(cx, args, out).map(|value| vec![value])),
        _ => Ok(None),
    }
}
