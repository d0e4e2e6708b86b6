//! BERT, and the encoders with its blocks: RoBERTa, XLM-RoBERTa and DistilBERT.

use shardax_nn::prelude::*;

use super::config::Fields;
use super::{Config, KeyMap, Layout, Pretrained, attention, mlp};
use crate::decoder::{check_positions, check_tokens};
use crate::ranks::allow_any_ranks;
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
    /// The length of the table of positions.
    pub max_position_embeddings: usize,
    /// The first positions of the table that no token of a text has: RoBERTa counts from the padding token's number plus 1.
    pub first_position: usize,
    /// The number of token types, such as first and second sentence; 0 if the model has no token types.
    pub type_vocab_size: usize,
    /// Added to the variance in norms.
    pub layer_norm_eps: f64,
    /// The function in MLPs.
    pub hidden_act: Activation,
    /// The layers after the blocks.
    pub head: BertHead,
}

/// The layers of a [`Bert`] after its blocks, which the field `architectures` names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BertHead {
    /// None: the results are features, `BertModel`.
    None,
    /// Logits of each token: `BertForMaskedLM`.
    MaskedTokens,
    /// Logits of this many classes of a text: `BertForSequenceClassification`.
    Classes {
        /// The number of classes.
        count: usize,
        /// True if ReLU follows the first layer instead of tanh.
        is_relu: bool,
    },
    /// Logits of this many classes of each token: `BertForTokenClassification`.
    TokenClasses(usize),
}

impl BertHead {
    /// The number of classes, if there are any.
    pub(super) fn classes(self) -> Option<usize> {
        match self {
            BertHead::Classes { count, .. } | BertHead::TokenClasses(count) => Some(count),
            BertHead::None | BertHead::MaskedTokens => None,
        }
    }
}

/// BERT ([Devlin et al. 2018](https://arxiv.org/abs/1810.04805)) and the encoders with its blocks, which predict masked
/// tokens, classify texts or tokens, or encode them.
///
/// The model type is `bert`, `roberta`, `xlm-roberta` or `distilbert`; the field `architectures` chooses the
/// [head](BertHead).
#[derive(Module, Clone, Debug)]
pub struct Bert {
    tokens: Embed,
    positions: Embed,
    kinds: Option<Embed>,
    norm: LayerNorm,
    blocks: Vec<Block>,
    /// The layer before the last one of a head.
    head: Option<Linear>,
    head_norm: Option<LayerNorm>,
    /// `[vocabulary]`: added to the logits of tokens.
    bias: Option<Array>,
    /// The last layer of heads for classes.
    classifier: Option<Linear>,
    first_position: usize,
    pools: bool,
    #[tree(static)]
    activation: HeadActivation,
}

/// The function in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum HeadActivation {
    Tanh,
    Mlp(Activation),
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

    /// The mask of visible tokens, if there is one.
    pub(crate) fn mask(&self) -> Option<&Array> {
        self.attention_mask.as_ref()
    }
}

/// The model types that have BERT's blocks.
const KNOWN: [&str; 4] = ["bert", "roberta", "xlm-roberta", "distilbert"];

impl Pretrained for Bert {
    type Architecture = BertConfig;

