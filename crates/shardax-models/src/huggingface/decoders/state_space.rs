//! Models with state-space layers: Mamba-2, and models that have its layers next to attention.

use serde_json::Value;
use shardax_nn::{ExpertGroups, RouterScores};

use super::experts::{
    EXPERTS, ROUTER, expert_keys, experts as sized_experts, granite_experts, granite_shared, shared_rows,
};
use super::llama::{attention_biases, granite_factors};
use super::*;
use crate::{
    Activation, ExpertsConfig, LayerParts, SelectiveConfig, StateSpaceConfig, StateSpaceNorm, StateSpaceScales,
};

/// Reads Mamba-2, in which all layers are state spaces.
pub(super) fn mamba2(fields: &Fields, _: &str) -> Read {
    let (features, layers) = (fields.size("hidden_size")?, fields.layers("num_hidden_layers")?);
    let (heads, head_dim) = (fields.size("num_heads")?, fields.size("head_dim")?);
    let inner = expanded(fields, "expand", features)?;
    check_inner(fields, heads, head_dim, inner)?;
    let has_bias = fields.flag("use_bias")?;
    let space = StateSpaceConfig {
        use_bias: has_bias,
        out_bias: has_bias,
        conv_bias: fields.flag("use_conv_bias")?,
        activation: fields.activation("hidden_act")?,
        layers: vec![true; layers],
        ..space(heads, head_dim, fields.size("n_groups")?, fields.size("state_size")?, fields.size("conv_kernel")?)
    };
    let config = DecoderConfig {
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        epsilon: fields.number("layer_norm_epsilon")?,
        parts: vec![LayerParts::Mixer; layers],
        state_space: Some(limited(fields, space)?),
        ..without_attention(fields.size("vocab_size")?, layers, features)
    };
    skip_training(fields);
    // Properties of all models of the type, which the class does not read.
    fields.skip(&["intermediate_size", "norm_before_gate", "rms_norm"]);
    let keys = space_keys("backbone.layers.*.mixer", config.state_space.as_ref()).and(mamba_keys());
    Ok((config, keys))
}

/// Reads Mamba, and Falcon Mamba, which normalizes steps, keys and queries.
pub(super) fn mamba(fields: &Fields, kind: &str) -> Read {
    let (features, layers) = (fields.size("hidden_size")?, fields.layers("num_hidden_layers")?);
    let channels = expanded(fields, "expand", features)?;
    if let Some(other) = fields.size_opt("intermediate_size")?.filter(|other| *other != channels) {
        return Err(fields.error(format!("`intermediate_size` is {other}, but `expand` makes {channels} channels")));
    }
    let selective = SelectiveConfig {
        channels,
        state_dim: fields.size("state_size")?,
        width: fields.size("conv_kernel")?,
        rank: rank(fields, "time_step_rank", features)?,
        activation: fields.activation("hidden_act")?,
        use_bias: fields.flag("use_bias")?,
        conv_bias: fields.flag("use_conv_bias")?,
        norms: if kind == "falcon_mamba" { Some((false, fields.number("mixer_rms_eps")?)) } else { None },
        layers: vec![true; layers],
    };
    let config = DecoderConfig {
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        epsilon: fields.number("layer_norm_epsilon")?,
        parts: vec![LayerParts::Mixer; layers],
        selective: Some(selective),
        ..without_attention(fields.size("vocab_size")?, layers, features)
    };
    skip_training(fields);
    // Fields that select another way to compute the same result, and names of early versions, which the class ignores.
    fields.skip(&["use_mambapy", "use_falcon_mambapy", "use_associative_scan", "d_inner", "d_model", "n_layer"]);
    fields.skip(&["fused_add_norm", "pad_vocab_size_multiple", "rms_norm", "ssm_cfg"]);
    let keys = selective_keys("backbone.layers.*.mixer", config.selective.as_ref()).and(mamba_keys());
    Ok((config, keys))
}

