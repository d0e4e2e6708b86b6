//! Granite's models with windows.

use super::experts::{EXPERTS, ROUTER, experts as sized_experts, granite_shared, shared_rows};
use super::llama::{attention_biases, granite_factors};
use super::*;
use crate::ExpertsConfig;

/// Reads Granite models with windows, attention sinks, and a separate base of rotary positions for each layer.
pub(super) fn read(fields: &Fields, kind: &str) -> Read {
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
    let shared = Some(fields.natural("shared_intermediate_size")?).filter(|hidden| *hidden > 0);
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
        if used.all(|base| Some(base) == first) {
            Ok(shardax_nn::Rope { base: first.unwrap_or(rope.base), ..rope.clone() })
        } else {
            Err(fields.error("`layer_rope_theta` has different numbers for layers of the same type"))
        }
    });
    (config.positions, config.local_rope) = (Positions::Rotary(global?), Some(local?));
    Ok(())
}