    fn read(config: &Config) -> Result<(BertConfig, KeyMap)> {
        let fields = config.fields();
        let kind = fields.text("model_type")?;
        if !KNOWN.contains(&kind) {
            return Err(fields.error(format!("the model_type {kind:?} is none of {}", KNOWN.join(", "))));
        }
        let is_distilled = kind == "distilbert";
        let named = |name: &'static str, distilled: &'static str| if is_distilled { distilled } else { name };
        let head = head(&fields, is_distilled)?;
        let read = BertConfig {
            vocab_size: fields.size("vocab_size")?,
            hidden_size: fields.size(named("hidden_size", "dim"))?,
            intermediate_size: fields.size(named("intermediate_size", "hidden_dim"))?,
            num_hidden_layers: fields.layers(named("num_hidden_layers", "n_layers"))?,
            num_attention_heads: fields.size(named("num_attention_heads", "n_heads"))?,
            max_position_embeddings: fields.size("max_position_embeddings")?,
            first_position: match kind {
                "roberta" | "xlm-roberta" => fields.number_or("pad_token_id", 1.0)? as usize + 1,
                _ => 0,
            },
            type_vocab_size: if is_distilled { 0 } else { fields.size("type_vocab_size")? },
            layer_norm_eps: if is_distilled { 1e-12 } else { fields.number("layer_norm_eps")? },
            hidden_act: fields.activation(named("hidden_act", "activation"))?,
            head,
        };
        let (heads, features) = (read.num_attention_heads, read.hidden_size);
        let heads_name = named("num_attention_heads", "n_heads");
        fields.divides((heads_name, heads), (named("hidden_size", "dim"), features))?;
        if head == BertHead::MaskedTokens && !fields.flag("tie_word_embeddings")? {
            return Err(fields.error("field `tie_word_embeddings` is false, and this model's last layer is its table"));
        }
        if is_distilled {
            // Sines are the first values of the table, which the files hold.
            fields.skip(&["sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_"]);
        }
        fields.skip(&["tie_word_embeddings"]);
        fields.finish()?;
        Ok((read.clone(), keys(kind, &read)))
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
            ("table of classes", config.head.classes().unwrap_or(0), features),
        ];
        (config.num_hidden_layers, matrices)
    }
}

/// The head that `architectures` names; without it, the one for masked tokens.
pub(super) fn head(fields: &Fields, is_relu: bool) -> Result<BertHead> {
    let list = fields.list_opt("architectures")?;
    let name = list.and_then(|list| list.first()).and_then(|name| name.as_str()).unwrap_or("ForMaskedLM");
    let count = || Ok::<_, Error>(fields.count_opt("id2label")?.filter(|count| *count > 0).unwrap_or(2));
    Ok(match name.rsplit_once("For").map_or(name, |(_, head)| head) {
        "MaskedLM" | "PreTraining" => BertHead::MaskedTokens,
        "SequenceClassification" => BertHead::Classes { count: count()?, is_relu },
        "TokenClassification" => BertHead::TokenClasses(count()?),
        name if name.ends_with("Model") => BertHead::None,
        other => return Err(fields.error(format!("the head {other:?} of `architectures` is not known"))),
    })
}

/// The names of arrays. A model without a head has no prefix in files, and others may lack it.
fn keys(kind: &str, config: &BertConfig) -> KeyMap {
    let base = match kind {
        "xlm-roberta" => "roberta.".to_owned(),
        kind => format!("{kind}."),
    };
    let prefix = if config.head == BertHead::None { String::new() } else { base.clone() };
    let name = |name: &str| format!("{prefix}{name}");
    let keys = match kind {
        "distilbert" => distilled_blocks(&name),
        _ => blocks(&name),
    };
    let keys = keys
        // Files from before 2020 have their names from TensorFlow.
        .alias("LayerNorm.weight", "LayerNorm.gamma")
        .alias("LayerNorm.bias", "LayerNorm.beta")
        .array("tokens.embedding", name("embeddings.word_embeddings.weight"), Layout::Same)
        .array("positions.embedding", name("embeddings.position_embeddings.weight"), Layout::Same)
        .array("kinds.embedding", name("embeddings.token_type_embeddings.weight"), Layout::Same)
        .norm("norm", &name("embeddings.LayerNorm"))
        .ignore(&name("embeddings.position_ids"))
        .ignore("cls.seq_relationship.**");
    let keys = match config.head {
        BertHead::None => keys.prefix_alias("", &base).ignore(&format!("{base}pooler.**")),
        _ => keys.prefix_alias(&base, ""),
    };
    let keys = head_keys(keys, kind, config.head, &name);
    // Layers that other heads have.
    match (kind, config.head) {
        ("bert", BertHead::Classes { .. }) => keys,
        (_, BertHead::None) => ["pooler", "cls", "lm_head", "classifier", "vocab_transform", "vocab_layer_norm"]
            .into_iter()
            .fold(keys, |keys, other| keys.ignore(&format!("{other}.**")))
            .ignore("vocab_projector.**"),
        _ => keys.ignore(&name("pooler.**")),
    }
}

