//! The names of the arrays of BERT and related encoders.

use super::bert::{BertConfig, BertHead};
use super::{KeyMap, Layout};

/// Returns the names of the arrays. Files of a model without a head have no prefix, and other files may omit it.
pub(super) fn keys(kind: &str, config: &BertConfig) -> KeyMap {
    let base = match kind {
        "xlm-roberta" | "camembert" | "jina_embeddings_v3" | "xlm-roberta-xl" => "roberta.".to_owned(),
        "megatron-bert" | "big_bird" => "bert.".to_owned(),
        "data2vec-text" => "data2vec_text.".to_owned(),
        "roberta-prelayernorm" => "roberta_prelayernorm.".to_owned(),
        kind => format!("{kind}."),
    };
    let prefix = if config.head == BertHead::None { String::new() } else { base.clone() };
    let (first_norm, final_norm) = match kind {
        "nomic_bert" | "jina_embeddings_v3" => ("emb_ln", ""),
        "esm" => ("embeddings.layer_norm", "encoder.emb_layer_norm_after"),
        "megatron-bert" => ("", "encoder.ln"),
        "xlm-roberta-xl" => ("", "encoder.LayerNorm"),
        _ => ("embeddings.LayerNorm", "LayerNorm"),
    };
    let projection = match kind {
        "albert" | "rembert" => "encoder.embedding_hidden_mapping_in",
        "fnet" => "embeddings.projection",
        _ => "embeddings_project",
    };
    let keys = match kind {
        "distilbert" => distilled_blocks(&prefix),
        "mpnet" => mpnet_blocks(&prefix),
        "albert" => shared_block_keys(config, &prefix),
        "nomic_bert" => nomic_blocks(config, &prefix),
        "gte" => gte_blocks(config, &prefix),
        "jina_embeddings_v3" => jina_blocks(config, &prefix),
        "esm" => normed_blocks(&prefix, "LayerNorm", "LayerNorm"),
        "roberta-prelayernorm" => normed_blocks(&prefix, "LayerNorm", "intermediate.LayerNorm"),
        "megatron-bert" => normed_blocks(&prefix, "ln", "ln"),
        "xlm-roberta-xl" => normed_blocks(&prefix, "self_attn_layer_norm", "LayerNorm"),
        "fnet" => blocks(&prefix, "fourier"),
        _ => blocks(&prefix, "attention"),
    };
    let keys = keys
        // Files from before 2020 use the names of TensorFlow.
        .alias("LayerNorm.weight", "LayerNorm.gamma")
        .alias("LayerNorm.bias", "LayerNorm.beta")
        .array("tokens.embedding", format!("{prefix}embeddings.word_embeddings.weight"), Layout::Same)
        .array("positions.embedding", format!("{prefix}embeddings.position_embeddings.weight"), Layout::Same)
        .array("kinds.embedding", format!("{prefix}embeddings.token_type_embeddings.weight"), Layout::Same)
        .array("distances.embedding", format!("{prefix}encoder.relative_attention_bias.weight"), Layout::Same)
        .array("tasks.embedding", format!("{prefix}embeddings.task_type_embeddings.weight"), Layout::Same)
        .linear("blocks[*].global.query", &format!("{prefix}encoder.layer.*.attention.self.query_global"))
        .linear("blocks[*].global.key", &format!("{prefix}encoder.layer.*.attention.self.key_global"))
        .and(token_conv_keys(&format!("{prefix}encoder.layer.*.attention.self")))
        .linear("blocks[*].global.value", &format!("{prefix}encoder.layer.*.attention.self.value_global"))
        .array("boxes.x.embedding", format!("{prefix}embeddings.x_position_embeddings.weight"), Layout::Same)
        .array("boxes.y.embedding", format!("{prefix}embeddings.y_position_embeddings.weight"), Layout::Same)
        .array("boxes.height.embedding", format!("{prefix}embeddings.h_position_embeddings.weight"), Layout::Same)
        .array("boxes.width.embedding", format!("{prefix}embeddings.w_position_embeddings.weight"), Layout::Same)
        .norm("norm", &format!("{prefix}{first_norm}"))
        .norm("final_norm", &format!("{prefix}{final_norm}"))
        .linear("projection", &format!("{prefix}{projection}"))
        .ignore(&format!("{prefix}embeddings.position_ids"))
        // Tables of sines and cosines, and a head for the structure of proteins.
        .ignore(&format!("{prefix}encoder.embed_positions.weight"))
        .ignore(&format!("{prefix}encoder.layer.*.attention.self.rotary_embeddings.inv_freq"))
        .ignore(&format!("{prefix}encoder.layer.*.attention.self.rotary_embeddings**"))
        .ignore(&format!("{prefix}contact_head.**"))
        // The layers for entities of LUKE.
        .ignore(&format!("{prefix}entity_embeddings.**"))
        .ignore("entity_predictions.**")
        .ignore("cls.seq_relationship.**")
        .ignore("sop_classifier.**");
    let keys = if kind == "luke" {
        keys.alias("lm_head.decoder.bias", "lm_head.bias").tied("lm_head.bias", "lm_head.decoder.bias")
    } else {
        keys
    };
    let keys = ["w2e_query", "e2w_query", "e2e_query"].into_iter().fold(keys, |keys, layer| {
        let name = format!("{prefix}encoder.layer.*.attention.self.{layer}");
        keys.ignore(&format!("{name}.weight")).ignore(&format!("{name}.bias"))
    });
    let keys = match config.head {
        BertHead::None => keys.prefix_alias("", &base).ignore(&format!("{base}pooler.**")),
        _ => keys.prefix_alias(&base, ""),
    };
    // The prefix in files of gte from before transformers had a class for it.
    let keys = match (kind, config.head) {
        ("gte", BertHead::None) => keys.prefix_alias("", "new.").ignore("new.pooler.**"),
        ("gte", _) => keys.prefix_alias(&base, "new."),
        _ => keys,
    };
    // Their heads are BERT's.
    let kind = match (kind, config.head) {
        ("convbert", _) => "electra",
        ("megatron-bert" | "layoutlm" | "fnet", _) | ("big_bird", BertHead::MaskedTokens) => "bert",
        _ => kind,
    };
    let keys = head_keys(keys, kind, config.head, &base, &prefix);
    // Layers of other heads.
    match (kind, config.head) {
        ("bert" | "ernie" | "albert" | "nomic_bert" | "gte" | "rembert", BertHead::Classes { .. }) => keys,
        (_, BertHead::None) => HEADS.into_iter().fold(keys, |keys, other| keys.ignore(&format!("{other}.**"))),
        _ => keys.ignore(&format!("{prefix}pooler.**")),
    }
}

