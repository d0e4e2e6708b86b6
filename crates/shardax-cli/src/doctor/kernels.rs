//! Checks of fused kernels against plain operations on the same device.

use shardax::error::Result;
use shardax::experimental::pallas::{self as pl, BlockSpec, Ref};
use shardax::prelude::*;
use shardax_nn::{AttentionOptions, Implementation};

use super::checks::check_close;

/// The implementation of attention by the platform's kernels.
fn fused() -> Result<Option<Implementation>> {
    Ok(match shardax::devices()?.first().map(Device::platform) {
        Some("cuda") => Some(Implementation::Cudnn),
        Some("tpu") => Some(Implementation::Flash),
        _ => None,
    })
}

/// Causal attention in bfloat16 with its gradient, by the platform's kernels.
pub fn attention() -> Result<String> {
    let fused = fused()?;
    // Plain operations in bfloat16, which are the default in debug builds, round the scores and the weights too: their
    // gradients are up to 0.06 off.
    let plain = attention_with_gradient(Some(Implementation::Xla), DType::F32)?;
    let worst = check_close(&attention_with_gradient(fused, DType::Bf16)?, plain.iter().map(|&x| f64::from(x)), 1e-1)?;
    let name = fused.map_or_else(|| "the default".to_owned(), |fused| format!("{fused:?}"));
    Ok(format!("by {name}, with gradient: {worst:.1e} from plain operations in float32"))
}

/// Returns the result of attention and its gradients, one after the other.
fn attention_with_gradient(implementation: Option<Implementation>, dtype: DType) -> Result<Vec<f32>> {
    let qkv = [0, 1, 2].map(|seed| random::normal(random::key(seed), [2, 1024, 4, 64]));
    let [q, k, v] = qkv.map(|x| x.astype(DType::Bf16).astype(dtype));
    let options = AttentionOptions::new().is_causal(true).implementation(implementation);
    let argnums = (Arg::<0>, Arg::<1>, Arg::<2>);
    let ((_, y), (dq, dk, dv)) = jit(value_and_grad(move |q: Array, k: Array, v: Array| {
        let y = options.dot_product_attention(q, k, v).astype(DType::F32);
        (y.square().sum(..), y)
    })
    .argnums(argnums)
    .has_aux())
    .call((q, k, v))?;
    let mut flat = Vec::new();
    for part in [y, dq, dk, dv] {
        flat.extend(part.astype(DType::F32).to_vec::<f32>()?);
    }
    Ok(flat)
}

fn rows() -> BlockSpec {
    BlockSpec::new([64, 128], |[i]| (i, 0))
}

fn softmax([x, o]: [Ref; 2]) -> Result<()> {
    let x = x.get();
    let exponentials = (&x - x.max_keepdims(1)).exp();
    o.set(&exponentials / exponentials.sum_keepdims(1))
}

fn matmul([x, y, o]: [Ref; 3]) -> Result<()> {
    o.set(pl::dot(&x.get(), &y.get()).maximum(0))
}

/// Kernels in Rust.
pub fn kernels() -> Result<String> {
    let (x, y) = (random::normal(random::key(0), [256, 128]), random::normal(random::key(1), [128, 128]));
    let result = shape_dtype_struct([256, 128], DType::F32);
    let call = pl::pallas_call(softmax, result.clone()).grid([4]).in_specs([rows()]).out_specs([rows()]);
    let softmax_error = largest_error(call.call([&x])?, shardax::nn::softmax(&x, -1), 1e-5)?;
    // Every block of rows uses the entire right matrix.
    let right = BlockSpec::new([128, 128], |[_]| (0, 0));
    let call = pl::pallas_call(matmul, result).grid([4]).in_specs([rows(), right]).out_specs([rows()]);
    // Matmuls of float32 are not exact on GPUs and TPUs.
    let matmul_error = largest_error(call.call([&x, &y])?, x.dot(&y).maximum(0), 1e-1)?;
    Ok(format!("softmax {softmax_error:.1e}, matmul {matmul_error:.1e} from plain operations"))
}

/// The largest error of a kernel's result. Fails if it is above the tolerance.
fn largest_error(result: Array, expected: Array, tolerance: f64) -> Result<f64> {
    let expected = expected.to_vec::<f32>()?;
    check_close(&result.to_vec::<f32>()?, expected.iter().map(|&x| f64::from(x)), tolerance)
}
