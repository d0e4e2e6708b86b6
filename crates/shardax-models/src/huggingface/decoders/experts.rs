//! Mixtures of experts.

use shardax_nn::{ExpertGroups, QueryGrowth, RouterScores};

use super::llama::{attention_biases, granite_factors, only_silu};
use super::*;
use crate::{Activation, ExpertsConfig};

/// The key paths of the experts of a layer.
pub(super) const ROUTER: &str = "blocks[*].experts.router";
pub(super) const EXPERTS: &str = "blocks[*].experts.experts.layers";

pub(super) fn read(fields: &Fields, kind: &str) -> Read {
    match kind {
        "mixtral" => mixtral(fields),
        "granitemoe" | "granitemoeshared" => granite(fields, kind),
        "exaone_moe" => exaone(fields),
        "hunyuan_v1_moe" => hunyuan(fields),
        "gpt_oss" => gpt_oss(fields),
        "glm4_moe" | "glm4v_moe_text" | "dots1" | "solar_open" | "sarvam_moe" => glm4(fields, kind),
        "aria_text" => aria(fields),
        "minimax_m2" => minimax(fields),
        "llama4_text" => llama4(fields),
        "lfm2_moe" => lfm2(fields),
        _ => qwen(fields, kind),
    }
}

/// Reads experts without a capacity. The arguments are the names of the fields for their number and their hidden size.
pub(super) fn experts(fields: &Fields, count: usize, hidden: usize) -> Result<ExpertsConfig> {
    Ok(ExpertsConfig {
        per_token: fields.size("num_experts_per_tok")?,
        capacity_factor: None,
        ..ExpertsConfig::new(count, hidden)
    })
}

/// Returns the names of experts whose layers are separate arrays in files.
pub(super) fn expert_keys(layer: &str, router: &str, [gate, up, down]: [&str; 3]) -> KeyMap {
    KeyMap::new()
        .linear(ROUTER, &format!("{layer}.{router}"))
        .linear(&format!("{EXPERTS}.gate"), &format!("{layer}.experts.#.{gate}"))
        .linear(&format!("{EXPERTS}.up"), &format!("{layer}.experts.#.{up}"))
        .linear(&format!("{EXPERTS}.down"), &format!("{layer}.experts.#.{down}"))
}

/// Also accepts files in which all experts are two arrays, `[experts, outputs, inputs]`: gates and first layers in one, and
/// last layers in the other.
pub(super) fn with_stacked_experts(keys: KeyMap, layer: &str, hidden: usize) -> KeyMap {
    let [gate, up, down] = ["gate_proj", "up_proj", "down_proj"].map(|part| format!("{layer}.experts.#.{part}.weight"));
    let joined = format!("{layer}.experts.gate_up_proj[#]");
    keys.absent(&gate, &joined, shared_rows(Some(hidden), 0)).absent(&up, &joined, shared_rows(Some(hidden), 1)).absent(
        &down,
        &format!("{layer}.experts.down_proj[#]"),
        Layout::Transposed,
    )
}

/// Returns the names of experts that are two arrays, `[experts, outputs, inputs]`: gates and first layers in one, and last
/// layers in the other.
pub(super) fn stacked_expert_keys(layer: &str, router: &str, hidden: usize) -> KeyMap {
    let joined = format!("{layer}.experts.gate_up_proj[#]");
    KeyMap::new()
        .linear(ROUTER, &format!("{layer}.{router}"))
        .array(format!("{EXPERTS}.gate.kernel"), joined.as_str(), shared_rows(Some(hidden), 0))
        .array(format!("{EXPERTS}.up.kernel"), joined.as_str(), shared_rows(Some(hidden), 1))
        .array(format!("{EXPERTS}.down.kernel"), format!("{layer}.experts.down_proj[#]"), Layout::Transposed)
}

/// Also accepts files in which the arrays of all experts have the outputs before the inputs. transformers recognizes such
/// arrays by their shape.
fn with_transposed_experts(keys: KeyMap, layer: &str, [count, hidden, features]: [usize; 3]) -> KeyMap {
    let (joined, down) = (format!("{layer}.experts.gate_up_proj[#]"), format!("{layer}.experts.down_proj[#]"));
    let rows = hidden.saturating_mul(2);
    (0..2)
        .fold(keys, |keys, index| {
            let (usual, other) = (Layout::Part { index, of: 2 }, shared_rows(Some(hidden), index));
            keys.in_shape(&joined, usual, [count, rows, features], other)
        })
        .in_shape(&down, Layout::Same, [count, features, hidden], Layout::Transposed)
}

