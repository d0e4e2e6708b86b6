//! Models whose layers have different rotary positions with and without a window.

use shardax_nn::RouterScores;

use super::experts::{
    EXPERTS, ROUTER, dense_layers, expert_keys, experts as sized_experts, first_dense_layers, granite_shared,
    shared_keys, shared_rows, with_stacked_experts,
};
use super::gemma::{ropes, ropes_by_type};
use super::llama::{attention_biases, granite_factors, interleave};
use super::*;
use crate::{AttentionGate, ExpertsConfig};

/// Reads Granite models with windows, attention sinks, and a separate base of rotary positions for each layer.
pub(super) fn granite(fields: &Fields, kind: &str) -> Read {
    let mut config = DecoderConfig { biases: attention_biases(fields)?, sinks: true, ..llama_sizes(fields)? };
    granite_factors(&mut config, fields)?;
    let layers = config.layers;
    let window = fields.size_opt("sliding_window")?;
    config.windows = windows(fields, layers, window, |layer| !layer.is_multiple_of(4))?;
    rotary(&mut config, fields, None)?;
    if let Some(list) = fields.list_opt("layer_rope_theta")? {
        set_bases(&mut config, fields, list)?;
    }
    let sinks = KeyMap::new().array("blocks[*].attention.sinks", "model.layers.*.self_attn.sinks", Layout::Same);
    // `granite_swa` has dense MLPs. The other type has experts.
    if kind == "granite_swa" {
        config.biases.mlp = fields.flag("mlp_bias")?;
        return Ok((config, sinks.and(llama_keys())));
    }
    let shared = Some(fields.number("shared_intermediate_size")? as usize).filter(|hidden| *hidden > 0);
    let chosen = sized_experts(fields, fields.size("num_local_experts")?, config.hidden)?;
    config.experts = Some(ExpertsConfig { shared_hidden: shared, ..chosen });
    let layer = "model.layers.*.block_sparse_moe";
    let gate_up = format!("{layer}.experts.gate_up_proj[#]");
    let keys = sinks
        .linear(ROUTER, &format!("{layer}.router"))
        .array(format!("{EXPERTS}.gate.kernel"), gate_up.as_str(), shared_rows(Some(config.hidden), 0))
        .array(format!("{EXPERTS}.up.kernel"), gate_up.as_str(), shared_rows(Some(config.hidden), 1))
        .array(format!("{EXPERTS}.down.kernel"), format!("{layer}.experts.down_proj[#]"), Layout::Transposed)
        .and(granite_shared(shared));
    Ok((config, keys.and(llama_keys())))
}

/// Sets the bases of rotary positions. The list has 0 for layers without rotary positions, one base for the other layers
/// with a window, and one base for the other layers without a window.
fn set_bases(config: &mut DecoderConfig, fields: &Fields, list: &[serde_json::Value]) -> Result<()> {
    let Positions::Rotary(rope) = config.positions.clone() else { return Ok(()) };
    let bases: Option<Vec<f64>> = list.iter().map(serde_json::Value::as_f64).collect();
    let Some(bases) = bases.filter(|bases| bases.len() == config.layers) else {
        return Err(
            fields.error(format!("`layer_rope_theta` must have one number for each of {} layers", config.layers))
        );
    };
    config.without_rope = bases.iter().map(|base| *base == 0.0).collect();
    let [global, local] = [false, true].map(|is_local| {
        let layers = (0..config.layers).filter(|layer| config.window(*layer).is_some() == is_local);
        let mut used = layers.map(|layer| bases[layer]).filter(|base| *base != 0.0);
        let first = used.next();
        match used.all(|base| Some(base) == first) {
            true => Ok(shardax_nn::Rope { base: first.unwrap_or(rope.base), ..rope.clone() }),
            false => Err(fields.error("`layer_rope_theta` has different numbers for layers of the same type")),
        }
    });
    (config.positions, config.local_rope) = (Positions::Rotary(global?), Some(local?));
    Ok(())
}

