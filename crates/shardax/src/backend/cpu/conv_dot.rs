//! Convolutions of few input features as one matrix multiplication.
//!
//! The CPU plugin's convolution (xla-cpu-pjrt 0.0.1) packs patches in runs of features, which takes longer than the
//! multiplication if a run is only three features long. Here all patches are built by slices, concatenated along the
//! features, and multiplied as a matrix: f32[128,32,32,3] by a 3×3 kernel to 32 features takes 4.9 ms on one core
//! instead of 8.4. Convolutions of f64 have patches too, because the plugin computes them
//! without vectors.

use smallvec::smallvec;

use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::primitive::conv::ConvGeneralDilated;
use crate::ops::primitive::dot::DotGeneral;
use crate::ops::primitive::window;
use crate::shape::{Shape, size};

/// From this many features, the plugin's convolution is as fast.
const MIN_PLUGIN_FEATURES: usize = 8;

/// The bounds of patches of f64: short ones take as long as the plugin's convolution, and many would fill the memory.
const MIN_DEPTH_OF_F64: usize = 16;
const MAX_PATCHES_OF_F64: usize = 1 << 25;

/// Larger windows would need too many slices.
const MAX_WINDOW: usize = 64;

/// Lowers the convolution `conv` to a matmul if this is faster: channels last, for f32 with few features and patches that
/// are no larger than the result, and for f64.
pub(super) fn lower(conv: &ConvGeneralDilated, cx: &mut Lowering, args: &[Value], out: &Aval) -> Result<Option<Value>> {
    let (lhs, rhs) = (cx.aval(args[0]), cx.aval(args[1]));
    let last = lhs.rank() - 1;
    let plain = conv.feature_group_count == 1
        && conv.batch_group_count == 1
        && conv.window.iter().all(|w| w.base_dilation == 1)
        && matches!(out.dtype, DType::F32 | DType::F64)
        && [&lhs, &rhs, out].iter().all(|a| a.dtype == out.dtype && size(&a.shape) > 0);
    // Batch, spatial dimensions, features; a kernel's spatial dimensions, its input and its output features.
    let channels_last = [&conv.lhs, &conv.out].iter().all(|s| s[..2] == [0, last] && is_consecutive(&s[2..], 1))
        && conv.rhs[..2] == [last, last - 1]
        && is_consecutive(&conv.rhs[2..], 0);
    let (features, window) = (out.shape[last], rhs.shape[..last - 1].iter().product::<usize>());
    let depth = window * lhs.shape[last];
    let rows = size(&out.shape) / features.max(1);
    // The plugin has no fast convolution of f64.
    let is_slow =
        out.dtype == DType::F64 && depth >= MIN_DEPTH_OF_F64 && rows.saturating_mul(depth) <= MAX_PATCHES_OF_F64;
    let is_few = lhs.shape[last] < MIN_PLUGIN_FEATURES && depth <= features;
    let worth_it = window <= MAX_WINDOW && (is_slow || is_few && out.dtype == DType::F32);
    // The compiler partitions a convolution better, so this form is for local programs only.
    if !(plain && channels_last && worth_it && cx.is_local()) {
        return Ok(None);
    }

    let patches = patches(conv, cx, args[0], &rhs.shape, &out.shape);
    let patches = cx.op("stablehlo.reshape", &[patches], "", &matrix_type(out.dtype, rows, depth));
    let kernel = cx.op("stablehlo.reshape", &[args[1]], "", &matrix_type(out.dtype, depth, features));
    let dot = DotGeneral {
        lhs_contract: smallvec![1],
        rhs_contract: smallvec![0],
        lhs_batch: smallvec![],
        rhs_batch: smallvec![],
        preferred: None,
        precision: conv.precision,
        out: None,
        is_rhs_sparse: false,
    };
    let product = cx.apply(&dot, &[patches, kernel], &[matrix_type(out.dtype, rows, features)])?[0];
    Ok(Some(cx.op("stablehlo.reshape", &[product], "", out)))
}

/// The patches at each position, as features in the order of the kernel's elements.
fn patches(conv: &ConvGeneralDilated, cx: &mut Lowering, x: Value, kernel: &[usize], out: &[usize]) -> Value {
    let padded = conv.window.iter().any(|w| (w.low, w.high) != (0, 0));
    let mut joined = if padded { window::pad(cx, x, (1..).zip(conv.window.iter().copied())) } else { x };
    let mut shape = cx.shape(joined).clone();
    let (rank, last) = (shape.len(), shape.len() - 1);
    // Slices one dimension after the other, with the last dimension's elements innermost. This needs fewer slices than
    // one per element.
    for (i, w) in conv.window.iter().enumerate().rev() {
        let (mut starts, mut limits, mut strides) = (vec![0; rank], shape.to_vec(), vec![1; rank]);
        strides[i + 1] = w.stride;
        shape[i + 1] = out[i + 1];
        let mut parts = Vec::with_capacity(kernel[i]);
        for k in 0..kernel[i] {
            starts[i + 1] = k * w.window_dilation;
            limits[i + 1] = starts[i + 1] + (out[i + 1] - 1) * w.stride + 1;
            parts.push(cx.slice(joined, &starts, &limits, &strides));
        }
        shape[last] *= kernel[i];
        let full_type = Aval::new(cx.dtype(x), shape.clone());
        joined = cx.op("stablehlo.concatenate", &parts, &format!("dimension = {last} : i64"), &full_type);
    }
    joined
}

/// Returns `true` for `first`, `first + 1`, ….
fn is_consecutive(dims: &[usize], first: usize) -> bool {
    dims.iter().copied().eq(first..first + dims.len())
}

fn matrix_type(dtype: DType, rows: usize, columns: usize) -> Aval {
    Aval::new(dtype, Shape::from_slice(&[rows, columns]))
}
