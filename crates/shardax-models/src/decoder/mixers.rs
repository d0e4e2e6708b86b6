//! The sizes of the layers that some models have in the place of attention.

use shardax_nn::prelude::*;

use super::Activation;

/// The sizes of [`LatentAttention`](crate::LatentAttention). All heads have keys and values, and `head_dim` is not used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LatentConfig {
    /// The features of the latent of queries; `None` if queries have none.
    pub query_rank: Option<usize>,
    /// The features of the latent of keys and values.
    pub rank: usize,
    /// The features of a head's key that are not rotated.
    pub key_dim: usize,
    /// The features of a head's key that are rotated, an even number.
    pub rope_dim: usize,
    /// The features of a head's value.
    pub value_dim: usize,
    /// The layer that chooses the positions that queries see; `None` if queries see all earlier positions.
    pub sparse: Option<SparseConfig>,
    /// The factors of the results of heads, if they have some.
    pub gate: Option<LatentGate>,
    /// True if the normalized latents are multiplied by the square root of the ratio of the model's features to theirs.
    pub scales_latents: bool,
}

/// The learned factors of the results of [`LatentAttention`](crate::LatentAttention), which are the sigmoids of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LatentGate {
    /// A linear layer computes a factor for each head from the input.
    Heads,
    /// A linear layer computes a factor for each feature of a value from the latent of queries, normalized and not. Queries are
    /// computed from both too.
    Latents,
}

/// The sizes of [`Indexer`](crate::Indexer).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SparseConfig {
    /// The heads that score positions.
    pub heads: usize,
    /// The features of a head, at least the rotated features of the attention.
    pub depth: usize,
    /// The largest number of positions that a query sees.
    pub count: usize,
    /// True if a pair of rotated features is two neighboring features.
    pub interleaved: bool,
    /// True for each layer that sees the positions that the layer before it sees; empty if each layer chooses its positions.
    pub shared: Vec<bool>,
}

impl SparseConfig {
    /// Returns `true` if the sizes are positive and heads have at least `rope_dim` features.
    pub(super) fn fits(&self, rope_dim: usize) -> bool {
        self.heads > 0 && self.count > 0 && self.depth >= rope_dim
    }

    /// Returns `true` if this layer sees the positions that the layer before it sees.
    pub(super) fn is_shared(&self, layer: usize) -> bool {
        self.shared.get(layer).is_some_and(|is_shared| *is_shared)
    }
}

/// The short convolutions of [`ShortConv`](crate::ShortConv).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvConfig {
    /// The number of positions that a convolution reads.
    pub width: usize,
    /// True if its layers have biases.
    pub use_bias: bool,
    /// True for each layer that has a convolution in the place of attention.
    pub layers: Vec<bool>,
}

/// The linear attention of [`GatedDelta`](crate::GatedDelta).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeltaConfig {
    /// The heads of queries and keys.
    pub key_heads: usize,
    /// The heads of values, a multiple of the heads of keys.
    pub value_heads: usize,
    /// The features of a query and a key.
    pub key_dim: usize,
    /// The features of a value.
    pub value_dim: usize,
    /// The number of positions that the convolution reads.
    pub width: usize,
    /// The features between the two layers that compute gates, and rates of forgetting of channels; `None` if each of them is
    /// one layer.
    pub rank: Option<usize>,
    /// True if each feature of a key has a rate of forgetting. Otherwise each head has one.
    pub channel_rates: bool,
    /// The bound of the logarithm of the rates of keeping, a negative number, which is multiplied by a sigmoid. `None` if the
    /// logarithm is the negative of a softplus and has no bound.
    pub rate_bound: Option<f64>,
    /// True if the function of gates is the sigmoid instead of SiLU.
    pub sigmoid_gates: bool,
    /// True if the rates of writing are between 0 and 2 instead of 0 and 1.
    pub doubles_writes: bool,
    /// The number that the norm of the result adds to the mean square, if it differs from the number of other norms.
    pub epsilon: Option<f64>,
    /// True for each layer that has linear attention in the place of attention.
    pub layers: Vec<bool>,
}

