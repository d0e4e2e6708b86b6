//! Decoders with linear attention.

use shardax_nn::{ExpertGroups, RouterScores};

use super::super::rope::rope_object;
use super::experts::{
    dense_layers, expert_keys, experts, first_dense_layers, present_name, shared_keys, with_stacked_experts,
};
use super::latent::latent_keys;
use super::llama::{attention_biases, only_silu};
use super::*;
use crate::{AttentionGate, DeltaConfig, ExpertsConfig, LatentConfig, NormPlace};

/// Reads Qwen3-Next and Qwen3.5. Most layers have linear attention, and the others gated attention.
pub(super) fn qwen(fields: &Fields, kind: &str) -> Read {
    let sized = llama_sizes(fields)?;
    only_silu(fields)?;
    let layers = sized.layers;
    let has_delta = layers_with_linear_attention(fields, layers)?;
    if kind != "qwen3_next" {
        // Properties of all models of these types, which their classes do not read, and layers for training.
        fields.skip(&["attn_output_gate", "mamba_ssm_dtype", "mlp_only_layers", "norm_topk_prob"]);
        fields.skip(&["mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"]);
    }
    let delta = DeltaConfig {
        key_heads: fields.size("linear_num_key_heads")?,
        value_heads: fields.size("linear_num_value_heads")?,
        key_dim: fields.size("linear_key_head_dim")?,
        value_dim: fields.size("linear_value_head_dim")?,
        width: fields.size("linear_conv_kernel_dim")?,
        layers: has_delta,
        ..DeltaConfig::default()
    };
    let experts = match kind {
        "qwen3_5_text" => None,
        _ => Some(ExpertsConfig {
            normalized: kind == "qwen3_5_moe_text" || fields.flag("norm_topk_prob")?,
            shared_hidden: Some(fields.size("shared_expert_intermediate_size")?),
            shared_gate: true,
            // All layers of Qwen3.5's models have experts.
            dense_layers: if kind == "qwen3_next" { dense_layers(fields, layers)? } else { Vec::new() },
            ..experts(fields, fields.size("num_experts")?, fields.size("moe_intermediate_size")?)?
        }),
    };
    let mut config = DecoderConfig {
        norm: NormKind::RmsOffset,
        biases: attention_biases(fields)?,
        qk_norm: QkNorm::Head,
        attention_gate: Some(AttentionGate::default()),
        delta: Some(delta.clone()),
        experts,
        ..sized
    };
    rotary(&mut config, fields, Some(0.25))?;
    let (heads, width) = (config.heads, config.head_dim);
    let query_gate = "model.layers.*.self_attn.q_proj";
    let keys = expert_keys("model.layers.*.mlp", "gate", ["gate_proj", "up_proj", "down_proj"])
        .and(shared_keys("model.layers.*.mlp.shared_expert"))
        .linear("blocks[*].shared_gate", "model.layers.*.mlp.shared_expert_gate")
        .weights("blocks[*].attention.query", query_gate, Layout::rows_of_groups(heads, 0, width))
        .weights("blocks[*].attention.gate", query_gate, Layout::rows_of_groups(heads, width, width))
        .and(if kind == "qwen3_next" { grouped_delta_keys(&delta) } else { delta_keys(&delta) })
        .and(joined_taps(&delta))
        .array("blocks[*].delta.rate_bias", layer("dt_bias"), Layout::Same)
        .array("blocks[*].delta.log_speed", layer("A_log"), Layout::Same)
        .scale("blocks[*].delta.norm", &layer("norm"))
        .linear("blocks[*].delta.out", &layer("out_proj"))
        // Layers that predict additional tokens in training.
        .ignore("mtp.**");
    let hidden = config.experts.as_ref().map_or(0, |experts| experts.hidden);
    Ok((config, with_stacked_experts(keys, "model.layers.*.mlp", hidden).and(llama_keys())))
}

