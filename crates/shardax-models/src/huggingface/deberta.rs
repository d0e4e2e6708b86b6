//! DeBERTa.

use shardax_nn::prelude::*;

use super::bert::{BertHead, logits};
use super::bert_files::head;
use super::fields::Fields;
use super::{BertOptions, Config, KeyMap, Layout, Pretrained, attention, check_type};
use crate::decoder::{check_positions, check_tokens};
use crate::ranks::allow_any_ranks;
use crate::shardings::{first_token, gather_mask, gather_positions};
use crate::{Activation, Mlp};

/// The architecture of a [`Deberta`].
#[derive(Clone, Debug, PartialEq)]
pub struct DebertaConfig {
    /// The number of tokens.
    pub vocab_size: usize,
    /// The size of the embeddings of tokens, positions and token types. If it differs from `hidden_size`, a linear
    /// layer converts the embeddings.
    pub embedding_size: usize,
    /// The features of a token in the blocks.
    pub hidden_size: usize,
    /// The features inside an MLP.
    pub intermediate_size: usize,
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The number of attention heads. It must divide the features.
    pub num_attention_heads: usize,
    /// The length of the table of positions; 0 if there is none.
    pub max_position_embeddings: usize,
    /// The number of token types; 0 if the model has no token types.
    pub type_vocab_size: usize,
    /// Added to the variance in norms.
    pub layer_norm_eps: f64,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
    /// The activation of the head for classes.
    pub pooler_act: Activation,
    /// The relative positions, if attention uses them.
    pub distances: Option<Distances>,
    /// True if the features of the relative positions are normalized.
    pub normalizes_distances: bool,
    /// The width and the activation of a convolution next to the first block, if there is one.
    pub conv: Option<(usize, Activation)>,
    /// The head, which is applied to the output of the blocks.
    pub head: BertHead,
    /// True if the head for masked tokens has the array names of early versions.
    pub is_legacy: bool,
    /// True for the first version, whose keys have no biases.
    pub is_first: bool,
}

/// The relative positions for which a [`Deberta`] learns features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Distances {
    /// The number of relative positions in each direction.
    pub span: usize,
    /// True if distances of more than half of the span share features in groups of increasing size.
    pub is_grouped: bool,
    /// The largest distance.
    pub longest: usize,
    /// True if the scores compare queries with the features of relative positions.
    pub content_to_position: bool,
    /// True if the scores compare keys with the features of relative positions.
    pub position_to_content: bool,
    /// True if the kernels of queries and keys also convert the features of relative positions.
    pub shares_kernels: bool,
}

/// DeBERTa ([He et al. 2020](https://arxiv.org/abs/2006.03654)), an encoder whose attention compares tokens with
/// learned features of relative positions.
///
/// The model type is `deberta`, or `deberta-v2` for versions 2 and 3. The field `architectures` chooses the
/// [head](BertHead).
#[derive(Module, Clone, Debug)]
pub struct Deberta {
    tokens: Embed,
    positions: Option<Embed>,
    kinds: Option<Embed>,
    projection: Option<Linear>,
    norm: LayerNorm,
    /// `[2 * span, features]`
    distance_table: Option<Embed>,
    distance_norm: Option<LayerNorm>,
    conv: Option<Conv>,
    conv_norm: Option<LayerNorm>,
    blocks: Vec<Block>,
    /// The first layer of the head.
    head: Option<Linear>,
    head_norm: Option<LayerNorm>,
    /// `[vocabulary]`: added to the logits of the tokens.
    bias: Option<Array>,
    /// The last layer of a head for classes.
    classifier: Option<Linear>,
    pools: bool,
    #[tree(static)]
    distances: Option<Distances>,
    #[tree(static)]
    head_act: Activation,
    #[tree(static)]
    conv_act: Activation,
}

#[derive(Module, Clone, Debug)]
struct Block {
    attention: MultiHeadAttention,
    /// Converts the features of relative positions to keys, unless the kernels are shared.
    distance_key: Option<Linear>,
    /// Converts the features of relative positions to queries, unless the kernels are shared.
    distance_query: Option<Linear>,
    norm: LayerNorm,
    mlp: Mlp,
    mlp_norm: LayerNorm,
}

impl Pretrained for Deberta {
    type Architecture = DebertaConfig;

