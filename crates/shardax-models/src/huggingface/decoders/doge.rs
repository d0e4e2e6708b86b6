//! Doge.

use super::llama::biases;
use super::*;
use crate::ResidualSums;

/// Reads Doge, whose scores depend on the values of keys, and whose sums have learned factors.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    if fields.flag("is_moe")? {
        return Err(fields.error(
            "`is_moe` is true, but its router divides the logits of all texts in the middle, so that texts would change each other",
        ));
    }
    // Fields of the experts.
    fields.skip(&["num_experts", "num_experts_per_tok", "norm_topk_prob", "router_aux_loss_coef"]);
    let mut config = DecoderConfig {
        biases: biases(fields)?,
        qk_norm: QkNorm::Head,
        sums: ResidualSums::LearnedFactors,
        value_scores: Some(fields.size("keep_window_size")?),
        ..llama_sizes(fields)?
    };
    rotary(&mut config, fields, None)?;
    config.windows = window_of_all(fields, config.layers, fields.size_opt("sliding_window")?)?;
    let keys = KeyMap::new()
        .linear("blocks[*].attention.value_scores.steps", &of_layer("self_attn.dt_proj"))
        .array("blocks[*].attention.value_scores.rates", of_layer("self_attn.A"), Layout::Same)
        .array("blocks[*].residuals.attention_factors", of_layer("input_residual"), Layout::Same)
        .array("blocks[*].residuals.mlp_factors", of_layer("post_attention_residual"), Layout::Same);
    Ok((config, keys.and(llama_keys())))
}
