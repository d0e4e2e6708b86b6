//! Kolibri, a mixture of experts with norms of inputs and outputs.

use shardax_nn::RouterScores;

use super::experts::{expert_keys, experts, shared_keys, with_stacked_experts};
use super::*;
use crate::ExpertsConfig;

/// Reads Kolibri, whose router chooses experts by corrected logits.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let hidden = fields.size("moe_intermediate_size")?;
    let count = fields.size(if fields.has("num_local_experts") { "num_local_experts" } else { "num_experts" })?;
    let chosen = ExpertsConfig {
        scores: RouterScores::SigmoidOfLogits,
        normalized: fields.flag("norm_topk_prob")?,
        correction: true,
        shared_hidden: Some(fields.size("shared_expert_intermediate_size")?),
        ..experts(fields, count, hidden)?
    };
    let mut config = DecoderConfig { post_norms: true, qk_norm: QkNorm::Head, experts: Some(chosen), ..sized };
    rotary(&mut config, fields, None)?;
    let window = fields.size_opt("sliding_window")?;
    config.windows = windows(fields, config.layers, window, |layer| !(layer + 1).is_multiple_of(5))?;
    // The layers without a window have no positions, unless no layer can have one.
    if window.is_some() {
        config.without_rope = config.windows.iter().map(Option::is_none).collect();
    }
    let layer = "model.layers.*.mlp";
    let keys = expert_keys(layer, "gate", ["gate_proj", "up_proj", "down_proj"])
        .and(shared_keys(&format!("{layer}.shared_experts")))
        .array("blocks[*].experts.correction", of_layer("moe.router.expert_bias"), Layout::Same)
        .scale("blocks[*].post_attention_norm.0", &of_layer("post_attn_norm"))
        .scale("blocks[*].post_mlp_norm.0", &of_layer("post_ffn_norm"))
        // The names in transformers' class, which has the others in its files.
        .alias("moe.router.expert_bias", "mlp.gate.e_score_correction_bias")
        .alias("post_attn_norm.weight", "post_self_attn_layernorm.weight")
        .alias("post_ffn_norm.weight", "post_mlp_layernorm.weight");
    Ok((config, with_stacked_experts(keys, layer, hidden).and(llama_keys())))
}
