//! Products of bfloat16 and of int8 by XLA, written so that it uses the processor's instructions for them (`docs/plugin.md`).
//!
//! XLA (xla-cpu-pjrt 0.0.1) has fast products of bfloat16 with float32 sums, and of int8 with int32 sums, whose operands have the contracted
//! dimension last on the left. It converts the operands of all others to float32 or int32 first.

use super::{convert, is_worth, limits, requested, transpose};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::dot::{DotGeneral, free};
use crate::ops::primitive::layout_constraint::constrained;
use crate::settings::CpuKernels;

/// Lowers the product of operands of few bits, if the processor multiplies them itself.
pub(crate) fn lower(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    let sums = match (cx.dtype(args[0]), cx.dtype(args[1]), out.dtype) {
        (DType::I8, DType::I8, DType::I32) if multiplies_int8() => DType::I32,
        (DType::Bf16, DType::Bf16, DType::Bf16 | DType::F32) if multiplies_bf16() => DType::F32,
        _ => return None,
    };
    let lhs_free = free(cx.shape(args[0]).len(), &dot.lhs_contract, &dot.lhs_batch);
    let rhs_free = free(cx.shape(args[1]).len(), &dot.rhs_contract, &dot.rhs_batch);
    let size = |v: Value, dims: &[usize]| dims.iter().map(|&d| cx.shape(v)[d]).product::<usize>();
    let sides = [size(args[0], &lhs_free), size(args[1], &rhs_free), size(args[0], &dot.lhs_contract)];
    // XLA computes vectors in other ways.
    let is_matmul = sides.iter().all(|side| *side >= limits::LOW_PRECISION_SIDE);
    if cx.portable || !is_matmul || requested() == CpuKernels::Xla {
        return None;
    }
    let mut dot = DotGeneral { preferred: Some(sums), ..dot.clone() };
    let mut lhs = args[0];
    let order = [&dot.lhs_batch[..], &lhs_free, &dot.lhs_contract].concat();
    let are_last = dot.lhs_contract.iter().all(|d| lhs_free.iter().all(|f| f < d));
    let work = sides.into_iter().fold(size(args[0], &dot.lhs_batch), usize::saturating_mul);
    if !are_last && cx.is_local() && is_worth(work, limits::LOW_PRECISION_TRANSPOSED) {
        // XLA would fold a plain transposition into the product again.
        let (batch, rank) = (dot.lhs_batch.len(), order.len());
        let row_major: Vec<String> = (0..rank).rev().map(|d| d.to_string()).collect();
        lhs = transpose(cx, lhs, &order);
        lhs = constrained(cx, lhs, &row_major.join(", "));
        dot.lhs_batch = (0..batch).collect();
        dot.lhs_contract = (rank - dot.lhs_contract.len()..rank).collect();
    }
    let product = cx.op("stablehlo.dot_general", &[lhs, args[1]], &dot.attributes(), &out.with_dtype(sums));
    Some(convert(cx, product, out.dtype))
}

/// Returns `true` if the processor multiplies int8 with int32 sums.
#[cfg(target_arch = "x86_64")]
fn multiplies_int8() -> bool {
    std::arch::is_x86_feature_detected!("avx512vnni")
}

/// Returns `true` if the processor multiplies bfloat16 with float32 sums.
#[cfg(target_arch = "x86_64")]
fn multiplies_bf16() -> bool {
    std::arch::is_x86_feature_detected!("avx512bf16")
}

#[cfg(not(target_arch = "x86_64"))]
fn multiplies_int8() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn multiplies_bf16() -> bool {
    false
}