/// Returns the names of experts whose gates and first layers are the two halves of one array. The arguments are the names of
/// this array and of the array of the last layers.
fn joined_expert_keys(layer: &str, router: &str, [joined, down]: [&str; 2]) -> KeyMap {
    let joined = format!("{layer}.experts.{joined}[#]");
    KeyMap::new()
        .linear(ROUTER, &format!("{layer}.{router}"))
        .array(format!("{EXPERTS}.gate.kernel"), joined.as_str(), Layout::Part { index: 0, of: 2 })
        .array(format!("{EXPERTS}.up.kernel"), joined.as_str(), Layout::Part { index: 1, of: 2 })
        .array(format!("{EXPERTS}.down.kernel"), format!("{layer}.experts.{down}[#]"), Layout::Same)
}

/// Reads Aria's mixture of experts, which has Llama's attention.
fn aria(fields: &Fields) -> Read {
    let sized = llama_sizes(fields)?;
    let (count, hidden) = (fields.size("moe_num_experts")?, sized.hidden);
    let mut config = DecoderConfig {
        experts: Some(ExpertsConfig {
            per_token: fields.size("moe_topk")?,
            shared_hidden: Some(hidden.saturating_mul(fields.size("moe_num_shared_experts")?)),
            capacity_factor: None,
            ..ExpertsConfig::new(count, hidden)
        }),
        biases: Biases { mlp: fields.flag("mlp_bias")?, ..attention_biases(fields)? },
        ..sized
    };
    rotary(&mut config, fields, None)?;
    let layer = "model.layers.*.mlp";
    let keys = joined_expert_keys(layer, "router", ["fc1.weight", "fc2.weight"]);
    Ok((config, keys.and(shared_keys(&format!("{layer}.shared_experts"))).and(llama_keys())))
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

/// Reads Phi-3.5's mixture of experts. The router chooses one expert after the other.
pub(super) fn phimoe(fields: &Fields, _: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let count = fields.size("num_local_experts")?;
    if fields.size("num_experts_per_tok")? != 2 {
        return Err(
            fields.error("`num_experts_per_tok` must be 2, because the router of this model chooses two experts")
        );
    }
    let chosen = ExpertsConfig {
        scores: RouterScores::SparseMixer,
        jitter: fields.number("router_jitter_noise")?,
        ..experts(fields, count, sized.hidden)?
    };
    let mut config = DecoderConfig {
        norm: NormKind::Layer,
        biases: Biases { head: fields.flag("lm_head_bias")?, ..attention_biases(fields)? },
        experts: Some(chosen),
        ..sized
    };
    rotary(&mut config, fields, None)?;
    // Noise for training, and the original length, which the object of rotary positions contains too.
    fields.skip(&["input_jitter_noise", "original_max_position_embeddings"]);
    config.windows = window_of_all(fields, config.layers, fields.size_opt("sliding_window")?)?;
    let keys = expert_keys("model.layers.*.block_sparse_moe", "gate", ["w1", "w3", "w2"]);
    Ok((config, keys.and(llama_keys())))
}

/// Reads Qwen's mixtures of experts, and OLMoE.
fn qwen(fields: &Fields, kind: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let is_olmo = matches!(kind, "olmoe" | "flex_olmo");
    let hidden = if is_olmo { sized.hidden } else { fields.size("moe_intermediate_size")? };
    // Newer versions use the other name.
    let count = fields.size(if fields.has("num_local_experts") { "num_local_experts" } else { "num_experts" })?;
    let mut experts = experts(fields, count, hidden)?;
    experts.normalized = kind == "qwen3_vl_moe_text" || fields.flag("norm_topk_prob")?;
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
        _ if is_olmo => {
            config.qk_norm = QkNorm::AllHeads;
            config.qkv_bound = if kind == "olmoe" { fields.number_opt("clip_qkv")? } else { None };
        }
        _ => config.qk_norm = QkNorm::Head,
    }
    if matches!(kind, "qwen2_moe" | "qwen3_moe") {
        config.windows = qwen_windows(fields, kind, config.layers)?;
    }
    rotary(&mut config, fields, None)?;
    config.experts = Some(experts);
    if kind == "qwen3_vl_moe_text" {
        // The class normalizes all weights.
        fields.skip(&["norm_topk_prob"]);
        let keys = joined_expert_keys("model.layers.*.mlp", "gate", ["gate_up_proj", "down_proj"]).and(llama_keys());
        return Ok((
            config.clone(),
            with_transposed_experts(keys, "model.layers.*.mlp", [count, hidden, config.features]),
        ));
    }
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
    Ok((config, with_stacked_experts(keys, "model.layers.*.mlp", hidden).and(llama_keys())))
}

