//! BERT and related encoders, such as RoBERTa, DistilBERT, ALBERT and MPNet.

use shardax_nn::Rope;
use shardax_nn::prelude::*;

use super::token_conv::{TokenConv, half_attention};
use super::{GlobalAttention, Scope, attention};
use crate::decoder::{check_positions, check_tokens};
use crate::encoder_decoder::distance_bias;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::{first_token, gather_last, gather_mask, gather_positions, reshard_like};
use crate::{Activation, Mlp};

/// The architecture of a [`Bert`].
#[derive(Clone, Debug, PartialEq)]
pub struct BertConfig {
    /// The number of tokens.
    pub vocab_size: usize,
    /// The size of the embeddings of tokens, positions and token types.
    pub embedding_size: usize,
    /// True if a linear layer converts the embeddings to `hidden_size` features.
    pub projects_embeddings: bool,
    /// The features of a token in the blocks.
    pub hidden_size: usize,
    /// The features inside an MLP.
    pub intermediate_size: usize,
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The index of the block that each layer uses, because ALBERT applies the same block in several layers.
    pub block_order: Vec<usize>,
    /// The number of attention heads. It must divide `hidden_size`.
    pub num_attention_heads: usize,
    /// The length of the table of positions; 0 if there is none.
    pub max_position_embeddings: usize,
    /// The number of rows at the start of the position table that no token uses. RoBERTa counts positions from the
    /// padding token's number plus 1.
    pub first_position: usize,
    /// The number of token types, such as first and second sentence; 0 if the model has no token types.
    pub type_vocab_size: usize,
    /// The number of task types; 0 if the model has none. All tokens have the first one.
    pub task_type_vocab_size: usize,
    /// The number of tokens before and after a token that it sees, for each block, as in Longformer; empty if a token sees all tokens.
    pub windows: Vec<usize>,
    /// The largest number of tokens of a text, if longer texts would compute only blocks of scores, as in BigBird.
    pub max_length: Option<usize>,
    /// The number of coordinates of boxes of words on a page, as in LayoutLM; 0 if the model does not read boxes.
    pub box_size: usize,
    /// The features of the head for masked tokens, if its last layer is not the token table, as in RemBERT.
    pub output_embedding_size: Option<usize>,
    /// True if the embeddings are normalized.
    pub has_first_norm: bool,
    /// True if each block normalizes the inputs of attention and MLP, and the model the output of the last block.
    /// Otherwise the sums are normalized.
    pub pre_norms: bool,
    /// True if the embeddings of padding are set to zero before the first block.
    pub hides_padding: bool,
    /// The token whose embedding is set to zero, because training masks some tokens like this. The other embeddings are
    /// scaled to compensate.
    pub masked_token: Option<i32>,
    /// Added to the variance in norms.
    pub layer_norm_eps: f64,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
    /// The number of tokens that a convolution next to attention reads, as in ConvBERT. `num_attention_heads` is the number of heads of
    /// attention then, and the convolution has as many.
    pub token_conv: Option<usize>,
    /// True if MLPs have a gate.
    pub is_gated: bool,
    /// True if the linear layers of attention have biases.
    pub attention_bias: bool,
    /// True if tokens attend to each other. Otherwise Fourier transforms over tokens and features mix them, as in FNet.
    pub has_attention: bool,
    /// True if the first layers of MLPs have biases.
    pub mlp_bias: bool,
    /// True if the last layers of MLPs have biases.
    pub mlp_out_bias: bool,
    /// The rotary positions, if the model uses them.
    pub rope: Option<Rope>,
    /// True if attention adds learned biases that depend on the distance of two tokens.
    pub has_distances: bool,
    /// The activation of the head for masked tokens.
    pub head_act: Activation,
    /// The head, which is applied to the output of the blocks.
    pub head: BertHead,
}

/// The head of a [`Bert`]. The field `architectures` chooses it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BertHead {
    /// No head: the results are features (`BertModel`).
    None,
    /// Logits for each token (`BertForMaskedLM`).
    MaskedTokens,
    /// Logits for the classes of a text (`BertForSequenceClassification`).
    Classes {
        /// The number of classes.
        count: usize,
        /// The activation after the first layer. Default: tanh.
        activation: Option<Activation>,
    },
    /// Logits for the classes of each token (`BertForTokenClassification`).
    TokenClasses(usize),
    /// One logit for each token, which is positive if another model has replaced the token (`ElectraForPreTraining`).
    Replaced,
}

