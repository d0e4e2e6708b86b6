//! The parts of a decoder that its configuration chooses.

use shardax_nn::prelude::*;
use shardax_nn::{ExpertGroups, RouterScores};

use super::mlp::Xielu;

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
    /// The number of experts that return their input, in addition to `count`. The router can choose them too, as in LongCat.
    pub identities: usize,
    /// True if layers with experts have an MLP for the same input too, and the output of the experts is added to the output of the
    /// next layer, as in LongCat.
    pub delayed: bool,
    /// The bound of the gates and of their factors in each layer's experts, as in
    /// [`DecoderConfig::mlp_bounds`](crate::DecoderConfig::mlp_bounds).
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
            identities: 0,
            delayed: false,
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
    /// True if each head has a number that is added to the results of the linear layer.
    pub head_bias: bool,
}

/// The sums of the inputs and the outputs of attention and MLPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResidualSums {
    /// The sum of both.
    #[default]
    Plain,
    /// Each feature of the input has a learned factor, as in Doge.
    LearnedFactors,
    /// The `n`th output is divided by the square root of `n + 1`, and the input is multiplied so that the sum of both squares
    /// is 1, as in Beam. Therefore all outputs of the model have equal weights in the end.
    ByDepth,
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

/// The factors of a layer's sums, whose first part is the normalized input of attention or of the MLP.
#[derive(Module, Clone, Debug, PartialEq)]
pub struct ResidualFactors {
    /// The factor of the normalized input of attention.
    pub attention_input: f64,
    /// The factor of the output of attention.
    pub attention_output: f64,
    /// The factor of the normalized input of the MLP.
    pub mlp_input: f64,
    /// The factor of the output of the MLP.
    pub mlp_output: f64,
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
