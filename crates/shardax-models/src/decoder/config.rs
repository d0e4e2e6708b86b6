//! The configuration of decoders.

use shardax_nn::prelude::*;
use shardax_nn::{Implementation, QueryGrowth};

use super::mixers::{ConvConfig, DeltaConfig, LatentConfig, SelectiveConfig, StateSpaceConfig};
use super::mlp::Xielu;
use super::streams::{LayerEmbeddingConfig, StreamsConfig};

/// The architecture of a [`Decoder`](crate::Decoder).
///
/// [`new`](DecoderConfig::new) returns the architecture of Llama. For other models, you can change the fields. A list
/// of layers must be empty or have an entry for each layer; [`check`](DecoderConfig::check) verifies this.
///
/// ```
/// use shardax_models::{Activation, Biases, DecoderConfig, NormKind, Positions};
/// // GPT-2, small.
/// let config = DecoderConfig {
///     norm: NormKind::Layer,
///     epsilon: 1e-5,
///     positions: Positions::Learned(1024),
///     activation: Activation::GeluTanh,
///     gated: false,
///     biases: Biases { head: false, ..Biases::ALL },
///     tie_embeddings: true,
///     ..DecoderConfig::new(50_257, 12, 768, 12)
/// };
/// # config.check()?;
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// The size of the vocabulary.
    pub vocab_size: usize,
    /// The number of tokens that have logits, the first ones of the vocabulary, if not all have them. The token table cannot be
    /// the last layer then.
    pub logits: Option<usize>,
    /// The number of blocks.
    pub layers: usize,
    /// The number of features of a token.
    pub features: usize,
    /// The number of query heads.
    pub heads: usize,
    /// The number of key and value heads. It must divide the number of query heads.
    pub kv_heads: usize,
    /// The number of features of a head.
    pub head_dim: usize,
    /// The number of features of a head's value, if it differs from `head_dim`.
    pub value_dim: Option<usize>,
    /// The heads of each layer; empty if all layers have the heads of the fields above.
    pub layer_heads: Vec<HeadSizes>,
    /// For each layer, the earlier layer whose keys and values it uses; empty if each layer has its own.
    pub key_layers: Vec<Option<usize>>,
    /// True for each layer whose keys are values too, before both are normalized; empty if all layers have values.
    pub values_from_keys: Vec<bool>,
    /// True if the values of each head are normalized, without a scale.
    pub value_norm: bool,
    /// The number of hidden features of an MLP.
    pub hidden: usize,
    /// The number of hidden features of the MLP of each layer; empty if all are equal.
    pub layer_hidden: Vec<usize>,
    /// The share of the gates of each layer's MLP that become zero; empty if none do.
    pub gate_sparsity: Vec<f64>,
    /// The bound of the MLP and of the shared expert in each layer: activated gates are at most this number, and the
    /// features that they multiply are between it and its negative. The list is empty if no layer has a bound.
    pub mlp_bounds: Vec<Option<f64>>,
    /// The encoding of positions.
    pub positions: Positions,
    /// The number of unused rows at the start of a learned position embedding. OPT has 2.
    pub first_position: usize,
    /// The rotary positions of layers with a window, if they differ from the rotary positions of the other layers.
    pub local_rope: Option<Rope>,
    /// The window of each layer, in positions counting the query's own; empty if no layer has one.
    pub windows: Vec<Option<usize>>,
    /// The number of positions in a chunk, if layers with rotary positions attend only to the chunk of the query.
    pub chunk: Option<usize>,
    /// True for each layer without rotary positions; empty if all have them.
    pub without_rope: Vec<bool>,
    /// The kind of normalization.
    pub norm: NormKind,
    /// The number that norms add to the variance or the mean square.
    pub epsilon: f64,
    /// The activation function of MLPs.
    pub activation: Activation,
    /// True if MLPs have a gate: `down(activation(gate(x)) * up(x))`.
    pub gated: bool,
    /// The linear layers that have biases.
    pub biases: Biases,
    /// True for each layer whose attention has no bias in its last layer; empty if `biases` applies to all layers.
    pub without_out_bias: Vec<bool>,
    /// True if the token embedding is also the last layer.
    pub tie_embeddings: bool,
    /// True if token embeddings are normalized before the first layer.
    pub embedding_norm: bool,
    /// The number of features of the token embedding, if linear layers convert them to the features of the model and back.
    pub embedding_features: Option<usize>,
    /// The factor of token embeddings.
    pub embedding_scale: Option<f64>,
    /// The factor of the outputs of attention and MLP before they are added.
    pub residual_scale: Option<f64>,
    /// The factor of logits.
    pub logits_scale: Option<f64>,
    /// The factor of the input of attention.
    pub attention_input_scale: Option<f64>,
    /// The factor of the output of attention.
    pub attention_output_scale: Option<f64>,
    /// The factor of gates of MLPs, before the activation function.
    pub gate_scale: Option<f64>,
    /// The factor of outputs of MLPs.
    pub mlp_scale: Option<f64>,
    /// The factor of attention scores. Default `1 / sqrt(head_dim)`.
    pub attention_scale: Option<f64>,
    /// The factor of attention scores of each layer, instead of `attention_scale`; empty if all layers have that one.
    pub attention_scales: Vec<f64>,
    /// The bound of attention scores, see [`AttentionOptions::soft_cap`].
    pub attention_soft_cap: Option<f64>,
    /// The implementation of attention, see [`AttentionOptions::implementation`]. Default: chosen by platform, dtypes and
    /// size.
    pub attention_implementation: Option<Implementation>,
    /// The bound of logits, by `cap * tanh(logits / cap)`.
    pub logits_soft_cap: Option<f64>,
    /// The norms of queries and keys.
    pub qk_norm: QkNorm,
    /// True if queries and keys are normalized after they are rotated.
    pub qk_norm_after_rope: bool,
    /// The bound of the elements of queries, keys and values.
    pub qkv_bound: Option<f64>,
    /// The factor of queries, which grows with their position. If some layers have no rotary positions, it applies only to
    /// those layers.
    pub query_growth: Option<QueryGrowth>,
    /// True if the softmax of each head includes a learned score, see [`AttentionOptions::sinks`].
    pub sinks: bool,
    /// True for each layer without the scores of `sinks`; empty if all layers have them.
    pub without_sinks: Vec<bool>,
    /// True if the inputs of attention and MLP are normalized.
    pub pre_norms: bool,
    /// True if the outputs of attention and MLP are normalized before they are added.
    pub post_norms: bool,
    /// The arrays that each layer normalizes; empty if `pre_norms` and `post_norms` apply to all layers.
    pub norm_places: Vec<NormPlace>,
    /// True if the inputs of the last layers of attention and MLP are normalized, as in BitNet.
    pub inner_norms: bool,
    /// True if the sums of inputs and outputs of attention and MLP are normalized, as in the first GPT.
    pub sum_norms: bool,
    /// True if the input of attention is normalized in the first layer too. Otherwise the norm of embeddings is in its place.
    pub first_norm: bool,
    /// True if the output of the last layer is normalized.
    pub final_norm: bool,
    /// The function of a linear layer between the final norm and the layer that computes logits, and true if this
    /// linear layer has a bias. A norm follows the function.
    pub head_activation: Option<(Activation, bool)>,
    /// True if attention and MLP have the same input.
    pub parallel: bool,
    /// True if attention and MLP share the norm of their input.
    pub shared_norm: bool,
    /// The experts, if the model has experts instead of an MLP.
    pub experts: Option<ExpertsConfig>,
    /// The convolutions, if some layers have one instead of attention.
    pub conv: Option<ConvConfig>,
    /// The linear attention, if some layers have it.
    pub delta: Option<DeltaConfig>,
    /// The state-space layers, if some layers have them.
    pub state_space: Option<StateSpaceConfig>,
    /// The state-space layers of the first form of Mamba, if some layers have them.
    pub selective: Option<SelectiveConfig>,
    /// The parts of each layer; empty if all layers have attention, or a layer in its place, and an MLP.
    pub parts: Vec<LayerParts>,
    /// The learned factors of the results of heads, see [`MultiHeadAttention::gate`].
    pub attention_gate: Option<AttentionGate>,
    /// True if positions attend to later positions too, as in encoders. Such a model cannot generate text, because it
    /// would have to compute all positions again for each token.
    pub bidirectional: bool,
    /// The sizes of latent attention, if keys and values are computed from a latent.
    pub latent: Option<LatentConfig>,
    /// An embedding of tokens that each layer adds to its output, as in Gemma 3n and Gemma 4.
    pub layer_embedding: Option<LayerEmbeddingConfig>,
    /// Several streams of features, as in Gemma 3n.
    pub streams: Option<StreamsConfig>,
    /// True if the output of each layer has a learned factor.
    pub layer_scale: bool,
    /// True if the layers are one [`Stack`], compiled as a loop. Their windows must be equal.
    pub scan_layers: bool,
    /// The intermediate values of a layer that are stored for the gradient. Default: all of them.
    pub checkpoint: Option<CheckpointPolicy>,
}