/// Returns the windows of Qwen's mixtures of experts. If `use_sliding_window` is true, all layers of Qwen3
/// have one, and in other models every second layer before `max_window_layers`.
fn qwen_windows(fields: &Fields, kind: &str, layers: usize) -> Result<Vec<Option<usize>>> {
    fields.skip(&["sliding_window", "max_window_layers"]);
    let window = if fields.flag("use_sliding_window")? { fields.size_opt("sliding_window")? } else { None };
    if kind == "qwen3_moe" {
        return window_of_all(fields, layers, window);
    }
    let end = fields.number_or("max_window_layers", 0.0)?;
    windows(fields, layers, window, |layer| layer.is_multiple_of(2) && (layer as f64) < end)
}

/// Returns the names of the shared expert, which computes all tokens.
pub(super) fn shared_keys(name: &str) -> KeyMap {
    KeyMap::new()
        .linear("blocks[*].shared_expert.gate", &format!("{name}.gate_proj"))
        .linear("blocks[*].shared_expert.up", &format!("{name}.up_proj"))
        .linear("blocks[*].shared_expert.down", &format!("{name}.down_proj"))
}

/// Returns the layers without experts: `mlp_only_layers`, and all layers except every `decoder_sparse_step`-th one.
pub(super) fn dense_layers(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    let step = fields.size("decoder_sparse_step")?;
    let only = fields.list_opt("mlp_only_layers")?;
    let dense = (0..layers).map(|layer| {
        let is_listed = only.is_some_and(|list| list.iter().any(|entry| entry.as_u64() == Some(layer as u64)));
        is_listed || !(layer + 1).is_multiple_of(step)
    });
    Ok(dense.collect())
}

fn granite(fields: &Fields, kind: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let count = fields.size("num_local_experts")?;
    let shared_hidden = match kind {
        "granitemoeshared" => Some(fields.natural("shared_intermediate_size")?).filter(|hidden| *hidden > 0),
        _ => None,
    };
    let mut config = DecoderConfig {
        experts: Some(ExpertsConfig { shared_hidden, ..experts(fields, count, sized.hidden)? }),
        biases: attention_biases(fields)?,
        ..sized
    };
    rotary(&mut config, fields, None)?;
    granite_factors(&mut config, fields)?;
    let keys = granite_experts(config.hidden).and(granite_shared(shared_hidden));
    Ok((config, keys.and(llama_keys())))
}

/// Returns the names of the experts of Granite's models.
pub(super) fn granite_experts(hidden: usize) -> KeyMap {
    let joined_rows = hidden.saturating_mul(2);
    let input = "model.layers.*.block_sparse_moe.input_linear.weight[#]";
    KeyMap::new()
        .linear(ROUTER, "model.layers.*.block_sparse_moe.router.layer")
        .array(format!("{EXPERTS}.gate.kernel"), input, Layout::Rows { start: 0, end: hidden, of: joined_rows })
        .array(format!("{EXPERTS}.up.kernel"), input, Layout::Rows { start: hidden, end: joined_rows, of: joined_rows })
        .array(
            format!("{EXPERTS}.down.kernel"),
            "model.layers.*.block_sparse_moe.output_linear.weight[#]",
            Layout::Transposed,
        )
}

/// Returns the names of the shared expert of Granite's models.
pub(super) fn granite_shared(hidden: Option<usize>) -> KeyMap {
    KeyMap::new()
        .weights("blocks[*].shared_expert.gate", "model.layers.*.shared_mlp.input_linear", shared_rows(hidden, 0))
        .weights("blocks[*].shared_expert.up", "model.layers.*.shared_mlp.input_linear", shared_rows(hidden, 1))
        .linear("blocks[*].shared_expert.down", "model.layers.*.shared_mlp.output_linear")
}

