//! Gemma 3n and Gemma 4, whose layers add an embedding of the tokens and share keys and values.

use serde_json::Value;
use shardax_nn::{Rope, RopeScaling};

use super::experts::{EXPERTS, ROUTER, shared_rows};
use super::gemma::{ropes, ropes_by_type};
use super::llama::attention_biases;
use super::*;
use crate::{ExpertsConfig, HeadSizes, LayerEmbeddingConfig, StreamsConfig};

pub(super) fn read(fields: &Fields, kind: &str) -> Read {
    let is_third = kind == "gemma3n_text";
    let hidden_sizes = sizes_of_layers(fields, "intermediate_size")?;
    let sized = match &hidden_sizes {
        Some(list) => {
            let hidden = list.iter().copied().max().unwrap_or(0);
            DecoderConfig { hidden, ..sizes_without_hidden(fields)? }
        }
        None => DecoderConfig { hidden: fields.size("intermediate_size")?, ..sizes_without_hidden(fields)? },
    };
    let layers = sized.layers;
    let mut config = DecoderConfig {
        epsilon: fields.number("rms_norm_eps")?,
        activation: fields.activation("hidden_activation")?,
        biases: attention_biases(fields)?,
        embedding_scale: Some((sized.features as f64).sqrt()),
        attention_scale: Some(1.0),
        logits_soft_cap: fields.number_opt("final_logit_softcapping")?,
        post_norms: true,
        qk_norm: QkNorm::Head,
        value_norm: true,
        layer_hidden: hidden_sizes.unwrap_or_default(),
        ..sized
    };
    let pattern = if is_third { 5 } else { 6 };
    let window = fields.size_opt("sliding_window")?;
    config.windows = windows(fields, layers, window, |layer| !(layer + 1).is_multiple_of(pattern))?;
    // The class of this type has no fields for embeddings of layers and for experts, so the reader rejects them.
    let is_unified = kind == "gemma4_unified_text";
    if !is_unified {
        let features = fields.number_opt("hidden_size_per_layer_input")?.unwrap_or(0.0) as usize;
        let vocab_size = fields.size("vocab_size_per_layer_input")?;
        config.layer_embedding = Some(LayerEmbeddingConfig { vocab_size, features }).filter(|_| features > 0);
    }
    let keys = if is_third { third(fields, &mut config)? } else { fourth(fields, &mut config)? };
    let keys = if is_third || is_unified { keys } else { keys.and(fourth_experts(fields, &mut config)?) };
    // These fields have no effect in these classes, and in texts.
    fields.skip(&["rope_theta", "query_pre_attn_scalar"]);
    // The last layers use the keys and values of the last layer before them that has the same type.
    let first_shared = first_shared_layer(fields, layers)?;
    if first_shared < layers {
        let own_keys = std::iter::repeat_n(None, first_shared);
        config.key_layers =
            own_keys.chain((first_shared..layers).map(|layer| lender(&config, first_shared, layer))).collect();
        if (first_shared..layers).any(|layer| config.key_layer(layer).is_none()) {
            return Err(fields.error("`num_kv_shared_layers` has a layer without an earlier layer of its type"));
        }
    }
    let keys = keys
        .scale("blocks[*].post_attention_norm.0", &of_layer("post_attention_layernorm"))
        .scale("blocks[*].mlp_norm.0", &of_layer("pre_feedforward_layernorm"))
        .scale("blocks[*].post_mlp_norm.0", &of_layer("post_feedforward_layernorm"))
        .linear("blocks[*].layer_input.gate", &of_layer("per_layer_input_gate"))
        .linear("blocks[*].layer_input.out", &of_layer("per_layer_projection"))
        .scale("blocks[*].layer_input.norm.0", &of_layer("post_per_layer_input_norm"))
        .array("layer_embedding.embed.embedding", "model.embed_tokens_per_layer.weight", Layout::Same)
        .linear("layer_embedding.projection", "model.per_layer_model_projection")
        .scale("layer_embedding.norm.0", "model.per_layer_projection_norm");
    // Files can have keys and values of layers that use the keys and values of another layer. The classes ignore them.
    let shared = (0..layers).filter(|layer| config.key_layer(*layer).is_some());
    let keys = shared.fold(keys, |keys, layer| {
        ["k_proj", "v_proj", "k_norm", "v_norm"]
            .iter()
            .fold(keys, |keys, name| keys.ignore(&format!("model.layers.{layer}.self_attn.{name}.weight")))
    });
    Ok((config, keys.and(llama_keys())))
}

