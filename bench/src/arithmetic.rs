//! Benchmarks of arithmetic on one device.

use shardax::prelude::*;

use crate::clock::{Timing, measure};
use crate::data::uniform;

pub fn matmul_2048() -> Result<Timing> {
    let (a, b) = (uniform(&[2048, 2048], 0)?, uniform(&[2048, 2048], 1)?);
    let f = jit(|a: Array, b: Array| a.matmul(b));
    measure(|| block_until_ready(f.call((&a, &b))?))
}

pub fn fused_elementwise_16m() -> Result<Timing> {
    let a = uniform(&[16 << 20], 0)?;
    let f = jit(|a: Array| a.tanh() * &a + (-&a * &a).exp());
    measure(|| block_until_ready(f.call(&a)?))
}

pub fn reduce_axis0_16m() -> Result<Timing> {
    let a = uniform(&[4096, 4096], 0)?;
    let f = jit(|a: Array| a.sum(0));
    measure(|| block_until_ready(f.call(&a)?))
}

pub fn matmul_f64_1024() -> Result<Timing> {
    let f = jit(|a: Array, b: Array| a.matmul(b));
    let [a, b] = [uniform(&[1024, 1024], 0)?, uniform(&[1024, 1024], 1)?].map(|x| x.astype(DType::F64));
    measure(|| block_until_ready(f.call((&a, &b))?))
}

/// Some rows of 4,096 numbers times weights `[4096, 8192]` of this dtype, as a decoder has them. Of bfloat16 the rows are in bfloat16 too,
/// int8 is converted to float32.
pub fn weights(rows: usize, dtype: DType) -> Result<Timing> {
    let (x, w) = (uniform(&[rows, 4096], 0)?, uniform(&[4096, 8192], 1)?);
    let w = if dtype == DType::I8 { w * 127 } else { w }.astype(dtype);
    let f = jit(move |x: Array, w: Array| match dtype {
        DType::Bf16 => x.astype(DType::Bf16).dot(w),
        _ => x.dot(w.astype(DType::F32)),
    });
    measure(|| block_until_ready(f.call((&x, &w))?))
}

pub fn batched_matmul() -> Result<Timing> {
    let (a, b) = (uniform(&[64, 128, 64], 0)?, uniform(&[64, 64, 128], 1)?);
    let f = jit(|a: Array, b: Array| a.matmul(b));
    measure(|| block_until_ready(f.call((&a, &b))?))
}

/// The gradient of the sum of squares of `f`.
fn slope(f: fn(Array) -> Array, shape: &[usize]) -> Result<Timing> {
    let x = uniform(shape, 0)?;
    let f = jit(grad(move |x: Array| f(x).square().sum(..)));
    measure(|| block_until_ready(f.call(&x)?))
}

pub fn softmax_grad() -> Result<Timing> {
    slope(|x| shardax::nn::softmax(x, -1), &[2048, 1024])
}

pub fn layernorm_grad() -> Result<Timing> {
    slope(|x| (&x - x.mean(-1).expand_dims(-1)) / (x.var(-1).expand_dims(-1) + 1e-6).sqrt(), &[2048, 1024])
}

pub fn embedding_grad() -> Result<Timing> {
    let table = uniform(&[32768, 256], 0)?;
    let rows: Vec<i32> = (0..4096).map(|i| i * 7919 % 32768).collect();
    let rows = Array::from_vec(rows, &[4096])?;
    let f = jit(grad(|table: Array, rows: Array| table.get(rows).square().sum(..)));
    measure(|| block_until_ready(f.call((&table, &rows))?))
}

pub fn scan_1000() -> Result<Timing> {
    let (w, x) = (uniform(&[64, 64], 0)?, uniform(&[64], 1)?);
    let f = jit(|w: Array, x: Array| scan_n(|x: Array| (w.matmul(x).tanh(), ()), x, 1000));
    measure(|| block_until_ready(f.call((&w, &x))?))
}

/// A convolution of 32 images with 32×32 pixels and 64 features, channels last, optionally with its gradients.
pub fn conv(kernel: usize, stride: usize, groups: usize, gradient: bool) -> Result<Timing> {
    let (x, w) = (uniform(&[32, 32, 32, 64], 0)?, uniform(&[kernel, kernel, 64 / groups, 64], 1)?);
    let options = lax::ConvOptions::new().dimension_numbers("NHWC", "HWIO", "NHWC").feature_group_count(groups);
    let f = move |x: Array, w: Array| {
        lax::conv_general_dilated(x, w, [stride, stride], lax::Padding::Same, options.clone())
    };
    if !gradient {
        let f = jit(f);
        return measure(|| block_until_ready(f.call((&x, &w))?));
    }
    let f = jit(grad(move |x: Array, w: Array| f(x, w).square().sum(..)).argnums((Arg::<0>, Arg::<1>)));
    measure(|| block_until_ready(f.call((&x, &w))?))
}

/// A step of gradient descent whose result reuses the memory of its argument if `donated`.
pub fn memory_update(donated: bool) -> Result<Timing> {
    let step = jit(|w: Array, slope: Array| w - slope * 0.1);
    let step = if donated { step.donate_argnums([0]) } else { step };
    let (mut w, slope) = (ones([64 << 20]), ones([64 << 20]));
    measure(|| {
        w = block_until_ready(step.call((&w, &slope))?)?;
        Ok(())
    })
}
