//! Remainders of floating-point numbers. XLA (xla-cpu-pjrt 0.0.1) calls the C library for each element.

use shardax_cpu_kernels::{self as kernels, Remainder};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{call, convert, is_enabled, is_worth, limits, number, numbers, numbers_mut, widened};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::elementwise_rules::spread;

pub(super) const TARGET: &str = "shardax_remainder";

/// Lowers the remainders to a kernel, if it is worthwhile.
pub(crate) fn lower(cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    let dtype = widened(out.dtype);
    let is_known = matches!(dtype, DType::F32 | DType::F64);
    if !is_known || !is_worth(out.size(), limits::REMAINDER) || !is_enabled(cx) {
        return None;
    }
    let args = spread(cx, args, &out.shape);
    let args = [convert(cx, args[0], dtype), convert(cx, args[1], dtype)];
    let result = call(cx, TARGET, &args, &[], &[out.with_dtype(dtype)])[0];
    Some(convert(cx, result, out.dtype))
}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let (args, results) = frame.split();
    let ([x, y], [out]) = (args, results) else { return Err("not two operands and a result".into()) };
    match out.ty {
        ElementType::F32 => divide::<f32>(x, y, out, threads),
        ElementType::F64 => divide::<f64>(x, y, out, threads),
        other => Err(format!("elements of {other:?}")),
    }
}

fn divide<T: Remainder + FromBytes + IntoBytes + Immutable>(
    x: &Arg<'_>,
    y: &Arg<'_>,
    out: &mut Ret<'_>,
    threads: usize,
) -> Result<(), String> {
    Ok(kernels::remainder::<T>(numbers(x)?, numbers(y)?, numbers_mut(out)?, threads)?)
}
