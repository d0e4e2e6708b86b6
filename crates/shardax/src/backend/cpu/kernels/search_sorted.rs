//! Positions of values in ascending arrays. XLA (xla-cpu-pjrt 0.0.1) computes every step of the bisection for all values, and
//! gathers an element for each.

use shardax_cpu_kernels::{self as kernels, SearchKey};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable};

use super::{call, convert, is_enabled, is_worth, limits, number, numbers, numbers_mut, widened};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::search_sorted::SearchSorted;

pub(super) const TARGET: &str = "shardax_search_sorted";

/// Lowers the search to a kernel, if it is worthwhile.
pub(crate) fn lower(search: &SearchSorted, cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Vec<Value>> {
    // A wider type has the same order.
    let dtype = match cx.dtype(args[0]) {
        DType::I8 | DType::I16 | DType::U8 | DType::U16 => DType::I32,
        dtype => widened(dtype),
    };
    let is_known = matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::U32 | DType::U64);
    let is_converted = dtype != cx.dtype(args[0]);
    let elements = cx.aval(args[0]).size();
    // Converting more elements than the search reads would take longer than the search.
    let is_read = elements > 0 && (!is_converted || elements <= out.size());
    if !is_known || !is_read || out.dtype != DType::I32 || !is_worth(out.size(), limits::SEARCH) || !is_enabled(cx) {
        return None;
    }
    let args = [convert(cx, args[0], dtype), convert(cx, args[1], dtype)];
    Some(call(cx, TARGET, &args, &[("counts_equal", search.counts_equal.into())], std::slice::from_ref(out)))
}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let (counts_equal, threads) = (number(frame, "counts_equal")? != 0, number(frame, "threads")?);
    let (args, results) = frame.split();
    let ([sorted, values], [counts]) = (args, results) else { return Err("not two operands and a result".into()) };
    match sorted.ty {
        ElementType::F32 => search::<f32>(sorted, values, counts_equal, counts, threads),
        ElementType::F64 => search::<f64>(sorted, values, counts_equal, counts, threads),
        ElementType::S32 => search::<i32>(sorted, values, counts_equal, counts, threads),
        ElementType::S64 => search::<i64>(sorted, values, counts_equal, counts, threads),
        ElementType::U32 => search::<u32>(sorted, values, counts_equal, counts, threads),
        ElementType::U64 => search::<u64>(sorted, values, counts_equal, counts, threads),
        other => Err(format!("elements of {other:?}")),
    }
}

fn search<T: SearchKey + FromBytes + Immutable>(
    sorted: &Arg<'_>,
    values: &Arg<'_>,
    counts_equal: bool,
    counts: &mut Ret<'_>,
    threads: usize,
) -> Result<(), String> {
    let (sorted, values) = (numbers(sorted)?, numbers(values)?);
    Ok(kernels::search_sorted::<T>(sorted, values, counts_equal, numbers_mut(counts)?, threads)?)
}
