//! Models with Llama's blocks whose files store several matrices as one.

use super::llama::interleave;
use super::*;

pub(super) fn read(fields: &Fields, kind: &str) -> Read {
    match kind {
        "phi3" | "phi4_multimodal" | "phi4mm" => phi3(fields, kind),
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

fn phi3(fields: &Fields, kind: &str) -> Read {
    let mut config = llama_sizes(fields)?;
    if kind != "phi3" {
        // Only the text is read.
        fields.skip(&["vision_config", "audio_config", "embd_layer", "img_processor", "audio_processor"]);
        fields.skip(&["vision_lora", "speech_lora", "full_attn_mod", "interpolate_factor"]);
    }
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
    Ok((config, without_adapters(keys).and(llama_keys())))
}

/// Ignores the arrays of images and sounds of Phi-4, whose adapters have no effect on texts.
fn without_adapters(keys: KeyMap) -> KeyMap {
    let layers = ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"];
    layers.into_iter().fold(keys.ignore("model.embed_tokens_extend.**"), |keys, layer| {
        let keys = keys.alias(&format!("{layer}.weight"), &format!("{layer}.base_layer.weight"));
        ["lora_A.speech", "lora_A.vision", "lora_B.speech", "lora_B.vision"]
            .into_iter()
            .fold(keys, |keys, part| keys.ignore(&of_layer(&format!("{layer}.{part}.weight"))))
    })
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
