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
    let is_local = |layer: usize| config.windows.get(layer).is_some_and(Option::is_some);
    let Some(types) = fields.object_opt("rope_parameters")? else {
        return Err(fields.error("missing field `rope_parameters`"));
    };
    // An object of a type of layers can be missing if there are no such layers.
    let [global, local] = ["full_attention", "sliding_attention"].map(|name| -> Result<Option<Rope>> {
        match types.object_opt(name)? {
            Some(about) => Ok(Some(scaled_rope(fields, &about, about.number("rope_theta")?, config.head_dim, None)?)),
            None => Ok(None),
        }
    });
    types.finish()?;
    let (global, local) = (global?, local?);
    config.without_rope =
        (0..config.layers).map(|layer| if is_local(layer) { local.is_none() } else { global.is_none() }).collect();
    config.positions = Positions::Rotary(global.unwrap_or_default());
    config.local_rope = local;
    // The pooling of a head for classes.
    fields.skip(&["pooling", "sliding_window_pattern"]);
    Ok((config, llama_keys()))
}
