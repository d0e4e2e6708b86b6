//! Matrix multiplications on GPUs.

use crate::backend::cpu::widen;
use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::dot::DotGeneral;
use crate::precision::Precision;

fn is_byte(dtype: DType) -> bool {
    dtype.is_integer() && dtype.bits() == 8
}

/// Computes operands of 8 bits in int32, because Triton's kernels for such operands return twice the sums.
pub(super) fn lower(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let is_by_algorithm = matches!(dot.precision, Some(Precision::Algorithm(_)));
    if is_by_algorithm || !cx.has_quirk("products-of-bytes") || !args.iter().any(|&v| is_byte(cx.dtype(v))) {
        return Ok(None);
    }
    if is_byte(outs[0].dtype) {
        let wide = DotGeneral { preferred: Some(DType::I32), ..dot.clone() };
        let product = cx.apply(&wide, args, &[outs[0].with_dtype(DType::I32)])?;
        return Ok(Some(vec![cx.op("stablehlo.convert", &product, "", &outs[0])]));
    }
    let args = widen(cx, args, dot.preferred);
    dot.lower(cx, &args, outs).map(Some)
}
