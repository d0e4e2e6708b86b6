//! A linear layer with weights of 4 bits.

use shardax::numpy::where_;
use shardax::prelude::*;
use shardax::{Error, ErrorKind};

use super::kernel::with_bias;
use super::{Layer, Linear, compute_dtype};
use crate::Frozen;

/// A [`Linear`] layer that serves weights of 4 bits: groups of inputs share a scale, one for each output.
///
/// The weights are the integers nearest to the kernel's numbers divided by the scale, which makes -7 or 7 of the largest
/// one. They are [`Frozen`]: no optimizer updates them, and gradients with respect to the input pass through.
///
/// ```
/// use shardax_nn::prelude::*;
///
/// let layer = Linear::new(64, 32, &mut Rngs::new(0));
/// let small = QuantizedLinear::new(&layer, 16)?;
/// assert_eq!((small.kernel.dtype(), small.scales.shape()), (DType::I4, &[4, 32][..]));
/// let x = random::normal(random::key(1), [8, 64]);
/// assert!(allclose(small.forward(&x), layer.forward(&x), 0.0, 0.5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct QuantizedLinear {
    /// `[in, out]`, int4.
    pub kernel: Frozen,
    /// `[in / group_size, out]`, of the dtype that the kernel had.
    pub scales: Frozen,
    /// `[out]`
    pub bias: Option<Array>,
    #[tree(static)]
    dtype: Option<DType>,
}

impl QuantizedLinear {
    /// Quantizes the weights of a layer; `group_size` inputs share a scale.
    ///
    /// Fails unless the number of inputs is a multiple of the group's size.
    #[track_caller]
    pub fn new(layer: &Linear, group_size: usize) -> Result<Self> {
        layer.kernel.check()?;
        let (inputs, outputs) = match *layer.kernel.shape() {
            [inputs, outputs] if group_size > 0 && inputs.is_multiple_of(group_size) => (inputs, outputs),
            _ => {
                let kernel = layer.kernel.type_name();
                let what =
                    format!("QuantizedLinear: the inputs of the kernel {kernel} are not in groups of {group_size}");
                return Err(Error::new(ErrorKind::Value, what)
                    .help("choose a divisor of the number of inputs, such as 32 or 128")
                    .at(std::panic::Location::caller()));
            }
        };
        let groups = layer.kernel.reshape([inputs / group_size, group_size, outputs]);
        let largest = groups.abs().max_keepdims(1);
        // A group of zeros keeps them with any scale; one with NaN or infinity becomes NaN.
        let scales = where_(largest.equal(0), 1, largest / 7);
        let kernel = (groups / &scales).round().clip(-7, 7).astype(DType::I4).reshape([inputs, outputs]);
        let scales = scales.squeeze(1).astype(layer.kernel.dtype());
        Ok(QuantizedLinear {
            kernel: Frozen::new(kernel),
            scales: Frozen::new(scales),
            bias: layer.bias.clone(),
            dtype: layer.dtype,
        })
    }

    /// `x` is `[..., in]`, the result `[..., out]`.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        let operands: Vec<&Array> = [&x, &*self.scales].into_iter().chain(&self.bias).collect();
        let dtype = compute_dtype(self.dtype, &operands);
        let (shape, groups) = (self.kernel.shape(), self.scales.shape()[0]);
        let grouped = self.kernel.astype(dtype).reshape([groups, shape[0] / groups.max(1), shape[1]]);
        let kernel = (grouped * self.scales.astype(dtype).expand_dims(1)).reshape(shape);
        with_bias(x.astype(dtype).dot(kernel), self.bias.as_ref().map(|bias| bias.astype(dtype)))
    }
}

impl Layer for QuantizedLinear {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        QuantizedLinear::forward(self, x)
    }
}
