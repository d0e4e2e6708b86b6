//! Convolution layers.

use shardax::lax::{ConvOptions, Padding, conv_general_dilated};
use shardax::nn::initializers::{self, Initializer};
use shardax::prelude::*;
use shardax::tree::AxisNames;

use super::{compute_dtype, last_axis};
use crate::{IntoAxisNames, Rngs};

/// A convolution of channels-last inputs, `[batch, spatial dimensions, features]`.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0);
/// let layer = Conv::new(3, 32, [3, 3], &mut rngs);
/// assert_eq!(layer.forward(ones([8, 32, 32, 3])).shape(), [8, 32, 32, 32]);
/// let smaller = Conv::builder(32, 64, [3, 3]).strides([2, 2]).use_bias(false).build(&mut rngs);
/// assert_eq!(smaller.forward(ones([8, 32, 32, 32])).shape(), [8, 16, 16, 64]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Conv {
    /// `[spatial dimensions, in / groups, out]`
    #[tree(axis_names = kernel_axes)]
    pub kernel: Array,
    /// `[out]`
    #[tree(axis_names = bias_axes)]
    pub bias: Option<Array>,
    #[tree(static)]
    options: Options,
    #[tree(static)]
    kernel_axes: Option<AxisNames>,
    #[tree(static)]
    bias_axes: Option<AxisNames>,
}

/// What is not a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Options {
    strides: Vec<usize>,
    padding: Padding,
    input_dilation: Vec<usize>,
    kernel_dilation: Vec<usize>,
    feature_group_count: usize,
    dtype: Option<DType>,
}

/// The options of a [`Conv`].
#[derive(Clone, Debug)]
pub struct ConvBuilder {
    features: [usize; 2],
    kernel_size: Vec<usize>,
    options: Options,
    use_bias: bool,
    param_dtype: Option<DType>,
    kernel_axes: Option<AxisNames>,
    kernel_init: Initializer,
    bias_init: Initializer,
}

impl Conv {
    /// A layer from `in_features` to `out_features` with a kernel of this size: stride 1, padding SAME, the kernel
    /// LeCun normal, the bias zero.
    #[track_caller]
    pub fn new(in_features: usize, out_features: usize, kernel_size: impl AsRef<[usize]>, rngs: &mut Rngs) -> Self {
        Conv::builder(in_features, out_features, kernel_size).build(rngs)
    }

    /// A layer with options.
    pub fn builder(in_features: usize, out_features: usize, kernel_size: impl AsRef<[usize]>) -> ConvBuilder {
        let kernel_size: Vec<usize> = kernel_size.as_ref().into();
        let ones = vec![1; kernel_size.len()];
        ConvBuilder {
            features: [in_features, out_features],
            kernel_size,
            options: Options {
                strides: ones.clone(),
                padding: Padding::Same,
                input_dilation: ones.clone(),
                kernel_dilation: ones,
                feature_group_count: 1,
                dtype: None,
            },
            use_bias: true,
            param_dtype: None,
            kernel_axes: None,
            kernel_init: initializers::lecun_normal(),
            bias_init: initializers::zeros(),
        }
    }

    /// `x` is `[batch, spatial dimensions, features]`, or one example without the batch dimension, or has several.
    #[track_caller]
    pub fn forward(&self, x: impl Operand) -> Array {
        let x = x.into_array();
        let o = &self.options;
        let operands: Vec<&Array> = [&x, &self.kernel].into_iter().chain(&self.bias).collect();
        let dtype = compute_dtype(o.dtype, &operands);
        // All dimensions before the spatial ones are one batch.
        let rank = self.kernel.ndim();
        let before = (x.ndim() + 1).saturating_sub(rank);
        let regroup = before != 1 && x.ndim() + 1 >= rank;
        let batch = x.shape()[..before].to_vec();
        let input = match regroup {
            true => x.reshape([&[batch.iter().product()], &x.shape()[before..]].concat()),
            false => x.clone(),
        };
        let options = ConvOptions::new()
            .channels_last(rank.saturating_sub(2))
            .lhs_dilation(&o.input_dilation)
            .rhs_dilation(&o.kernel_dilation)
            .feature_group_count(o.feature_group_count);
        let kernel = self.kernel.astype(dtype);
        let y = conv_general_dilated(input.astype(dtype), kernel, &o.strides, o.padding.clone(), options);
        let y = match &self.bias {
            Some(bias) => y + bias.astype(dtype),
            None => y,
        };
        match regroup && y.ndim() == rank {
            true => y.reshape([batch.as_slice(), &y.shape()[1..]].concat()),
            false => y,
        }
    }
}

