//! The linear layer over several dimensions.

use shardax::lax::DotOptions;
use shardax::prelude::*;
use shardax::shape::IntoSizes;

use super::kernel::{Kernel, KernelBuilder, KernelLayer, KernelOptions, KernelShape, with_bias};
use crate::Rngs;
use crate::check::{require, value_error};
use crate::shardings::sharding_for_product;

/// A linear layer that replaces several dimensions of its input, by default the last ones, by any number of new dimensions.
///
/// For example, attention uses it to project features to heads and back.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0);
/// // To the heads of attention, and back.
/// let split = LinearGeneral::new([16], [4, 8], &mut rngs);
/// let join = LinearGeneral::new([4, 8], [16], &mut rngs);
/// let heads = split.forward(ones([2, 5, 16]));
/// assert_eq!(heads.shape(), [2, 5, 4, 8]);
/// assert_eq!(join.forward(heads).shape(), [2, 5, 16]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct LinearGeneral {
    /// `[batch dimensions, in, out]`
    #[tree(axis_names = options.kernel_axes)]
    pub kernel: Array,
    /// `[batch dimensions, out]`
    #[tree(axis_names = options.bias_axes)]
    pub bias: Option<Array>,
    #[tree(static)]
    own: LinearGeneralOptions,
    #[tree(static)]
    options: KernelOptions,
}

/// The options that a [`LinearGeneral`] has in addition to the options of other layers with kernels.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinearGeneralOptions {
    in_features: Vec<usize>,
    out_features: Vec<usize>,
    axis: Option<Vec<i32>>,
    batch_sizes: Vec<usize>,
}

/// The options of a [`LinearGeneral`].
pub type LinearGeneralBuilder = KernelBuilder<LinearGeneral>;

impl KernelLayer for LinearGeneral {
    type Own = LinearGeneralOptions;

    fn shape(own: &Self::Own) -> Result<KernelShape> {
        let LinearGeneralOptions { in_features, out_features, axis, batch_sizes } = own;
        if axis.as_ref().is_some_and(|axis| axis.len() != in_features.len()) {
            let axis = axis.as_ref();
            return value_error(format!(
                "LinearGeneral: in_features and axis must have the same length, got {in_features:?} and {axis:?}"
            ));
        }
        let kernel = [batch_sizes.as_slice(), in_features, out_features].concat();
        let (batch, inputs) = (batch_sizes.len(), in_features.len());
        // As in Flax, the weights are drawn as one large matrix.
        let rows = batch_sizes.iter().chain(in_features).product();
        let drawn = vec![rows, out_features.iter().product()];
        let bias = (0..batch).chain(batch + inputs..kernel.len()).collect();
        Ok(KernelShape { kernel, drawn: Some(drawn), bias })
    }

    fn make(kernel: Kernel, own: Self::Own) -> Self {
        let Kernel { kernel, bias, options } = kernel;
        LinearGeneral { kernel, bias, own, options }
    }
}

impl LinearGeneralBuilder {
    /// Sets the dimensions of the input that are summed over, as many as there are `in_features`. Default: the last
    /// dimensions.
    pub fn axis(mut self, axis: impl AsRef<[i32]>) -> Self {
        self.own.axis = Some(axis.as_ref().into());
        self
    }

    /// Sets the sizes of the input's first dimensions that have a separate kernel for each index. Default none.
    pub fn batch_sizes(mut self, sizes: impl IntoSizes) -> Self {
        self.own.batch_sizes = sizes.into_sizes();
        self
    }
}

impl LinearGeneral {
    /// Creates a layer that replaces the last dimensions, of sizes `in_features`, by dimensions of sizes `out_features`. The
    /// kernel is drawn from the LeCun normal distribution, and the bias is zero.
    #[track_caller]
    pub fn new(in_features: impl IntoSizes, out_features: impl IntoSizes, rngs: &mut Rngs) -> Self {
        LinearGeneral::builder(in_features, out_features).build(rngs)
    }