/// The experts of a layer. Each expert is an MLP, and each token passes through a few of them.
///
/// ```
/// use shardax_models::{DecoderConfig, ExpertsConfig};
/// // Mixtral, 8 times 7B.
/// let experts = ExpertsConfig { capacity_factor: None, ..ExpertsConfig::new(8, 14_336) };
/// let config = DecoderConfig { experts: Some(experts), kv_heads: 8, ..DecoderConfig::new(32_000, 32, 4096, 32) };
/// # config.check()?;
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsConfig {
    /// The number of experts.
    pub count: usize,
    /// The number of experts that process each token.
    pub per_token: usize,
    /// The number of hidden features of an expert.
    pub hidden: usize,
    /// The scores of the router.
    pub scores: RouterScores,
    /// The groups that the experts of a token come from.
    pub groups: Option<ExpertGroups>,
    /// True if the weights of a token's experts are normalized to sum to 1.
    pub normalized: bool,
    /// The factor of the weights.
    pub scale: f64,
    /// True if a learned number is added to each score before experts are chosen, see [`MixtureOfExperts::correction`].
    pub correction: bool,
    /// True if the router and the experts have biases.
    pub biases: bool,
    /// The number of hidden features of the shared expert, which processes all tokens, if there is one.
    pub shared_hidden: Option<usize>,
    /// True if the output of the shared expert is multiplied by the sigmoid of a linear layer.
    pub shared_gate: bool,
    /// True if the result is the mean of the experts' output and the output of that MLP, instead of their sum.
    pub averages_shared: bool,
    /// True if the outputs of layers with experts are normalized before they are added.
    pub post_norms: bool,
    /// The bound of [`RouterScores::SparseMixer`], see [`MixtureOfExperts::jitter`].
    pub jitter: f64,
    /// True if the layer also has an MLP, whose normalized output is added to the normalized output of the experts, as in
    /// Gemma 4.
    pub beside_mlp: bool,
    /// True if the weights of a token's experts are factors of the experts' inputs instead of their outputs.
    pub weighs_inputs: bool,
    /// The bound of the gates and of their factors in each layer's experts, as in [`DecoderConfig::mlp_bounds`].
    pub bounds: Vec<Option<f64>>,
    /// The capacity of each expert, as a multiple of a balanced load. Tokens beyond it are dropped, so you should use
    /// `None`, which drops no token, except in training.
    pub capacity_factor: Option<f64>,
    /// True for each layer that has an MLP instead of experts. The list is empty if all layers have experts.
    pub dense_layers: Vec<bool>,
}

