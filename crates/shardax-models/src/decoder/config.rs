//! The architecture of a decoder.

use shardax::error::Result;
use shardax_nn::Implementation;
use shardax_nn::prelude::*;

use crate::error::value_error;

/// The architecture of a [`Decoder`](crate::Decoder): [`new`](DecoderConfig::new) gives Llama's, other models change
/// fields.
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
    /// The number of tokens.
    pub vocab_size: usize,
    /// The number of blocks.
    pub layers: usize,
    /// The features of a token.
    pub features: usize,
    /// The heads of queries.
    pub heads: usize,
    /// The heads of keys and values, which divide those of queries.
    pub kv_heads: usize,
    /// The features of a head.
    pub head_dim: usize,
    /// The features inside an MLP.
    pub hidden: usize,
    /// The encoding of positions.
    pub positions: Positions,
    /// The rotary positions of layers with a window, where they differ from those of the other layers.
    pub local_rope: Option<Rope>,
    /// The window of each layer, in positions counting the query's own; empty if no layer has one.
    pub windows: Vec<Option<usize>>,
    /// The kind of normalization.
    pub norm: NormKind,
    /// Added to the variance or the mean square in norms.
    pub epsilon: f64,
    /// The function in MLPs.
    pub activation: Activation,
    /// True if MLPs have a gate: `down(activation(gate(x)) * up(x))`.
    pub gated: bool,
    /// The linear layers that have biases.
    pub biases: Biases,
    /// True if the table of tokens is the last layer too.
    pub tie_embeddings: bool,
    /// The factor of token embeddings.
    pub embedding_scale: Option<f64>,
    /// The factor of attention scores. Default `1 / sqrt(head_dim)`.
    pub attention_scale: Option<f64>,
    /// The bound of attention scores, see [`AttentionOptions::soft_cap`].
    pub attention_soft_cap: Option<f64>,
    /// The implementation of attention, see [`AttentionOptions::implementation`]. Default: chosen by platform, dtypes and
    /// size.
    pub attention_implementation: Option<Implementation>,
    /// The bound of logits, by `cap * tanh(logits / cap)`.
    pub logits_soft_cap: Option<f64>,
    /// True if each head's queries and keys have an RMS norm.
    pub qk_norm: bool,
    /// True if the outputs of attention and MLP are normalized before they are added.
    pub post_norms: bool,
    /// True if attention and MLP share one input and one norm.
    pub parallel: bool,
    /// The number of experts in the place of an MLP, of which each token goes through two; 0 for one MLP.
    pub experts: usize,
    /// True if the layers are one [`Stack`], compiled as a loop. Their windows must be equal.
    pub scan_layers: bool,
    /// The intermediate values of a layer that are kept for the gradient. Default all.
    pub checkpoint: Option<CheckpointPolicy>,
}

/// The encoding of positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Positions {
    /// Queries and keys are turned.
    Rotary(Rope),
    /// A learned table of this many positions is added to token embeddings.
    Learned(usize),
}

/// The kind of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NormKind {
    /// [`LayerNorm`] with scale and bias.
    Layer,
    /// [`RmsNorm`].
    Rms,
    /// [`RmsNorm`] with 1 added to its scale, as in Gemma.
    RmsOffset,
}

/// The function in MLPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// [`gelu_exact`]
    Gelu,
    /// [`gelu`]
    GeluTanh,
    /// [`silu`]
    Silu,
    /// [`relu`]
    Relu,
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
            Activation::Silu => silu(x),
            Activation::Relu => relu(x),
        }
    }
}

impl DecoderConfig {
    /// Llama's architecture: RMS norms, rotary positions, gated MLPs with four times the features, no biases.
    pub fn new(vocab_size: usize, layers: usize, features: usize, heads: usize) -> Self {
        DecoderConfig {
            vocab_size,
            layers,
            features,
            heads,
            kv_heads: heads,
            head_dim: features.checked_div(heads).unwrap_or(0),
            hidden: features.saturating_mul(4),
            positions: Positions::Rotary(Rope::default()),
            local_rope: None,
            windows: Vec::new(),
            norm: NormKind::Rms,
            epsilon: 1e-6,
            activation: Activation::Silu,
            gated: true,
            biases: Biases::NONE,
            tie_embeddings: false,
            embedding_scale: None,
            attention_scale: None,
            attention_soft_cap: None,
            attention_implementation: None,
            logits_soft_cap: None,
            qk_norm: false,
            post_norms: false,
            parallel: false,
            experts: 0,
            scan_layers: false,
            checkpoint: None,
        }
    }

    /// Fails when sizes are zero, do not fit each other, or overflow.
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        let location = std::panic::Location::caller();
        self.checked().map_err(|error| error.at(location))
    }

    fn checked(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("layers", self.layers),
            ("features", self.features),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("hidden", self.hidden),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(value_error(format!("a decoder's {name} must be positive, got 0"), "give a positive size"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let what = format!("kv_heads ({}) does not divide heads ({})", self.kv_heads, self.heads);
            return Err(value_error(what, "each head of keys serves as many heads of queries"));
        }
        if let Some((name, a, b)) = self.extents().into_iter().find(|(_, a, b)| product(&[*a, *b, 8]).is_none()) {
            return Err(value_error(format!("a decoder's {name}, {a} by {b}, overflows"), "give smaller sizes"));
        }
        if !self.windows.is_empty() && self.windows.len() != self.layers {
            let what = format!("{} windows are given for {} layers", self.windows.len(), self.layers);
            return Err(value_error(what, "give one for each layer, or none at all"));
        }
        if self.windows.contains(&Some(0)) {
            return Err(value_error("a window of 0 positions sees nothing", "give a window of 1 or more, or None"));
        }
        if self.scan_layers && self.windows.windows(2).any(|pair| pair[0] != pair[1]) {
            let what = "scan_layers needs layers of one structure, and their windows differ";
            return Err(value_error(what, "set scan_layers to false, or give each layer the same window"));
        }
        if self.qk_norm && self.norm == NormKind::Layer {
            return Err(value_error(
                "qk_norm is an RMS norm, and norm is NormKind::Layer",
                "set norm to NormKind::Rms",
            ));
        }
        if self.head_dim % 2 == 1 && matches!(self.positions, Positions::Rotary(Rope { rotary_dim: None, .. })) {
            let what = format!("rotary positions need an even head_dim, got {}", self.head_dim);
            return Err(value_error(what, "choose features and heads that give an even head_dim"));
        }
        Ok(())
    }

    /// The largest matrices, for bounds.
    pub(crate) fn extents(&self) -> Vec<(&'static str, usize, usize)> {
        let wide = |heads: usize| heads.saturating_mul(self.head_dim);
        let learned = match self.positions {
            Positions::Learned(length) => length,
            Positions::Rotary(_) => 0,
        };
        vec![
            ("token table", self.vocab_size, self.features),
            ("position table", learned, self.features),
            ("query kernel", self.features, wide(self.heads)),
            ("key kernel", self.features, wide(self.kv_heads)),
            ("MLP kernel", self.features, self.hidden),
        ]
    }

    /// The window of this layer.
    pub(crate) fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }
}

/// The product of sizes, unless it overflows.
fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1usize, |n, size| n.checked_mul(*size)).filter(|n| isize::try_from(*n).is_ok())
}
