//! Ling 3.

use super::experts::present_name;
use super::kimi::{in_delta_layers, kimi_experts};
use super::latent::{attention_growth, latent_attention_keys, latent_keys};
use super::linear::{is_linear, separate_delta_keys};
use super::llama::{attention_biases, interleave, only_silu};
use super::*;
use crate::{DeltaConfig, LatentConfig, LatentGate};

/// Reads Ling 3. Most layers have the linear attention of Kimi Linear, and the others latent attention with factors of heads.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
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
        gate: Some(LatentGate::Heads),
        scales_latents: false,
    };
    let depth = latent.key_dim.saturating_add(latent.rope_dim);
    // Each head has its own key, and the layers after the last one predict additional tokens in training.
    fields.skip(&["num_key_value_heads", "qk_head_dim", "num_nextn_predict_layers", "num_mtp_layers"]);
    fields.skip(&["mtp_loss_scaling_factor", "model_max_length"]);
    let mut config = DecoderConfig {
        head_dim: latent.rope_dim,
        hidden: fields.size("intermediate_size")?,
        epsilon: fields.number("rms_norm_eps")?,
        biases: attention_biases(fields)?,
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        experts: Some(kimi_experts(fields, layers)?),
        delta: Some(delta(fields, layers, heads)?),
        attention_scale: Some((depth as f64).sqrt().recip() * attention_growth(fields)?),
        latent: Some(latent),
        ..DecoderConfig::new(fields.size("vocab_size")?, layers, features, heads)
    };
    rotary(&mut config, fields, None)?;
    interleave(&mut config);
    let keys = keys(&config);
    Ok((config, keys))
}

/// Reads the linear attention, which has as many heads as the latent attention.
fn delta(fields: &Fields, layers: usize, heads: usize) -> Result<DeltaConfig> {
    let interval = fields.size("layer_group_size")?;
    let has_delta = match fields.list_opt("layer_types")? {
        Some(types) if types.len() != layers => {
            return Err(fields.error(format!("`layer_types` has {} entries for {layers} layers", types.len())));
        }
        Some(types) => types.iter().map(|entry| is_linear(entry, fields)).collect::<Result<Vec<bool>>>()?,
        None => (0..layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect(),
    };
    // transformers writes the first name of each size, and in the other field of heads the features of latent attention.
    let head_dim = fields.size(present_name(fields, "head_dim", "linear_head_dim"))?;
    let head_dim = fields.size_opt("linear_head_dim")?.unwrap_or(head_dim);
    let width = fields.size("short_conv_kernel_size")?;
    let heads = fields.size_opt("linear_num_heads")?.unwrap_or(heads);
    Ok(DeltaConfig {
        key_heads: heads,
        value_heads: heads,
        key_dim: head_dim,
        value_dim: head_dim,
        width: fields.size_opt("linear_conv_kernel_dim")?.unwrap_or(width),
        channel_rates: true,
        rate_bound: if fields.flag("kda_safe_gate")? { Some(fields.number("kda_lower_bound")?) } else { None },
        sigmoid_gates: true,
        layers: has_delta,
        ..DeltaConfig::default()
    })
}

/// Returns the names of the arrays.
fn keys(config: &DecoderConfig) -> KeyMap {
    let attention = "model.layers.*.attention";
    let delta_keys = KeyMap::new()
        .linear("blocks[*].delta.out", &format!("{attention}.dense"))
        .linear("blocks[*].delta.gate", &format!("{attention}.g_proj"))
        .linear("blocks[*].delta.forget", &format!("{attention}.f_proj"))
        .array("blocks[*].delta.rate_bias", format!("{attention}.dt_bias"), Layout::Same)
        .array("blocks[*].delta.log_speed", format!("{attention}.A_log"), Layout::Same)
        .scale("blocks[*].delta.norm", &format!("{attention}.o_norm"));
    let keys = in_delta_layers(separate_delta_keys(delta_keys, attention), config)
        .linear("blocks[*].latent.out", &format!("{attention}.dense"))
        .linear("blocks[*].latent.gate", &format!("{attention}.g_proj"))
        .array("blocks[*].experts.correction", of_layer("mlp.gate.expert_bias"), Layout::Same)
        .and(latent_attention_keys(config, attention));
    let keys = keys.and(latent_keys(config, "bailing_hybrid")).and(llama_keys());
    keys.renamed("model.embed_tokens.", "model.word_embeddings.")
}
