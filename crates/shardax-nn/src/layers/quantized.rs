//! A linear layer with weights of 4 or 8 bits.

use shardax::lax::DotOptions;
use shardax::numpy::where_;
use shardax::prelude::*;
use shardax::{Error, ErrorKind};

use super::kernel::with_bias;
use super::{Layer, Linear, compute_dtype};
use crate::Frozen;
use crate::check::{input_features, require};
use crate::ranks::allow_any_ranks;

/// A [`Linear`] layer for inference with weights of 4 bits, where groups of inputs share a scale, or of 8 bits, where all
/// inputs share a scale. Each output has its own scales.
///
/// The weights are the kernel's numbers divided by the scale and rounded. The scale is chosen so that the largest number
/// becomes -7 or 7, or, with 8 bits, -127 or 127. The weights are [`Frozen`], so that no optimizer updates them; you can still
/// differentiate with respect to the input.
///
/// With 8 bits, a product of up to eight rows takes as long as reading the weights
/// [on CPU](https://github.com/shardax/shardax/blob/main/docs/benchmarks.md#weights-of-fewer-bits), a quarter of the time of
/// float32 weights.
///
/// ```
/// use shardax_nn::prelude::*;
///
/// let layer = Linear::new(64, 32, &mut Rngs::new(0));
/// let x = random::normal(random::key(1), [8, 64]);
///
/// let small = QuantizedLinear::new(&layer, 16)?;
/// assert_eq!((small.kernel.dtype(), small.scales.shape()), (DType::I4, &[4, 32][..]));
/// assert!(allclose(small.forward(&x), layer.forward(&x), 0.0, 0.5)?);
///
/// let bytes = QuantizedLinear::int8(&layer)?;
/// assert_eq!((bytes.kernel.dtype(), bytes.scales.shape()), (DType::I8, &[1, 32][..]));
/// assert!(allclose(bytes.forward(&x), layer.forward(&x), 0.0, 0.05)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct QuantizedLinear {
    /// `[in, out]`, int4 or int8.
    pub kernel: Frozen,
    /// `[in / group_size, out]`, in the dtype of the original kernel.
    pub scales: Frozen,
    /// `[out]`
    pub bias: Option<Array>,
    #[tree(static)]
    dtype: Option<DType>,
}

impl QuantizedLinear {
    /// Quantizes the weights of a layer to 4 bits; `group_size` inputs share a scale.
    ///
    /// # Errors
    /// Returns an error if the number of inputs is not a multiple of `group_size`.
    #[track_caller]
    pub fn new(layer: &Linear, group_size: usize) -> Result<Self> {
        Self::of(layer, group_size, DType::I4, 7)
    }

    /// Quantizes the weights of a layer to 8 bits; all inputs share the scale of an output.
    ///
    /// # Errors
    /// Returns an error if the layer has no inputs.
    #[track_caller]
    pub fn int8(layer: &Linear) -> Result<Self> {
        Self::of(layer, layer.kernel.shape().first().copied().unwrap_or(0), DType::I8, 127)
    }

    /// Quantizes to integers of this dtype. The largest weight of a group becomes `limit`.
    #[track_caller]
    fn of(layer: &Linear, group_size: usize, integers: DType, limit: i32) -> Result<Self> {
        layer.kernel.check()?;
        let (inputs, outputs) = match *layer.kernel.shape() {
            [inputs, outputs] if group_size > 0 && inputs.is_multiple_of(group_size) => (inputs, outputs),
            _ => {
                let kernel = layer.kernel.type_name();
                let message = format!(
                    "QuantizedLinear: the inputs of the kernel {kernel} do not divide into groups of {group_size}"
                );
                return Err(Error::new(ErrorKind::Value, message)
                    .help("choose a divisor of the number of inputs, such as 32 or 128")
                    .at(std::panic::Location::caller()));
            }
        };
        let groups = layer.kernel.reshape([inputs / group_size, group_size, outputs]);
        let largest = groups.abs().max_keepdims(1);
        // A group of zeros stays zero with any scale. A group with NaN or infinity becomes NaN.
        let scales = where_(largest.equal(0), 1, largest / limit);
        let kernel = (groups / &scales).round().clip(-limit, limit).astype(integers).reshape([inputs, outputs]);
        let scales = scales.squeeze(1).astype(layer.kernel.dtype());
        Ok(QuantizedLinear {
            kernel: Frozen::new(kernel),
            scales: Frozen::new(scales),
            bias: layer.bias.clone(),
            dtype: layer.options.dtype,
        })
    }

    /// Applies the layer. `x` is `[..., in]`, the result `[..., out]`.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        let _ranks = allow_any_ranks();
        require!(&x, input_features("QuantizedLinear", &x, &self.kernel));
        let operands: Vec<&Array> = [&x, &*self.scales].into_iter().chain(&self.bias).collect();
        let dtype = compute_dtype(self.dtype, &operands);
        let (shape, groups) = (self.kernel.shape(), self.scales.shape()[0]);
        let [x, kernel, scales] = [&x, &*self.kernel, &*self.scales].map(|array| array.astype(dtype));
        let y = if groups == 1 {
            // Scaling the sums instead of the weights lets the product read the integers directly. The sums are float32, because
            // they could overflow in half precision.
            let wide = DotOptions::new().preferred_element_type(DType::F32).dot(x, kernel);
            (wide * self.scales.squeeze(0).astype(DType::F32)).astype(dtype)
        } else {
            let grouped = kernel.reshape([groups, shape[0] / groups.max(1), shape[1]]);
            x.dot((grouped * scales.expand_dims(1)).reshape(shape))
        };
        with_bias(y, self.bias.as_ref().map(|bias| bias.astype(dtype)))
    }
}

impl Layer for QuantizedLinear {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        QuantizedLinear::forward(self, x)
    }
}
