//! Llama, and models of its form.

use serde::Deserialize;
use shardax::error::Error;
use shardax_nn::prelude::*;

use super::{Activation, KeyMap, Layout, Pretrained, attention, divides, init_cache, unsupported};

/// What `config.json` says of a Llama.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LlamaConfig {
    /// How many tokens there are.
    pub vocab_size: usize,
    /// Features of a token.
    pub hidden_size: usize,
    /// Features inside of an MLP.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Heads of queries.
    pub num_attention_heads: usize,
    /// Heads of keys and values, as many as those of queries if nothing is said.
    #[serde(default)]
    pub num_key_value_heads: Option<usize>,
    /// Features of a head; `hidden_size / num_attention_heads` if nothing is said.
    #[serde(default)]
    pub head_dim: Option<usize>,
    /// Added to the mean square in norms.
    #[serde(default = "epsilon")]
    pub rms_norm_eps: f64,
    /// How much slower the last pair of features turns than the first.
    #[serde(default)]
    pub rope_theta: Option<f64>,
    /// How angles change for longer texts.
    #[serde(default)]
    pub rope_scaling: Option<LlamaRope>,
    /// Both, as newer configurations have them.
    #[serde(default)]
    pub rope_parameters: Option<LlamaRope>,
    /// Whether the linear layers of attention have biases.
    #[serde(default)]
    pub attention_bias: bool,
    /// Whether the table of tokens is the last layer too.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// The function in MLPs.
    #[serde(default = "activation")]
    pub hidden_act: String,
}

/// What a configuration says of rotary positions.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct LlamaRope {
    /// `default`, `linear` or `llama3`.
    #[serde(default, alias = "type")]
    pub rope_type: Option<String>,
    /// See [`LlamaConfig::rope_theta`].
    #[serde(default)]
    pub rope_theta: Option<f64>,
    /// By how much longer texts are.
    #[serde(default)]
    pub factor: Option<f64>,
    /// See [`RopeScaling::Llama3`].
    #[serde(default)]
    pub low_freq_factor: Option<f64>,
    /// See [`RopeScaling::Llama3`].
    #[serde(default)]
    pub high_freq_factor: Option<f64>,
    /// See [`RopeScaling::Llama3`].
    #[serde(default)]
    pub original_max_position_embeddings: Option<f64>,
}

fn epsilon() -> f64 {
    1e-6
}

fn activation() -> String {
    "silu".to_owned()
}

/// Llama ([Touvron et al. 2023](https://arxiv.org/abs/2302.13971)), and what has its form: rotary positions, RMS
/// norms, gated MLPs, fewer heads of keys than of queries: `LlamaForCausalLM`.
#[derive(Module, Clone, Debug)]
pub struct Llama {
    tokens: Embed,
    blocks: Vec<Block>,
    norm: RmsNorm,
    /// Where the table of tokens is not the last layer.
    head: Option<Linear>,
}

#[derive(Module, Clone, Debug)]
struct Block {
    norm: RmsNorm,
    attention: MultiHeadAttention,
    mlp_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
    #[tree(static)]
    activation: Activation,
}

impl Pretrained for Llama {
    type Config = LlamaConfig;

    fn new(config: &LlamaConfig, rngs: &mut Rngs) -> Result<Self> {
        Ok(make(&Checked::of(config)?, rngs))
    }

    fn keys() -> KeyMap {
        let scale = |keys: KeyMap, path: &str, name: &str| keys.array(format!("{path}.scale"), name, Layout::Same);
        let keys = KeyMap::new()
            .array("tokens.embedding", "model.embed_tokens.weight", Layout::Same)
            .linear("blocks[*].attention.query", "model.layers.*.self_attn.q_proj")
            .linear("blocks[*].attention.key", "model.layers.*.self_attn.k_proj")
            .linear("blocks[*].attention.value", "model.layers.*.self_attn.v_proj")
            .linear("blocks[*].attention.out", "model.layers.*.self_attn.o_proj")
            .linear("blocks[*].gate", "model.layers.*.mlp.gate_proj")
            .linear("blocks[*].up", "model.layers.*.mlp.up_proj")
            .linear("blocks[*].down", "model.layers.*.mlp.down_proj")
            .linear("head", "lm_head");
        let keys = scale(keys, "blocks[*].norm", "model.layers.*.input_layernorm.weight");
        let keys = scale(keys, "blocks[*].mlp_norm", "model.layers.*.post_attention_layernorm.weight");
        scale(keys, "norm", "model.norm.weight")
    }
}