/// Returns for each layer whether it has linear attention.
fn layers_with_linear_attention(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    let types = fields.list_opt("layer_types")?;
    let has_linear = match types {
        Some(types) if types.len() != layers => {
            return Err(fields.error(format!("`layer_types` has {} entries for {layers} layers", types.len())));
        }
        Some(types) => types.iter().map(|entry| is_linear(entry, fields)).collect::<Result<Vec<bool>>>()?,
        None => {
            let interval = fields.size_opt("full_attention_interval")?.unwrap_or(4);
            (0..layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect()
        }
    };
    fields.skip(&["full_attention_interval"]);
    Ok(has_linear)
}

/// Returns `true` for the name of a layer with linear attention.
fn is_linear(entry: &serde_json::Value, fields: &Fields) -> Result<bool> {
    match entry.as_str() {
        Some("linear_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(fields.error(format!("the layer type {entry} is not supported"))),
    }
}

/// The name of an array of the layers' linear attention.
fn layer(name: &str) -> String {
    format!("model.layers.*.linear_attn.{name}")
}

/// Returns the names of the factors of convolutions. One array has the channels of all queries, then of all keys, then of all
/// values.
fn joined_taps(delta: &DeltaConfig) -> KeyMap {
    let (keys, values) =
        (delta.key_heads.saturating_mul(delta.key_dim), delta.value_heads.saturating_mul(delta.value_dim));
    let total = keys.saturating_mul(2).saturating_add(values);
    let parts = [("query", 0, keys), ("key", keys, keys), ("value", keys.saturating_mul(2), values)];
    parts.into_iter().fold(KeyMap::new(), |map, (part, start, count)| {
        let path = format!("blocks[*].delta.{part}_taps");
        map.array(path, layer("conv1d.weight"), Layout::rows(start, count, total))
    })
}

/// Returns the names of the inputs of Qwen3.5's linear attention. One matrix has the rows of all queries, then of all
/// keys, then of all values.
fn delta_keys(delta: &DeltaConfig) -> KeyMap {
    let (keys, values) =
        (delta.key_heads.saturating_mul(delta.key_dim), delta.value_heads.saturating_mul(delta.value_dim));
    let total = keys.saturating_mul(2).saturating_add(values);
    KeyMap::new()
        .weights("blocks[*].delta.query", &layer("in_proj_qkv"), Layout::rows(0, keys, total))
        .weights("blocks[*].delta.key", &layer("in_proj_qkv"), Layout::rows(keys, keys, total))
        .weights("blocks[*].delta.value", &layer("in_proj_qkv"), Layout::rows(keys.saturating_mul(2), values, total))
        .linear("blocks[*].delta.gate", &layer("in_proj_z"))
        .linear("blocks[*].delta.write", &layer("in_proj_b"))
        .linear("blocks[*].delta.forget", &layer("in_proj_a"))
}

/// Returns the names of the inputs of Qwen3-Next's linear attention. The rows of each key head are contiguous.
fn grouped_delta_keys(delta: &DeltaConfig) -> KeyMap {
    let shared = delta.value_heads.checked_div(delta.key_heads).unwrap_or(1);
    let (key, values) = (delta.key_dim, shared.saturating_mul(delta.value_dim));
    let keys_end = key.saturating_mul(2);
    let inputs = [
        ("query", "in_proj_qkvz", 0, key),
        ("key", "in_proj_qkvz", key, key),
        ("value", "in_proj_qkvz", keys_end, values),
        ("gate", "in_proj_qkvz", keys_end.saturating_add(values), values),
        ("write", "in_proj_ba", 0, shared),
        ("forget", "in_proj_ba", shared, shared),
    ];
    inputs.into_iter().fold(KeyMap::new(), |keys, (part, name, start, count)| {
        let rows = Layout::rows_of_groups(delta.key_heads, start, count);
        keys.weights(&format!("blocks[*].delta.{part}"), &layer(name), rows)
    })
}

/// Reads Kimi Linear. Most layers have linear attention with rates of forgetting for each feature, and the others latent
/// attention without positions.
pub(super) fn kimi(fields: &Fields, _: &str) -> Read {
    only_silu(fields)?;
    let (features, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    let layers = fields.layers("num_hidden_layers")?;
    let latent = LatentConfig {
        query_rank: fields.size_opt("q_lora_rank")?,
        rank: fields.size("kv_lora_rank")?,
        key_dim: fields.size("qk_nope_head_dim")?,
        rope_dim: fields.size("qk_rope_head_dim")?,
        value_dim: fields.size("v_head_dim")?,
        sparse: None,
    };
    // Each head has its own key, and no features are rotated.
    fields.skip(&["num_key_value_heads", "head_dim", "qk_head_dim", "rope_theta"]);
    if !fields.flag_or("mla_use_nope", true)? {
        return Err(fields.error("`mla_use_nope` is false, but this model has no rotary positions"));
    }
    let config = DecoderConfig {
        head_dim: latent.rope_dim,
        hidden: fields.size("intermediate_size")?,
        epsilon: fields.number("rms_norm_eps")?,
        biases: attention_biases(fields)?,
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        experts: Some(kimi_experts(fields, layers)?),
        delta: Some(kimi_delta(fields, layers)?),
        latent: Some(latent),
        without_rope: vec![true; layers],
        ..DecoderConfig::new(fields.size("vocab_size")?, layers, features, heads)
    };
    let keys = kimi_keys().and(latent_keys(&config, "kimi_linear"));
    Ok((config, keys.and(llama_keys())))
}

/// Reads the linear attention of Kimi Linear. Published files have its sizes and its layers, counted from 1, in an object.
fn kimi_delta(fields: &Fields, layers: usize) -> Result<DeltaConfig> {
    let (mut heads, mut head_dim) = (fields.size("linear_num_heads")?, fields.size("linear_head_dim")?);
    let mut width = fields.size("linear_conv_kernel_dim")?;
    let mut has_delta: Vec<bool> = (0..layers).map(|layer| layer == 0 || !layer.is_multiple_of(4)).collect();
    if let Some(about) = fields.object_opt("linear_attn_config")? {
        heads = about.size_opt("num_heads")?.unwrap_or(heads);
        head_dim = about.size_opt("head_dim")?.unwrap_or(head_dim);
        width = about.size_opt("short_conv_kernel_size")?.unwrap_or(width);
        if about.has("full_attn_layers") && about.has("kda_layers") {
            let [full, linear] = [about.numbers("full_attn_layers")?, about.numbers("kda_layers")?];
            has_delta = (0..layers).map(|layer| linear.contains(&(layer as f64 + 1.0))).collect();
            if (0..layers).any(|layer| has_delta[layer] == full.contains(&(layer as f64 + 1.0))) {
                return Err(about.error("`full_attn_layers` and `kda_layers` do not have each layer once"));
            }
        }
        about.finish_but_empty()?;
    }
    match fields.list_opt("layer_types")? {
        Some(types) if types.len() != layers => {
            return Err(fields.error(format!("`layer_types` has {} entries for {layers} layers", types.len())));
        }
        Some(types) => has_delta = types.iter().map(|entry| is_linear(entry, fields)).collect::<Result<_>>()?,
        None => {}
    }
    Ok(DeltaConfig {
        key_heads: heads,
        value_heads: heads,
        key_dim: head_dim,
        value_dim: head_dim,
        width,
        rank: Some(head_dim),
        channel_rates: true,
        sigmoid_gates: true,
        layers: has_delta,
        ..DeltaConfig::default()
    })
}

/// Reads the experts of Kimi Linear, whose fields have two names.
fn kimi_experts(fields: &Fields, layers: usize) -> Result<ExpertsConfig> {
    let hidden = fields.size("moe_intermediate_size")?;
    let count = fields.size(present_name(fields, "num_local_experts", "num_experts"))?;
    let shared = fields.size(present_name(fields, "n_shared_experts", "num_shared_experts"))?;
    match fields.text_opt("moe_router_activation_func")? {
        None | Some("sigmoid") => {}
        Some(other) => {
            return Err(fields.error(format!("`moe_router_activation_func` is {other:?}, which is not supported")));
        }
    }
    // The class always chooses groups, and one group has all experts.
    fields.skip(&["use_grouped_topk"]);
    let groups = ExpertGroups {
        count: fields.size(present_name(fields, "n_group", "num_expert_group"))?,
        kept: fields.size("topk_group")?,
        ranked_by: 2,
    };
    Ok(ExpertsConfig {
        per_token: fields.size(present_name(fields, "num_experts_per_tok", "num_experts_per_token"))?,
        scores: RouterScores::Sigmoid,
        groups: Some(groups).filter(|groups| groups.count > 1),
        normalized: fields.flag(present_name(fields, "norm_topk_prob", "moe_renormalize"))?,
        scale: fields.number("routed_scaling_factor")?,
        correction: true,
        shared_hidden: Some(hidden.saturating_mul(shared)),
        capacity_factor: None,
        dense_layers: first_dense_layers(fields, layers)?,
        ..ExpertsConfig::new(count, hidden)
    })
}

/// Returns the names of the linear attention and of the MLPs of Kimi Linear. transformers writes the MLPs of dense layers under
/// the name of the experts, and other programs under the usual name.
fn kimi_keys() -> KeyMap {
    let (attention, moe) = ("model.layers.*.self_attn", "model.layers.*.block_sparse_moe");
    let keys = expert_keys(moe, "gate", ["w1", "w3", "w2"])
        .and(shared_keys(&format!("{moe}.shared_experts")))
        .array("blocks[*].experts.correction", format!("{moe}.gate.e_score_correction_bias"), Layout::Same)
        .array("blocks[*].delta.rate_bias", format!("{attention}.dt_bias"), Layout::Same)
        .array("blocks[*].delta.log_speed", format!("{attention}.A_log"), Layout::Same)
        .scale("blocks[*].delta.norm", &format!("{attention}.o_norm"))
        .linear("blocks[*].delta.gate_down", &format!("{attention}.g_a_proj"))
        .linear("blocks[*].delta.gate", &format!("{attention}.g_b_proj"))
        .linear("blocks[*].delta.forget_down", &format!("{attention}.f_a_proj"))
        .linear("blocks[*].delta.forget", &format!("{attention}.f_b_proj"));
    let keys = separate_delta_keys(keys, attention);
    ["gate", "up", "down"].iter().fold(keys, |keys, part| {
        let (name, usual) = (format!("{moe}.{part}_proj"), of_layer(&format!("mlp.{part}_proj.weight")));
        let keys = keys.linear(&format!("blocks[*].mlp.{part}"), &name);
        keys.absent(&format!("{name}.weight"), &usual, Layout::Transposed)
    })
}

/// Adds the names of linear attention whose queries, keys and values have separate arrays.
fn separate_delta_keys(keys: KeyMap, attention: &str) -> KeyMap {
    let parts = [("query", "q"), ("key", "k"), ("value", "v")];
    let keys = parts.into_iter().fold(keys, |keys, (part, name)| {
        keys.linear(&format!("blocks[*].delta.{part}"), &format!("{attention}.{name}_proj")).array(
            format!("blocks[*].delta.{part}_taps"),
            format!("{attention}.{name}_conv1d.weight"),
            Layout::Transposed,
        )
    });
    keys.linear("blocks[*].delta.write", &format!("{attention}.b_proj"))
        .linear("blocks[*].delta.out", &format!("{attention}.o_proj"))
}

/// Reads OLMo Hybrid. Layers with linear attention normalize their inputs, and layers with attention their outputs.
pub(super) fn olmo(fields: &Fields, _: &str) -> Read {
    let sized = llama_sizes(fields)?;
    only_silu(fields)?;
    let (layers, features) = (sized.layers, sized.features);
    let has_delta = match fields.list_opt("layer_types")? {
        Some(_) => layers_with_linear_attention(fields, layers)?,
        // The last layer has attention if there are so few layers that no other has.
        None => (0..layers).map(|layer| layer % 4 != 3 && (layers > 3 || layer + 1 < layers)).collect(),
    };
    let key_heads = fields.size_opt("linear_num_key_heads")?.unwrap_or(sized.heads);
    let key_dim = match fields.size_opt("linear_key_head_dim")? {
        Some(size) => size,
        None => (0.75 * features as f64 / key_heads as f64) as usize,
    };
    let delta = DeltaConfig {
        key_heads,
        value_heads: fields.size_opt("linear_num_value_heads")?.unwrap_or(sized.heads),
        key_dim,
        value_dim: fields.size_opt("linear_value_head_dim")?.unwrap_or(key_dim.saturating_mul(2)),
        width: fields.size("linear_conv_kernel_dim")?,
        doubles_writes: fields.flag("linear_allow_neg_eigval")?,
        epsilon: Some(1e-5),
        layers: has_delta,
        ..DeltaConfig::default()
    };
    // The numbers that new weights are drawn from.
    fields.skip(&["linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max", "linear_dt_init_floor"]);
    let mut config = DecoderConfig {
        biases: attention_biases(fields)?,
        norm_places: delta.layers.iter().map(norm_place).collect(),
        qk_norm: QkNorm::AllHeads,
        delta: Some(delta.clone()),
        ..sized
    };
    rotary(&mut config, fields, None)?;
    if has_no_base(fields)? {
        config.without_rope = vec![true; layers];
    }
    Ok((config, olmo_keys().and(split_taps(&delta)).and(llama_keys())))
}

/// The place of the norms of a layer of OLMo Hybrid.
fn norm_place(is_linear: &bool) -> NormPlace {
    if *is_linear { NormPlace::Inputs } else { NormPlace::Outputs }
}

/// Returns `true` if the base of rotary positions is null, which means in this class that there are no positions. The object
/// takes precedence.
fn has_no_base(fields: &Fields) -> Result<bool> {
    Ok(match rope_object(fields)? {
        Some(about) if about.has("rope_theta") => false,
        Some(about) if about.is_null("rope_theta") => true,
        _ => fields.is_null("rope_theta"),
    })
}

/// Accepts the convolutions that transformers writes. It divides the channels of queries, keys and values into three arrays of
/// about equal size, whatever their numbers are.
fn split_taps(delta: &DeltaConfig) -> KeyMap {
    let (keys, values) =
        (delta.key_heads.saturating_mul(delta.key_dim), delta.value_heads.saturating_mul(delta.value_dim));
    let total = keys.saturating_mul(2).saturating_add(values);
    let parts = [("q", 0, keys), ("k", keys, keys), ("v", keys.saturating_mul(2), values)];
    let names = parts.map(|(part, ..)| layer(&format!("{part}_conv1d.weight")));
    parts.iter().zip(&names).fold(KeyMap::new(), |map, ((_, start, count), name)| {
        map.unless_shape(name, &[*count, 1, delta.width], &names, Layout::rows(*start, *count, total))
    })
}

/// Returns the names of OLMo Hybrid. transformers writes the norm after attention under the name of the norm before the MLPs of
/// other layers, and other programs under the name of OLMo 3.
fn olmo_keys() -> KeyMap {
    let (attention, written) = ("model.layers.*.linear_attn", of_layer("feedforward_layer_norm"));
    let keys = KeyMap::new()
        .array("blocks[*].delta.rate_bias", layer("dt_bias"), Layout::Same)
        .array("blocks[*].delta.log_speed", layer("A_log"), Layout::Same)
        .scale("blocks[*].delta.norm", &layer("o_norm"))
        .linear("blocks[*].delta.gate", &layer("g_proj"))
        .linear("blocks[*].delta.forget", &layer("a_proj"))
        .scale("blocks[*].norm.0", &of_layer("attention_layer_norm"))
        .scale("blocks[*].mlp_norm.0", &written)
        .scale("blocks[*].post_attention_norm.0", &written)
        .scale("blocks[*].post_mlp_norm.0", &of_layer("post_feedforward_layernorm"));
    separate_delta_keys(keys, attention)
        .absent(&of_layer("attention_layer_norm.weight"), &of_layer("input_layernorm.weight"), Layout::Same)
        .absent(&format!("{written}.weight"), &of_layer("post_attention_layernorm.weight"), Layout::Same)
}
