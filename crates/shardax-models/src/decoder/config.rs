//! The configuration of decoders.

use shardax_nn::prelude::*;
use shardax_nn::{Implementation, QueryGrowth, RopeScaling};

use super::mixers::{
    ConvConfig, DeltaConfig, LatentConfig, LightningConfig, RgLruConfig, SelectiveConfig, StateSpaceConfig,
};
use super::parts::{
    Activation, AttentionGate, Biases, ExpertsConfig, HeadSizes, LayerParts, NormKind, NormPlace, Positions, QkNorm,
    ResidualFactors, ResidualSums,
};
use super::shared::SharedConfig;
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
    /// The number of features from which factors of the normalized inputs of attention and experts are computed, if they have
    /// factors, see [`GatedNorm`](crate::GatedNorm).
    pub norm_gates: Option<usize>,
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
    /// The linear attention whose states decay at constant rates, if some layers have it.
    pub lightning: Option<LightningConfig>,
    /// The gated linear recurrent units, if some layers have them.
    pub rg_lru: Option<RgLruConfig>,
    /// The factors of each layer's sums, if its normalized inputs, instead of its inputs, are added to its outputs; empty if
    /// the inputs are added.
    pub residual_factors: Vec<ResidualFactors>,
    /// The sums of the inputs and the outputs of attention and MLPs.
    pub sums: ResidualSums,
    /// The parts of each layer; empty if all layers have attention, or a layer in its place, and an MLP.
    pub parts: Vec<LayerParts>,
    /// True if the results of the second half of the heads are subtracted from the results of the first half, see
    /// [`MultiHeadAttention::difference`].
    pub differential: bool,
    /// The largest number of keys that a query sees, if scores of keys are computed from their values, see
    /// [`MultiHeadAttention::value_scores`].
    pub value_scores: Option<usize>,
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
    /// Attention and MLPs that several layers share, as in Zamba 2. All layers must have state spaces.
    pub shared: Option<SharedConfig>,
    /// True if the output of each layer has a learned factor.
    pub layer_scale: bool,
    /// True if the layers are one [`Stack`], compiled as a loop. Their windows must be equal.
    pub scan_layers: bool,
    /// The intermediate values of a layer that are stored for the gradient. Default: all of them.
    pub checkpoint: Option<CheckpointPolicy>,
}

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
            norm_gates: None,
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
            lightning: None,
            rg_lru: None,
            residual_factors: Vec::new(),
            sums: ResidualSums::Plain,
            parts: Vec::new(),
            differential: false,
            value_scores: None,
            attention_gate: None,
            bidirectional: false,
            latent: None,
            layer_embedding: None,
            streams: None,
            shared: None,
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

    /// The linear attention with constant rates of this layer, if it has one.
    pub(crate) fn lightning_of(&self, layer: usize) -> Option<&LightningConfig> {
        self.lightning.as_ref().filter(|about| about.layers.get(layer).is_some_and(|is_used| *is_used))
    }

    /// The gated linear recurrent unit of this layer, if it has one.
    pub(crate) fn rg_lru_of(&self, layer: usize) -> Option<&RgLruConfig> {
        self.rg_lru.as_ref().filter(|about| about.layers.get(layer).is_some_and(|is_used| *is_used))
    }

    /// The parts of this layer.
    pub(crate) fn parts_of(&self, layer: usize) -> LayerParts {
        self.parts.get(layer).copied().unwrap_or_default()
    }

    /// The experts of this layer, if it has any.
    pub(crate) fn experts_of(&self, layer: usize) -> Option<&ExpertsConfig> {
        self.experts.as_ref().filter(|experts| !experts.dense_layers.get(layer).is_some_and(|is_dense| *is_dense))
    }

    /// The shared layer that this layer uses, and its index. Layers use the shared layers in turn.
    pub(crate) fn shared_of(&self, layer: usize) -> Option<(&SharedConfig, usize)> {
        let shared = self.shared.as_ref().filter(|shared| shared.layers.get(layer) == Some(&true))?;
        let earlier = shared.layers.iter().take(layer).filter(|is_user| **is_user).count();
        Some((shared, earlier % shared.count.max(1)))
    }

    /// Returns true if the output of this layer's experts is added to the output of the next layer.
    pub(crate) fn delays_experts(&self, layer: usize) -> bool {
        self.experts_of(layer).is_some_and(|experts| experts.delayed)
    }

    /// Returns the length of the texts for which the model was trained first, if the rotary positions of longer texts have other
    /// frequencies (LongRoPE). Features of a text that becomes longer must be computed again.
    pub(crate) fn rope_limit(&self) -> Option<usize> {
        let Positions::Rotary(rope) = &self.positions else { return None };
        let limits = std::iter::once(rope).chain(&self.local_rope).filter_map(|rope| match rope.scaling {
            RopeScaling::LongRope { original_max_position, .. } => Some(original_max_position as usize),
            _ => None,
        });
        limits.min()
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