/// Reads Jamba, in which some layers have attention, and every second layer has experts.
pub(super) fn jamba(fields: &Fields, _: &str) -> Read {
    let mut config = llama_sizes(fields)?;
    let (period, offset) = (fields.size("attn_layer_period")?, fields.number("attn_layer_offset")?);
    config.selective = Some(SelectiveConfig {
        channels: expanded(fields, "mamba_expand", config.features)?,
        state_dim: fields.size("mamba_d_state")?,
        width: fields.size("mamba_d_conv")?,
        rank: rank(fields, "mamba_dt_rank", config.features)?,
        activation: config.activation,
        use_bias: fields.flag("mamba_proj_bias")?,
        conv_bias: fields.flag("mamba_conv_bias")?,
        norms: Some((true, config.epsilon)),
        layers: layers_except_every(period, offset, config.layers),
    });
    config.without_rope = vec![true; config.layers];
    let (period, offset) = (fields.size("expert_layer_period")?, fields.number("expert_layer_offset")?);
    let count = fields.size(if fields.has("num_local_experts") { "num_local_experts" } else { "num_experts" })?;
    let experts = ExpertsConfig {
        normalized: false,
        dense_layers: layers_except_every(period, offset, config.layers),
        ..sized_experts(fields, count, config.hidden)?
    };
    config.experts = Some(experts).filter(|_| count > 1);
    // Fields that select another way to compute the same result, and properties of all models of this type.
    fields.skip(&["calc_logits_for_entire_prompt", "mamba_inner_layernorms"]);
    fields.skip(&["use_mamba_kernels", "use_mambapy", "use_associative_scan", "num_logits_to_keep"]);
    let layer = "model.layers.*.feed_forward";
    let keys = selective_keys("model.layers.*.mamba", config.selective.as_ref())
        .and(expert_keys(layer, "router", ["gate_proj", "up_proj", "down_proj"]))
        .and(hybrid_keys());
    let keys = [("step", "dt"), ("key", "b"), ("query", "c")].iter().fold(keys, |keys, (part, name)| {
        keys.scale(&format!("blocks[*].selective.{part}_norm"), &format!("model.layers.*.mamba.{name}_layernorm"))
    });
    Ok((config, keys.and(llama_keys())))
}

/// Returns `true` for all layers except one of each `period`, the one after `offset` others.
fn layers_except_every(period: usize, offset: f64, layers: usize) -> Vec<bool> {
    (0..layers).map(|layer| (layer % period) as f64 != offset).collect()
}

/// Reads the rank of steps. The default is a sixteenth of the number of features, rounded up.
fn rank<'a>(fields: &Fields<'a>, name: &'a str, features: usize) -> Result<usize> {
    match fields.value(name).and_then(Value::as_str) {
        Some("auto") => Ok(features.div_ceil(16)),
        _ => fields.size(name),
    }
}

/// Returns the names of the arrays of Mamba's first form. One matrix has channels and gates, and another one has steps,
/// keys and queries.
fn selective_keys(layer: &str, space: Option<&SelectiveConfig>) -> KeyMap {
    let Some(space) = space else { return KeyMap::new() };
    let keys_end = space.rank.saturating_add(space.state_dim);
    let queries_end = keys_end.saturating_add(space.state_dim);
    let inner = format!("{layer}.x_proj");
    KeyMap::new()
        .weights("blocks[*].selective.value", &format!("{layer}.in_proj"), Layout::nth_rows(0, space.channels, 2))
        .weights("blocks[*].selective.gate", &format!("{layer}.in_proj"), Layout::nth_rows(1, space.channels, 2))
        .weights("blocks[*].selective.step_input", &inner, Layout::rows(0, space.rank, queries_end))
        .weights("blocks[*].selective.key", &inner, Layout::rows(space.rank, space.state_dim, queries_end))
        .weights("blocks[*].selective.query", &inner, Layout::rows(keys_end, space.state_dim, queries_end))
        .linear("blocks[*].selective.step", &format!("{layer}.dt_proj"))
        .array("blocks[*].selective.taps", format!("{layer}.conv1d.weight"), Layout::Transposed)
        .array("blocks[*].selective.taps_bias", format!("{layer}.conv1d.bias"), Layout::Same)
        .array("blocks[*].selective.log_rate", format!("{layer}.A_log"), Layout::Same)
        .array("blocks[*].selective.skip", format!("{layer}.D"), Layout::Same)
        .linear("blocks[*].selective.out", &format!("{layer}.out_proj"))
}

