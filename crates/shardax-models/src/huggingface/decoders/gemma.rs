//! Gemma's models.

use shardax_nn::Rope;

use super::super::rope::scaled_rope;
use super::*;

pub(super) fn read(fields: &Fields, kind: &str) -> Read {
    let sized = sizes(fields)?;
    let attention = fields.flag("attention_bias")?;
    let mut config = DecoderConfig {
        norm: NormKind::RmsOffset,
        epsilon: fields.number("rms_norm_eps")?,
        embedding_scale: Some((sized.features as f64).sqrt()),
        biases: Biases { qkv: attention, out: attention, ..Biases::NONE },
        ..sized
    };
    // The class of Gemma has used both names of the activation. Later models use only the newer one.
    config.activation = match kind {
        "gemma" if !fields.has("hidden_activation") => fields.activation("hidden_act")?,
        _ => {
            fields.skip(&["hidden_act"]);
            fields.activation("hidden_activation")?
        }
    };
    if kind == "gemma" {
        rotary(&mut config, fields, None)?;
        return Ok((config, llama_keys()));
    }
    let is_third = kind == "gemma3_text";
    config.post_norms = kind != "vaultgemma";
    if is_third {
        config.qk_norm = QkNorm::Head;
    }
    config.attention_scale = Some(fields.number("query_pre_attn_scalar")?.powf(-0.5));
    if !is_third {
        config.attention_soft_cap = fields.number_opt("attn_logit_softcapping")?;
    }
    config.logits_soft_cap = fields.number_opt("final_logit_softcapping")?;
    let window = fields.size_opt("sliding_window")?;
    // Newer versions write both the pattern and `layer_types`, but read only the list.
    let pattern = if is_third { fields.size_opt("sliding_window_pattern")?.unwrap_or(6) } else { 2 };
    match fields.size_opt("_sliding_window_pattern")? {
        Some(other) if other != pattern && !fields.has("layer_types") => {
            let message =
                format!("field `_sliding_window_pattern` is {other}, and transformers has windows by {pattern}");
            return Err(fields.error(message));
        }
        _ => {}
    }
    config.bidirectional = is_third && fields.flag("use_bidirectional_attention")?;
    // In a model of embeddings, half of a window is on each side of a position.
    let window = window.map(|window| if config.bidirectional { window / 2 + 1 } else { window });
    config.windows = windows(fields, config.layers, window, |layer| !(layer + 1).is_multiple_of(pattern))?;
    if is_third {
        let theta = ([Some("rope_theta"), Some("rope_local_base_freq")], [1_000_000.0, 10_000.0]);
        let [global, local] = ropes(fields, config.head_dim, theta)?;
        (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
    } else {
        rotary(&mut config, fields, None)?;
    }
    // Blocks without norms of outputs also have the newer name for the norm before the MLP.
    let keys = KeyMap::new()
        .scale("blocks[*].post_attention_norm.0", "model.layers.*.post_attention_layernorm")
        .scale("blocks[*].mlp_norm.0", "model.layers.*.pre_feedforward_layernorm")
        .scale("blocks[*].post_mlp_norm.0", "model.layers.*.post_feedforward_layernorm");
    Ok((config, keys.and(llama_keys())))
}

/// Reads the rotary positions of layers without and with a window, whose heads have these features, from the objects of
/// both types in `rope_parameters`. `share` is as in [`scaled_rope`].
pub(super) fn ropes_by_type(
    fields: &Fields,
    head_dims: [usize; 2],
    defaults: [Rope; 2],
    share: Option<f64>,
) -> Result<[Rope; 2]> {
    let Some(types) = fields.object_opt("rope_parameters")? else { return Ok(defaults) };
    let [global, local] =
        [("full_attention", head_dims[0]), ("sliding_attention", head_dims[1])].map(|(name, head_dim)| {
            match types.object_opt(name)? {
                Some(about) => scaled_rope(fields, &about, about.number("rope_theta")?, head_dim, share),
                None => Ok(Rope::default()),
            }
        });
    types.finish()?;
    Ok([global?, local?])
}

/// Reads the rotary positions of layers without and with a window. `rope_parameters` has an object for each of both. Older
/// files have `rope_scaling`, which applies to layers without a window, and the bases in fields with these names; the
/// numbers are their defaults.
pub(super) fn ropes<'a>(
    fields: &Fields<'a>,
    head_dim: usize,
    (names, bases): ([Option<&'a str>; 2], [f64; 2]),
) -> Result<[Rope; 2]> {
    let mut theta = bases;
    for (theta, name) in theta.iter_mut().zip(names) {
        // The defaults of the class do not apply to this field.
        if let Some(name) = name.filter(|name| fields.has(name)) {
            *theta = fields.number(name)?;
        }
    }
    let objects = [fields.object_opt("rope_parameters")?, fields.object_opt("rope_scaling")?];
    let about = match objects.map(|object| object.filter(|object| !object.is_empty())) {
        [Some(_), Some(_)] => {
            return Err(fields.error("both `rope_parameters` and `rope_scaling` describe rotary positions"));
        }
        [Some(types), None] => {
            let ropes = [types.object_opt("full_attention")?, types.object_opt("sliding_attention")?];
            types.finish()?;
            ropes
        }
        // transformers does not read the older name of the field for this model, so it would not scale positions.
        [None, Some(global)] if !global.has("rope_type") => {
            return Err(global.error("missing field `rope_type`"));
        }
        [None, global] => [global, None],
    };
    let [local, global] = [0, 1].map(|kind| match &about[kind] {
        Some(about) => scaled_rope(fields, about, theta[kind], head_dim, None),
        None => Ok(Rope::new(theta[kind])),
    });
    Ok([local?, global?])
}
