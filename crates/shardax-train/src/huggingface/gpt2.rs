//! GPT-2.

use serde::Deserialize;
use shardax_nn::prelude::*;

use super::{Activation, KeyMap, Layout, Mlp, Pretrained, attention, divides, init_cache};

/// What `config.json` says of a GPT-2.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Gpt2Config {
    /// How many tokens there are.
    pub vocab_size: usize,
    /// The longest text.
    pub n_positions: usize,
    /// Features of a token.
    pub n_embd: usize,
    /// Blocks.
    pub n_layer: usize,
    /// Heads of attention, which divide the features.
    pub n_head: usize,
    /// Features inside of an MLP, four times those outside if nothing is said.
    #[serde(default)]
    pub n_inner: Option<usize>,
    /// Added to the variance in norms.
    #[serde(default = "epsilon")]
    pub layer_norm_epsilon: f64,
    /// The function in MLPs.
    #[serde(default = "activation")]
    pub activation_function: String,
}

fn epsilon() -> f64 {
    1e-5
}

fn activation() -> String {
    "gelu_new".to_owned()
}

/// GPT-2 ([Radford et al.
/// 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)),
/// whose table of tokens is its last layer too: `GPT2LMHeadModel`.
#[derive(Module, Clone, Debug)]
pub struct Gpt2 {
    tokens: Embed,
    positions: Embed,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

#[derive(Module, Clone, Debug)]
struct Block {
    norm: LayerNorm,
    attention: MultiHeadAttention,
    mlp_norm: LayerNorm,
    mlp: Mlp,
}

impl Pretrained for Gpt2 {
    type Config = Gpt2Config;

    fn new(config: &Gpt2Config, rngs: &mut Rngs) -> Result<Self> {
        Ok(make(config, checked(config)?, rngs))
    }

    fn keys() -> KeyMap {
        let part = |index| Layout::Part { index, of: 3 };
        // Its layers have `[in, out]`, and queries, keys and values in one.
        KeyMap::new()
            .prefix("transformer.")
            .array("tokens.embedding", "wte.weight", Layout::Same)
            .array("positions.embedding", "wpe.weight", Layout::Same)
            .norm("blocks[*].norm", "h.*.ln_1")
            .weights("blocks[*].attention.query", "h.*.attn.c_attn", part(0))
            .weights("blocks[*].attention.key", "h.*.attn.c_attn", part(1))
            .weights("blocks[*].attention.value", "h.*.attn.c_attn", part(2))
            .weights("blocks[*].attention.out", "h.*.attn.c_proj", Layout::Same)
            .norm("blocks[*].mlp_norm", "h.*.ln_2")
            .weights("blocks[*].mlp.up", "h.*.mlp.c_fc", Layout::Same)
            .weights("blocks[*].mlp.down", "h.*.mlp.c_proj", Layout::Same)
            .norm("norm", "ln_f")
    }
}

impl Gpt2 {
    /// Logits `[..., length, vocabulary]` of the tokens that follow each of `[..., length]`.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike) -> Array {
        let tokens = tokens.into_array();
        let length = tokens.shape().last().copied().unwrap_or(0);
        self.clone().run(tokens, arange(0..length as i32), |block, x| block.attention.forward(x))
    }

    /// Room for the keys and values of texts of this length.
    pub fn init_cache(&mut self, batch: usize, length: usize) {
        self.blocks.iter_mut().for_each(|block| init_cache(&mut block.attention, batch, length));
    }

    /// Logits of the tokens that follow the next ones, `[batch, length]`, which come after those that were given since
    /// [`init_cache`](Gpt2::init_cache). Results are NaN beyond the cache's length.
    ///
    /// Fails before `init_cache`.
    #[track_caller]
    pub fn decode(&mut self, tokens: impl ArrayLike) -> Array {
        let tokens = tokens.into_array();
        let length = tokens.shape().last().copied().unwrap_or(0);
        let index = self.blocks.first().and_then(|block| block.attention.cache_index.clone());
        let positions = arange(0..length as i32);
        let positions = index.map_or(positions.clone(), |index| positions + &*index);
        self.run(tokens, positions, |block, x| block.attention.decode(x))
    }

    fn run(&mut self, tokens: Array, positions: Array, attend: impl Fn(&mut Block, Array) -> Array) -> Array {
        let mut x = self.tokens.forward(tokens) + self.positions.forward(positions);
        for block in &mut self.blocks {
            let normed = block.norm.forward(&x);
            x = x + attend(block, normed);
            x = &x + block.mlp.forward(block.mlp_norm.forward(&x));
        }
        self.tokens.attend(self.norm.forward(x))
    }
}

fn checked(config: &Gpt2Config) -> Result<Activation> {
    divides(("n_head", config.n_head), ("n_embd", config.n_embd))?;
    Activation::named(&config.activation_function)
}

fn make(config: &Gpt2Config, activation: Activation, rngs: &mut Rngs) -> Gpt2 {
    let features = config.n_embd;
    let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(config.layer_norm_epsilon).build(rngs);
    let tokens = Embed::builder(config.vocab_size, features).axes(["vocab", "embed"]).build(rngs);
    let positions = Embed::new(config.n_positions, features, rngs);
    let blocks = (0..config.n_layer).map(|_| Block {
        norm: norm(rngs),
        attention: attention(config.n_head, features).is_causal(true).build(rngs),
        mlp_norm: norm(rngs),
        mlp: Mlp::new(features, config.n_inner.unwrap_or(4 * features), activation, rngs),
    });
    let blocks = blocks.collect();
    Gpt2 { tokens, positions, blocks, norm: norm(rngs) }
}