/// Reads Bamba, in which some layers have attention.
pub(super) fn bamba(fields: &Fields, _: &str) -> Read {
    let mut config = DecoderConfig { biases: attention_biases(fields)?, ..llama_sizes(fields)? };
    config.biases.mlp = fields.flag("mlp_bias")?;
    let attends = fields.list_opt("attn_layer_indices")?;
    let attends =
        |layer: usize| attends.is_some_and(|list| list.iter().any(|entry| entry.as_u64() == Some(layer as u64)));
    let layers = (0..config.layers).map(|layer| !attends(layer)).collect();
    config.state_space = Some(bamba_space(fields, &config, layers)?);
    // Fields for training, and fields of early versions of the model's code.
    fields.skip(&["num_logits_to_keep", "z_loss_coefficient", "attn_rotary_emb"]);
    // The class always uses this share.
    if let Some(share) = fields.number_opt("partial_rotary_factor")?.filter(|share| *share != 0.5) {
        return Err(fields.error(format!("field `partial_rotary_factor` is {share}, but this model supports only 0.5")));
    }
    rotary(&mut config, fields, Some(0.5))?;
    let keys = space_keys("model.layers.*.mamba", config.state_space.as_ref());
    Ok((config, keys.and(hybrid_keys()).and(llama_keys())))
}

/// Reads Granite 4, in which layers have state spaces or attention.
pub(super) fn granite(fields: &Fields, _: &str) -> Read {
    let mut config = DecoderConfig { biases: attention_biases(fields)?, ..llama_sizes(fields)? };
    let layers = config.layers;
    let name = if fields.has("layer_types") { "layer_types" } else { "layers_block_type" };
    let has_space = match fields.list_opt(name)? {
        Some(types) if types.len() != layers => {
            return Err(fields.error(format!("`{name}` has {} entries for {layers} layers", types.len())));
        }
        Some(types) => {
            types.iter().map(|entry| Ok(layer_type(fields, entry)? == LayerType::Space)).collect::<Result<_>>()?
        }
        None => vec![true; layers],
    };
    rotary(&mut config, fields, None)?;
    match fields.text_opt("position_embedding_type")? {
        Some("rope") => {}
        None | Some("nope") => config.without_rope = vec![true; layers],
        Some(other) => return Err(fields.error(format!("`position_embedding_type` {other:?} is not supported"))),
    }
    granite_factors(&mut config, fields)?;
    let space = bamba_space(fields, &config, has_space)?;
    config.state_space = Some(space).filter(|space| space.layers.contains(&true));
    let shared = fields.size("shared_intermediate_size")?;
    // Without experts, the shared expert is the only MLP.
    let keys = match fields.natural("num_local_experts")? {
        0 => {
            fields.skip(&["num_experts_per_tok", "intermediate_size"]);
            config.hidden = shared;
            KeyMap::new()
                .weights("blocks[*].mlp.gate", "model.layers.*.shared_mlp.input_linear", shared_rows(Some(shared), 0))
                .weights("blocks[*].mlp.up", "model.layers.*.shared_mlp.input_linear", shared_rows(Some(shared), 1))
                .linear("blocks[*].mlp.down", "model.layers.*.shared_mlp.output_linear")
        }
        count => {
            let experts = sized_experts(fields, count, config.hidden)?;
            config.experts = Some(ExpertsConfig { shared_hidden: Some(shared), ..experts });
            granite_experts(config.hidden).and(granite_shared(Some(shared)))
        }
    };
    Ok((config.clone(), keys.and(space_keys("model.layers.*.mamba", config.state_space.as_ref())).and(llama_keys())))
}