/// Returns the names of the layers that only models with a head have.
const HEADS: [&str; 11] = [
    "pooler",
    "cls",
    "lm_head",
    "classifier",
    "vocab_transform",
    "vocab_layer_norm",
    "vocab_projector",
    "predictions",
    "generator_predictions",
    "generator_lm_head",
    "discriminator_predictions",
];

/// Returns the names of BERT's blocks, whose first layer has the name `mixer`.
fn blocks(prefix: &str, mixer: &str) -> KeyMap {
    let layer = format!("{prefix}encoder.layer.*");
    KeyMap::new()
        .linear("blocks[*].attention.query", &format!("{layer}.attention.self.query"))
        .linear("blocks[*].attention.key", &format!("{layer}.attention.self.key"))
        .linear("blocks[*].attention.value", &format!("{layer}.attention.self.value"))
        .linear("blocks[*].attention.out", &format!("{layer}.attention.output.dense"))
        .norm("blocks[*].norm", &format!("{layer}.{mixer}.output.LayerNorm"))
        .linear("blocks[*].mlp.up", &format!("{layer}.intermediate.dense"))
        .linear("blocks[*].mlp.down", &format!("{layer}.output.dense"))
        .norm("blocks[*].mlp_norm", &format!("{layer}.output.LayerNorm"))
}

/// Returns the names of blocks that normalize their inputs.
fn normed_blocks(prefix: &str, norm: &str, mlp_norm: &str) -> KeyMap {
    let layer = format!("{prefix}encoder.layer.*");
    KeyMap::new()
        .norm("blocks[*].norm", &format!("{layer}.attention.{norm}"))
        .norm("blocks[*].mlp_norm", &format!("{layer}.{mlp_norm}"))
        .and(blocks(prefix, "attention"))
}

/// Returns the names of Jina's blocks.
fn jina_blocks(config: &BertConfig, prefix: &str) -> KeyMap {
    let layer = format!("{prefix}encoder.layers.*");
    joined_attention(config.hidden_size, &format!("{layer}.mixer.Wqkv"), &format!("{layer}.mixer.out_proj"))
        .norm("blocks[*].norm", &format!("{layer}.norm1"))
        .linear("blocks[*].mlp.up", &format!("{layer}.mlp.fc1"))
        .linear("blocks[*].mlp.down", &format!("{layer}.mlp.fc2"))
        .norm("blocks[*].mlp_norm", &format!("{layer}.norm2"))
}