/// Returns the first of the layers at the end that use the keys and values of earlier layers.
fn first_shared_layer(fields: &Fields, layers: usize) -> Result<usize> {
    Ok(layers.saturating_sub(fields.natural("num_kv_shared_layers")?))
}

/// Returns the last layer before `first_shared` that has a window if `layer` has one, and none otherwise.
fn lender(config: &DecoderConfig, first_shared: usize, layer: usize) -> Option<usize> {
    (0..first_shared).rev().find(|earlier| config.window(*earlier).is_some() == config.window(layer).is_some())
}

/// Reads the parts of Gemma 3n: streams of features, and sparse gates.
fn third(fields: &Fields, config: &mut DecoderConfig) -> Result<KeyMap> {
    config.streams = Some(StreamsConfig {
        count: fields.layers("altup_num_inputs")?,
        active: fields.natural("altup_active_idx")?,
        scales_active: fields.flag("altup_correct_scale")?,
        rank: fields.size("laurel_rank")?,
    });
    // Options of training.
    fields.skip(&["altup_coef_clip", "altup_lr_multiplier"]);
    config.gate_sparsity = match fields.value("activation_sparsity_pattern") {
        Some(Value::Array(_)) => fields.numbers("activation_sparsity_pattern")?,
        Some(_) => vec![fields.number("activation_sparsity_pattern")?; config.layers],
        None if config.layers > 10 => (0..config.layers).map(|layer| if layer < 10 { 0.95 } else { 0.0 }).collect(),
        None => Vec::new(),
    };
    let names = [Some("rope_theta"), Some("rope_local_base_freq")];
    let [global, local] = ropes(fields, config.head_dim, (names, [1_000_000.0, 10_000.0]))?;
    (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
    Ok(KeyMap::new()
        .scale("blocks[*].streams.norm.0", &of_layer("altup.router_norm"))
        .linear("blocks[*].streams.router", &of_layer("altup.modality_router"))
        .linear("blocks[*].streams.prediction", &of_layer("altup.prediction_coefs"))
        .linear("blocks[*].streams.correction", &of_layer("altup.correction_coefs"))
        .array("blocks[*].streams.scale", of_layer("altup.correct_output_scale"), Layout::Same)
        .linear("blocks[*].low_rank.down", &of_layer("laurel.linear_left"))
        .linear("blocks[*].low_rank.up", &of_layer("laurel.linear_right"))
        .scale("blocks[*].low_rank.norm.0", &of_layer("laurel.post_laurel_norm"))
        .linear("stream_inputs[*]", "model.altup_projections.*")
        .linear("stream_outputs[*]", "model.altup_unembed_projections.*"))
}

/// Reads the parts of Gemma 4: other heads in layers without a window, and factors of layers.
fn fourth(fields: &Fields, config: &mut DecoderConfig) -> Result<KeyMap> {
    match fields.text_opt("use_bidirectional_attention")? {
        None | Some("vision") => {}
        Some(other) => return Err(fields.error(format!("`use_bidirectional_attention` is {other:?}"))),
    }
    let layers = config.layers;
    // In the class, the last layer has no window.
    config.windows.iter_mut().skip(layers - 1).for_each(|window| *window = None);
    config.layer_scale = true;
    let shares_values = fields.flag("attention_k_eq_v")?;
    if shares_values {
        config.values_from_keys = config.windows.iter().map(Option::is_none).collect();
    }
    config.layer_heads = layer_heads(fields, config, shares_values)?;
    (config.positions, config.local_rope) = fourth_ropes(fields, config)?;
    let first_shared = first_shared_layer(fields, layers)?;
    if fields.flag("use_double_wide_mlp")? && first_shared < layers {
        let wide = config.hidden.saturating_mul(2);
        config.layer_hidden =
            (0..layers).map(|layer| if layer < first_shared { config.hidden } else { wide }).collect();
    }
    Ok(KeyMap::new().array("blocks[*].layer_scale", of_layer("layer_scalar"), Layout::Same))
}

/// Reads the experts of Gemma 4, which are next to the MLPs.
fn fourth_experts(fields: &Fields, config: &mut DecoderConfig) -> Result<KeyMap> {
    let sizes =
        (fields.size_opt("num_experts")?, fields.size_opt("top_k_experts")?, fields.size_opt("moe_intermediate_size")?);
    if !fields.flag("enable_moe_block")? {
        return Ok(KeyMap::new());
    }
    let (Some(count), Some(per_token), Some(hidden)) = sizes else {
        return Err(fields.error("`num_experts`, `top_k_experts` or `moe_intermediate_size` is missing"));
    };
    config.experts =
        Some(ExpertsConfig { per_token, capacity_factor: None, beside_mlp: true, ..ExpertsConfig::new(count, hidden) });
    let joined = of_layer("experts.gate_up_proj[#]");
    Ok(KeyMap::new()
        .linear(ROUTER, &of_layer("router.proj"))
        .array("blocks[*].beside.router_norm.0.scale", of_layer("router.scale"), Layout::Same)
        .array("blocks[*].beside.expert_scale", of_layer("router.per_expert_scale"), Layout::Same)
        .scale("blocks[*].beside.experts_norm.0", &of_layer("pre_feedforward_layernorm_2"))
        .scale("blocks[*].beside.mlp_output_norm.0", &of_layer("post_feedforward_layernorm_1"))
        .scale("blocks[*].beside.experts_output_norm.0", &of_layer("post_feedforward_layernorm_2"))
        .array(format!("{EXPERTS}.gate.kernel"), joined.as_str(), shared_rows(Some(hidden), 0))
        .array(format!("{EXPERTS}.up.kernel"), joined.as_str(), shared_rows(Some(hidden), 1))
        .array(format!("{EXPERTS}.down.kernel"), of_layer("experts.down_proj[#]"), Layout::Transposed))
}

/// Reads the heads of each layer. Newer files have an object with the fields of layers that differ. Older ones have fields
/// for layers without a window.
fn layer_heads(fields: &Fields, config: &DecoderConfig, shares_values: bool) -> Result<Vec<HeadSizes>> {
    let common = config.heads_of(0);
    let global = (fields.size_opt("global_head_dim")?, fields.size_opt("num_global_key_value_heads")?);
    let Some(about) = fields.object_opt("per_layer_config")? else {
        let global = HeadSizes {
            head_dim: global.0.unwrap_or(512),
            kv_heads: global.1.filter(|_| shares_values).unwrap_or(common.kv_heads),
            ..common
        };
        return Ok(config.windows.iter().map(|window| if window.is_some() { common } else { global }).collect());
    };
    let mut heads = vec![common; config.layers];
    // The entries are checked here, so the reader need not reject fields that nothing used.
    about.skip_all();
    for (name, value) in about.entries() {
        let index = name.parse::<usize>().ok().filter(|index| *index < config.layers);
        let (Some(index), Some(object)) = (index, value.as_object()) else {
            return Err(about.error(format!("`per_layer_config` has the entry {name:?}")));
        };
        for (name, value) in object {
            let size = value.as_u64().and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
            match (name.as_str(), size) {
                ("head_dim", Some(size)) => heads[index].head_dim = size,
                ("num_key_value_heads", Some(size)) => heads[index].kv_heads = size,
                _ => return Err(about.error(format!("`{name}` of layer {index} is {value}"))),
            }
        }
    }
    Ok(heads)
}

/// Reads the rotary positions of layers without and with a window.
fn fourth_ropes(fields: &Fields, config: &DecoderConfig) -> Result<(Positions, Option<Rope>)> {
    let head_dims = [false, true].map(|is_local| {
        let layer = (0..config.layers).find(|layer| config.window(*layer).is_some() == is_local);
        layer.map_or(config.head_dim, |layer| config.heads_of(layer).head_dim)
    });
    let proportional = RopeScaling::Proportional { pairs: head_dims[0] / 8, factor: 1.0 };
    let defaults = [Rope::new(1_000_000.0).scaling(proportional), Rope::new(10_000.0)];
    let [global, local] = ropes_by_type(fields, head_dims, defaults, None)?;
    Ok((Positions::Rotary(global), Some(local)))
}

/// Reads a list with the size of each layer. Returns `None` if the field is a number.
fn sizes_of_layers<'a>(fields: &Fields<'a>, name: &'a str) -> Result<Option<Vec<usize>>> {
    let Some(list) = fields.value(name).and_then(Value::as_array) else { return Ok(None) };
    let sizes: Option<Vec<usize>> =
        list.iter().map(|size| size.as_u64().and_then(|size| usize::try_from(size).ok())).collect();
    sizes.map(Some).ok_or_else(|| fields.error(format!("field `{name}` must have the size of each layer")))
}
