//! Matrix products of narrow numbers with a scale for each block.

use crate::core::array::Array;
use crate::core::function::Function;
use crate::core::program::trace::at_caller;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::control_flow::custom_vjp;
use crate::ops::lax::{DotOptions, bitcast_convert_type, optimization_barrier};
use crate::ops::numpy::{ones_dtype, where_, zeros_like};
use crate::ops::operators::ArrayLike;

/// Multiplies matrices `[b, m, k]` and `[b, n, k]` whose elements have a scale for each block along the contracted dimension
/// `k`. The result is `[b, m, n]`.
///
/// The scales are `[b, m, k / size]` and `[b, n, k / size]`, and each multiplies a block of `size` elements. Usual formats
/// are mxfp8 (float8 in blocks of 32, with scales of float8_e8m0fnu) and nvfp4 (float4_e2m1fn in blocks of 16, with scales of
/// float8_e4m3fn), but you can use any real dtypes. The product is computed in float32; with `None` the result is float32.
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
/// All operands and scales must have three dimensions of these sizes; otherwise it fails.
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
    array_or_error(&lhs, || {
        [&lhs, &rhs, &scales[0], &scales[1]].iter().try_for_each(|x| x.check())?;
        matmul_blocks(&[&lhs, &rhs], &scales, preferred_element_type.unwrap_or(DType::F32))
    })
}

/// Returns the result of `f`, or an array like `like` that carries its error.
#[track_caller]
fn array_or_error(like: &Array, f: impl FnOnce() -> Result<Array>) -> Array {
    at_caller(|| Array::from_result(f(), like))
}

/// Returns `true` if the scales divide the contracted dimension of `x` into blocks.
fn scales_fit(x: &Array, scales: &Array) -> bool {
    let ([b, m, k], [scales_b, scales_m, blocks]) = (x.shape(), scales.shape()) else { return false };
    (b, m) == (scales_b, scales_m) && (k == blocks || *blocks > 0 && k.is_multiple_of(*blocks))
}

/// Checks and multiplies operands with their scales.
fn matmul_blocks(operands: &[&Array; 2], scales: &[Array; 2], dtype: DType) -> Result<Array> {
    if let Some(x) = operands.iter().copied().chain(scales).find(|x| x.dtype().is_complex()) {
        return Err(err!(Type, "scaled_matmul takes real operands and scales, got {}", x.type_name())
            .help("multiply the real and imaginary parts separately"));
    }
    let are_compatible = operands.iter().zip(scales).all(|(x, scales)| scales_fit(x, scales)) && {
        let (l, r) = (operands[0].shape(), operands[1].shape());
        (l[0], l[2]) == (r[0], r[2]) && scales[0].shape()[2] == scales[1].shape()[2]
    };
    if !are_compatible {
        let types: Vec<String> = operands.iter().chain(&scales.each_ref()).map(|x| x.type_name()).collect();
        return Err(err!(Value, "scaled_matmul got incompatible operands and scales: {}", types.join(", ")).help(
            "operands must be [b, m, k] and [b, n, k], and scales [b, m, k / size] and [b, n, k / size] with one size of blocks",
        ));
    }
    let [lhs, rhs] = [0, 1].map(|i| apply_scales(operands[i], &scales[i]));
    Ok(DotOptions::new().dot_general(&lhs, &rhs, (&[2], &[2]), (&[0], &[0])).astype(dtype))
}

/// Multiplies each block by its scale, in float32.
fn apply_scales(x: &Array, scales: &Array) -> Array {
    let (shape, blocks) = (x.shape().to_vec(), scales.shape()[2]);
    let size = shape[2] / blocks.max(1);
    let x = x.astype(DType::F32).reshape([shape[0], shape[1], blocks, size]);
    (x * scales.astype(DType::F32).expand_dims(3)).reshape(shape)
}

