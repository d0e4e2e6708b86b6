//! Sorts. XLA (xla-cpu-pjrt 0.0.1) sorts several operands as tuples, through a comparator that it compiles. It sorts
//! integers several times as fast, but still slower than the standard library.

use shardax_cpu_kernels::{self as kernels, KeyOrder, MAX_KEY_BITS, SortKey, SortOperand};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{call, is_enabled, is_worth, limits, number, numbers, numbers_mut, transpose};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::sort::Sort;
use crate::shape::Shape;

/// Sorts several operands, or floats, by keys.
pub(super) const TARGET: &str = "shardax_sort";
/// Sorts one operand of integers.
pub(super) const INTEGERS: &str = "shardax_sort_integers";

/// Lowers the sort to a kernel, if it is worthwhile.
pub(crate) fn lower(sort: &Sort, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Option<Vec<Value>> {
    let shape = outs[0].shape.clone();
    let (n, size) = (shape[sort.dimension], shape.iter().product());
    let keys = &outs[..sort.num_keys];
    let is_supported = match outs {
        // Single operands of other types are sorted as integers with the same order.
        [out] => out.dtype.is_integer() && out.dtype.bits() >= 8,
        _ => {
            keys.iter().all(|key| key_order(key.dtype.element_type()).is_some())
                && keys.iter().map(|key| key.dtype.bits().max(8)).sum::<usize>() <= MAX_KEY_BITS
                && outs.iter().all(|out| out.dtype == DType::Bool || out.dtype.bits() >= 8)
        }
    };
    if !is_supported || n < 2 || n > u32::MAX as usize || !is_worth(size, limits::SORT) || !is_enabled(cx) {
        return None;
    }
    // The kernels sort rows.
    let last = shape.len() - 1;
    let order: Vec<usize> = (0..=last).filter(|d| *d != sort.dimension).chain([sort.dimension]).collect();
    let rows: Vec<Value> = args.iter().map(|v| transpose(cx, *v, &order)).collect();
    let sorted_shape: Shape = order.iter().map(|d| shape[*d]).collect();
    let sorted: Vec<Aval> = outs.iter().map(|out| Aval::new(out.dtype, sorted_shape.clone())).collect();
    let target = if outs.len() == 1 { INTEGERS } else { TARGET };
    let sorted = call(cx, target, &rows, &[("keys", sort.num_keys as i64)], &sorted);
    let back: Vec<usize> = (0..=last)
        .map(|d| match d.cmp(&sort.dimension) {
            std::cmp::Ordering::Less => d,
            std::cmp::Ordering::Equal => last,
            std::cmp::Ordering::Greater => d - 1,
        })
        .collect();
    Some(sorted.into_iter().map(|v| transpose(cx, v, &back)).collect())
}

/// The order of keys of this type, if the kernel knows it.
fn key_order(ty: ElementType) -> Option<KeyOrder> {
    Some(match ty {
        ElementType::Pred | ElementType::U8 | ElementType::U16 | ElementType::U32 | ElementType::U64 => {
            KeyOrder::Unsigned
        }
        ElementType::S8 | ElementType::S16 | ElementType::S32 | ElementType::S64 => KeyOrder::Signed,
        ElementType::F16 => KeyOrder::Float { infinity: half::f16::INFINITY.to_bits().into() },
        ElementType::Bf16 => KeyOrder::Float { infinity: half::bf16::INFINITY.to_bits().into() },
        ElementType::F32 => KeyOrder::Float { infinity: f32::INFINITY.to_bits().into() },
        ElementType::F64 => KeyOrder::Float { infinity: f64::INFINITY.to_bits() },
        _ => return None,
    })
}

/// Handles a sort by keys.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let (keys, threads) = (number(frame, "keys")?, number(frame, "threads")?);
    let (args, results) = frame.split();
    let orders = args.iter().take(keys).map(|arg| key_order(arg.ty).ok_or(format!("keys of {:?}", arg.ty)));
    let orders = orders.collect::<Result<Vec<_>, _>>()?;
    let operands: Vec<_> =
        args.iter().map(|arg| SortOperand { data: arg.data, width: arg.ty.bits().div_ceil(8) }).collect();
    let mut results: Vec<_> = results.iter_mut().map(Ret::data_to_overwrite).collect();
    let n = row_length(args)?;
    Ok(kernels::sort(n, &operands, &orders, &mut results, threads)?)
}

/// Handles a sort of one operand of integers.
pub(super) fn handle_integers(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let (args, results) = frame.split();
    let ([x], [out]) = (args, results) else { return Err("not an operand and a result".into()) };
    match out.ty {
        ElementType::S8 => sort_integers::<i8>(x, out, threads),
        ElementType::U8 => sort_integers::<u8>(x, out, threads),
        ElementType::S16 => sort_integers::<i16>(x, out, threads),
        ElementType::U16 => sort_integers::<u16>(x, out, threads),
        ElementType::S32 => sort_integers::<i32>(x, out, threads),
        ElementType::U32 => sort_integers::<u32>(x, out, threads),
        ElementType::S64 => sort_integers::<i64>(x, out, threads),
        ElementType::U64 => sort_integers::<u64>(x, out, threads),
        other => Err(format!("elements of {other:?}")),
    }
}

fn sort_integers<T: SortKey + FromBytes + IntoBytes + Immutable>(
    x: &Arg<'_>,
    out: &mut Ret<'_>,
    threads: usize,
) -> Result<(), String> {
    let n = row_length(std::slice::from_ref(x))?;
    Ok(kernels::sort_keys::<T>(n, numbers(x)?, numbers_mut(out)?, threads)?)
}

fn row_length(args: &[Arg<'_>]) -> Result<usize, String> {
    let last = args.first().and_then(|arg| arg.dims.last()).ok_or("no operand with dimensions")?;
    usize::try_from(*last).map_err(|e| format!("a row of {last} elements: {e}"))
}
