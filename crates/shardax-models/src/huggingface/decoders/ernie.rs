//! ERNIE 4.5 with experts.

use super::experts::{ROUTER, expert_keys, shared_keys};
use super::llama::interleave;
use super::*;
use crate::ExpertsConfig;

/// Reads ERNIE 4.5 with experts, also the part for texts of the model of text and images.
pub(super) fn read(fields: &Fields, kind: &str) -> Read {
    let mut config = llama_sizes(fields)?;
    let has_images = kind == "ernie4_5_vl_moe_text";
    let (hidden, dense_layers) = if has_images {
        ernie_sizes_with_images(fields, config.layers)?
    } else {
        (fields.size("moe_intermediate_size")?, ernie_dense_layers(fields, config.layers)?)
    };
    let count = fields.size(if fields.has("num_experts") { "num_experts" } else { "moe_num_experts" })?;
    let per_token = fields.size(if fields.has("num_experts_per_tok") { "num_experts_per_tok" } else { "moe_k" })?;
    // The best scores of a softmax sum to at least their share of the experts, so that a smaller bound has no effect.
    let bound = fields.number("moe_norm_min")?;
    if bound > per_token as f64 / count as f64 {
        return Err(fields.error(format!(
            "field `moe_norm_min` is {bound}, but a lower bound for the sum of weights is not supported"
        )));
    }
    let shared = fields.natural("moe_num_shared_experts")?;
    let has_bias = fields.flag("use_bias")?;
    config.experts = Some(ExpertsConfig {
        per_token,
        correction: true,
        shared_hidden: Some(hidden.saturating_mul(shared)).filter(|hidden| *hidden > 0),
        dense_layers,
        capacity_factor: None,
        ..ExpertsConfig::new(count, hidden)
    });
    config.biases = Biases { qkv: has_bias, out: has_bias, mlp: has_bias, head: false };
    rotary(&mut config, fields, None)?;
    interleave(&mut config);
    let layer = "model.layers.*.mlp";
    let (gate, correction) = (format!("{layer}.gate.weight"), format!("{layer}.moe_statics.e_score_correction_bias"));
    let of_images = if has_images {
        // The matrix of the router is transposed, and a second row and matrix belong to images.
        KeyMap::new()
            .array(format!("{ROUTER}.kernel"), gate, Layout::Same)
            .array("blocks[*].experts.correction", correction.as_str(), Layout::rows(0, 1, 2))
            .ignore(&format!("{layer}.gate.weight_1"))
    } else {
        KeyMap::new()
    };
    let keys = of_images
        .and(expert_keys(layer, "gate", ["gate_proj", "up_proj", "down_proj"]))
        .and(shared_keys(&format!("{layer}.shared_experts")))
        .array("blocks[*].experts.correction", correction, Layout::Row);
    Ok((config, keys.and(llama_keys())))
}

/// Returns true for each layer without experts.
fn ernie_dense_layers(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    let [first, interval] = [fields.number("moe_layer_start_index")?, fields.number("moe_layer_interval")?];
    let last_layer =
        Some(fields.number("moe_layer_end_index")?).filter(|last_layer| *last_layer >= 0.0).unwrap_or(f64::INFINITY);
    let indices = (0..layers).map(|layer| layer as f64);
    Ok(indices.map(|index| (index + 1.0) % interval != 0.0 || index < first || index > last_layer).collect())
}

/// Returns the hidden features of the experts for texts, and true for each layer without experts, of a model of text and images.
/// The configuration lists two sizes: first the size of the experts for texts, then the size of the experts for images.
fn ernie_sizes_with_images(fields: &Fields, layers: usize) -> Result<(usize, Vec<bool>)> {
    let hidden = match fields.value("moe_intermediate_size") {
        None => 1536,
        Some(_) => match fields.size_list("moe_intermediate_size")?[..] {
            [hidden, _] => hidden,
            _ => return Err(fields.error("`moe_intermediate_size` must have two sizes")),
        },
    };
    let Some(types) = fields.list_opt("mlp_layer_types")? else {
        return Ok((hidden, (0..layers).map(|layer| layer == 0).collect()));
    };
    let dense = types.iter().map(|entry| match entry.as_str() {
        Some("dense") => Ok(true),
        Some("sparse") => Ok(false),
        _ => Err(fields.error(format!("the MLP type {entry} is not supported"))),
    });
    let dense = dense.collect::<Result<Vec<bool>>>()?;
    if dense.len() == layers {
        Ok((hidden, dense))
    } else {
        Err(fields.error(format!("`mlp_layer_types` has {} entries for {layers} layers", dense.len())))
    }
}
