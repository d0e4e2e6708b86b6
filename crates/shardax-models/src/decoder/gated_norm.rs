//! An RMS norm with factors.

use shardax_nn::prelude::*;

/// An RMS norm whose results are multiplied by factors: `y * sigmoid(up(silu(down(y))))` for the normalized features `y`, as in
/// A.X K2.
#[derive(Module, Clone, Debug)]
pub struct GatedNorm {
    /// The norm.
    pub norm: RmsNorm,
    /// Projects the normalized features to a few features.
    pub down: Linear,
    /// Projects these features to the factors.
    pub up: Linear,
}

impl GatedNorm {
    /// Adds factors to the norm of `features` features. They are computed from `rank` features.
    #[track_caller]
    pub(super) fn new(norm: RmsNorm, features: usize, rank: usize, rngs: &mut Rngs) -> GatedNorm {
        let down = Linear::builder(features, rank).use_bias(false).kernel_axes([Some("embed"), None]);
        let up = Linear::builder(rank, features).use_bias(false).kernel_axes([None, Some("embed")]);
        GatedNorm { norm, down: down.build(rngs), up: up.build(rngs) }
    }

    /// Normalizes `x`, `[..., features]`. The result has the same shape.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let y = self.norm.forward(x);
        let factors = sigmoid(self.up.forward(silu(self.down.forward(&y))));
        y * factors
    }
}
