//! Sines, cosines, tangents, cube roots, powers and inverse error functions of f32, and logarithms,
//! exponentials minus 1, hyperbolic functions and error functions of f64. XLA (xla-cpu-pjrt 0.0.1) calls the C library for each element, or computes longer series.

use shardax_cpu_kernels as kernels;
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{call, convert, is_enabled, is_worth, limits, number, numbers, numbers_mut, widened};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::elementwise_rules::spread;

pub(super) const SIN: &str = "shardax_sin";
pub(super) const COS: &str = "shardax_cos";
pub(super) const TAN: &str = "shardax_tan";
pub(super) const LOG: &str = "shardax_log";
pub(super) const EXPM1: &str = "shardax_expm1";
pub(super) const SINH: &str = "shardax_sinh";
pub(super) const COSH: &str = "shardax_cosh";
pub(super) const ERF: &str = "shardax_erf";
pub(super) const CBRT: &str = "shardax_cbrt";
pub(super) const ERF_INV: &str = "shardax_erf_inv";
pub(super) const POW: &str = "shardax_pow";

/// Lowers a function to a kernel, if there is one and it is worthwhile.
pub(crate) fn lower(name: &str, cx: &mut Lowering, x: Value, out: &Aval) -> Option<Value> {
    let dtype = widened(out.dtype);
    let target = match (name, dtype) {
        ("sin", DType::F32 | DType::F64) => SIN,
        ("cos", DType::F32 | DType::F64) => COS,
        ("tan", DType::F32) => TAN,
        ("log", DType::F64) => LOG,
        ("expm1", DType::F64) => EXPM1,
        ("sinh", DType::F64) => SINH,
        ("cosh", DType::F64) => COSH,
        ("erf", DType::F64) => ERF,
        ("cbrt", DType::F32 | DType::F64) => CBRT,
        // Random normal numbers. The kernel has the approximation of XLA, and so JAX's numbers up to the last places.
        ("erf_inv_of_xla", DType::F32) => ERF_INV,
        _ => return None,
    };
    if !is_worth(out.size(), limits::ELEMENTWISE) || !is_enabled(cx) {
        return None;
    }
    let x = convert(cx, x, dtype);
    let y = call(cx, target, &[x], &[], &[out.with_dtype(dtype)])[0];
    Some(convert(cx, y, out.dtype))
}

/// Lowers powers to a kernel, if it is worthwhile. A scalar exponent is left to XLA, which replaces powers by products and square roots if
/// the exponent is a constant.
pub(crate) fn lower_power(cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    let has_scalar_exponent = cx.shape(args[1]).is_empty();
    let (is_worth, dtype) = (is_worth(out.size(), limits::ELEMENTWISE), widened(out.dtype));
    if has_scalar_exponent || !matches!(dtype, DType::F32 | DType::F64) || !is_worth || !is_enabled(cx) {
        return None;
    }
    let args = spread(cx, args, &out.shape);
    let args = [convert(cx, args[0], dtype), convert(cx, args[1], dtype)];
    let power = call(cx, POW, &args, &[], &[out.with_dtype(dtype)])[0];
    Some(convert(cx, power, out.dtype))
}

/// A kernel: operand, result and threads.
type Kernel<T> = fn(&[T], &mut [T], usize) -> Result<(), kernels::ShapeError>;

pub(super) fn handle_sin(frame: &mut CallFrame<'_>) -> Result<(), String> {
    handle(frame, kernels::sin::<f32>, Some(kernels::sin::<f64>))
}

pub(super) fn handle_cos(frame: &mut CallFrame<'_>) -> Result<(), String> {
    handle(frame, kernels::cos::<f32>, Some(kernels::cos::<f64>))
}

pub(super) fn handle_tan(frame: &mut CallFrame<'_>) -> Result<(), String> {
    handle(frame, kernels::tan, None)
}

pub(super) fn handle_log(frame: &mut CallFrame<'_>) -> Result<(), String> {
    handle_f64(frame, kernels::log)
}

pub(super) fn handle_expm1(frame: &mut CallFrame<'_>) -> Result<(), String> {
    handle_f64(frame, kernels::expm1)
}

pub(super) fn handle_sinh(frame: &mut CallFrame<'_>) -> Result<(), String> {
    handle_f64(frame, kernels::sinh)
}

pub(super) fn handle_cosh(frame: &mut CallFrame<'_>) -> Result<(), String> {
    handle_f64(frame, kernels::cosh)
}

pub(super) fn handle_erf(frame: &mut CallFrame<'_>) -> Result<(), String> {
    handle_f64(frame, kernels::erf)
}

pub(super) fn handle_cbrt(frame: &mut CallFrame<'_>) -> Result<(), String> {
    handle(frame, kernels::cbrt::<f32>, Some(kernels::cbrt::<f64>))
}

pub(super) fn handle_erf_inv(frame: &mut CallFrame<'_>) -> Result<(), String> {
    handle(frame, kernels::erf_inv, None)
}

pub(super) fn handle_pow(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let (args, results) = frame.split();
    match (args, results) {
        ([x, y], [out]) if out.ty == ElementType::F32 => {
            Ok(kernels::pow(numbers(x)?, numbers(y)?, numbers_mut(out)?, threads)?)
        }
        ([x, y], [out]) if out.ty == ElementType::F64 => {
            Ok(kernels::pow_f64(numbers(x)?, numbers(y)?, numbers_mut(out)?, threads)?)
        }
        _ => Err("not two operands and a result of f32 or f64".into()),
    }
}

/// Handles a call of a function of f64.
fn handle_f64(frame: &mut CallFrame<'_>, kernel: Kernel<f64>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let (args, results) = frame.split();
    match (args, results) {
        ([x], [y]) if y.ty == ElementType::F64 => run::<f64>(x, y, threads, kernel),
        _ => Err("not an operand and a result of f64".into()),
    }
}

/// Handles a call of a function of f32 and f64.
fn handle(frame: &mut CallFrame<'_>, of_f32: Kernel<f32>, of_f64: Option<Kernel<f64>>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let (args, results) = frame.split();
    let ([x], [y]) = (args, results) else { return Err("not an operand and a result".into()) };
    match (y.ty, of_f64) {
        (ElementType::F32, _) => run(x, y, threads, of_f32),
        (ElementType::F64, Some(of_f64)) => run(x, y, threads, of_f64),
        (other, _) => Err(format!("elements of {other:?}")),
    }
}

fn run<T: FromBytes + IntoBytes + Immutable>(
    x: &Arg<'_>,
    y: &mut Ret<'_>,
    threads: usize,
    kernel: Kernel<T>,
) -> Result<(), String> {
    Ok(kernel(numbers(x)?, numbers_mut(y)?, threads)?)
}