    /// Returns a builder of a layer.
    pub fn builder(in_features: impl IntoSizes, out_features: impl IntoSizes) -> LinearGeneralBuilder {
        KernelBuilder::new(LinearGeneralOptions {
            in_features: in_features.into_sizes(),
            out_features: out_features.into_sizes(),
            axis: None,
            batch_sizes: Vec::new(),
        })
    }

    /// Applies the layer. `x` has the batch sizes first, and the sizes of `in_features` in the dimensions `axis`. The result has
    /// the batch, the remaining dimensions of `x`, and `out_features`.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let (x, kernel, bias) = self.options.in_dtype(x.into_array(), &self.kernel, &self.bias);
        let axis = self.axis(&x);
        require!(&x, x.check(), kernel.check(), self.check(&x, &axis));
        let (batch, inputs) = (self.own.batch_sizes.len(), axis.len());
        let axis: Vec<usize> = axis.iter().map(|&d| d as usize).collect();
        let batch_dims: Vec<usize> = (0..batch).collect();
        let contract: Vec<usize> = (batch..batch + inputs).collect();
        let dot = self.dot_options(&x, &kernel, &axis, batch);
        let y = dot.dot_general(&x, &kernel, (&axis, &contract), (&batch_dims, &batch_dims));
        // The bias gets a dimension of size 1 for each dimension of `x` that is neither batch nor contracted, so that it broadcasts.
        let bias = bias.map(|bias| {
            let free = x.ndim() - batch - inputs;
            bias.reshape([&self.own.batch_sizes, vec![1; free].as_slice(), &self.own.out_features].concat())
        });
        with_bias(y, bias)
    }

    /// Returns the options of the product. Its result has the batch, the remaining dimensions of `x`, and the kernel's last
    /// dimensions.
    fn dot_options(&self, x: &Array, kernel: &Array, axis: &[usize], batch: usize) -> DotOptions {
        let n = x.ndim();
        // Each dimension has a label: the dimensions of `x` count from 0, the output dimensions of the kernel from `n`.
        let x_labels: Vec<usize> = (0..n).collect();
        let new = n..n + kernel.ndim() - batch - axis.len();
        let kernel_labels: Vec<usize> = (0..batch).chain(axis.iter().copied()).chain(new.clone()).collect();
        let out_labels: Vec<usize> = (0..n).filter(|d| !axis.contains(d)).chain(new).collect();
        let options = self.options.dot_options();
        sharding_for_product(options, (x, &x_labels), (kernel, &kernel_labels), &out_labels)
    }

    /// Returns the last sizes of the result.
    pub(super) fn out_features(&self) -> &[usize] {
        &self.own.out_features
    }

    /// Returns the dimensions of `x` that are summed over, sorted as in Flax.
    fn axis(&self, x: &Array) -> Vec<i32> {
        let n = self.own.in_features.len() as i32;
        let mut axis = self.own.axis.clone().unwrap_or_else(|| (-n..0).collect());
        axis.iter_mut().filter(|d| **d < 0).for_each(|d| *d += x.ndim() as i32);
        axis.sort_unstable();
        axis
    }

    #[track_caller]
    fn check(&self, x: &Array, axis: &[i32]) -> Result<()> {
        let LinearGeneralOptions { in_features, batch_sizes, .. } = &self.own;
        let batch = batch_sizes.len();
        let distinct = axis.windows(2).all(|pair| pair[0] != pair[1]);
        let fits = axis.iter().all(|d| (batch as i32..x.ndim() as i32).contains(d))
            && distinct
            && axis.iter().zip(in_features).all(|(&d, &n)| x.shape()[d as usize] == n)
            && x.shape().starts_with(batch_sizes);
        if fits {
            return Ok(());
        }
        value_error(format!(
            "LinearGeneral: the layer expects {in_features:?} in the dimensions {axis:?} and batches of {batch_sizes:?}, got {}",
            x.type_name()
        ))
    }
}
