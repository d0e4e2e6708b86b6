//! Reductions over small windows on CPU, as combinations of slices: one slice for each element of the window.

use super::widen;
use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::primitive::reduce::Reducer;
use crate::ops::primitive::reduce_window::{MAX_SLICES, ReduceWindow};
use crate::shape::size;

pub(super) fn lower(of: &ReduceWindow, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if of.count() > MAX_SLICES || size(&outs[0].shape) == 0 {
        return Ok(None);
    }
    let combine = |cx: &mut Lowering, x: Value, out: &Aval| combine(of, cx, x, out);
    let is_compared = matches!(of.reducer, Reducer::Max | Reducer::Min);
    if !is_compared || outs[0].dtype != DType::Bf16 || !cx.is_local() {
        return of.lower_by(cx, args[0], &outs[0], combine).map(Some);
    }
    // Float32 has all numbers of bfloat16. XLA would convert the operands and the result of each comparison.
    let x = widen(cx, args, Some(DType::F32))[0];
    let result = of.lower_by(cx, x, &outs[0].with_dtype(DType::F32), combine)?;
    Ok(Some(vec![cx.op("stablehlo.convert", &result, "", &outs[0])]))
}

/// Pads `x` and combines its slices. Each slice has one element of every window.
fn combine(of: &ReduceWindow, cx: &mut Lowering, x: Value, out: &Aval) -> Result<Value> {
    let init = cx.constant(of.reducer.identity(out.dtype), &Aval::scalar(out.dtype));
    let padded = cx.pad(x, init, &of.pad_config());
    let mut result = None;
    for part in of.parts(&out.shape) {
        let slice = cx.slice(padded, &part.start, &part.limit, &part.strides);
        result = Some(match result {
            None => slice,
            Some(result) => of.reducer.combine(cx, result, slice, out),
        });
    }
    result.ok_or_else(|| {
        err!(Value, "a windowed reduction got an empty window").help("every window dimension must be at least 1")
    })
}
