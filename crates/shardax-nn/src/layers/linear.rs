//! The linear layer.

use shardax::prelude::*;

use super::kernel::{Kernel, KernelBuilder, KernelLayer, KernelOptions, KernelShape, with_bias};
use crate::Rngs;
use crate::check::{input_features, require};
use crate::shardings::sharding_for_dot;

/// A linear layer: `x · kernel + bias` over the last axis.
///
/// ```
/// use shardax_nn::prelude::*;
/// let layer = Linear::new(3, 4, &mut Rngs::new(0));
/// assert_eq!(layer.kernel.shape(), [3, 4]);
/// assert_eq!(layer.forward(ones([8, 3])).shape(), [8, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Linear {
    /// `[in, out]`
    #[tree(axis_names = options.kernel_axes)]
    pub kernel: Array,
    /// `[out]`
    #[tree(axis_names = options.bias_axes)]
    pub bias: Option<Array>,
    #[tree(static)]
    pub(super) options: KernelOptions,
}

/// The options of a [`Linear`].
pub type LinearBuilder = KernelBuilder<Linear>;

impl KernelLayer for Linear {
    type Own = [usize; 2];

    fn shape(sizes: &[usize; 2]) -> Result<KernelShape> {
        Ok(KernelShape { kernel: sizes.to_vec(), drawn: None, bias: vec![1] })
    }

    fn make(kernel: Kernel, _: [usize; 2]) -> Self {
        let Kernel { kernel, bias, options } = kernel;
        Linear { kernel, bias, options }
    }
}

impl Linear {
    /// Creates a layer from `in_features` to `out_features`. The kernel is LeCun normal, the bias zero.
    #[track_caller]
    pub fn new(in_features: usize, out_features: usize, rngs: &mut Rngs) -> Self {
        Linear::builder(in_features, out_features).build(rngs)
    }

    /// Returns a builder of a layer.
    pub fn builder(in_features: usize, out_features: usize) -> LinearBuilder {
        KernelBuilder::new([in_features, out_features])
    }

    /// Applies the layer. `x` is `[..., in]`, the result `[..., out]`. The result is an error if `x` has another number of features.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        require!(&x, input_features("Linear", &x, &self.kernel));
        let (x, kernel, bias) = self.options.in_dtype(x, &self.kernel, &self.bias);
        let dot = sharding_for_dot(self.options.dot_options(), &x, &kernel);
        with_bias(dot.dot(x, kernel), bias)
    }
}
