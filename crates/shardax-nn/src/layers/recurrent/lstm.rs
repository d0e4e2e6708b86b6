//! Long short-term memory.

use shardax::prelude::*;

use super::{BuiltCell, CellBuilder, CellOptions, Functions, RnnCell, zero_carry};
use crate::Rngs;
use crate::layers::Linear;

/// Long short-term memory: gates control what is written to the state, kept in it, and read from it.
///
/// Source: [Hochreiter and Schmidhuber 1997](https://doi.org/10.1162/neco.1997.9.8.1735).
///
/// ```
/// use shardax_nn::prelude::*;
/// let cell = LstmCell::new(3, 8, &mut Rngs::new(0));
/// let ((memory, _), y) = cell.forward(cell.initialize_carry(&[5, 3]), ones([5, 3]));
/// assert_eq!((memory.shape(), y.shape()), (&[5, 8][..], &[5, 8][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct LstmCell {
    /// From the input to the input gate `i`, `[features, hidden]`.
    pub ii: Linear,
    /// From the input to the forget gate `f`.
    pub if_: Linear,
    /// From the input to the candidate `g`.
    pub ig: Linear,
    /// From the input to the output gate `o`.
    pub io: Linear,
    /// From the last output to the input gate `i`, `[hidden, hidden]`.
    pub hi: Linear,
    /// From the last output to the forget gate `f`.
    pub hf: Linear,
    /// From the last output to the candidate `g`.
    pub hg: Linear,
    /// From the last output to the output gate `o`.
    pub ho: Linear,
    hidden_features: usize,
    #[tree(static)]
    functions: Functions,
}

impl BuiltCell for LstmCell {
    type Own = ();

    #[track_caller]
    fn make(options: &CellOptions, (): (), rngs: &mut Rngs) -> Self {
        let [ii, if_, ig, io] = [(); 4].map(|()| options.input_layer(1, false, rngs));
        let [hi, hf, hg, ho] = [(); 4].map(|()| options.carry_layer(1, true, rngs));
        let (hidden_features, functions) = (options.hidden_features, options.functions());
        LstmCell { ii, if_, ig, io, hi, hf, hg, ho, hidden_features, functions }
    }
}

impl LstmCell {
    /// Creates a cell of `hidden_features` features.
    #[track_caller]
    pub fn new(in_features: usize, hidden_features: usize, rngs: &mut Rngs) -> Self {
        LstmCell::builder(in_features, hidden_features).build(rngs)
    }

    /// Returns a builder of a cell.
    pub fn builder(in_features: usize, hidden_features: usize) -> CellBuilder<Self> {
        CellBuilder::new(in_features, hidden_features, ())
    }
}

impl RnnCell for LstmCell {
    /// The memory and the last output.
    type Carry = (Array, Array);

    #[track_caller]
    fn initialize_carry(&self, input_shape: &[usize]) -> (Array, Array) {
        let zeros = zero_carry(input_shape, self.hidden_features, &self.hi);
        (zeros.clone(), zeros)
    }

    #[track_caller]
    fn forward(&self, (c, h): (Array, Array), x: Array) -> ((Array, Array), Array) {
        let gates = [(&self.ii, &self.hi), (&self.if_, &self.hf), (&self.ig, &self.hg), (&self.io, &self.ho)]
            .map(|(input, carry)| input.forward(&x) + carry.forward(&h));
        lstm_step(self.functions, gates, c)
    }
}

/// An [`LstmCell`] with one matmul for all gates, which is faster.
///
/// ```
/// use shardax_nn::prelude::*;
/// let rnn = Rnn::new(OptimizedLstmCell::new(3, 8, &mut Rngs::new(0)));
/// assert_eq!(rnn.forward(ones([5, 10, 3])).shape(), [5, 10, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct OptimizedLstmCell {
    /// The linear layer from the input to all gates.
    pub dense_i: Linear,
    /// The linear layer from the last output to all gates.
    pub dense_h: Linear,
    hidden_features: usize,
    #[tree(static)]
    functions: Functions,
}

impl BuiltCell for OptimizedLstmCell {
    type Own = ();

    #[track_caller]
    fn make(options: &CellOptions, (): (), rngs: &mut Rngs) -> Self {
        let (dense_i, dense_h) = (options.input_layer(4, false, rngs), options.carry_layer(4, true, rngs));
        let (hidden_features, functions) = (options.hidden_features, options.functions());
        OptimizedLstmCell { dense_i, dense_h, hidden_features, functions }
    }
}

impl OptimizedLstmCell {
    /// Creates a cell of `hidden_features` features.
    #[track_caller]
    pub fn new(in_features: usize, hidden_features: usize, rngs: &mut Rngs) -> Self {
        OptimizedLstmCell::builder(in_features, hidden_features).build(rngs)
    }

    /// Returns a builder of a cell.
    pub fn builder(in_features: usize, hidden_features: usize) -> CellBuilder<Self> {
        CellBuilder::new(in_features, hidden_features, ())
    }
}

impl RnnCell for OptimizedLstmCell {
    /// The memory and the last output.
    type Carry = (Array, Array);

    #[track_caller]
    fn initialize_carry(&self, input_shape: &[usize]) -> (Array, Array) {
        let zeros = zero_carry(input_shape, self.hidden_features, &self.dense_h);
        (zeros.clone(), zeros)
    }

    #[track_caller]
    fn forward(&self, (c, h): (Array, Array), x: Array) -> ((Array, Array), Array) {
        let gates = self.dense_i.forward(x) + self.dense_h.forward(h);
        lstm_step(self.functions, super::parts(&gates, self.hidden_features), c)
    }
}

/// Returns the carry and the output, from the previous memory and the values of the gates: input, forget, candidate, output.
fn lstm_step(functions: Functions, gates: [Array; 4], c: Array) -> ((Array, Array), Array) {
    let Functions { gate, activation } = functions;
    let [i, f, g, o] = gates;
    let c = gate(f) * c + gate(i) * activation(g);
    let h = gate(o) * activation(c.clone());
    ((c, h.clone()), h)
}
