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
        "granitemoe" | "granitemoeshared" => granite(fields, kind),
        "gpt_oss" => gpt_oss(fields),
        "glm4_moe" | "dots1" => glm4(fields, kind),
        "minimax_m2" => minimax(fields),
        "ernie4_5_moe" => ernie(fields),
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
    config.windows = window_of_all(fields, config.layers, fields.size_opt("sliding_window")?)?;
    let keys = expert_keys("model.layers.*.block_sparse_moe", "gate", ["w1", "w3", "w2"]);
    Ok((config, keys.and(llama_keys())))
}

/// Qwen's models, and OLMoE.
fn qwen(fields: &Fields, kind: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let is_olmo = kind != "qwen2_moe" && kind != "qwen3_moe";
    let hidden = if is_olmo { sized.hidden } else { fields.size("moe_intermediate_size")? };
    // Newer versions write the number by the other name.
    let count = fields.size(if fields.has("num_local_experts") { "num_local_experts" } else { "num_experts" })?;
    let mut experts = experts(fields, count, hidden)?;
    experts.normalized = fields.flag("norm_topk_prob")?;
    if !is_olmo {
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
        _ if is_olmo => config.qk_norm = QkNorm::AllHeads,
        _ => config.qk_norm = QkNorm::Head,
    }
    if !is_olmo {
        config.windows = qwen_windows(fields, kind, config.layers)?;
    }
    rotary(&mut config, fields, None)?;
    config.experts = Some(experts);
    let mut keys = KeyMap::new();
    if kind == "flex_olmo" {
        (config.pre_norms, config.post_norms) = (false, true);
        keys = keys
            .scale("blocks[*].post_attention_norm.0", "model.layers.*.post_attention_layernorm")
            .scale("blocks[*].post_mlp_norm.0", "model.layers.*.post_feedforward_layernorm");
    }
    let keys = keys
        .and(expert_keys("model.layers.*.mlp", "gate", ["gate_proj", "up_proj", "down_proj"]))
        .and(shared_keys("model.layers.*.mlp.shared_expert"))
        .linear("blocks[*].shared_gate", "model.layers.*.mlp.shared_expert_gate");
    Ok((config, keys.and(llama_keys())))
}

