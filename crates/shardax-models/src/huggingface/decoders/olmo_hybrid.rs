//! OLMo Hybrid.

use super::super::rope::rope_object;
use super::linear::{layer, layers_with_linear_attention, separate_delta_keys};
use super::llama::{attention_biases, only_silu};
use super::*;
use crate::{DeltaConfig, NormPlace};

/// Reads OLMo Hybrid. Layers with linear attention normalize their inputs, and layers with attention their outputs.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
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
