//! Cumulative sums, products, maxima, minima and logarithms of sums of exponentials. XLA (xla-cpu-pjrt 0.0.1) rewrites the window that grows along the axis
//! to a tree of blocks, whose loops are not vectorized (`docs/plugin.md`).

use shardax_cpu_kernels::{self as kernels, Accumulate, Cumulative};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{call, convert, is_enabled, is_worth, limits, number, numbers_mut, reshape, sizes, view, widened};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::cumulative::CumulativeKind;
use crate::shape::Shape;

pub(super) const TARGET: &str = "shardax_cumulative";

/// The operations; a call contains the index of one, or [`LOG_SUM_EXP`].
const OPERATIONS: [Cumulative; 4] = [Cumulative::Sum, Cumulative::Product, Cumulative::Max, Cumulative::Min];

const LOG_SUM_EXP: i64 = OPERATIONS.len() as i64;

/// Lowers the reduction to a kernel, if it is worthwhile.
pub(crate) fn lower(
    kind: CumulativeKind,
    axis: usize,
    is_reversed: bool,
    cx: &mut Lowering,
    x: Value,
    out: &Aval,
) -> Option<Value> {
    let operation = match kind {
        CumulativeKind::Sum => 0,
        CumulativeKind::Prod => 1,
        CumulativeKind::Max => 2,
        CumulativeKind::Min => 3,
        CumulativeKind::LogSumExp => LOG_SUM_EXP,
    };
    let dtype = widened(out.dtype);
    let is_integer = !matches!(dtype, DType::F32 | DType::F64);
    if kind == CumulativeKind::LogSumExp && is_integer {
        return None;
    }
    let is_known = matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::U32 | DType::U64);
    if !is_known || !is_worth(out.size(), limits::CUMULATIVE) || !is_enabled(cx) {
        return None;
    }
    // The kernel reduces the middle one of three dimensions.
    let shape = [crate::shape::size(&out.shape[..axis]), out.shape[axis], crate::shape::size(&out.shape[axis + 1..])];
    let x = convert(cx, x, dtype);
    let x = reshape(cx, x, &shape);
    let numbers = [("operation", operation), ("reversed", i64::from(is_reversed))];
    let result = call(cx, TARGET, &[x], &numbers, &[Aval::new(dtype, Shape::from_slice(&shape))])[0];
    let result = convert(cx, result, out.dtype);
    Some(reshape(cx, result, &out.shape))
}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let number_of_operation = number(frame, "operation")?;
    let operation = OPERATIONS.get(number_of_operation).copied();
    let (is_reversed, threads) = (number(frame, "reversed")? != 0, number(frame, "threads")?);
    let (args, results) = frame.split();
    let ([x], [out]) = (args, results) else { return Err("not an operand and a result".into()) };
    let Some(operation) = operation else {
        return match out.ty {
            ElementType::F32 => log_sum_exp::<f32>(x, is_reversed, out, threads),
            ElementType::F64 => log_sum_exp::<f64>(x, is_reversed, out, threads),
            other => Err(format!("elements of {other:?}")),
        };
    };
    match out.ty {
        ElementType::F32 => combine::<f32>(x, operation, is_reversed, out, threads),
        ElementType::F64 => combine::<f64>(x, operation, is_reversed, out, threads),
        ElementType::S32 => combine::<i32>(x, operation, is_reversed, out, threads),
        ElementType::S64 => combine::<i64>(x, operation, is_reversed, out, threads),
        ElementType::U32 => combine::<u32>(x, operation, is_reversed, out, threads),
        ElementType::U64 => combine::<u64>(x, operation, is_reversed, out, threads),
        other => Err(format!("elements of {other:?}")),
    }
}

fn combine<T: Accumulate + FromBytes + IntoBytes + Immutable>(
    x: &Arg<'_>,
    operation: Cumulative,
    is_reversed: bool,
    out: &mut Ret<'_>,
    threads: usize,
) -> Result<(), String> {
    Ok(kernels::cumulative::<T>(view(x, &sizes(x.dims))?, operation, is_reversed, numbers_mut(out)?, threads)?)
}

fn log_sum_exp<T: Accumulate<Total = f64> + FromBytes + IntoBytes + Immutable>(
    x: &Arg<'_>,
    is_reversed: bool,
    out: &mut Ret<'_>,
    threads: usize,
) -> Result<(), String> {
    Ok(kernels::cumulative_logsumexp::<T>(view(x, &sizes(x.dims))?, is_reversed, numbers_mut(out)?, threads)?)
}