/// The windows of Qwen's models with experts, if `use_sliding_window` is true: of every second layer before
/// `max_window_layers`, or of all layers.
fn qwen_windows(fields: &Fields, kind: &str, layers: usize) -> Result<Vec<Option<usize>>> {
    fields.skip(&["sliding_window", "max_window_layers"]);
    let window = if fields.flag("use_sliding_window")? { fields.size_opt("sliding_window")? } else { None };
    if kind == "qwen3_moe" {
        return window_of_all(fields, layers, window);
    }
    let end = fields.number_or("max_window_layers", 0.0)?;
    windows(fields, layers, window, |layer| layer.is_multiple_of(2) && (layer as f64) < end)
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

fn granite(fields: &Fields, kind: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let count = fields.size("num_local_experts")?;
    let shared_hidden = match kind {
        "granitemoeshared" => Some(fields.number("shared_intermediate_size")? as usize).filter(|hidden| *hidden > 0),
        _ => None,
    };
    let mut config = DecoderConfig {
        experts: Some(ExpertsConfig { shared_hidden, ..experts(fields, count, sized.hidden)? }),
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
        )
        .weights(
            "blocks[*].shared_expert.gate",
            "model.layers.*.shared_mlp.input_linear",
            shared_rows(shared_hidden, 0),
        )
        .weights("blocks[*].shared_expert.up", "model.layers.*.shared_mlp.input_linear", shared_rows(shared_hidden, 1))
        .linear("blocks[*].shared_expert.down", "model.layers.*.shared_mlp.output_linear");
    Ok((config, keys.and(llama_keys())))
}

/// The half of a matrix of a gate and the first layer of an MLP.
fn shared_rows(hidden: Option<usize>, half: usize) -> Layout {
    let hidden = hidden.unwrap_or(0);
    let start = hidden.saturating_mul(half);
    Layout::Rows { start, end: start.saturating_add(hidden), of: hidden.saturating_mul(2) }
}

fn glm4(fields: &Fields, kind: &str) -> Read {
    let mut config = llama_sizes(fields)?;
    config.experts = Some(grouped_experts(fields, config.layers)?);
    let attention = fields.flag("attention_bias")?;
    config.biases = Biases { qkv: attention, out: attention && kind == "dots1", ..Biases::NONE };
    config.qk_norm = match kind {
        "dots1" => QkNorm::Head,
        "glm4_moe" if fields.flag("use_qk_norm")? => QkNorm::Head,
        _ => QkNorm::None,
    };
    if kind == "dots1" {
        let first = fields.number_or("max_window_layers", 0.0)?;
        let window = fields.size_opt("sliding_window")?;
        config.windows = windows(fields, config.layers, window, |layer| layer as f64 >= first)?;
    }
    rotary(&mut config, fields, if kind == "glm4_moe" { Some(0.5) } else { None })?;
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
    Ok(ExpertsConfig {
        normalized: false,
        scale: fields.number("routed_scaling_factor")?,
        shared_hidden: Some(hidden.saturating_mul(fields.size("n_shared_experts")?)),
        dense_layers: first_dense_layers(fields, layers)?,
        ..experts(fields, count, hidden)?
    })
}

/// The layers without experts: the first ones, or the layers that are listed as dense.
fn first_dense_layers(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    let Some(types) = fields.list_opt("mlp_layer_types")? else {
        let first = fields.number_or("first_k_dense_replace", 1.0)?;
        return Ok((0..layers).map(|layer| (layer as f64) < first).collect());
    };
    fields.skip(&["first_k_dense_replace"]);
    let is_dense = |entry: &serde_json::Value| match entry.as_str() {
        Some("dense") => Ok(true),
        Some("sparse") => Ok(false),
        _ => Err(fields.error(format!("the entry {entry} of `mlp_layer_types` is not known"))),
    };
    types.iter().map(is_dense).collect()
}

/// The names of those experts.
pub(super) fn grouped_keys() -> KeyMap {
    expert_keys("model.layers.*.mlp", "gate", ["gate_proj", "up_proj", "down_proj"])
        .and(shared_keys("model.layers.*.mlp.shared_experts"))
        .array("blocks[*].experts.correction", "model.layers.*.mlp.gate.e_score_correction_bias", Layout::Same)
}

fn minimax(fields: &Fields) -> Read {
    let mut config = llama_sizes(fields)?;
    let count = fields.size("num_local_experts")?;
    config.experts = Some(ExpertsConfig {
        scores: RouterScores::Sigmoid,
        correction: true,
        ..experts(fields, count, config.hidden)?
    });
    config.qk_norm = QkNorm::AllHeads;
    // Published files have the number of rotated features.
    let share = fields.size_opt("rotary_dim")?.map_or(1.0, |rotated| rotated as f64 / config.head_dim as f64);
    rotary(&mut config, fields, Some(share))?;
    let moe = "model.layers.*.block_sparse_moe";
    let keys = expert_keys(moe, "gate", ["w1", "w3", "w2"]).array(
        "blocks[*].experts.correction",
        format!("{moe}.e_score_correction_bias"),
        Layout::Same,
    );
    Ok((config, keys.and(llama_keys())))
}

fn ernie(fields: &Fields) -> Read {
    let mut config = llama_sizes(fields)?;
    let named = |name, older| if fields.has(older) { older } else { name };
    let hidden = fields.size("moe_intermediate_size")?;
    let [first, interval] = [fields.number("moe_layer_start_index")?, fields.number("moe_layer_interval")?];
    let last = Some(fields.number("moe_layer_end_index")?).filter(|last| *last >= 0.0).unwrap_or(f64::INFINITY);
    let is_dense = |layer: usize| {
        let index = layer as f64;
        (index + 1.0) % interval != 0.0 || index < first || index > last
    };
    let [count, per_token] =
        [fields.size(named("moe_num_experts", "num_experts"))?, fields.size(named("moe_k", "num_experts_per_tok"))?];
    // The best scores of a softmax sum to at least their share of the experts, so that a smaller bound has no effect.
    let bound = fields.number("moe_norm_min")?;
    if bound > per_token as f64 / count as f64 {
        return Err(fields.error(format!("field `moe_norm_min` is {bound}, and sums of weights have no bound here")));
    }
    let shared = fields.number("moe_num_shared_experts")? as usize;
    let all = fields.flag("use_bias")?;
    config.experts = Some(ExpertsConfig {
        per_token,
        correction: true,
        shared_hidden: Some(hidden.saturating_mul(shared)).filter(|hidden| *hidden > 0),
        dense_layers: (0..config.layers).map(is_dense).collect(),
        capacity_factor: None,
        ..ExpertsConfig::new(count, hidden)
    });
    config.biases = Biases { qkv: all, out: all, mlp: all, head: false };
    rotary(&mut config, fields, None)?;
    super::llama::interleave(&mut config);
    let layer = "model.layers.*.mlp";
    let keys = expert_keys(layer, "gate", ["gate_proj", "up_proj", "down_proj"])
        .and(shared_keys(&format!("{layer}.shared_experts")))
        .array("blocks[*].experts.correction", format!("{layer}.moe_statics.e_score_correction_bias"), Layout::Row);
    Ok((config, keys.and(llama_keys())))
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