    fn read(config: &Config) -> Result<(DebertaConfig, KeyMap)> {
        let fields = config.fields();
        let is_first = fields.has_type("deberta");
        check_type(&fields, if is_first { "deberta" } else { "deberta-v2" })?;
        // Encoders mask no later positions.
        fields.skip(&["is_causal"]);
        let read = DebertaConfig { is_first, ..read(&fields)? };
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &DebertaConfig, rngs: &mut Rngs) -> Result<Self> {
        Ok(make(config, rngs))
    }

    fn extents(config: &DebertaConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let features = config.hidden_size;
        let matrices = vec![
            ("token table", config.vocab_size, config.embedding_size),
            ("position table", config.max_position_embeddings, config.embedding_size),
            ("table of kinds", config.type_vocab_size, config.embedding_size),
            ("table of distances", config.distances.map_or(0, |distances| distances.span), features),
            ("query kernel", features, features),
            ("MLP kernel", features, config.intermediate_size),
            ("kernel of the convolution", features, config.conv.map_or(0, |(width, _)| width)),
            ("table of classes", config.head.classes().unwrap_or(0), features),
        ];
        (config.num_hidden_layers, matrices)
    }
}

fn read(fields: &Fields) -> Result<DebertaConfig> {
    let (features, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
    for (name, size) in [("attention_head_size", features / heads), ("pooler_hidden_size", features)] {
        if let Some(other) = fields.size_opt(name)?.filter(|other| *other != size) {
            return Err(fields.error(format!("`{name}` is {other}, but this model requires {size}")));
        }
    }
    let pooler_act = fields.activation("pooler_hidden_act")?;
    // Published files without the field have a head that the class ignores.
    let head = if fields.has("architectures") { head(fields, Some(pooler_act))? } else { BertHead::None };
    if head == BertHead::MaskedTokens && !fields.flag("tie_word_embeddings")? {
        return Err(fields.error(
            "field `tie_word_embeddings` is false, but this model always uses its token table as the last layer",
        ));
    }
    fields.skip(&["tie_word_embeddings", "pooler_dropout", "cls_dropout"]);
    let conv = match fields.natural_or("conv_kernel_size", 0)? {
        0 => None,
        width if width % 2 == 0 => return Err(fields.error(format!("`conv_kernel_size` is {width}, but must be odd"))),
        width => Some((width, fields.activation_named("conv_act", fields.text_opt("conv_act")?.unwrap_or("tanh"))?)),
    };
    fields.skip(&["conv_act"]);
    if fields.number_or("conv_groups", 1.0)? != 1.0 {
        return Err(fields.error("field `conv_groups` must be 1"));
    }
    let normalized = fields.text_opt("norm_rel_ebd")?.unwrap_or("none").to_lowercase();
    let positions = fields.size("max_position_embeddings")?;
    Ok(DebertaConfig {
        vocab_size: fields.size("vocab_size")?,
        embedding_size: fields.size_opt("embedding_size")?.unwrap_or(features),
        hidden_size: features,
        intermediate_size: fields.size("intermediate_size")?,
        num_hidden_layers: fields.layers("num_hidden_layers")?,
        num_attention_heads: heads,
        max_position_embeddings: if fields.flag("position_biased_input")? { positions } else { 0 },
        type_vocab_size: fields.natural("type_vocab_size")?,
        layer_norm_eps: fields.number("layer_norm_eps")?,
        hidden_act: fields.activation("hidden_act")?,
        pooler_act,
        distances: distances(fields, positions)?,
        normalizes_distances: normalized.split('|').any(|part| part.trim() == "layer_norm"),
        conv,
        head,
        is_legacy: fields.flag_or("legacy", true)?,
        is_first: false,
    })
}

/// Reads the relative positions, if attention uses them.
fn distances(fields: &Fields, positions: usize) -> Result<Option<Distances>> {
    let kinds: Vec<&str> = match fields.value("pos_att_type") {
        Some(serde_json::Value::String(text)) => text.split('|').map(str::trim).collect(),
        Some(serde_json::Value::Array(list)) => list.iter().filter_map(|kind| kind.as_str()).collect(),
        _ => Vec::new(),
    };
    if let Some(other) = kinds.iter().find(|kind| !["c2p", "p2c"].contains(*kind)) {
        return Err(fields.error(format!("the kind {other:?} of `pos_att_type` is not supported")));
    }
    // Numbers below 1 mean that distances have no groups, and that the largest distance is the number of positions.
    let [buckets, longest] = ["position_buckets", "max_relative_positions"]
        .map(|name| Ok::<_, Error>(Some(fields.number_or(name, -1.0)? as usize).filter(|count| *count > 0)));
    let (buckets, longest) = (buckets?, longest?.unwrap_or(positions));
    let shares_kernels = fields.flag("share_att_key")?;
    if !fields.flag("relative_attention")? {
        return if kinds.is_empty() {
            Ok(None)
        } else {
            Err(fields.error("`pos_att_type` is set, but `relative_attention` is false"))
        };
    }
    if buckets.is_some_and(|buckets| buckets < 4 || longest <= buckets / 2 + 1) {
        return Err(fields.error(format!("`position_buckets` does not fit distances up to {longest}")));
    }
    Ok(Some(Distances {
        span: buckets.unwrap_or(longest),
        is_grouped: buckets.is_some(),
        longest,
        content_to_position: kinds.contains(&"c2p"),
        position_to_content: kinds.contains(&"p2c"),
        shares_kernels,
    }))
}

/// Returns the names of the arrays. Files of a model without a head have no prefix, and other files may omit it.
fn keys(config: &DebertaConfig) -> KeyMap {
    let prefix = if config.head == BertHead::None { "" } else { "deberta." };
    let layer = format!("{prefix}encoder.layer.*");
    let first = if config.is_first { first_attention_keys(config, &layer) } else { KeyMap::new() };
    let keys = first
        .array("tokens.embedding", format!("{prefix}embeddings.word_embeddings.weight"), Layout::Same)
        .array("positions.embedding", format!("{prefix}embeddings.position_embeddings.weight"), Layout::Same)
        .array("kinds.embedding", format!("{prefix}embeddings.token_type_embeddings.weight"), Layout::Same)
        .linear("projection", &format!("{prefix}embeddings.embed_proj"))
        .norm("norm", &format!("{prefix}embeddings.LayerNorm"))
        .array("distance_table.embedding", format!("{prefix}encoder.rel_embeddings.weight"), Layout::Same)
        .norm("distance_norm", &format!("{prefix}encoder.LayerNorm"))
        .conv("conv", &format!("{prefix}encoder.conv.conv"))
        .norm("conv_norm", &format!("{prefix}encoder.conv.LayerNorm"))
        .linear("blocks[*].attention.query", &format!("{layer}.attention.self.query_proj"))
        .linear("blocks[*].attention.key", &format!("{layer}.attention.self.key_proj"))
        .linear("blocks[*].attention.value", &format!("{layer}.attention.self.value_proj"))
        .linear("blocks[*].attention.out", &format!("{layer}.attention.output.dense"))
        .linear("blocks[*].distance_key", &format!("{layer}.attention.self.pos_key_proj"))
        .linear("blocks[*].distance_query", &format!("{layer}.attention.self.pos_query_proj"))
        .norm("blocks[*].norm", &format!("{layer}.attention.output.LayerNorm"))
        .linear("blocks[*].mlp.up", &format!("{layer}.intermediate.dense"))
        .linear("blocks[*].mlp.down", &format!("{layer}.output.dense"))
        .norm("blocks[*].mlp_norm", &format!("{layer}.output.LayerNorm"))
        .linear("classifier", "classifier")
        .ignore(&format!("{prefix}embeddings.position_ids"))
        .ignore("mask_predictions.**");
    // The class ignores the position table of a model without positions.
    let keys = match config.max_position_embeddings {
        0 => keys.ignore(&format!("{prefix}embeddings.position_embeddings.weight")),
        _ => keys,
    };
    let table = format!("{prefix}embeddings.word_embeddings.weight");
    match (config.head, config.is_legacy) {
        (BertHead::None, _) => ["cls", "lm_predictions", "pooler", "classifier"]
            .into_iter()
            .fold(keys.prefix_alias("", "deberta."), |keys, other| keys.ignore(&format!("{other}.**"))),
        (BertHead::MaskedTokens, true) => keys
            .linear("head", "cls.predictions.transform.dense")
            .norm("head_norm", "cls.predictions.transform.LayerNorm")
            .array("bias", "cls.predictions.bias", Layout::Same)
            .tied("cls.predictions.decoder.weight", &table)
            .tied("cls.predictions.decoder.bias", "cls.predictions.bias"),
        (BertHead::MaskedTokens, false) => keys
            .linear("head", "lm_predictions.lm_head.dense")
            .norm("head_norm", "lm_predictions.lm_head.LayerNorm")
            .array("bias", "lm_predictions.lm_head.bias", Layout::Same),
        _ => keys.linear("head", "pooler.dense"),
    }
}

/// Returns the names of attention in the first version. The rows of queries, keys and values are grouped by head, and
/// the biases of queries and values are separate arrays.
fn first_attention_keys(config: &DebertaConfig, layer: &str) -> KeyMap {
    let prefix = format!("{layer}.attention.self");
    let mut keys = KeyMap::new();
    for (index, part) in ["query", "key", "value"].into_iter().enumerate() {
        keys = keys.array(
            format!("blocks[*].attention.{part}.kernel"),
            format!("{prefix}.in_proj.weight"),
            grouped_rows(config, index),
        );
    }
    keys.array("blocks[*].attention.query.bias", format!("{prefix}.q_bias"), Layout::Same)
        .array("blocks[*].attention.value.bias", format!("{prefix}.v_bias"), Layout::Same)
        .linear("blocks[*].distance_key", &format!("{prefix}.pos_proj"))
        .linear("blocks[*].distance_query", &format!("{prefix}.pos_q_proj"))
}

/// Returns the rows of the queries (`index` 0), keys (1) or values (2) of each head in their common matrix.
fn grouped_rows(config: &DebertaConfig, index: usize) -> Layout {
    let depth = config.hidden_size.checked_div(config.num_attention_heads).unwrap_or(0);
    Layout::GroupedRows {
        groups: config.num_attention_heads,
        start: depth.saturating_mul(index),
        end: depth.saturating_mul(index + 1),
    }
}

fn layer_norm(features: usize, epsilon: f64, rngs: &mut Rngs) -> LayerNorm {
    LayerNorm::builder(features).epsilon(epsilon).build(rngs)
}

fn make(config: &DebertaConfig, rngs: &mut Rngs) -> Deberta {
    let (features, embedded) = (config.hidden_size, config.embedding_size);
    let epsilon = config.layer_norm_eps;
    let tokens = Embed::builder(config.vocab_size, embedded).axes(["vocab", "embed"]).build(rngs);
    let [positions, kinds] = [config.max_position_embeddings, config.type_vocab_size]
        .map(|count| (count > 0).then(|| Embed::new(count, embedded, rngs)));
    let projection = (embedded != features).then(|| Linear::builder(embedded, features).use_bias(false).build(rngs));
    let first_norm = layer_norm(features, epsilon, rngs);
    let distance_table = config.distances.map(|distances| Embed::new(2 * distances.span, features, rngs));
    let distance_norm = config.normalizes_distances.then(|| layer_norm(features, epsilon, rngs));
    let conv =
        config.conv.map(|(width, _)| Conv::builder(features, features, [width]).padding(Padding::Same).build(rngs));
    let conv_norm = config.conv.map(|_| layer_norm(features, epsilon, rngs));
    let blocks = (0..config.num_hidden_layers).map(|_| {
        let distances = config.distances.filter(|distances| !distances.shares_kernels);
        let has_key = distances.is_some_and(|distances| distances.content_to_position);
        let has_query = distances.is_some_and(|distances| distances.position_to_content);
        let mut attention = attention(config.num_attention_heads, features).build(rngs);
        if config.is_first {
            attention.key.iter_mut().for_each(|key| key.bias = None);
        }
        let distance_key = Linear::builder(features, features).use_bias(!config.is_first);
        Block {
            attention,
            distance_key: has_key.then(|| distance_key.build(rngs)),
            distance_query: has_query.then(|| Linear::new(features, features, rngs)),
            norm: layer_norm(features, epsilon, rngs),
            mlp: Mlp::new(features, config.intermediate_size, config.hidden_act, false, true, rngs),
            mlp_norm: layer_norm(features, epsilon, rngs),
        }
    });
    let blocks = blocks.collect();
    let masks = config.head == BertHead::MaskedTokens;
    let pools = matches!(config.head, BertHead::Classes { .. });
    // Early versions predict masked tokens from the embeddings.
    let head_features = if masks && config.is_legacy { embedded } else { features };
    Deberta {
        tokens,
        positions,
        kinds,
        projection,
        norm: first_norm,
        distance_table,
        distance_norm,
        conv,
        conv_norm,
        blocks,
        head: (masks || pools).then(|| Linear::new(features, head_features, rngs)),
        head_norm: masks.then(|| LayerNorm::builder(head_features).epsilon(config.layer_norm_eps).build(rngs)),
        bias: masks.then(|| zeros_dtype([config.vocab_size], rngs.policy().param_dtype)),
        classifier: config.head.classes().map(|count| Linear::new(features, count, rngs)),
        pools,
        distances: config.distances,
        head_act: if masks { config.hidden_act } else { config.pooler_act },
        conv_act: config.conv.map_or(config.hidden_act, |(_, activation)| activation),
    }
}

impl Deberta {
    /// Computes features, `[batch, length, features]`, for each token of `[batch, length]`. Returns an error for texts
    /// that are longer than the position table, and for unknown tokens if their values are known.
    #[track_caller]
    pub fn encode(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let tokens = tokens.into_array();
        let checked = check_tokens("Deberta", &self.tokens, &tokens).and_then(|()| match &self.positions {
            Some(table) => check_positions("Deberta", table, 0, &tokens),
            None => Ok(()),
        });
        if let Err(error) = checked {
            return Array::from_error(error, &tokens);
        }
        let length = tokens.shape().last().copied().unwrap_or(0);
        let mask = match options.mask() {
            Some(mask) => gather_mask(mask.astype(DType::Bool)),
            None => ones_dtype(tokens.shape(), DType::Bool),
        };
        // Relative positions and the convolution need all positions on each device.
        let embedded = gather_positions(self.embed(tokens, options, &mask));
        // Padding attends to no token, not even to itself: `[batch, 1, queries, keys]`.
        let visible = mask.expand_dims(1).expand_dims(1) & mask.expand_dims(1).expand_dims(-1);
        let table = self.distance_features();
        let indices = self.distances.map(|distances| distance_indices(&distances, length));
        let mut x = embedded.clone();
        for (number, block) in self.blocks.iter().enumerate() {
            let bias = match (&self.distances, &table, &indices) {
                (Some(distances), Some(table), Some(indices)) => block.distance_scores(&x, table, distances, indices),
                _ => None,
            };
            x = block.forward(x, bias, &visible, self.distances.as_ref());
            if number == 0 {
                x = self.convolved(&embedded, x, &mask);
            }
        }
        x
    }

    /// Computes the embeddings, which are zero for padding.
    fn embed(&self, tokens: Array, options: &BertOptions, mask: &Array) -> Array {
        let length = tokens.shape().last().copied().unwrap_or(0) as i32;
        let kinds = options.kinds().cloned().unwrap_or_else(|| zeros_dtype(tokens.shape(), DType::I32));
        let x = self.tokens.forward(tokens);
        let x = self.positions.iter().fold(x, |x, table| x + table.forward(arange(0..length)));
        let x = self.kinds.iter().fold(x, |x, table| x + table.forward(&kinds));
        let x = self.norm.forward(self.projection.iter().fold(x, |x, layer| layer.forward(x)));
        &x * mask.astype(x.dtype()).expand_dims(-1)
    }

    /// Returns the features of the relative positions, `[2 * span, features]`.
    fn distance_features(&self) -> Option<Array> {
        let table = self.distance_table.as_ref()?.embedding.clone();
        Some(self.distance_norm.iter().fold(table, |table, norm| norm.forward(table)))
    }

    /// Adds a convolution of the embeddings to the output of the first block.
    fn convolved(&self, embedded: &Array, x: Array, mask: &Array) -> Array {
        let (Some(conv), Some(norm)) = (&self.conv, &self.conv_norm) else { return x };
        let mask = mask.expand_dims(-1);
        let y = where_(&mask, conv.forward(embedded), 0.0);
        let y = norm.forward(&x + self.conv_act.apply(y));
        &y * mask.astype(y.dtype())
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
            x = self.head_act.apply(head.forward(x));
        }
        let x = self.head_norm.iter().fold(x, |x, norm| norm.forward(x));
        logits(x, self.classifier.as_ref(), &self.tokens, self.bias.as_ref())
    }
}

