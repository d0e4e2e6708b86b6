//! Kimi Linear.

use shardax_nn::{ExpertGroups, RouterScores};

use super::experts::{expert_keys, first_dense_layers, present_name, shared_keys};
use super::latent::latent_keys;
use super::linear::{is_linear, separate_delta_keys};
use super::llama::{attention_biases, only_silu};
use super::*;
use crate::{DeltaConfig, ExpertsConfig, LatentConfig};

/// Reads Kimi Linear. Most layers have linear attention with rates of forgetting for each feature, and the others latent
/// attention without positions.
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
        gate: None,
        scales_latents: false,
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
    let keys = delta_keys(&config).and(mlp_keys()).and(latent_keys(&config, "kimi_linear"));
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
    // Files that transformers has written have a list of types instead.
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
pub(super) fn kimi_experts(fields: &Fields, layers: usize) -> Result<ExpertsConfig> {
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

/// Returns the names of the linear attention of Kimi Linear.
fn delta_keys(config: &DecoderConfig) -> KeyMap {
    let attention = "model.layers.*.self_attn";
    let keys = KeyMap::new()
        .array("blocks[*].delta.rate_bias", format!("{attention}.dt_bias"), Layout::Same)
        .array("blocks[*].delta.log_speed", format!("{attention}.A_log"), Layout::Same)
        .scale("blocks[*].delta.norm", &format!("{attention}.o_norm"))
        .linear("blocks[*].delta.gate_down", &format!("{attention}.g_a_proj"))
        .linear("blocks[*].delta.gate", &format!("{attention}.g_b_proj"))
        .linear("blocks[*].delta.forget_down", &format!("{attention}.f_a_proj"))
        .linear("blocks[*].delta.forget", &format!("{attention}.f_b_proj"));
    in_delta_layers(separate_delta_keys(keys, attention), config)
}

/// Restricts names to the layers with linear attention. Arrays of the other layers have some of these names too, and an adapter
/// finds its layers by their names.
pub(super) fn in_delta_layers(keys: KeyMap, config: &DecoderConfig) -> KeyMap {
    let has_delta = config.delta.iter().flat_map(|delta| delta.layers.iter().enumerate());
    keys.with_layers(has_delta.filter(|(_, has_delta)| **has_delta).map(|(layer, _)| (layer, layer)))
}

/// Returns the names of the MLPs of Kimi Linear. transformers writes the MLPs of dense layers under the name of the experts, and
/// other programs under the usual name.
fn mlp_keys() -> KeyMap {
    let moe = "model.layers.*.block_sparse_moe";
    let keys = expert_keys(moe, "gate", ["w1", "w3", "w2"]).and(shared_keys(&format!("{moe}.shared_experts"))).array(
        "blocks[*].experts.correction",
        format!("{moe}.gate.e_score_correction_bias"),
        Layout::Same,
    );
    ["gate", "up", "down"].iter().fold(keys, |keys, part| {
        let (name, usual) = (format!("{moe}.{part}_proj"), of_layer(&format!("mlp.{part}_proj.weight")));
        let keys = keys.linear(&format!("blocks[*].mlp.{part}"), &name);
        keys.absent(&format!("{name}.weight"), &usual, Layout::Transposed)
    })
}