impl ConvBuilder {
    /// How far the kernel moves in each spatial dimension. Default 1.
    pub fn strides(mut self, strides: impl AsRef<[usize]>) -> Self {
        self.options.strides = strides.as_ref().into();
        self
    }

    /// The padding of the spatial dimensions. Default [`Padding::Same`].
    pub fn padding(mut self, padding: impl Into<Padding>) -> Self {
        self.options.padding = padding.into();
        self
    }

    /// The distance between the input's elements in each spatial dimension. Default 1.
    pub fn input_dilation(mut self, dilation: impl AsRef<[usize]>) -> Self {
        self.options.input_dilation = dilation.as_ref().into();
        self
    }

    /// The distance between the kernel's elements in each spatial dimension. Default 1.
    pub fn kernel_dilation(mut self, dilation: impl AsRef<[usize]>) -> Self {
        self.options.kernel_dilation = dilation.as_ref().into();
        self
    }

    /// Features are convolved in so many independent groups. Default 1.
    pub fn feature_group_count(mut self, count: usize) -> Self {
        self.options.feature_group_count = count;
        self
    }

    /// Whether there is a bias. Default true.
    pub fn use_bias(mut self, use_bias: bool) -> Self {
        self.use_bias = use_bias;
        self
    }

    /// The dtype to compute in. Default: the policy's, or what input and parameters promote to.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.options.dtype = Some(dtype);
        self
    }

    /// The dtype of the parameters. Default: the policy's, float32.
    pub fn param_dtype(mut self, dtype: DType) -> Self {
        self.param_dtype = Some(dtype);
        self
    }

    /// The logical names of the kernel's dimensions; the bias has the last. See [`Rules`](crate::Rules).
    pub fn kernel_axes(mut self, names: impl IntoAxisNames) -> Self {
        self.kernel_axes = Some(names.into_axis_names());
        self
    }

    /// How the kernel is made. Default LeCun normal.
    pub fn kernel_init(mut self, init: Initializer) -> Self {
        self.kernel_init = init;
        self
    }

    /// How the bias is made. Default zeros.
    pub fn bias_init(mut self, init: Initializer) -> Self {
        self.bias_init = init;
        self
    }

    /// The layer, its weights drawn from the stream `params`.
    #[track_caller]
    pub fn build(self, rngs: &mut Rngs) -> Conv {
        let [features, out] = self.features;
        let mut shape = self.kernel_size;
        shape.extend([features / self.options.feature_group_count.max(1), out]);
        let policy = rngs.policy();
        let param_dtype = self.param_dtype.unwrap_or(policy.param_dtype);
        let kernel = self.kernel_init.init(&rngs.params(), &shape, param_dtype);
        // Zeros need no key, but drawing one keeps later layers in step with Flax.
        let bias = if self.use_bias { Some(self.bias_init.init(&rngs.params(), &[out], param_dtype)) } else { None };
        let bias_axes = last_axis(&self.kernel_axes);
        let options = Options { dtype: self.options.dtype.or(policy.dtype), ..self.options };
        Conv { kernel, bias, options, kernel_axes: self.kernel_axes, bias_axes }
    }
}