/// Returns the names of MPNet's blocks.
fn mpnet_blocks(prefix: &str) -> KeyMap {
    let layer = format!("{prefix}encoder.layer.*");
    KeyMap::new()
        .linear("blocks[*].attention.query", &format!("{layer}.attention.attn.q"))
        .linear("blocks[*].attention.key", &format!("{layer}.attention.attn.k"))
        .linear("blocks[*].attention.value", &format!("{layer}.attention.attn.v"))
        .linear("blocks[*].attention.out", &format!("{layer}.attention.attn.o"))
        .norm("blocks[*].norm", &format!("{layer}.attention.LayerNorm"))
        .and(blocks(prefix, "attention"))
}

/// Returns the names of DistilBERT's blocks.
fn distilled_blocks(prefix: &str) -> KeyMap {
    let layer = format!("{prefix}transformer.layer.*");
    KeyMap::new()
        .linear("blocks[*].attention.query", &format!("{layer}.attention.q_lin"))
        .linear("blocks[*].attention.key", &format!("{layer}.attention.k_lin"))
        .linear("blocks[*].attention.value", &format!("{layer}.attention.v_lin"))
        .linear("blocks[*].attention.out", &format!("{layer}.attention.out_lin"))
        .norm("blocks[*].norm", &format!("{layer}.sa_layer_norm"))
        .linear("blocks[*].mlp.up", &format!("{layer}.ffn.lin1"))
        .linear("blocks[*].mlp.down", &format!("{layer}.ffn.lin2"))
        .norm("blocks[*].mlp_norm", &format!("{layer}.output_layer_norm"))
}

/// Returns the names of ALBERT's blocks, which contain the number of the group and the number of the block in the
/// group.
fn shared_block_keys(config: &BertConfig, prefix: &str) -> KeyMap {
    let inner = config.block_order.iter().position(|block| *block == 0).map_or(1, |first| {
        let later_layers = &config.block_order[first + 1..];
        later_layers.iter().position(|block| *block == 0).map_or(config.num_hidden_layers, |distance| distance + 1)
    });
    (0..config.num_hidden_layers).fold(KeyMap::new(), |keys, block| {
        let (group, number) = (block / inner, block % inner);
        let layer = format!("{prefix}encoder.albert_layer_groups.{group}.albert_layers.{number}");
        let path = format!("blocks[{block}]");
        keys.linear(&format!("{path}.attention.query"), &format!("{layer}.attention.query"))
            .linear(&format!("{path}.attention.key"), &format!("{layer}.attention.key"))
            .linear(&format!("{path}.attention.value"), &format!("{layer}.attention.value"))
            .linear(&format!("{path}.attention.out"), &format!("{layer}.attention.dense"))
            .norm(&format!("{path}.norm"), &format!("{layer}.attention.LayerNorm"))
            .linear(&format!("{path}.mlp.up"), &format!("{layer}.ffn"))
            .linear(&format!("{path}.mlp.down"), &format!("{layer}.ffn_output"))
            .norm(&format!("{path}.mlp_norm"), &format!("{layer}.full_layer_layer_norm"))
    })
}

/// Returns the names of attention with a single matrix for queries, keys and values.
fn joined_attention(features: usize, joined: &str, out: &str) -> KeyMap {
    KeyMap::new()
        .weights("blocks[*].attention.query", joined, Layout::nth_rows(0, features, 3))
        .weights("blocks[*].attention.key", joined, Layout::nth_rows(1, features, 3))
        .weights("blocks[*].attention.value", joined, Layout::nth_rows(2, features, 3))
        .linear("blocks[*].attention.out", out)
}

/// Returns the names of nomic-embed's blocks.
fn nomic_blocks(config: &BertConfig, prefix: &str) -> KeyMap {
    let layer = format!("{prefix}encoder.layers.*");
    joined_attention(config.hidden_size, &format!("{layer}.attn.Wqkv"), &format!("{layer}.attn.out_proj"))
        .norm("blocks[*].norm", &format!("{layer}.norm1"))
        .linear("blocks[*].mlp.up", &format!("{layer}.mlp.fc11"))
        .linear("blocks[*].mlp.gate", &format!("{layer}.mlp.fc12"))
        .linear("blocks[*].mlp.down", &format!("{layer}.mlp.fc2"))
        .norm("blocks[*].mlp_norm", &format!("{layer}.norm2"))
}

