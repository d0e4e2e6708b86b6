//! Step 3.7's decoder of texts.

use shardax_nn::{Rope, RouterScores};

use super::super::rope::scaled_rope;
use super::experts::{EXPERTS, ROUTER, present_name};
use super::gemma::ropes_by_type;
use super::*;
use crate::{AttentionGate, ExpertsConfig, HeadSizes};

/// Reads Step 3.7's decoder: other numbers of heads in layers with a window, gates of heads, and bounded MLPs.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    // Published files have older names of some fields.
    let kv_name = present_name(fields, "num_key_value_heads", "num_attention_groups");
    let sized = DecoderConfig {
        hidden: fields.size("intermediate_size")?,
        epsilon: fields.number("rms_norm_eps")?,
        activation: fields.activation("hidden_act")?,
        ..sizes_with_key_heads(fields, kv_name)?
    };
    let layers = sized.layers;
    let count = fields.size(present_name(fields, "n_routed_experts", "moe_num_experts"))?;
    let hidden = fields.size("moe_intermediate_size")?;
    let experts = ExpertsConfig {
        per_token: fields.size(present_name(fields, "num_experts_per_tok", "moe_top_k"))?,
        capacity_factor: None,
        scores: RouterScores::Sigmoid,
        correction: true,
        scale: fields.number("moe_router_scaling_factor")?,
        shared_hidden: Some(fields.size(present_name(fields, "share_expert_dim", "share_expert_dims"))?),
        dense_layers: dense_layers(fields, layers)?,
        bounds: bounds(fields, "swiglu_limits", layers)?,
        ..ExpertsConfig::new(count, hidden)
    };
    let mut config = DecoderConfig {
        norm: NormKind::RmsOffset,
        qk_norm: QkNorm::Head,
        attention_gate: Some(AttentionGate { per_head: true, ..AttentionGate::default() }),
        attention_scale: fields.number_opt("query_pre_attn_scalar")?.map(|scalar| scalar.powf(-0.5)),
        mlp_bounds: bounds(fields, "swiglu_limits_shared", layers)?,
        experts: Some(experts),
        ..sized
    };
    config.windows = layer_windows(fields, layers)?;
    let common = config.heads_of(0);
    let local = HeadSizes { heads: heads_with_window(fields, common)?, ..common };
    fields.divides(("num_key_value_heads", local.kv_heads), ("num_sliding_attention_heads", local.heads))?;
    if local != common {
        let heads = config.windows.iter().map(|window| if window.is_some() { local } else { common });
        config.layer_heads = heads.collect();
    }
    check_layers(&config, fields)?;
    set_positions(&mut config, fields)?;
    // Layers that predict additional tokens.
    fields.skip(&["mtp_layer_types", "mtp_mlp_layer_types"]);
    let keys = keys().ignore(&format!("model.layers.{layers}.**"));
    Ok((config, keys.and(llama_keys())))
}

/// Returns the entries of a list for the layers. Published files add entries for layers that predict additional tokens.
fn entries<'a>(fields: &Fields<'a>, name: &'a str, layers: usize) -> Result<Option<&'a [serde_json::Value]>> {
    let Some(list) = fields.list_opt(name)? else { return Ok(None) };
    let added = fields.natural_or("num_nextn_predict_layers", 0)?;
    if list.len() == layers || list.len() == layers.saturating_add(added) {
        Ok(list.get(..layers))
    } else {
        Err(fields.error(format!("`{name}` has {} entries for {layers} layers", list.len())))
    }
}

/// Returns the window of each layer.
fn layer_windows(fields: &Fields, layers: usize) -> Result<Vec<Option<usize>>> {
    let window = fields.size_opt("sliding_window")?;
    let Some(types) = entries(fields, "layer_types", layers)? else { return Ok(vec![None; layers]) };
    let windows = types.iter().map(|entry| match (entry.as_str(), window) {
        (Some("full_attention"), _) => Ok(None),
        (Some("sliding_attention"), Some(window)) => Ok(Some(window)),
        _ => Err(fields.error(format!("the layer type {entry} with the window {window:?} is not supported"))),
    });
    windows.collect()
}

/// Returns the layers without experts, from a list of types, or from the indices of the layers with experts.
fn dense_layers(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    if let Some(types) = entries(fields, "mlp_layer_types", layers)? {
        fields.skip(&["moe_layers_enum"]);
        let dense = types.iter().map(|entry| match entry.as_str() {
            Some("dense") => Ok(true),
            Some("sparse") => Ok(false),
            _ => Err(fields.error(format!("the entry {entry} of `mlp_layer_types` is not supported"))),
        });
        return dense.collect();
    }
    let listed: Option<Vec<usize>> = match fields.value("moe_layers_enum").filter(|value| !value.is_null()) {
        None => return Ok((0..layers).map(|layer| layer < 3).collect()),
        Some(serde_json::Value::String(text)) => {
            text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(|item| item.parse().ok()).collect()
        }
        Some(serde_json::Value::Array(list)) => list.iter().map(|item| item.as_u64()?.try_into().ok()).collect(),
        Some(_) => None,
    };
    match listed {
        Some(listed) => Ok((0..layers).map(|layer| !listed.contains(&layer)).collect()),
        None => Err(fields.error("`moe_layers_enum` must have the indices of layers, separated by commas")),
    }
}

