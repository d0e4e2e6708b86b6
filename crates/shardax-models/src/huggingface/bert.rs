//! BERT.

use shardax_nn::prelude::*;

use super::{Config, KeyMap, Layout, Pretrained, attention, mlp, of_type};
use crate::decoder::check_positions;
use crate::{Activation, Mlp};

/// The architecture of a [`Bert`].
#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
    /// The number of tokens.
    pub vocab_size: usize,
    /// The features of a token.
    pub hidden_size: usize,
    /// The features inside an MLP.
    pub intermediate_size: usize,
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The heads of attention, which divide the features.
    pub num_attention_heads: usize,
    /// The length of the longest text.
    pub max_position_embeddings: usize,
    /// The kinds of tokens, such as those of the first and of the second sentence.
    pub type_vocab_size: usize,
    /// Added to the variance in norms.
    pub layer_norm_eps: f64,
    /// The function in MLPs.
    pub hidden_act: Activation,
}

/// BERT ([Devlin et al. 2018](https://arxiv.org/abs/1810.04805)), which predicts masked tokens: `BertForMaskedLM`.
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

/// Kinds and a mask of the tokens of a [`Bert`].
#[derive(Clone, Debug, Default)]
pub struct BertOptions {
    token_type_ids: Option<Array>,
    attention_mask: Option<Array>,
}

impl BertOptions {
    /// The defaults: all tokens are of the first kind, and visible.
    pub fn new() -> Self {
        BertOptions::default()
    }

    /// The kind of each token, integers `[batch, length]`.
    pub fn token_type_ids(mut self, ids: impl ArrayLike) -> Self {
        self.token_type_ids = Some(ids.into_array());
        self
    }

    /// The mask of visible tokens, `[batch, length]`; the others are padding.
    pub fn attention_mask(mut self, mask: impl ArrayLike) -> Self {
        self.attention_mask = Some(mask.into_array());
        self
    }
}

impl Pretrained for Bert {
    type Architecture = BertConfig;

    fn read(config: &Config) -> Result<(BertConfig, KeyMap)> {
        let fields = config.fields();
        of_type(&fields, "bert")?;
        let read = BertConfig {
            vocab_size: fields.size("vocab_size")?,
            hidden_size: fields.size("hidden_size")?,
            intermediate_size: fields.size("intermediate_size")?,
            num_hidden_layers: fields.layers("num_hidden_layers")?,
            num_attention_heads: fields.size("num_attention_heads")?,
            max_position_embeddings: fields.size("max_position_embeddings")?,
            type_vocab_size: fields.size("type_vocab_size")?,
            layer_norm_eps: fields.number("layer_norm_eps")?,
            hidden_act: fields.activation("hidden_act")?,
        };
        let (heads, features) = (read.num_attention_heads, read.hidden_size);
        fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
        if !fields.flag("tie_word_embeddings")? {
            return Err(fields.error("field `tie_word_embeddings` is false, and this model's last layer is its table"));
        }
        fields.finish()?;
        Ok((read, keys()))
    }

    fn make(config: &BertConfig, rngs: &mut Rngs) -> Result<Self> {
        Ok(make(config, rngs))
    }

    fn extents(config: &BertConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let features = config.hidden_size;
        let matrices = vec![
            ("token table", config.vocab_size, features),
            ("position table", config.max_position_embeddings, features),
            ("table of kinds", config.type_vocab_size, features),
            ("query kernel", features, features),
            ("MLP kernel", features, config.intermediate_size),
        ];
        (config.num_hidden_layers, matrices)
    }
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
        // Copies, and what other models on it have.
        .tied("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight")
        .tied("cls.predictions.decoder.bias", "cls.predictions.bias")
        .ignore("bert.embeddings.position_ids")
        .ignore("bert.pooler.**")
        .ignore("cls.seq_relationship.**")
}

impl Bert {
    /// The encoding of each token of `[batch, length]`: `[batch, length, features]`. Fails for more tokens than the model has
    /// positions.
    #[track_caller]
    pub fn encode(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let tokens = tokens.into_array();
        let length = tokens.shape().last().copied().unwrap_or(0);
        if let Err(error) = check_positions("Bert", &self.positions, &tokens) {
            return Array::from_error(error, &tokens);
        }
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

    /// Logits of each token, `[batch, length, vocabulary]`.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let x = self.activation.apply(self.head.forward(self.encode(tokens, options)));
        let logits = self.tokens.attend(self.head_norm.forward(x));
        &logits + self.bias.astype(logits.dtype())
    }
}

fn make(config: &BertConfig, rngs: &mut Rngs) -> Bert {
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
        mlp: mlp(features, config.intermediate_size, config.hidden_act, rngs),
        mlp_norm: norm(rngs),
    });
    let blocks = blocks.collect();
    let (first, head, head_norm) = (norm(rngs), Linear::new(features, features, rngs), norm(rngs));
    let bias = zeros_dtype([config.vocab_size], rngs.policy().param_dtype);
    Bert { tokens, positions, kinds, norm: first, blocks, head, head_norm, bias, activation: config.hidden_act }
}