impl ExpertsConfig {
    /// Mixtral's experts, two for each token, with the capacity for training.
    pub fn new(count: usize, hidden: usize) -> Self {
        ExpertsConfig {
            count,
            per_token: count.min(2),
            hidden,
            scores: RouterScores::Softmax,
            groups: None,
            normalized: true,
            scale: 1.0,
            correction: false,
            biases: false,
            shared_hidden: None,
            shared_gate: false,
            averages_shared: false,
            post_norms: false,
            jitter: 0.01,
            beside_mlp: false,
            weighs_inputs: false,
            bounds: Vec::new(),
            capacity_factor: Some(1.25),
            dense_layers: Vec::new(),
        }
    }
}

/// The learned factors of the results of attention heads. By default, each feature has the sigmoid of a linear layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AttentionGate {
    /// True if all features of a head have the same factor.
    pub per_head: bool,
    /// True if the function is softplus instead of the sigmoid.
    pub softplus: bool,
}

/// The heads of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadSizes {
    /// The number of query heads.
    pub heads: usize,
    /// The number of key and value heads.
    pub kv_heads: usize,
    /// The number of features of a head.
    pub head_dim: usize,
}

impl HeadSizes {
    /// Returns true if no size is zero, and each key head belongs to the same number of query heads.
    pub(super) fn are_valid(&self) -> bool {
        ![self.heads, self.kv_heads, self.head_dim].contains(&0) && self.heads.is_multiple_of(self.kv_heads)
    }
}

