//! The configurations of BERT and related encoders, and the names of their arrays.

use shardax_nn::Rope;
use shardax_nn::prelude::*;

use super::bert::{Bert, BertConfig, BertHead, DISTANCE_GROUPS, make};
use super::bert_keys::keys;
use super::fields::Fields;
use super::rope::rope;
use super::{Config, KeyMap, Pretrained, known_type};
use crate::Activation;

/// The supported model types.
pub(super) const KNOWN: [&str; 25] = [
    "bert",
    "ernie",
    "roberta",
    "xlm-roberta",
    "camembert",
    "data2vec-text",
    "roberta-prelayernorm",
    "distilbert",
    "mpnet",
    "albert",
    "electra",
    "roformer",
    "nomic_bert",
    "gte",
    "jina_embeddings_v3",
    "esm",
    "megatron-bert",
    "xlm-roberta-xl",
    "layoutlm",
    "rembert",
    "longformer",
    "big_bird",
    "fnet",
    "luke",
    "convbert",
];

/// The maximal number of blocks in a group of an ALBERT model. No published model has more than one.
const MAX_SHARED_BLOCKS: usize = 1000;

/// The largest number of tokens that a convolution of ConvBERT reads. Published models have 9.
const MAX_TOKEN_CONV: usize = 1000;

impl Pretrained for Bert {
    type Architecture = BertConfig;

    fn read(config: &Config) -> Result<(BertConfig, KeyMap)> {
        let fields = config.fields();
        let kind = known_type(&fields, &KNOWN)?;
        let read = read(&fields, kind, None)?;
        fields.finish()?;
        let keys = keys(kind, &read);
        Ok((read, keys))
    }

    fn make(config: &BertConfig, rngs: &mut Rngs) -> Result<Self> {
        Ok(make(config, rngs))
    }

    fn extents(config: &BertConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (features, embedded) = (config.hidden_size, config.embedding_size);
        let matrices = vec![
            ("token table", config.vocab_size, embedded),
            ("position table", config.max_position_embeddings, embedded),
            ("table of kinds", config.type_vocab_size, embedded),
            ("table of boxes", config.box_size, embedded),
            ("layer of the head", config.output_embedding_size.unwrap_or(0), features),
            ("query kernel", features, features),
            ("MLP kernel", features, config.intermediate_size),
            ("kernel of token convolutions", features, config.token_conv.unwrap_or(0).saturating_mul(features)),
            ("table of classes", config.head.classes().unwrap_or(0), features),
        ];
        (config.num_hidden_layers, matrices)
    }
}

/// Reads the fields of an encoder of texts in another model, which has no head and no pooling layer. `kind` is its type, such as
/// `bert`. Also returns the names of its arrays.
pub(super) fn read_part(fields: &Fields, kind: &str) -> Result<(BertConfig, KeyMap)> {
    let read = read(fields, kind, Some(BertHead::None))?;
    let keys = keys(kind, &read);
    Ok((read, keys))
}