impl Llama {
    /// Logits `[..., length, vocabulary]` of the tokens that follow each of `[..., length]`.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike) -> Array {
        self.clone().run(tokens.into_array(), |block, x| block.attention.forward(x))
    }

    /// Room for the keys and values of texts of this length.
    pub fn init_cache(&mut self, batch: usize, length: usize) {
        self.blocks.iter_mut().for_each(|block| init_cache(&mut block.attention, batch, length));
    }

    /// Logits of the tokens that follow the next ones, `[batch, length]`, which come after those that were given since
    /// [`init_cache`](Llama::init_cache). Results are NaN beyond the cache's length.
    ///
    /// Fails before `init_cache`.
    #[track_caller]
    pub fn decode(&mut self, tokens: impl ArrayLike) -> Array {
        self.run(tokens.into_array(), |block, x| block.attention.decode(x))
    }

    fn run(&mut self, tokens: Array, attend: impl Fn(&mut Block, Array) -> Array) -> Array {
        let mut x = self.tokens.forward(tokens);
        for block in &mut self.blocks {
            let normed = block.norm.forward(&x);
            x = x + attend(block, normed);
            let normed = block.mlp_norm.forward(&x);
            let gated = block.activation.of(block.gate.forward(&normed)) * block.up.forward(normed);
            x = x + block.down.forward(gated);
        }
        let x = self.norm.forward(x);
        match &self.head {
            Some(head) => head.forward(x),
            None => self.tokens.attend(x),
        }
    }
}

/// A configuration of which all is known.
#[derive(Clone)]
struct Checked {
    config: LlamaConfig,
    heads: [usize; 2],
    depth: usize,
    activation: Activation,
    rope: Rope,
}

impl Checked {
    fn of(config: &LlamaConfig) -> Result<Checked> {
        let heads = [config.num_attention_heads, config.num_key_value_heads.unwrap_or(config.num_attention_heads)];
        if config.head_dim.is_none() {
            divides(("num_attention_heads", heads[0]), ("hidden_size", config.hidden_size))?;
        }
        divides(("num_key_value_heads", heads[1]), ("num_attention_heads", heads[0]))?;
        let depth = config.head_dim.unwrap_or_else(|| config.hidden_size / heads[0]);
        let activation = Activation::named(&config.hidden_act)?;
        Ok(Checked { heads, depth, activation, rope: rope(config)?, config: config.clone() })
    }
}

fn rope(config: &LlamaConfig) -> Result<Rope> {
    let about = config.rope_parameters.as_ref().or(config.rope_scaling.as_ref()).cloned().unwrap_or_default();
    let missing = |name: &str| -> Error { unsupported(&"config.json", format!("rotary positions have no {name:?}")) };
    let number = |x: Option<f64>, name: &str| x.ok_or_else(|| missing(name));
    let scaling = match about.rope_type.as_deref() {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear(number(about.factor, "factor")?),
        Some("llama3") => RopeScaling::Llama3 {
            factor: number(about.factor, "factor")?,
            low_freq_factor: number(about.low_freq_factor, "low_freq_factor")?,
            high_freq_factor: number(about.high_freq_factor, "high_freq_factor")?,
            original_max_position: number(about.original_max_position_embeddings, "original_max_position_embeddings")?,
        },
        Some(other) => {
            return Err(unsupported(&"config.json", format!("rotary positions of the kind {other:?} are not known")));
        }
    };
    Ok(Rope::new(about.rope_theta.or(config.rope_theta).unwrap_or(10_000.0)).scaling(scaling))
}

fn make(checked: &Checked, rngs: &mut Rngs) -> Llama {
    let Checked { config, heads: [heads, key_heads], depth, activation, rope } = checked;
    let (features, hidden) = (config.hidden_size, config.intermediate_size);
    let norm = |rngs: &mut Rngs| RmsNorm::builder(features).epsilon(config.rms_norm_eps).build(rngs);
    let linear = |from: usize, to: usize, names: [&'static str; 2], rngs: &mut Rngs| {
        Linear::builder(from, to).use_bias(false).kernel_axes(names).build(rngs)
    };
    let tokens = Embed::builder(config.vocab_size, features).axes(["vocab", "embed"]).build(rngs);
    let blocks = (0..config.num_hidden_layers).map(|_| Block {
        norm: norm(rngs),
        attention: attention(*heads, features)
            .qkv_features(heads * depth)
            .num_kv_heads(*key_heads)
            .use_bias(config.attention_bias)
            .rope(*rope)
            .is_causal(true)
            .build(rngs),
        mlp_norm: norm(rngs),
        gate: linear(features, hidden, ["embed", "mlp"], rngs),
        up: linear(features, hidden, ["embed", "mlp"], rngs),
        down: linear(hidden, features, ["mlp", "embed"], rngs),
        activation: *activation,
    });
    let blocks = blocks.collect();
    let head = (!config.tie_word_embeddings).then(|| linear(features, config.vocab_size, ["embed", "vocab"], rngs));
    Llama { tokens, blocks, norm: norm(rngs), head }
}
