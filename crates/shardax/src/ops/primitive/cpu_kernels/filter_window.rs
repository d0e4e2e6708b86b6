//! The calls that compute gradients with respect to a filter: how their operands lie, and what the window meets.
//!
//! Operands are `[images, depth, height, width, features]`, results `[depth, height, width, features, outputs]`; missing
//! spatial dimensions have size 1.

use shardax_cpu_kernels::{self as kernels, FilterWindow, SPATIAL, ShapeError, View};
use shardax_pjrt::ffi::CallFrame;

use super::conv::{Conv, order};
use super::{call, number, numbers_mut, reshape, sizes, transpose, view};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::ops::primitive::conv::Spec;
use crate::shape::Shape;

/// The target of gradients by matmuls. XLA (xla-cpu-pjrt 0.0.1) computes them as convolutions with a window as large as
/// the image, which takes up to five times as long.
pub(super) const TARGET: &str = "shardax_filter_gradient";

/// The target of gradients of one filter for each feature. XLA computes them element by element, which takes fourteen
/// times as long.
pub(super) const DEPTHWISE: &str = "shardax_depthwise_filter_gradient";

/// Lowers the convolution to a call of `target`.
pub(super) fn lower(target: &str, of: &Conv<'_>, cx: &mut Lowering, args: &[Value]) -> Value {
    let conv = of.conv;
    let missing = SPATIAL - conv.window.len();
    let mut operand = |v: Value, spec: &Spec| {
        let v = transpose(cx, v, &order(spec, 1));
        let mut shape = cx.shape(v).to_vec();
        shape.splice(1..1, std::iter::repeat_n(1, missing));
        reshape(cx, v, &shape)
    };
    let operands = [operand(args[0], &conv.lhs), operand(args[1], &conv.rhs)];
    let places = [&conv.out[2..], &conv.out[..2]].concat();
    let shape: Shape = std::iter::repeat_n(1, missing).chain(places.iter().map(|&d| of.out.shape[d])).collect();
    let mut numbers = Vec::with_capacity(3 * SPATIAL);
    for d in 0..SPATIAL {
        let w = d.checked_sub(missing).map(|d| conv.window[d]);
        numbers.push((STRIDE[d], w.map_or(1, |w| w.stride as i64)));
        numbers.push((DILATION[d], w.map_or(1, |w| w.window_dilation as i64)));
        numbers.push((LOW[d], w.map_or(0, |w| w.low)));
    }
    let result = call(cx, target, &operands, &numbers, &[Aval::new(of.out.dtype, shape)])[0];
    of.result(cx, result, &places)
}

/// The attributes of a call.
const STRIDE: [&str; SPATIAL] = ["stride_0", "stride_1", "stride_2"];
const DILATION: [&str; SPATIAL] = ["dilation_0", "dilation_1", "dilation_2"];
const LOW: [&str; SPATIAL] = ["low_0", "low_1", "low_2"];

/// A kernel: the window, its operand and itself, the result, and the number of threads.
type Kernel = fn(&FilterWindow, View<'_, f32>, View<'_, f32>, &mut [f32], usize) -> Result<(), ShapeError>;

/// Handles a call of [`TARGET`].
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    run(kernels::filter_gradient, frame)
}

/// Handles a call of [`DEPTHWISE`], whose result is `[positions.., 1, features]`.
pub(super) fn handle_depthwise(frame: &mut CallFrame<'_>) -> Result<(), String> {
    run(kernels::depthwise_filter_gradient, frame)
}

fn run(kernel: Kernel, frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let mut of =
        FilterWindow { stride: [1; SPATIAL], dilation: [1; SPATIAL], low: [0; SPATIAL], positions: [1; SPATIAL] };
    for d in 0..SPATIAL {
        of.stride[d] = number(frame, STRIDE[d])?;
        of.dilation[d] = number(frame, DILATION[d])?;
        of.low[d] = frame.attr(LOW[d]).and_then(|a| a.as_i64()).ok_or("the call has no padding")?;
    }
    let (args, results) = frame.split();
    let ([x, window], [out]) = (args, results) else { return Err("not two operands and a result".into()) };
    let positions = sizes(out.dims);
    of.positions = *positions.first_chunk().ok_or_else(|| format!("too few dimensions: {positions:?}"))?;
    let (x_shape, window_shape) = (sizes(x.dims), sizes(window.dims));
    Ok(kernel(&of, view(x, &x_shape)?, view(window, &window_shape)?, numbers_mut(out)?, threads)?)
}