impl Block {
    fn forward(&self, x: Array, bias: Option<Array>, seen: &Array, distances: Option<&Distances>) -> Array {
        let options = bias.iter().fold(AttentionOptions::new(), |options, bias| options.bias(bias));
        let options = options.mask(seen).scale(self.scale(distances));
        let x = self.norm.forward(&x + self.attention.attend(&x, &x, &x, options));
        self.mlp_norm.forward(&x + self.mlp.forward(&x))
    }

    /// Returns the factor of the scores. It is smaller if several kinds of scores are added.
    fn scale(&self, distances: Option<&Distances>) -> f64 {
        let depth = self.attention.query.kernel.shape().last().copied().unwrap_or(1);
        let kinds = distances.map_or(0, |distances| {
            usize::from(distances.content_to_position) + usize::from(distances.position_to_content)
        });
        ((depth * (1 + kinds)) as f64).sqrt().recip()
    }

    /// Computes scores `[batch, heads, queries, keys]` from the tokens and the relative positions.
    ///
    /// A query is compared with the features of its relative position to the key, and a key with the features of its
    /// relative position to the query. Each row of scores has one entry for each relative position, and `indices`
    /// selects from them.
    fn distance_scores(
        &self,
        x: &Array,
        table: &Array,
        distances: &Distances,
        [to_keys, to_queries]: &[Array; 2],
    ) -> Option<Array> {
        let key = self.attention.key.as_ref()?;
        let query_scores = distances.content_to_position.then(|| {
            let keys = distance_heads(&self.distance_key, key, table);
            scores_at(self.attention.query.forward(x), keys, to_keys)
        });
        let key_scores = distances.position_to_content.then(|| {
            let queries = distance_heads(&self.distance_query, &self.attention.query, table);
            scores_at(key.forward(x), queries, to_queries).swapaxes(-1, -2)
        });
        let sum = match (query_scores, key_scores) {
            (Some(a), Some(b)) => a + b,
            (a, b) => a.or(b)?,
        };
        Some(sum * self.scale(Some(distances)))
    }
}

