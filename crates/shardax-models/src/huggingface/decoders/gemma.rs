//! Gemma's models.

use shardax_nn::Rope;

use super::super::config::{rope_object, scaled_rope};
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
    // Of Gemma both names were read at a time; later models read the newer one alone.
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
    config.post_norms = true;
    if is_third {
        config.qk_norm = QkNorm::Head;
    }
    config.attention_scale = Some(fields.number("query_pre_attn_scalar")?.powf(-0.5));
    config.attention_soft_cap = fields.number_opt("attn_logit_softcapping")?;
    config.logits_soft_cap = fields.number_opt("final_logit_softcapping")?;
    let window = fields.size_opt("sliding_window")?;
    let named = if is_third { "sliding_window_pattern" } else { "_sliding_window_pattern" };
    let pattern = match fields.size_opt(named)? {
        Some(pattern) => pattern,
        None => fields.size_opt("_sliding_window_pattern")?.unwrap_or(if is_third { 6 } else { 2 }),
    };
    config.windows = windows(fields, config.layers, window, |layer| !(layer + 1).is_multiple_of(pattern))?;
    if is_third {
        let theta = ("rope_local_base_freq", [1_000_000.0, 10_000.0]);
        let [global, local] = ropes(fields, config.head_dim, theta)?;
        (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
    } else {
        rotary(&mut config, fields, None)?;
    }
    let keys = KeyMap::new()
        .scale("blocks[*].post_attention_norm.0", "model.layers.*.post_attention_layernorm")
        .scale("blocks[*].mlp_norm.0", "model.layers.*.pre_feedforward_layernorm")
        .scale("blocks[*].post_mlp_norm.0", "model.layers.*.post_feedforward_layernorm");
    Ok((config, keys.and(llama_keys())))
}

/// The rotary positions of layers without and with a window, of one object for each or of older fields: `rope_theta`, and the field of
/// this name for layers with a window. The bases are the defaults.
pub(super) fn ropes<'a>(
    fields: &Fields<'a>,
    head_dim: usize,
    (local, bases): (&'a str, [f64; 2]),
) -> Result<[Rope; 2]> {
    let theta_of = |name, default| if fields.has(name) { fields.number(name) } else { Ok(default) };
    let theta = [theta_of("rope_theta", bases[0])?, theta_of(local, bases[1])?];
    let about = match rope_object(fields)? {
        Some(types) if types.has("full_attention") || types.has("sliding_attention") => {
            let ropes = [types.object_opt("full_attention")?, types.object_opt("sliding_attention")?];
            types.finish()?;
            ropes
        }
        global => [global, None],
    };
    let scaled = |about: &Option<Fields>, theta: f64| match about {
        Some(about) => scaled_rope(fields, about, theta, head_dim, None),
        None => Ok(Rope::new(theta)),
    };
    Ok([scaled(&about[0], theta[0])?, scaled(&about[1], theta[1])?])
}
