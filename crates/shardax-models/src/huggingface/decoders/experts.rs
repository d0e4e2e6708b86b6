//! Mixtures of experts.

use shardax_nn::{ExpertGroups, RouterScores};

use super::llama::{attention_biases, granite_factors, only_silu};
use super::*;
use crate::{Activation, ExpertsConfig};

/// The key paths of the experts of a layer.
const ROUTER: &str = "blocks[*].experts.router";
const EXPERTS: &str = "blocks[*].experts.experts.layers";

pub(super) fn read(fields: &Fields, kind: &str) -> Read {
    match kind {
        "mixtral" => mixtral(fields),
        "granitemoe" => granite(fields),
        "gpt_oss" => gpt_oss(fields),
        "glm4_moe" => glm4(fields),
        _ => qwen(fields, kind),
    }
}

/// Experts that drop no token. The field names of their number and of their hidden size differ between models.
fn experts(fields: &Fields, count: usize, hidden: usize) -> Result<ExpertsConfig> {
    Ok(ExpertsConfig {
        per_token: fields.size("num_experts_per_tok")?,
        capacity_factor: None,
        ..ExpertsConfig::new(count, hidden)
    })
}

/// The names of experts whose layers are separate arrays in files.
fn expert_keys(layer: &str, router: &str, [gate, up, down]: [&str; 3]) -> KeyMap {
    let expert = |name: &str| format!("{layer}.experts.#.{name}");
    KeyMap::new()
        .linear(ROUTER, &format!("{layer}.{router}"))
        .linear(&format!("{EXPERTS}.gate"), &expert(gate))
        .linear(&format!("{EXPERTS}.up"), &expert(up))
        .linear(&format!("{EXPERTS}.down"), &expert(down))
}

fn mixtral(fields: &Fields) -> Read {
    let sized = llama_sizes(fields)?;
    let count = fields.size("num_local_experts")?;
    let mut config = DecoderConfig { experts: Some(experts(fields, count, sized.hidden)?), ..sized };
    rotary(&mut config, fields, None)?;
    config.windows = windows(fields, config.layers, fields.size_opt("sliding_window")?, |_| true)?;
    let keys = expert_keys("model.layers.*.block_sparse_moe", "gate", ["w1", "w3", "w2"]);
    Ok((config, keys.and(llama_keys())))
}

/// Qwen's models, and OLMoE.
fn qwen(fields: &Fields, kind: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let hidden = if kind == "olmoe" { sized.hidden } else { fields.size("moe_intermediate_size")? };
    // Newer versions write the number by the other name.
    let count = fields.size(if fields.has("num_local_experts") { "num_local_experts" } else { "num_experts" })?;
    let mut experts = experts(fields, count, hidden)?;
    experts.normalized = fields.flag("norm_topk_prob")?;
    if kind != "olmoe" {
        experts.dense_layers = dense_layers(fields, sized.layers)?;
    }
    let biases = match kind {
        "qwen2_moe" => Biases { qkv: fields.flag("qkv_bias")?, ..Biases::NONE },
        _ => attention_biases(fields)?,
    };
    let mut config = DecoderConfig { biases, ..sized };
    match kind {
        "qwen2_moe" => {
            experts.shared_hidden = Some(fields.size("shared_expert_intermediate_size")?);
            experts.shared_gate = true;
        }
        "olmoe" => config.qk_norm = QkNorm::AllHeads,
        _ => config.qk_norm = QkNorm::Head,
    }
    if kind != "olmoe" {
        config.windows = qwen_windows(fields, config.layers)?;
    }
    rotary(&mut config, fields, None)?;
    config.experts = Some(experts);
    let keys = expert_keys("model.layers.*.mlp", "gate", ["gate_proj", "up_proj", "down_proj"])
        .and(shared_keys("model.layers.*.mlp.shared_expert"))
        .linear("blocks[*].shared_gate", "model.layers.*.mlp.shared_expert_gate");
    Ok((config, keys.and(llama_keys())))
}

/// The names of the MLP that all tokens go through.
fn shared_keys(name: &str) -> KeyMap {
    KeyMap::new()
        .linear("blocks[*].shared_expert.gate", &format!("{name}.gate_proj"))
        .linear("blocks[*].shared_expert.up", &format!("{name}.up_proj"))
        .linear("blocks[*].shared_expert.down", &format!("{name}.down_proj"))
}

/// The layers without experts: `mlp_only_layers`, and all but every `decoder_sparse_step`-th one.
fn dense_layers(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    let step = fields.size("decoder_sparse_step")?;
    let only = fields.list_opt("mlp_only_layers")?;
    let is_dense = |layer: usize| {
        let is_listed = only.is_some_and(|list| list.iter().any(|entry| entry.as_u64() == Some(layer as u64)));
        is_listed || !(layer + 1).is_multiple_of(step)
    };
    Ok((0..layers).map(is_dense).collect())
}

