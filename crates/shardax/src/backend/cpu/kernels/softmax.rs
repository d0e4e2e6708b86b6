//! Softmax of rows. XLA (xla-cpu-pjrt 0.0.1) reads the whole array for each of its four steps.

use shardax_cpu_kernels as kernels;
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::CallFrame;

use super::{call, convert, is_enabled, is_worth, limits, numbers, numbers_mut, reshape, widened};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::softmax::Softmax;
use crate::shape::Shape;

pub(super) const TARGET: &str = "shardax_softmax";

/// Lowers a softmax over the last axes to a kernel of f32 or f64, if it is worthwhile.
pub(crate) fn lower(softmax: &Softmax, cx: &mut Lowering, x: Value, out: &Aval) -> Option<Value> {
    let first = out.rank().checked_sub(softmax.axes.len())?;
    let are_last = (first..out.rank()).all(|axis| softmax.axes.contains(&axis));
    let n: usize = out.shape[first..].iter().product();
    let dtype = widened(out.dtype);
    let limit = if dtype == DType::F64 { limits::SOFTMAX_F64 } else { limits::SOFTMAX };
    let is_worth = is_worth(out.size(), limit) && is_worth(n, limits::SOFTMAX_ROW);
    if !are_last || !matches!(dtype, DType::F32 | DType::F64) || !is_worth || !is_enabled(cx) {
        return None;
    }
    let rows = Aval::new(dtype, Shape::from_slice(&[out.size() / n, n]));
    let x = convert(cx, x, dtype);
    let x = reshape(cx, x, &rows.shape);
    let y = call(cx, TARGET, &[x], &[], std::slice::from_ref(&rows))[0];
    let y = convert(cx, y, out.dtype);
    Some(reshape(cx, y, &out.shape))
}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = super::number(frame, "threads")?;
    let (args, results) = frame.split();
    let ([x], [y]) = (args, results) else { return Err("not an operand and a result".into()) };
    match (x.dims, x.ty) {
        (&[_, n], ElementType::F32) => Ok(kernels::softmax::<f32>(n as usize, numbers(x)?, numbers_mut(y)?, threads)?),
        (&[_, n], ElementType::F64) => Ok(kernels::softmax::<f64>(n as usize, numbers(x)?, numbers_mut(y)?, threads)?),
        (dims, ty) => Err(format!("elements of {ty:?}, {dims:?}")),
    }
}
