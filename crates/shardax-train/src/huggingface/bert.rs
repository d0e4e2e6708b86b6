//! BERT.

use serde::Deserialize;
use shardax_nn::prelude::*;

use super::{Activation, KeyMap, Layout, Mlp, Pretrained, attention, divides};

/// What `config.json` says of a BERT.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct BertConfig {
    /// How many tokens there are.
    pub vocab_size: usize,
    /// Features of a token.
    pub hidden_size: usize,
    /// Features inside of an MLP.
    pub intermediate_size: usize,
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Heads of attention, which divide the features.
    pub num_attention_heads: usize,
    /// The longest text.
    pub max_position_embeddings: usize,
    /// Kinds of tokens, such as those of the first and of the second sentence.
    #[serde(default = "kinds")]
    pub type_vocab_size: usize,
    /// Added to the variance in norms.
    #[serde(default = "epsilon")]
    pub layer_norm_eps: f64,
    /// The function in MLPs.
    #[serde(default = "activation")]
    pub hidden_act: String,
}

fn kinds() -> usize {
    2
}

fn epsilon() -> f64 {
    1e-12
}

fn activation() -> String {
    "gelu".to_owned()
}

/// BERT ([Devlin et al. 2018](https://arxiv.org/abs/1810.04805)), which names the tokens that were left out of a text:
/// `BertForMaskedLM`.
#[derive(Module, Clone, Debug)]
pub struct Bert {
    tokens: Embed,
    positions: Embed,
    kinds: Embed,
    norm: LayerNorm,
    blocks: Vec<Block>,
    head: Linear,
    head_norm: LayerNorm,
    /// `[vocabulary]`: added to the logits.
    bias: Array,
    #[tree(static)]
    activation: Activation,
}

#[derive(Module, Clone, Debug)]
struct Block {
    attention: MultiHeadAttention,
    norm: LayerNorm,
    mlp: Mlp,
    mlp_norm: LayerNorm,
}

/// What goes with the tokens that a [`Bert`] is given.
#[derive(Clone, Debug, Default)]
pub struct BertOptions {
    token_type_ids: Option<Array>,
    attention_mask: Option<Array>,
}

impl BertOptions {
    /// All tokens are of the first kind, and all are there.
    pub fn new() -> Self {
        BertOptions::default()
    }

    /// The kind of each token, integers `[batch, length]`.
    pub fn token_type_ids(mut self, ids: impl ArrayLike) -> Self {
        self.token_type_ids = Some(ids.into_array());
        self
    }

    /// Which tokens are there, `[batch, length]`: the others, which fill a batch up, are not seen.
    pub fn attention_mask(mut self, mask: impl ArrayLike) -> Self {
        self.attention_mask = Some(mask.into_array());
        self
    }
}

impl Pretrained for Bert {
    type Config = BertConfig;

    fn new(config: &BertConfig, rngs: &mut Rngs) -> Result<Self> {
        Ok(make(config, checked(config)?, rngs))
    }

    fn keys() -> KeyMap {
        KeyMap::new()
            // Files from before 2020 have their names from TensorFlow.
            .alias("LayerNorm.weight", "LayerNorm.gamma")
            .alias("LayerNorm.bias", "LayerNorm.beta")
            .array("tokens.embedding", "bert.embeddings.word_embeddings.weight", Layout::Same)
            .array("positions.embedding", "bert.embeddings.position_embeddings.weight", Layout::Same)
            .array("kinds.embedding", "bert.embeddings.token_type_embeddings.weight", Layout::Same)
            .norm("norm", "bert.embeddings.LayerNorm")
            .linear("blocks[*].attention.query", "bert.encoder.layer.*.attention.self.query")
            .linear("blocks[*].attention.key", "bert.encoder.layer.*.attention.self.key")
            .linear("blocks[*].attention.value", "bert.encoder.layer.*.attention.self.value")
            .linear("blocks[*].attention.out", "bert.encoder.layer.*.attention.output.dense")
            .norm("blocks[*].norm", "bert.encoder.layer.*.attention.output.LayerNorm")
            .linear("blocks[*].mlp.up", "bert.encoder.layer.*.intermediate.dense")
            .linear("blocks[*].mlp.down", "bert.encoder.layer.*.output.dense")
            .norm("blocks[*].mlp_norm", "bert.encoder.layer.*.output.LayerNorm")
            .linear("head", "cls.predictions.transform.dense")
            .norm("head_norm", "cls.predictions.transform.LayerNorm")
            .array("bias", "cls.predictions.bias", Layout::Same)
    }
}

impl Bert {
    /// What stands for each token of `[batch, length]`: `[batch, length, features]`.
    #[track_caller]
    pub fn encode(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let tokens = tokens.into_array();
        let length = tokens.shape().last().copied().unwrap_or(0);
        let kinds = options.token_type_ids.clone().unwrap_or_else(|| zeros_dtype(tokens.shape(), DType::I32));
        let x = self.tokens.forward(tokens) + self.positions.forward(arange(0..length as i32));
        let mut x = self.norm.forward(x + self.kinds.forward(kinds));
        // `[batch, heads, queries, keys]`
        let mask = options.attention_mask.as_ref().map(|mask| mask.expand_dims(1).expand_dims(1));
        for block in &self.blocks {
            let seen = mask.iter().fold(AttentionOptions::new(), |options, mask| options.mask(mask));
            x = block.norm.forward(&x + block.attention.attend(&x, &x, &x, seen));
            x = block.mlp_norm.forward(&x + block.mlp.forward(&x));
        }
        x
    }

    /// Logits of what each token is, `[batch, length, vocabulary]`.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let x = self.activation.of(self.head.forward(self.encode(tokens, options)));
        let logits = self.tokens.attend(self.head_norm.forward(x));
        &logits + self.bias.astype(logits.dtype())
    }
}

fn checked(config: &BertConfig) -> Result<Activation> {
    divides(("num_attention_heads", config.num_attention_heads), ("hidden_size", config.hidden_size))?;
    Activation::named(&config.hidden_act)
}

fn make(config: &BertConfig, activation: Activation, rngs: &mut Rngs) -> Bert {
    let features = config.hidden_size;
    let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
    let tokens = Embed::builder(config.vocab_size, features).axes(["vocab", "embed"]).build(rngs);
    let (positions, kinds) = (
        Embed::new(config.max_position_embeddings, features, rngs),
        Embed::new(config.type_vocab_size, features, rngs),
    );
    let blocks = (0..config.num_hidden_layers).map(|_| Block {
        attention: attention(config.num_attention_heads, features).build(rngs),
        norm: norm(rngs),
        mlp: Mlp::new(features, config.intermediate_size, activation, rngs),
        mlp_norm: norm(rngs),
    });
    let blocks = blocks.collect();
    let (first, head, head_norm) = (norm(rngs), Linear::new(features, features, rngs), norm(rngs));
    let bias = zeros_dtype([config.vocab_size], rngs.policy().param_dtype);
    Bert { tokens, positions, kinds, norm: first, blocks, head, head_norm, bias, activation }
}
