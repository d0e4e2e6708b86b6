//! A cell that runs over sequences.

use shardax::prelude::*;

use super::RnnCell;
use crate::check::{integer, same_shape, value_error};
use crate::layers::Layer;
use crate::shardings::{align_carry, reshard_like};

/// A cell that runs over the steps of sequences, in one loop of the compiled program.
///
/// ```
/// use shardax_nn::prelude::*;
/// let rnn = Rnn::new(LstmCell::new(3, 8, &mut Rngs::new(0)));
/// let x = ones([2, 10, 3]);
/// assert_eq!(rnn.forward(&x).shape(), [2, 10, 8]);
/// // Sequences of ten steps and of four: the carry after the last step of each.
/// let ((_, h), y) = rnn.run(&x, None, Some(&array([10, 4])))?;
/// assert!(allclose(h.get(1), y.get((1, 3)), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Rnn<C> {
    /// The cell that runs at each step.
    pub cell: C,
    time_major: bool,
    reverse: bool,
    keep_order: bool,
    unroll: usize,
}

impl<C: RnnCell> Rnn<C> {
    /// Creates a layer that runs the cell over `[batch, steps, features]`, from the first step to the last.
    pub fn new(cell: C) -> Self {
        Rnn { cell, time_major: false, reverse: false, keep_order: false, unroll: 1 }
    }

    /// Sets whether sequences are `[steps, batch, features]`. Default false.
    pub fn time_major(mut self, time_major: bool) -> Self {
        self.time_major = time_major;
        self
    }

    /// Sets whether the cell runs from the last step to the first. The outputs are in the order in which they are computed.
    /// Default false.
    pub fn reverse(mut self, reverse: bool) -> Self {
        self.reverse = reverse;
        self
    }

    /// Sets whether outputs are in the order of their inputs even if the cell runs in reverse. Default false.
    pub fn keep_order(mut self, keep_order: bool) -> Self {
        self.keep_order = keep_order;
        self
    }

    /// Sets the number of steps per iteration of the compiled loop. Default 1.
    pub fn unroll(mut self, steps: usize) -> Self {
        self.unroll = steps;
        self
    }

    /// Returns the outputs of all steps, `[batch, steps, hidden features]`, for `x` of shape `[batch, steps, features]`. The
    /// batch can have any number of dimensions.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        match self.run(&x, None, None) {
            Ok((_, y)) => y,
            Err(error) => Array::from_error(error, &x),
        }
    }

    /// Returns the carry after the last step, and the outputs of all steps.
    ///
    /// `seq_lengths` are the lengths of the sequences: integers of the shape of the batch, at least 1. Lengths beyond the number of
    /// steps count as this number. With them, the carry is the carry after the last step of each sequence, and in reverse the run
    /// starts at this step. Outputs beyond the end are not meaningful.
    ///
    /// # Errors
    /// Returns an error if `x` has fewer than two dimensions, if `seq_lengths` are not integers of the shape of the
    /// batch, or if the cell fails.
    #[track_caller]
    pub fn run(
        &self,
        x: impl ArrayLike,
        initial_carry: Option<C::Carry>,
        seq_lengths: Option<&Array>,
    ) -> Result<(C::Carry, Array)> {
        let x = x.into_array();
        x.check()?;
        let feature_dims = self.cell.feature_dims();
        if x.ndim() < feature_dims + 1 {
            let shape = if feature_dims == 1 { "features" } else { "spatial dimensions, features" };
            return value_error(format!("Rnn: x must be [batch, steps, {shape}], got {}", x.type_name()));
        }
        let time = if self.time_major { 0 } else { (x.ndim() - 1 - feature_dims) as i32 };
        let x = x.moveaxis(time, 0);
        if let Some(lengths) = seq_lengths {
            integer("Rnn", "seq_lengths", lengths)?;
            same_shape("Rnn", ("seq_lengths", lengths.shape()), ("the batch", &x.shape()[1..x.ndim() - feature_dims]))?;
        }
        let seq_lengths = seq_lengths.map(|lengths| at_most(lengths, x.shape()[0]));
        let seq_lengths = seq_lengths.as_ref();
        let inputs = if self.reverse { flipped(&x, seq_lengths) } else { x.clone() };
        let carry = initial_carry.unwrap_or_else(|| self.cell.initialize_carry(&x.shape()[1..]));
        let carry = tree::map(|carry| align_carry(carry, &inputs), carry)?;
        let options = ScanOptions::new().unroll(self.unroll);
        let (carry, y) = match seq_lengths {
            None => options.scan(|carry: C::Carry, x: Array| self.step(carry, x), carry, inputs)?,
            Some(lengths) => {
                // The carries of all steps are outputs too, from which the carry at each sequence's end is selected.
                let (_, (carries, y)): (_, (C::Carry, Array)) = options.scan(
                    |carry: C::Carry, x: Array| -> Result<_> {
                        let (carry, y) = self.step(carry, x)?;
                        Ok((carry.clone(), (carry, y)))
                    },
                    carry,
                    inputs,
                )?;
                (tree::map(|carries| at_last_step(&carries, lengths), carries)?, y)
            }
        };
        let y = if self.reverse && self.keep_order { flipped(&y, seq_lengths) } else { y };
        Ok((carry, y.moveaxis(0, time)))
    }

    /// Runs the cell on one element of each sequence. A loop's carry must keep its type, but the cell can compute in another
    /// dtype.
    fn step(&self, carry: C::Carry, x: Array) -> Result<(C::Carry, Array)> {
        let (next, y) = self.cell.forward(carry.clone(), x);
        Ok((tree::map2(|new, old| reshard_like(new.astype(old.dtype()), &old), next, carry)?, y))
    }
}

impl<C: RnnCell> Layer for Rnn<C> {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        Rnn::forward(self, x)
    }
}

/// Reshapes numbers, one for each sequence, so that they broadcast with `x`, `[steps, batch, features]`.
fn for_sequences(numbers: &Array, x: &Array) -> Array {
    let trailing = x.ndim() - 1 - numbers.ndim();
    numbers.reshape([&[1], numbers.shape(), vec![1; trailing].as_slice()].concat())
}

/// Returns the lengths of sequences as int32, at most `steps`.
fn at_most(lengths: &Array, steps: usize) -> Array {
    let is_wide = matches!(lengths.dtype(), DType::I64 | DType::U32 | DType::U64);
    let lengths = if is_wide { lengths.clone() } else { lengths.astype(DType::I32) };
    lengths.minimum(steps as i32).astype(DType::I32)
}

/// Reverses the steps of each sequence of `x`, `[steps, batch, features]`. Steps beyond its end come after it.
fn flipped(x: &Array, lengths: Option<&Array>) -> Array {
    let Some(lengths) = lengths else { return x.flip(0) };
    let steps = x.shape()[0];
    let reversed = arange(0..steps as i32).flip(0).reshape([vec![steps], vec![1; x.ndim() - 1]].concat());
    let source = remainder(reversed + for_sequences(lengths, x), steps);
    x.take_along_axis(&source, 0)
}

/// Returns the value at the last step of each sequence.
fn at_last_step(x: &Array, lengths: &Array) -> Array {
    let index = for_sequences(&(lengths - 1), x);
    x.take_along_axis(&index, 0).squeeze(0)
}