/// Reads Llama 4. Its layers either have rotary positions and attend to a chunk of the text, or attend to the entire text
/// without positions.
fn llama4(fields: &Fields) -> Read {
    let sized = llama_sizes(fields)?;
    let (layers, hidden) = (sized.layers, sized.hidden);
    let with_rope = llama4_layers_with_rope(fields, layers)?;
    // Either a list names the layers with experts, or every `step`-th layer has them.
    let step = fields.size("interleave_moe_layer_step")?;
    let has_experts: Vec<bool> = match fields.list_opt("moe_layers")? {
        Some(list) => (0..layers).map(|layer| list.iter().any(|entry| entry.as_u64() == Some(layer as u64))).collect(),
        None => (0..layers).map(|layer| (layer + 1).is_multiple_of(step)).collect(),
    };
    // Older configurations have a number here instead of a boolean.
    let is_tuned = match fields.value("attn_temperature_tuning") {
        Some(serde_json::Value::Bool(is_tuned)) => *is_tuned,
        Some(number) => number.as_f64() != Some(0.0),
        None => false,
    };
    let (rate, length) = (fields.number("attn_scale")?, fields.number("floor_scale")?);
    let experts = ExpertsConfig {
        scores: RouterScores::Sigmoid,
        normalized: false,
        shared_hidden: Some(hidden),
        weighs_inputs: true,
        dense_layers: has_experts.iter().map(|has| !has).collect(),
        ..experts(fields, fields.size("num_local_experts")?, hidden)?
    };
    let mut config = DecoderConfig {
        hidden: fields.size("intermediate_size_mlp")?,
        biases: attention_biases(fields)?,
        qk_norm: if fields.flag("use_qk_norm")? { QkNorm::HeadPlain } else { QkNorm::None },
        qk_norm_after_rope: true,
        chunk: fields.size_opt("attention_chunk_size")?,
        without_rope: with_rope.iter().map(|has| !has).collect(),
        query_growth: is_tuned.then_some(QueryGrowth { rate, length, offset: 1.0, power: false }),
        experts: Some(experts),
        ..sized
    };
    rotary(&mut config, fields, None)?;
    super::llama::interleave(&mut config);
    fields.skip(&["for_llm_compression"]);
    let keys = joined_expert_keys("model.layers.*.feed_forward", "router", ["gate_up_proj", "down_proj"])
        .and(shared_keys(&of_layer("feed_forward.shared_expert")))
        .linear("blocks[*].mlp.gate", &of_layer("feed_forward.gate_proj"))
        .linear("blocks[*].mlp.up", &of_layer("feed_forward.up_proj"))
        .linear("blocks[*].mlp.down", &of_layer("feed_forward.down_proj"));
    Ok((config, keys.and(llama_keys())))
}

