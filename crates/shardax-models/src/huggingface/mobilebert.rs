//! MobileBERT, a BERT whose blocks compute with fewer features than they read.

use shardax_nn::prelude::*;

use super::bert::BertHead;
use super::bert_files::head;
use super::fields::Fields;
use super::{BertOptions, Config, KeyMap, Layout, Pretrained, attention, check_type};
use crate::decoder::{check_positions, check_tokens};
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::{first_token, gather_positions};
use crate::{Activation, Mlp};

/// The architecture of a [`MobileBert`].
#[derive(Clone, Debug, PartialEq)]
pub struct MobileBertConfig {
    /// The number of tokens.
    pub vocab_size: usize,
    /// The size of the embeddings of tokens. A layer reads the embeddings of a token and of its neighbors.
    pub embedding_size: usize,
    /// The features of a token between the blocks.
    pub hidden_size: usize,
    /// The features of a token inside a block. The number of heads must divide it.
    pub intra_bottleneck_size: usize,
    /// The features inside an MLP.
    pub intermediate_size: usize,
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The number of attention heads.
    pub num_attention_heads: usize,
    /// The number of MLPs of a block.
    pub num_feedforward_networks: usize,
    /// The length of the table of positions.
    pub max_position_embeddings: usize,
    /// The number of token types.
    pub type_vocab_size: usize,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
    /// Added to the variance in the norm of the head.
    pub layer_norm_eps: f64,
    /// True if a layer transforms the features of the first token before its classes.
    pub classifier_activation: bool,
    /// The head, which is applied to the output of the blocks.
    pub head: BertHead,
}

/// MobileBERT ([Sun et al. 2020](https://arxiv.org/abs/2004.02984)). The model type is `mobilebert`; the field `architectures` chooses
/// the [head](BertHead). Dimensions are named `vocab`, `embed`, `heads` and `mlp`, see [`Rules`].
#[derive(Module, Clone, Debug)]
pub struct MobileBert {
    tokens: Embed,
    positions: Embed,
    kinds: Embed,
    /// Converts the embeddings of three tokens to the features between the blocks.
    projection: Linear,
    norm: Scale,
    blocks: Vec<Block>,
    /// The first layer of the head.
    head: Option<Linear>,
    head_norm: Option<LayerNorm>,
    /// `[features - embedding size, vocabulary]`: the table of tokens for the other features of the head.
    more_tokens: Option<Array>,
    /// `[vocabulary]`: added to the logits of the tokens.
    bias: Option<Array>,
    /// The last layer of a head for classes.
    classifier: Option<Linear>,
    pools: bool,
    #[tree(static)]
    activation: Activation,
}

/// Learned factors and biases of features, instead of a norm.
#[derive(Module, Clone, Debug)]
struct Scale {
    scale: Array,
    bias: Array,
}

/// A block, which reads and writes `hidden_size` features.
#[derive(Module, Clone, Debug)]
struct Block {
    /// Computes the features to which attention is added.
    input: Linear,
    input_norm: Scale,
    /// Computes the features that queries and keys read. Values read the features between the blocks.
    shared: Linear,
    shared_norm: Scale,
    attention: MultiHeadAttention,
    norm: Scale,
    mlps: Vec<Mlp>,
    mlp_norms: Vec<Scale>,
    output: Linear,
    output_norm: Scale,
}

/// The largest number of MLPs of a block.
const MAX_MLPS: usize = 1000;

impl Pretrained for MobileBert {
    type Architecture = MobileBertConfig;

