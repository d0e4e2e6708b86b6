//! Qwen3-Next, Qwen3.5 and Lara Mini.

use super::experts::{dense_layers, expert_keys, experts, shared_keys, stacked_expert_keys, with_stacked_experts};
use super::linear::{layer, layers_with_linear_attention};
use super::llama::{attention_biases, only_silu};
use super::*;
use crate::{AttentionGate, DeltaConfig, ExpertsConfig};

/// Reads Qwen3-Next and Qwen3.5. Most layers have linear attention, and the others gated attention.
pub(super) fn read(fields: &Fields, kind: &str) -> Read {
    let sized = llama_sizes(fields)?;
    only_silu(fields)?;
    let layers = sized.layers;
    let has_delta = layers_with_linear_attention(fields, layers)?;
    if kind != "qwen3_next" {
        // Properties of all models of these types, which their classes do not read, and layers for training.
        fields.skip(&["attn_output_gate", "mamba_ssm_dtype", "mlp_only_layers", "norm_topk_prob"]);
        fields.skip(&["mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"]);
    }
    let delta = delta_sizes(fields, has_delta)?;
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
        .and(other_delta_keys(&delta))
        // Layers that predict additional tokens in training.
        .ignore("mtp.**");
    let hidden = config.experts.as_ref().map_or(0, |experts| experts.hidden);
    Ok((config, with_stacked_experts(keys, "model.layers.*.mlp", hidden).and(llama_keys())))
}

/// Reads the sizes of linear attention, which these layers have.
fn delta_sizes(fields: &Fields, layers: Vec<bool>) -> Result<DeltaConfig> {
    Ok(DeltaConfig {
        key_heads: fields.size("linear_num_key_heads")?,
        value_heads: fields.size("linear_num_value_heads")?,
        key_dim: fields.size("linear_key_head_dim")?,
        value_dim: fields.size("linear_value_head_dim")?,
        width: fields.size("linear_conv_kernel_dim")?,
        layers,
        ..DeltaConfig::default()
    })
}

/// Reads Lara Mini, in which layers have linear attention, attention with a window, or attention without positions.
pub(super) fn lara_mini(fields: &Fields, _: &str) -> Read {
    let sized = llama_sizes(fields)?;
    only_silu(fields)?;
    let layers = sized.layers;
    let types: Vec<&str> = match fields.list_opt("layer_types")? {
        Some(list) if list.len() != layers => {
            return Err(fields.error(format!("`layer_types` has {} entries for {layers} layers", list.len())));
        }
        Some(list) => list.iter().map(|entry| entry.as_str().unwrap_or_default()).collect(),
        None => (0..layers).map(|layer| LARA_LAYERS[layer % LARA_LAYERS.len()]).collect(),
    };
    if let Some(other) = types.iter().find(|kind| !LARA_LAYERS.contains(kind)) {
        return Err(fields.error(format!("`layer_types` has the layer type {other:?}, which is not supported")));
    }
    let window = fields.size("sliding_window")?;
    let delta = delta_sizes(fields, types.iter().map(|kind| *kind == "linear_attention").collect())?;
    let hidden = fields.size("moe_intermediate_size")?;
    let chosen = ExpertsConfig {
        normalized: fields.flag("norm_topk_prob")?,
        shared_hidden: Some(fields.size("shared_expert_intermediate_size")?),
        ..experts(fields, fields.size("num_experts")?, hidden)?
    };
    let mut config = DecoderConfig {
        biases: attention_biases(fields)?,
        qk_norm: QkNorm::Head,
        windows: types.iter().map(|kind| (*kind == "sliding_attention").then_some(window)).collect(),
        without_rope: types.iter().map(|kind| *kind == "full_attention").collect(),
        delta: Some(delta.clone()),
        experts: Some(chosen),
        ..sized
    };
    rotary(&mut config, fields, None)?;
    let keys = stacked_expert_keys("model.layers.*.mlp", "gate", hidden)
        .and(shared_keys("model.layers.*.mlp.shared_expert"))
        // Files have this name, and transformers' class has the name of `other_delta_keys`.
        .scale("blocks[*].delta.norm", &layer("out_norm"))
        .and(joined_delta_keys(&delta))
        .and(other_delta_keys(&delta))
        .alias("linear_attn.out_norm.weight", "linear_attn.norm.weight");
    Ok((config, keys.and(llama_keys())))
}

/// The types of Lara Mini's layers, which repeat.
const LARA_LAYERS: [&str; 5] =
    ["linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention"];

/// Returns the names of the inputs of linear attention whose files have one matrix for all of them.
fn joined_delta_keys(delta: &DeltaConfig) -> KeyMap {
    let (keys, values) =
        (delta.key_heads.saturating_mul(delta.key_dim), delta.value_heads.saturating_mul(delta.value_dim));
    let sizes = [
        ("query", keys),
        ("key", keys),
        ("value", values),
        ("gate", values),
        ("write", delta.value_heads),
        ("forget", delta.value_heads),
    ];
    let total = sizes.iter().fold(0usize, |sum, (_, size)| sum.saturating_add(*size));
    let mut start = 0usize;
    sizes.into_iter().fold(KeyMap::new(), |map, (part, size)| {
        let rows = Layout::rows(start, size, total);
        start = start.saturating_add(size);
        map.weights(&format!("blocks[*].delta.{part}"), &layer("in_proj"), rows)
    })
}

/// Returns the names of the arrays of linear attention after its inputs.
fn other_delta_keys(delta: &DeltaConfig) -> KeyMap {
    joined_taps(delta)
        .array("blocks[*].delta.rate_bias", layer("dt_bias"), Layout::Same)
        .array("blocks[*].delta.log_speed", layer("A_log"), Layout::Same)
        .scale("blocks[*].delta.norm", &layer("norm"))
        .linear("blocks[*].delta.out", &layer("out_proj"))
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
