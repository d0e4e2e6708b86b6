//! Sums over neighbouring dimensions that are not the last, as sums over rows (`docs/plugin.md`).

use shardax_cpu_kernels as kernels;
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::CallFrame;

use super::{call, is_enabled, is_worth, limits, number, numbers_mut, reshape, sizes, view};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::shape::Shape;

pub(super) const TARGET: &str = "shardax_column_sums";

/// Lowers the sum over these sorted axes to a kernel, if that is worthwhile.
pub(in super::super) fn lower(axes: &[usize], cx: &mut Lowering, x: Value, out: &Aval) -> Option<Value> {
    let shape = cx.shape(x).clone();
    let (first, end) = (*axes.first()?, axes.last()? + 1);
    let size = |dims: &[usize]| dims.iter().product::<usize>();
    let [batch, rows, columns] = [size(&shape[..first]), size(&shape[first..end]), size(&shape[end..])];
    let are_neighbours = end - first == axes.len();
    let is_tall = super::is_always_used() || rows.min(columns) >= limits::COLUMN_SUM_SIDE;
    let work = batch.saturating_mul(rows).saturating_mul(columns);
    let is_float = matches!(out.dtype, DType::F32 | DType::F64);
    if !is_float
        || !are_neighbours
        || end == shape.len()
        || !is_tall
        || !is_worth(work, limits::COLUMN_SUM)
        || !is_enabled(cx)
    {
        return None;
    }
    let x = reshape(cx, x, &[batch, rows, columns]);
    let sums = call(cx, TARGET, &[x], &[], &[Aval::new(out.dtype, Shape::from_slice(&[batch, columns]))])[0];
    Some(reshape(cx, sums, &out.shape))
}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let (args, results) = frame.split();
    let ([x], [out]) = (args, results) else { return Err("not an operand and a result".into()) };
    let shape = sizes(x.dims);
    let made = match out.ty {
        ElementType::F64 => kernels::column_sums::<f64>(view(x, &shape)?, numbers_mut(out)?, threads),
        _ => kernels::column_sums::<f32>(view(x, &shape)?, numbers_mut(out)?, threads),
    };
    Ok(made?)
}
