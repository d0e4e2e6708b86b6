//! Scattered sums on CPU.

#[cfg(feature = "cpu-kernels")]
use super::kernels;
use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::scatter::{Scatter, ScatterKind};

/// The average number of float32 updates per element from which on they are added in float64. XLA adds the updates as
/// one chain, and converting so many updates takes less time than adding them.
const MIN_UPDATES: usize = 1024;

/// Adds numbers to a vector by a kernel, and otherwise many updates of few elements in float64.
pub(super) fn lower(scatter: &Scatter, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    #[cfg(feature = "cpu-kernels")]
    if let Some(sums) = kernels::scatter_add::lower(scatter, cx, args, &outs[0]) {
        return Ok(Some(vec![sums]));
    }
    let [elements, updates] = [args[0], args[2]].map(|v| cx.aval(v).size());
    if scatter.kind != ScatterKind::Add || outs[0].dtype != DType::F32 || updates < MIN_UPDATES * elements.max(1) {
        return Ok(None);
    }
    scatter.lower_in(DType::F64, cx, args, outs).map(Some)
}
