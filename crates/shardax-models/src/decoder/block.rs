//! One layer of a decoder.

use shardax_nn::prelude::*;

use super::{Activation, DecoderConfig, NormKind, Positions};

/// One layer of a [`Decoder`](crate::Decoder): attention and an MLP, each added to its input.
#[derive(Module, Clone, Debug)]
pub struct Block {
    /// Normalizes the input of attention.
    pub norm: Norm,
    /// Attention of each position to those before it.
    pub attention: MultiHeadAttention,
    /// Normalizes the output of attention, see [`DecoderConfig::post_norms`].
    pub post_attention_norm: Option<Norm>,
    /// Normalizes the input of the MLP; `None` where the MLP takes the input of attention.
    pub mlp_norm: Option<Norm>,
    /// The MLP, unless there are experts.
    pub mlp: Option<Mlp>,
    /// The experts, if there are any.
    pub experts: Option<MixtureOfExperts<Mlp>>,
    /// Normalizes the output of the MLP, see [`DecoderConfig::post_norms`].
    pub post_mlp_norm: Option<Norm>,
    #[tree(static)]
    rules: Rules,
}

/// A norm of one of the [kinds](NormKind).
#[derive(Module, Clone, Debug)]
pub enum Norm {
    /// Mean 0 and variance 1.
    Layer(LayerNorm),
    /// Mean square 1.
    Rms(RmsNorm),
}

/// Two linear layers with a function between them, or three with a gate.
#[derive(Module, Clone, Debug)]
pub struct Mlp {
    /// The gate, if there is one.
    pub gate: Option<Linear>,
    /// The first layer.
    pub up: Linear,
    /// The last layer.
    pub down: Linear,
    #[tree(static)]
    activation: Activation,
}

impl Norm {
    /// Creates a norm of this many features.
    #[track_caller]
    pub fn new(kind: NormKind, features: usize, epsilon: f64, rngs: &mut Rngs) -> Norm {
        let rms = RmsNorm::builder(features).epsilon(epsilon);
        match kind {
            NormKind::Layer => Norm::Layer(LayerNorm::builder(features).epsilon(epsilon).build(rngs)),
            NormKind::Rms => Norm::Rms(rms.build(rngs)),
            NormKind::RmsOffset => {
                Norm::Rms(rms.scale_offset(1.0).scale_init(shardax::nn::initializers::zeros()).build(rngs))
            }
        }
    }

    /// `x` is `[..., features]`, and so is the result.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        match self {
            Norm::Layer(norm) => norm.forward(x),
            Norm::Rms(norm) => norm.forward(x),
        }
    }
}

impl Mlp {
    /// An MLP from and to `features`, with `hidden` between.
    #[track_caller]
    pub fn new(
        features: usize,
        hidden: usize,
        activation: Activation,
        gated: bool,
        use_bias: bool,
        rngs: &mut Rngs,
    ) -> Mlp {
        let linear = |from: usize, to: usize, names: [&'static str; 2], rngs: &mut Rngs| {
            Linear::builder(from, to).use_bias(use_bias).kernel_axes(names).build(rngs)
        };
        Mlp {
            gate: gated.then(|| linear(features, hidden, ["embed", "mlp"], rngs)),
            up: linear(features, hidden, ["embed", "mlp"], rngs),
            down: linear(hidden, features, ["mlp", "embed"], rngs),
            activation,
        }
    }

    /// `x` is `[..., features]`, and so is the result.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        let x = x.into_array();
        match &self.gate {
            Some(gate) => self.down.forward(self.activation.apply(gate.forward(&x)) * self.up.forward(x)),
            None => self.down.forward(self.activation.apply(self.up.forward(x))),
        }
    }
}

impl Layer for Mlp {
    #[track_caller]
    fn forward(&mut self, x: Array) -> Array {
        Mlp::forward(self, x)
    }
}