impl BertHead {
    /// Returns the number of classes, if the head has classes.
    pub(super) fn classes(self) -> Option<usize> {
        match self {
            BertHead::Classes { count, .. } | BertHead::TokenClasses(count) => Some(count),
            BertHead::None | BertHead::MaskedTokens | BertHead::Replaced => None,
        }
    }
}

/// BERT ([Devlin et al. 2018](https://arxiv.org/abs/1810.04805)) and related encoders, which predict masked tokens,
/// classify texts or tokens, or compute features.
///
/// The model type is `bert`, `ernie`, `roberta`, `xlm-roberta`, `camembert`, `data2vec-text`, `roberta-prelayernorm`, `megatron-bert`, `xlm-roberta-xl`,
/// `distilbert`, `mpnet`, `albert`, `electra`, `roformer`, `nomic_bert`, `gte`, `jina_embeddings_v3`, `esm`, `layoutlm`, `rembert`, `longformer`, `big_bird` or `convbert`; the field `architectures` chooses the [head](BertHead).
#[derive(Module, Clone, Debug)]
pub struct Bert {
    tokens: Embed,
    positions: Option<Embed>,
    kinds: Option<Embed>,
    tasks: Option<Embed>,
    boxes: Option<BoxTables>,
    norm: Option<LayerNorm>,
    /// Normalizes the output of the last block.
    final_norm: Option<LayerNorm>,
    /// Converts the embeddings to the features of the blocks.
    projection: Option<Linear>,
    /// `[groups of distances, heads]`: the biases that attention adds.
    distances: Option<Embed>,
    blocks: Vec<EncoderLayer>,
    #[tree(static)]
    block_order: Vec<usize>,
    /// The first layer of the head.
    head: Option<Linear>,
    head_norm: Option<LayerNorm>,
    /// `[vocabulary]`: added to the logits of the tokens.
    bias: Option<Array>,
    /// The last layer of a head for classes.
    classifier: Option<Linear>,
    first_position: usize,
    #[tree(static)]
    masked_token: Option<i32>,
    #[tree(static)]
    max_length: Option<usize>,
    pre_norms: bool,
    hides_padding: bool,
    pools: bool,
    /// True if the head has a single logit. Its dimension is removed.
    has_one_logit: bool,
    #[tree(static)]
    activation: HeadActivation,
}

/// The embeddings of the boxes of words on a page.
#[derive(Module, Clone, Debug)]
struct BoxTables {
    x: Embed,
    y: Embed,
    height: Embed,
    width: Embed,
}

impl BoxTables {
    fn new(count: usize, features: usize, rngs: &mut Rngs) -> BoxTables {
        let [x, y, height, width] = [(); 4].map(|()| Embed::new(count, features, rngs));
        BoxTables { x, y, height, width }
    }

    /// Computes `[batch, length, features]` from boxes, `[batch, length, 4]`: the left, upper, right and lower edge of each word.
    fn forward(&self, boxes: &Array) -> Result<Array> {
        let [left, upper, right, lower] = [0, 1, 2, 3].map(|edge| boxes.get((Ellipsis, edge)));
        let parts = [
            (&self.x, left.clone()),
            (&self.y, upper.clone()),
            (&self.x, right.clone()),
            (&self.y, lower.clone()),
            (&self.height, lower - upper),
            (&self.width, right - left),
        ];
        let mut sum: Option<Array> = None;
        for (table, indices) in parts {
            check_tokens("Bert", table, &indices)?;
            let part = table.forward(indices);
            sum = Some(sum.map_or(part.clone(), |sum| sum + part));
        }
        sum.ok_or_else(|| value_error("a box has no edges", "report this"))
    }
}

/// The activation of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum HeadActivation {
    Tanh,
    Mlp(Activation),
}