/// The layers of [`StateSpace`](crate::StateSpace).
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpaceConfig {
    /// The number of heads. Each head has a state.
    pub heads: usize,
    /// The features of a head's values.
    pub head_dim: usize,
    /// The number of groups of heads that share keys and queries. It must divide the number of heads.
    pub groups: usize,
    /// The features of a key and of a query.
    pub state_dim: usize,
    /// The number of positions that the convolution reads.
    pub width: usize,
    /// The function after the convolution.
    pub activation: Activation,
    /// The norm of the result.
    pub norm: StateSpaceNorm,
    /// The number that this norm adds to the mean square, if it differs from the number of other norms.
    pub epsilon: Option<f64>,
    /// True if the projections of the input have biases.
    pub use_bias: bool,
    /// True if the projection to the result has a bias.
    pub out_bias: bool,
    /// True if the convolution has a bias.
    pub conv_bias: bool,
    /// The shortest step.
    pub min_step: f64,
    /// The longest step; it can be infinite.
    pub max_step: f64,
    /// Constant factors of the parts of the layer.
    pub scales: Option<StateSpaceScales>,
    /// True for each layer that has a state space.
    pub layers: Vec<bool>,
    /// True if these layers have attention too, and the results are added.
    pub beside_attention: bool,
}

/// The norm of the result of a state-space layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StateSpaceNorm {
    /// No norm.
    None,
    /// An RMS norm of each group of heads, after they are multiplied by their gates.
    AfterGate,
    /// An RMS norm of each group of heads, before they are multiplied by their gates.
    BeforeGate,
}

/// The constant factors of a state-space layer's parts, as in Falcon H1.
#[derive(Module, Clone, Debug, PartialEq)]
pub struct StateSpaceScales {
    /// The factor of the input.
    pub input: f64,
    /// The factor of gates.
    pub gate: f64,
    /// The factor of values.
    pub value: f64,
    /// The factor of keys.
    pub key: f64,
    /// The factor of queries.
    pub query: f64,
    /// The factor of steps.
    pub step: f64,
    /// The factor of the result.
    pub output: f64,
}

impl Default for StateSpaceScales {
    fn default() -> Self {
        StateSpaceScales { input: 1.0, gate: 1.0, value: 1.0, key: 1.0, query: 1.0, step: 1.0, output: 1.0 }
    }
}

/// The layers of [`SelectiveState`](crate::SelectiveState).
#[derive(Clone, Debug, PartialEq)]
pub struct SelectiveConfig {
    /// The number of channels. Each channel has a state.
    pub channels: usize,
    /// The features of a key and of a query.
    pub state_dim: usize,
    /// The number of positions that the convolution reads.
    pub width: usize,
    /// The number of features from which the lengths of steps are computed.
    pub rank: usize,
    /// The function after the convolution.
    pub activation: Activation,
    /// True if the projections of the input and to the result have biases.
    pub use_bias: bool,
    /// True if the convolution has a bias.
    pub conv_bias: bool,
    /// The RMS norms of steps, keys and queries: true if they have scales, and the number that they add to the mean square.
    pub norms: Option<(bool, f64)>,
    /// True for each layer that has such a state in the place of attention.
    pub layers: Vec<bool>,
}

/// The linear attention of [`LightningAttention`](crate::LightningAttention), with the heads of the decoder.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LightningConfig {
    /// The function of queries, keys and values.
    pub activation: Activation,
    /// True for each layer that has it in the place of attention.
    pub layers: Vec<bool>,
}

/// The layers of [`RgLru`](crate::RgLru). The gates of channels are computed by as many matrices as the decoder has heads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RgLruConfig {
    /// The number of channels, a multiple of the number of heads.
    pub channels: usize,
    /// The number of positions that the convolution reads.
    pub width: usize,
    /// The function of the factors of the result.
    pub activation: Activation,
    /// True for each layer that has it in the place of attention.
    pub layers: Vec<bool>,
}
