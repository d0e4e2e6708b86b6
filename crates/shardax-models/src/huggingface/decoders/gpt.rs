//! GPT-2 and contemporary models.

use shardax_nn::Rope;

use super::llama::interleave;
use super::*;
use crate::Activation;

/// Reads the sizes with GPT-2's field names.
fn gpt_sizes(fields: &Fields) -> Result<DecoderConfig> {
    let (features, heads) = (fields.size("n_embd")?, fields.size("n_head")?);
    fields.divides(("n_head", heads), ("n_embd", features))?;
    let layers = fields.layers("n_layer")?;
    Ok(DecoderConfig {
        hidden: fields.size_opt("n_inner")?.unwrap_or(features.saturating_mul(4)),
        norm: NormKind::Layer,
        epsilon: fields.number("layer_norm_epsilon")?,
        activation: fields.activation("activation_function")?,
        gated: false,
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        ..DecoderConfig::new(fields.size("vocab_size")?, layers, features, heads)
    })
}

pub(super) fn gpt2(fields: &Fields, _: &str) -> Read {
    // The order of operations of the same result.
    fields.skip(&["reorder_and_upcast_attn"]);
    let mut config = DecoderConfig {
        positions: Positions::Learned(fields.size("n_positions")?),
        biases: Biases { head: false, ..Biases::ALL },
        attention_scale: if fields.flag_or("scale_attn_weights", true)? { None } else { Some(1.0) },
        ..gpt_sizes(fields)?
    };
    if fields.flag("scale_attn_by_inverse_layer_idx")? {
        let scale = config.attention_scale.unwrap_or((config.head_dim as f64).sqrt().recip());
        config.attention_scales = (1..=config.layers).map(|layer| scale / layer as f64).collect();
    }
    Ok((config, joined_keys("wte", "wpe").norm("norm.0", "ln_f")))
}

/// Returns the names of GPT-2's arrays, with these names of the tables of tokens and positions. Kernels are `[in, out]`, and
/// one kernel has queries, keys and values.
fn joined_keys(tokens: &str, positions: &str) -> KeyMap {
    let [query, key, value] = [0, 1, 2].map(|index| Layout::Part { index, of: 3 });
    let tokens = format!("{tokens}.weight");
    KeyMap::new()
        .prefix("transformer.")
        .array("positions.embedding", format!("{positions}.weight"), Layout::Same)
        .array("embed.embedding", tokens.as_str(), Layout::Same)
        .norm("blocks[*].norm.0", "h.*.ln_1")
        .weights("blocks[*].attention.query", "h.*.attn.c_attn", query)
        .weights("blocks[*].attention.key", "h.*.attn.c_attn", key)
        .weights("blocks[*].attention.value", "h.*.attn.c_attn", value)
        .weights("blocks[*].attention.out", "h.*.attn.c_proj", Layout::Same)
        .norm("blocks[*].mlp_norm.0", "h.*.ln_2")
        .weights("blocks[*].mlp.up", "h.*.mlp.c_fc", Layout::Same)
        .weights("blocks[*].mlp.down", "h.*.mlp.c_proj", Layout::Same)
        .linear("head", "lm_head")
        .tied("lm_head.weight", &tokens)
        .ignore("h.*.attn.bias")
        .ignore("h.*.attn.masked_bias")
}

