//! Long short-term memory of images.

use shardax::nn::sigmoid;
use shardax::prelude::*;
use shardax::shape::IntoSizes;

use super::{RnnCell, parts};
use crate::Rngs;
use crate::layers::{Conv, ConvBuilder, ConvPadding};

/// An [`LstmCell`](super::LstmCell) for images, with convolutions instead of linear layers.
///
/// Its inputs are `[..., spatial dimensions, features]`, so that [`Rnn`](super::Rnn) runs it over `[batch, steps, spatial
/// dimensions, features]`. The forget gate has an offset of 1, so that the memory is kept at the start of the training.
///
/// Source: [Shi et al. 2015](https://arxiv.org/abs/1506.04214).
///
/// ```
/// use shardax_nn::prelude::*;
/// let rnn = Rnn::new(ConvLstmCell::new(3, 8, [3, 3], &mut Rngs::new(0)));
/// assert_eq!(rnn.forward(ones([2, 5, 16, 16, 3])).shape(), [2, 5, 16, 16, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct ConvLstmCell {
    /// The convolution from the input to all gates: input, candidate, forget, output.
    pub ih: Conv,
    /// The convolution from the last output to all gates.
    pub hh: Conv,
    features: usize,
    spatial_dims: usize,
}

/// The options of a [`ConvLstmCell`].
#[derive(Clone, Debug)]
pub struct ConvLstmCellBuilder {
    ih: ConvBuilder,
    hh: ConvBuilder,
    features: usize,
    spatial_dims: usize,
}

impl ConvLstmCellBuilder {
    /// Sets the padding of both convolutions, which must keep the size of images. Default
    /// [`Padding::Same`](shardax::lax::Padding::Same).
    pub fn padding(self, padding: impl Into<ConvPadding>) -> Self {
        let padding = padding.into();
        self.with(|conv| conv.padding(padding.clone()))
    }

    /// Sets whether both convolutions have a bias. Default true.
    pub fn use_bias(self, use_bias: bool) -> Self {
        self.with(|conv| conv.use_bias(use_bias))
    }

    /// Sets the dtype to compute in. Default: the policy's, or the promoted dtype of input and parameters.
    pub fn dtype(self, dtype: DType) -> Self {
        self.with(|conv| conv.dtype(dtype))
    }

    /// Sets the dtype of the parameters and of the first carry. Default: the policy's, float32.
    pub fn param_dtype(self, dtype: DType) -> Self {
        self.with(|conv| conv.param_dtype(dtype))
    }

    /// Builds the cell. Its weights are drawn from the stream `params`.
    #[track_caller]
    pub fn build(self, rngs: &mut Rngs) -> ConvLstmCell {
        let (ih, hh) = (self.ih.build(rngs), self.hh.build(rngs));
        ConvLstmCell { ih, hh, features: self.features, spatial_dims: self.spatial_dims }
    }

    fn with(self, set: impl Fn(ConvBuilder) -> ConvBuilder) -> Self {
        ConvLstmCellBuilder { ih: set(self.ih), hh: set(self.hh), ..self }
    }
}

impl ConvLstmCell {
    /// Creates a cell of `features` features with kernels of this size.
    #[track_caller]
    pub fn new(in_features: usize, features: usize, kernel_size: impl IntoSizes, rngs: &mut Rngs) -> Self {
        ConvLstmCell::builder(in_features, features, kernel_size).build(rngs)
    }

    /// Returns a builder of a cell.
    pub fn builder(in_features: usize, features: usize, kernel_size: impl IntoSizes) -> ConvLstmCellBuilder {
        let kernel_size = kernel_size.into_sizes();
        let gates = features.saturating_mul(4);
        ConvLstmCellBuilder {
            ih: Conv::builder(in_features, gates, kernel_size.as_slice()),
            hh: Conv::builder(features, gates, kernel_size.as_slice()),
            features,
            spatial_dims: kernel_size.len(),
        }
    }
}

impl RnnCell for ConvLstmCell {
    /// The memory and the last output.
    type Carry = (Array, Array);

    fn feature_dims(&self) -> usize {
        self.spatial_dims + 1
    }

    #[track_caller]
    fn initialize_carry(&self, input_shape: &[usize]) -> (Array, Array) {
        let image = &input_shape[..input_shape.len().saturating_sub(1)];
        let zeros = zeros_dtype([image, &[self.features]].concat(), self.hh.kernel.dtype());
        (zeros.clone(), zeros)
    }

    #[track_caller]
    fn forward(&self, (c, h): (Array, Array), x: Array) -> ((Array, Array), Array) {
        let gates = self.ih.forward(x) + self.hh.forward(h);
        let [i, g, f, o] = parts(&gates, self.features);
        let c = sigmoid(f + 1.0) * c + sigmoid(i) * g.tanh();
        let h: Array = sigmoid(o) * c.tanh();
        ((c, h.clone()), h)
    }
}
