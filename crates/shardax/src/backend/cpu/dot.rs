//! Matrix multiplications on CPU.

#[cfg(feature = "cpu-kernels")]
use super::kernels;
use super::{dot_long, dot_vector, integers, widen};
use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::primitive::dot::DotGeneral;
use crate::ops::primitive::dot_algorithm;
use crate::precision::DotAlgorithmPreset::{self, *};
use crate::precision::Precision;

/// Chooses a kernel in Rust, a form that XLA computes fast, or the portable form of widened operands.
pub(super) fn lower(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let out = &outs[0];
    if let Some(Precision::Algorithm(preset)) = dot.precision {
        return Ok(Some(vec![by_algorithm(dot, preset, cx, args, out)?]));
    }
    // The product is computed in 32 bits, which can represent the numbers of two different kinds of float8. The results of integers are
    // the same, because upper bits never affect lower ones.
    if out.dtype.is_narrow() || matches!(out.dtype, DType::I8 | DType::U8 | DType::I16 | DType::U16) {
        let dtype = if out.dtype.is_float() { DType::F32 } else { DType::I32 };
        let wide = DotGeneral { preferred: Some(dtype), ..dot.clone() };
        let product = cx.apply(&wide, args, &[out.with_dtype(dtype)])?;
        return Ok(Some(vec![cx.op("stablehlo.convert", &product, "", out)]));
    }
    #[cfg(feature = "cpu-kernels")]
    if let Some(sums) = kernels::tall_matrix::lower(dot, cx, args, out) {
        return Ok(Some(vec![sums]));
    }
    if let Some(sums) = dot_long::lower(dot, cx, args, out)? {
        return Ok(Some(vec![sums]));
    }
    #[cfg(feature = "cpu-kernels")]
    if let Some(sums) = kernels::weighted_sums::lower(dot, cx, args, out) {
        return Ok(Some(vec![sums]));
    }
    #[cfg(feature = "cpu-kernels")]
    if let Some(product) = kernels::grouped::lower(dot, cx, args, out) {
        return Ok(Some(vec![product]));
    }
    #[cfg(feature = "cpu-kernels")]
    if let Some(product) = by_kernels(dot, cx, args, out)? {
        return Ok(Some(vec![product]));
    }
    let depth = dot.lhs_contract.iter().map(|dim| cx.shape(args[0])[*dim]).product();
    if let Some(args) = integers::in_f32(cx, args, depth, out) {
        let dot = DotGeneral { preferred: None, ..dot.clone() };
        let sums = cx.apply(&dot, &args, &[out.with_dtype(DType::F32)])?;
        return Ok(Some(vec![integers::from_f32(cx, sums[0], out)]));
    }
    // A wider result is computed from widened operands: the plugin (xla-cpu-pjrt 0.0.1) is twice as fast that way.
    let args = widen(cx, args, dot.preferred);
    #[cfg(feature = "cpu-kernels")]
    if let Some(product) = int32_by_kernel(dot, cx, &args, out) {
        return Ok(Some(vec![product]));
    }
    match dot_vector::lower(dot, cx, &args, out) {
        Some(product) => Ok(Some(vec![product])),
        None => dot.lower(cx, &args, outs).map(Some),
    }
}

/// Calls a kernel in Rust, if one is worthwhile.
#[cfg(feature = "cpu-kernels")]
fn by_kernels(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], out: &Aval) -> Result<Option<Value>> {
    let untransposed = kernels::matmul::without_transposes(dot, cx, args);
    let (dot, args) = untransposed.as_ref().map_or((dot, args), |(dot, args)| (dot, args.as_slice()));
    if let Some(product) = kernels::few_rows::lower(dot, cx, args, out) {
        return Ok(Some(product));
    }
    if let Some(product) = kernels::low_precision::lower(dot, cx, args, out) {
        return Ok(Some(product));
    }
    let args = widen(cx, args, dot.preferred);
    match kernels::matmul::lower(dot, cx, &args, out) {
        Some(product) => Ok(Some(product)),
        None => kernels::matmul::lower_complex(dot, cx, &args, out),
    }
}

/// Calls the kernel for integers of 32 bits, if it is worthwhile.
#[cfg(feature = "cpu-kernels")]
fn int32_by_kernel(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    if !matches!(out.dtype, DType::I32 | DType::U32) {
        return None;
    }
    let untransposed = kernels::matmul::without_transposes(dot, cx, args);
    let (dot, args) = untransposed.as_ref().map_or((dot, args), |(dot, args)| (dot, args.as_slice()));
    kernels::low_precision::lower_int32(dot, cx, args, out)
}

/// Lowers a dot with an algorithm. CPUs compute operands of these types in the same way as without an algorithm. Fails
/// for an algorithm that CPUs do not have.
fn by_algorithm(
    dot: &DotGeneral,
    preset: DotAlgorithmPreset,
    cx: &mut Lowering,
    args: &[Value],
    out: &Aval,
) -> Result<Value> {
    dot_algorithm::check(preset, cx, args)?;
    if !matches!(preset, F16F16F16 | Bf16Bf16F32 | Bf16Bf16F32X3 | Bf16Bf16F32X6 | F32F32F32 | F64F64F64) {
        let name = preset.name();
        return Err(err!(NotImplemented, "The precision '{name}' is not supported by dot_general on CPU").help(
            "on CPU there are F16_F16_F16, BF16_BF16_F32 (also _X3 and _X6), F32_F32_F32 and F64_F64_F64; or leave the precision out",
        ));
    }
    let args = dot_algorithm::operands(preset, cx, args);
    let [lhs, rhs] = args.map(|v| cx.dtype(v));
    let dtype = if lhs == rhs { lhs } else { DType::F32 };
    let args = if lhs == rhs { args.to_vec() } else { convert_all(cx, &args, dtype) };
    let product = cx.apply(&dot.plain(), &args, &[out.with_dtype(dtype)])?[0];
    Ok(dot_algorithm::result(cx, product, out))
}

/// Converts all operands, even if they have this type already.
fn convert_all(cx: &mut Lowering, args: &[Value], dtype: DType) -> Vec<Value> {
    args.iter().map(|&v| cx.op("stablehlo.convert", &[v], "", &cx.aval(v).with_dtype(dtype))).collect()
}
