//! The simplest recurrent cell.

use shardax::prelude::*;

use super::{BuiltCell, CellBuilder, CellOptions, Functions, RnnCell, zero_carry};
use crate::Rngs;
use crate::layers::Linear;

/// The simplest recurrent cell: its output is an activation of linear layers of the input and the last output. As in Flax, it
/// computes in float32 unless its builder or the policy says otherwise.
///
/// ```
/// use shardax_nn::prelude::*;
/// let cell = SimpleCell::builder(3, 8).residual(true).build(&mut Rngs::new(0));
/// assert_eq!(Rnn::new(cell).forward(ones([5, 10, 3])).shape(), [5, 10, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct SimpleCell {
    /// The linear layer of the last output.
    pub dense_h: Linear,
    /// The linear layer of the input.
    pub dense_i: Linear,
    residual: bool,
    hidden_features: usize,
    #[tree(static)]
    functions: Functions,
}

impl BuiltCell for SimpleCell {
    type Own = bool;

    #[track_caller]
    fn make(options: &CellOptions, residual: bool, rngs: &mut Rngs) -> Self {
        let dtype = options.dtype.or(rngs.policy().dtype).unwrap_or(DType::F32);
        let options = CellOptions { dtype: Some(dtype), ..options.clone() };
        let (dense_h, dense_i) = (options.carry_layer(1, false, rngs), options.input_layer(1, true, rngs));
        let (hidden_features, functions) = (options.hidden_features, options.functions());
        SimpleCell { dense_h, dense_i, residual, hidden_features, functions }
    }
}

impl CellBuilder<SimpleCell> {
    /// Sets whether the last output is added before the activation. Default false.
    pub fn residual(mut self, residual: bool) -> Self {
        self.own = residual;
        self
    }
}

impl SimpleCell {
    /// Creates a cell of `hidden_features` features.
    #[track_caller]
    pub fn new(in_features: usize, hidden_features: usize, rngs: &mut Rngs) -> Self {
        SimpleCell::builder(in_features, hidden_features).build(rngs)
    }

    /// Returns a builder of a cell.
    pub fn builder(in_features: usize, hidden_features: usize) -> CellBuilder<Self> {
        CellBuilder::new(in_features, hidden_features, false)
    }
}

impl RnnCell for SimpleCell {
    /// The last output.
    type Carry = Array;

    #[track_caller]
    fn initialize_carry(&self, input_shape: &[usize]) -> Array {
        zero_carry(input_shape, self.hidden_features, &self.dense_h)
    }

    #[track_caller]
    fn forward(&self, h: Array, x: Array) -> (Array, Array) {
        let sum = self.dense_i.forward(x) + self.dense_h.forward(&h);
        let h = (self.functions.activation)(if self.residual { sum + h } else { sum });
        (h.clone(), h)
    }
}
