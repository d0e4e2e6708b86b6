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

/// The number of multiplications of a product that XLA leaves to a loop over its elements is below 100. The bound is higher,
/// because another version may choose another number, and products of this size take no time.
const SMALL_PRODUCT: usize = 4096;

/// A product of matrices of at most this many multiplications, with an operand of float8.
fn is_small_product_of_float8(dot: &DotGeneral, cx: &Lowering, args: &[Value], out: &Aval) -> bool {
    let shape = cx.shape(args[0]);
    let terms: usize = dot.lhs_contract.iter().map(|axis| shape[*axis]).product();
    let batch: usize = dot.lhs_batch.iter().map(|axis| shape[*axis]).product();
    let is_float8 = |&v: &Value| cx.dtype(v).is_float() && cx.dtype(v).bits() == 8;
    args.iter().any(is_float8) && out.size() / batch.max(1) * terms <= SMALL_PRODUCT
}

/// Computes operands of 8 bits in wider types: integers because Triton's kernels for such operands return twice the sums, and
/// small products of float8 because XLA adds them up in float16.
pub(super) fn lower(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let is_by_algorithm = matches!(dot.precision, Some(Precision::Algorithm(_)));
    if !is_by_algorithm
        && cx.has_quirk("small-products-of-float8")
        && is_small_product_of_float8(dot, cx, args, &outs[0])
    {
        let wide = DotGeneral { preferred: Some(DType::F32), ..dot.clone() };
        let args = widen(cx, args, wide.preferred);
        let product = wide.lower(cx, &args, &[outs[0].with_dtype(DType::F32)])?;
        return Ok(Some(widen(cx, &product, Some(outs[0].dtype))));
    }
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
