//! Convolutions on CPU.

#[cfg(feature = "cpu-kernels")]
use super::kernels;
use super::{conv_depthwise, conv_dot, conv_few, integers};
use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::conv::ConvGeneralDilated;
use crate::ops::primitive::window::{self, WindowDim};
use crate::precision::Precision;
use crate::shape::size;

/// Chooses a kernel in Rust, or a form that XLA computes fast.
pub(super) fn lower(conv: &ConvGeneralDilated, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let filter = cx.shape(args[1]);
    let depth = size(filter) / filter[conv.rhs[0]].max(1);
    if let Some(args) = integers::in_f32(cx, args, depth, &outs[0]) {
        // Winograd's algorithm has intermediate numbers that are no integers.
        let conv = ConvGeneralDilated { preferred: None, precision: Some(Precision::Highest), ..conv.clone() };
        let sums = cx.apply(&conv, &args, &[outs[0].with_dtype(DType::F32)])?;
        return Ok(Some(vec![integers::from_f32(cx, sums[0], &outs[0])]));
    }
    #[cfg(feature = "cpu-kernels")]
    if let Some(result) = kernels::conv::lower(conv, cx, args, &outs[0])? {
        return Ok(Some(vec![result]));
    }
    if let Some(product) = conv_dot::lower(conv, cx, args, &outs[0])? {
        return Ok(Some(vec![product]));
    }
    if let Some(sum) = conv_depthwise::lower(conv, cx, args, &outs[0]) {
        return Ok(Some(vec![sum]));
    }
    if let Some(results) = conv_few::lower(conv, cx, args, &outs[0])? {
        return Ok(Some(results));
    }
    // The plugin's convolution is wrong for negative padding, so the edges are cut off before.
    if conv.window.iter().any(|w| w.low < 0 || w.high < 0) && cx.has_quirk("convolution-with-negative-padding") {
        let spatial = conv.lhs[2..].iter().copied();
        let padded = window::pad(cx, args[0], spatial.zip(conv.window.iter().copied()));
        let window = conv.window.iter().map(|w| WindowDim { low: 0, high: 0, base_dilation: 1, ..*w }).collect();
        return cx.apply(&ConvGeneralDilated { window, ..conv.clone() }, &[padded, args[1]], outs).map(Some);
    }
    Ok(None)
}
