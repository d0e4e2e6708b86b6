//! TPUs: flash attention, and the operations that their compiler lacks.

pub(super) mod flash;

use super::pallas;
use super::rules::{Lowered, Rules};
use crate::core::lower::{Lowering, Platform, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::collective::gather::PsumScatter;
use crate::ops::collective::reduce::AllReduce;
use crate::ops::primitive::fft::Fft;
use crate::ops::primitive::reduce::Reducer;

pub(super) fn add(rules: &mut Rules) {
    const TPU: Platform = Platform::Tpu;
    rules.add(TPU, flash::forward);
    rules.add(TPU, flash::backward);
    rules.add(TPU, fft);
    rules.add(TPU, all_reduce);
    rules.add(TPU, psum_scatter);
    rules.add(TPU, pallas::on_tpu);
}

/// TPUs have no Fourier transforms in 64 bits.
fn fft(fft: &Fft, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let dtype = cx.dtype(args[0]);
    if outs[0].size() == 0 || !matches!(dtype, DType::F64 | DType::Complex128) {
        return Ok(None);
    }
    let narrow = if dtype == DType::F64 { "float32" } else { "complex64" };
    let way_round = format!("convert the operand to {narrow} with `astype`, or transform it on the CPU's devices");
    Err(cx.platform.lacks(&format!("{} of {dtype}", fft.name()), &way_round))
}

/// The compiler aborts the process for groups of different sizes, and has no maxima and products in 64 bits, so both
/// are errors.
fn all_reduce(of: &AllReduce, cx: &mut Lowering, _args: &[Value], outs: &[Aval]) -> Lowered {
    if of.axes.groups.is_some() && of.axes.size == 0 {
        let operation = format!("{} over groups of different sizes", of.name());
        return Err(cx.platform.lacks(&operation, "use groups of equal size, or fill them up with zeros"));
    }
    if of.reducer != Reducer::Sum && outs[0].dtype.bits() == 64 {
        let operation = format!("{} of {}", of.name(), outs[0].dtype);
        return Err(cx.platform.lacks(&operation, "convert the operand to 32 bits, or reduce what `all_gather` gives"));
    }
    Ok(None)
}

/// TPUs have no scattered sums in 64 bits.
fn psum_scatter(_: &PsumScatter, cx: &mut Lowering, _args: &[Value], outs: &[Aval]) -> Lowered {
    if !matches!(outs[0].dtype, DType::F64 | DType::Complex64) {
        return Ok(None);
    }
    let way_round = "take this device's part of a `psum`, or scatter real numbers of 32 bits";
    Err(cx.platform.lacks(&format!("psum_scatter of {}", outs[0].dtype), way_round))
}

/// The compiler aborts the process for partitioned complex128, so it is an error.
pub(super) fn check_text(cx: &Lowering, text: &str, num_partitions: usize) -> Result<()> {
    if num_partitions <= 1 || !text.contains("complex<f64>") {
        return Ok(());
    }
    let way_round = "compute in complex64, or with the real and the imaginary parts, or on one device";
    Err(cx.platform.lacks("complex128 over several devices", way_round))
}
