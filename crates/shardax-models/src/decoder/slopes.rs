//! Constant numbers for each head: slopes of biases, rates of decay.

use shardax_nn::prelude::*;

/// A constant number for each head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slopes(Vec<u32>);

impl Slopes {
    pub(super) fn new(slopes: Vec<f32>) -> Slopes {
        // The bits are compared and hashed, because static parts of a tree need `Eq` and `Hash`, which floats do not have.
        Slopes(slopes.into_iter().map(f32::to_bits).collect())
    }

    pub(super) fn to_array(&self) -> Array {
        array(self.0.iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<f32>>())
    }
}
