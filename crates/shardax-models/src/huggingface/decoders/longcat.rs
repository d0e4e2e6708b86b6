//! LongCat Flash.

use super::experts::{expert_keys, present_name};
use super::latent::{attention_growth, latent_attention_keys};
use super::llama::{attention_biases, interleave};
use super::*;
use crate::{ExpertsConfig, LatentConfig};

/// The most experts that return their input. The names of their arrays are listed, so that a larger number of a damaged file would
/// take time and memory.
const MAX_IDENTITIES: usize = 65_536;

/// Reads LongCat Flash. A layer of the file is two blocks: experts have the input of the first MLP, and their output is added
/// after the second MLP.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    let (features, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    let layers = fields.layers("num_layers")?;
    let blocks = layers * 2;
    if fields.has("num_hidden_layers") {
        fields.check_size("num_hidden_layers", blocks)?;
    }
    let latent = LatentConfig {
        query_rank: Some(fields.size("q_lora_rank")?),
        rank: fields.size("kv_lora_rank")?,
        key_dim: fields.size("qk_nope_head_dim")?,
        rope_dim: fields.size("qk_rope_head_dim")?,
        value_dim: fields.size("v_head_dim")?,
        sparse: None,
        gate: None,
        scales_latents: true,
    };
    let depth = latent.key_dim.saturating_add(latent.rope_dim);
    check_options(fields, &latent, depth)?;
    let mut config = DecoderConfig {
        head_dim: latent.rope_dim,
        hidden: fields.size(present_name(fields, "ffn_hidden_size", "intermediate_size"))?,
        epsilon: fields.number("rms_norm_eps")?,
        activation: fields.activation("hidden_act")?,
        biases: attention_biases(fields)?,
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        experts: Some(experts(fields, blocks)?),
        attention_scale: Some((depth as f64).sqrt().recip() * attention_growth(fields)?),
        latent: Some(latent),
        ..DecoderConfig::new(fields.size("vocab_size")?, blocks, features, heads)
    };
    rotary(&mut config, fields, None)?;
    interleave(&mut config);
    let keys = keys(&config, layers);
    Ok((config, keys))
}

/// Checks fields that the class does not read, or whose other values it cannot compute.
fn check_options(fields: &Fields, latent: &LatentConfig, depth: usize) -> Result<()> {
    fields.check_size("head_dim", latent.rope_dim)?;
    if fields.has("qk_head_dim") {
        fields.check_size("qk_head_dim", depth)?;
    }
    for name in ["mla_scale_q_lora", "mla_scale_kv_lora"] {
        if !fields.flag_or(name, true)? {
            return Err(
                fields.error(format!("`{name}` is false, but this model multiplies latent vectors by a factor"))
            );
        }
    }
    for (name, only) in [("zero_expert_type", "identity"), ("attention_method", "MLA")] {
        if let Some(other) = fields.text_opt(name)?.filter(|text| *text != only) {
            return Err(fields.error(format!("`{name}` is {other:?}, but this model supports only {only:?}")));
        }
    }
    // Each head has its own key.
    fields.skip(&["num_key_value_heads"]);
    Ok(())
}

/// Reads the experts. Some of them return their input.
fn experts(fields: &Fields, blocks: usize) -> Result<ExpertsConfig> {
    let count = fields.size(present_name(fields, "n_routed_experts", "num_local_experts"))?;
    let hidden = fields.size(present_name(fields, "expert_ffn_hidden_size", "moe_intermediate_size"))?;
    Ok(ExpertsConfig {
        per_token: fields.size(present_name(fields, "moe_topk", "num_experts_per_tok"))?,
        normalized: false,
        scale: fields.number("routed_scaling_factor")?,
        correction: true,
        identities: identities(fields)?,
        delayed: true,
        capacity_factor: None,
        dense_layers: (0..blocks).map(|block| block % 2 == 1).collect(),
        ..ExpertsConfig::new(count, hidden)
    })
}

/// Reads the number of experts that return their input.
fn identities(fields: &Fields) -> Result<usize> {
    match fields.natural_or("zero_expert_num", 0)? {
        count if count > MAX_IDENTITIES => {
            Err(fields.error(format!("field `zero_expert_num` is {count}, but can be at most {MAX_IDENTITIES}")))
        }
        count => Ok(count),
    }
}

/// Returns the names of the arrays of both blocks of each layer.
fn keys(config: &DecoderConfig, layers: usize) -> KeyMap {
    let layer = "model.layers.*.mlp";
    let experts = expert_keys(layer, "router.classifier", ["gate_proj", "up_proj", "down_proj"]).array(
        "blocks[*].experts.correction",
        format!("{layer}.router.e_score_correction_bias"),
        Layout::Same,
    );
    let keys = (0..2).fold(KeyMap::new(), |keys, part| {
        let mlp = format!("{layer}s.{part}");
        let block = latent_attention_keys(config, &format!("model.layers.*.self_attn.{part}"))
            .scale("blocks[*].norm.0", &of_layer(&format!("input_layernorm.{part}")))
            .scale("blocks[*].mlp_norm.0", &of_layer(&format!("post_attention_layernorm.{part}")))
            .linear("blocks[*].mlp.gate", &format!("{mlp}.gate_proj"))
            .linear("blocks[*].mlp.up", &format!("{mlp}.up_proj"))
            .linear("blocks[*].mlp.down", &format!("{mlp}.down_proj"))
            .and(if part == 0 { experts.clone() } else { KeyMap::new() });
        keys.and(block.with_layers((0..layers).map(|layer| (2 * layer + part, layer))))
    });
    // Layers that predict additional tokens in training.
    let keys = keys.ignore("model.mtp.**").and(llama_keys());
    // transformers writes gates of the experts that return their input, which nothing reads.
    let (count, identities) = config.experts.as_ref().map_or((0, 0), |experts| (experts.count, experts.identities));
    (count..count.saturating_add(identities)).fold(keys, |keys, expert| {
        ["gate", "up"]
            .iter()
            .fold(keys, |keys, part| keys.ignore(&format!("{layer}.experts.{expert}.{part}_proj.weight")))
    })
}