    fn read(config: &Config) -> Result<(MobileBertConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "mobilebert")?;
        // Encoders mask no later positions.
        fields.skip(&["is_causal"]);
        let read = MobileBertConfig {
            vocab_size: fields.size("vocab_size")?,
            embedding_size: fields.size("embedding_size")?,
            hidden_size: fields.size("hidden_size")?,
            intra_bottleneck_size: fields.size("intra_bottleneck_size")?,
            intermediate_size: fields.size("intermediate_size")?,
            num_hidden_layers: fields.layers("num_hidden_layers")?,
            num_attention_heads: fields.size("num_attention_heads")?,
            num_feedforward_networks: fields.size("num_feedforward_networks")?,
            max_position_embeddings: fields.size("max_position_embeddings")?,
            type_vocab_size: fields.size("type_vocab_size")?,
            hidden_act: fields.activation("hidden_act")?,
            layer_norm_eps: fields.number("layer_norm_eps")?,
            classifier_activation: fields.flag("classifier_activation")?,
            head: head(&fields, None)?,
        };
        check(&fields, &read)?;
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &MobileBertConfig, rngs: &mut Rngs) -> Result<Self> {
        let (features, embedded) = (config.hidden_size, config.embedding_size);
        let dtype = rngs.policy().param_dtype;
        let masks = config.head == BertHead::MaskedTokens;
        let pools = matches!(config.head, BertHead::Classes { .. });
        let has_layer = masks || (pools && config.classifier_activation);
        // The table of tokens has fewer features than the head, so that another table has the other ones.
        let more = [features.saturating_sub(embedded), config.vocab_size];
        Ok(MobileBert {
            tokens: Embed::builder(config.vocab_size, embedded).axes(["vocab", "embed"]).build(rngs),
            positions: Embed::new(config.max_position_embeddings, features, rngs),
            kinds: Embed::new(config.type_vocab_size, features, rngs),
            projection: Linear::new(embedded.saturating_mul(3), features, rngs),
            norm: Scale::new(features, rngs),
            blocks: (0..config.num_hidden_layers).map(|_| Block::new(config, rngs)).collect(),
            head: has_layer.then(|| Linear::new(features, features, rngs)),
            head_norm: masks.then(|| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs)),
            more_tokens: masks.then(|| zeros_dtype(more, dtype)),
            bias: masks.then(|| zeros_dtype([config.vocab_size], dtype)),
            classifier: config.head.classes().map(|count| Linear::new(features, count, rngs)),
            pools,
            activation: config.hidden_act,
        })
    }

    fn extents(config: &MobileBertConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (features, inner) = (config.hidden_size, config.intra_bottleneck_size);
        let matrices = vec![
            ("token table", config.vocab_size, config.embedding_size),
            ("position table", config.max_position_embeddings, features),
            ("table of kinds", config.type_vocab_size, features),
            ("query kernel", inner, inner),
            ("value kernel", features, inner),
            ("MLP kernel", inner, config.intermediate_size),
            ("table of classes", config.head.classes().unwrap_or(0), features),
        ];
        (config.num_hidden_layers.saturating_mul(config.num_feedforward_networks), matrices)
    }
}

/// Returns an error for options that the model does not support. All published models have the others.
fn check(fields: &Fields, config: &MobileBertConfig) -> Result<()> {
    for (name, expected) in [
        ("trigram_input", true),
        ("use_bottleneck", true),
        ("key_query_shared_bottleneck", true),
        ("use_bottleneck_attention", false),
    ] {
        if fields.flag(name)? != expected {
            return Err(fields.error(format!("field `{name}` must be {expected}")));
        }
    }
    match fields.text("normalization_type")? {
        "no_norm" => {}
        other => return Err(fields.error(format!("`normalization_type` {other:?} is not supported"))),
    }
    let inner = config.intra_bottleneck_size;
    fields.divides(("num_attention_heads", config.num_attention_heads), ("intra_bottleneck_size", inner))?;
    if fields.size_opt("true_hidden_size")?.is_some_and(|size| size != inner) {
        return Err(fields.error(format!("`true_hidden_size` must be {inner}, as `intra_bottleneck_size`")));
    }
    if config.hidden_size <= config.embedding_size {
        return Err(fields.error("`hidden_size` must be more than `embedding_size`"));
    }
    if config.num_feedforward_networks > MAX_MLPS {
        return Err(fields.error(format!("`num_feedforward_networks` must be at most {MAX_MLPS}")));
    }
    if config.head == BertHead::MaskedTokens && !fields.flag("tie_word_embeddings")? {
        return Err(fields.error(
            "field `tie_word_embeddings` is false, but this model always uses its token table as the last layer",
        ));
    }
    fields.skip(&["tie_word_embeddings"]);
    Ok(())
}