/// The parts of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LayerParts {
    /// Attention, or a layer in its place, and then an MLP or experts.
    #[default]
    Both,
    /// Attention, or a layer in its place.
    Mixer,
    /// An MLP or experts.
    Mlp,
}

/// The norms of queries and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QkNorm {
    /// No norm.
    #[default]
    None,
    /// A norm of each head, whose scale all heads share.
    Head,
    /// An RMS norm of all heads together.
    AllHeads,
    /// A norm of each head, with a separate scale for each head.
    EachHead,
    /// An RMS norm of each head without a scale, in layers with rotary positions.
    HeadPlain,
}

/// The arrays that a layer normalizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NormPlace {
    /// The inputs of attention and MLP.
    Inputs,
    /// The outputs of attention and MLP, before they are added.
    Outputs,
}

/// The encoding of positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Positions {
    /// Queries and keys are turned.
    Rotary(Rope),
    /// A learned table of this many positions is added to token embeddings.
    Learned(usize),
    /// Sines and cosines of the positions are added to token embeddings. The number of features must be even.
    Sines,
    /// Attention scores decrease with the distance ([ALiBi](https://arxiv.org/abs/2108.12409)). Each head has another
    /// slope; the smallest one is two to the minus this number.
    Alibi(f64),
    /// ALiBi with the slopes of 8, where slopes and biases are rounded to bfloat16 and then multiplied by this factor, as
    /// in Falcon.
    RoundedAlibi(f64),
}

/// The kind of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NormKind {
    /// [`LayerNorm`] with scale and bias.
    Layer,
    /// [`LayerNorm`] with 1 added to its scale, and a bias, as in Nemotron.
    LayerOffset,
    /// [`LayerNorm`] with a scale and without a bias.
    LayerScale,
    /// [`LayerNorm`] without parameters.
    LayerPlain,
    /// [`RmsNorm`].
    Rms,
    /// [`RmsNorm`] with 1 added to its scale, as in Gemma.
    RmsOffset,
    /// [`RmsNorm`] without parameters.
    RmsPlain,
}

/// The function in MLPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// [`gelu_exact`]
    Gelu,
    /// [`gelu`]
    GeluTanh,
    /// `x * sigmoid(1.702 * x)`
    QuickGelu,
    /// [`silu`]
    Silu,
    /// [`relu`]
    Relu,
    /// [`relu6`]
    Relu6,
    /// The square of [`relu`].
    ReluSquared,
    /// A parabola of positive numbers and an exponential function of negative ones, whose factors each MLP learns
    /// ([Huang and Schlag 2024](https://arxiv.org/abs/2411.13010)).
    Xielu,
    /// gpt-oss's gate: `clamp(gate) * sigmoid(1.702 * clamp(gate)) * (clamp(up) + 1)`, where the bound of both is 7.
    ClampedSwiglu,
}

