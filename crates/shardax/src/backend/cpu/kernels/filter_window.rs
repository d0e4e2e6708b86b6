//! The calls that compute convolutions and gradients with respect to a filter: the order of their operands, and the
//! window.
//!
//! Images are `[images, depth, height, width, features]`, filters `[depth, height, width, features, outputs]`. Operands
//! of a gradient are `[images, depth, height, width, features]`, results `[depth, height, width, features, outputs]`.
//! Missing spatial dimensions have size 1.

use shardax_cpu_kernels::{self as kernels, FeatureGroups, FilterWindow, SPATIAL, ShapeError, View};
use shardax_pjrt::ffi::CallFrame;

use super::conv::{Conv, image_order, order};
use super::{call, number, numbers_mut, reshape, sizes, transpose, view};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::ops::primitive::window::WindowDim;
use crate::shape::Shape;

/// The target of gradients by matmuls. XLA (xla-cpu-pjrt 0.0.1) computes such gradients as convolutions with a window
/// as large as the image, which takes up to five times as long.
pub(super) const TARGET: &str = "shardax_filter_gradient";

/// The target of gradients of one filter for each feature. XLA computes such gradients element by element, which takes
/// fourteen times as long.
pub(super) const DEPTHWISE: &str = "shardax_depthwise_filter_gradient";

/// The target of convolutions.
pub(super) const CONVOLUTION: &str = "shardax_convolution";

/// The targets of convolutions with a window of 3 × 3 by Winograd's algorithm, and of gradients of their filters.
pub(super) const WINOGRAD: &str = "shardax_winograd_convolution";
pub(super) const WINOGRAD_GRADIENT: &str = "shardax_winograd_filter_gradient";

/// The targets of convolutions of features in groups, and of gradients of their filters. XLA computes both element by element,
/// which takes five to ten times as long.
pub(super) const GROUPS: &str = "shardax_grouped_convolution";
pub(super) const GROUPS_GRADIENT: &str = "shardax_grouped_filter_gradient";

/// Lowers a convolution of features in groups.
pub(super) fn lower_groups(of: &Conv<'_>, cx: &mut Lowering, args: &[Value]) -> Value {
    let conv = of.conv;
    let is_channels_first = is_channels_first(&conv.lhs) && is_channels_first(&conv.out);
    let filter = [&conv.rhs[2..], &[conv.rhs[1], conv.rhs[0]]].concat();
    let (images, first) = image_order(&conv.lhs, is_channels_first);
    let operands = [with_all_dims(cx, args[0], &images, first), with_all_dims(cx, args[1], &filter, 0)];
    let mut numbers = numbers(of, [DILATION, STRIDE]);
    numbers.extend((0..SPATIAL).map(|d| (BASE[d], window(of, d).map_or(1, |w| w.base_dilation as i64))));
    numbers.push((FEATURE_GROUPS, conv.feature_group_count as i64));
    numbers.push((CHANNELS_FIRST, i64::from(is_channels_first)));
    let (places, first) = image_order(&conv.out, is_channels_first);
    called(GROUPS, of, cx, &operands, &numbers, (&places, first))
}

/// Lowers the gradient of the filter of such a convolution.
pub(super) fn lower_groups_gradient(of: &Conv<'_>, cx: &mut Lowering, args: &[Value]) -> Value {
    let conv = of.conv;
    let swapped = [&conv.lhs, &conv.rhs].map(|spec| [&[spec[1], spec[0]], &spec[2..]].concat());
    let is_channels_first = swapped.iter().all(|spec| is_channels_first(spec));
    let operands = [0, 1].map(|i| {
        let (order, first) = image_order(&swapped[i], is_channels_first);
        with_all_dims(cx, args[i], &order, first)
    });
    let mut numbers = numbers(of, [STRIDE, DILATION]);
    numbers.push((FEATURE_GROUPS, conv.batch_group_count as i64));
    numbers.push((CHANNELS_FIRST, i64::from(is_channels_first)));
    let places = [&conv.out[2..], &conv.out[..2]].concat();
    called(GROUPS_GRADIENT, of, cx, &operands, &numbers, (&places, 0))
}

/// Returns `true` if an image has its channels right after the batch, and then its spatial dimensions in order.
fn is_channels_first(spec: &[usize]) -> bool {
    spec.iter().copied().eq(0..spec.len())
}

/// Lowers the gradient `of` to a call of `target`.
pub(super) fn lower(target: &str, of: &Conv<'_>, cx: &mut Lowering, args: &[Value]) -> Value {
    let conv = of.conv;
    let operands =
        [with_all_dims(cx, args[0], &order(&conv.lhs, 1), 1), with_all_dims(cx, args[1], &order(&conv.rhs, 1), 1)];
    let places = [&conv.out[2..], &conv.out[..2]].concat();
    let numbers = numbers(of, [STRIDE, DILATION]);
    called(target, of, cx, &operands, &numbers, (&places, 0))
}