/// Reads Falcon H1, in which each layer has attention and a state space, and factors scale all parts.
pub(super) fn falcon(fields: &Fields, _: &str) -> Read {
    let mut config = DecoderConfig { biases: attention_biases(fields)?, ..llama_sizes(fields)? };
    config.biases.mlp = fields.flag("mlp_bias")?;
    rotary(&mut config, fields, None)?;
    config.embedding_scale = factor(fields, "embedding_multiplier")?;
    config.logits_scale = factor(fields, "lm_head_multiplier")?;
    config.attention_input_scale = factor(fields, "attention_in_multiplier")?;
    config.attention_output_scale = factor(fields, "attention_out_multiplier")?;
    // The factor of keys is a factor of scores.
    config.attention_scale = factor(fields, "key_multiplier")?.map(|key| key / (config.head_dim as f64).sqrt());
    let [gate, down] = factors(fields, "mlp_multipliers")?;
    (config.gate_scale, config.mlp_scale) = (Some(gate).filter(|x| *x != 1.0), Some(down).filter(|x| *x != 1.0));
    let [gate, value, key, query, step] = factors(fields, "ssm_multipliers")?;
    let (input, output) = (fields.number("ssm_in_multiplier")?, fields.number("ssm_out_multiplier")?);
    let scales = StateSpaceScales { input, gate, value, key, query, step, output };
    let norm = match (fields.flag("mamba_rms_norm")?, fields.flag("mamba_norm_before_gate")?) {
        (false, _) => StateSpaceNorm::None,
        (true, true) => StateSpaceNorm::BeforeGate,
        (true, false) => StateSpaceNorm::AfterGate,
    };
    let space = bamba_space(fields, &config, vec![true; config.layers])?;
    let out_bias = fields.flag("projectors_bias")?;
    let scales = Some(scales).filter(|scales| *scales != StateSpaceScales::default());
    config.state_space = Some(StateSpaceConfig { norm, out_bias, scales, beside_attention: true, ..space });
    // All layers have an MLP, and the class has other names for the sizes.
    fields.skip(&["mamba_use_mlp", "mlp_expansion_factor", "num_logits_to_keep"]);
    skip_training(fields);
    let keys = space_keys("model.layers.*.mamba", config.state_space.as_ref());
    Ok((config, keys.and(hybrid_keys()).and(llama_keys())))
}

