//! Matrix products of numbers that share a scale by blocks.

use crate::core::array::Array;
use crate::core::function::Function;
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::control_flow::custom_vjp;
use crate::ops::lax::{DotOptions, bitcast_convert_type, optimization_barrier};
use crate::ops::numpy::{ones, where_, zeros_like};
use crate::ops::operators::ArrayLike;

/// The product of matrices whose elements share scales by blocks along the contracted dimension:
/// `[b, m, k]` and `[b, n, k]` give `[b, m, n]`.
///
/// The scales are `[b, m, k / size]` and `[b, n, k / size]`; each multiplies a block of `size` elements. The formats are
/// mxfp8 (float8 with scales of float8_e8m0fnu, blocks of 32) and nvfp4 (float4_e2m1fn with scales of float8_e4m3fn,
/// blocks of 16), but any real dtypes are accepted. It is computed in float32; `None` returns float32.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::nn::scaled_matmul;
/// let (x, y) = (array([[[1, 2, 3]]]), array([[[4, 5, 6]]]));
/// let half = array([[[0.5f32]]]);
/// assert_eq!(scaled_matmul(&x, &y, &half, &half, None).to_vec::<f32>()?, [8.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails unless all have three dimensions of these sizes.
#[track_caller]
pub fn scaled_matmul(
    lhs: impl ArrayLike,
    rhs: impl ArrayLike,
    lhs_scales: impl ArrayLike,
    rhs_scales: impl ArrayLike,
    preferred_element_type: Option<DType>,
) -> Array {
    let [lhs, rhs] = [lhs.into_array(), rhs.into_array()];
    let scales = [lhs_scales.into_array(), rhs_scales.into_array()];
    made(&lhs, || {
        [&lhs, &rhs, &scales[0], &scales[1]].iter().try_for_each(|x| x.check())?;
        matmul_of(&[&lhs, &rhs], &scales, preferred_element_type.unwrap_or(DType::F32))
    })
}

#[track_caller]
fn made(like: &Array, f: impl FnOnce() -> Result<Array>) -> Array {
    at_caller(|| Array::from_result(f(), like))
}

fn matmul_of(operands: &[&Array; 2], scales: &[Array; 2], dtype: DType) -> Result<Array> {
    let types = || operands.iter().chain(&scales.each_ref()).map(|x| x.type_name()).collect::<Vec<_>>().join(", ");
    let whole = operands.iter().zip(scales).all(|(x, s)| {
        let ([b, m, k], [sb, sm, blocks]) = (x.shape(), s.shape()) else { return false };
        (b, m) == (sb, sm) && (k == blocks || *blocks > 0 && k.is_multiple_of(*blocks))
    });
    if let Some(x) = operands.iter().copied().chain(scales).find(|x| x.dtype().is_complex()) {
        return Err(err!(Type, "scaled_matmul takes real operands and scales, got {}", x.type_name())
            .help("multiply the real and imaginary parts separately"));
    }
    let alike = whole && {
        let (l, r) = (operands[0].shape(), operands[1].shape());
        (l[0], l[2]) == (r[0], r[2]) && scales[0].shape()[2] == scales[1].shape()[2]
    };
    if !alike {
        return Err(err!(Value, "scaled_matmul got incompatible operands and scales: {}", types()).help(
            "operands are [b, m, k] and [b, n, k], and scales [b, m, k / size] and [b, n, k / size] for blocks of one size",
        ));
    }
    let [lhs, rhs] = [0, 1].map(|i| unscaled(operands[i], &scales[i]));
    Ok(DotOptions::new().dot_general(&lhs, &rhs, (&[2], &[2]), (&[0], &[0])).astype(dtype))
}

/// The numbers, in float32: each block times its scale.
fn unscaled(x: &Array, scales: &Array) -> Array {
    let (shape, blocks) = (x.shape().to_vec(), scales.shape()[2]);
    let size = shape[2] / blocks.max(1);
    let x = x.astype(DType::F32).reshape([shape[0], shape[1], blocks, size]);
    (x * scales.astype(DType::F32).expand_dims(3)).reshape(shape)
}

/// The quantization of an operand of [`scaled_dot_general`]; JAX's `get_scaled_dot_general_config` makes them too.
#[derive(Clone, Debug)]
pub struct BlockScaleConfig {
    format: BlockFormat,
    global_scale: Option<Array>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockFormat {
    Mxfp8,
    Nvfp4,
}

impl BlockScaleConfig {
    /// Blocks of 32 elements of float8_e4m3fn, with a power of two.
    pub fn mxfp8() -> Self {
        BlockScaleConfig { format: BlockFormat::Mxfp8, global_scale: None }
    }