/// Returns for each layer of Llama 4 whether it has rotary positions, and so attends to a chunk of the text.
fn llama4_layers_with_rope(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    let with_rope = match fields.list_opt("no_rope_layers")?.filter(|list| !list.is_empty()) {
        Some(list) if list.len() != layers => {
            return Err(fields.error(format!("`no_rope_layers` has {} entries for {layers} layers", list.len())));
        }
        Some(list) => list.iter().map(|entry| entry.as_u64() != Some(0) && entry.as_bool() != Some(false)).collect(),
        None => {
            let interval = fields.size_opt("no_rope_layer_interval")?.unwrap_or(4);
            (0..layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect::<Vec<bool>>()
        }
    };
    fields.skip(&["no_rope_layer_interval"]);
    // The class reads the list of layer types for masks. It agrees with the layers that have rotary positions.
    if let Some(types) = fields.list_opt("layer_types")? {
        let are_chunked = types.iter().map(|entry| entry.as_str() == Some("chunked_attention"));
        if !are_chunked.eq(with_rope.iter().copied()) {
            return Err(fields.error("`layer_types` and `no_rope_layers` differ"));
        }
    }
    Ok(with_rope)
}

/// Reads EXAONE's mixture of experts, which has the attention of EXAONE 4.
fn exaone(fields: &Fields) -> Read {
    let mut config = DecoderConfig { qk_norm: QkNorm::Head, ..llama_sizes(fields)? };
    let hidden = fields.size("moe_intermediate_size")?;
    let groups = ExpertGroups { count: fields.size("n_group")?, kept: fields.size("topk_group")?, ranked_by: 2 };
    config.experts = Some(ExpertsConfig {
        scores: RouterScores::Sigmoid,
        groups: Some(groups).filter(|groups| groups.count > 1),
        normalized: fields.flag("norm_topk_prob")?,
        correction: true,
        scale: fields.number("routed_scaling_factor")?,
        shared_hidden: Some(hidden.saturating_mul(fields.size("num_shared_experts")?)),
        dense_layers: first_dense_layers(fields, config.layers)?,
        ..experts(fields, fields.size("num_experts")?, hidden)?
    });
    super::llama::exaone_windows(&mut config, fields)?;
    let correction = "model.layers.*.mlp.e_score_correction_bias";
    let keys = KeyMap::new().array("blocks[*].experts.correction", correction, Layout::Same);
    Ok((config, keys.and(grouped_keys()).ignore("mtp.**").and(llama_keys())))
}

/// Reads Hunyuan's mixture of experts. All layers must have the same number of experts.
fn hunyuan(fields: &Fields) -> Read {
    let mut config = DecoderConfig {
        biases: attention_biases(fields)?,
        qk_norm: QkNorm::Head,
        qk_norm_after_rope: true,
        ..llama_sizes(fields)?
    };
    let count = uniform_size(fields, "num_experts")?;
    // Both names set the same attribute of the class, and the usual name sets it last.
    let top = if fields.has("num_experts_per_tok") { "num_experts_per_tok" } else { "moe_topk" };
    let per_token = uniform_size(fields, top)?;
    fields.skip(&["moe_topk"]);
    config.experts = Some(ExpertsConfig {
        per_token,
        capacity_factor: None,
        shared_hidden: Some(config.hidden),
        ..ExpertsConfig::new(count, config.hidden)
    });
    rotary(&mut config, fields, None)?;
    // Fields of early versions of the model's code, which the class ignores.
    fields.skip(&["attention_head_dim", "cla_share_factor", "class_num", "dense_list", "org_vocab_size"]);
    fields.skip(&[
        "moe_intermediate_size",
        "num_shared_expert",
        "moe_layer_num_skipped",
        "moe_random_routing_dropped_token",
    ]);
    fields.skip(&["use_mixed_mlp_moe", "use_qk_norm", "norm_type", "num_experts_per_tok", "moe_drop_tokens"]);
    let layer = "model.layers.*.mlp";
    let keys = expert_keys(layer, "gate.wg", ["gate_proj", "up_proj", "down_proj"])
        .and(shared_keys(&format!("{layer}.shared_mlp")))
        .scale("blocks[*].attention.query_norm", "model.layers.*.self_attn.query_layernorm")
        .scale("blocks[*].attention.key_norm", "model.layers.*.self_attn.key_layernorm");
    Ok((config, keys.and(llama_keys())))
}

/// Reads a size, or a list with the size of each layer. All sizes must be equal.
fn uniform_size<'a>(fields: &Fields<'a>, name: &'a str) -> Result<usize> {
    let Some(list) = fields.value(name).and_then(|value| value.as_array()) else { return fields.size(name) };
    let size = list.first().and_then(|size| size.as_u64()).filter(|size| *size > 0);
    match size.filter(|_| list.iter().all(|size| Some(size) == list.first())) {
        Some(size) => Ok(size as usize),
        None => Err(fields.error(format!("the sizes of `{name}` differ between layers"))),
    }
}

/// Reads LFM2 with experts, which all layers have except the first ones.
fn lfm2(fields: &Fields) -> Read {
    let (mut config, keys) = super::llama::lfm2(fields, "lfm2_moe")?;
    let (count, hidden) = (fields.size("num_experts")?, fields.size("moe_intermediate_size")?);
    let first_layer = fields.number("num_dense_layers")?;
    config.experts = Some(ExpertsConfig {
        scores: RouterScores::Sigmoid,
        normalized: fields.flag("norm_topk_prob")?,
        scale: fields.number("routed_scaling_factor")?,
        correction: fields.flag("use_expert_bias")?,
        dense_layers: (0..config.layers).map(|layer| (layer as f64) < first_layer).collect(),
        ..experts(fields, count, hidden)?
    });
    let layer = "model.layers.*.feed_forward";
    let names = expert_keys(layer, "gate", ["w1", "w3", "w2"]);
    let names = names.array("blocks[*].experts.correction", format!("{layer}.expert_bias"), Layout::Same);
    Ok((config, names.and(keys)))
}