/// A transformer block, which normalizes either its inputs or its sums.
#[derive(Module, Clone, Debug)]
pub(super) struct EncoderLayer {
    /// Attention. If there is none, Fourier transforms over tokens and features mix the tokens.
    pub attention: Option<MultiHeadAttention>,
    pub norm: LayerNorm,
    pub mlp: Mlp,
    pub mlp_norm: LayerNorm,
    /// The attention of single tokens to all tokens, if the other tokens see only their neighbors.
    pub global: Option<GlobalAttention>,
    /// The convolution of tokens next to attention.
    pub conv: Option<TokenConv>,
}

/// Token types and a mask for the tokens of a [`Bert`].
#[derive(Clone, Debug, Default)]
pub struct BertOptions {
    token_type_ids: Option<Array>,
    attention_mask: Option<Array>,
    boxes: Option<Array>,
    pub(super) global: Option<Array>,
    /// The positions of tokens, `[batch, length]`, if they are not counted from the first token.
    positions: Option<Array>,
}

impl BertOptions {
    /// Creates the default options: all tokens have the first type and are visible.
    pub fn new() -> Self {
        BertOptions::default()
    }

    /// Sets the type of each token, integers `[batch, length]`.
    pub fn token_type_ids(mut self, ids: impl ArrayLike) -> Self {
        self.token_type_ids = Some(ids.into_array());
        self
    }

    /// Sets the mask of visible tokens, `[batch, length]`. You should mask padding, because attention otherwise
    /// includes it.
    pub fn attention_mask(mut self, mask: impl ArrayLike) -> Self {
        self.attention_mask = Some(mask.into_array());
        self
    }

    /// Sets the box of each token on a page, integers `[batch, length, 4]`, for models that read boxes (LayoutLM): the left, upper, right
    /// and lower edge. Without boxes, all edges are 0.
    pub fn boxes(mut self, boxes: impl ArrayLike) -> Self {
        self.boxes = Some(boxes.into_array());
        self
    }

    /// Sets the tokens that see all tokens and that all tokens see, `[batch, length]`, for models whose other tokens see only their
    /// neighbors (Longformer, LED). By default, this is the first token if the model classifies texts, otherwise no token.
    pub fn global_attention(mut self, mask: impl ArrayLike) -> Self {
        self.global = Some(mask.into_array());
        self
    }

    /// Sets the tokens that each token sees, `[batch, length, length]`, and the positions of tokens, `[batch, length]`.
    pub(super) fn segments(mut self, mask: Array, positions: Array) -> Self {
        self.attention_mask = Some(mask);
        self.positions = Some(positions);
        self
    }

    /// Returns `true` if some tokens see all tokens.
    pub(crate) fn has_global_attention(&self) -> bool {
        self.global.is_some()
    }

    /// Returns the token types, if they are set.
    pub(super) fn kinds(&self) -> Option<&Array> {
        self.token_type_ids.as_ref()
    }

    /// Returns the mask of visible tokens, if it is set.
    pub(crate) fn mask(&self) -> Option<&Array> {
        self.attention_mask.as_ref()
    }
}

/// The fraction of tokens that were not masked when ESM was trained.
const UNMASKED_IN_TRAINING: f64 = 0.88;

impl EncoderLayer {
    /// Applies the block to `x`, `[batch, length, features]`.
    pub fn forward(&self, x: Array, options: AttentionOptions, pre_norms: bool) -> Array {
        if pre_norms {
            let y = self.norm.forward(&x);
            let x = &x + self.mixed(&y, options);
            return &x + self.mlp.forward(self.mlp_norm.forward(&x));
        }
        self.after_attention(&x, self.mixed(&x, options))
    }

    /// Computes the result of attention or of Fourier transforms.
    fn mixed(&self, x: &Array, options: AttentionOptions) -> Array {
        match (&self.attention, &self.conv) {
            (Some(attention), Some(conv)) => conv.attend(attention, x, options),
            (Some(attention), None) => attention.attend(x, x, x, options),
            (None, _) => {
                let gathered = gather_last(gather_positions(x.astype(DType::F32)));
                reshard_like(real(fft::fft2(gathered)).astype(x.dtype()), x)
            }
        }
    }

    /// Applies the rest of a block that normalizes its sums.
    fn after_attention(&self, x: &Array, attended: Array) -> Array {
        let x = self.norm.forward(x + attended);
        self.mlp_norm.forward(&x + self.mlp.forward(&x))
    }

