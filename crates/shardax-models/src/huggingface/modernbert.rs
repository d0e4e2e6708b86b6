//! ModernBERT.

use shardax_nn::Rope;
use shardax_nn::prelude::*;

use super::bert::{BertHead, logits};
use super::bert_files::head;
use super::fields::Fields;
use super::rope::{rope_object, scaled_rope};
use super::{BertOptions, Config, KeyMap, Layout, Pretrained, attention, check_type};
use crate::decoder::check_tokens;
use crate::ranks::allow_any_ranks;
use crate::shardings::first_token;
use crate::{Activation, Mlp, Norm, NormKind};

/// The architecture of a [`ModernBert`].
#[derive(Clone, Debug, PartialEq)]
pub struct ModernBertConfig {
    /// The number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// The features of a token.
    pub hidden_size: usize,
    /// The features inside an MLP.
    pub intermediate_size: usize,
    /// The number of attention heads. It must divide the features.
    pub num_attention_heads: usize,
    /// The rotary positions of each block, and its window: how many tokens to each side it attends to, or `None` for
    /// all.
    pub layers: Vec<(Rope, Option<usize>)>,
    /// Added to the variance in norms.
    pub norm_eps: f64,
    /// True if norms have biases.
    pub norm_bias: bool,
    /// True if attention has biases.
    pub attention_bias: bool,
    /// True if MLPs have biases.
    pub mlp_bias: bool,
    /// True if the first layer of the head has a bias.
    pub classifier_bias: bool,
    /// The activation of the MLPs.
    pub hidden_activation: Activation,
    /// The activation of the head.
    pub classifier_activation: Activation,
    /// True if the features of a text are the mean over its tokens. Otherwise they are the features of the first token.
    pub pools_mean: bool,
    /// The head, which is applied to the output of the blocks.
    pub head: BertHead,
}

/// ModernBERT ([Warner et al. 2024](https://arxiv.org/abs/2412.13663)), an encoder with rotary positions and windowed
/// attention. The field `architectures` chooses the [head](BertHead).
#[derive(Module, Clone, Debug)]
pub struct ModernBert {
    tokens: Embed,
    norm: Norm,
    blocks: Vec<Block>,
    final_norm: Norm,
    /// The first layer of the head.
    head: Option<Linear>,
    head_norm: Option<Norm>,
    /// `[vocabulary]`: added to the logits of the tokens.
    bias: Option<Array>,
    /// The last layer of a head for classes.
    classifier: Option<Linear>,
    #[tree(static)]
    activation: Activation,
    #[tree(static)]
    pooling: Pooling,
}

/// Pools the features if the head classifies texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Pooling {
    EachToken,
    First,
    Mean,
}

#[derive(Module, Clone, Debug)]
struct Block {
    /// The first block has no norm before its attention, because the embeddings are already normalized.
    norm: Option<Norm>,
    attention: MultiHeadAttention,
    mlp_norm: Norm,
    mlp: Mlp,
}

impl Pretrained for ModernBert {
    type Architecture = ModernBertConfig;

    fn read(config: &Config) -> Result<(ModernBertConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "modernbert")?;
        // Encoders mask no later positions.
        fields.skip(&["is_causal"]);
        let (heads, features) = (fields.size("num_attention_heads")?, fields.size("hidden_size")?);
        fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
        let head = head(&fields, None)?;
        let read = ModernBertConfig {
            vocab_size: fields.size("vocab_size")?,
            hidden_size: features,
            intermediate_size: fields.size("intermediate_size")?,
            num_attention_heads: heads,
            layers: layers(&fields, features / heads)?,
            norm_eps: fields.number("norm_eps")?,
            norm_bias: fields.flag("norm_bias")?,
            attention_bias: fields.flag("attention_bias")?,
            mlp_bias: fields.flag("mlp_bias")?,
            classifier_bias: fields.flag("classifier_bias")?,
            hidden_activation: fields.activation("hidden_activation")?,
            classifier_activation: fields.activation("classifier_activation")?,
            pools_mean: match fields.text("classifier_pooling")? {
                "cls" => false,
                "mean" => true,
                other => return Err(fields.error(format!("the `classifier_pooling` {other:?} is not supported"))),
            },
            head,
        };
        if head == BertHead::MaskedTokens && !(fields.flag("decoder_bias")? && fields.flag("tie_word_embeddings")?) {
            let message =
                "this model's last layer is its table with a bias: `decoder_bias` and `tie_word_embeddings` are true";
            return Err(fields.error(message));
        }
        // Fields for other implementations, for training and for tokenization.
        fields.skip(&["decoder_bias", "tie_word_embeddings", "deterministic_flash_attn", "reference_compile"]);
        fields.skip(&["repad_logits_with_grad", "sparse_pred_ignore_index", "sparse_prediction", "layer_norm_eps"]);
        fields.skip(&["embedding_dropout", "mlp_dropout", "initializer_cutoff_factor", "cls_token_id", "sep_token_id"]);
        fields.skip(&["position_embedding_type", "gradient_checkpointing"]);
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &ModernBertConfig, rngs: &mut Rngs) -> Result<Self> {
        Ok(make(config, rngs))
    }

    fn extents(config: &ModernBertConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let features = config.hidden_size;
        let matrices = vec![
            ("token table", config.vocab_size, features),
            ("query kernel", features, features),
            ("MLP kernel", features, config.intermediate_size),
            ("table of classes", config.head.classes().unwrap_or(0), features),
        ];
        (config.layers.len(), matrices)
    }
}

