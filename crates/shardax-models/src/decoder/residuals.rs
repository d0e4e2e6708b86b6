//! The sums of the inputs and the outputs of a block's layers.

use shardax_nn::prelude::*;

use super::{DecoderConfig, ResidualSums};

/// Adds the outputs of a block's layers to their inputs, see [`DecoderConfig::sums`].
#[derive(Module, Clone, Debug)]
pub struct Residuals {
    /// `[features]`: the factors of the input of attention, if they are learned.
    pub attention_factors: Option<Array>,
    /// `[features]`: the factors of the input of the MLP, if they are learned.
    pub mlp_factors: Option<Array>,
    /// The number of sums before this block, if the weights depend on it.
    #[tree(static)]
    depth: Option<usize>,
    /// True if the output of the experts is for the next layer.
    pub(super) delays_experts: bool,
    /// True if the input ends with the output of the experts in the layer before this one.
    receives_experts: bool,
}

impl Residuals {
    /// Creates the sums of the block with this index.
    #[track_caller]
    pub(super) fn new(config: &DecoderConfig, layer: usize, rngs: &mut Rngs) -> Residuals {
        let is_learned = config.sums == ResidualSums::LearnedFactors;
        let [attention_factors, mlp_factors] =
            [(); 2].map(|()| is_learned.then(|| ones_dtype([config.features], rngs.policy().param_dtype)));
        Residuals {
            attention_factors,
            mlp_factors,
            depth: (config.sums == ResidualSums::ByDepth).then_some(2 * layer),
            delays_experts: config.delays_experts(layer),
            receives_experts: layer > 0 && config.delays_experts(layer - 1),
        }
    }

    /// Adds the output of attention to its input `x`.
    #[track_caller]
    pub(super) fn add_attention(&self, x: &Array, y: Array) -> Array {
        add(x, y, &self.attention_factors, self.depth)
    }

    /// Adds the output of the MLP to its input `x`.
    #[track_caller]
    pub(super) fn add_mlp(&self, x: &Array, y: Array) -> Array {
        add(x, y, &self.mlp_factors, self.depth.map(|depth| depth + 1))
    }

    /// Divides `x` into the features and the output of the experts in the layer before this one, if `x` ends with it.
    pub(super) fn split_late(&self, x: Array) -> (Array, Option<Array>) {
        let features = x.shape().last().map_or(0, |features| features / 2);
        if !self.receives_experts {
            return (x, None);
        }
        (x.get((Ellipsis, ..features)), Some(x.get((Ellipsis, features..))))
    }
}

/// Adds `y` to `x`, with learned factors of `x`, or with the weights after `depth` other sums.
fn add(x: &Array, y: Array, factors: &Option<Array>, depth: Option<usize>) -> Array {
    match (factors, depth) {
        (Some(factors), _) => x * factors.astype(x.dtype()) + y,
        // The embedding counts as an output too.
        (None, Some(depth)) => {
            let outputs = depth as f64 + 2.0;
            x * ((outputs - 1.0) / outputs).sqrt() + y * outputs.sqrt().recip()
        }
        (None, None) => x + y,
    }
}