/// Computes the features of the relative positions for each head, with their own layer or with the layer of the tokens.
fn distance_heads(layer: &Option<Linear>, tokens: &LinearGeneral, table: &Array) -> Array {
    match layer {
        Some(layer) => {
            let shape = tokens.kernel.shape();
            let (heads, depth) = (shape[shape.len() - 2], shape[shape.len() - 1]);
            layer.forward(table).reshape([-1, heads as i32, depth as i32])
        }
        None => tokens.forward(table),
    }
}

/// Selects the scores at these indices.
fn scores_at(tokens: Array, distances: Array, indices: &Array) -> Array {
    let scores = einsum("bqhd,rhd->bhqr", &[&tokens, &distances]);
    let shape = [&scores.shape()[..3], &indices.shape()[1..]].concat();
    scores.take_along_axis(indices.broadcast_to(shape), -1)
}

/// Returns the row of the table for each query and key, and for each key and query.
fn distance_indices(distances: &Distances, length: usize) -> [Array; 2] {
    let (span, last) = (distances.span as i32, distances.span as i32 * 2 - 1);
    [1, -1].map(|sign| {
        let rows = (0..length as i32).flat_map(|row| (0..length as i32).map(move |column| (row, column)));
        let indices = rows.map(|(row, column)| (sign * distances.group(row - column) + span).clamp(0, last));
        Array::from_vec(indices.collect::<Vec<i32>>(), &[length, length])
            .unwrap_or_else(|error| Array::from_error(error, &zeros_dtype([length, length], DType::I32)))
    })
}

impl Distances {
    /// Returns the group of a distance. Distances up to half of the span have their own group, and larger ones share
    /// groups of increasing size.
    ///
    /// The logarithms are in float32 as in DeBERTa, because distances at the border of two groups must be in the same
    /// group.
    fn group(&self, distance: i32) -> i32 {
        let middle = self.span as i32 / 2;
        if !self.is_grouped || distance.abs() <= middle {
            return distance;
        }
        let range = ((self.longest as f64 - 1.0) / middle as f64) as f32;
        let grown = (distance.abs() as f32 / middle as f32).ln() / range.ln() * (middle - 1) as f32;
        distance.signum() * (grown.ceil() as i32 + middle)
    }
}