/// Returns the number of query heads in layers with a window.
fn heads_with_window(fields: &Fields, common: HeadSizes) -> Result<usize> {
    let heads = fields.size_opt("num_sliding_attention_heads")?;
    let Some(other) = fields.object_opt("attention_other_setting")? else { return Ok(heads.unwrap_or(common.heads)) };
    other.skip(&["attention_type", "true_head_dim"]);
    for (name, expected) in [("num_attention_groups", common.kv_heads), ("head_dim", common.head_dim)] {
        if let Some(size) = other.size_opt(name)?.filter(|size| *size != expected) {
            return Err(other.error(format!("`{name}` is {size}, but transformers computes with {expected}")));
        }
    }
    let older = other.size_opt("num_attention_heads")?.unwrap_or(common.heads);
    other.finish()?;
    Ok(heads.unwrap_or(older))
}

/// Sets the rotary positions of published files, which have lists with an entry for each layer.
fn set_listed_positions(config: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    let bases = entries(fields, "rope_theta", config.layers)?;
    let shares = entries(fields, "partial_rotary_factors", config.layers)?;
    let scaling = fields.object_opt("rope_scaling")?.filter(|about| !about.is_empty());
    // transformers reads the entries of the first layer of each type.
    let of_type = |is_local: bool| -> Result<Rope> {
        let first = (0..config.layers).find(|layer| config.window(*layer).is_some() == is_local).unwrap_or(0);
        let number = |list: Option<&[serde_json::Value]>, default: f64| {
            list.and_then(|list| list.get(first)).map_or(Some(default), serde_json::Value::as_f64)
        };
        let (Some(base), Some(share)) = (number(bases, 10_000.0), number(shares, 1.0)) else {
            return Err(fields.error("`rope_theta` and `partial_rotary_factors` must have a number for each layer"));
        };
        match &scaling {
            Some(about) if !is_local => scaled_rope(fields, about, base, config.head_dim, Some(share)),
            _ => Ok(Rope::new(base).rotary_dim((config.head_dim as f64 * share) as usize)),
        }
    };
    let (global, local) = (of_type(false)?, of_type(true)?);
    (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
    Ok(())
}

/// Sets the rotary positions. The object of both types of layers replaces the base outside of it.
fn set_positions(config: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    let types = fields.object_opt("rope_parameters")?.filter(|types| !types.is_empty());
    if types.is_none()
        && (fields.has("partial_rotary_factors") || fields.value("rope_theta").is_some_and(|base| base.is_array()))
    {
        return set_listed_positions(config, fields);
    }
    let rope = match &types {
        Some(_) => Rope::default(),
        None => Rope::new(fields.number_or("rope_theta", 10_000.0)?),
    };
    let used = [("full_attention", None), ("sliding_attention", Some(()))];
    for (name, window) in used {
        let is_used = (0..config.layers).any(|layer| config.window(layer).map(drop) == window);
        if is_used && types.as_ref().is_some_and(|types| !types.has(name)) {
            return Err(fields.error(format!("`rope_parameters` has no object `{name}`, which some layers need")));
        }
    }
    fields.skip(&["rope_theta"]);
    let [global, local] = ropes_by_type(fields, [config.head_dim; 2], [rope.clone(), rope], Some(1.0))?;
    (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
    Ok(())
}

/// Reads the bound of each layer. A bound of null or 0 is no bound.
fn bounds<'a>(fields: &Fields<'a>, name: &'a str, layers: usize) -> Result<Vec<Option<f64>>> {
    let Some(list) = entries(fields, name, layers)? else { return Ok(Vec::new()) };
    let bounds = list.iter().map(|entry| match entry.as_f64() {
        Some(bound) if bound >= 0.0 => Ok(Some(bound).filter(|bound| *bound > 0.0)),
        None if entry.is_null() => Ok(None),
        _ => Err(fields.error(format!("the entry {entry} of `{name}` is not supported"))),
    });
    bounds.collect()
}

/// Checks the object with the fields of single layers. It can only repeat the heads of layers with a window.
fn check_layers(config: &DecoderConfig, fields: &Fields) -> Result<()> {
    let Some(value) = fields.value("per_layer_config") else { return Ok(()) };
    let with_window = (0..config.layers).filter(|layer| config.window(*layer).is_some());
    let expected: serde_json::Map<_, _> = with_window
        .map(|layer| (layer.to_string(), serde_json::json!({ "num_attention_heads": config.heads_of(layer).heads })))
        .collect();
    if value.as_object() == Some(&expected) {
        Ok(())
    } else {
        Err(fields.error("`per_layer_config` differs from `num_sliding_attention_heads`"))
    }
}

/// Returns the names that differ from Llama's, as published files have them.
fn keys() -> KeyMap {
    let (moe, shared) = ("model.layers.*.moe", "model.layers.*.share_expert");
    KeyMap::new()
        .linear(ROUTER, &format!("{moe}.gate"))
        .array("blocks[*].experts.correction", format!("{moe}.router_bias"), Layout::Same)
        .array(format!("{EXPERTS}.gate.kernel"), format!("{moe}.gate_proj.weight[#]"), Layout::Transposed)
        .array(format!("{EXPERTS}.up.kernel"), format!("{moe}.up_proj.weight[#]"), Layout::Transposed)
        .array(format!("{EXPERTS}.down.kernel"), format!("{moe}.down_proj.weight[#]"), Layout::Transposed)
        .and(super::experts::shared_keys(shared))
        .linear("blocks[*].attention.gate", "model.layers.*.self_attn.g_proj")
}
