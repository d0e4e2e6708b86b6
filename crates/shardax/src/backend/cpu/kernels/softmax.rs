//! Softmax of rows and columns. XLA (xla-cpu-pjrt 0.0.1) reads the whole array for each of its four steps.

use half::{bf16, f16};
use shardax_cpu_kernels::{self as kernels, HalfLogit, Logit};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{call, convert, is_enabled, is_worth, limits, numbers, numbers_mut, reshape, sizes, view, widened};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::softmax::Softmax;
use crate::shape::Shape;

pub(super) const TARGET: &str = "shardax_softmax";

/// Lowers a softmax over consecutive axes to a kernel, if it is worthwhile. Columns of half precision are converted to f32.
pub(crate) fn lower(softmax: &Softmax, cx: &mut Lowering, x: Value, out: &Aval) -> Option<Value> {
    let first = softmax.axes.iter().copied().min()?;
    let end = first + softmax.axes.len();
    let are_consecutive = end <= out.rank() && (first..end).all(|axis| softmax.axes.contains(&axis));
    let dtype = widened(out.dtype);
    if !are_consecutive || !matches!(dtype, DType::F32 | DType::F64) || out.size() == 0 {
        return None;
    }
    let [n, columns]: [usize; 2] = [&out.shape[first..end], &out.shape[end..]].map(|dims| dims.iter().product());
    let (limit, min_columns) = match (dtype, columns) {
        (_, 1) if dtype != out.dtype => (limits::SOFTMAX_HALF, 1),
        (DType::F64, _) => (limits::SOFTMAX_F64, limits::SOFTMAX_COLUMNS),
        (_, 1) => (limits::SOFTMAX, 1),
        _ => (limits::SOFTMAX_OF_COLUMNS, limits::SOFTMAX_COLUMNS),
    };
    let has_long_rows = columns > 1 || is_worth(n, limits::SOFTMAX_ROW);
    let has_wide_rows = columns == 1 || is_worth(columns, min_columns);
    if !has_long_rows || !has_wide_rows || !is_worth(out.size(), limit) || !is_enabled(cx) {
        return None;
    }
    let dtype = if columns == 1 { out.dtype } else { dtype };
    let matrices = Aval::new(dtype, Shape::from_slice(&[out.size() / (n * columns), n, columns]));
    let x = convert(cx, x, dtype);
    let x = reshape(cx, x, &matrices.shape);
    let y = call(cx, TARGET, &[x], &[], std::slice::from_ref(&matrices))[0];
    let y = convert(cx, y, out.dtype);
    Some(reshape(cx, y, &out.shape))
}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = super::number(frame, "threads")?;
    let (args, results) = frame.split();
    let ([x], [y]) = (args, results) else { return Err("not an operand and a result".into()) };
    match x.ty {
        ElementType::F32 => along_rows::<f32>(x, y, threads),
        ElementType::F64 => along_rows::<f64>(x, y, threads),
        ElementType::Bf16 => along_half_rows::<bf16>(x, y, threads),
        ElementType::F16 => along_half_rows::<f16>(x, y, threads),
        ty => Err(format!("elements of {ty:?}")),
    }
}

fn along_half_rows<T: HalfLogit + FromBytes + IntoBytes + Immutable>(
    x: &Arg<'_>,
    y: &mut Ret<'_>,
    threads: usize,
) -> Result<(), String> {
    let &[_, n, 1] = x.dims else { return Err(format!("columns of half precision, {:?}", x.dims)) };
    Ok(kernels::softmax_half::<T>(n as usize, numbers(x)?, numbers_mut(y)?, threads)?)
}

/// Computes the softmax along the second of three dimensions.
fn along_rows<T: Logit + FromBytes + IntoBytes + Immutable>(
    x: &Arg<'_>,
    y: &mut Ret<'_>,
    threads: usize,
) -> Result<(), String> {
    match x.dims {
        &[_, n, 1] => Ok(kernels::softmax::<T>(n as usize, numbers(x)?, numbers_mut(y)?, threads)?),
        dims => Ok(kernels::softmax_columns::<T>(view(x, &sizes(dims))?, numbers_mut(y)?, threads)?),
    }
}
