//! Sums of numbers at positions of a vector. XLA (xla-cpu-pjrt 0.0.1) slices all three arrays for each position.

use shardax_cpu_kernels::{self as kernels, Addend};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::matmul::Broadcast;
use super::{call, convert, is_enabled, is_worth, limits, numbers, numbers_mut, reshape};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::gather::GatherScatterMode;
use crate::ops::primitive::scatter::{Scatter, ScatterKind};

pub(super) const TARGET: &str = "shardax_scatter_add";

/// Lowers sums at positions of a vector to a kernel, if it is worthwhile.
pub(crate) fn lower(scatter: &Scatter, cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    let updates = cx.aval(args[2]).size();
    let is_vector = out.rank() == 1 && scatter.dims.update_window_dims.is_empty() && updates > 0;
    let has_positions = scatter.dims.inserted_window_dims == [0] && scatter.dims.scatter_dims_to_operand_dims == [0];
    // A kernel copies the vector, which XLA can update in place.
    let is_small = out.size() / limits::SUMS_PER_UPDATE <= updates;
    let is_known = matches!(out.dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::U32 | DType::U64);
    let has_i32_positions = matches!(cx.dtype(args[1]), DType::I8 | DType::I16 | DType::I32 | DType::U8 | DType::U16);
    // Every position of a longer vector needs more bits.
    let is_indexable = i32::try_from(out.size()).is_ok();
    if scatter.kind != ScatterKind::Add || scatter.mode == GatherScatterMode::Clip || !is_vector || !has_positions {
        return None;
    }
    let is_supported = is_small && is_known && has_i32_positions && is_indexable;
    if !is_supported || !is_worth(updates, limits::SCATTER_ADD) || !is_enabled(cx) {
        return None;
    }
    let indices = convert(cx, args[1], DType::I32);
    let indices = reshape(cx, indices, &[updates]);
    // One number that is added at all positions, as in counts, is not written once for each of them.
    let repeated = cx.origin::<Broadcast>(args[2]).map(|origin| origin.operand).filter(|v| cx.aval(*v).size() == 1);
    let updates = match repeated {
        Some(update) => reshape(cx, update, &[1]),
        None => reshape(cx, args[2], &[updates]),
    };
    Some(call(cx, TARGET, &[args[0], indices, updates], &[], std::slice::from_ref(out))[0])
}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let (args, results) = frame.split();
    let ([operand, indices, updates], [sums]) = (args, results) else {
        return Err("not three operands and a result".into());
    };
    match sums.ty {
        ElementType::F32 => add::<f32>(operand, indices, updates, sums),
        ElementType::F64 => add::<f64>(operand, indices, updates, sums),
        ElementType::S32 => add::<i32>(operand, indices, updates, sums),
        ElementType::S64 => add::<i64>(operand, indices, updates, sums),
        ElementType::U32 => add::<u32>(operand, indices, updates, sums),
        ElementType::U64 => add::<u64>(operand, indices, updates, sums),
        other => Err(format!("elements of {other:?}")),
    }
}

fn add<T: Addend + FromBytes + IntoBytes + Immutable>(
    operand: &Arg<'_>,
    indices: &Arg<'_>,
    updates: &Arg<'_>,
    sums: &mut Ret<'_>,
) -> Result<(), String> {
    let (operand, sums) = (numbers::<T>(operand)?, numbers_mut::<T>(sums)?);
    if operand.len() != sums.len() {
        return Err(format!("{} sums of {} elements", sums.len(), operand.len()));
    }
    sums.copy_from_slice(operand);
    Ok(kernels::scatter_add(numbers(indices)?, numbers(updates)?, sums)?)
}
