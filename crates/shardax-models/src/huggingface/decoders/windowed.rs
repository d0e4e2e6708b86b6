//! Mixtures of experts with norms of queries and keys, and with windows in some layers.

use shardax_nn::RouterScores;

use super::experts::{
    dense_layers, expert_keys, experts as sized_experts, listed_dense_layers, shared_keys, with_stacked_experts,
};
use super::gemma::ropes;
use super::llama::attention_biases;
use super::*;
use crate::AttentionGate;

/// Reads mixtures of experts with norms of queries and keys, and with windows in some layers.
pub(super) fn experts(fields: &Fields, kind: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let (layers, hidden) = (sized.layers, fields.size("moe_intermediate_size")?);
    // Newer versions have renamed the field.
    let count = fields.size(if fields.has("num_local_experts") { "num_local_experts" } else { "num_experts" })?;
    let mut chosen = sized_experts(fields, count, hidden)?;
    chosen.scores = if kind == "mellum" { RouterScores::Softmax } else { RouterScores::Sigmoid };
    chosen.normalized = match kind {
        "mellum" | "flint" => fields.flag("norm_topk_prob")?,
        _ => true,
    };
    chosen.correction = matches!(kind, "afmoe" | "hy_v3");
    let biases = match kind {
        // Gates share the biases of queries here, but have none in this class. The field is not read, so true is rejected.
        "afmoe" => Biases::NONE,
        _ => attention_biases(fields)?,
    };
    let mut config = DecoderConfig { biases, qk_norm: QkNorm::Head, ..sized };
    match kind {
        "flint" => {
            chosen.shared_hidden = Some(fields.size("shared_expert_intermediate_size")?);
            chosen.dense_layers = if fields.has("mlp_only_layers") {
                dense_layers(fields, layers)?
            } else {
                (0..layers).map(|layer| layer < 2).collect()
            };
            config.sinks = true;
        }
        "mellum" => chosen.dense_layers = listed_dense_layers(fields, layers, 0)?,
        "hy_v3" => {
            chosen.dense_layers = listed_dense_layers(fields, layers, 1)?;
            chosen.shared_hidden = Some(hidden.saturating_mul(fields.size("num_shared_experts")?));
            chosen.scale = fields.number("router_scaling_factor")?;
            config.biases.mlp = fields.flag("mlp_bias")?;
            // The dtype of a sum.
            fields.skip(&["enable_moe_fp32_combine"]);
        }
        _ => {
            let first = fields.number("num_dense_layers")?;
            chosen.dense_layers = (0..layers).map(|layer| (layer as f64) < first).collect();
            chosen.shared_hidden = Some(hidden.saturating_mul(fields.size("num_shared_experts")?));
            chosen.scale = fields.number("route_scale")?;
            config.attention_gate = Some(AttentionGate::default());
            config.post_norms = true;
            config.embedding_scale = fields.flag("mup_enabled")?.then(|| (config.features as f64).sqrt());
        }
    }
    config.experts = Some(chosen);
    set_positions_and_windows(&mut config, fields, kind)?;
    let keys = keys_of_experts(kind, layers);
    Ok((config, with_stacked_experts(keys, "model.layers.*.mlp", hidden).and(llama_keys())))
}

/// Sets the rotary positions and the windows of mixtures of experts.
fn set_positions_and_windows(config: &mut DecoderConfig, fields: &Fields, kind: &str) -> Result<()> {
    let (layers, window) = (config.layers, fields.size_opt("sliding_window")?);
    match kind {
        "hy_v3" => rotary(config, fields, None)?,
        "mellum" => {
            config.windows = windows(fields, layers, window, |_| false)?;
            // The class ignores the older name of the base.
            fields.skip(&["rope_theta"]);
            let [global, local] = ropes(fields, config.head_dim, ([None, None], [500_000.0, 10_000.0]))?;
            (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
        }
        _ => {
            let interval = fields.size_opt("global_attn_every_n_layers")?.unwrap_or(4);
            config.windows = windows(fields, layers, window, |layer| match kind {
                "flint" => layer >= 2 && layer % 4 != 1 && layer + 1 != layers,
                _ => !(layer + 1).is_multiple_of(interval),
            })?;
            rotary(config, fields, None)?;
            config.without_rope = config.windows.iter().map(Option::is_none).collect();
        }
    }
    Ok(())
}

/// Returns the names of the arrays of mixtures of experts.
fn keys_of_experts(kind: &str, layers: usize) -> KeyMap {
    let layer = "model.layers.*.mlp";
    let (router, shared) = match kind {
        "afmoe" => ("router.gate", "shared_experts"),
        "hy_v3" => ("router.gate", "shared_mlp"),
        _ => ("gate", "shared_expert"),
    };
    let attention = "model.layers.*.self_attn";
    let keys = expert_keys(layer, router, ["gate_proj", "up_proj", "down_proj"])
        .and(shared_keys(&format!("{layer}.{shared}")))
        .array("blocks[*].experts.correction", format!("{layer}.expert_bias"), Layout::Same)
        .array("blocks[*].attention.sinks", format!("{attention}.softmax_offset"), Layout::Same)
        .alias("softmax_offset", "sinks")
        .linear("blocks[*].attention.gate", &format!("{attention}.gate_proj"));
    match kind {
        "afmoe" => keys
            .scale("blocks[*].post_attention_norm.0", "model.layers.*.post_attention_layernorm")
            .scale("blocks[*].mlp_norm.0", "model.layers.*.pre_mlp_layernorm")
            .scale("blocks[*].post_mlp_norm.0", "model.layers.*.post_mlp_layernorm"),
        _ => keys.ignore("mtp.**").ignore("model.mtp.**").ignore(&format!("model.layers.{layers}.**")),
    }
}