    /// Applies the block, whose attention has a window in Longformer.
    fn forward_in(&self, x: Array, options: AttentionOptions, pre_norms: bool, scope: Option<&Scope>) -> Array {
        let attended =
            self.global.as_ref().zip(scope).zip(self.attention.as_ref()).and_then(|((global, scope), attention)| {
                let heads = global.attend(attention, &x, scope)?;
                Some(attention.out.forward(heads))
            });
        match attended {
            Some(attended) => self.after_attention(&x, attended),
            None => self.forward(x, options, pre_norms),
        }
    }
}

impl Bert {
    /// Computes features, `[batch, length, features]`, for each token of `[batch, length]`. Returns an error for texts
    /// that are longer than the position table, and for unknown tokens if their values are known.
    #[track_caller]
    pub fn encode(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let tokens = tokens.into_array();
        let checked = check_tokens("Bert", &self.tokens, &tokens).and_then(|()| match &self.positions {
            Some(table) => check_positions("Bert", table, self.first_position, &tokens),
            None => Ok(()),
        });
        let length = tokens.shape().last().copied().unwrap_or(0);
        if let Err(error) = checked.and_then(|()| self.check_length(length)) {
            return Array::from_error(error, &tokens);
        }
        let positions = self.positions.as_ref().map(|table| table.forward(self.positions_of(&tokens, options)));
        let kinds = options.token_type_ids.clone().unwrap_or_else(|| zeros_dtype(tokens.shape(), DType::I32));
        let x = self.masked(self.tokens.forward(&tokens), &tokens, options);
        let x = match positions {
            Some(positions) => x + positions,
            None => x,
        };
        let x = match &self.kinds {
            Some(table) => x + table.forward(kinds),
            None => x,
        };
        let x = self.tasks.iter().fold(x, |x, table| x + table.embedding.get(0));
        let x = match self.with_boxes(x, &tokens, options) {
            Ok(x) => x,
            Err(error) => return Array::from_error(error, &tokens),
        };
        let x = self.norm.iter().fold(x, |x, norm| norm.forward(x));
        let visible = options.mask().filter(|_| self.hides_padding);
        let x = visible.iter().fold(x, |x, mask| &x * mask.astype(x.dtype()).expand_dims(-1));
        let mut x = self.projection.iter().fold(x, |x, layer| layer.forward(x));
        let scope = self.scope(&tokens, options);
        if scope.is_none() && options.global.is_some() {
            let error = value_error(
                "Bert: all tokens of the model see all tokens",
                "call `forward` without `global_attention`",
            );
            return Array::from_error(error, &tokens);
        }
        if scope.is_some() || self.blocks.iter().any(|block| block.conv.is_some()) {
            // Windows and convolutions need the neighbors of the positions of each device.
            x = gather_positions(x);
        }
        let bias = self.distances.as_ref().map(|table| {
            let places = arange(0..length as i32);
            distance_bias(table, &places, &places, (true, MAX_DISTANCE), length)
        });
        // `[batch, heads, queries, keys]`
        let mask = options.attention_mask.as_ref().map(|mask| match mask.ndim() {
            3 => mask.expand_dims(1),
            _ => mask.expand_dims(1).expand_dims(1),
        });
        for block in self.block_order.iter().filter_map(|index| self.blocks.get(*index)) {
            let options = bias.iter().fold(AttentionOptions::new(), |options, bias| options.bias(bias));
            let options = mask.iter().fold(options, |options, mask| options.mask(mask));
            x = block.forward_in(x, options, self.pre_norms, scope.as_ref());
        }
        self.final_norm.iter().fold(x, |x, norm| norm.forward(x))
    }