fn granite(fields: &Fields) -> Read {
    let sized = llama_sizes(fields)?;
    let count = fields.size("num_local_experts")?;
    let mut config = DecoderConfig {
        experts: Some(experts(fields, count, sized.hidden)?),
        biases: attention_biases(fields)?,
        ..sized
    };
    rotary(&mut config, fields, None)?;
    granite_factors(&mut config, fields)?;
    let (hidden, both) = (config.hidden, config.hidden.saturating_mul(2));
    let input = "model.layers.*.block_sparse_moe.input_linear.weight[#]";
    let keys = KeyMap::new()
        .linear(ROUTER, "model.layers.*.block_sparse_moe.router.layer")
        .array(format!("{EXPERTS}.gate.kernel"), input, Layout::Rows { start: 0, end: hidden, of: both })
        .array(format!("{EXPERTS}.up.kernel"), input, Layout::Rows { start: hidden, end: both, of: both })
        .array(
            format!("{EXPERTS}.down.kernel"),
            "model.layers.*.block_sparse_moe.output_linear.weight[#]",
            Layout::Transposed,
        );
    Ok((config, keys.and(llama_keys())))
}

fn glm4(fields: &Fields) -> Read {
    let sized = llama_sizes(fields)?;
    let mut config = DecoderConfig {
        experts: Some(grouped_experts(fields, sized.layers)?),
        biases: Biases { qkv: fields.flag("attention_bias")?, ..Biases::NONE },
        qk_norm: if fields.flag("use_qk_norm")? { QkNorm::Head } else { QkNorm::None },
        ..sized
    };
    rotary(&mut config, fields, Some(0.5))?;
    let keys = grouped_keys().ignore(&format!("model.layers.{}.**", config.layers));
    Ok((config, keys.and(llama_keys())))
}

/// The experts of DeepSeek-V3 and of the models that follow it: chosen by corrected scores from a few groups.
pub(super) fn grouped_experts(fields: &Fields, layers: usize) -> Result<ExpertsConfig> {
    let groups = ExpertGroups { count: fields.size("n_group")?, kept: fields.size("topk_group")?, ranked_by: 2 };
    Ok(ExpertsConfig {
        scores: RouterScores::Sigmoid,
        groups: Some(groups).filter(|groups| groups.count > 1),
        normalized: fields.flag("norm_topk_prob")?,
        correction: true,
        ..chosen_experts(fields, layers)?
    })
}

/// The number and the sizes of the experts of DeepSeek's models, whose weights are not normalized.
pub(super) fn chosen_experts(fields: &Fields, layers: usize) -> Result<ExpertsConfig> {
    let hidden = fields.size("moe_intermediate_size")?;
    let count = fields.size("n_routed_experts")?;
    let first = fields.number("first_k_dense_replace")?;
    Ok(ExpertsConfig {
        normalized: false,
        scale: fields.number("routed_scaling_factor")?,
        shared_hidden: Some(hidden.saturating_mul(fields.size("n_shared_experts")?)),
        dense_layers: (0..layers).map(|layer| (layer as f64) < first).collect(),
        ..experts(fields, count, hidden)?
    })
}

/// The names of those experts.
pub(super) fn grouped_keys() -> KeyMap {
    expert_keys("model.layers.*.mlp", "gate", ["gate_proj", "up_proj", "down_proj"])
        .and(shared_keys("model.layers.*.mlp.shared_experts"))
        .array("blocks[*].experts.correction", "model.layers.*.mlp.gate.e_score_correction_bias", Layout::Same)
}

fn gpt_oss(fields: &Fields) -> Read {
    only_silu(fields)?;
    // The other name of `num_experts_per_tok`.
    fields.skip(&["experts_per_token"]);
    let sized = llama_sizes(fields)?;
    let count = fields.size("num_local_experts")?;
    let mut config = DecoderConfig {
        experts: Some(ExpertsConfig { biases: true, ..experts(fields, count, sized.hidden)? }),
        activation: Activation::ClampedSwiglu,
        biases: attention_biases(fields)?,
        sinks: true,
        ..sized
    };
    config.windows = windows(fields, config.layers, fields.size_opt("sliding_window")?, |layer| (layer + 1) % 2 == 1)?;
    rotary(&mut config, fields, None)?;
    if !fields.has("rope_parameters") && !fields.has("rope_scaling") {
        return Err(fields.error("missing field `rope_scaling`"));
    }
    let (both, down) = ("model.layers.*.mlp.experts.gate_up_proj", "model.layers.*.mlp.experts.down_proj");
    let part = |index| Layout::Interleaved { index, of: 2 };
    let keys = KeyMap::new()
        .linear(ROUTER, "model.layers.*.mlp.router")
        .array(format!("{EXPERTS}.gate.kernel"), format!("{both}[#]"), part(0))
        .array(format!("{EXPERTS}.gate.bias"), format!("{both}_bias[#]"), part(0))
        .array(format!("{EXPERTS}.up.kernel"), format!("{both}[#]"), part(1))
        .array(format!("{EXPERTS}.up.bias"), format!("{both}_bias[#]"), part(1))
        .array(format!("{EXPERTS}.down.kernel"), format!("{down}[#]"), Layout::Same)
        .array(format!("{EXPERTS}.down.bias"), format!("{down}_bias[#]"), Layout::Same)
        .array("blocks[*].attention.sinks", "model.layers.*.self_attn.sinks", Layout::Same);
    Ok((config, keys.and(llama_keys())))
}