/// Returns one half of a matrix that consists of a gate and the first layer of an MLP.
pub(super) fn shared_rows(hidden: Option<usize>, half: usize) -> Layout {
    let hidden = hidden.unwrap_or(0);
    let start = hidden.saturating_mul(half);
    Layout::rows(start, hidden, hidden.saturating_mul(2))
}

fn glm4(fields: &Fields, kind: &str) -> Read {
    let mut config = llama_sizes(fields)?;
    config.experts = Some(grouped_experts(fields, config.layers)?);
    let bias_name = if fields.has("use_qkv_bias") && kind == "sarvam_moe" { "use_qkv_bias" } else { "attention_bias" };
    let attention = fields.flag(bias_name)?;
    config.biases = Biases { qkv: attention, out: attention && kind == "dots1", ..Biases::NONE };
    config.qk_norm = match kind {
        "dots1" => QkNorm::Head,
        "glm4_moe" if fields.flag("use_qk_norm")? => QkNorm::Head,
        _ => QkNorm::None,
    };
    if kind == "solar_open" {
        // Fields of GLM's models, which the class ignores.
        fields.skip(&["first_k_dense_replace", "use_qk_norm"]);
    }
    if kind == "sarvam_moe" && fields.flag("use_qk_norm")? {
        config.qk_norm = QkNorm::Head;
    }
    if kind == "dots1" {
        let first_layer = fields.number_or("max_window_layers", 0.0)?;
        let window = fields.size_opt("sliding_window")?;
        config.windows = windows(fields, config.layers, window, |layer| layer as f64 >= first_layer)?;
    }
    let share = match kind {
        "glm4_moe" | "glm4v_moe_text" => Some(0.5),
        "sarvam_moe" | "solar_open" => Some(1.0),
        _ => None,
    };
    rotary(&mut config, fields, share)?;
    let keys = if kind == "sarvam_moe" { sarvam_keys(&config) } else { KeyMap::new() };
    let keys = keys.and(grouped_keys()).ignore(&format!("model.layers.{}.**", config.layers));
    Ok((config, keys.and(llama_keys())))
}

/// Returns the names of Sarvam's arrays that differ from GLM's.
fn sarvam_keys(config: &DecoderConfig) -> KeyMap {
    let (wide, narrow) =
        (config.heads.saturating_mul(config.head_dim), config.kv_heads.saturating_mul(config.head_dim));
    let joined_rows = wide.saturating_add(narrow.saturating_mul(2));
    // The rows of one matrix are queries, keys and values.
    let [query, key, value] = [(0, wide), (wide, narrow), (wide.saturating_add(narrow), narrow)]
        .map(|(start, count)| Layout::rows(start, count, joined_rows));
    let joined = "model.layers.*.attention.query_key_value";
    KeyMap::new()
        .array("embed.embedding", "model.word_embeddings.weight", Layout::Same)
        .weights("blocks[*].attention.query", joined, query)
        .weights("blocks[*].attention.key", joined, key)
        .weights("blocks[*].attention.value", joined, value)
        .linear("blocks[*].attention.out", "model.layers.*.attention.dense")
        .scale("blocks[*].attention.query_norm", "model.layers.*.attention.query_layernorm")
        .scale("blocks[*].attention.key_norm", "model.layers.*.attention.key_layernorm")
        .array("blocks[*].experts.correction", "model.layers.*.mlp.gate.expert_bias", Layout::Same)
        .tied("lm_head.weight", "model.word_embeddings.weight")
}

/// Reads the experts of DeepSeek-V3 and similar models. The router chooses them by corrected scores from a few groups.
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

