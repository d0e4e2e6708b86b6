//! Sequences in both directions.

use shardax::prelude::*;

use super::{Rnn, RnnCell};
use crate::layers::Layer;

/// One cell that runs from the first step to the last, and one from the last step to the first. Their outputs are
/// concatenated.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0);
/// let (forward, backward) = (GruCell::new(3, 8, &mut rngs), GruCell::new(3, 8, &mut rngs));
/// let layer = Bidirectional::new(Rnn::new(forward), Rnn::new(backward));
/// assert_eq!(layer.forward(ones([2, 10, 3])).shape(), [2, 10, 16]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Bidirectional<F, B> {
    /// The layer that runs from the first step to the last.
    pub forward_rnn: Rnn<F>,
    /// The layer that runs from the last step to the first.
    pub backward_rnn: Rnn<B>,
    #[tree(static)]
    merge_fn: fn(Array, Array) -> Array,
}

impl<F: RnnCell, B: RnnCell> Bidirectional<F, B> {
    /// Combines two layers; their directions are set to forward and backward.
    pub fn new(forward_rnn: Rnn<F>, backward_rnn: Rnn<B>) -> Self {
        let (forward_rnn, backward_rnn) = (forward_rnn.reverse(false), backward_rnn.reverse(true).keep_order(true));
        Bidirectional { forward_rnn, backward_rnn, merge_fn: |forward, backward| concatenate(&[forward, backward], -1) }
    }

    /// Sets the function that merges both outputs. Default: concatenation of the features.
    pub fn merge_fn(mut self, merge_fn: fn(Array, Array) -> Array) -> Self {
        self.merge_fn = merge_fn;
        self
    }

    /// Returns the outputs of all steps.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        match self.run(&x, None, None) {
            Ok((_, y)) => y,
            Err(error) => Array::from_error(error, &x),
        }
    }

    /// Returns the carries of both layers after their last steps, and the outputs of all steps; see [`Rnn::run`].
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Rnn::run`].
    #[track_caller]
    #[allow(clippy::type_complexity)]
    pub fn run(
        &self,
        x: impl ArrayLike,
        initial_carry: Option<(F::Carry, B::Carry)>,
        seq_lengths: Option<&Array>,
    ) -> Result<((F::Carry, B::Carry), Array)> {
        let x = x.into_array();
        let (forward, backward) = initial_carry.unzip();
        let (forward, forward_y) = self.forward_rnn.run(&x, forward, seq_lengths)?;
        let (backward, backward_y) = self.backward_rnn.run(&x, backward, seq_lengths)?;
        Ok(((forward, backward), (self.merge_fn)(forward_y, backward_y)))
    }
}

impl<F: RnnCell, B: RnnCell> Layer for Bidirectional<F, B> {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        Bidirectional::forward(self, x)
    }
}
