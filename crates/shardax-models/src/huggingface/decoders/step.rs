//! Step 3.7's decoder of texts.

use shardax_nn::{Rope, RouterScores};

use super::experts::{EXPERTS, ROUTER, experts as sized_experts, first_dense_layers};
use super::gemma::ropes_by_type;
use super::*;
use crate::{AttentionGate, ExpertsConfig, HeadSizes};

/// Reads Step 3.7's decoder: other numbers of heads in layers with a window, gates of heads, and bounded MLPs.
pub(super) fn read(fields: &Fields, _: &str) -> Read {
    let sized = llama_sizes(fields)?;
    let layers = sized.layers;
    let dense_layers = match fields.has("mlp_layer_types") {
        true => first_dense_layers(fields, layers)?,
        false => (0..layers).map(|layer| layer < 3).collect(),
    };
    let hidden = fields.size("moe_intermediate_size")?;
    let experts = ExpertsConfig {
        scores: RouterScores::Sigmoid,
        correction: true,
        scale: fields.number("moe_router_scaling_factor")?,
        shared_hidden: Some(fields.size("share_expert_dim")?),
        dense_layers,
        bounds: bounds(fields, "swiglu_limits", layers)?,
        ..sized_experts(fields, fields.size("n_routed_experts")?, hidden)?
    };
    let mut config = DecoderConfig {
        norm: NormKind::RmsOffset,
        qk_norm: QkNorm::Head,
        attention_gate: Some(AttentionGate { per_head: true, softplus: false }),
        attention_scale: fields.number_opt("query_pre_attn_scalar")?.map(|scalar| scalar.powf(-0.5)),
        mlp_bounds: bounds(fields, "swiglu_limits_shared", layers)?,
        experts: Some(experts),
        ..sized
    };
    config.windows = windows(fields, layers, fields.size_opt("sliding_window")?, |_| false)?;
    let common = config.heads_of(0);
    let local = HeadSizes { heads: fields.size_opt("num_sliding_attention_heads")?.unwrap_or(common.heads), ..common };
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

/// Sets the rotary positions. The object of both types of layers replaces the base outside of it.
fn set_positions(config: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    let types = fields.object_opt("rope_parameters")?;
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
    let Some(list) = fields.list_opt(name)? else { return Ok(Vec::new()) };
    if list.len() != layers {
        return Err(fields.error(format!("`{name}` has {} entries for {layers} layers", list.len())));
    }
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
    match value.as_object() == Some(&expected) {
        true => Ok(()),
        false => Err(fields.error("`per_layer_config` differs from `num_sliding_attention_heads`")),
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