/// Reads Nemotron-H, in which each layer is a state space, attention, an MLP or experts.
pub(super) fn nemotron(fields: &Fields, _: &str) -> Read {
    let types = nemotron_layers(fields)?;
    let (layers, features) = (types.len(), fields.size("hidden_size")?);
    let has_bias = fields.flag("use_bias")?;
    // Some configurations have the names of Bamba's fields.
    let [groups, width, conv_bias] =
        [("n_groups", "mamba_n_groups"), ("conv_kernel", "mamba_d_conv"), ("use_conv_bias", "mamba_conv_bias")]
            .map(|(name, older)| if fields.has(older) { older } else { name });
    let (heads, head_dim) = (fields.size("mamba_num_heads")?, fields.size("mamba_head_dim")?);
    let min_step = fields.number(if fields.has("mamba_dt_min") { "mamba_dt_min" } else { "time_step_min" })?;
    let space = StateSpaceConfig {
        use_bias: has_bias,
        out_bias: has_bias,
        conv_bias: fields.flag(conv_bias)?,
        activation: fields.activation("mamba_hidden_act")?,
        min_step,
        layers: types.iter().map(|kind| *kind == LayerType::Space).collect(),
        ..space(heads, head_dim, fields.size(groups)?, fields.size("ssm_state_size")?, fields.size(width)?)
    };
    let heads = fields.size("num_attention_heads")?;
    let kv_heads = fields.size_opt("num_key_value_heads")?.unwrap_or(heads);
    fields.divides(("num_key_value_heads", kv_heads), ("num_attention_heads", heads))?;
    let parts = types.iter().map(|kind| match kind {
        LayerType::Space | LayerType::Attention => LayerParts::Mixer,
        LayerType::Mlp | LayerType::Experts => LayerParts::Mlp,
    });
    let mut config = DecoderConfig {
        kv_heads,
        head_dim: fields.size("head_dim")?,
        hidden: fields.size("intermediate_size")?,
        activation: fields.activation("mlp_hidden_act")?,
        gated: false,
        biases: Biases { mlp: fields.flag("mlp_bias")?, ..Biases::NONE },
        epsilon: fields.number("layer_norm_epsilon")?,
        without_rope: vec![true; layers],
        parts: parts.collect(),
        state_space: Some(space).filter(|space| space.layers.contains(&true)),
        ..DecoderConfig::new(fields.size("vocab_size")?, layers, features, heads)
    };
    if types.contains(&LayerType::Experts) {
        config.experts = Some(nemotron_experts(fields, &types)?);
    }
    skip_training(fields);
    skip_unread_by_nemotron(fields);
    let keys = nemotron_keys(config.state_space.as_ref());
    Ok((config, keys))
}

/// Marks the fields as read that the class of Nemotron-H does not read.
fn skip_unread_by_nemotron(fields: &Fields) {
    // The class has no tied tables, biases and windows of attention, other sizes of state spaces, or layers of these names.
    fields.skip(&[
        "tie_word_embeddings",
        "attention_bias",
        "sliding_window",
        "mamba_proj_bias",
        "expand",
        "mamba_expand",
    ]);
    fields.skip(&["attention_head_dim", "layers_block_type"]);
    fields.skip(&["num_hidden_layers", "mtp_layers_block_type", "mtp_hybrid_override_pattern", "n_shared_experts"]);
    fields.skip(&["mamba_chunk_size", "mamba_dt_max", "mamba_dt_limit", "mamba_dt_init_floor", "time_step_limit"]);
    fields.skip(&["mamba_ssm_cache_dtype", "use_mamba_kernels", "moe_shared_expert_overlap", "num_logits_to_keep"]);
}

/// Returns the names of the arrays of Nemotron-H. Each layer is called a mixer.
fn nemotron_keys(space: Option<&StateSpaceConfig>) -> KeyMap {
    let layer = "backbone.layers.*.mixer";
    space_keys(layer, space)
        .array("embed.embedding", "backbone.embeddings.weight", Layout::Same)
        .scale("blocks[*].norm.0", "backbone.layers.*.norm")
        .scale("blocks[*].mlp_norm.0", "backbone.layers.*.norm")
        .linear("blocks[*].attention.query", &format!("{layer}.q_proj"))
        .linear("blocks[*].attention.key", &format!("{layer}.k_proj"))
        .linear("blocks[*].attention.value", &format!("{layer}.v_proj"))
        .linear("blocks[*].attention.out", &format!("{layer}.o_proj"))
        .linear("blocks[*].mlp.up", &format!("{layer}.up_proj"))
        .linear("blocks[*].mlp.down", &format!("{layer}.down_proj"))
        .linear(ROUTER, &format!("{layer}.gate"))
        .array("blocks[*].experts.correction", format!("{layer}.gate.e_score_correction_bias"), Layout::Same)
        .linear(&format!("{EXPERTS}.up"), &format!("{layer}.experts.#.up_proj"))
        .linear(&format!("{EXPERTS}.down"), &format!("{layer}.experts.#.down_proj"))
        .linear("blocks[*].shared_expert.up", &format!("{layer}.shared_experts.up_proj"))
        .linear("blocks[*].shared_expert.down", &format!("{layer}.shared_experts.down_proj"))
        .scale("norm.0", "backbone.norm_f")
        .linear("head", "lm_head")
        .prefix_alias("backbone.", "model.")
        .prefix_alias("backbone.", "language_model.backbone.")
        .ignore("mtp.**")
}