/// Returns the names of the arrays. Files of a model without a head have no prefix, and other files may omit it.
fn keys(config: &MobileBertConfig) -> KeyMap {
    let base = "mobilebert.";
    let prefix = if config.head == BertHead::None { "" } else { base };
    let layer = format!("{prefix}encoder.layer.*");
    let mut keys = KeyMap::new()
        .array("tokens.embedding", format!("{prefix}embeddings.word_embeddings.weight"), Layout::Same)
        .array("positions.embedding", format!("{prefix}embeddings.position_embeddings.weight"), Layout::Same)
        .array("kinds.embedding", format!("{prefix}embeddings.token_type_embeddings.weight"), Layout::Same)
        .linear("projection", &format!("{prefix}embeddings.embedding_transformation"))
        .norm("norm", &format!("{prefix}embeddings.LayerNorm"))
        .linear("blocks[*].attention.query", &format!("{layer}.attention.self.query"))
        .linear("blocks[*].attention.key", &format!("{layer}.attention.self.key"))
        .linear("blocks[*].attention.value", &format!("{layer}.attention.self.value"))
        .linear("blocks[*].attention.out", &format!("{layer}.attention.output.dense"))
        .norm("blocks[*].norm", &format!("{layer}.attention.output.LayerNorm"))
        .ignore(&format!("{prefix}embeddings.position_ids"))
        .ignore("cls.seq_relationship.**");
    for (path, name) in
        [("input", "bottleneck.input"), ("shared", "bottleneck.attention"), ("output", "output.bottleneck")]
    {
        keys = keys
            .linear(&format!("blocks[*].{path}"), &format!("{layer}.{name}.dense"))
            .norm(&format!("blocks[*].{path}_norm"), &format!("{layer}.{name}.LayerNorm"));
    }
    for index in 0..config.num_feedforward_networks {
        // The last MLP has the names that BERT's MLP has.
        let mlp = if index + 1 < config.num_feedforward_networks { format!(".ffn.{index}") } else { String::new() };
        keys = keys
            .linear(&format!("blocks[*].mlps[{index}].up"), &format!("{layer}{mlp}.intermediate.dense"))
            .linear(&format!("blocks[*].mlps[{index}].down"), &format!("{layer}{mlp}.output.dense"))
            .norm(&format!("blocks[*].mlp_norms[{index}]"), &format!("{layer}{mlp}.output.LayerNorm"));
    }
    head_keys(keys, config.head, base, prefix)
}

/// Adds the names of a head's layers and of the copies of the token table.
fn head_keys(keys: KeyMap, head: BertHead, base: &str, prefix: &str) -> KeyMap {
    let pooler = format!("{base}pooler");
    match head {
        BertHead::None => keys
            .prefix_alias("", base)
            .ignore("pooler.**")
            .ignore(&format!("{pooler}.**"))
            .ignore("cls.**")
            .ignore("classifier.**"),
        BertHead::Classes { .. } => {
            keys.linear("head", &format!("{pooler}.dense")).linear("classifier", "classifier").prefix_alias(base, "")
        }
        BertHead::TokenClasses(_) | BertHead::Replaced => {
            keys.linear("classifier", "classifier").ignore(&format!("{pooler}.**")).prefix_alias(base, "")
        }
        BertHead::MaskedTokens => keys
            .linear("head", "cls.predictions.transform.dense")
            .norm("head_norm", "cls.predictions.transform.LayerNorm")
            .array("more_tokens", "cls.predictions.dense.weight", Layout::Same)
            .array("bias", "cls.predictions.bias", Layout::Same)
            .tied("cls.predictions.decoder.weight", &format!("{prefix}embeddings.word_embeddings.weight"))
            .tied("cls.predictions.decoder.bias", "cls.predictions.bias")
            .ignore(&format!("{pooler}.**"))
            .prefix_alias(base, ""),
    }
}

impl Scale {
    fn new(features: usize, rngs: &Rngs) -> Scale {
        let dtype = rngs.policy().param_dtype;
        Scale { scale: ones_dtype([features], dtype), bias: zeros_dtype([features], dtype) }
    }

    fn forward(&self, x: Array) -> Array {
        &x * self.scale.astype(x.dtype()) + self.bias.astype(x.dtype())
    }
}

impl Block {
    fn new(config: &MobileBertConfig, rngs: &mut Rngs) -> Block {
        let (features, inner, heads) = (config.hidden_size, config.intra_bottleneck_size, config.num_attention_heads);
        let mut layer = attention(heads, inner).build(rngs);
        layer.value = attention(heads, features).qkv_features(inner).build(rngs).value;
        let mlps = (0..config.num_feedforward_networks)
            .map(|_| Mlp::new(inner, config.intermediate_size, config.hidden_act, false, true, rngs))
            .collect();
        Block {
            input: Linear::new(features, inner, rngs),
            input_norm: Scale::new(inner, rngs),
            shared: Linear::new(features, inner, rngs),
            shared_norm: Scale::new(inner, rngs),
            attention: layer,
            norm: Scale::new(inner, rngs),
            mlps,
            mlp_norms: (0..config.num_feedforward_networks).map(|_| Scale::new(inner, rngs)).collect(),
            output: Linear::new(inner, features, rngs),
            output_norm: Scale::new(features, rngs),
        }
    }

