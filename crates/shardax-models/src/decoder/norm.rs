//! The normalization layers of a decoder.

use shardax_nn::prelude::*;

use super::gated_norm::GatedNorm;
use super::{DecoderConfig, NormKind};

/// A normalization layer, see [`NormKind`].
#[derive(Module, Clone, Debug)]
pub enum Norm {
    /// Normalizes to mean 0 and variance 1.
    Layer(LayerNorm),
    /// Normalizes to mean 0 and variance 1, with 1 added to the scale.
    LayerOffset(LayerNorm),
    /// Normalizes to mean square 1.
    Rms(RmsNorm),
    /// Normalizes to mean square 1, and multiplies the results by factors.
    Gated(Box<GatedNorm>),
    /// Returns its input.
    Identity,
}

impl Norm {
    /// Creates a norm of this many features.
    #[track_caller]
    pub fn new(kind: NormKind, features: usize, epsilon: f64, rngs: &mut Rngs) -> Norm {
        let rms = RmsNorm::builder(features).epsilon(epsilon);
        let layer = LayerNorm::builder(features).epsilon(epsilon);
        match kind {
            NormKind::Layer => Norm::Layer(layer.build(rngs)),
            NormKind::LayerOffset => {
                Norm::LayerOffset(layer.scale_init(shardax::nn::initializers::zeros()).build(rngs))
            }
            NormKind::LayerScale => Norm::Layer(layer.use_bias(false).build(rngs)),
            NormKind::LayerPlain => Norm::Layer(layer.use_bias(false).use_scale(false).build(rngs)),
            NormKind::Rms => Norm::Rms(rms.build(rngs)),
            NormKind::RmsPlain => Norm::Rms(rms.use_scale(false).build(rngs)),
            NormKind::RmsOffset => {
                Norm::Rms(rms.scale_offset(1.0).scale_init(shardax::nn::initializers::zeros()).build(rngs))
            }
        }
    }

    /// Normalizes `x`, `[..., features]`. The result has the same shape.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        match self {
            Norm::Layer(norm) => norm.forward(x),
            Norm::LayerOffset(norm) => {
                // Add 1 in float32, because in bfloat16 the sum would lose most bits of a small scale.
                let scale = norm.scale.as_ref().map(|scale| scale.astype(DType::F32) + 1.0);
                let mut norm = norm.clone();
                norm.scale = scale;
                norm.forward(x.clone()).astype(x.dtype())
            }
            Norm::Rms(norm) => norm.forward(x),
            Norm::Gated(norm) => norm.forward(x),
            Norm::Identity => x,
        }
    }
}

/// Applies a norm. Without a norm, returns `x`.
#[track_caller]
pub(super) fn normed(norm: &Option<Norm>, x: &Array) -> Array {
    norm.as_ref().map_or_else(|| x.clone(), |norm| norm.forward(x))
}

/// Adds factors to an RMS norm, which are computed from `rank` features, if there are any.
pub(super) fn with_factors(norm: Option<Norm>, rank: Option<usize>, features: usize, rngs: &mut Rngs) -> Option<Norm> {
    match (norm, rank) {
        (Some(Norm::Rms(norm)), Some(rank)) => Some(Norm::Gated(Box::new(GatedNorm::new(norm, features, rank, rngs)))),
        (norm, _) => norm,
    }
}

/// Creates the norm of the configuration if `is_used` is true.
pub(super) fn norm_if(is_used: bool, config: &DecoderConfig, rngs: &mut Rngs) -> Option<Norm> {
    is_used.then(|| Norm::new(config.norm, config.features, config.epsilon, rngs))
}
