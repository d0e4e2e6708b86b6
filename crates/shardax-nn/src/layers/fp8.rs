//! Products that train in float8, with a scale for each tensor from the largest values of past steps.

use shardax::control_flow::custom_vjp;
use shardax::lax::DotOptions;
use shardax::numpy::{finfo, roll, where_};
use shardax::prelude::*;
use shardax::{Error, ErrorKind};

use super::kernel::with_bias;
use super::{Layer, Linear};
use crate::OverwriteWithGradient;
use crate::check::{input_features, require};
use crate::ranks::allow_any_ranks;
use crate::shardings::sharding_for_dot;

/// The product of an input and a kernel in float8: both as float8_e4m3fn, the gradient of the result as float8_e5m2.
/// Flax's `Fp8DotGeneral`.
///
/// Input, kernel and gradient each have a scale, and a history of their largest magnitudes in the last steps, from which the
/// next scale is computed. Scales and histories are of the kind [`OverwriteWithGradient`]: their gradients are their next
/// values, which an [`Optimizer`](crate::optim::Optimizer) stores in each step. Use one `Fp8DotGeneral` for each product,
/// because the next values of two uses would be added.
///
/// Source: [Micikevicius et al. 2022](https://arxiv.org/abs/2209.05433).
#[derive(Module, Clone, Debug)]
pub struct Fp8DotGeneral {
    /// `[amax_history_length]`, the last step first.
    pub input_amax_history: OverwriteWithGradient,
    /// `[amax_history_length]`, the last step first.
    pub kernel_amax_history: OverwriteWithGradient,
    /// `[amax_history_length]`, the last step first.
    pub output_grad_amax_history: OverwriteWithGradient,
    /// `[1]`: the float8 values times this scale are the input.
    pub input_scale: OverwriteWithGradient,
    /// `[1]`: the float8 values times this scale are the kernel.
    pub kernel_scale: OverwriteWithGradient,
    /// `[1]`: the float8 values times this scale are the result's gradient.
    pub output_grad_scale: OverwriteWithGradient,
}

impl Default for Fp8DotGeneral {
    /// Creates scales with histories of 1024 steps.
    fn default() -> Self {
        Fp8DotGeneral::new(1024)
    }
}

/// A float8 tensor, its scale and history after the step.
type Quantized = (Array, Array, Array);

impl Fp8DotGeneral {
    /// Creates scales of 1, with histories of this many steps, which are all 0.
    pub fn new(amax_history_length: usize) -> Self {
        let [input_amax_history, kernel_amax_history, output_grad_amax_history] =
            [(); 3].map(|()| OverwriteWithGradient::new(zeros_dtype([amax_history_length], DType::F32)));
        let [input_scale, kernel_scale, output_grad_scale] =
            [(); 3].map(|()| OverwriteWithGradient::new(ones_dtype([1], DType::F32)));
        Fp8DotGeneral {
            input_amax_history,
            kernel_amax_history,
            output_grad_amax_history,
            input_scale,
            kernel_scale,
            output_grad_scale,
        }
    }

    /// Returns the product of `x`, `[..., in]`, and `kernel`, `[in, out]`. The result is `[..., out]`, in the kernel's dtype.
    ///
    /// The kernel must have a floating-point dtype of 16 bits or more.
    #[track_caller]
    pub fn dot(&self, x: impl ArrayLike, kernel: impl ArrayLike) -> Array {
        let x = x.into_array();
        self.product(&x, kernel.into_array()).unwrap_or_else(|error| Array::from_error(error, &x))
    }