/// The linear layers that have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Biases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// The last layer of attention.
    pub out: bool,
    /// The layers of MLPs.
    pub mlp: bool,
    /// The layer that computes logits.
    pub head: bool,
}

impl Biases {
    /// No layer.
    pub const NONE: Biases = Biases { qkv: false, out: false, mlp: false, head: false };
    /// Every layer.
    pub const ALL: Biases = Biases { qkv: true, out: true, mlp: true, head: true };
}

impl Activation {
    /// Returns the function of each element.
    pub fn apply(self, x: impl ArrayLike) -> Array {
        match self {
            Activation::Gelu => gelu_exact(x),
            Activation::GeluTanh => gelu(x),
            Activation::QuickGelu => {
                let x = x.into_array();
                &x * sigmoid(&x * 1.702)
            }
            Activation::Silu => silu(x),
            Activation::Relu => relu(x),
            Activation::Relu6 => relu6(x),
            Activation::ReluSquared => relu(x).square(),
            // An MLP that has learned other factors applies them itself.
            Activation::Xielu => Xielu::default().apply(&x.into_array()),
            Activation::ClampedSwiglu => {
                let x = x.into_array().minimum(SWIGLU_BOUND);
                &x * sigmoid(&x * 1.702)
            }
        }
    }

    /// Computes the product of the activated gate and `up`.
    pub(crate) fn gated(self, gate: Array, up: Array) -> Array {
        match self {
            Activation::ClampedSwiglu => self.apply(gate) * (up.clip(-SWIGLU_BOUND, SWIGLU_BOUND) + 1.0),
            _ => self.apply(gate) * up,
        }
    }
}

/// The bound of [`Activation::ClampedSwiglu`].
const SWIGLU_BOUND: f64 = 7.0;

impl DecoderConfig {
    /// Llama's architecture: RMS norms, rotary positions, gated MLPs with four times the features, no biases.
    pub fn new(vocab_size: usize, layers: usize, features: usize, heads: usize) -> Self {
        DecoderConfig {
            vocab_size,
            logits: None,
            layers,
            features,
            heads,
            kv_heads: heads,
            // This constructor returns no error, so that it can be used in a struct update. `check` reports invalid sizes.
            head_dim: features.checked_div(heads).unwrap_or(0),
            value_dim: None,
            layer_heads: Vec::new(),
            key_layers: Vec::new(),
            values_from_keys: Vec::new(),
            value_norm: false,
            hidden: features.saturating_mul(4),
            layer_hidden: Vec::new(),
            gate_sparsity: Vec::new(),
            mlp_bounds: Vec::new(),
            positions: Positions::Rotary(Rope::default()),
            first_position: 0,
            local_rope: None,
            windows: Vec::new(),
            chunk: None,
            without_rope: Vec::new(),
            norm: NormKind::Rms,
            epsilon: 1e-6,
            activation: Activation::Silu,
            gated: true,
            biases: Biases::NONE,
            without_out_bias: Vec::new(),
            tie_embeddings: false,
            embedding_norm: false,
            embedding_features: None,
            embedding_scale: None,
            residual_scale: None,
            logits_scale: None,
            attention_input_scale: None,
            attention_output_scale: None,
            gate_scale: None,
            mlp_scale: None,
            attention_scale: None,
            attention_scales: Vec::new(),
            attention_soft_cap: None,
            attention_implementation: None,
            logits_soft_cap: None,
            qk_norm: QkNorm::None,
            qk_norm_after_rope: false,
            qkv_bound: None,
            query_growth: None,
            sinks: false,
            without_sinks: Vec::new(),
            pre_norms: true,
            post_norms: false,
            norm_places: Vec::new(),
            inner_norms: false,
            sum_norms: false,
            first_norm: true,
            final_norm: true,
            head_activation: None,
            parallel: false,
            shared_norm: false,
            experts: None,
            conv: None,
            delta: None,
            state_space: None,
            selective: None,
            parts: Vec::new(),
            attention_gate: None,
            bidirectional: false,
            latent: None,
            layer_embedding: None,
            streams: None,
            layer_scale: false,
            scan_layers: false,
            checkpoint: None,
        }
    }

