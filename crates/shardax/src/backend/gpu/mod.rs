//! GPUs: cuDNN's kernels, and workarounds for operations that cuDNN and Triton lack.

mod cudnn;
mod dot;

use super::host_calls;
use super::pallas;
use super::rules::{Lowered, Rules};
use crate::core::lower::{Lowering, Platform, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::callback::function::register_on_device;
use crate::ops::callback::primitive::HostCall;
use crate::ops::primitive::conv::ConvGeneralDilated;

pub(super) fn add(rules: &mut Rules) {
    const GPU: Platform = Platform::Gpu;
    rules.add(GPU, cudnn::forward);
    rules.add(GPU, cudnn::backward);
    rules.add(GPU, dot::lower);
    rules.add(GPU, conv);
    rules.add(GPU, pallas::on_gpu);
    rules.add(GPU, host_call);
}

/// Calls the implementation on the device, or the implementation on the host after its arguments are copied there. On
/// the host, an element of less than a byte has a full byte.
fn host_call(call: &HostCall, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let function = match &call.cuda {
        Some(function) => function,
        None if call.is_ffi() => {
            let way_round = "add a GPU implementation with `.cuda(…)`, or use a `pure_callback`, whose arguments are copied to the host";
            return Err(call.lacks(cx, way_round));
        }
        None if call.has_parts_of_bytes(cx, args) => {
            return Err(call.lacks(cx, "convert operands and results of 4 bits and fewer to int8 or bfloat16"));
        }
        None => &call.function,
    };
    register_on_device()?;
    host_calls::host_call(call, function, cx, args, outs)
}

/// cuDNN has no convolutions of complex numbers, and convolutions of integers only for int8.
fn conv(conv: &ConvGeneralDilated, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Lowered {
    let dtype = cx.dtype(args[0]);
    if dtype.is_complex() {
        return cx.expand(args, |xs| Ok(vec![conv.by_real_parts(&xs[0], &xs[1])])).map(Some);
    }
    if dtype.is_float() || dtype == DType::I8 {
        return Ok(None);
    }
    let way_round = "convert the operands to float32 with `astype`, which is exact up to 2^24";
    Err(cx.platform.lacks(&format!("{} of {dtype}", conv.name()), way_round))
}