/// Returns the names of gte's blocks.
fn gte_blocks(config: &BertConfig, prefix: &str) -> KeyMap {
    let layer = format!("{prefix}encoder.layer.*");
    let (hidden, both) = (config.intermediate_size, config.intermediate_size.saturating_mul(2));
    joined_attention(config.hidden_size, &format!("{layer}.attention.qkv_proj"), &format!("{layer}.attention.o_proj"))
        .norm("blocks[*].norm", &format!("{layer}.attn_ln"))
        .weights(
            "blocks[*].mlp.up",
            &format!("{layer}.mlp.up_gate_proj"),
            Layout::Rows { start: 0, end: hidden, of: both },
        )
        .weights(
            "blocks[*].mlp.gate",
            &format!("{layer}.mlp.up_gate_proj"),
            Layout::Rows { start: hidden, end: both, of: both },
        )
        .linear("blocks[*].mlp.down", &format!("{layer}.mlp.down_proj"))
        .norm("blocks[*].mlp_norm", &format!("{layer}.mlp_ln"))
}

/// Returns the names of a head's layers and of the copies of the token table.
fn head_keys(keys: KeyMap, kind: &str, head: BertHead, base: &str, prefix: &str) -> KeyMap {
    let pooler = format!("{base}pooler.dense");
    // The first layer, its norm, and the last layer.
    let (dense, norm, last) = match (kind, head) {
        (_, BertHead::None) => return keys,
        (_, BertHead::TokenClasses(_)) => ("", "", "classifier"),
        (_, BertHead::Replaced) => {
            ("discriminator_predictions.dense", "", "discriminator_predictions.dense_prediction")
        }
        ("bert" | "ernie" | "nomic_bert" | "gte" | "rembert", BertHead::Classes { .. }) => {
            (pooler.as_str(), "", "classifier")
        }
        ("albert", BertHead::Classes { .. }) => ("albert.pooler", "", "classifier"),
        ("distilbert", BertHead::Classes { .. }) => ("pre_classifier", "", "classifier"),
        (_, BertHead::Classes { .. }) => ("classifier.dense", "", "classifier.out_proj"),
        ("bert" | "ernie" | "roformer", BertHead::MaskedTokens) => {
            ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder")
        }
        ("rembert", BertHead::MaskedTokens) => {
            let (dense, norm) = ("cls.predictions.dense", "cls.predictions.LayerNorm");
            return keys.linear("head", dense).norm("head_norm", norm).linear("classifier", "cls.predictions.decoder");
        }
        ("nomic_bert", BertHead::MaskedTokens) => {
            ("cls.predictions.transform.dense", "cls.predictions.transform.layer_norm", "cls.predictions.decoder")
        }
        ("distilbert", BertHead::MaskedTokens) => ("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        ("albert", BertHead::MaskedTokens) => ("predictions.dense", "predictions.LayerNorm", "predictions.decoder"),
        ("electra", BertHead::MaskedTokens) => {
            ("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head")
        }
        ("gte", BertHead::MaskedTokens) => ("lm_head.dense", "lm_head.norm", "lm_head.decoder"),
        (_, BertHead::MaskedTokens) => ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"),
    };
    let keys = keys.linear("head", dense).norm("head_norm", norm).linear("classifier", last);
    if head != BertHead::MaskedTokens {
        return keys;
    }
    let bias = match kind {
        "bert" | "ernie" | "roformer" | "nomic_bert" => "cls.predictions.bias",
        "distilbert" => "vocab_projector.bias",
        "albert" => "predictions.bias",
        "electra" => "generator_lm_head.bias",
        "gte" | "luke" => "lm_head.decoder.bias",
        _ => "lm_head.bias",
    };
    let keys = keys
        .array("bias", bias, Layout::Same)
        .tied(&format!("{last}.weight"), &format!("{prefix}embeddings.word_embeddings.weight"));
    let copy = format!("{last}.bias");
    if copy == bias { keys } else { keys.tied(&copy, bias) }
}

/// Returns the names of the convolutions of ConvBERT.
fn token_conv_keys(layer: &str) -> KeyMap {
    let path = "blocks[*].conv";
    KeyMap::new()
        .conv(&format!("{path}.depthwise"), &format!("{layer}.key_conv_attn_layer.depthwise"))
        .array(
            format!("{path}.pointwise.kernel"),
            format!("{layer}.key_conv_attn_layer.pointwise.weight"),
            Layout::PointConvolution,
        )
        .array(format!("{path}.pointwise.bias"), format!("{layer}.key_conv_attn_layer.bias"), Layout::Column)
        .linear(&format!("{path}.weights"), &format!("{layer}.conv_kernel_layer"))
        .linear(&format!("{path}.values"), &format!("{layer}.conv_out_layer"))
}