/// Reads the number and the sizes of the experts in DeepSeek's models, which do not normalize their weights.
pub(super) fn chosen_experts(fields: &Fields, layers: usize) -> Result<ExpertsConfig> {
    let hidden = fields.size("moe_intermediate_size")?;
    // Sarvam's models use the other names.
    let count = fields.size(present_name(fields, "n_routed_experts", "num_experts"))?;
    let shared = fields.size(present_name(fields, "n_shared_experts", "num_shared_experts"))?;
    Ok(ExpertsConfig {
        normalized: false,
        scale: fields.number("routed_scaling_factor")?,
        shared_hidden: Some(hidden.saturating_mul(shared)),
        dense_layers: first_dense_layers(fields, layers)?,
        ..experts(fields, count, hidden)?
    })
}

/// Returns the layers without experts: the first layers, or the layers that are listed as dense.
pub(super) fn first_dense_layers(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    let Some(types) = fields.list_opt("mlp_layer_types")? else {
        let first_layer =
            if fields.has_type("solar_open") { 0.0 } else { fields.number_or("first_k_dense_replace", 1.0)? };
        return Ok((0..layers).map(|layer| (layer as f64) < first_layer).collect());
    };
    fields.skip(&["first_k_dense_replace"]);
    let dense = types.iter().map(|entry| match entry.as_str() {
        Some("dense") => Ok(true),
        Some("sparse") => Ok(false),
        _ => Err(fields.error(format!("the entry {entry} of `mlp_layer_types` is not supported"))),
    });
    dense.collect()
}

/// Returns the layers without experts. They are listed in `mlp_layer_types`; otherwise they are the first layers.
pub(super) fn listed_dense_layers(fields: &Fields, layers: usize, first: usize) -> Result<Vec<bool>> {
    match fields.list_opt("mlp_layer_types")? {
        Some(types) if types.len() != layers => {
            Err(fields.error(format!("`mlp_layer_types` has {} entries for {layers} layers", types.len())))
        }
        Some(_) => first_dense_layers(fields, layers),
        None => Ok((0..layers).map(|layer| layer < first).collect()),
    }
}

/// Returns the names of DeepSeek's experts.
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
    let [gate, up] = [0, 1].map(|index| Layout::Interleaved { index, of: 2 });
    let keys = KeyMap::new()
        .linear(ROUTER, "model.layers.*.mlp.router")
        .array(format!("{EXPERTS}.gate.kernel"), format!("{both}[#]"), gate)
        .array(format!("{EXPERTS}.gate.bias"), format!("{both}_bias[#]"), gate)
        .array(format!("{EXPERTS}.up.kernel"), format!("{both}[#]"), up)
        .array(format!("{EXPERTS}.up.bias"), format!("{both}_bias[#]"), up)
        .array(format!("{EXPERTS}.down.kernel"), format!("{down}[#]"), Layout::Same)
        .array(format!("{EXPERTS}.down.bias"), format!("{down}_bias[#]"), Layout::Same)
        .and(separate_experts(both, down))
        .array("blocks[*].attention.sinks", "model.layers.*.self_attn.sinks", Layout::Same);
    Ok((config, keys.and(llama_keys())))
}

/// Accepts the names of GGUF files, in which each expert has arrays of its own.
fn separate_experts(joined: &str, down: &str) -> KeyMap {
    let keys = [(0, "gate"), (1, "up")].into_iter().fold(KeyMap::new(), |keys, (index, part)| {
        let usual = Layout::Interleaved { index, of: 2 };
        keys.absent_part((&format!("{joined}[#]"), usual), &expert_array(part, "weight"), Layout::Transposed)
            .absent_part((&format!("{joined}_bias[#]"), usual), &expert_array(part, "bias"), Layout::Same)
    });
    keys.absent(&format!("{down}[#]"), &expert_array("down", "weight"), Layout::Transposed).absent(
        &format!("{down}_bias[#]"),
        &expert_array("down", "bias"),
        Layout::Same,
    )
}

/// Returns the name of an array of one expert, such as the weight of its gate.
fn expert_array(part: &str, kind: &str) -> String {
    format!("model.layers.*.mlp.experts.#.{part}_proj.{kind}")
}

/// Returns the other name of a field if only this one is present.
pub(super) fn present_name<'a>(fields: &Fields, name: &'a str, other: &'a str) -> &'a str {
    if fields.has(other) && !fields.has(name) { other } else { name }
}