/// The quantization of an operand of [`scaled_dot_general`], like JAX's `get_scaled_dot_general_config`.
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
    /// Describes blocks of 32 elements of float8_e4m3fn, with a power of two as the scale.
    pub fn mxfp8() -> Self {
        BlockScaleConfig { format: BlockFormat::Mxfp8, global_scale: None }
    }

    /// Describes blocks of 16 elements of float4_e2m1fn, with a scale of float8_e4m3fn.
    pub fn nvfp4() -> Self {
        BlockScaleConfig { format: BlockFormat::Nvfp4, global_scale: None }
    }

    /// Sets a scale of the entire operand, which multiplies the scales of the blocks. It must be one float32 number, and only
    /// nvfp4 has it. Default 1.
    pub fn global_scale(mut self, scale: impl ArrayLike) -> Self {
        self.global_scale = Some(scale.into_array());
        self
    }

    fn global(&self) -> Result<Array> {
        let Some(scale) = &self.global_scale else { return Ok(ones_dtype((), DType::F32)) };
        scale.check()?;
        if self.format == BlockFormat::Mxfp8 || scale.size() != 1 || scale.dtype() != DType::F32 {
            return Err(err!(
                Value,
                "a global scale must be one float32 number, and only nvfp4 has one, got {} for {:?}",
                scale.type_name(),
                self.format
            )
            .help("remove the global scale for mxfp8, because the scales of its blocks have the range of float32"));
        }
        Ok(scale.reshape(()))
    }
}

impl BlockFormat {
    fn size(self) -> usize {
        if self == BlockFormat::Mxfp8 { 32 } else { 16 }
    }

    /// The dtype of the elements and its largest number.
    fn data(self) -> (DType, f64) {
        if self == BlockFormat::Mxfp8 { (DType::F8E4M3Fn, 448.0) } else { (DType::F4E2M1Fn, 6.0) }
    }

    /// Returns the narrow elements and the scales of an array `[b, m, k]`.
    fn quantize(self, x: &Array, global: &Array) -> Result<(Array, Array)> {
        let (shape, size) = (x.shape().to_vec(), self.size());
        if shape[2] == 0 || !shape[2].is_multiple_of(size) {
            return Err(err!(
                Value,
                "scaled_dot_general quantizes blocks of {size} elements, which do not divide the {} contracted elements of {}",
                shape[2],
                x.type_name()
            )
            .help(format!(
                "contracted dimensions must be multiples of {size}; in gradients, so must all others, because they are contracted there"
            )));
        }
        let (dtype, max) = self.data();
        let blocks = x.reshape([shape[0], shape[1], shape[2] / size, size]);
        let (scaled, scales) = match self {
            BlockFormat::Mxfp8 => {
                let scales = ceil_exponents(&(blocks.abs().max_keepdims(-1) / max));
                // Multiplies by the reciprocal, which always is a normal number. A division could be by a subnormal scale,
                // which the hardware flushes to 0.
                let scaled = blocks.astype(DType::F32) * power_of_two(&(254 - &scales));
                (scaled, bitcast_convert_type(&scales, DType::F8E8M0Fnu))
            }
            BlockFormat::Nvfp4 => {
                // Dividing float16 by the float32 scale promotes to float32.
                let blocks = blocks / global;
                let scales = (blocks.abs().max_keepdims(-1) / max).clip(0, 448).astype(DType::F8E4M3Fn);
                // Without the barrier, XLA could remove the rounding to float8.
                let scales = optimization_barrier(scales);
                (blocks / scales.astype(DType::F32), scales)
            }
        };
        Ok((scaled.clip(-max, max).astype(dtype).reshape(shape), scales.squeeze(3)))
    }
}

/// Rounds positive numbers up to powers of two, and returns their exponents as uint8 (with the bias of float32).
fn ceil_exponents(x: &Array) -> Array {
    let bits = bitcast_convert_type(&x.astype(DType::F32), DType::U32);
    let (exponent, mantissa) = (&bits >> 23, &bits & 0x7f_ffff);
    // float8_e8m0fnu's exponent 0 is 2⁻¹²⁷, whose float32 is subnormal and has the mantissa 0x40_0000.
    let is_smallest = exponent.equal(0) & mantissa.less_equal(0x40_0000);
    let rounds_up = mantissa.greater(0) & exponent.not_equal(0xfe) & is_smallest.logical_not();
    where_(rounds_up, &exponent + 1, exponent).astype(DType::U8)
}

/// Returns the powers of two with these exponents, in float32.
fn power_of_two(exponents: &Array) -> Array {
    bitcast_convert_type(&(exponents.astype(DType::U32) << 23), DType::F32)
}

