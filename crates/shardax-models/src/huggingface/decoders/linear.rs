//! Linear attention, which several families have.

use super::*;

/// Returns for each layer whether it has linear attention.
pub(super) fn layers_with_linear_attention(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    let types = fields.list_opt("layer_types")?;
    let has_linear = match types {
        Some(types) if types.len() != layers => {
            return Err(fields.error(format!("`layer_types` has {} entries for {layers} layers", types.len())));
        }
        Some(types) => types.iter().map(|entry| is_linear(entry, fields)).collect::<Result<Vec<bool>>>()?,
        None => {
            let interval = fields.size_opt("full_attention_interval")?.unwrap_or(4);
            (0..layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect()
        }
    };
    fields.skip(&["full_attention_interval"]);
    Ok(has_linear)
}

/// Returns `true` for the name of a layer with linear attention.
pub(super) fn is_linear(entry: &serde_json::Value, fields: &Fields) -> Result<bool> {
    match entry.as_str() {
        Some("linear_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(fields.error(format!("`layer_types` has the layer type {entry}, which is not supported"))),
    }
}

/// The name of an array of the layers' linear attention.
pub(super) fn layer(name: &str) -> String {
    format!("model.layers.*.linear_attn.{name}")
}

/// Adds the names of linear attention whose queries, keys and values have separate arrays.
pub(super) fn separate_delta_keys(keys: KeyMap, attention: &str) -> KeyMap {
    let parts = [("query", "q"), ("key", "k"), ("value", "v")];
    let keys = parts.into_iter().fold(keys, |keys, (part, name)| {
        keys.linear(&format!("blocks[*].delta.{part}"), &format!("{attention}.{name}_proj")).array(
            format!("blocks[*].delta.{part}_taps"),
            format!("{attention}.{name}_conv1d.weight"),
            Layout::Transposed,
        )
    });
    keys.linear("blocks[*].delta.write", &format!("{attention}.b_proj"))
        .linear("blocks[*].delta.out", &format!("{attention}.o_proj"))
}