/// The names of BERT's blocks.
fn blocks(name: &impl Fn(&str) -> String) -> KeyMap {
    let layer = |part: &str| name(&format!("encoder.layer.*.{part}"));
    KeyMap::new()
        .linear("blocks[*].attention.query", &layer("attention.self.query"))
        .linear("blocks[*].attention.key", &layer("attention.self.key"))
        .linear("blocks[*].attention.value", &layer("attention.self.value"))
        .linear("blocks[*].attention.out", &layer("attention.output.dense"))
        .norm("blocks[*].norm", &layer("attention.output.LayerNorm"))
        .linear("blocks[*].mlp.up", &layer("intermediate.dense"))
        .linear("blocks[*].mlp.down", &layer("output.dense"))
        .norm("blocks[*].mlp_norm", &layer("output.LayerNorm"))
}

/// The names of DistilBERT's blocks.
fn distilled_blocks(name: &impl Fn(&str) -> String) -> KeyMap {
    let layer = |part: &str| name(&format!("transformer.layer.*.{part}"));
    KeyMap::new()
        .linear("blocks[*].attention.query", &layer("attention.q_lin"))
        .linear("blocks[*].attention.key", &layer("attention.k_lin"))
        .linear("blocks[*].attention.value", &layer("attention.v_lin"))
        .linear("blocks[*].attention.out", &layer("attention.out_lin"))
        .norm("blocks[*].norm", &layer("sa_layer_norm"))
        .linear("blocks[*].mlp.up", &layer("ffn.lin1"))
        .linear("blocks[*].mlp.down", &layer("ffn.lin2"))
        .norm("blocks[*].mlp_norm", &layer("output_layer_norm"))
}

/// The names of a head's layers, and the copies of the table of tokens.
fn head_keys(keys: KeyMap, kind: &str, head: BertHead, name: &impl Fn(&str) -> String) -> KeyMap {
    // The layer before the last one, its norm, and the last one.
    let (dense, norm, last) = match (kind, head) {
        (_, BertHead::None) => return keys,
        (_, BertHead::TokenClasses(_)) => ("", "", "classifier"),
        ("bert", BertHead::Classes { .. }) => ("bert.pooler.dense", "", "classifier"),
        ("distilbert", BertHead::Classes { .. }) => ("pre_classifier", "", "classifier"),
        (_, BertHead::Classes { .. }) => ("classifier.dense", "", "classifier.out_proj"),
        ("bert", BertHead::MaskedTokens) => {
            ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder")
        }
        ("distilbert", BertHead::MaskedTokens) => ("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        (_, BertHead::MaskedTokens) => ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"),
    };
    let keys = keys.linear("head", dense).norm("head_norm", norm).linear("classifier", last);
    if head != BertHead::MaskedTokens {
        return keys;
    }
    let bias = match kind {
        "bert" => "cls.predictions.bias",
        "distilbert" => "vocab_projector.bias",
        _ => "lm_head.bias",
    };
    let keys = keys
        .array("bias", bias, Layout::Same)
        .tied(&format!("{last}.weight"), &name("embeddings.word_embeddings.weight"));
    if kind == "distilbert" { keys } else { keys.tied(&format!("{last}.bias"), bias) }
}

impl Bert {
    /// The encoding of each token of `[batch, length]`: `[batch, length, features]`. Fails for more tokens than the model has
    /// positions, and for unknown tokens if their values are known.
    #[track_caller]
    pub fn encode(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let tokens = tokens.into_array();
        let checked = check_tokens("Bert", &self.tokens, &tokens)
            .and_then(|()| check_positions("Bert", &self.positions, self.first_position, &tokens));
        if let Err(error) = checked {
            return Array::from_error(error, &tokens);
        }
        let positions = self.positions_of(&tokens, options);
        let kinds = options.token_type_ids.clone().unwrap_or_else(|| zeros_dtype(tokens.shape(), DType::I32));
        let x = self.tokens.forward(tokens) + self.positions.forward(positions);
        let x = match &self.kinds {
            Some(table) => x + table.forward(kinds),
            None => x,
        };
        let mut x = self.norm.forward(x);
        // `[batch, heads, queries, keys]`
        let mask = options.attention_mask.as_ref().map(|mask| mask.expand_dims(1).expand_dims(1));
        for block in &self.blocks {
            let options = mask.iter().fold(AttentionOptions::new(), |options, mask| options.mask(mask));
            x = block.norm.forward(&x + block.attention.attend(&x, &x, &x, options));
            x = block.mlp_norm.forward(&x + block.mlp.forward(&x));
        }
        x
    }

