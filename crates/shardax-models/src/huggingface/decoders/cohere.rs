//! Cohere's dense models.

use shardax_nn::Rope;

use super::super::rope::scaled_rope;
use super::llama::{attention_biases, interleave};
use super::*;

/// Reads Cohere's models, in which attention and MLP have one normalized input.
pub(super) fn read(fields: &Fields, kind: &str) -> Read {
    let mut config = DecoderConfig {
        norm: NormKind::LayerScale,
        epsilon: fields.number("layer_norm_eps")?,
        activation: fields.activation("hidden_act")?,
        biases: attention_biases(fields)?,
        logits_scale: Some(fields.number("logit_scale")?),
        parallel: true,
        shared_norm: true,
        ..sizes(fields)?
    };
    rotary(&mut config, fields, None)?;
    interleave(&mut config);
    if kind == "cohere2" {
        // Early configurations contain these fields, whose values are the same in all models of this type.
        fields.skip(&["layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct"]);
        fields.skip(&["use_embedding_sharing", "use_gated_activation", "use_parallel_block"]);
        let pattern = fields.size_opt("sliding_window_pattern")?.unwrap_or(4);
        let window = fields.size_opt("sliding_window")?;
        config.windows = windows(fields, config.layers, window, |layer| !(layer + 1).is_multiple_of(pattern))?;
        config.without_rope = config.windows.iter().map(Option::is_none).collect();
    }
    if kind == "cohere" && fields.flag("use_qk_norm")? {
        config.qk_norm = QkNorm::EachHead;
    }
    let keys = KeyMap::new()
        .array("blocks[*].attention.query_scale", "model.layers.*.self_attn.q_norm.weight", Layout::Same)
        .array("blocks[*].attention.key_scale", "model.layers.*.self_attn.k_norm.weight", Layout::Same);
    Ok((config, keys.and(llama_keys())))
}

/// Reads the text of Compass, whose rotary positions differ between layers with and without a window. A type of layers can have
/// none.
pub(super) fn compass(fields: &Fields, _: &str) -> Read {
    let mut config = DecoderConfig {
        norm: NormKind::LayerScale,
        epsilon: fields.number("layer_norm_eps")?,
        activation: fields.activation("hidden_act")?,
        biases: attention_biases(fields)?,
        logits_scale: fields.number_opt("logit_scale")?,
        parallel: true,
        shared_norm: true,
        ..sizes(fields)?
    };
    config.windows = windows(fields, config.layers, fields.size_opt("sliding_window")?, |_| false)?;
    set_ropes_by_type(&mut config, fields, None)?;
    // The pooling of a head for classes.
    fields.skip(&["pooling", "sliding_window_pattern"]);
    Ok((config, llama_keys()))
}

/// Sets the rotary positions of layers without and with a window, from the objects of both types in `rope_parameters`. A type
/// that is null has no positions. Without the field, the types have the `defaults`.
pub(super) fn set_ropes_by_type(
    config: &mut DecoderConfig,
    fields: &Fields,
    defaults: Option<[Option<Rope>; 2]>,
) -> Result<()> {
    let [global, local] = match (fields.object_opt("rope_parameters")?, defaults) {
        (Some(types), _) => {
            check_types(fields, &types, &config.windows)?;
            let ropes = ["full_attention", "sliding_attention"].map(|name| -> Result<Option<Rope>> {
                let Some(about) = types.object_opt(name)? else { return Ok(None) };
                scaled_rope(fields, &about, about.number("rope_theta")?, config.head_dim, None).map(Some)
            });
            types.finish()?;
            let [global, local] = ropes;
            [global?, local?]
        }
        (None, Some(defaults)) => defaults,
        (None, None) => return Err(fields.error("missing field `rope_parameters`")),
    };
    let has_rope = |window: &Option<usize>| if window.is_some() { local.is_some() } else { global.is_some() };
    config.without_rope = config.windows.iter().map(|window| !has_rope(window)).collect();
    config.positions = Positions::Rotary(global.unwrap_or_default());
    config.local_rope = local;
    Ok(())
}

/// Checks that `rope_parameters` has an entry for each type of layers that the model has. An entry of null turns positions off, but
/// the class fails without an entry.
fn check_types(fields: &Fields, types: &Fields, windows: &[Option<usize>]) -> Result<()> {
    let is_used = [windows.iter().any(Option::is_none), windows.iter().any(Option::is_some)];
    for (name, is_used) in ["full_attention", "sliding_attention"].into_iter().zip(is_used) {
        if is_used && !types.has(name) && !types.is_null(name) {
            return Err(fields.error(format!(
                "`rope_parameters` has no entry `{name}`, but the model has layers of this type; null would be no positions"
            )));
        }
    }
    Ok(())
}