impl Block {
    /// Creates the layer of this index, which determines its window and its rotary positions.
    #[track_caller]
    pub fn new(config: &DecoderConfig, layer: usize, rngs: &mut Rngs) -> Block {
        let norm = |rngs: &mut Rngs| Norm::new(config.norm, config.features, config.epsilon, rngs);
        let first = norm(rngs);
        let attention = attention(config, layer, rngs);
        let post_attention_norm = config.post_norms.then(|| norm(rngs));
        let mlp_norm = (!config.parallel).then(|| norm(rngs));
        let DecoderConfig { features, hidden, activation, gated, biases, .. } = *config;
        let mlp = |rngs: &mut Rngs| Mlp::new(features, hidden, activation, gated, biases.mlp, rngs);
        let experts = (config.experts > 0)
            .then(|| MixtureOfExperts::new(config.experts, config.experts.min(2), config.features, rngs, mlp).ok())
            .flatten();
        let mlp = experts.is_none().then(|| mlp(rngs));
        let post_mlp_norm = config.post_norms.then(|| norm(rngs));
        let rules = rngs.rules();
        Block { norm: first, attention, post_attention_norm, mlp_norm, mlp, experts, post_mlp_norm, rules }
    }

    /// `x` is `[..., length, features]`, and so is the result.
    #[track_caller]
    pub fn forward(&self, x: Array) -> Array {
        self.around(x, |x| self.attention.forward(x))
    }

    /// The next positions of `x`, which see those in the cache. See [`MultiHeadAttention::decode_with`].
    #[track_caller]
    pub fn decode(&mut self, x: Array, options: AttentionOptions) -> Array {
        let mut attention = self.attention.clone();
        let y = self.around(x, |x| attention.decode_with(x, options));
        self.attention = attention;
        y
    }

    #[track_caller]
    fn around(&self, x: Array, attend: impl FnOnce(Array) -> Array) -> Array {
        let placed = |x: Array| match x.ndim() {
            3 => self.rules.constrain(x, [Some("batch"), None, None]),
            _ => x,
        };
        let normed = |norm: &Option<Norm>, x: Array| match norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        let input = self.norm.forward(&x);
        let attended = normed(&self.post_attention_norm, attend(input.clone()));
        match &self.mlp_norm {
            Some(norm) => {
                let x = placed(&x + attended);
                let y = normed(&self.post_mlp_norm, self.feed_forward(norm.forward(&x)));
                placed(&x + y)
            }
            None => placed(&x + attended + normed(&self.post_mlp_norm, self.feed_forward(input))),
        }
    }

    #[track_caller]
    fn feed_forward(&self, x: Array) -> Array {
        match (&self.mlp, &self.experts) {
            (Some(mlp), _) => mlp.forward(x),
            (None, Some(experts)) => match experts.forward(&x) {
                Ok(routed) => routed.y,
                Err(error) => Array::from_error(error, &x),
            },
            (None, None) => x,
        }
    }
}

#[track_caller]
fn attention(config: &DecoderConfig, layer: usize, rngs: &mut Rngs) -> MultiHeadAttention {
    let window = config.window(layer);
    let rope = match (config.positions, window.and(config.local_rope)) {
        (Positions::Rotary(_), Some(local)) => Some(local),
        (Positions::Rotary(rope), None) => Some(rope),
        (Positions::Learned(_), _) => None,
    };
    let mut builder = MultiHeadAttention::builder(config.heads, config.features)
        .qkv_features(config.heads * config.head_dim)
        .num_kv_heads(config.kv_heads)
        .use_bias(config.biases.qkv || config.biases.out)
        .is_causal(true)
        .kernel_axes([Some("embed"), Some("heads"), None])
        .out_kernel_axes([Some("heads"), None, Some("embed")]);
    builder = rope.into_iter().fold(builder, MultiHeadAttentionBuilder::rope);
    builder = config.attention_scale.into_iter().fold(builder, MultiHeadAttentionBuilder::scale);
    builder = config.attention_soft_cap.into_iter().fold(builder, MultiHeadAttentionBuilder::soft_cap);
    let chosen = config.attention_implementation;
    builder = chosen.into_iter().fold(builder, MultiHeadAttentionBuilder::implementation);
    builder = window.into_iter().fold(builder, |builder, window| builder.local_window_size(window - 1, 0));
    let mut attention = builder.build(rngs);
    if !config.biases.qkv {
        [&mut attention.query, &mut attention.key, &mut attention.value]
            .into_iter()
            .for_each(|layer| layer.bias = None);
    }
    if !config.biases.out {
        attention.out.bias = None;
    }
    if config.qk_norm {
        let mut norm = || match Norm::new(config.norm, config.head_dim, config.epsilon, rngs) {
            Norm::Rms(norm) => Some(norm),
            Norm::Layer(_) => None,
        };
        (attention.query_norm, attention.key_norm) = (norm(), norm());
    }
    attention
}
