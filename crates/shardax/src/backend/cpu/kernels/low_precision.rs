//! Matmuls of bf16 with sums in f32, and of int8 with sums in int32, by the processor's instructions for such sums, and of
//! int32. XLA (xla-cpu-pjrt 0.0.1) widens narrower operands in memory first, which takes twice the time for bf16 and 30 times
//! for int8. Its loop for int32 takes four times as long.

use half::bf16;
use shardax_cpu_kernels::{self as kernels, Bf16Sum, has_bf16_instructions};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};
use zerocopy::{FromBytes, IntoBytes};

use super::few_rows::stored;
use super::matmul::{contracted_dim, matrices};
use super::{
    call, is_always_used, is_enabled, is_worth, limits, number, numbers_mut, reshape, size_of_dims, sizes, view,
};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::dot::{DotGeneral, free};
use crate::shape::Shape;

pub(super) const TARGET: &str = "shardax_dot_low_precision";

/// Lowers the matmul to a kernel, if it is worthwhile.
pub(crate) fn lower(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    let operands = [args[0], args[1]].map(|v| stored(cx, v));
    let dtypes = operands.map(|v| cx.dtype(v));
    match (dtypes, out.dtype) {
        ([DType::Bf16, DType::Bf16], DType::Bf16 | DType::F32) => {
            let min_side = if is_read_in_place(dot, cx, args) { 1 } else { limits::MATMUL_SIDE };
            let is_fast = has_bf16_instructions() || is_always_used();
            if is_fast { multiply(dot, cx, operands, out, limits::MATMUL_BF16, min_side) } else { None }
        }
        ([DType::I8, DType::I8], DType::I32) => multiply(dot, cx, operands, out, limits::MATMUL_INT8, 1),
        _ => None,
    }
}

/// Lowers a matmul of integers of 32 bits to a kernel, if it is worthwhile.
pub(crate) fn lower_int32(dot: &DotGeneral, cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    let operands = [args[0], args[1]];
    if operands.iter().all(|v| cx.dtype(*v) == out.dtype) {
        multiply(dot, cx, operands, out, limits::MATMUL_INT32, limits::MATMUL_SIDE)
    } else {
        None
    }
}

/// Calls the kernel for a matmul of at least `limit` multiply-adds. Packing the operands costs more than it saves if one side is shorter
/// than `min_side`.
fn multiply(
    dot: &DotGeneral,
    cx: &mut Lowering,
    operands: [Value; 2],
    out: &Aval,
    limit: usize,
    min_side: usize,
) -> Option<Value> {
    let [lhs, rhs] = operands.map(|v| cx.aval(v));
    let lhs_free = free(lhs.rank(), &dot.lhs_contract, &dot.lhs_batch);
    let rhs_free = free(rhs.rank(), &dot.rhs_contract, &dot.rhs_batch);
    let (batch, depth) = (size_of_dims(&lhs.shape, &dot.lhs_batch), size_of_dims(&lhs.shape, &dot.lhs_contract));
    let (rows, columns) = (size_of_dims(&lhs.shape, &lhs_free), size_of_dims(&rhs.shape, &rhs_free));
    let work = [rows, columns, depth].into_iter().fold(batch, usize::saturating_mul);
    let is_wide = is_always_used() || [rows, columns, depth].into_iter().all(|side| side >= min_side);
    if !is_wide || !is_worth(work, limit) || !is_enabled(cx) {
        return None;
    }
    let lhs_parts = [&*dot.lhs_batch, &*lhs_free, &*dot.lhs_contract];
    let rhs_parts = [&*dot.rhs_batch, &*rhs_free, &*dot.rhs_contract];
    let (a, a_dim) = matrices(cx, operands[0], lhs_parts, [batch, rows, depth]);
    let (b, b_dim) = matrices(cx, operands[1], rhs_parts, [batch, columns, depth]);
    let product = Aval::new(out.dtype, Shape::from_slice(&[batch, rows, columns]));
    let numbers = [("lhs", a_dim as i64), ("rhs", b_dim as i64)];
    let product = call(cx, TARGET, &[a, b], &numbers, &[product])[0];
    Some(reshape(cx, product, &out.shape))
}

/// Returns `true` for a product of at least three rows and a matrix in either order, both of bf16, which the processor's instructions compute
/// faster than the kernel of few rows.
pub(super) fn is_read_in_place(dot: &DotGeneral, cx: &Lowering, args: &[Value]) -> bool {
    let [x, w] = [args[0], args[1]].map(|v| stored(cx, v));
    let are_bf16 = [x, w].into_iter().all(|v| cx.dtype(v) == DType::Bf16);
    let rows = size_of_dims(cx.shape(x), &free(cx.shape(x).len(), &dot.lhs_contract, &dot.lhs_batch));
    let w_free = free(cx.shape(w).len(), &dot.rhs_contract, &dot.rhs_batch);
    let [columns, depth] = [size_of_dims(cx.shape(w), &w_free), size_of_dims(cx.shape(w), &dot.rhs_contract)];
    are_bf16
        && has_bf16_instructions()
        && rows >= 3
        && columns.min(depth) >= limits::MATMUL_SIDE
        && contracted_dim([&dot.rhs_batch, &w_free, &dot.rhs_contract]).is_some()
}

/// Handles a call. `lhs` and `rhs` are the contracted dimensions of the operands.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let dims = [number(frame, "lhs")?, number(frame, "rhs")?];
    let threads = number(frame, "threads")?;
    let (args, results) = frame.split();
    let ([a, b], [c]) = (args, results) else { return Err("not two operands and a result".into()) };
    match c.ty {
        ElementType::F32 => multiply_bf16::<f32>([a, b], dims, c, threads),
        ElementType::Bf16 => multiply_bf16::<bf16>([a, b], dims, c, threads),
        ElementType::S32 | ElementType::U32 => {
            let (lhs, rhs) = (sizes(a.dims), sizes(b.dims));
            let out = numbers_mut(c)?;
            let product = match a.ty {
                ElementType::S8 => kernels::matmul_i8(view(a, &lhs)?, view(b, &rhs)?, dims, out, threads),
                _ => kernels::matmul_i32(view(a, &lhs)?, view(b, &rhs)?, dims, out, threads),
            };
            Ok(product?)
        }
        other => Err(format!("a result of {other:?}")),
    }
}

fn multiply_bf16<R: Bf16Sum + FromBytes + IntoBytes>(
    [a, b]: [&Arg<'_>; 2],
    dims: [usize; 2],
    c: &mut Ret<'_>,
    threads: usize,
) -> Result<(), String> {
    let (lhs, rhs) = (sizes(a.dims), sizes(b.dims));
    Ok(kernels::matmul_bf16::<R>(view(a, &lhs)?, view(b, &rhs)?, dims, numbers_mut(c)?, threads)?)
}