/// Reads the first StarCoder models, whose heads share keys and values.
pub(super) fn gpt_bigcode(fields: &Fields, _: &str) -> Read {
    // Follows from `multi_query`.
    fields.skip(&["num_key_value_heads"]);
    // Fields that select another way to compute the same result.
    fields.skip(&["attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "inference_runner"]);
    fields.skip(&["max_batch_size", "max_sequence_length", "pad_key_length", "pre_allocate_kv_cache"]);
    fields.skip(&["validate_runner_input", "runner_max_sequence_length"]);
    let sized = gpt_sizes(fields)?;
    let config = DecoderConfig {
        kv_heads: if fields.flag("multi_query")? { 1 } else { sized.heads },
        positions: Positions::Learned(fields.size("n_positions")?),
        biases: Biases { head: false, ..Biases::ALL },
        attention_scale: if fields.flag("scale_attn_weights")? { None } else { Some(1.0) },
        ..sized
    };
    let keys = grouped_attention(&config, "h.*.attn.c_attn")
        .prefix("transformer.")
        .array("embed.embedding", "wte.weight", Layout::Same)
        .array("positions.embedding", "wpe.weight", Layout::Same)
        .norm("blocks[*].norm.0", "h.*.ln_1")
        .linear("blocks[*].attention.out", "h.*.attn.c_proj")
        .norm("blocks[*].mlp_norm.0", "h.*.ln_2")
        .linear("blocks[*].mlp.up", "h.*.mlp.c_fc")
        .linear("blocks[*].mlp.down", "h.*.mlp.c_proj")
        .norm("norm.0", "ln_f")
        .linear("head", "lm_head")
        .tied("lm_head.weight", "wte.weight")
        .ignore("h.*.attn.bias")
        .ignore("h.*.attn.masked_bias");
    Ok((config, keys))
}

/// Reads GPT-Neo, in which layers with and without a window alternate.
pub(super) fn gpt_neo(fields: &Fields, _: &str) -> Read {
    let (features, heads) = (fields.size("hidden_size")?, fields.size("num_heads")?);
    fields.divides(("num_heads", heads), ("hidden_size", features))?;
    let layers = fields.layers("num_layers")?;
    let config = DecoderConfig {
        hidden: fields.size_opt("intermediate_size")?.unwrap_or(features.saturating_mul(4)),
        positions: Positions::Learned(fields.size("max_position_embeddings")?),
        norm: NormKind::Layer,
        epsilon: fields.number("layer_norm_epsilon")?,
        activation: fields.activation("activation_function")?,
        gated: false,
        biases: Biases { qkv: false, out: true, mlp: true, head: false },
        // GPT-Neo does not scale the attention scores.
        attention_scale: Some(1.0),
        windows: gpt_neo_windows(fields, layers)?,
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        ..DecoderConfig::new(fields.size("vocab_size")?, layers, features, heads)
    };
    let keys = KeyMap::new()
        .prefix("transformer.")
        .array("embed.embedding", "wte.weight", Layout::Same)
        .array("positions.embedding", "wpe.weight", Layout::Same)
        .norm("blocks[*].norm.0", "h.*.ln_1")
        .linear("blocks[*].attention.query", "h.*.attn.attention.q_proj")
        .linear("blocks[*].attention.key", "h.*.attn.attention.k_proj")
        .linear("blocks[*].attention.value", "h.*.attn.attention.v_proj")
        .linear("blocks[*].attention.out", "h.*.attn.attention.out_proj")
        .norm("blocks[*].mlp_norm.0", "h.*.ln_2")
        .linear("blocks[*].mlp.up", "h.*.mlp.c_fc")
        .linear("blocks[*].mlp.down", "h.*.mlp.c_proj")
        .norm("norm.0", "ln_f")
        .linear("head", "lm_head")
        .tied("lm_head.weight", "wte.weight")
        .ignore("h.*.attn.attention.bias")
        .ignore("h.*.attn.attention.masked_bias");
    Ok((config, keys))
}

/// Reads the windows of GPT-Neo's layers. The field contains lists of kinds and the number of times that each list is
/// repeated: `[[["global", "local"], 12]]`.
fn gpt_neo_windows(fields: &Fields, layers: usize) -> Result<Vec<Option<usize>>> {
    // The files also contain the expanded list.
    fields.skip(&["attention_layers"]);
    let window = fields.size("window_size")?;
    let default = serde_json::json!([[["global", "local"], 12]]);
    let lists = fields.value("attention_types").unwrap_or(&default);
    repeated_windows(lists, window, layers)
        .ok_or_else(|| fields.error(format!("`attention_types` is {lists}, which does not describe {layers} layers")))
}

/// Expands the lists. Returns `None` if they are malformed, or if they do not have one entry for each layer.
fn repeated_windows(lists: &serde_json::Value, window: usize, layers: usize) -> Option<Vec<Option<usize>>> {
    let mut windows = Vec::new();
    for list in lists.as_array()? {
        let kinds = list.get(0)?.as_array()?;
        let count = list.get(1)?.as_u64().filter(|count| *count <= layers as u64)?;
        for kind in (0..count).flat_map(|_| kinds) {
            windows.push(match kind.as_str()? {
                "global" => None,
                "local" => Some(window),
                _ => return None,
            });
            // A count in the file must not determine how much memory is used.
            if windows.len() > layers {
                return None;
            }
        }
    }
    (windows.len() == layers).then_some(windows)
}

/// Reads the first GPT, which normalizes sums instead of inputs.
pub(super) fn openai_gpt(fields: &Fields, _: &str) -> Read {
    let (features, heads) = (fields.size("n_embd")?, fields.size("n_head")?);
    fields.divides(("n_head", heads), ("n_embd", features))?;
    let config = DecoderConfig {
        positions: Positions::Learned(fields.size("n_positions")?),
        norm: NormKind::Layer,
        epsilon: fields.number("layer_norm_epsilon")?,
        activation: match fields.text("afn")? {
            // Later models call this approximation with tanh differently.
            "gelu" => Activation::GeluTanh,
            name => fields.activation_named("activation_function", name)?,
        },
        gated: false,
        biases: Biases { head: false, ..Biases::ALL },
        pre_norms: false,
        sum_norms: true,
        final_norm: false,
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        ..DecoderConfig::new(fields.size("vocab_size")?, fields.layers("n_layer")?, features, heads)
    };
    Ok((config, joined_keys("tokens_embed", "positions_embed")))
}

pub(super) fn gptj(fields: &Fields, kind: &str) -> Read {
    let mut config = DecoderConfig {
        biases: Biases { qkv: false, out: false, mlp: true, head: true },
        parallel: true,
        shared_norm: true,
        ..gpt_sizes(fields)?
    };
    // The length of the table of sines, which is not a parameter.
    fields.skip(&["n_positions"]);
    let features = fields.size_opt("rotary_dim")?.unwrap_or(config.features);
    if features > config.head_dim || features % 2 == 1 {
        let message =
            format!("`rotary_dim` of {features} is odd, or more than the {} features of a head", config.head_dim);
        return Err(fields.error(message));
    }
    config.positions = Positions::Rotary(Rope::new(10_000.0).rotary_dim(features));
    interleave(&mut config);
    // CodeGen stores queries, values and keys as one matrix, in parts for the four devices that it was trained on.
    let keys = match kind {
        "codegen" => {
            fields.divides(("the 4 parts of `qkv_proj`", CODEGEN_PARTS), ("n_embd", config.features))?;
            let width = config.features / CODEGEN_PARTS;
            let [query, value, key] = [0, 1, 2].map(|index| Layout::GroupedRows {
                groups: CODEGEN_PARTS,
                start: width.saturating_mul(index),
                end: width.saturating_mul(index + 1),
            });
            KeyMap::new()
                .weights("blocks[*].attention.query", "h.*.attn.qkv_proj", query)
                .weights("blocks[*].attention.value", "h.*.attn.qkv_proj", value)
                .weights("blocks[*].attention.key", "h.*.attn.qkv_proj", key)
                .ignore("h.*.attn.causal_mask")
        }
        _ => KeyMap::new(),
    };
    let keys = keys
        .prefix("transformer.")
        .array("embed.embedding", "wte.weight", Layout::Same)
        .norm("blocks[*].norm.0", "h.*.ln_1")
        .linear("blocks[*].attention.query", "h.*.attn.q_proj")
        .linear("blocks[*].attention.key", "h.*.attn.k_proj")
        .linear("blocks[*].attention.value", "h.*.attn.v_proj")
        .linear("blocks[*].attention.out", "h.*.attn.out_proj")
        .linear("blocks[*].mlp.up", "h.*.mlp.fc_in")
        .linear("blocks[*].mlp.down", "h.*.mlp.fc_out")
        .norm("norm.0", "ln_f")
        .linear("head", "lm_head")
        .tied("lm_head.weight", "wte.weight")
        .ignore("h.*.attn.bias")
        .ignore("h.*.attn.masked_bias");
    Ok((config, keys))
}

/// The number of devices that CodeGen was trained on.
const CODEGEN_PARTS: usize = 4;

/// Returns the names of attention with one matrix for queries, keys and values, in which the rows of all heads that share a
/// key are contiguous.
pub(super) fn grouped_attention(config: &DecoderConfig, name: &str) -> KeyMap {
    let (groups, width) = (config.kv_heads, config.head_dim);
    let queries = width.saturating_mul(config.heads / config.kv_heads);
    let [query, key, value] = [(0, queries), (queries, width), (queries.saturating_add(width), width)]
        .map(|(start, count)| Layout::rows_of_groups(groups, start, count));
    KeyMap::new()
        .weights("blocks[*].attention.query", name, query)
        .weights("blocks[*].attention.key", name, key)
        .weights("blocks[*].attention.value", name, value)
}

pub(super) fn gpt_neox(fields: &Fields, _: &str) -> Read {
    let attention = fields.flag("attention_bias")?;
    let mut config = DecoderConfig {
        norm: NormKind::Layer,
        epsilon: fields.number("layer_norm_eps")?,
        activation: fields.activation("hidden_act")?,
        gated: false,
        biases: Biases { qkv: attention, out: attention, mlp: true, head: false },
        parallel: fields.flag("use_parallel_residual")?,
        ..sizes(fields)?
    };
    let rope = rope_named(fields, config.head_dim, "rotary_emb_base", Some(("rotary_pct", 0.25)))?;
    config.positions = Positions::Rotary(rope);
    let keys = grouped_attention(&config, "layers.*.attention.query_key_value").prefix("gpt_neox.").and(neox_keys());
    Ok((config, keys))
}

/// Returns the names of the other arrays of GPT-NeoX, without their prefix.
fn neox_keys() -> KeyMap {
    KeyMap::new()
        .array("embed.embedding", "embed_in.weight", Layout::Same)
        .norm("blocks[*].norm.0", "layers.*.input_layernorm")
        .linear("blocks[*].attention.out", "layers.*.attention.dense")
        .norm("blocks[*].mlp_norm.0", "layers.*.post_attention_layernorm")
        .linear("blocks[*].mlp.up", "layers.*.mlp.dense_h_to_4h")
        .linear("blocks[*].mlp.down", "layers.*.mlp.dense_4h_to_h")
        .norm("norm.0", "final_layer_norm")
        .linear("head", "embed_out")
        .tied("embed_out.weight", "embed_in.weight")
        // Older files contain causal masks, the score of masked positions, and the frequencies of rotary positions.
        .ignore("layers.*.attention.bias")
        .ignore("layers.*.attention.masked_bias")
        .ignore("layers.*.attention.rotary_emb.inv_freq")
}

/// Reads the Japanese GPT-NeoX, in which only the attention of the last layer has a bias.
pub(super) fn gpt_neox_japanese(fields: &Fields, _: &str) -> Read {
    let sized = sizes_without_hidden(fields)?;
    let (features, layers) = (sized.features, sized.layers);
    let mut config = DecoderConfig {
        hidden: features.saturating_mul(fields.size("intermediate_multiple_size")?),
        norm: NormKind::Layer,
        epsilon: fields.number("layer_norm_eps")?,
        activation: fields.activation("hidden_act")?,
        gated: false,
        biases: Biases { out: true, ..Biases::NONE },
        without_out_bias: (0..layers).map(|layer| layer + 1 < layers).collect(),
        ..sized
    };
    let rope = rope_named(fields, config.head_dim, "rotary_emb_base", Some(("rotary_pct", 1.0)))?;
    config.positions = Positions::Rotary(rope);
    let keys = grouped_attention(&config, "layers.*.attention.query_key_value")
        .prefix("gpt_neox_japanese.")
        .array("blocks[*].attention.out.bias", "layers.*.attention.dense_bias", Layout::Same)
        .and(neox_keys());
    Ok((config, keys))
}

pub(super) fn falcon(fields: &Fields, _: &str) -> Read {
    let (features, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
    let is_new = fields.flag("new_decoder_architecture")?;
    let is_multi_query = fields.flag("multi_query")?;
    let kv_heads = fields.size_opt("num_kv_heads")?.unwrap_or(heads);
    // Without the new architecture, models with one key head do not read `num_kv_heads`. For other models, transformers
    // fails unless it is the number of heads.
    let kv_heads = match (is_new, is_multi_query) {
        (true, _) => kv_heads,
        (false, true) => 1,
        (false, false) => heads,
    };
    fields.divides(("num_kv_heads", kv_heads), ("num_attention_heads", heads))?;
    let parallel = is_new || fields.flag("parallel_attn")?;
    fields.skip(&["parallel_attn"]);
    let norms = fields.size_opt("num_ln_in_parallel_attn")?.unwrap_or(if is_new { 2 } else { 1 });
    let has_bias = fields.flag("bias")?;
    let layers = fields.layers("num_hidden_layers")?;
    let mut config = DecoderConfig {
        kv_heads,
        hidden: fields.size_opt("ffn_hidden_size")?.unwrap_or(features.saturating_mul(4)),
        norm: NormKind::Layer,
        epsilon: fields.number("layer_norm_epsilon")?,
        activation: fields.activation("activation")?,
        gated: false,
        biases: Biases { qkv: has_bias, out: has_bias, mlp: has_bias, head: false },
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        parallel,
        shared_norm: parallel && norms != 2,
        ..DecoderConfig::new(fields.size("vocab_size")?, layers, features, heads)
    };
    rotary(&mut config, fields, None)?;
    if fields.flag("alibi")? {
        config.positions = Positions::RoundedAlibi((config.head_dim as f64).sqrt().recip());
    }
    let (first, second) = if parallel && norms == 2 {
        ("h.*.ln_attn", "h.*.ln_mlp")
    } else {
        ("h.*.input_layernorm", "h.*.post_attention_layernorm")
    };
    let keys = grouped_attention(&config, "h.*.self_attention.query_key_value")
        .prefix("transformer.")
        .array("embed.embedding", "word_embeddings.weight", Layout::Same)
        .norm("blocks[*].norm.0", first)
        .norm("blocks[*].mlp_norm.0", second)
        .linear("blocks[*].attention.out", "h.*.self_attention.dense")
        .linear("blocks[*].mlp.up", "h.*.mlp.dense_h_to_4h")
        .linear("blocks[*].mlp.down", "h.*.mlp.dense_4h_to_h")
        .norm("norm.0", "ln_f")
        .linear("head", "lm_head")
        .tied("lm_head.weight", "word_embeddings.weight")
        .ignore("h.*.self_attention.rotary_emb.inv_freq");
    Ok((config, keys))
}

pub(super) fn persimmon(fields: &Fields, _: &str) -> Read {
    let mut config = DecoderConfig {
        norm: NormKind::Layer,
        epsilon: fields.number("layer_norm_eps")?,
        activation: fields.activation("hidden_act")?,
        gated: false,
        biases: Biases { head: false, ..Biases::ALL },
        qk_norm: if fields.flag("qk_layernorm")? { QkNorm::Head } else { QkNorm::None },
        ..sizes(fields)?
    };
    rotary(&mut config, fields, Some(0.5))?;
    let keys = grouped_attention(&config, "model.layers.*.self_attn.query_key_value")
        .linear("blocks[*].attention.out", "model.layers.*.self_attn.dense")
        .norm("blocks[*].attention.query_ln", "model.layers.*.self_attn.q_layernorm")
        .norm("blocks[*].attention.key_ln", "model.layers.*.self_attn.k_layernorm")
        .linear("blocks[*].mlp.up", "model.layers.*.mlp.dense_h_to_4h")
        .linear("blocks[*].mlp.down", "model.layers.*.mlp.dense_4h_to_h")
        .norm("norm.0", "model.final_layernorm");
    Ok((config, keys.and(llama_keys())))
}

pub(super) fn phi(fields: &Fields, _: &str) -> Read {
    let mut config = DecoderConfig {
        norm: NormKind::Layer,
        epsilon: fields.number("layer_norm_eps")?,
        activation: fields.activation("hidden_act")?,
        gated: false,
        biases: Biases::ALL,
        parallel: true,
        shared_norm: true,
        ..sizes(fields)?
    };
    if fields.flag("qk_layernorm")? {
        config.qk_norm = QkNorm::Head;
    }
    rotary(&mut config, fields, Some(0.5))?;
    let keys = KeyMap::new()
        .linear("blocks[*].attention.out", "model.layers.*.self_attn.dense")
        .linear("blocks[*].mlp.up", "model.layers.*.mlp.fc1")
        .linear("blocks[*].mlp.down", "model.layers.*.mlp.fc2")
        .norm("blocks[*].attention.query_ln", "model.layers.*.self_attn.q_layernorm")
        .norm("blocks[*].attention.key_ln", "model.layers.*.self_attn.k_layernorm")
        .norm("norm.0", "model.final_layernorm");
    Ok((config, keys.and(llama_keys())))
}