    /// Computes the product, with a custom gradient rule that returns the next scales and histories as their gradients.
    #[track_caller]
    fn product(&self, x: &Array, kernel: Array) -> Result<Array> {
        let x = x.astype(kernel.dtype());
        if !kernel.dtype().is_float() || kernel.dtype().bits() < 16 || kernel.ndim() != 2 {
            let message =
                format!("Fp8DotGeneral needs a kernel [in, out] of 16 bits or more, got {}", kernel.type_name());
            return Err(Error::new(ErrorKind::Type, message)
                .help("convert the kernel with `astype(DType::Bf16)`; it is quantized in each step, from the trained numbers")
                .at(std::panic::Location::caller()));
        }
        // Checks the shapes too.
        let plain = x.dot(&kernel);
        plain.check()?;
        let shape = plain.shape().to_vec();
        let rows = x.reshape([-1, x.shape().last().map_or(1, |&n| n as i64)]);
        let input = (Array::clone(&self.input_scale), Array::clone(&self.input_amax_history));
        let weights = (Array::clone(&self.kernel_scale), Array::clone(&self.kernel_amax_history));
        let grad = (Array::clone(&self.output_grad_scale), Array::clone(&self.output_grad_amax_history));
        type Meta = (Array, Array);
        let product = custom_vjp(|x: Array, kernel: Array, input: Meta, weights: Meta, _: Meta| {
            Ok(product(
                &quantize(&x, DType::F8E4M3Fn, &input)?,
                &quantize(&kernel, DType::F8E4M3Fn, &weights)?,
                x.dtype(),
            ))
        })
        .defvjp(
            |x: Array,
             kernel: Array,
             input: Meta,
             weights: Meta,
             grad: Meta|
             -> Result<(Array, (Quantized, Quantized, Meta))> {
                let input = quantize(&x, DType::F8E4M3Fn, &input)?;
                let weights = quantize(&kernel, DType::F8E4M3Fn, &weights)?;
                Ok((product(&input, &weights, x.dtype()), (input, weights, grad)))
            },
            |(input, weights, grad): (Quantized, Quantized, Meta),
             ct: Array|
             -> Result<(Array, Array, Meta, Meta, Meta)> {
                let out_grad = quantize(&ct, DType::F8E5M2, &grad)?;
                let x_grad = product(&out_grad, &transposed(&weights), ct.dtype());
                let kernel_grad = product(&transposed(&input), &out_grad, ct.dtype());
                // The "gradients" of scales and histories are their next values.
                Ok((x_grad, kernel_grad, (input.1, input.2), (weights.1, weights.2), (out_grad.1, out_grad.2)))
            },
        );
        Ok(product.call((rows, kernel, input, weights, grad))?.reshape(shape))
    }
}

/// Transposes the values.
fn transposed((values, scale, history): &Quantized) -> Quantized {
    (values.t(), scale.clone(), history.clone())
}

/// Updates a scale and its history, and divides by the scale.
fn quantize(x: &Array, to: DType, (scale, history): &(Array, Array)) -> Result<Quantized> {
    let max = finfo(to)?.max;
    let amax = history.max(0);
    let factor = where_(amax.greater(0) & amax.isfinite(), max / &amax, 1.0 / scale);
    let scale = 1.0 / factor;
    let largest = x.abs().max(..).astype(history.dtype());
    let history = roll(history, -1, 0).at(0).set(largest);
    let _ranks = allow_any_ranks();
    let values = (x / scale.astype(x.dtype())).clip(-max, max).astype(to);
    Ok((values, scale, history))
}

/// Returns the product of two scaled matrices.
fn product(left: &Quantized, right: &Quantized, dtype: DType) -> Array {
    let options = sharding_for_dot(DotOptions::new().preferred_element_type(dtype), &left.0, &right.0);
    let product = options.dot(&left.0, &right.0);
    let _ranks = allow_any_ranks();
    product * (&left.1 * &right.1).astype(dtype)
}

/// A [`Linear`] layer that trains in float8; see [`Fp8DotGeneral`]. Flax's `Dense` with that `dot_general_cls`.
///
/// ```
/// use shardax_nn::prelude::*;
///
/// let layer = Fp8Linear::new(Linear::new(16, 32, &mut Rngs::new(0)));
/// let mut optimizer = Optimizer::new(layer, adam(1e-2))?;
/// let x = random::normal(random::key(1), [8, 16]);
/// let loss_0 = optimizer.minimize(|layer| layer.forward(x.clone()).square().mean(..))?;
/// let loss_1 = optimizer.minimize(|layer| layer.forward(x.clone()).square().mean(..))?;
/// assert!(loss_1.item::<f32>()? < loss_0.item::<f32>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Fp8Linear {
    /// The weights, in the dtype in which they are trained.
    pub linear: Linear,
    /// The scales.
    pub dot_general: Fp8DotGeneral,
}

impl Fp8Linear {
    /// Creates a layer with the weights of `linear`.
    pub fn new(linear: Linear) -> Self {
        Fp8Linear { linear, dot_general: Fp8DotGeneral::default() }
    }

    /// Applies the layer. `x` is `[..., in]`, the result `[..., out]`.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let Linear { kernel, bias, .. } = &self.linear;
        let x = x.into_array();
        require!(&x, input_features("Fp8Linear", &x, kernel));
        let (x, kernel, bias) = self.linear.options.in_dtype(x, kernel, bias);
        with_bias(self.dot_general.dot(x, kernel), bias)
    }
}

impl Layer for Fp8Linear {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        Fp8Linear::forward(self, x)
    }
}