/// Returns the rotary positions and the window of each layer.
fn layers(fields: &Fields, head_dim: usize) -> Result<Vec<(Rope, Option<usize>)>> {
    let count = fields.layers("num_hidden_layers")?;
    // The bases are in older fields if there is no object of rotary positions.
    let theta = [fields.number_or("global_rope_theta", 160_000.0)?, fields.number_or("local_rope_theta", 10_000.0)?];
    let about = match rope_object(fields)? {
        Some(types) => {
            let about = [types.object_opt("full_attention")?, types.object_opt("sliding_attention")?];
            types.finish()?;
            about
        }
        None => [None, None],
    };
    let [global, local] = [0, 1].map(|kind| match &about[kind] {
        Some(about) => scaled_rope(fields, about, theta[kind], head_dim, None),
        None => Ok(Rope::new(theta[kind])),
    });
    let (global, local) = (global?, local?);
    let half = fields.size("local_attention")? / 2;
    let interval = fields.size_opt("global_attn_every_n_layers")?.unwrap_or(3);
    let types = fields.list_opt("layer_types")?;
    if let Some(types) = types.filter(|types| types.len() != count) {
        return Err(fields.error(format!("`layer_types` has {} entries for {count} layers", types.len())));
    }
    let layers = (0..count).map(|index| {
        let is_global = match types.map(|types| types[index].as_str().unwrap_or_default()) {
            Some("full_attention") => true,
            Some("sliding_attention") => false,
            Some(other) => {
                return Err(fields.error(format!("`layer_types` has the layer type {other:?}, which is not supported")));
            }
            None => index.is_multiple_of(interval),
        };
        Ok(if is_global { (global.clone(), None) } else { (local.clone(), Some(half)) })
    });
    layers.collect()
}

/// Returns the names of the arrays. Files of a model without a head have no prefix, and other files may omit it.
fn keys(config: &ModernBertConfig) -> KeyMap {
    let prefix = if config.head == BertHead::None { "" } else { "model." };
    let layer = format!("{prefix}layers.*");
    let (features, hidden) = (config.hidden_size, config.intermediate_size);
    // The files store queries, keys and values as one matrix, and also the two halves of the MLP.
    let keys = KeyMap::new()
        .array("tokens.embedding", format!("{prefix}embeddings.tok_embeddings.weight"), Layout::Same)
        .norm("norm.0", &format!("{prefix}embeddings.norm"))
        .norm("blocks[*].norm.0", &format!("{layer}.attn_norm"))
        .weights("blocks[*].attention.query", &format!("{layer}.attn.Wqkv"), Layout::nth_rows(0, features, 3))
        .weights("blocks[*].attention.key", &format!("{layer}.attn.Wqkv"), Layout::nth_rows(1, features, 3))
        .weights("blocks[*].attention.value", &format!("{layer}.attn.Wqkv"), Layout::nth_rows(2, features, 3))
        .linear("blocks[*].attention.out", &format!("{layer}.attn.Wo"))
        .norm("blocks[*].mlp_norm.0", &format!("{layer}.mlp_norm"))
        .weights("blocks[*].mlp.gate", &format!("{layer}.mlp.Wi"), Layout::nth_rows(0, hidden, 2))
        .weights("blocks[*].mlp.up", &format!("{layer}.mlp.Wi"), Layout::nth_rows(1, hidden, 2))
        .linear("blocks[*].mlp.down", &format!("{layer}.mlp.Wo"))
        .norm("final_norm.0", &format!("{prefix}final_norm"))
        .linear("head", "head.dense")
        .norm("head_norm.0", "head.norm")
        .linear("classifier", "classifier");
    match config.head {
        BertHead::None => {
            let heads = ["head", "decoder", "classifier"].into_iter();
            heads.fold(keys.prefix_alias("", "model."), |keys, other| keys.ignore(&format!("{other}.**")))
        }
        BertHead::MaskedTokens => keys
            .array("bias", "decoder.bias", Layout::Same)
            .tied("decoder.weight", &format!("{prefix}embeddings.tok_embeddings.weight")),
        _ => keys,
    }
}

