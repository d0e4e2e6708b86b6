//! The configuration of decoders.

use shardax::error::Result;
use shardax_nn::prelude::*;
use shardax_nn::{Implementation, QueryGrowth};

use super::block::Xielu;
use crate::error::value_error;

/// The architecture of a [`Decoder`](crate::Decoder).
///
/// [`new`](DecoderConfig::new) returns the architecture of Llama. For other models, you can change the fields:
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
    /// The number of hidden features of an MLP.
    pub hidden: usize,
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
    /// The factor of attention scores. Default `1 / sqrt(head_dim)`.
    pub attention_scale: Option<f64>,
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
    /// True if the inputs of attention and MLP are normalized.
    pub pre_norms: bool,
    /// True if the outputs of attention and MLP are normalized before they are added.
    pub post_norms: bool,
    /// True if the sums of inputs and outputs of attention and MLP are normalized, as in the first GPT.
    pub sum_norms: bool,
    /// True if the input of attention is normalized in the first layer too. Otherwise the norm of embeddings is in its place.
    pub first_norm: bool,
    /// True if the output of the last layer is normalized.
    pub final_norm: bool,
    /// The function of a linear layer between the final norm and the layer that gives logits, and true if this layer has a
    /// bias. A norm follows the function.
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
    /// True if the results of heads have learned factors, see [`MultiHeadAttention::gate`].
    pub attention_gate: bool,
    /// The sizes of latent attention, if keys and values are computed from a latent.
    pub latent: Option<LatentConfig>,
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
    /// True if the weights of a token's experts are factors of the experts' inputs instead of their outputs.
    pub weighs_inputs: bool,
    /// The capacity of each expert, as a multiple of a balanced load; `None` if no token is dropped.
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
            weighs_inputs: false,
            capacity_factor: Some(1.25),
            dense_layers: Vec::new(),
        }
    }
}

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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    /// True for each layer that has linear attention in the place of attention.
    pub layers: Vec<bool>,
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

/// The encoding of positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Positions {
    /// Queries and keys are turned.
    Rotary(Rope),
    /// A learned table of this many positions is added to token embeddings.
    Learned(usize),
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
    /// The layer that gives logits.
    pub head: bool,
}

impl Biases {
    /// No layer.
    pub const NONE: Biases = Biases { qkv: false, out: false, mlp: false, head: false };
    /// Every layer.
    pub const ALL: Biases = Biases { qkv: true, out: true, mlp: true, head: true };
}

