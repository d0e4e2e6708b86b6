//! Convolutions of very few features as sums of products with numbers.
//!
//! The CPU plugin (xla-cpu-pjrt 0.0.1) packs patches for a matrix multiplication, although the filter has only a few columns: two filters of
//! 3×3 for f32[16,1,128,128] take 16 ms. Here each output feature is a sum of shifted planes, each multiplied with one number of the filter,
//! in one loop of vectors that takes 0.3 ms.

use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::conv::ConvGeneralDilated;
use crate::ops::primitive::matrix::is_half;
use crate::ops::primitive::window;
use crate::shape::{Shape, size};

/// The maximum number of products of all loops. A product takes a tenth of the time of the plugin's patches.
const MAX_PRODUCTS: usize = 96;

/// The smallest number of outputs: below, a program starts more loops than it saves.
const MIN_POSITIONS: usize = 256;

/// Lowers the convolution `conv` to such sums, in f32. Infinities and NaN in a filter meet padding as zeros here, as in the plugin's
/// convolution of f32.
pub(super) fn lower(conv: &ConvGeneralDilated, cx: &mut Lowering, args: &[Value], out: &Aval) -> Lowered {
    let (lhs, rhs) = (cx.aval(args[0]), cx.aval(args[1]));
    let [images, features] = [lhs.shape[conv.lhs[0]], lhs.shape[conv.lhs[1]]];
    let outputs = rhs.shape[conv.rhs[0]];
    let plain = conv.feature_group_count == 1
        && conv.batch_group_count == 1
        && [&lhs, &rhs, out].iter().all(|a| a.dtype == out.dtype && size(&a.shape) > 0)
        && (out.dtype == DType::F32 || is_half(out.dtype));
    let positions = size(&out.shape) / outputs.max(1);
    // The compiler partitions a convolution better, so this form is for local programs only.
    let is_pointwise = conv.rhs[2..].iter().all(|&d| rhs.shape[d] == 1);
    if !(plain && !is_pointwise && size(&rhs.shape) <= MAX_PRODUCTS && positions >= MIN_POSITIONS && cx.is_local()) {
        return Ok(None);
    }
    let [x, filter] = [args[0], args[1]].map(|v| convert(cx, v, DType::F32));
    let spatial = conv.lhs[2..].iter().copied();
    let padded = window::pad(cx, x, spatial.zip(conv.window.iter().copied()));
    let x = transpose(cx, padded, &conv.lhs);
    let filter = transpose(cx, filter, &conv.rhs);
    // Each product reads it.
    let x = if x == args[0] { x } else { cx.materialize(x) };
    let mut plane: Shape = conv.out.iter().map(|&d| out.shape[d]).collect();
    (plane[0], plane[1]) = (images, 1);
    let plane = Aval::new(DType::F32, plane);
    let window = cx.shape(filter)[2..].to_vec();
    let mut planes = Vec::with_capacity(outputs);
    for output in 0..outputs {
        let mut sum = None;
        for at in 0..features * size(&window) {
            let (feature, place) = (at / size(&window), places(&window, at % size(&window)));
            let product = product(conv, cx, [x, filter], [output, feature], &place, &plane);
            sum = Some(match sum {
                Some(sum) => cx.op("stablehlo.add", &[sum, product], "", &plane),
                None => product,
            });
        }
        planes.extend(sum);
    }
    let mut joined = plane.clone();
    joined.shape[1] = outputs;
    let joined =
        if outputs == 1 { planes[0] } else { cx.op("stablehlo.concatenate", &planes, "dimension = 1 : i64", &joined) };
    // From the batch, the features and the spatial dimensions to their places in the result.
    let mut order = vec![0; conv.out.len()];
    conv.out.iter().enumerate().for_each(|(i, &d)| order[d] = i);
    let result = transpose(cx, joined, &order);
    Ok(Some(vec![convert(cx, result, out.dtype)]))
}

fn convert(cx: &mut Lowering, v: Value, dtype: DType) -> Value {
    let aval = cx.aval(v);
    if aval.dtype == dtype { v } else { cx.op("stablehlo.convert", &[v], "", &aval.with_dtype(dtype)) }
}

fn transpose(cx: &mut Lowering, v: Value, order: &[usize]) -> Value {
    if order.iter().enumerate().all(|(i, &d)| i == d) {
        return v;
    }
    let aval = cx.aval(v);
    let shape: Shape = order.iter().map(|&d| aval.shape[d]).collect();
    let attr = format!("permutation = {}", crate::core::lower::ints(order));
    cx.op("stablehlo.transpose", &[v], &attr, &Aval::new(aval.dtype, shape))
}

/// Computes the position in the window of element number `at`.
fn places(window: &[usize], mut at: usize) -> Vec<usize> {
    let mut place = vec![0; window.len()];
    for (place, size) in place.iter_mut().zip(window).rev() {
        (*place, at) = (at % size, at / size);
    }
    place
}

/// The product of one number of the filter with the shifted planes of a feature.
fn product(
    conv: &ConvGeneralDilated,
    cx: &mut Lowering,
    [x, filter]: [Value; 2],
    [output, feature]: [usize; 2],
    place: &[usize],
    out: &Aval,
) -> Value {
    let mut limits = cx.shape(x).to_vec();
    let (mut starts, mut strides) = (vec![0; limits.len()], vec![1; limits.len()]);
    (starts[1], limits[1]) = (feature, feature + 1);
    for (i, (w, &k)) in conv.window.iter().zip(place).enumerate() {
        starts[i + 2] = k * w.window_dilation;
        limits[i + 2] = starts[i + 2] + (out.shape[i + 2] - 1) * w.stride + 1;
        strides[i + 2] = w.stride;
    }
    let met = cx.slice(x, &starts, &limits, &strides);
    let first: Vec<usize> = [output, feature].iter().chain(place).copied().collect();
    let after: Vec<usize> = first.iter().map(|i| i + 1).collect();
    let number = cx.slice(filter, &first, &after, &vec![1; first.len()]);
    let number = cx.op("stablehlo.reshape", &[number], "", &Aval::scalar(DType::F32));
    let number = cx.broadcast_in_dim(number, &[], out);
    cx.op("stablehlo.multiply", &[met, number], "", out)
}
