//! Beam.

use shardax_nn::{ExpertGroups, QueryGrowth, Rope, RouterScores};

use super::cohere::set_ropes_by_type;
use super::experts::{expert_keys, experts, listed_dense_layers, with_stacked_experts};
use super::llama::attention_biases;
use super::*;
use crate::{AttentionGate, ExpertsConfig, ResidualSums};

/// Reads Beam, a mixture of experts whose sums have weights that depend on their depth. Layers have windows, or no positions and
/// queries that grow with their position.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let (layers, hidden) = (sized.layers, fields.size("moe_intermediate_size")?);
    let groups = ExpertGroups { count: fields.size("n_group")?, kept: fields.size("topk_group")?, ranked_by: 2 };
    let mut config = DecoderConfig {
        biases: attention_biases(fields)?,
        qk_norm: QkNorm::Head,
        post_norms: true,
        sums: ResidualSums::ByDepth,
        attention_gate: Some(AttentionGate { head_bias: true, ..AttentionGate::default() }),
        logits_soft_cap: fields.number_opt("final_logit_softcapping")?,
        query_growth: Some(QueryGrowth { rate: 0.1, length: 2048.0, offset: 1.0, power: true }),
        experts: Some(ExpertsConfig {
            scores: RouterScores::Sigmoid,
            groups: Some(groups).filter(|groups| groups.count > 1),
            normalized: fields.flag("norm_topk_prob")?,
            scale: fields.number("routed_scaling_factor")?,
            correction: true,
            dense_layers: listed_dense_layers(fields, layers, 3)?,
            ..experts(fields, fields.size("num_experts")?, hidden)?
        }),
        ..sized
    };
    let window = fields.size_opt("sliding_window")?;
    config.windows = windows(fields, layers, window, |layer| !(layer + 1).is_multiple_of(6) && layer + 1 != layers)?;
    set_ropes_by_type(&mut config, fields, Some([None, Some(Rope::default())]))?;
    if !config.without_rope.contains(&true) {
        config.query_growth = None;
    }
    // The class reads only the bases in the objects.
    fields.skip(&["rope_theta"]);
    let attention = "model.layers.*.self_attn";
    let keys = expert_keys("model.layers.*.mlp", "gate", ["gate_proj", "up_proj", "down_proj"])
        .array("blocks[*].experts.correction", of_layer("mlp.gate.e_score_correction_bias"), Layout::Same)
        .linear("blocks[*].attention.gate", &format!("{attention}.gate_proj"))
        .array("blocks[*].attention.gate_bias", format!("{attention}.gate_bias"), Layout::Same)
        .scale("blocks[*].post_attention_norm.0", &of_layer("post_attention_layernorm"))
        .scale("blocks[*].mlp_norm.0", &of_layer("pre_feedforward_layernorm"))
        .scale("blocks[*].post_mlp_norm.0", &of_layer("post_feedforward_layernorm"));
    Ok((config, with_stacked_experts(keys, "model.layers.*.mlp", hidden).and(llama_keys())))
}
