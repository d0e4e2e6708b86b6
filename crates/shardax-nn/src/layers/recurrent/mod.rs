//! Recurrent layers: cells for one step, and the layers that run them over sequences.

mod bidirectional;
mod conv_lstm;
mod gru;
mod lstm;
mod mgu;
mod rnn;
mod simple;

pub use bidirectional::Bidirectional;
pub use conv_lstm::{ConvLstmCell, ConvLstmCellBuilder};
pub use gru::GruCell;
pub use lstm::{LstmCell, OptimizedLstmCell};
pub use mgu::MguCell;
pub use rnn::Rnn;
pub use simple::SimpleCell;

use shardax::nn::initializers::{self, Initializer};
use shardax::nn::sigmoid;
use shardax::prelude::*;

use super::Linear;
use crate::{Module, Rngs};

/// One step of a recurrent network: a function of the previous carry and an input.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a cell of a recurrent network",
    label = "not a cell",
    note = "`LstmCell`, `GruCell`, `SimpleCell`, …, or a module of your own that implements `RnnCell`: `Rnn::new(LstmCell::new(8, 16, &mut rngs))`"
)]
pub trait RnnCell: Module {
    /// The state from one step to the next.
    type Carry: Tree;

    /// Returns the number of trailing dimensions of the input of a step that are not a batch: 1, the features, or more, if
    /// a step's input is an image.
    fn feature_dims(&self) -> usize {
        1
    }

    /// Returns the initial carry for inputs of this shape, `[..., features]`: zeros.
    fn initialize_carry(&self, input_shape: &[usize]) -> Self::Carry;

    /// Returns the next carry and the output; `x` is `[..., features]`.
    fn forward(&self, carry: Self::Carry, x: Array) -> (Self::Carry, Array);
}

/// An elementwise function.
type Activation = fn(Array) -> Array;

/// A cell that a [`CellBuilder`] builds.
#[doc(hidden)]
pub trait BuiltCell: Sized {
    /// The option that only this cell has.
    type Own;

    fn make(options: &CellOptions, own: Self::Own, rngs: &mut Rngs) -> Self;
}

/// The options that all cells share.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct CellOptions {
    in_features: usize,
    hidden_features: usize,
    gate_fn: Activation,
    activation_fn: Activation,
    kernel_init: Initializer,
    recurrent_kernel_init: Initializer,
    bias_init: Initializer,
    dtype: Option<DType>,
    param_dtype: Option<DType>,
}

/// The options of a recurrent cell `C`.
#[derive(Clone, Debug)]
pub struct CellBuilder<C: BuiltCell> {
    options: CellOptions,
    own: C::Own,
}

impl<C: BuiltCell> CellBuilder<C> {
    fn new(in_features: usize, hidden_features: usize, own: C::Own) -> Self {
        let options = CellOptions {
            in_features,
            hidden_features,
            gate_fn: |x| sigmoid(x),
            activation_fn: |x| x.tanh(),
            kernel_init: initializers::lecun_normal(),
            recurrent_kernel_init: initializers::orthogonal(1.0),
            bias_init: initializers::zeros(),
            dtype: None,
            param_dtype: None,
        };
        CellBuilder { options, own }
    }

    /// Sets the activation of the gates. Default sigmoid.
    pub fn gate_fn(mut self, gate_fn: fn(Array) -> Array) -> Self {
        self.options.gate_fn = gate_fn;
        self
    }

    /// Sets the activation of the other values. Default tanh.
    pub fn activation_fn(mut self, activation_fn: fn(Array) -> Array) -> Self {
        self.options.activation_fn = activation_fn;
        self
    }

    /// Sets the initializer of the kernels of the inputs. Default LeCun normal.
    pub fn kernel_init(mut self, init: Initializer) -> Self {
        self.options.kernel_init = init;
        self
    }

    /// Sets the initializer of the recurrent kernels. Default orthogonal.
    pub fn recurrent_kernel_init(mut self, init: Initializer) -> Self {
        self.options.recurrent_kernel_init = init;
        self
    }

    /// Sets the initializer of the biases. Default zeros.
    pub fn bias_init(mut self, init: Initializer) -> Self {
        self.options.bias_init = init;
        self
    }

    /// Sets the dtype to compute in. Default: the policy's, or the promoted dtype of input and parameters.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.options.dtype = Some(dtype);
        self
    }

    /// Sets the dtype of the parameters and of the first carry. Default: the policy's, float32.
    pub fn param_dtype(mut self, dtype: DType) -> Self {
        self.options.param_dtype = Some(dtype);
        self
    }

    /// Builds the cell. Its weights are drawn from the stream `params`.
    #[track_caller]
    pub fn build(self, rngs: &mut Rngs) -> C {
        C::make(&self.options, self.own, rngs)
    }
}

impl CellOptions {
    /// Creates the linear layer of the inputs, to `times` times the hidden features.
    #[track_caller]
    fn input_layer(&self, times: usize, use_bias: bool, rngs: &mut Rngs) -> Linear {
        self.linear(self.in_features, times, self.kernel_init, use_bias, rngs)
    }

    /// Creates the linear layer of the carry.
    #[track_caller]
    fn carry_layer(&self, times: usize, use_bias: bool, rngs: &mut Rngs) -> Linear {
        self.linear(self.hidden_features, times, self.recurrent_kernel_init, use_bias, rngs)
    }

    #[track_caller]
    fn linear(&self, from: usize, times: usize, init: Initializer, use_bias: bool, rngs: &mut Rngs) -> Linear {
        let to = self.hidden_features.saturating_mul(times);
        let builder = Linear::builder(from, to).use_bias(use_bias).kernel_init(init).bias_init(self.bias_init);
        let builder = self.dtype.into_iter().fold(builder, |b, dtype| b.dtype(dtype));
        self.param_dtype.into_iter().fold(builder, |b, dtype| b.param_dtype(dtype)).build(rngs)
    }

    fn functions(&self) -> Functions {
        Functions { gate: self.gate_fn, activation: self.activation_fn }
    }
}

/// The functions of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(unpredictable_function_pointer_comparisons)]
struct Functions {
    gate: Activation,
    activation: Activation,
}

/// Returns a carry of zeros for inputs of this shape, in the dtype of the parameters.
fn zero_carry(input_shape: &[usize], hidden: usize, like: &Linear) -> Array {
    let batch = &input_shape[..input_shape.len().saturating_sub(1)];
    zeros_dtype([batch, &[hidden]].concat(), like.kernel.dtype())
}

/// Splits the features of `x` into parts of this size.
fn parts<const N: usize>(x: &Array, size: usize) -> [Array; N] {
    std::array::from_fn(|i| x.get((Ellipsis, i * size..(i + 1) * size)))
}
