//! The gated recurrent unit.

use shardax::prelude::*;

use super::{BuiltCell, CellBuilder, CellOptions, Functions, RnnCell, parts, zero_carry};
use crate::Rngs;
use crate::layers::Linear;

/// The gated recurrent unit: gates blend the last output with a new one.
///
/// Source: [Chung et al. 2014](https://arxiv.org/abs/1412.3555).
///
/// ```
/// use shardax_nn::prelude::*;
/// let rnn = Rnn::new(GruCell::new(3, 8, &mut Rngs::new(0)));
/// assert_eq!(rnn.forward(ones([5, 10, 3])).shape(), [5, 10, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct GruCell {
    /// The linear layer from the input to both gates and the new output.
    pub dense_i: Linear,
    /// The linear layer from the last output to both gates and the new output.
    pub dense_h: Linear,
    hidden_features: usize,
    #[tree(static)]
    functions: Functions,
}

impl BuiltCell for GruCell {
    type Own = ();

    #[track_caller]
    fn make(options: &CellOptions, (): (), rngs: &mut Rngs) -> Self {
        let (dense_i, dense_h) = (options.input_layer(3, true, rngs), options.carry_layer(3, false, rngs));
        GruCell { dense_i, dense_h, hidden_features: options.hidden_features, functions: options.functions() }
    }
}

impl GruCell {
    /// Creates a cell of `hidden_features` features.
    #[track_caller]
    pub fn new(in_features: usize, hidden_features: usize, rngs: &mut Rngs) -> Self {
        GruCell::builder(in_features, hidden_features).build(rngs)
    }

    /// Returns a builder of a cell.
    pub fn builder(in_features: usize, hidden_features: usize) -> CellBuilder<Self> {
        CellBuilder::new(in_features, hidden_features, ())
    }
}

impl RnnCell for GruCell {
    /// The last output.
    type Carry = Array;

    #[track_caller]
    fn initialize_carry(&self, input_shape: &[usize]) -> Array {
        zero_carry(input_shape, self.hidden_features, &self.dense_h)
    }

    #[track_caller]
    fn forward(&self, h: Array, x: Array) -> (Array, Array) {
        let Functions { gate, activation } = self.functions;
        let [xr, xz, xn] = parts(&self.dense_i.forward(x), self.hidden_features);
        let [hr, hz, hn] = parts(&self.dense_h.forward(&h), self.hidden_features);
        let (r, z) = (gate(xr + hr), gate(xz + hz));
        let new = activation(xn + r * hn);
        let h: Array = (1.0 - &z) * new + z * h;
        (h.clone(), h)
    }
}
