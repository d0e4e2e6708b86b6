//! The minimal gated unit.

use shardax::nn::initializers::{self, Initializer};
use shardax::prelude::*;

use super::{BuiltCell, CellBuilder, CellOptions, Functions, RnnCell, zero_carry};
use crate::Rngs;
use crate::layers::Linear;

/// The minimal gated unit: a [`GruCell`](super::GruCell) with one gate, which forgets and resets.
///
/// Source: [Zhou et al. 2016](https://arxiv.org/abs/1603.09420).
///
/// ```
/// use shardax_nn::prelude::*;
/// let rnn = Rnn::new(MguCell::new(3, 8, &mut Rngs::new(0)));
/// assert_eq!(rnn.forward(ones([5, 10, 3])).shape(), [5, 10, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct MguCell {
    /// From the input to the forget gate.
    pub if_: Linear,
    /// From the last output to the forget gate.
    pub hf: Linear,
    /// From the input to the new output.
    pub in_: Linear,
    /// From the last output to the new output.
    pub hn: Linear,
    reset_gate: bool,
    hidden_features: usize,
    #[tree(static)]
    functions: Functions,
}

/// The options that only this cell has.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct MguOwn {
    reset_gate: bool,
    forget_bias_init: Initializer,
}

impl BuiltCell for MguCell {
    type Own = MguOwn;

    #[track_caller]
    fn make(options: &CellOptions, own: MguOwn, rngs: &mut Rngs) -> Self {
        let forget_options = CellOptions { bias_init: own.forget_bias_init, ..options.clone() };
        let (if_, hf) = (forget_options.input_layer(1, true, rngs), options.carry_layer(1, false, rngs));
        let (hn, in_) = (options.carry_layer(1, own.reset_gate, rngs), options.input_layer(1, true, rngs));
        let (hidden_features, functions) = (options.hidden_features, options.functions());
        MguCell { if_, hf, in_, hn, reset_gate: own.reset_gate, hidden_features, functions }
    }
}

impl CellBuilder<MguCell> {
    /// Sets whether the gate also multiplies what the new output receives from the last one. Default true.
    pub fn reset_gate(mut self, reset_gate: bool) -> Self {
        self.own.reset_gate = reset_gate;
        self
    }

    /// Sets the initializer of the gate's bias. Default ones, so that gradients of long sequences do not vanish.
    pub fn forget_bias_init(mut self, init: Initializer) -> Self {
        self.own.forget_bias_init = init;
        self
    }
}

impl MguCell {
    /// Creates a cell of `hidden_features` features.
    #[track_caller]
    pub fn new(in_features: usize, hidden_features: usize, rngs: &mut Rngs) -> Self {
        MguCell::builder(in_features, hidden_features).build(rngs)
    }

    /// Returns a builder of a cell.
    pub fn builder(in_features: usize, hidden_features: usize) -> CellBuilder<Self> {
        let own = MguOwn { reset_gate: true, forget_bias_init: initializers::ones() };
        CellBuilder::new(in_features, hidden_features, own)
    }
}

impl RnnCell for MguCell {
    /// The last output.
    type Carry = Array;

    #[track_caller]
    fn initialize_carry(&self, input_shape: &[usize]) -> Array {
        zero_carry(input_shape, self.hidden_features, &self.hf)
    }

    #[track_caller]
    fn forward(&self, h: Array, x: Array) -> (Array, Array) {
        let Functions { gate, activation } = self.functions;
        let f = gate(self.if_.forward(&x) + self.hf.forward(&h));
        let from_carry = self.hn.forward(&h);
        let from_carry = if self.reset_gate { from_carry * &f } else { from_carry };
        let new = activation(self.in_.forward(x) + from_carry);
        let h: Array = (1.0 - &f) * new + f * h;
        (h.clone(), h)
    }
}
