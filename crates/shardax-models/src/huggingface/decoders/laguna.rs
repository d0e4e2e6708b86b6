//! Laguna, and models with similar layers: numbers of heads that differ between layers, gated attention, and experts.

use shardax_nn::RouterScores;

use super::experts::{expert_keys, experts as sized_experts, listed_dense_layers, shared_keys, with_stacked_experts};
use super::gemma::ropes_by_type;
use super::llama::attention_biases;
use super::*;
use crate::{AttentionGate, ExpertsConfig};

/// Reads Laguna, whose layers have different numbers of heads and gated attention, and most of them experts.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let (layers, hidden) = (sized.layers, fields.size("moe_intermediate_size")?);
    let count = fields.size(if fields.has("num_local_experts") { "num_local_experts" } else { "num_experts" })?;
    if let Some(bound) = fields.number_opt("moe_router_logit_softcapping")?.filter(|bound| *bound > 0.0) {
        return Err(
            fields.error(format!("`moe_router_logit_softcapping` is {bound}, but bounded scores are not supported"))
        );
    }
    let per_head = !matches!(fields.value("gating").and_then(|value| value.as_str()), Some(name) if name != "per-head")
        && fields.value("gating").and_then(|value| value.as_bool()) != Some(false);
    let mut config = DecoderConfig {
        biases: attention_biases(fields)?,
        qk_norm: QkNorm::Head,
        attention_gate: Some(AttentionGate { per_head, softplus: true, ..AttentionGate::default() }),
        experts: Some(ExpertsConfig {
            scores: RouterScores::Sigmoid,
            correction: true,
            scale: fields.number("moe_routed_scaling_factor")?,
            shared_hidden: Some(fields.size("shared_expert_intermediate_size")?),
            dense_layers: listed_dense_layers(fields, layers, 1)?,
            ..sized_experts(fields, count, hidden)?
        }),
        ..sized
    };
    config.windows = windows(fields, layers, fields.size_opt("sliding_window")?, |_| false)?;
    if let Some(list) = fields.list_opt("num_attention_heads_per_layer")? {
        let heads: Option<Vec<usize>> = list.iter().map(|heads| heads.as_u64()?.try_into().ok()).collect();
        let Some(heads) = heads.filter(|heads| heads.len() == layers && !heads.contains(&0)) else {
            return Err(fields.error("`num_attention_heads_per_layer` must have a positive number for each layer"));
        };
        config.layer_heads = heads.into_iter().map(|heads| crate::HeadSizes { heads, ..config.heads_of(0) }).collect();
    }
    let features = (config.head_dim / 2).max(2);
    let defaults = [shardax_nn::Rope::new(500_000.0).rotary_dim(features), shardax_nn::Rope::new(10_000.0)];
    let [global, local] = ropes_by_type(fields, [config.head_dim; 2], defaults, Some(1.0))?;
    (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
    // The class reads only the bases in the objects.
    fields.skip(&["rope_theta"]);
    // All biases of attention, except for the gate's.
    if config.biases.qkv {
        return Err(fields.error("`attention_bias` is true, but gates without biases are not supported with it"));
    }
    let layer = "model.layers.*.mlp";
    let keys = expert_keys(layer, "gate", ["gate_proj", "up_proj", "down_proj"])
        .and(shared_keys(&format!("{layer}.shared_expert")))
        .array("blocks[*].experts.correction", format!("{layer}.experts.e_score_correction_bias"), Layout::Same)
        .linear("blocks[*].attention.gate", "model.layers.*.self_attn.g_proj");
    Ok((config, with_stacked_experts(keys, layer, hidden).and(llama_keys())))
}