/// Reads the fields. Without a head, `architectures` chooses it.
fn read(fields: &Fields, kind: &str, fixed_head: Option<BertHead>) -> Result<BertConfig> {
    let is_distilled = kind == "distilbert";
    // Encoders mask no later positions.
    fields.skip(&["is_causal"]);
    let is_older_nomic = kind == "nomic_bert" && fields.has("n_embd");
    if is_older_nomic {
        check_older_nomic(fields)?;
    }
    // DistilBERT and the first configurations of nomic-embed have other field names.
    let [features_name, heads_name, layers_name, hidden_name, activation_name] = match kind {
        "distilbert" => ["dim", "n_heads", "n_layers", "hidden_dim", "activation"],
        _ if is_older_nomic => ["n_embd", "n_head", "n_layer", "n_inner", "hidden_act"],
        _ => ["hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "hidden_act"],
    };
    // Some classes have a fixed activation in their head, which does not depend on the blocks.
    let class_activation = match kind {
        "distilbert" => Some(Activation::Relu),
        "electra" => Some(Activation::Gelu),
        _ => None,
    };
    let hidden_act = match kind {
        // The class ignores the field.
        "esm" => Activation::Gelu,
        _ => fields.activation(activation_name)?,
    };
    let class_activation =
        if matches!(kind, "roformer" | "big_bird" | "convbert") { Some(hidden_act) } else { class_activation };
    let head = match fixed_head {
        Some(head) => head,
        None => head(fields, class_activation)?,
    };
    let features = fields.size(features_name)?;
    // FNet has no attention.
    let heads = if kind == "fnet" { 1 } else { fields.size(heads_name)? };
    // A part of ConvBERT's heads are convolutions.
    let heads = if kind == "convbert" { (heads / fields.size("head_ratio")?).max(1) } else { heads };
    let layers = fields.layers(layers_name)?;
    fields.divides((heads_name, heads), (features_name, features))?;
    let is_rotary = match kind {
        "nomic_bert" | "gte" | "roformer" | "jina_embeddings_v3" => true,
        "esm" => is_rotary_esm(fields)?,
        _ => false,
    };
    if kind == "roformer" && fields.flag("rotary_value")? {
        return Err(fields.error("field `rotary_value` is true, but rotated values are not supported"));
    }
    let is_gated = matches!(kind, "nomic_bert" | "gte");
    let embedding_size = match kind {
        "albert" | "electra" | "convbert" => fields.size("embedding_size")?,
        "rembert" => fields.size("input_embedding_size")?,
        "roformer" => fields.size_opt("embedding_size")?.unwrap_or(features),
        _ => features,
    };
    let block_order = if kind == "albert" { shared_blocks(fields, layers)? } else { (0..layers).collect() };
    if kind == "nomic_bert" && fields.size_opt("head_dim")?.is_some_and(|size| size != features / heads) {
        return Err(fields.error("`head_dim` must be `hidden_size` divided by `num_attention_heads`"));
    }
    let read = BertConfig {
        vocab_size: fields.size("vocab_size")?,
        embedding_size,
        projects_embeddings: matches!(kind, "albert" | "rembert" | "fnet") || embedding_size != features,
        hidden_size: features,
        intermediate_size: fields.size(hidden_name)?,
        num_hidden_layers: block_order.iter().max().map_or(0, |last| last + 1),
        block_order,
        num_attention_heads: heads,
        max_position_embeddings: if is_rotary { 0 } else { fields.size("max_position_embeddings")? },
        first_position: match kind {
            "esm" if is_rotary => 0,
            "roberta"
            | "xlm-roberta"
            | "camembert"
            | "data2vec-text"
            | "roberta-prelayernorm"
            | "esm"
            | "xlm-roberta-xl"
            | "luke"
            | "longformer" => fields.natural_or("pad_token_id", 1)? + 1,
            "mpnet" => 2,
            _ => 0,
        },
        type_vocab_size: match kind {
            "distilbert" | "mpnet" | "esm" => 0,
            "gte" => fields.natural("type_vocab_size")?,
            _ => fields.size("type_vocab_size")?,
        },
        task_type_vocab_size: match kind {
            "ernie" if fields.flag("use_task_id")? => fields.size("task_type_vocab_size")?,
            _ => 0,
        },
        windows: if kind == "longformer" { windows(fields, layers)? } else { Vec::new() },
        max_length: if kind == "big_bird" { length_with_all_scores(fields)? } else { None },
        box_size: if kind == "layoutlm" { fields.size("max_2d_position_embeddings")? } else { 0 },
        output_embedding_size: match kind {
            "rembert" => Some(fields.size("output_embedding_size")?),
            _ => None,
        },
        has_first_norm: match kind {
            "megatron-bert" | "xlm-roberta-xl" => false,
            _ => kind != "esm" || fields.flag("emb_layer_norm_before")?,
        },
        pre_norms: matches!(kind, "esm" | "roberta-prelayernorm" | "megatron-bert" | "xlm-roberta-xl"),
        hides_padding: kind == "esm",
        masked_token: match kind {
            "esm" if fields.flag("token_dropout")? => Some(fields.natural("mask_token_id")? as i32),
            _ => None,
        },
        layer_norm_eps: if is_distilled {
            1e-12
        } else {
            fields.number(if is_older_nomic { "layer_norm_epsilon" } else { "layer_norm_eps" })?
        },
        hidden_act,
        token_conv: if kind == "convbert" { Some(token_conv(fields, features / heads)?) } else { None },
        is_gated,
        has_attention: kind != "fnet",
        attention_bias: kind != "nomic_bert",
        mlp_bias: !is_gated,
        mlp_out_bias: kind != "nomic_bert",
        rope: match is_rotary {
            true if is_older_nomic => Some(Rope::new(fields.number("rotary_emb_base")?)),
            // The class of ESM ignores `rope_parameters`, and RoFormer has no field for the base.
            true if kind == "esm" => Some(Rope::new(fields.number("rope_theta")?)),
            true if kind == "roformer" => Some(Rope::default().interleaved(true)),
            true => Some(rope(fields, features / heads, None)?),
            false => None,
        },
        has_distances: kind == "mpnet",
        head_act: match kind {
            "bert" | "ernie" | "distilbert" | "albert" | "roformer" | "nomic_bert" | "megatron-bert" | "layoutlm"
            | "rembert" | "big_bird" | "fnet" => hidden_act,
            _ => Activation::Gelu,
        },
        head,
    };
    check_and_skip(fields, kind, head)?;
    Ok(read)
}

/// Checks fields that the configuration does not store, and marks fields as read that have no effect.
fn check_and_skip(fields: &Fields, kind: &str, head: BertHead) -> Result<()> {
    if kind == "mpnet" && fields.size("relative_attention_num_buckets")? != DISTANCE_GROUPS {
        return Err(fields.error(format!("`relative_attention_num_buckets` must be {DISTANCE_GROUPS}")));
    }
    // The default of nomic-embed is not part of the fields of its class.
    let is_tied = fields.flag_or("tie_word_embeddings", kind == "nomic_bert")?;
    if kind == "rembert" {
        if is_tied {
            return Err(fields.error("field `tie_word_embeddings` is true, but this model has another last layer"));
        }
    } else if head == BertHead::MaskedTokens && !is_tied {
        return Err(fields.error(
            "field `tie_word_embeddings` is false, but this model always uses its token table as the last layer",
        ));
    }
    if kind == "albert" {
        // Fields of early versions, which no class reads.
        fields.skip(&["down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks", "layers_to_keep"]);
    }
    if kind == "fnet" {
        // Other implementations of the same transforms.
        fields.skip(&["use_tpu_fourier_optimizations", "tpu_short_seq_length"]);
    }
    if kind == "luke" {
        // Entities, which the model does not read.
        fields.skip(&["entity_vocab_size", "entity_emb_size", "use_entity_aware_attention", "cls_entity_prediction"]);
    }
    if kind == "ernie" {
        fields.skip(&["task_type_vocab_size"]);
    }
    if kind == "distilbert" {
        // The sines initialize the position table, which the files contain.
        fields.skip(&["sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_"]);
    }
    Ok(())
}

/// Returns the number of tokens before and after a token that it sees in each layer. The field counts both.
pub(crate) fn windows(fields: &Fields, layers: usize) -> Result<Vec<usize>> {
    // No class reads these.
    fields.skip(&["attention_mode", "ignore_attention_mask"]);
    let is_list = fields.value("attention_window").is_some_and(|value| value.is_array());
    let windows =
        if is_list { fields.size_list("attention_window")? } else { vec![fields.size("attention_window")?; layers] };
    if windows.len() != layers {
        return Err(fields.error(format!("`attention_window` has {} entries for {layers} layers", windows.len())));
    }
    match windows.iter().find(|window| **window % 2 == 1 || **window > i32::MAX as usize) {
        Some(window) => Err(fields.error(format!("`attention_window` has {window}, but must be even"))),
        None => Ok(windows.into_iter().map(|window| window / 2).collect()),
    }
}

/// Returns the number of tokens up to which BigBird computes all scores. For longer texts it computes only blocks of scores: the first
/// and the last block, three neighbors, and random ones. `None` means that it always computes all scores.
fn length_with_all_scores(fields: &Fields) -> Result<Option<usize>> {
    if !fields.flag("use_bias")? {
        return Err(fields.error("field `use_bias` is false, which is not supported"));
    }
    if fields.flag("rescale_embeddings")? {
        return Err(fields.error("field `rescale_embeddings` is true, which is not supported"));
    }
    let (size, random) = (fields.size("block_size")?, fields.number("num_random_blocks")?);
    match fields.text("attention_type")? {
        "original_full" => Ok(None),
        "block_sparse" => Ok(Some(size.saturating_mul((random.max(0.0) as usize).saturating_mul(2).saturating_add(5)))),
        other => Err(fields.error(format!("`attention_type` {other:?} is not supported"))),
    }
}

/// Reads the number of tokens that the convolutions of ConvBERT read. `depth` is the number of features of two heads.
fn token_conv(fields: &Fields, depth: usize) -> Result<usize> {
    if !depth.is_multiple_of(2) {
        return Err(fields.error(format!("{depth} features cannot be split into attention and a convolution")));
    }
    fields.check_size("num_groups", 1)?;
    match fields.size("conv_kernel_size")? {
        size if size.is_multiple_of(2) || size > MAX_TOKEN_CONV => {
            let message = format!("`conv_kernel_size` is {size}, but must be odd and at most {MAX_TOKEN_CONV}");
            Err(fields.error(message))
        }
        size => Ok(size),
    }
}

/// Returns `true` if an ESM model has rotary positions instead of a position table.
fn is_rotary_esm(fields: &Fields) -> Result<bool> {
    if fields.flag("is_folding_model")? {
        return Err(fields.error("field `is_folding_model` is true, but folding models are not supported"));
    }
    match fields.text("position_embedding_type")? {
        "rotary" => Ok(true),
        "absolute" => Ok(false),
        other => Err(fields.error(format!("`position_embedding_type` {other:?} is not supported"))),
    }
}

/// Returns an error if fields of nomic-embed's original code differ from the published models, because the class in
/// transformers supports only these.
fn check_older_nomic(fields: &Fields) -> Result<()> {
    const OFF: [&str; 10] = [
        "causal",
        "mlp_fc1_bias",
        "mlp_fc2_bias",
        "parallel_block",
        "prenorm",
        "qkv_proj_bias",
        "rotary_emb_interleaved",
        "rotary_scaling_factor",
        "scale_attn_by_inverse_layer_idx",
        "use_rms_norm",
    ];
    for name in OFF {
        let value = fields.value(name).filter(|value| !value.is_null() && value.as_bool() != Some(false));
        if let Some(value) = value {
            return Err(fields.error(format!("field `{name}` is {value}, which this model does not have")));
        }
    }
    match fields.text_opt("activation_function")? {
        None | Some("swiglu") => {}
        Some(other) => return Err(fields.error(format!("the activation {other:?} is not supported"))),
    }
    if fields.number_or("rotary_emb_fraction", 1.0)? != 1.0 {
        return Err(fields.error("field `rotary_emb_fraction` must be 1"));
    }
    // Fields that select another way to compute the same result, and lengths.
    fields.skip(&["dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "max_trained_positions", "n_positions"]);
    fields.skip(&[
        "pad_vocab_size_multiple",
        "parallel_block_tied_norm",
        "reorder_and_upcast_attn",
        "rotary_emb_scale_base",
    ]);
    fields.skip(&["use_flash_attn", "use_xentropy", "scale_attn_weights"]);
    Ok(())
}

/// Returns the block that each layer of an ALBERT model uses. All layers of a group apply the blocks of the group one
/// after the other.
fn shared_blocks(fields: &Fields, layers: usize) -> Result<Vec<usize>> {
    let (groups, inner) = (fields.size("num_hidden_groups")?, fields.size("inner_group_num")?);
    if groups.checked_mul(inner).is_none_or(|count| count > MAX_SHARED_BLOCKS) || groups > layers {
        let message = format!("{groups} groups of {inner} blocks are too many for {layers} layers");
        return Err(fields.error(message));
    }
    let blocks = (0..layers).flat_map(|layer| {
        // transformers divides floating-point numbers here.
        let group = (layer as f64 / (layers as f64 / groups as f64)) as usize;
        group * inner..(group + 1) * inner
    });
    Ok(blocks.collect())
}

/// Returns the head that `architectures` names. The default is the head for masked tokens.
pub(super) fn head(fields: &Fields, activation: Option<Activation>) -> Result<BertHead> {
    let name = fields.class()?.unwrap_or("ForMaskedLM");
    Ok(match name.rsplit_once("For").map_or(name, |(_, head)| head) {
        "PreTraining" if name.starts_with("Electra") => BertHead::Replaced,
        "MaskedLM" | "PreTraining" => BertHead::MaskedTokens,
        "SequenceClassification" => BertHead::Classes { count: class_count(fields)?, activation },
        "TokenClassification" => BertHead::TokenClasses(class_count(fields)?),
        name if name.ends_with("Model") => BertHead::None,
        other => return Err(fields.error(format!("the head {other:?} of `architectures` is not supported"))),
    })
}

fn class_count(fields: &Fields) -> Result<usize> {
    Ok(fields.count_opt("id2label")?.filter(|count| *count > 0).unwrap_or(2))
}