/// Reads the experts of Nemotron-H. The router chooses them as in DeepSeek-V3.
fn nemotron_experts(fields: &Fields, types: &[LayerType]) -> Result<ExpertsConfig> {
    if let Some(size) = fields.size_opt("moe_latent_size")? {
        return Err(
            fields.error(format!("field `moe_latent_size` is {size}, but experts of latent vectors are not supported"))
        );
    }
    let groups = ExpertGroups { count: fields.size("n_group")?, kept: fields.size("topk_group")?, ranked_by: 2 };
    let count = fields.size(if fields.has("num_local_experts") { "num_local_experts" } else { "n_routed_experts" })?;
    Ok(ExpertsConfig {
        scores: RouterScores::Sigmoid,
        groups: Some(groups).filter(|groups| groups.count > 1),
        normalized: fields.flag("norm_topk_prob")?,
        scale: fields.number("routed_scaling_factor")?,
        correction: true,
        shared_hidden: Some(fields.size("moe_shared_expert_intermediate_size")?),
        dense_layers: types.iter().map(|kind| *kind != LayerType::Experts).collect(),
        ..sized_experts(fields, count, fields.size("moe_intermediate_size")?)?
    })
}

/// The type of a layer, in models whose layers differ.
#[derive(Clone, Copy, PartialEq)]
enum LayerType {
    Space,
    Attention,
    Mlp,
    Experts,
}

/// Returns the type of a layer from its current or its older name.
fn layer_type(fields: &Fields, entry: &Value) -> Result<LayerType> {
    match entry.as_str() {
        Some("linear_attention" | "mamba") => Ok(LayerType::Space),
        Some("full_attention" | "attention") => Ok(LayerType::Attention),
        _ => Err(fields.error(format!("`layer_types` has the layer type {entry}, which is not supported"))),
    }
}

/// Reads the types of Nemotron-H's layers from a list, or from a text with a sign for each layer.
fn nemotron_layers(fields: &Fields) -> Result<Vec<LayerType>> {
    let name = if fields.has("layer_types") { "layer_types" } else { "layers_block_type" };
    let list = fields.list_opt(name)?;
    let pattern = fields.text_opt("hybrid_override_pattern")?;
    // If a configuration has both, the list counts, as in the class.
    let types: Vec<LayerType> =
        match (list, pattern) {
            (Some(list), _) => list
                .iter()
                .map(|entry| match entry.as_str() {
                    Some("mlp") => Ok(LayerType::Mlp),
                    Some("moe") => Ok(LayerType::Experts),
                    _ => layer_type(fields, entry),
                })
                .collect::<Result<_>>()?,
            (None, Some(pattern)) => pattern
                .chars()
                .map(|sign| match sign {
                    'M' => Ok(LayerType::Space),
                    '*' => Ok(LayerType::Attention),
                    '-' => Ok(LayerType::Mlp),
                    'E' => Ok(LayerType::Experts),
                    _ => Err(fields
                        .error(format!("`hybrid_override_pattern` has the sign {sign:?}, which is not supported"))),
                })
                .collect::<Result<_>>()?,
            (None, None) => vec![LayerType::Space, LayerType::Experts, LayerType::Attention, LayerType::Mlp],
        };
    if types.is_empty() { Err(fields.error(format!("`{name}` has no layers"))) } else { Ok(types) }
}