    /// Blocks of 16 elements of float4_e2m1fn, with a scale of float8_e4m3fn.
    pub fn nvfp4() -> Self {
        BlockScaleConfig { format: BlockFormat::Nvfp4, global_scale: None }
    }

    /// A scale of the whole operand, float32 of one element, beside those of blocks; nvfp4 only. Default 1.
    pub fn global_scale(mut self, scale: impl ArrayLike) -> Self {
        self.global_scale = Some(scale.into_array());
        self
    }

    fn global(&self) -> Result<Array> {
        let Some(scale) = &self.global_scale else { return Ok(ones(())) };
        scale.check()?;
        if self.format == BlockFormat::Mxfp8 || scale.size() != 1 || scale.dtype() != DType::F32 {
            return Err(err!(Value, "a global scale is of nvfp4 and one float32, got {}", scale.type_name())
                .help("leave it out for mxfp8, whose scales of blocks reach every number"));
        }
        Ok(scale.reshape(()))
    }
}

impl BlockFormat {
    fn size(self) -> usize {
        if self == BlockFormat::Mxfp8 { 32 } else { 16 }
    }

    /// The elements' dtype and its largest number.
    fn data(self) -> (DType, f64) {
        if self == BlockFormat::Mxfp8 { (DType::F8E4M3Fn, 448.0) } else { (DType::F4E2M1Fn, 6.0) }
    }

