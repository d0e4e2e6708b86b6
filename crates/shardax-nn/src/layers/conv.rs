//! The convolution layer.

use shardax::lax::{ConvOptions, Padding, conv_general_dilated};
use shardax::prelude::*;
use shardax::shape::IntoSizes;

use super::ConvPadding;
use super::kernel::{Kernel, KernelBuilder, KernelLayer, KernelOptions, KernelShape, with_bias};
use crate::Rngs;
use crate::check::{require, value_error};
use crate::shardings::sharding_for_convolution;

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
    #[tree(axis_names = options.kernel_axes)]
    pub kernel: Array,
    /// `[out]`
    #[tree(axis_names = options.bias_axes)]
    pub bias: Option<Array>,
    #[tree(static)]
    own: ConvOwn,
    #[tree(static)]
    options: KernelOptions,
}

/// The options that only a convolution has.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvOwn {
    features: [usize; 2],
    kernel_size: Vec<usize>,
    strides: Vec<usize>,
    padding: ConvPadding,
    input_dilation: Vec<usize>,
    kernel_dilation: Vec<usize>,
    feature_group_count: usize,
}

/// The options of a [`Conv`].
pub type ConvBuilder = KernelBuilder<Conv>;

impl KernelLayer for Conv {
    type Own = ConvOwn;

    fn shape(own: &ConvOwn) -> Result<KernelShape> {
        let ([features, out], groups) = (own.features, own.feature_group_count);
        if groups == 0 || !features.is_multiple_of(groups) {
            return value_error(format!("Conv: feature_group_count must divide the {features} features, got {groups}"));
        }
        let kernel = [own.kernel_size.as_slice(), &[features / groups, out]].concat();
        Ok(KernelShape { bias: vec![kernel.len() - 1], kernel, drawn: None })
    }

    fn make(kernel: Kernel, own: ConvOwn) -> Self {
        let Kernel { kernel, bias, options } = kernel;
        Conv { kernel, bias, own, options }
    }
}

impl ConvBuilder {
    /// Sets the step of the kernel in each spatial dimension. Default 1.
    pub fn strides(mut self, strides: impl IntoSizes) -> Self {
        self.own.strides = strides.into_sizes_of(self.own.kernel_size.len());
        self
    }

    /// Sets the padding of the spatial dimensions. Default [`Padding::Same`].
    pub fn padding(mut self, padding: impl Into<ConvPadding>) -> Self {
        self.own.padding = padding.into();
        self
    }

    /// Sets the distance between the input's elements in each spatial dimension. Default 1.
    pub fn input_dilation(mut self, dilation: impl IntoSizes) -> Self {
        self.own.input_dilation = dilation.into_sizes_of(self.own.kernel_size.len());
        self
    }

    /// Sets the distance between the kernel's elements in each spatial dimension. Default 1.
    pub fn kernel_dilation(mut self, dilation: impl IntoSizes) -> Self {
        self.own.kernel_dilation = dilation.into_sizes_of(self.own.kernel_size.len());
        self
    }

    /// Sets the number of independent groups of features. Default 1.
    pub fn feature_group_count(mut self, count: usize) -> Self {
        self.own.feature_group_count = count;
        self
    }
}

impl Conv {
    /// Creates a layer from `in_features` to `out_features` with a kernel of this size, stride 1 and padding SAME. The kernel
    /// is LeCun normal, the bias zero.
    #[track_caller]
    pub fn new(in_features: usize, out_features: usize, kernel_size: impl IntoSizes, rngs: &mut Rngs) -> Self {
        Conv::builder(in_features, out_features, kernel_size).build(rngs)
    }

    /// Returns a builder of a layer.
    pub fn builder(in_features: usize, out_features: usize, kernel_size: impl IntoSizes) -> ConvBuilder {
        let kernel_size = kernel_size.into_sizes();
        let ones = vec![1; kernel_size.len()];
        KernelBuilder::new(ConvOwn {
            features: [in_features, out_features],
            kernel_size,
            strides: ones.clone(),
            padding: Padding::Same.into(),
            input_dilation: ones.clone(),
            kernel_dilation: ones,
            feature_group_count: 1,
        })
    }