impl Activation {
    /// The function of each element.
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
            layers,
            features,
            heads,
            kv_heads: heads,
            // This constructor returns no error, so that it can be used in a struct update. `check` reports invalid sizes.
            head_dim: features.checked_div(heads).unwrap_or(0),
            hidden: features.saturating_mul(4),
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
            tie_embeddings: false,
            embedding_norm: false,
            embedding_features: None,
            embedding_scale: None,
            residual_scale: None,
            logits_scale: None,
            attention_scale: None,
            attention_soft_cap: None,
            attention_implementation: None,
            logits_soft_cap: None,
            qk_norm: QkNorm::None,
            qk_norm_after_rope: false,
            qkv_bound: None,
            query_growth: None,
            sinks: false,
            pre_norms: true,
            post_norms: false,
            sum_norms: false,
            first_norm: true,
            final_norm: true,
            head_activation: None,
            parallel: false,
            shared_norm: false,
            experts: None,
            conv: None,
            delta: None,
            attention_gate: false,
            latent: None,
            scan_layers: false,
            checkpoint: None,
        }
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// Returns an error if a size is 0, if sizes do not divide each other, if options exclude each other, or if a matrix
    /// would be too large.
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        let location = std::panic::Location::caller();
        let checked = self
            .check_sizes()
            .and_then(|()| self.check_latent_attention())
            .and_then(|()| self.check_overflow())
            .and_then(|()| self.check_lists_of_layers())
            .and_then(|()| self.check_experts_and_positions())
            .and_then(|()| self.check_convolution_and_linear_attention())
            .and_then(|()| self.check_windows())
            .and_then(|()| self.check_norms())
            .and_then(|()| self.check_rotary_features());
        checked.map_err(|error| error.at(location))
    }

    fn check_sizes(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("layers", self.layers),
            ("features", self.features),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("hidden", self.hidden),
            ("embedding_features", self.embedding_features.unwrap_or(1)),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(value_error(
                format!("a decoder's {name} must be positive, got 0"),
                "set it to a positive size",
            ));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let message = format!("kv_heads ({}) does not divide heads ({})", self.kv_heads, self.heads);
            return Err(value_error(message, "choose a number of heads that is a multiple of kv_heads"));
        }
        Ok(())
    }

    fn check_latent_attention(&self) -> Result<()> {
        if let Some(LatentConfig { query_rank, rank, key_dim, rope_dim, value_dim }) = &self.latent {
            let sizes = [query_rank.unwrap_or(1), *rank, *key_dim, *rope_dim, *value_dim];
            if sizes.contains(&0) || rope_dim % 2 == 1 || !matches!(self.positions, Positions::Rotary(_)) {
                let message =
                    format!("{:?} with positions {:?} do not describe an attention layer", self.latent, self.positions);
                return Err(value_error(message, "use positive sizes, an even rope_dim, and Positions::Rotary"));
            }
        }
        Ok(())
    }

    /// Returns an error if a matrix would be too large. This check comes first, because the others multiply sizes.
    fn check_overflow(&self) -> Result<()> {
        if let Some((name, a, b)) = self.extents().into_iter().find(|(_, a, b)| product(&[*a, *b, 8]).is_none()) {
            return Err(value_error(format!("a decoder's {name}, {a} by {b}, overflows"), "use smaller sizes"));
        }
        Ok(())
    }

    /// Lists with an entry for each layer are empty or complete.
    fn check_lists_of_layers(&self) -> Result<()> {
        let dense = self.experts.as_ref().map_or(0, |experts| experts.dense_layers.len());
        for (name, count) in [
            ("windows", self.windows.len()),
            ("without_rope", self.without_rope.len()),
            ("dense_layers", dense),
            ("conv.layers", self.conv.as_ref().map_or(0, |conv| conv.layers.len())),
        ] {
            if count > 0 && count != self.layers {
                let message = format!("{name} has {count} entries for {} layers", self.layers);
                return Err(value_error(message, "pass one entry for each layer, or an empty list"));
            }
        }
        Ok(())
    }

    fn check_experts_and_positions(&self) -> Result<()> {
        if let Some(ExpertsConfig { count, per_token, hidden, .. }) = &self.experts
            && (*hidden == 0 || *per_token == 0 || per_token > count)
        {
            let message = format!("{per_token} of {count} experts of {hidden} features do not fit each other");
            return Err(value_error(message, "set hidden to at least 1, and per_token to a number from 1 to count"));
        }
        if let Positions::Learned(length) = self.positions
            && self.first_position >= length
        {
            let message =
                format!("a table of {length} positions has none from first_position {} on", self.first_position);
            return Err(value_error(message, "use a longer table, or a smaller first_position"));
        }
        if self.experts.as_ref().is_some_and(|experts| experts.weighs_inputs && experts.capacity_factor.is_some()) {
            let message = "experts with weighs_inputs cannot have a capacity_factor";
            return Err(value_error(message, "set capacity_factor to None"));
        }
        Ok(())
    }

    fn check_convolution_and_linear_attention(&self) -> Result<()> {
        if self.conv.as_ref().is_some_and(|conv| conv.width == 0) {
            return Err(value_error("the width of a convolution is 0", "set the width to at least 1"));
        }
        if let Some(delta) = &self.delta {
            let DeltaConfig { key_heads, value_heads, key_dim, value_dim, width, layers } = delta;
            let sizes = [*key_heads, *value_heads, *key_dim, *value_dim, *width];
            let fits = !sizes.contains(&0) && value_heads.is_multiple_of(*key_heads) && layers.len() == self.layers;
            if !fits || product(&[*value_heads, *key_dim, *value_dim, 8]).is_none() {
                let message = format!("{delta:?} does not describe linear attention in {} layers", self.layers);
                return Err(value_error(
                    message,
                    "use positive sizes, a value_heads that is a multiple of key_heads, and one entry in layers for each layer",
                ));
            }
        }
        Ok(())
    }

    fn check_windows(&self) -> Result<()> {
        if self.chunk == Some(0) {
            return Err(value_error("a chunk has 0 positions", "set the chunk to at least 1 position, or to None"));
        }
        if self.windows.contains(&Some(0)) {
            return Err(value_error("a window has 0 positions", "set the window to at least 1 position, or to None"));
        }
        Ok(())
    }

    fn check_norms(&self) -> Result<()> {
        // The body of a loop is traced once, so all layers must have the same structure.
        if self.scan_layers && !self.is_uniform() {
            let message =
                "scan_layers requires layers with the same structure, but their windows, positions or experts differ";
            return Err(value_error(message, "set scan_layers to false, or make all layers equal"));
        }
        if self.sum_norms && (self.pre_norms || self.post_norms || self.parallel) {
            let message = "sum_norms cannot be combined with pre_norms, post_norms or parallel";
            return Err(value_error(message, "set the other fields to false"));
        }
        if self.qk_norm != QkNorm::None && self.norm == NormKind::LayerOffset {
            let message = "NormKind::LayerOffset does not support norms of queries and keys";
            return Err(value_error(message, "set qk_norm to QkNorm::None, or choose another kind of norm"));
        }
        if self.qk_norm == QkNorm::EachHead && !matches!(self.norm, NormKind::Layer | NormKind::LayerScale) {
            return Err(value_error(
                format!("QkNorm::EachHead requires a layer norm with scales, but norm is NormKind::{:?}", self.norm),
                "set norm to NormKind::Layer or NormKind::LayerScale, or qk_norm to QkNorm::Head",
            ));
        }
        if self.qk_norm == QkNorm::AllHeads && !matches!(self.norm, NormKind::Rms | NormKind::RmsOffset) {
            return Err(value_error(
                format!("QkNorm::AllHeads requires an RMS norm, but norm is NormKind::{:?}", self.norm),
                "set norm to NormKind::Rms, or qk_norm to QkNorm::Head",
            ));
        }
        Ok(())
    }

    /// Rotary positions turn pairs of features.
    fn check_rotary_features(&self) -> Result<()> {
        if self.head_dim % 2 == 1 && matches!(&self.positions, Positions::Rotary(Rope { rotary_dim: None, .. })) {
            let message = format!("rotary positions need an even head_dim, got {}", self.head_dim);
            return Err(value_error(
                message,
                "set head_dim to an even number, or choose features and heads whose ratio is even",
            ));
        }
        Ok(())
    }

    /// True if all layers have one structure.
    fn is_uniform(&self) -> bool {
        fn equal<T: PartialEq>(entries: &[T]) -> bool {
            entries.windows(2).all(|pair| pair[0] == pair[1])
        }
        let dense = self.experts.as_ref().map_or(&[][..], |experts| &experts.dense_layers);
        let convs = self.conv.as_ref().map_or(&[][..], |conv| &conv.layers);
        let deltas = self.delta.as_ref().map_or(&[][..], |delta| &delta.layers);
        self.first_norm
            && equal(&self.windows)
            && equal(&self.without_rope)
            && equal(dense)
            && equal(convs)
            && equal(deltas)
    }

    /// The largest matrices, for bounds.
    pub(crate) fn extents(&self) -> Vec<(&'static str, usize, usize)> {
        let latent = self.latent.as_ref().map_or(0, |latent| {
            let depth = latent.key_dim.saturating_add(latent.rope_dim).saturating_add(latent.value_dim);
            self.heads.saturating_mul(depth).max(latent.rank).max(latent.query_rank.unwrap_or(0))
        });
        // With latent attention there are no matrices from features to heads.
        let head_dim = if self.latent.is_some() { 0 } else { self.head_dim };
        let experts = self.experts.as_ref().map_or(0, |experts| experts.count.saturating_mul(experts.hidden));
        let learned = match self.positions {
            Positions::Learned(length) => length,
            Positions::Rotary(_) | Positions::Alibi(_) | Positions::RoundedAlibi(_) => 0,
        };
        vec![
            ("token table", self.vocab_size, self.embedding_features.unwrap_or(self.features)),
            ("position table", learned, self.features),
            ("query kernel", self.features, self.heads.saturating_mul(head_dim)),
            ("key kernel", self.features, self.kv_heads.saturating_mul(head_dim)),
            ("projection of tokens", self.features, self.embedding_features.unwrap_or(0)),
            ("MLP kernel", self.features, self.hidden),
            ("kernel of experts", self.features, experts),
            ("kernel of latents", 1, latent),
            (
                "kernel of linear attention",
                self.features,
                self.delta.as_ref().map_or(0, |delta| delta.value_heads.saturating_mul(delta.value_dim)),
            ),
            (
                "kernel of convolutions",
                self.features,
                self.conv.as_ref().map_or(0, |conv| conv.width.max(self.features)),
            ),
        ]
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
            Positions::Rotary(_) | Positions::Learned(_) => return None,
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

/// The product of sizes, unless it overflows.
fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1usize, |n, size| n.checked_mul(*size)).filter(|n| isize::try_from(*n).is_ok())
}