/// Computes `dot_general` of operands that are quantized by blocks: it computes the scales, and [`scaled_matmul`]
/// multiplies.
///
/// Gradients are computed as if the operands were not rounded. With mxfp8, the products of the gradient quantize their
/// operands too. With nvfp4, the gradient is 0 where an operand was clipped.
///
/// `configs` are the quantizations of `lhs`, `rhs` and the gradient; with `None` it is a plain `dot_general`. If
/// `preferred_element_type` is `None`, the result is float32.
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
/// The contracted dimensions must be multiples of the size of blocks; otherwise it fails.
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
    array_or_error(&lhs, || {
        let dtype = preferred_element_type.unwrap_or(DType::F32);
        let options = DotOptions::new().preferred_element_type(dtype);
        // The plain product checks the dimensions, and has the shape of the result.
        let plain = options.dot_general(&lhs, &rhs, (lhs_contract, rhs_contract), (lhs_batch, rhs_batch));
        plain.check()?;
        let Some(configs) = configs else { return Ok(plain) };
        if !matches!(dtype, DType::F32 | DType::Bf16 | DType::F16)
            || !lhs.dtype().is_float()
            || lhs.dtype() != rhs.dtype()
        {
            return Err(err!(
                Type,
                "scaled_dot_general of {} and {} to {dtype}: operands must be floating point of one dtype, and results float32, bfloat16 or float16",
                lhs.type_name(),
                rhs.type_name()
            )
            .help("convert the operands with `astype`"));
        }
        let [left_global, right_global, _] = configs.each_ref().map(BlockScaleConfig::global);
        let formats = configs.map(|config| config.format);
        let (l, r) = (to_matrices(&lhs, lhs_contract, lhs_batch), to_matrices(&rhs, rhs_contract, rhs_batch));
        let args = (l, r, left_global?, right_global?);
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

/// Transposes and reshapes an operand to `[batch, free, contracted]`.
fn to_matrices(x: &Array, contract: &[usize], batch: &[usize]) -> Array {
    let free: Vec<usize> = (0..x.ndim()).filter(|d| !contract.contains(d) && !batch.contains(d)).collect();
    let groups = [batch, &free, contract];
    let sizes = groups.map(|dims| dims.iter().map(|&d| x.shape()[d]).product::<usize>());
    crate::ops::lax::transpose(x, &groups.concat()).reshape(sizes)
}

/// Quantizes the operands and multiplies them.
fn forward(formats: [BlockFormat; 3], dtype: DType, operands: &[Array; 2], globals: &[Array; 2]) -> Result<Array> {
    let (lhs, left) = formats[0].quantize(&operands[0], &globals[0])?;
    let (rhs, right) = formats[1].quantize(&operands[1], &globals[1])?;
    match formats[0] {
        BlockFormat::Mxfp8 => matmul_blocks(&[&lhs, &rhs], &[left, right], dtype),
        BlockFormat::Nvfp4 => {
            let out = matmul_blocks(&[&lhs, &rhs], &[left, right], DType::F32)?;
            Ok((out * (&globals[0] * &globals[1])).astype(dtype))
        }
    }
}

/// Computes the gradients of operands `[b, m, k]` and `[b, n, k]` from the cotangent `[b, m, n]`.
fn backward(formats: [BlockFormat; 3], operands: &[Array; 2], globals: &[Array; 2], ct: &Array) -> Result<[Array; 2]> {
    let transposed_ct = transpose_matrices(ct);
    Ok([gradient(0, formats, operands, globals, ct)?, gradient(1, formats, operands, globals, &transposed_ct)?])
}

/// Returns the gradient of operand `i`, from a cotangent whose rows are the rows of this operand.
fn gradient(
    i: usize,
    formats: [BlockFormat; 3],
    operands: &[Array; 2],
    globals: &[Array; 2],
    ct: &Array,
) -> Result<Array> {
    let (this, other) = (&operands[i], transpose_matrices(&operands[1 - i]));
    if formats[2] == BlockFormat::Nvfp4 {
        let grad = DotOptions::new().dot_general(ct, &other.astype(ct.dtype()), (&[2], &[2]), (&[0], &[0]));
        // Larger numbers exceed the largest element times the largest scale of a block, and were clipped.
        let range = formats[i].data().1 * 448.0;
        let is_in_range = this.abs().less_equal((&globals[i] * range).astype(this.dtype()));
        return Ok(where_(is_in_range, grad.astype(this.dtype()), 0));
    }
    let (ct, left) = formats[2].quantize(ct, &globals[0])?;
    let (other, right) = formats[1 - i].quantize(&other, &globals[1 - i])?;
    matmul_blocks(&[&ct, &other], &[left, right], this.dtype())
}

/// Exchanges the last two of three dimensions.
fn transpose_matrices(x: &Array) -> Array {
    crate::ops::lax::transpose(x, &[0, 2, 1])
}