    /// The position of each token: RoBERTa does not count padding, which has the last position before the first one.
    fn positions_of(&self, tokens: &Array, options: &BertOptions) -> Array {
        let length = tokens.shape().last().copied().unwrap_or(0) as i32;
        match (&options.attention_mask, self.first_position) {
            (_, 0) => arange(0..length),
            (None, first) => arange(0..length) + first as i32,
            (Some(mask), first) => {
                let is_visible = mask.astype(DType::I32);
                is_visible.cumsum(-1) * is_visible + (first as i32 - 1)
            }
        }
    }

    /// The results of the [head](BertHead): logits of each token, `[batch, length, vocabulary]` or `[batch, length,
    /// classes]`, of each text, `[batch, classes]`, or without a head the encodings.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let mut x = self.encode(tokens, options);
        if self.pools {
            // The first token is the one that stands for the text.
            x = x.get((.., 0));
        }
        if let Some(head) = &self.head {
            let y = head.forward(x);
            x = match self.activation {
                HeadActivation::Tanh => y.tanh(),
                HeadActivation::Mlp(activation) => activation.apply(y),
            };
        }
        if let Some(norm) = &self.head_norm {
            x = norm.forward(x);
        }
        logits(x, self.classifier.as_ref(), &self.tokens, self.bias.as_ref())
    }
}

/// The result of an encoder's head: the classes, the tokens with a bias, or `x` without a head.
pub(super) fn logits(x: Array, classifier: Option<&Linear>, tokens: &Embed, bias: Option<&Array>) -> Array {
    match (classifier, bias) {
        (Some(classifier), _) => classifier.forward(x),
        (None, Some(bias)) => {
            let logits = tokens.attend(x);
            &logits + bias.astype(logits.dtype())
        }
        (None, None) => x,
    }
}

fn make(config: &BertConfig, rngs: &mut Rngs) -> Bert {
    let features = config.hidden_size;
    let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
    let tokens = Embed::builder(config.vocab_size, features).axes(["vocab", "embed"]).build(rngs);
    let positions = Embed::new(config.max_position_embeddings, features, rngs);
    let kinds = (config.type_vocab_size > 0).then(|| Embed::new(config.type_vocab_size, features, rngs));
    let blocks = (0..config.num_hidden_layers).map(|_| Block {
        attention: attention(config.num_attention_heads, features).build(rngs),
        norm: norm(rngs),
        mlp: mlp(features, config.intermediate_size, config.hidden_act, rngs),
        mlp_norm: norm(rngs),
    });
    let blocks = blocks.collect();
    let first_norm = norm(rngs);
    let masks = config.head == BertHead::MaskedTokens;
    let (count, activation) = match config.head {
        BertHead::Classes { count, is_relu: true } => (Some(count), HeadActivation::Mlp(Activation::Relu)),
        BertHead::Classes { count, is_relu: false } => (Some(count), HeadActivation::Tanh),
        BertHead::TokenClasses(count) => (Some(count), HeadActivation::Tanh),
        BertHead::MaskedTokens | BertHead::None => (None, HeadActivation::Mlp(config.hidden_act)),
    };
    // Heads for masked tokens have a transformation of each token; classifiers of texts pool the first token.
    let pools = matches!(config.head, BertHead::Classes { .. });
    let head = (masks || pools).then(|| Linear::new(features, features, rngs));
    let head_norm = masks.then(|| norm(rngs));
    let bias = masks.then(|| zeros_dtype([config.vocab_size], rngs.policy().param_dtype));
    let classifier = count.map(|count| Linear::new(features, count, rngs));
    let first_position = config.first_position;
    Bert {
        tokens,
        positions,
        kinds,
        norm: first_norm,
        blocks,
        head,
        head_norm,
        bias,
        classifier,
        first_position,
        pools,
        activation,
    }
}
