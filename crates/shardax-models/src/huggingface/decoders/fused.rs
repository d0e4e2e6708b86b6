//! Models with Llama's blocks whose files store several matrices as one.

use super::llama::interleave;
use super::*;

pub(super) fn read(fields: &Fields, kind: &str) -> Read {
    match kind {
        "phi3" => phi3(fields),
        _ => glm(fields, kind),
    }
}

/// Returns the names of an MLP whose gate and first layer are stored as one matrix.
fn fused_mlp(hidden: usize) -> KeyMap {
    let joined_rows = hidden.saturating_mul(2);
    KeyMap::new()
        .weights("blocks[*].mlp.gate", "model.layers.*.mlp.gate_up_proj", Layout::rows(0, hidden, joined_rows))
        .weights("blocks[*].mlp.up", "model.layers.*.mlp.gate_up_proj", Layout::rows(hidden, hidden, joined_rows))
}

fn phi3(fields: &Fields) -> Read {
    let mut config = llama_sizes(fields)?;
    config.windows = window_of_all(fields, config.layers, fields.size_opt("sliding_window")?)?;
    rotary(&mut config, fields, Some(1.0))?;
    // This is the length before the extension to long contexts. Only scaled rotary positions use it.
    fields.skip(&["original_max_position_embeddings"]);
    let (wide, narrow) =
        (config.heads.saturating_mul(config.head_dim), config.kv_heads.saturating_mul(config.head_dim));
    let joined_rows = wide.saturating_add(narrow.saturating_mul(2));
    let qkv = "model.layers.*.self_attn.qkv_proj";
    let keys = fused_mlp(config.hidden)
        .weights("blocks[*].attention.query", qkv, Layout::rows(0, wide, joined_rows))
        .weights("blocks[*].attention.key", qkv, Layout::rows(wide, narrow, joined_rows))
        .weights("blocks[*].attention.value", qkv, Layout::rows(wide.saturating_add(narrow), narrow, joined_rows));
    Ok((config, keys.and(llama_keys())))
}

fn glm(fields: &Fields, kind: &str) -> Read {
    let is_of_images = matches!(kind, "glm4v_text" | "glm_ocr_text");
    let has_biases = if is_of_images { kind == "glm4v_text" } else { fields.flag("attention_bias")? };
    let mut config = DecoderConfig {
        biases: Biases { qkv: has_biases, ..Biases::NONE },
        post_norms: kind != "glm",
        ..llama_sizes(fields)?
    };
    if kind == "glm4v_text" && config.heads.checked_mul(config.head_dim) != Some(config.features) {
        // The class computes the frequencies for this size, but divides the features by the heads.
        return Err(fields.error(format!("`head_dim` is {}, which is not the size of a head", config.head_dim)));
    }
    rotary(&mut config, fields, Some(if is_of_images { 1.0 } else { 0.5 }))?;
    interleave(&mut config);
    let keys = fused_mlp(config.hidden)
        .scale("blocks[*].post_attention_norm.0", "model.layers.*.post_self_attn_layernorm")
        .scale("blocks[*].post_mlp_norm.0", "model.layers.*.post_mlp_layernorm");
    Ok((config, keys.and(llama_keys())))
}
