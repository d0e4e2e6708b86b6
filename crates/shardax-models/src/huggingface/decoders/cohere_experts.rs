//! Cohere's mixture of experts.

use shardax_nn::RouterScores;

use super::experts::{expert_keys, experts as sized_experts, listed_dense_layers, shared_keys, with_stacked_experts};
use super::llama::{attention_biases, interleave};
use super::*;
use crate::ExpertsConfig;

/// Reads Cohere's mixture of experts.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    let sized = DecoderConfig { activation: fields.activation("hidden_act")?, ..sizes(fields)? };
    let (layers, hidden) = (sized.layers, sized.hidden);
    let first = fields.natural_or("first_k_dense_replace", 0)?;
    let shared = fields.natural("num_shared_experts")?;
    let scores = match fields.text("expert_selection_fn")? {
        "softmax" => RouterScores::Softmax,
        "sigmoid" => RouterScores::Sigmoid,
        other => return Err(fields.error(format!("`expert_selection_fn` is {other:?}, which is not supported"))),
    };
    let averages = match fields.text("shared_expert_combination_strategy")? {
        "average" => true,
        "sum" => false,
        other => {
            return Err(
                fields.error(format!("`shared_expert_combination_strategy` is {other:?}, which is not supported"))
            );
        }
    };
    let normalizes = fields.flag("norm_topk_prob")?;
    let chosen = ExpertsConfig {
        scores,
        // The softmax is only over the chosen experts.
        normalized: normalizes || scores == RouterScores::Softmax,
        shared_hidden: Some(hidden.saturating_mul(shared)).filter(|_| shared > 0),
        averages_shared: averages && shared > 0,
        dense_layers: listed_dense_layers(fields, layers, first)?,
        ..sized_experts(fields, fields.size("num_experts")?, hidden)?
    };
    if fields.object_opt("rope_scaling")?.is_some_and(|about| !about.is_empty()) {
        return Err(fields.error("field `rope_scaling` is set, but this model reads only `rope_parameters`"));
    }
    let rms = fields.number_opt("rms_norm_eps")?;
    let mut config = DecoderConfig {
        norm: if rms.is_some() { NormKind::Rms } else { NormKind::LayerScale },
        epsilon: rms.unwrap_or(fields.number("layer_norm_eps")?),
        hidden: fields.size_opt("prefix_dense_intermediate_size")?.unwrap_or(hidden),
        biases: attention_biases(fields)?,
        logits_scale: Some(fields.number("logit_scale")?),
        parallel: true,
        shared_norm: true,
        ..sized
    };
    rotary(&mut config, fields, None)?;
    interleave(&mut config);
    set_cohere_windows(&mut config, fields, first, &chosen.dense_layers)?;
    config.experts = Some(chosen);
    let layer = "model.layers.*.mlp";
    let keys = expert_keys(layer, "gate", ["gate_proj", "up_proj", "down_proj"])
        .and(shared_keys(&format!("{layer}.shared_experts")));
    Ok((config, with_stacked_experts(keys, layer, hidden).and(llama_keys())))
}

/// Sets the windows of Cohere's mixture of experts, and the layers without rotary positions. The windows of the `first`
/// layers, which come before the layers with experts, follow a pattern of their own.
fn set_cohere_windows(config: &mut DecoderConfig, fields: &Fields, first: usize, dense_layers: &[bool]) -> Result<()> {
    let (interval, prefix) =
        (fields.size("sliding_window_pattern")?, fields.size("prefix_dense_sliding_window_pattern")?);
    let window = fields.size_opt("sliding_window")?;
    config.windows = windows(fields, config.layers, window, |layer| {
        if layer < first { !(layer + 1).is_multiple_of(prefix) } else { !(layer - first + 1).is_multiple_of(interval) }
    })?;
    // If no dense layer has a window, the dense layers still have rotary positions.
    config.without_rope = (0..config.layers)
        .map(|layer| config.window(layer).is_none() && !(prefix == 1 && dense_layers[layer]))
        .collect();
    Ok(())
}