    /// The narrow elements and scales of `[b, m, k]`.
    fn quantize(self, x: &Array, global: &Array) -> Result<(Array, Array)> {
        let (shape, size) = (x.shape().to_vec(), self.size());
        if shape[2] == 0 || !shape[2].is_multiple_of(size) {
            return Err(err!(
                Value,
                "scaled_dot_general quantizes blocks of {size} elements, which do not divide the {} contracted ones of {}",
                shape[2],
                x.type_name()
            )
            .help("give contracted dimensions, in gradients the others too, that are multiples of the block's size"));
        }
        let (dtype, max) = self.data();
        let blocks = x.reshape([shape[0], shape[1], shape[2] / size, size]);
        let (scaled, scales) = match self {
            BlockFormat::Mxfp8 => {
                let scales = rounded_up(&(blocks.abs().max_keepdims(-1) / max));
                // The reciprocal, which is a normal number: the smallest scale would be flushed to 0.
                let scaled = blocks.astype(DType::F32) * number(&(254 - &scales));
                (scaled, bitcast_convert_type(&scales, DType::F8E8M0Fnu))
            }
            BlockFormat::Nvfp4 => {
                // float16 with the float32 scale is float32.
                let blocks = blocks / global;
                let scales = (blocks.abs().max_keepdims(-1) / max).clip(0, 448).astype(DType::F8E4M3Fn);
                let scales = optimization_barrier(scales);
                (blocks / scales.astype(DType::F32), scales)
            }
        };
        Ok((scaled.clip(-max, max).astype(dtype).reshape(shape), scales.squeeze(3)))
    }
}

/// The exponents, as uint8, of the powers of two from these positive numbers on.
fn rounded_up(x: &Array) -> Array {
    let bits = bitcast_convert_type(&x.astype(DType::F32), DType::U32);
    let (exponent, mantissa) = (&bits >> 23, &bits & 0x7f_ffff);
    let tiny = exponent.equal(0) & mantissa.less_equal(0x40_0000);
    let up = mantissa.greater(0) & exponent.not_equal(0xfe) & tiny.logical_not();
    where_(up, &exponent + 1, exponent).astype(DType::U8)
}

/// The powers of two with these exponents, in float32.
fn number(exponents: &Array) -> Array {
    bitcast_convert_type(&(exponents.astype(DType::U32) << 23), DType::F32)
}

/// `dot_general` of operands that are quantized by blocks: their scales are found, and [`scaled_matmul`] multiplies. The
/// gradients are those of the unquantized product, of quantized operands as well with mxfp8; with nvfp4 they are 0 where an
/// operand was clipped.
///
/// `configs` are those of `lhs`, `rhs` and the gradient; `None` is a plain `dot_general`. `None` returns float32.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::nn::{BlockScaleConfig, scaled_dot_general};
/// let config = BlockScaleConfig::mxfp8();
/// let (x, w) = (random::normal(random::key(0), [4, 64]), random::normal(random::key(1), [64, 32]));
/// let configs = [config.clone(), config.clone(), config];
/// let y = scaled_dot_general(&x, &w, (&[1], &[0]), (&[], &[]), None, Some(configs));
/// assert!(allclose(y, x.dot(w), 0.1, 1.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails unless the contracted dimensions are multiples of the blocks' size.
#[track_caller]
pub fn scaled_dot_general(
    lhs: impl ArrayLike,
    rhs: impl ArrayLike,
    (lhs_contract, rhs_contract): (&[usize], &[usize]),
    (lhs_batch, rhs_batch): (&[usize], &[usize]),
    preferred_element_type: Option<DType>,
    configs: Option<[BlockScaleConfig; 3]>,
) -> Array {
    let (lhs, rhs) = (lhs.into_array(), rhs.into_array());
    made(&lhs, || {
        let dtype = preferred_element_type.unwrap_or(DType::F32);
        let options = DotOptions::new().preferred_element_type(dtype);
        // Checks the dimensions too.
        let plain = options.dot_general(&lhs, &rhs, (lhs_contract, rhs_contract), (lhs_batch, rhs_batch));
        plain.check()?;
        let Some(configs) = configs else { return Ok(plain) };
        if !matches!(dtype, DType::F32 | DType::Bf16 | DType::F16)
            || !lhs.dtype().is_float()
            || lhs.dtype() != rhs.dtype()
        {
            return Err(err!(
                Type,
                "scaled_dot_general of {} and {} to {dtype}: operands are floating point of one dtype, results float32, bfloat16 or float16",
                lhs.type_name(),
                rhs.type_name()
            )
            .help("convert the operands with `astype`"));
        }
        let normal = |x: &Array, contract: &[usize], batch: &[usize]| {
            let of = |dims: &[usize]| dims.iter().map(|&d| x.shape()[d]).product::<usize>();
            let free: Vec<usize> = (0..x.ndim()).filter(|d| !contract.contains(d) && !batch.contains(d)).collect();
            let order = [batch, &free, contract].concat();
            crate::ops::lax::transpose(x, &order).reshape([of(batch), of(&free), of(contract)])
        };
        let globals = configs.each_ref().map(BlockScaleConfig::global);
        let [left, right, _] = globals;
        let formats = configs.map(|config| config.format);
        let args = (normal(&lhs, lhs_contract, lhs_batch), normal(&rhs, rhs_contract, rhs_batch), left?, right?);
        let out =
            custom_vjp(move |l: Array, r: Array, gl: Array, gr: Array| forward(formats, dtype, &[l, r], &[gl, gr]))
                .defvjp(
                    move |l: Array, r: Array, gl: Array, gr: Array| -> Result<(Array, (Array, Array, Array, Array))> {
                        let out = forward(formats, dtype, &[l.clone(), r.clone()], &[gl.clone(), gr.clone()])?;
                        Ok((out, (l, r, gl, gr)))
                    },
                    move |(l, r, gl, gr): (Array, Array, Array, Array),
                          ct: Array|
                          -> Result<(Array, Array, Array, Array)> {
                        let zeros = (zeros_like(&gl), zeros_like(&gr));
                        let [l, r] = backward(formats, &[l, r], &[gl, gr], &ct)?;
                        Ok((l, r, zeros.0, zeros.1))
                    },
                )
                .apply(args)?;
        Ok(out.reshape(plain.shape()))
    })
}

fn forward(formats: [BlockFormat; 3], dtype: DType, operands: &[Array; 2], globals: &[Array; 2]) -> Result<Array> {
    let (lhs, left) = formats[0].quantize(&operands[0], &globals[0])?;
    let (rhs, right) = formats[1].quantize(&operands[1], &globals[1])?;
    match formats[0] {
        BlockFormat::Mxfp8 => matmul_of(&[&lhs, &rhs], &[left, right], dtype),
        BlockFormat::Nvfp4 => {
            let out = matmul_of(&[&lhs, &rhs], &[left, right], DType::F32)?;
            Ok((out * (&globals[0] * &globals[1])).astype(dtype))
        }
    }
}

/// The gradients of `[b, m, k]` and `[b, n, k]`, from the cotangent `[b, m, n]`.
fn backward(formats: [BlockFormat; 3], operands: &[Array; 2], globals: &[Array; 2], ct: &Array) -> Result<[Array; 2]> {
    let turned = |x: &Array| crate::ops::lax::transpose(x, &[0, 2, 1]);
    let of = |ct: &Array, i: usize| -> Result<Array> {
        let (this, other) = (&operands[i], turned(&operands[1 - i]));
        if formats[2] == BlockFormat::Nvfp4 {
            let grad = DotOptions::new().dot_general(ct, &other.astype(ct.dtype()), (&[2], &[2]), (&[0], &[0]));
            let reach = formats[i].data().1 * 448.0;
            let inside = this.abs().less_equal((&globals[i] * reach).astype(this.dtype()));
            return Ok(where_(inside, grad.astype(this.dtype()), 0));
        }
        let (ct, left) = formats[2].quantize(ct, &globals[0])?;
        let (other, right) = formats[1 - i].quantize(&other, &globals[1 - i])?;
        matmul_of(&[&ct, &other], &[left, right], this.dtype())
    };
    Ok([of(ct, 0)?, of(&turned(ct), 1)?])
}