/// Returns a decoder in which layers have neither attention nor an MLP.
fn without_attention(vocabulary: usize, layers: usize, features: usize) -> DecoderConfig {
    DecoderConfig { head_dim: 2, hidden: 1, ..DecoderConfig::new(vocabulary, layers, features, 1) }
}

/// Returns state spaces with these sizes, without biases, and with a norm after the gates.
pub(super) fn space(heads: usize, head_dim: usize, groups: usize, state_dim: usize, width: usize) -> StateSpaceConfig {
    StateSpaceConfig {
        heads,
        head_dim,
        groups,
        state_dim,
        width,
        activation: Activation::Silu,
        norm: StateSpaceNorm::AfterGate,
        epsilon: None,
        use_bias: false,
        out_bias: false,
        conv_bias: false,
        min_step: 0.0,
        max_step: f64::INFINITY,
        scales: None,
        layers: Vec::new(),
        beside_attention: false,
    }
}

/// Reads state spaces from fields with Bamba's names. `layers` are the layers that have them.
fn bamba_space(fields: &Fields, config: &DecoderConfig, layers: Vec<bool>) -> Result<StateSpaceConfig> {
    let heads = fields.size("mamba_n_heads")?;
    // Falcon H1 states the size instead of a multiple of the model's features.
    let inner = match fields.size_opt("mamba_d_ssm")? {
        Some(inner) => inner,
        None => expanded(fields, "mamba_expand", config.features)?,
    };
    let head_dim = match fields.value("mamba_d_head").and_then(Value::as_str) {
        Some("auto") => inner / heads,
        _ => fields.size("mamba_d_head")?,
    };
    check_inner(fields, heads, head_dim, inner)?;
    fields.skip(&["mamba_chunk_size", "mamba_expand"]);
    let has_bias = fields.flag("mamba_proj_bias")?;
    let space = StateSpaceConfig {
        use_bias: has_bias,
        out_bias: has_bias,
        conv_bias: fields.flag("mamba_conv_bias")?,
        activation: config.activation,
        layers,
        ..space(
            heads,
            head_dim,
            fields.size("mamba_n_groups")?,
            fields.size("mamba_d_state")?,
            fields.size("mamba_d_conv")?,
        )
    };
    limited(fields, space)
}

/// Returns the number of features of a state space, which is a multiple of the model's features.
pub(super) fn expanded<'a>(fields: &Fields<'a>, name: &'a str, features: usize) -> Result<usize> {
    Ok(fields.size(name)?.saturating_mul(features))
}

/// Returns an error unless the heads have all features of a state space together.
pub(super) fn check_inner(fields: &Fields, heads: usize, head_dim: usize, inner: usize) -> Result<()> {
    if heads.checked_mul(head_dim) == Some(inner) {
        Ok(())
    } else {
        Err(fields
            .error(format!("{heads} heads of {head_dim} features do not make the {inner} features of a state space")))
    }
}

/// Reads the bounds of steps.
fn limited(fields: &Fields, space: StateSpaceConfig) -> Result<StateSpaceConfig> {
    let Some(list) = fields.list_opt("time_step_limit")? else { return Ok(space) };
    match &list.iter().map(number_or_infinity).collect::<Vec<_>>()[..] {
        [Some(min_step), Some(max_step)] if *min_step >= 0.0 && min_step <= max_step => {
            Ok(StateSpaceConfig { min_step: *min_step, max_step: *max_step, ..space })
        }
        _ => Err(fields.error(format!("`time_step_limit` is {list:?}, but must be a range of two numbers"))),
    }
}

/// Returns a number. transformers writes infinity as an object, because JSON does not have it.
fn number_or_infinity(value: &Value) -> Option<f64> {
    match value.get("__float__").and_then(Value::as_str) {
        Some("Infinity") => Some(f64::INFINITY),
        _ => value.as_f64(),
    }
}

