//! TPUs: the operations that their compiler lacks.

use super::rules::{Lowered, Rules};
use crate::core::lower::{Lowering, Platform, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::fft::Fft;

pub(super) fn add(rules: &mut Rules) {
    rules.add(Platform::Tpu, fft);
}

/// There are no Fourier transforms in 64 bits.
fn fft(fft: &Fft, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let dtype = cx.dtype(args[0]);
    if outs[0].size() == 0 || !matches!(dtype, DType::F64 | DType::Complex128) {
        return Ok(None);
    }
    let narrow = if dtype == DType::F64 { "float32" } else { "complex64" };
    let way_round = format!("convert the operand to {narrow} with `astype`, or transform it on the CPU's devices");
    Err(cx.platform.lacks(&format!("{} of {dtype}", fft.name()), &way_round))
}
