//! Moves and comparisons of bfloat16 on CPU.
//!
//! XLA (xla-cpu-pjrt 0.0.1) computes in float32 what its float normalization does not know: it converts arrays before
//! and after moving elements, and in each comparison of a reduction or sort.

use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::DType;

/// Moves the bits as integers. For operations that only move elements.
pub(super) fn move_bits<P: Primitive>(primitive: &P, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    // The partitioner combines the parts of an array in its own dtype.
    if outs[0].dtype != DType::Bf16 || !cx.is_local() {
        return Ok(None);
    }
    let bits: Vec<Value> =
        args.iter().map(|&arg| converted(cx, "stablehlo.bitcast_convert", arg, DType::U16)).collect();
    let moved = primitive.lower(cx, &bits, &[outs[0].with_dtype(DType::U16)])?;
    Ok(Some(vec![cx.op("stablehlo.bitcast_convert", &moved, "", &outs[0])]))
}

/// Compares in float32, which has all numbers of bfloat16, so that each element is converted once.
pub(super) fn compare_in_float32<P: Primitive>(
    primitive: &P,
    cx: &mut Lowering,
    args: &[Value],
    outs: &[Aval],
) -> Lowered {
    if cx.dtype(args[0]) != DType::Bf16 || !cx.is_local() {
        return Ok(None);
    }
    let wide = converted(cx, "stablehlo.convert", args[0], DType::F32);
    let wide_outs = outs.iter().map(|out| match out.dtype {
        DType::Bf16 => out.with_dtype(DType::F32),
        _ => out.clone(),
    });
    let wide_outs: Vec<Aval> = wide_outs.collect();
    let values = primitive.lower(cx, &[wide], &wide_outs)?;
    let narrow = values.into_iter().zip(outs).map(|(value, out)| match out.dtype {
        DType::Bf16 => cx.op("stablehlo.convert", &[value], "", out),
        _ => value,
    });
    Ok(Some(narrow.collect()))
}

fn converted(cx: &mut Lowering, operation: &str, value: Value, dtype: DType) -> Value {
    let aval = cx.aval(value).with_dtype(dtype);
    cx.op(operation, &[value], "", &aval)
}
