//! Scattered sums on CPU.
//!
//! XLA (xla-cpu-pjrt 0.0.1) writes the result of a scatter to memory, and updates it one position after the other. In the gradient of a
//! cross-entropy, whose updates are one element of each row, that takes longer than the softmax.

#[cfg(feature = "cpu-kernels")]
use super::kernels;
use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::gather::GatherScatterMode;
use crate::ops::primitive::scatter::{Scatter, ScatterKind};

/// The average number of float32 updates per element from which on they are added in float64. XLA adds the updates as
/// one chain, and converting so many updates takes less time than adding them.
const MIN_UPDATES: usize = 1024;

/// The minimum number of elements of an array of zeros that receives one update in each row.
const MIN_ELEMENTS: usize = 1 << 12;

/// Adds numbers to a vector by a kernel, and otherwise many updates of few elements in float64.
pub(super) fn lower(scatter: &Scatter, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    #[cfg(feature = "cpu-kernels")]
    if let Some(sums) = kernels::scatter_add::lower(scatter, cx, args, &outs[0]) {
        return Ok(Some(vec![sums]));
    }
    if let Some(selected) = select_updates(scatter, cx, args, &outs[0]) {
        return Ok(Some(vec![selected]));
    }
    let [elements, updates] = [args[0], args[2]].map(|v| cx.aval(v).size());
    if scatter.kind != ScatterKind::Add || outs[0].dtype != DType::F32 || updates < MIN_UPDATES * elements.max(1) {
        return Ok(None);
    }
    scatter.lower_in(DType::F64, cx, args, outs).map(Some)
}

/// Adds one update to each row of zeros, along any axis: a select of the element whose number is the row's index. XLA computes it in
/// the loops that use it, without writing it to memory.
fn select_updates(scatter: &Scatter, cx: &mut Lowering, args: &[Value], out: &Aval) -> Option<Value> {
    let &[axis] = scatter.dims.scatter_dims_to_operand_dims.as_slice() else { return None };
    let others: Vec<usize> = (0..out.rank()).filter(|d| *d != axis).collect();
    let is_element_of_row = scatter.dims.update_window_dims.is_empty()
        && scatter.dims.inserted_window_dims == [axis]
        && scatter.dims.operand_batching_dims == others
        && scatter.dims.scatter_indices_batching_dims == others;
    let updates = cx.aval(args[2]);
    // The indices along the axis are compared in their own type, which must have a number for each element.
    let has_indices = matches!(cx.dtype(args[1]), DType::I32 | DType::I64) && i32::try_from(out.size()).is_ok();
    if !matches!(scatter.kind, ScatterKind::Add) || scatter.mode == GatherScatterMode::Clip || !is_element_of_row {
        return None;
    }
    // Updates of other dimensions would need a sum. A partitioned array is left to the compiler, which knows scatters.
    let is_one_update = updates.rank() == out.rank() && updates.shape[axis] == 1 && !out.dtype.is_narrow();
    if !has_indices || !is_one_update || out.size() < MIN_ELEMENTS || !cx.is_zero(args[0]) || !cx.is_local() {
        return None;
    }
    let numbers = Aval::new(cx.dtype(args[1]), out.shape.clone());
    let indices = cx.op("stablehlo.reshape", &[args[1]], "", &updates.with_dtype(numbers.dtype));
    let dims: Vec<usize> = (0..out.rank()).collect();
    let indices = cx.broadcast_in_dim(indices, &dims, &numbers);
    let iota = cx.op("stablehlo.iota", &[], &format!("iota_dimension = {axis} : i64"), &numbers);
    let is_updated = cx.compare("EQ", iota, indices);
    let selected = cx.broadcast_in_dim(args[2], &dims, out);
    Some(cx.op("stablehlo.select", &[is_updated, selected, args[0]], "", out))
}