/// Reads a factor, or `None` if it is 1.
fn factor<'a>(fields: &Fields<'a>, name: &'a str) -> Result<Option<f64>> {
    Ok(Some(fields.number(name)?).filter(|factor| *factor != 1.0))
}

/// Reads a list of factors. They are 1 if the list is missing.
fn factors<'a, const N: usize>(fields: &Fields<'a>, name: &'a str) -> Result<[f64; N]> {
    if fields.list_opt(name)?.is_none() {
        return Ok([1.0; N]);
    }
    let list = fields.numbers(name)?;
    let count = list.len();
    list.try_into().map_err(|_| fields.error(format!("`{name}` has {count} numbers, but must have {N}")))
}

/// Marks fields for initialization, training and kernels as read.
pub(super) fn skip_training(fields: &Fields) {
    fields.skip(&["chunk_size", "rescale_prenorm_residual", "residual_in_fp32"]);
    fields.skip(&["time_step_floor", "time_step_max", "time_step_min", "time_step_rank"]);
    fields.skip(&["time_step_init_scheme", "time_step_scale"]);
}

/// Returns the names of the arrays of state spaces. One matrix has all projections of the input.
pub(super) fn space_keys(layer: &str, space: Option<&StateSpaceConfig>) -> KeyMap {
    let Some(space) = space else { return KeyMap::new() };
    let inner = space.heads.saturating_mul(space.head_dim);
    let keys = space.groups.saturating_mul(space.state_dim).saturating_mul(2);
    let keys_start = inner.saturating_mul(2);
    let steps_start = keys_start.saturating_add(keys);
    let total = steps_start.saturating_add(space.heads);
    let input = format!("{layer}.in_proj");
    KeyMap::new()
        .weights("blocks[*].state_space.gate", &input, Layout::rows(0, inner, total))
        .weights("blocks[*].state_space.value", &input, Layout::rows(inner, inner, total))
        .weights("blocks[*].state_space.key_query", &input, Layout::rows(keys_start, keys, total))
        .weights("blocks[*].state_space.step", &input, Layout::rows(steps_start, space.heads, total))
        .array("blocks[*].state_space.taps", format!("{layer}.conv1d.weight"), Layout::Transposed)
        .array("blocks[*].state_space.taps_bias", format!("{layer}.conv1d.bias"), Layout::Same)
        .array("blocks[*].state_space.step_bias", format!("{layer}.dt_bias"), Layout::Same)
        .array("blocks[*].state_space.log_rate", format!("{layer}.A_log"), Layout::Same)
        .array("blocks[*].state_space.skip", format!("{layer}.D"), Layout::Same)
        .array("blocks[*].state_space.norm_scale", format!("{layer}.norm.weight"), Layout::Same)
        .linear("blocks[*].state_space.out", &format!("{layer}.out_proj"))
}

/// Returns the names of the other arrays of models in which all layers are state spaces.
fn mamba_keys() -> KeyMap {
    KeyMap::new()
        .array("embed.embedding", "backbone.embeddings.weight", Layout::Same)
        .scale("blocks[*].norm.0", "backbone.layers.*.norm")
        .scale("norm.0", "backbone.norm_f")
        .linear("head", "lm_head")
        .tied("lm_head.weight", "backbone.embeddings.weight")
        // The name in early versions.
        .prefix_alias("backbone.embeddings.", "backbone.embedding.")
}

/// Returns the names of MLPs and norms, which Bamba's and Falcon's models share.
fn hybrid_keys() -> KeyMap {
    KeyMap::new()
        .scale("blocks[*].mlp_norm.0", "model.layers.*.pre_ff_layernorm")
        .linear("blocks[*].mlp.gate", "model.layers.*.feed_forward.gate_proj")
        .linear("blocks[*].mlp.up", "model.layers.*.feed_forward.up_proj")
        .linear("blocks[*].mlp.down", "model.layers.*.feed_forward.down_proj")
        .scale("norm.0", "model.final_layernorm")
}
