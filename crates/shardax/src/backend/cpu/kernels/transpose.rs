//! Transposes whose results are read from memory. XLA (xla-cpu-pjrt 0.0.1) writes one element after the other.

use shardax_cpu_kernels::{self as kernels, Movable, Movement};
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{call_with, is_always_used, is_enabled, is_worth, limits, number, numbers_mut, sizes, view};
use crate::core::lower::{Lowering, ResultUse, Value};
use crate::core::program::Aval;
use crate::ops::primitive::shape_ops::Transpose;

pub(super) const TARGET: &str = "shardax_transpose";

/// The bytes of a page of memory.
const PAGE: usize = 1 << 12;

/// Lowers a transpose to a kernel, if its result is read from memory and the kernel is worthwhile.
pub(crate) fn lower(transpose: &Transpose, cx: &mut Lowering, x: Value, out: &Aval) -> Option<Value> {
    let result_use = cx.result_use();
    let is_known = !out.dtype.is_key() && matches!(out.dtype.bits(), 8 | 16 | 32 | 64 | 128);
    let bytes = out.size().saturating_mul(out.dtype.byte_size());
    // The kernel has not been measured for values that a loop does not change. XLA would move its call out of the loop, see
    // `transposed_before_loop` in `matmul`.
    let is_candidate = result_use != ResultUse::Fused && is_known && !cx.is_invariant(x);
    if !is_candidate || !is_worth(bytes, limits::TRANSPOSE) || !is_enabled(cx) {
        return None;
    }
    let movement = kernels::movement(cx.shape(x), &transpose.permutation).ok()?;
    let is_always_used = is_always_used() && result_use == ResultUse::Memory;
    if !moves_fast(movement, out.dtype.byte_size(), result_use) && !is_always_used {
        return None;
    }
    let permutation: Vec<String> = transpose.permutation.iter().map(usize::to_string).collect();
    let permutation = format!("permutation = array<i64: {}>, ", permutation.join(", "));
    Some(call_with(cx, TARGET, &[x], &permutation, std::slice::from_ref(out))[0])
}

/// Returns `true` if the kernel moves elements of so many bytes faster than XLA's loop.
fn moves_fast(movement: Movement, width: usize, result_use: ResultUse) -> bool {
    match movement {
        Movement::Rows { size, count, stride } => {
            // XLA divides indices by the sizes, which are shifts for powers of 2.
            let is_slow = width < 4 || !size.is_power_of_two();
            let are_near = count >= limits::TRANSPOSE_NEAR_ROWS && stride * width <= PAGE;
            // XLA's loop over rows is fast enough to compute other operations in it.
            result_use == ResultUse::Memory && size * width >= limits::TRANSPOSE_ROW && (is_slow || are_near)
        }
        Movement::Matrices { rows, columns, stride } => {
            rows.min(columns) >= limits::TRANSPOSE_SQUARE && rows > rows_in_first_cache(stride * width)
        }
    }
}

/// The number of rows at a distance of `stride` bytes whose lines fit the processor's first cache together, which has 8 lines for each
/// of 64 sets. XLA reads an element of each row, then the next element of each row, and so on.
fn rows_in_first_cache(stride: usize) -> usize {
    const WAYS: usize = 8;
    const LINE: usize = 64;
    // The lines of a page are in different sets, so that rows share a set if their distance is a multiple of a page.
    let distance = 1 << stride.trailing_zeros().min(PAGE.trailing_zeros());
    WAYS * (PAGE / distance).min(PAGE / LINE)
}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let permutation = frame.attr("permutation").and_then(|a| a.as_i64s()).ok_or("the call has no permutation")?;
    let permutation = sizes(&permutation);
    let (args, results) = frame.split();
    let ([x], [y]) = (args, results) else { return Err("not an operand and a result".into()) };
    match x.ty.bits() {
        8 => transpose::<u8>(x, &permutation, y, threads),
        16 => transpose::<u16>(x, &permutation, y, threads),
        32 => transpose::<u32>(x, &permutation, y, threads),
        64 => transpose::<u64>(x, &permutation, y, threads),
        128 => transpose::<u128>(x, &permutation, y, threads),
        bits => Err(format!("elements of {bits} bits")),
    }
}

fn transpose<T: Movable + FromBytes + IntoBytes + Immutable>(
    x: &Arg<'_>,
    permutation: &[usize],
    y: &mut Ret<'_>,
    threads: usize,
) -> Result<(), String> {
    Ok(kernels::transpose::<T>(view(x, &sizes(x.dims))?, permutation, numbers_mut(y)?, threads)?)
}