/// Reads ModernBERT's decoder.
pub(super) fn modern_bert(fields: &Fields, _: &str) -> Read {
    let attention = fields.flag("attention_bias")?;
    let mut config = DecoderConfig {
        norm: if fields.flag("norm_bias")? { NormKind::Layer } else { NormKind::LayerScale },
        epsilon: fields.number("norm_eps")?,
        activation: fields.activation("hidden_activation")?,
        biases: Biases {
            qkv: attention,
            out: attention,
            mlp: fields.flag("mlp_bias")?,
            head: fields.flag("decoder_bias")?,
        },
        embedding_norm: true,
        first_norm: false,
        head_activation: Some((fields.activation("classifier_activation")?, fields.flag("classifier_bias")?)),
        ..sizes(fields)?
    };
    let interval = fields.size_opt("global_attn_every_n_layers")?.unwrap_or(3);
    let window = fields.size_opt("local_attention")?.map(|length| length / 2).filter(|length| *length > 0);
    config.windows = windows(fields, config.layers, window, |layer| !layer.is_multiple_of(interval))?;
    let names = [Some("global_rope_theta"), Some("local_rope_theta")];
    let [global, local] = ropes(fields, config.head_dim, (names, [160_000.0, 10_000.0]))?;
    // The older object applies to all layers.
    let local = match fields.object_opt("rope_scaling")?.filter(|about| !about.is_empty()) {
        Some(about) if about.has("rope_theta") => global.clone(),
        Some(_) => shardax_nn::Rope { base: local.base, ..global.clone() },
        None => local,
    };
    (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
    fields.skip(&["embedding_dropout", "mlp_dropout", "initializer_cutoff_factor", "sliding_window"]);
    let keys = KeyMap::new()
        .array("embed.embedding", "model.embeddings.tok_embeddings.weight", Layout::Same)
        .norm("embedding_norm.0", "model.embeddings.norm")
        .norm("blocks[*].norm.0", &of_layer("attn_norm"))
        .linear("blocks[*].attention.query", &of_layer("attn.q_proj"))
        .linear("blocks[*].attention.key", &of_layer("attn.k_proj"))
        .linear("blocks[*].attention.value", &of_layer("attn.v_proj"))
        .linear("blocks[*].attention.out", &of_layer("attn.Wo"))
        .norm("blocks[*].mlp_norm.0", &of_layer("mlp_norm"))
        .weights("blocks[*].mlp.gate", &of_layer("mlp.Wi"), shared_rows(Some(config.hidden), 0))
        .weights("blocks[*].mlp.up", &of_layer("mlp.Wi"), shared_rows(Some(config.hidden), 1))
        .linear("blocks[*].mlp.down", &of_layer("mlp.Wo"))
        .norm("norm.0", "model.final_norm")
        .linear("head_dense", "lm_head.dense")
        .norm("head_norm.0", "lm_head.norm")
        .linear("head", "decoder")
        .array("head_bias", "decoder.bias", Layout::Same)
        .tied("decoder.weight", "model.embeddings.tok_embeddings.weight");
    Ok((config, keys))
}

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
            chosen.dense_layers = match fields.has("mlp_only_layers") {
                true => dense_layers(fields, layers)?,
                false => (0..layers).map(|layer| layer < 2).collect(),
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

/// Reads Laguna, whose layers have different numbers of heads and gated attention, and most of them experts.
pub(super) fn laguna(fields: &Fields, _: &str) -> Read {
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
        attention_gate: Some(AttentionGate { per_head, softplus: true }),
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

/// Returns the layers without experts. They are listed in `mlp_layer_types`; otherwise they are the first layers.
fn listed_dense_layers(fields: &Fields, layers: usize, first: usize) -> Result<Vec<bool>> {
    match fields.list_opt("mlp_layer_types")? {
        Some(types) if types.len() != layers => {
            Err(fields.error(format!("`mlp_layer_types` has {} entries for {layers} layers", types.len())))
        }
        Some(_) => first_dense_layers(fields, layers),
        None => Ok((0..layers).map(|layer| layer < first).collect()),
    }
}

/// Reads Cohere's mixture of experts.
pub(super) fn cohere_experts(fields: &Fields, _: &str) -> Read {
    let sized = DecoderConfig { activation: fields.activation("hidden_act")?, ..sizes(fields)? };
    let (layers, hidden) = (sized.layers, sized.hidden);
    let first = fields.number_or("first_k_dense_replace", 0.0)? as usize;
    let shared = fields.number("num_shared_experts")? as usize;
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
    config.windows = windows(fields, config.layers, window, |layer| match layer < first {
        true => !(layer + 1).is_multiple_of(prefix),
        false => !(layer - first + 1).is_multiple_of(interval),
    })?;
    // If no dense layer has a window, the dense layers still have rotary positions.
    config.without_rope = (0..config.layers)
        .map(|layer| config.window(layer).is_none() && !(prefix == 1 && dense_layers[layer]))
        .collect();
    Ok(())
}

/// Reads MiMo-V2-Flash. Its layers with a window have twice the key heads and attention sinks, and values have fewer features
/// than keys.
pub(super) fn mimo(fields: &Fields, _: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let (layers, hidden) = (sized.layers, fields.size("moe_intermediate_size")?);
    // A field of published files has the positions before the query.
    let window = match fields.size_opt("sliding_window_size")? {
        Some(before) => Some(before.saturating_add(1)),
        None => fields.size_opt("sliding_window")?,
    };
    fields.skip(&["sliding_window"]);
    let windows = windows(fields, layers, window, |layer| layer > 0 && !(layer + 1).is_multiple_of(6))?;
    let common = sized.heads_of(0);
    let wide = crate::HeadSizes { kv_heads: common.kv_heads.saturating_mul(2), ..common };
    fields.divides(("twice num_key_value_heads", wide.kv_heads), ("num_attention_heads", wide.heads))?;
    let mut config = DecoderConfig {
        value_dim: Some(fields.size("v_head_dim")?),
        // The factor of values is a factor of the result, because the result is linear in values and has no bias.
        attention_output_scale: fields.number_opt("attention_value_scale")?,
        biases: Biases { qkv: fields.flag("attention_bias")?, ..Biases::NONE },
        layer_heads: windows.iter().map(|window| if window.is_some() { wide } else { common }).collect(),
        sinks: true,
        without_sinks: windows.iter().map(Option::is_none).collect(),
        windows,
        experts: Some(mimo_experts(fields, layers)?),
        ..sized
    };
    let rotated = (config.head_dim as f64 * MIMO_SHARE) as usize;
    let defaults = [5_000_000.0, 10_000.0].map(|base| shardax_nn::Rope::new(base).rotary_dim(rotated));
    let [global, local] = ropes_by_type(fields, [config.head_dim; 2], defaults, Some(MIMO_SHARE))?;
    if [&global, &local].iter().any(|rope| rope.scaling != shardax_nn::RopeScaling::None) {
        return Err(fields.error("`rope_parameters` scales rotary positions, which is not supported for this model"));
    }
    (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
    check_unread_fields(&config, fields)?;
    let (layer, attention) = ("model.layers.*.mlp", "model.layers.*.self_attn");
    let keys = expert_keys(layer, "gate", ["gate_proj", "up_proj", "down_proj"])
        .array("blocks[*].experts.correction", format!("{layer}.gate.e_score_correction_bias"), Layout::Same)
        .array("blocks[*].attention.sinks", format!("{attention}.attention_sink_bias"), Layout::Same)
        // Layers that predict additional tokens.
        .ignore("model.mtp.**");
    Ok((config, with_stacked_experts(keys, layer, hidden).and(llama_keys())))
}

/// The share of the features of a head that MiMo-V2-Flash rotates by default.
const MIMO_SHARE: f64 = 0.334;

/// Reads the experts of MiMo-V2-Flash, which has no shared expert.
fn mimo_experts(fields: &Fields, layers: usize) -> Result<ExpertsConfig> {
    let groups =
        shardax_nn::ExpertGroups { count: fields.size("n_group")?, kept: fields.size("topk_group")?, ranked_by: 2 };
    Ok(ExpertsConfig {
        scores: RouterScores::Sigmoid,
        groups: Some(groups).filter(|groups| groups.count > 1),
        normalized: fields.flag("norm_topk_prob")?,
        scale: fields.number_opt("routed_scaling_factor")?.unwrap_or(1.0),
        correction: true,
        dense_layers: listed_dense_layers(fields, layers, 1)?,
        ..sized_experts(fields, fields.size("n_routed_experts")?, fields.size("moe_intermediate_size")?)?
    })
}

/// Checks the fields of published files of MiMo-V2-Flash that the class in transformers does not read. Returns an error if a
/// field differs from the model of this class.
fn check_unread_fields(config: &DecoderConfig, fields: &Fields) -> Result<()> {
    let rope_of = |layer| config.rope_of(layer).map_or(0.0, |rope| rope.base);
    let (global, local) =
        (config.windows.iter().position(Option::is_none), config.windows.iter().position(Option::is_some));
    let kv_heads = config.kv_heads;
    let expected = [
        ("layernorm_epsilon", config.epsilon),
        ("swa_head_dim", config.head_dim as f64),
        ("swa_v_head_dim", config.value_dim.unwrap_or(0) as f64),
        ("swa_num_attention_heads", config.heads as f64),
        ("swa_num_key_value_heads", kv_heads.saturating_mul(2) as f64),
        ("partial_rotary_factor", MIMO_SHARE),
        ("rope_theta", global.map_or(0.0, rope_of)),
        ("swa_rope_theta", local.map_or(0.0, rope_of)),
        ("add_full_attention_sink_bias", 0.0),
        ("add_swa_attention_sink_bias", 1.0),
    ];
    let differing = expected.into_iter().find_map(|(name, expected)| {
        let value = fields.value(name).filter(|_| fields.has(name))?;
        let number = value.as_f64().or(value.as_bool().map(f64::from));
        (number != Some(expected)).then(|| format!("`{name}` is {value}, but transformers computes with {expected}"))
    });
    // 1 stands for a window, and for experts.
    let dense = config.experts.as_ref().map_or(&[][..], |experts| &experts.dense_layers);
    let lists = [
        ("hybrid_layer_pattern", config.windows.iter().map(|window| window.is_some().into()).collect::<Vec<f64>>()),
        ("moe_layer_freq", dense.iter().map(|is_dense| (!is_dense).into()).collect()),
    ];
    let differing = differing.or_else(|| {
        lists.into_iter().find_map(|(name, expected)| {
            let is_equal = !fields.has(name) || fields.numbers(name).is_ok_and(|numbers| numbers == expected);
            (!is_equal).then(|| format!("`{name}` differs from the layers that transformers computes"))
        })
    });
    // The windows do not depend on chunks.
    fields.skip(&["attention_chunk_size", "hybrid_layer_pattern", "moe_layer_freq"]);
    differing.map_or(Ok(()), |message| Err(fields.error(message)))
}