/// Lowers a convolution to a call of `target`, which has the same window as the filter's gradient.
pub(super) fn lower_convolution(target: &str, of: &Conv<'_>, cx: &mut Lowering, args: &[Value]) -> Value {
    let conv = of.conv;
    let filter = [&conv.rhs[2..], &[conv.rhs[1], conv.rhs[0]]].concat();
    let operands = [with_all_dims(cx, args[0], &order(&conv.lhs, 0), 1), with_all_dims(cx, args[1], &filter, 0)];
    let mut numbers = numbers(of, [DILATION, STRIDE]);
    numbers.extend((0..SPATIAL).map(|d| (BASE[d], window(of, d).map_or(1, |w| w.base_dilation as i64))));
    called(target, of, cx, &operands, &numbers, (&order(&conv.out, 0), 1))
}

/// The window as attributes of a call; the parameters name the attributes for stride and dilation.
fn numbers(of: &Conv<'_>, [stride, dilation]: [[&'static str; SPATIAL]; 2]) -> Vec<(&'static str, i64)> {
    (0..SPATIAL)
        .flat_map(|d| {
            let w = window(of, d);
            [
                (stride[d], w.map_or(1, |w| w.stride as i64)),
                (dilation[d], w.map_or(1, |w| w.window_dilation as i64)),
                (LOW[d], w.map_or(0, |w| w.low)),
            ]
        })
        .collect()
}

/// The window at these positions, for a convolution whose strides and dilations are equal.
pub(super) fn window_of(of: &Conv<'_>, positions: [usize; SPATIAL]) -> FilterWindow {
    let [a, b, c] = [0, 1, 2].map(|d| window(of, d).unwrap_or(WindowDim::new(1)));
    FilterWindow {
        stride: [a, b, c].map(|w| w.stride),
        dilation: [a, b, c].map(|w| w.window_dilation),
        low: [a, b, c].map(|w| w.low),
        positions,
    }
}

/// The window along a dimension of the call; `None` for a missing dimension.
fn window(of: &Conv<'_>, d: usize) -> Option<WindowDim> {
    d.checked_sub(SPATIAL - of.conv.window.len()).map(|d| of.conv.window[d])
}

/// Transposes `v`, and inserts the missing spatial dimensions at `first`.
fn with_all_dims(cx: &mut Lowering, v: Value, order: &[usize], first: usize) -> Value {
    let v = transpose(cx, v, order);
    let mut shape = cx.shape(v).to_vec();
    shape.splice(first..first, std::iter::repeat_n(1, SPATIAL + 2 - order.len()));
    reshape(cx, v, &shape)
}

/// Writes the call. `places` are the dimensions of the result in the order of the call; missing dimensions are inserted
/// at `first`.
fn called(
    target: &str,
    of: &Conv<'_>,
    cx: &mut Lowering,
    operands: &[Value],
    numbers: &[(&str, i64)],
    (places, first): (&[usize], usize),
) -> Value {
    let mut shape: Vec<usize> = places.iter().map(|&d| of.out.shape[d]).collect();
    shape.splice(first..first, std::iter::repeat_n(1, SPATIAL + 2 - places.len()));
    let result = Aval::new(of.out.dtype, Shape::from_slice(&shape));
    let result = call(cx, target, operands, numbers, &[result])[0];
    of.result(cx, result, places)
}

/// The attributes of a call.
pub(super) const STRIDE: [&str; SPATIAL] = ["stride_0", "stride_1", "stride_2"];
pub(super) const DILATION: [&str; SPATIAL] = ["dilation_0", "dilation_1", "dilation_2"];
pub(super) const LOW: [&str; SPATIAL] = ["low_0", "low_1", "low_2"];
/// The number of groups, and how images of features in groups are laid out.
const FEATURE_GROUPS: &str = "groups";
const CHANNELS_FIRST: &str = "channels_first";
/// The base dilation of a convolution.
const BASE: [&str; SPATIAL] = ["base_0", "base_1", "base_2"];

/// A kernel: it takes the window, the operand, the filter or cotangent, the result, and the number of threads.
type Kernel = fn(&FilterWindow, View<'_, f32>, View<'_, f32>, &mut [f32], usize) -> Result<(), ShapeError>;

/// Handles a call of [`TARGET`].
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    run(kernels::filter_gradient, frame)
}

/// Handles a call of [`WINOGRAD_GRADIENT`].
pub(super) fn handle_winograd_gradient(frame: &mut CallFrame<'_>) -> Result<(), String> {
    run(kernels::winograd_filter_gradient, frame)
}

/// Handles a call of [`DEPTHWISE`], whose result is `[positions.., 1, features]`.
pub(super) fn handle_depthwise(frame: &mut CallFrame<'_>) -> Result<(), String> {
    run(kernels::depthwise_filter_gradient, frame)
}