    /// The heads of this layer.
    pub(crate) fn heads_of(&self, layer: usize) -> HeadSizes {
        let DecoderConfig { heads, kv_heads, head_dim, .. } = *self;
        self.layer_heads.get(layer).copied().unwrap_or(HeadSizes { heads, kv_heads, head_dim })
    }

    /// Returns whether the inputs of this layer's parts are normalized, and whether their outputs are.
    pub(crate) fn normalizes(&self, layer: usize) -> (bool, bool) {
        match self.norm_places.get(layer) {
            Some(place) => (*place == NormPlace::Inputs, *place == NormPlace::Outputs),
            None => (self.pre_norms, self.post_norms),
        }
    }

    /// The earlier layer whose keys and values this layer uses.
    pub(crate) fn key_layer(&self, layer: usize) -> Option<usize> {
        self.key_layers.get(layer).copied().flatten()
    }

    /// The window of this layer.
    pub(crate) fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }

    /// The slope of each head's scores over the distance, for [`Positions::Alibi`].
    pub(crate) fn alibi_slopes(&self) -> Option<Vec<f32>> {
        let max_bias = match self.positions {
            Positions::Alibi(max_bias) => max_bias,
            Positions::RoundedAlibi(_) => 8.0,
            Positions::Rotary(_) | Positions::Sines | Positions::Learned(_) => return None,
        };
        // A number of heads that is no power of 2 has the slopes of the power below it, and every second slope of the
        // power above it.
        let lower = 1 << self.heads.max(1).ilog2();
        let first = (1..=lower).map(|index| (index, lower));
        let second = (1..2 * lower).step_by(2).map(|index| (index, 2 * lower));
        let slopes = first.chain(second).map(|(index, heads)| (-max_bias * index as f64 / heads as f64).exp2() as f32);
        Some(slopes.take(self.heads).collect())
    }

    /// The convolution of this layer, if it has one.
    pub(crate) fn conv_of(&self, layer: usize) -> Option<&ConvConfig> {
        self.conv.as_ref().filter(|conv| conv.layers.get(layer).is_some_and(|has_conv| *has_conv))
    }

    /// The linear attention of this layer, if it has one.
    pub(crate) fn delta_of(&self, layer: usize) -> Option<&DeltaConfig> {
        self.delta.as_ref().filter(|delta| delta.layers.get(layer).is_some_and(|has_delta| *has_delta))
    }

    /// The state-space layer of this layer, if it has one.
    pub(crate) fn state_space_of(&self, layer: usize) -> Option<&StateSpaceConfig> {
        self.state_space.as_ref().filter(|space| space.layers.get(layer).is_some_and(|has_space| *has_space))
    }

    /// The state-space layer of the first form in this layer, if it has one.
    pub(crate) fn selective_of(&self, layer: usize) -> Option<&SelectiveConfig> {
        self.selective.as_ref().filter(|space| space.layers.get(layer).is_some_and(|has_space| *has_space))
    }

    /// The parts of this layer.
    pub(crate) fn parts_of(&self, layer: usize) -> LayerParts {
        self.parts.get(layer).copied().unwrap_or_default()
    }

    /// The experts of this layer, if it has any.
    pub(crate) fn experts_of(&self, layer: usize) -> Option<&ExpertsConfig> {
        self.experts.as_ref().filter(|experts| !experts.dense_layers.get(layer).is_some_and(|is_dense| *is_dense))
    }

    /// The rotary positions of this layer, if it has any.
    pub(crate) fn rope_of(&self, layer: usize) -> Option<Rope> {
        let Positions::Rotary(rope) = &self.positions else { return None };
        if self.without_rope.get(layer).is_some_and(|without| *without) {
            return None;
        }
        Some(self.window(layer).and(self.local_rope.clone()).unwrap_or_else(|| rope.clone()))
    }
}
