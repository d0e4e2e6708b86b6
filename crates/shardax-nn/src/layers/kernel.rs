//! Options and initialization shared by the layers with a kernel and a bias.

use shardax::choice::{Choice, IntoChoice};
use shardax::lax::{ConvOptions, DotOptions, Precision};
use shardax::nn::initializers::{self, Initializer};
use shardax::prelude::*;
use shardax::tree::AxisNames;

use super::compute_dtype;
use crate::ranks::allow_any_ranks;
use crate::shardings::align_with;
use crate::{IntoAxisNames, Rngs};

/// A kernel, a bias, and the options of their use.
#[doc(hidden)]
#[derive(Debug)]
pub struct Kernel {
    pub(super) kernel: Array,
    pub(super) bias: Option<Array>,
    pub(super) options: KernelOptions,
}

/// The options that all layers with a kernel and a bias have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct KernelOptions {
    /// The dtype to compute in. `None` is the promoted dtype of input and parameters.
    pub(super) dtype: Option<DType>,
    pub(super) precision: Option<Choice<Precision>>,
    /// The logical names of the kernel's dimensions.
    pub(super) kernel_axes: Option<AxisNames>,
    /// The logical names of the bias's dimensions.
    pub(super) bias_axes: Option<AxisNames>,
}

impl KernelOptions {
    /// Returns the options of the layer's matmul.
    pub(super) fn dot_options(&self) -> DotOptions {
        self.precision.into_iter().fold(DotOptions::new(), DotOptions::precision)
    }

    /// Sets the precision of the layer's convolution.
    pub(super) fn with_precision(&self, options: ConvOptions) -> ConvOptions {
        self.precision.into_iter().fold(options, ConvOptions::precision)
    }
}

/// The shape of a kernel, and which of its dimensions the bias has.
#[doc(hidden)]
#[derive(Debug)]
pub struct KernelShape {
    pub(super) kernel: Vec<usize>,
    /// The shape that the initializer draws, if it differs from the kernel's shape. It has the same number of elements.
    pub(super) drawn: Option<Vec<usize>>,
    pub(super) bias: Vec<usize>,
}

/// A layer with a kernel and a bias.
#[doc(hidden)]
pub trait KernelLayer: Sized {
    /// The options that only this layer has.
    type Own;

    /// The options must not contradict each other.
    fn shape(own: &Self::Own) -> Result<KernelShape>;

    fn make(kernel: Kernel, own: Self::Own) -> Self;
}

/// The options of a layer `L` with a kernel and a bias.
#[derive(Clone, Debug)]
pub struct KernelBuilder<L: KernelLayer> {
    use_bias: bool,
    dtype: Option<DType>,
    param_dtype: Option<DType>,
    precision: Option<Choice<Precision>>,
    kernel_axes: Option<AxisNames>,
    kernel_init: Initializer,
    bias_init: Initializer,
    pub(super) own: L::Own,
}

impl<L: KernelLayer> KernelBuilder<L> {
    pub(super) fn new(own: L::Own) -> Self {
        KernelBuilder {
            use_bias: true,
            dtype: None,
            param_dtype: None,
            precision: None,
            kernel_axes: None,
            kernel_init: initializers::lecun_normal(),
            bias_init: initializers::zeros(),
            own,
        }
    }

    /// Sets whether there is a bias. Default true, except for [`Einsum`](crate::Einsum).
    pub fn use_bias(mut self, use_bias: bool) -> Self {
        self.use_bias = use_bias;
        self
    }

    /// Sets the dtype to compute in. Default: the policy's, or the promoted dtype of input and parameters.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Sets the dtype of the parameters. Default: the policy's, float32.
    pub fn param_dtype(mut self, dtype: DType) -> Self {
        self.param_dtype = Some(dtype);
        self
    }

    /// Sets the precision of the matmuls on accelerators, a [`Precision`] or JAX's text for one. You can set it for one
    /// layer; otherwise the layer uses [`default_matmul_precision`](shardax::default_matmul_precision).
    pub fn precision(mut self, precision: impl IntoChoice<Precision>) -> Self {
        self.precision = Some(precision.into_choice());
        self
    }

    /// Sets the logical names of the kernel's dimensions. The bias has the names of the dimensions that it shares with the
    /// kernel. See [`Rules`](crate::Rules).
    pub fn kernel_axes(mut self, names: impl IntoAxisNames) -> Self {
        self.kernel_axes = Some(names.into_axis_names());
        self
    }

    /// Sets the initializer of the kernel. Default LeCun normal.
    pub fn kernel_init(mut self, init: Initializer) -> Self {
        self.kernel_init = init;
        self
    }

    /// Sets the initializer of the bias. Default zeros.
    pub fn bias_init(mut self, init: Initializer) -> Self {
        self.bias_init = init;
        self
    }

    /// Builds the layer. Its weights are drawn from the stream `params`. If options contradict each other, the layer's
    /// results are an error.
    #[track_caller]
    pub fn build(self, rngs: &mut Rngs) -> L {
        let policy = rngs.policy();
        let param_dtype = self.param_dtype.unwrap_or(policy.param_dtype);
        let (shape, error) = match L::shape(&self.own) {
            Ok(shape) => (shape, None),
            Err(error) => (KernelShape { kernel: Vec::new(), drawn: None, bias: Vec::new() }, Some(error)),
        };
        let kernel = match &error {
            Some(_) => zeros_dtype((), param_dtype),
            None => self.kernel_init.init(&rngs.params(), shape.drawn.as_ref().unwrap_or(&shape.kernel), param_dtype),
        };
        let mut bias = self.use_bias.then(|| {
            let sizes: Vec<usize> = shape.bias.iter().map(|&d| shape.kernel[d]).collect();
            // Zeros need no key, but drawing one keeps later layers in step with Flax.
            self.bias_init.init(&rngs.params(), &sizes, param_dtype)
        });
        let bias_axes = self
            .kernel_axes
            .as_ref()
            .map(|names| shape.bias.iter().map(|&d| names.get(d).copied().flatten()).collect());
        // Kernel and bias carry the error of the options, and so do all results of the layer.
        let mut kernel = kernel.reshape(shape.kernel.as_slice());
        if let Some(error) = error {
            bias = bias.map(|bias| Array::from_error(error.clone(), &bias));
            kernel = Array::from_error(error, &kernel);
        }
        L::make(
            Kernel {
                kernel,
                bias,
                options: KernelOptions {
                    dtype: self.dtype.or(policy.dtype),
                    precision: self.precision,
                    kernel_axes: self.kernel_axes,
                    bias_axes,
                },
            },
            self.own,
        )
    }
}

impl KernelOptions {
    /// Casts input, kernel and bias to the layer's computation dtype.
    pub(super) fn in_dtype(&self, x: Array, kernel: &Array, bias: &Option<Array>) -> (Array, Array, Option<Array>) {
        let operands: Vec<&Array> = [&x, kernel].into_iter().chain(bias).collect();
        let dtype = compute_dtype(self.dtype, &operands);
        (x.astype(dtype), kernel.astype(dtype), bias.as_ref().map(|bias| bias.astype(dtype)))
    }
}

/// Returns `y + bias`, or `y` without a bias.
pub(super) fn with_bias(y: Array, bias: Option<Array>) -> Array {
    match bias {
        Some(bias) => {
            let _ranks = allow_any_ranks();
            let bias = align_with(bias, &y);
            y + bias
        }
        None => y,
    }
}