fn run(kernel: Kernel, frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let mut of = read(frame)?;
    let (args, results) = frame.split();
    let ([x, window], [out]) = (args, results) else { return Err("not two operands and a result".into()) };
    of.positions = spatial(&sizes(out.dims), 0)?;
    let (x_shape, window_shape) = (sizes(x.dims), sizes(window.dims));
    Ok(kernel(&of, view(x, &x_shape)?, view(window, &window_shape)?, numbers_mut(out)?, threads)?)
}

/// Handles a call of [`CONVOLUTION`].
pub(super) fn handle_convolution(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let mut base = [1; SPATIAL];
    for (base, name) in base.iter_mut().zip(BASE) {
        *base = number(frame, name)?;
    }
    convolve(frame, |of, x, filter, size, out, threads| kernels::convolution(of, base, x, filter, size, out, threads))
}

/// Handles a call of [`WINOGRAD`].
pub(super) fn handle_winograd(frame: &mut CallFrame<'_>) -> Result<(), String> {
    convolve(frame, kernels::winograd_convolution)
}

/// Handles a call of [`GROUPS`].
pub(super) fn handle_groups(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let mut groups = read_groups(frame)?;
    for (base, name) in groups.base.iter_mut().zip(BASE) {
        *base = number(frame, name)?;
    }
    let (args, results) = frame.split();
    let ([x, filter], [out]) = (args, results) else { return Err("not two operands and a result".into()) };
    let (x_shape, filter_shape) = (sizes(x.dims), sizes(filter.dims));
    groups.window.positions = spatial(&filter_shape, 0)?;
    let size = spatial(&sizes(out.dims), if groups.is_channels_first { 2 } else { 1 })?;
    Ok(groups.convolution(view(x, &x_shape)?, view(filter, &filter_shape)?, size, numbers_mut(out)?, threads)?)
}

/// Handles a call of [`GROUPS_GRADIENT`].
pub(super) fn handle_groups_gradient(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let mut groups = read_groups(frame)?;
    let (args, results) = frame.split();
    let ([x, window], [out]) = (args, results) else { return Err("not two operands and a result".into()) };
    groups.window.positions = spatial(&sizes(out.dims), 0)?;
    let (x_shape, window_shape) = (sizes(x.dims), sizes(window.dims));
    Ok(groups.filter_gradient(view(x, &x_shape)?, view(window, &window_shape)?, numbers_mut(out)?, threads)?)
}

/// The groups of a call, without the positions of the window and the base dilation.
fn read_groups(frame: &CallFrame<'_>) -> Result<FeatureGroups, String> {
    Ok(FeatureGroups {
        window: read(frame)?,
        base: [1; SPATIAL],
        groups: number(frame, FEATURE_GROUPS)?,
        is_channels_first: number(frame, CHANNELS_FIRST)? != 0,
    })
}

/// Calls a kernel with the window, the image, the filter, the spatial dimensions of the result, the result, and the
/// number of threads.
fn convolve(
    frame: &mut CallFrame<'_>,
    kernel: impl FnOnce(
        &FilterWindow,
        View<'_, f32>,
        View<'_, f32>,
        [usize; SPATIAL],
        &mut [f32],
        usize,
    ) -> Result<(), ShapeError>,
) -> Result<(), String> {
    let threads = number(frame, "threads")?;
    let mut of = read(frame)?;
    let (args, results) = frame.split();
    let ([x, filter], [out]) = (args, results) else { return Err("not two operands and a result".into()) };
    let (x_shape, filter_shape) = (sizes(x.dims), sizes(filter.dims));
    of.positions = spatial(&filter_shape, 0)?;
    let size = spatial(&sizes(out.dims), 1)?;
    let (x, filter) = (view(x, &x_shape)?, view(filter, &filter_shape)?);
    Ok(kernel(&of, x, filter, size, numbers_mut(out)?, threads)?)
}

/// The window of a call, without its positions.
pub(super) fn read(frame: &CallFrame<'_>) -> Result<FilterWindow, String> {
    let mut of =
        FilterWindow { stride: [1; SPATIAL], dilation: [1; SPATIAL], low: [0; SPATIAL], positions: [1; SPATIAL] };
    for d in 0..SPATIAL {
        of.stride[d] = number(frame, STRIDE[d])?;
        of.dilation[d] = number(frame, DILATION[d])?;
        of.low[d] = frame.attr(LOW[d]).and_then(|a| a.as_i64()).ok_or("the call has no padding")?;
    }
    Ok(of)
}

/// The spatial dimensions, starting at dimension `at`.
pub(super) fn spatial(shape: &[usize], at: usize) -> Result<[usize; SPATIAL], String> {
    let dims = shape.get(at..).and_then(|shape| shape.first_chunk());
    dims.copied().ok_or_else(|| format!("too few dimensions: {shape:?}"))
}