impl ModernBert {
    /// Computes features, `[batch, length, features]`, for each token of `[batch, length]`. Token types have no effect.
    #[track_caller]
    pub fn encode(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let tokens = tokens.into_array();
        if let Err(error) = check_tokens("ModernBert", &self.tokens, &tokens) {
            return Array::from_error(error, &tokens);
        }
        let mut x = self.norm.forward(self.tokens.forward(tokens));
        // `[batch, heads, queries, keys]`
        let mask = options.mask().map(|mask| mask.expand_dims(1).expand_dims(1));
        for block in &self.blocks {
            let options = mask.iter().fold(AttentionOptions::new(), |options, mask| options.mask(mask));
            let y = block.norm.as_ref().map_or_else(|| x.clone(), |norm| norm.forward(&x));
            x = &x + block.attention.attend(&y, &y, &y, options);
            x = &x + block.mlp.forward(block.mlp_norm.forward(&x));
        }
        self.final_norm.forward(x)
    }

    /// Applies the [head](BertHead), with results as in [`Bert::forward`](super::Bert::forward).
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let mut x = self.encode(tokens, options);
        if x.check().is_err() {
            return x;
        }
        x = match (self.pooling, options.mask()) {
            (Pooling::EachToken, _) => x,
            (Pooling::First, _) => first_token(x),
            (Pooling::Mean, None) => x.mean(1),
            (Pooling::Mean, Some(mask)) => {
                let weights = mask.astype(x.dtype()).expand_dims(-1);
                (&x * &weights).sum(1) / weights.sum(1)
            }
        };
        if let (Some(head), Some(norm)) = (&self.head, &self.head_norm) {
            x = norm.forward(self.activation.apply(head.forward(x)));
        }
        logits(x, self.classifier.as_ref(), &self.tokens, self.bias.as_ref())
    }
}

fn make(config: &ModernBertConfig, rngs: &mut Rngs) -> ModernBert {
    let features = config.hidden_size;
    let kind = if config.norm_bias { NormKind::Layer } else { NormKind::LayerScale };
    let epsilon = config.norm_eps;
    let tokens = Embed::builder(config.vocab_size, features).axes(["vocab", "embed"]).build(rngs);
    let first_norm = Norm::new(kind, features, epsilon, rngs);
    let blocks = config.layers.iter().enumerate().map(|(index, (rope, window))| {
        let builder =
            attention(config.num_attention_heads, features).use_bias(config.attention_bias).rope(rope.clone());
        let builder = window.iter().fold(builder, |builder, window| builder.local_window_size(*window, *window));
        Block {
            // The norm of the embeddings also serves as the first norm of block 0.
            norm: (index > 0).then(|| Norm::new(kind, features, epsilon, rngs)),
            attention: builder.build(rngs),
            mlp_norm: Norm::new(kind, features, epsilon, rngs),
            mlp: Mlp::new(features, config.intermediate_size, config.hidden_activation, true, config.mlp_bias, rngs),
        }
    });
    let blocks = blocks.collect();
    let has_head = config.head != BertHead::None;
    ModernBert {
        tokens,
        norm: first_norm,
        blocks,
        final_norm: Norm::new(kind, features, epsilon, rngs),
        head: has_head.then(|| Linear::builder(features, features).use_bias(config.classifier_bias).build(rngs)),
        head_norm: has_head.then(|| Norm::new(kind, features, epsilon, rngs)),
        bias: (config.head == BertHead::MaskedTokens)
            .then(|| zeros_dtype([config.vocab_size], rngs.policy().param_dtype)),
        classifier: config.head.classes().map(|count| Linear::new(features, count, rngs)),
        activation: config.classifier_activation,
        pooling: match (config.head, config.pools_mean) {
            (BertHead::Classes { .. }, true) => Pooling::Mean,
            (BertHead::Classes { .. }, false) => Pooling::First,
            _ => Pooling::EachToken,
        },
    }
}
