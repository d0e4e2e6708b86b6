//! The largest elements of rows. XLA (xla-cpu-pjrt 0.0.1) sorts the indices of each row.

use shardax_cpu_kernels as kernels;
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::CallFrame;

use super::{call, is_enabled, is_worth, limits, numbers, numbers_mut, reshape};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::shape::Shape;

pub(super) const TARGET: &str = "shardax_top_k";

/// Lowers the largest elements of f32 to a kernel, if it is worthwhile. `outs` are the types of the elements and of their indices.
pub(crate) fn lower(cx: &mut Lowering, x: Value, outs: &[Aval]) -> Option<Vec<Value>> {
    let aval = cx.aval(x);
    let (n, k) = (*aval.shape.last()?, *outs[0].shape.last()?);
    if aval.dtype != DType::F32 || k == 0 || !is_worth(aval.size(), limits::TOP_K) || !is_enabled(cx) {
        return None;
    }
    let rows = aval.size() / n;
    let x = reshape(cx, x, &[rows, n]);
    let results: Vec<Aval> = outs.iter().map(|out| Aval::new(out.dtype, Shape::from_slice(&[rows, k]))).collect();
    let results = call(cx, TARGET, &[x], &[], &results);
    Some(results.into_iter().zip(outs).map(|(result, out)| reshape(cx, result, &out.shape)).collect())
}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = super::number(frame, "threads")?;
    let (args, results) = frame.split();
    let ([x], [values, indices]) = (args, results) else { return Err("not an operand and two results".into()) };
    let (&[_, n], &[_, k], ElementType::F32) = (x.dims, values.dims, x.ty) else {
        return Err(format!("elements of {:?}, {:?} to {:?}", x.ty, x.dims, values.dims));
    };
    let [n, k] = [n, k].map(|size| size as usize);
    Ok(kernels::top_k(n, k, numbers(x)?, numbers_mut(values)?, numbers_mut(indices)?, threads)?)
}