    /// Applies the convolution. `x` is `[batch, spatial dimensions, features]`, with any number of batch dimensions, or
    /// none.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        require!(&x, self.kernel.check(), self.check_features(&x));
        let layer = &self.own;
        let (x, kernel, bias) = self.options.in_dtype(x, &self.kernel, &self.bias);
        let convolved = in_batches(&x, kernel.ndim(), |x| {
            let (x, padding) = layer.padding.apply(x, &extents(&kernel, &layer.kernel_dilation))?;
            let options = ConvOptions::new()
                .channels_last(kernel.ndim().saturating_sub(2))
                .lhs_dilation(&layer.input_dilation)
                .rhs_dilation(&layer.kernel_dilation)
                .feature_group_count(layer.feature_group_count);
            let options = self.options.with_precision(options);
            // Types with an explicit sharding need the sharding of the result.
            let options = sharding_for_convolution(&x, &kernel).into_iter().fold(options, ConvOptions::out_sharding);
            Ok(conv_general_dilated(x, &kernel, &layer.strides, padding, options))
        });
        match convolved {
            Ok(y) => with_bias(y, bias),
            Err(error) => Array::from_error(error, &x),
        }
    }
}

impl Conv {
    /// Checks that the last dimension of `x` is the features.
    fn check_features(&self, x: &Array) -> Result<()> {
        x.check()?;
        let (rank, groups) = (self.kernel.ndim(), self.own.feature_group_count);
        let expected = self.kernel.shape().iter().rev().nth(1).map_or(0, |features| features * groups);
        let features = x.shape().last().copied();
        if x.ndim() + 1 < rank {
            let message = format!(
                "Conv: a kernel of {} spatial dimensions needs an input of at least {} dimensions, got {}",
                rank - 2,
                rank - 1,
                x.type_name()
            );
            let layout = "inputs are `[batch, spatial dimensions, features]`";
            let help = match expected {
                1 => format!("{layout}: add the dimension of one feature with `x.expand_dims(-1)`"),
                _ => layout.to_owned(),
            };
            return Err(Error::new(ErrorKind::Value, message).help(help));
        }
        if features.is_none_or(|features| features == expected) {
            return Ok(());
        }
        let message = format!(
            "Conv: the input {} has {} features in its last dimension, and the layer takes {expected}",
            x.type_name(),
            features.unwrap_or(0)
        );
        // The first dimension after the batch. If it has the size of the features, the input is probably channels first.
        let channel_dim = x.ndim() + 1 - rank;
        let help = if x.shape().get(channel_dim) == Some(&expected) {
            format!(
                "inputs are channels last, `[batch, spatial dimensions, features]`, and this one is channels first: write `x.moveaxis({channel_dim}, -1)`"
            )
        } else if expected == 1 && x.ndim() + 1 == rank {
            "inputs are `[batch, spatial dimensions, features]`: add the dimension of one feature with `x.expand_dims(-1)`"
                .to_owned()
        } else {
            "inputs are channels last, `[batch, spatial dimensions, features]`".to_owned()
        };
        Err(Error::new(ErrorKind::Value, message).help(help))
    }
}

/// Returns the extent of a dilated kernel in each spatial dimension.
pub(super) fn extents(kernel: &Array, dilation: &[usize]) -> Vec<usize> {
    let sizes = kernel.shape().iter().zip(dilation);
    sizes.map(|(&k, &d)| k.saturating_sub(1).saturating_mul(d).saturating_add(k.min(1))).collect()
}

/// Applies `f` to `x` with all batch dimensions flattened to one, and restores them in the result.
pub(super) fn in_batches(x: &Array, rank: usize, f: impl FnOnce(&Array) -> Result<Array>) -> Result<Array> {
    x.check()?;
    let batch_rank = (x.ndim() + 1).saturating_sub(rank);
    if batch_rank == 1 || x.ndim() + 1 < rank {
        return f(x);
    }
    let (batch, example) = x.shape().split_at(batch_rank);
    let y = f(&x.reshape([&[batch.iter().product()], example].concat()))?;
    y.check()?;
    Ok(y.reshape([batch, &y.shape()[1..]].concat()))
}