    /// Applies the block to `x`, `[batch, length, features]`.
    fn forward(&self, x: Array, options: AttentionOptions) -> Array {
        let input = self.input_norm.forward(self.input.forward(&x));
        let shared = self.shared_norm.forward(self.shared.forward(&x));
        let attended = self.attention.attend(&shared, &shared, &x, options);
        let y = self.norm.forward(input + attended);
        let mlps = self.mlps.iter().zip(&self.mlp_norms);
        let y = mlps.fold(y, |y, (mlp, norm)| norm.forward(&y + mlp.forward(&y)));
        self.output_norm.forward(x + self.output.forward(y))
    }
}

/// Returns an error if tokens are not `[batch, length]`.
fn check_shape(tokens: &Array) -> Result<()> {
    if tokens.ndim() == 2 {
        return Ok(());
    }
    let message = format!("MobileBert: the shape {:?} is not [batch, length]", tokens.shape());
    Err(value_error(message, "add a dimension for the batch with `expand_dims(0)`"))
}

impl MobileBert {
    /// Computes features, `[batch, length, features]`, for each token of `[batch, length]`. Returns an error for texts that are longer
    /// than the position table, and for unknown tokens if their values are known.
    ///
    /// A token reads the embeddings of its neighbors, also of padding, as in `transformers`. The last token of a text therefore depends on
    /// whether padding follows it.
    #[track_caller]
    pub fn encode(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let tokens = tokens.into_array();
        let checked = check_tokens("MobileBert", &self.tokens, &tokens)
            .and_then(|()| check_shape(&tokens))
            .and_then(|()| check_positions("MobileBert", &self.positions, 0, &tokens));
        if let Err(error) = checked {
            return Array::from_error(error, &tokens);
        }
        let length = tokens.shape().last().copied().unwrap_or(0);
        // The neighbors of a token can be on another device.
        let x = gather_positions(self.tokens.forward(&tokens));
        let edge = zeros_like(x.get((.., ..1)));
        let after = concatenate(&[x.get((.., 1..)), edge.clone()], 1);
        let before = concatenate(&[edge, x.get((.., ..length.saturating_sub(1)))], 1);
        let x = self.projection.forward(concatenate(&[after, x, before], -1));
        let kinds = options.kinds().cloned().unwrap_or_else(|| zeros_dtype(tokens.shape(), DType::I32));
        let x = x + self.positions.forward(arange(0..length as i32)) + self.kinds.forward(kinds);
        let attention = options.mask().map(|mask| mask.expand_dims(1).expand_dims(1));
        let attention = attention.into_iter().fold(AttentionOptions::new(), AttentionOptions::mask);
        self.blocks.iter().fold(self.norm.forward(x), |x, block| block.forward(x, attention.clone()))
    }

    /// Applies the [head](BertHead). The result has logits for each token, `[batch, length, vocabulary]` or `[batch, length, classes]`,
    /// or for each text, `[batch, classes]`. Without a head, it has the features.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let x = self.encode(tokens, options);
        if x.check().is_err() {
            return x;
        }
        if let (Some(head), Some(norm), Some(more), Some(bias)) =
            (&self.head, &self.head_norm, &self.more_tokens, &self.bias)
        {
            let x = norm.forward(self.activation.apply(head.forward(x)));
            let embedded = self.tokens.embedding.shape()[1];
            let (first, rest) = (x.get((Ellipsis, ..embedded)), x.get((Ellipsis, embedded..)));
            return self.tokens.attend(first) + rest.dot(more.astype(x.dtype())) + bias.astype(x.dtype());
        }
        // The features of the first token represent the text.
        let x = if self.pools { first_token(x) } else { x };
        let x = self.head.iter().fold(x, |x, layer| layer.forward(x).tanh());
        self.classifier.iter().fold(x, |x, layer| layer.forward(x))
    }
}