    /// Returns an error for texts that are so long that the model would compute only blocks of scores.
    fn check_length(&self, length: usize) -> Result<()> {
        match self.max_length {
            Some(limit) if length > limit => {
                let message = format!(
                    "Bert: a text has {length} tokens, but blocks of scores are not supported, which this model has for more than {limit} tokens"
                );
                Err(value_error(message, "split the text into parts of at most that many tokens"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the tokens that see all tokens, if the other tokens see only their neighbors.
    fn scope(&self, tokens: &Array, options: &BertOptions) -> Option<Scope> {
        self.blocks.first()?.global.as_ref()?;
        Some(Scope::new(tokens.shape(), options, self.pools))
    }

    /// Adds the embeddings of boxes, if the model reads them.
    fn with_boxes(&self, x: Array, tokens: &Array, options: &BertOptions) -> Result<Array> {
        let help = "pass `boxes` as [batch, length, 4], and only to a model that reads them";
        match (&self.boxes, &options.boxes) {
            (None, None) => Ok(x),
            (None, Some(_)) => Err(value_error("Bert: the model does not read boxes", help)),
            (Some(tables), boxes) => {
                let shape = [tokens.shape(), &[4]].concat();
                let boxes = boxes.clone().unwrap_or_else(|| zeros_dtype(&shape[..], DType::I32));
                if boxes.check().is_ok() && boxes.shape() != shape {
                    return Err(value_error(
                        format!("Bert: boxes have the shape {:?}, not {shape:?}", boxes.shape()),
                        help,
                    ));
                }
                Ok(x + tables.forward(&boxes)?)
            }
        }
    }

    /// Sets the embeddings of masked tokens to zero. The other embeddings are scaled by the ratio between the fraction
    /// of unmasked tokens in training and in the text.
    fn masked(&self, x: Array, tokens: &Array, options: &BertOptions) -> Array {
        let Some(token) = self.masked_token else { return x };
        let is_masked = tokens.equal(token);
        let length = match options.mask() {
            Some(mask) => mask.astype(DType::F32).sum_keepdims(-1),
            None => full((), tokens.shape().last().copied().unwrap_or(1) as f32),
        };
        let share = is_masked.astype(DType::F32).sum_keepdims(-1) / length;
        let scale = (UNMASKED_IN_TRAINING / (1.0 - share)).expand_dims(-1);
        where_(is_masked.expand_dims(-1), 0.0, &x * scale.astype(x.dtype()))
    }

    /// Returns the position of each token. RoBERTa does not count padding, which gets the last unused position.
    fn positions_of(&self, tokens: &Array, options: &BertOptions) -> Array {
        if let Some(positions) = &options.positions {
            return positions.clone();
        }
        let length = tokens.shape().last().copied().unwrap_or(0) as i32;
        match (&options.attention_mask, self.first_position) {
            (_, 0) => arange(0..length),
            (None, first) => arange(0..length) + first as i32,
            (Some(mask), first) => {
                let is_visible = gather_mask(mask.astype(DType::I32));
                is_visible.cumsum(-1) * is_visible + (first as i32 - 1)
            }
        }
    }

    /// Applies the [head](BertHead). The result has logits for each token, `[batch, length, vocabulary]` or `[batch,
    /// length, classes]`, or for each text, `[batch, classes]`. Without a head, it has the features.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let mut x = self.encode(tokens, options);
        if self.pools {
            // The features of the first token represent the text.
            x = first_token(x);
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
        let logits = logits(x, self.classifier.as_ref(), &self.tokens, self.bias.as_ref());
        if self.has_one_logit { logits.squeeze(-1) } else { logits }
    }
}

/// Applies the last layer of a head: a layer for classes, or the token table and a bias. Returns `x` unchanged without
/// a head.
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

/// Larger distances share the bias of this one.
const MAX_DISTANCE: usize = 128;
/// The number of groups of distances.
pub(super) const DISTANCE_GROUPS: usize = 32;

/// Creates an encoder with random weights.
pub(super) fn make(config: &BertConfig, rngs: &mut Rngs) -> Bert {
    let (features, embedded) = (config.hidden_size, config.embedding_size);
    let norm =
        |features: usize, rngs: &mut Rngs| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
    let tokens = Embed::builder(config.vocab_size, embedded).axes(["vocab", "embed"]).build(rngs);
    let positions =
        (config.max_position_embeddings > 0).then(|| Embed::new(config.max_position_embeddings, embedded, rngs));
    let kinds = (config.type_vocab_size > 0).then(|| Embed::new(config.type_vocab_size, embedded, rngs));
    let blocks = (0..config.num_hidden_layers).map(|index| {
        let builder = attention(config.num_attention_heads, features).use_bias(config.attention_bias);
        EncoderLayer {
            attention: match (config.has_attention, config.token_conv) {
                (false, _) => None,
                (true, Some(_)) => Some(half_attention(config.num_attention_heads, features, rngs)),
                (true, None) => {
                    Some(config.rope.clone().into_iter().fold(builder, MultiHeadAttentionBuilder::rope).build(rngs))
                }
            },
            norm: norm(features, rngs),
            mlp: make_mlp(config, rngs),
            mlp_norm: norm(features, rngs),
            global: config
                .windows
                .get(index)
                .map(|window| GlobalAttention::new(*window, [config.num_attention_heads, features], rngs)),
            conv: config.token_conv.map(|size| TokenConv::new([config.num_attention_heads, features], size, rngs)),
        }
    });
    let blocks = blocks.collect();
    let tasks = (config.task_type_vocab_size > 0).then(|| Embed::new(config.task_type_vocab_size, embedded, rngs));
    let first_norm = config.has_first_norm.then(|| norm(embedded, rngs));
    let final_norm = config.pre_norms.then(|| norm(features, rngs));
    let projection = config.projects_embeddings.then(|| Linear::new(embedded, features, rngs));
    let heads = config.num_attention_heads;
    let distances = config.has_distances.then(|| Embed::new(DISTANCE_GROUPS, heads, rngs));
    let masks = config.head == BertHead::MaskedTokens;
    let (count, activation) = match config.head {
        BertHead::Classes { count, activation: Some(activation) } => (Some(count), HeadActivation::Mlp(activation)),
        BertHead::Classes { count, activation: None } => (Some(count), HeadActivation::Tanh),
        BertHead::TokenClasses(count) => (Some(count), HeadActivation::Tanh),
        BertHead::Replaced => (Some(1), HeadActivation::Mlp(config.hidden_act)),
        BertHead::MaskedTokens | BertHead::None => (None, HeadActivation::Mlp(config.head_act)),
    };
    // A head for masked tokens transforms each token first. A classifier of texts pools the first token.
    let pools = matches!(config.head, BertHead::Classes { .. });
    let has_one_logit = config.head == BertHead::Replaced;
    let head_features = match (masks, config.output_embedding_size) {
        (true, size) => size.unwrap_or(embedded),
        (false, _) => features,
    };
    let has_output_layer = masks && config.output_embedding_size.is_some();
    let head = (masks || pools || has_one_logit).then(|| Linear::new(features, head_features, rngs));
    let head_norm = masks.then(|| norm(head_features, rngs));
    let bias = (masks && !has_output_layer).then(|| zeros_dtype([config.vocab_size], rngs.policy().param_dtype));
    let classifier = if has_output_layer {
        Some(Linear::builder(head_features, config.vocab_size).kernel_axes(["embed", "vocab"]).build(rngs))
    } else {
        count.map(|count| Linear::new(features, count, rngs))
    };
    let boxes = (config.box_size > 0).then(|| BoxTables::new(config.box_size, embedded, rngs));
    Bert {
        tokens,
        positions,
        kinds,
        tasks,
        boxes,
        norm: first_norm,
        final_norm,
        projection,
        distances,
        blocks,
        block_order: config.block_order.clone(),
        head,
        head_norm,
        bias,
        classifier,
        first_position: config.first_position,
        masked_token: config.masked_token,
        max_length: config.max_length,
        pre_norms: config.pre_norms,
        hides_padding: config.hides_padding,
        pools,
        has_one_logit,
        activation,
    }
}

/// Creates the MLP of a block.
fn make_mlp(config: &BertConfig, rngs: &mut Rngs) -> Mlp {
    let has_biases = config.mlp_bias || config.mlp_out_bias;
    let (features, hidden) = (config.hidden_size, config.intermediate_size);
    let mut mlp = Mlp::new(features, hidden, config.hidden_act, config.is_gated, has_biases, rngs);
    if !config.mlp_bias {
        mlp.up.bias = None;
        mlp.gate.iter_mut().for_each(|gate| gate.bias = None);
    }
    if !config.mlp_out_bias {
        mlp.down.bias = None;
    }
    mlp
}
