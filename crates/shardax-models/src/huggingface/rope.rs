//! Rotary positions as `config.json` describes them.

use shardax::error::Result;
use shardax_nn::prelude::*;

use super::fields::Fields;

/// Reads rotary positions from `rope_parameters`, or from the older `rope_scaling` and `rope_theta`. `partial` is the
/// default share of each head that is rotated; `None` rotates all of it.
pub(crate) fn rope(fields: &Fields, head_dim: usize, partial: Option<f64>) -> Result<Rope> {
    rope_named(fields, head_dim, "rope_theta", partial.map(|default| ("partial_rotary_factor", default)))
}

/// Reads rotary positions of a model with other field names for the base and for the rotated share of each head. The
/// object of rotary positions has the usual names, and takes precedence.
pub(super) fn rope_named<'a>(
    fields: &Fields<'a>,
    head_dim: usize,
    theta: &'a str,
    partial: Option<(&'a str, f64)>,
) -> Result<Rope> {
    let theta = fields.number_or(theta, 10_000.0)?;
    let partial = match partial {
        Some((name, default)) => Some(fields.number_or(name, default)?),
        None => None,
    };
    match rope_object(fields)? {
        Some(about) => scaled_rope(fields, &about, theta, head_dim, partial),
        None => with_rotated_share(fields, Rope::new(theta), head_dim, partial),
    }
}

/// Returns the object that describes rotary positions. The older name takes precedence, as in transformers.
pub(super) fn rope_object<'a>(fields: &Fields<'a>) -> Result<Option<Fields<'a>>> {
    let (new, old) = (fields.object_opt("rope_parameters")?, fields.object_opt("rope_scaling")?);
    Ok(old.filter(|old| !old.is_empty()).or(new).filter(|about| !about.is_empty()))
}

/// Reads rotary positions from an object of a model's fields.
pub(super) fn scaled_rope(
    model: &Fields,
    about: &Fields,
    theta: f64,
    head_dim: usize,
    partial: Option<f64>,
) -> Result<Rope> {
    let kind = match about.text_opt("rope_type")? {
        Some(kind) => Some(kind),
        None => about.text_opt("type")?,
    };
    about.skip(&["type"]);
    let mut theta = about.number_or("rope_theta", theta)?;
    let scaling = match (kind.unwrap_or("default"), about.number_opt("alpha")?.filter(|alpha| *alpha != 0.0)) {
        // In Hunyuan's models this name means a base that does not depend on the length.
        ("dynamic" | "xdrope", Some(alpha)) if is_hunyuan(model) => {
            about.skip(&["factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"]);
            theta *= alpha.powf(head_dim as f64 / (head_dim as f64 - 2.0));
            RopeScaling::None
        }
        (_, Some(alpha)) => {
            return Err(about.error(format!("field `alpha` is {alpha}, which this model does not have")));
        }
        // The frequencies depend on all features of a head, although only a share of the pairs is rotated.
        ("proportional", None) => {
            let share = about.number_opt("partial_rotary_factor")?.or(partial).unwrap_or(1.0);
            let factor = about.number_or("factor", 1.0)?;
            about.finish()?;
            let pairs = (share * head_dim as f64 / 2.0) as usize;
            return Ok(Rope::new(theta).scaling(RopeScaling::Proportional { pairs, factor }));
        }
        (kind, None) => scaling(model, about, kind)?,
    };
    if model.has_sections {
        // The positions of a text without images are equal in all of these sections.
        about.skip(&["mrope_section", "mrope_interleaved", "xdrope_section"]);
    }
    if model.has_type("ministral3") || model.has_type("mistral4") {
        // A factor of queries, and the length of `yarn`, which it does not need.
        about.skip(&["llama_4_scaling_beta", "max_position_embeddings"]);
    }
    let partial = match (about.number_opt("partial_rotary_factor")?, partial) {
        (Some(share), None) if share != 1.0 => {
            return Err(
                about.error(format!("field `partial_rotary_factor` is {share}, which this model does not have"))
            );
        }
        (share, default) => share.or(default),
    };
    about.finish()?;
    with_rotated_share(about, Rope::new(theta).scaling(scaling), head_dim, partial)
}

/// Returns `true` for Hunyuan's models.
fn is_hunyuan(model: &Fields) -> bool {
    ["hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl", "hunyuan_vl_text"].iter().any(|kind| model.has_type(kind))
}

/// Reads the scaling of this kind.
fn scaling(model: &Fields, about: &Fields, kind: &str) -> Result<RopeScaling> {
    // Each kind reads only its own fields, because a field that nobody reads is an error.
    Ok(match kind {
        "default" => RopeScaling::None,
        "mrope" if model.has_sections => RopeScaling::None,
        "linear" => RopeScaling::Linear(about.number("factor")?),
        "dynamic" => RopeScaling::Dynamic {
            factor: about.number("factor")?,
            original_max_position: model.number("max_position_embeddings")?,
        },
        "llama3" => RopeScaling::Llama3 {
            factor: about.number("factor")?,
            low_freq_factor: about.number("low_freq_factor")?,
            high_freq_factor: about.number("high_freq_factor")?,
            original_max_position: original_positions(model, about)?,
        },
        "deepseek_yarn" if !model.has_type("sarvam_mla") => {
            return Err(
                about.error(format!("field `rope_type`: rotary positions of the kind {kind:?} are not supported"))
            );
        }
        "yarn" | "deepseek_yarn" => yarn_scaling(model, about)?,
        "longrope" | "su" => long_rope_scaling(model, about)?,
        other => {
            return Err(
                about.error(format!("field `rope_type`: rotary positions of the kind {other:?} are not supported"))
            );
        }
    })
}

/// Reads the scaling YaRN, whose factor of attention depends on two optional fields.
fn yarn_scaling(model: &Fields, about: &Fields) -> Result<RopeScaling> {
    let original = original_positions(model, about)?;
    let factor = factor_or_ratio(model, about, original)?;
    let scales = (about.number_opt("mscale")?, about.number_opt("mscale_all_dim")?);
    let default = match scales {
        (Some(scale), Some(all)) if scale != 0.0 && all != 0.0 => yarn_scale(factor, scale) / yarn_scale(factor, all),
        _ => yarn_scale(factor, 1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: about.number_or("beta_fast", 32.0)?,
        beta_slow: about.number_or("beta_slow", 1.0)?,
        original_max_position: original,
        truncate: about.flag_or("truncate", true)?,
        attention_factor: about.number_or("attention_factor", default)?,
    })
}

/// Reads the scaling LongRoPE, which has a factor for each frequency.
fn long_rope_scaling(model: &Fields, about: &Fields) -> Result<RopeScaling> {
    let original = original_positions(model, about)?;
    let factor = factor_or_ratio(model, about, original)?;
    let mut default = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
    let (short_factor, mut long_factor) = (about.numbers("short_factor")?, about.numbers("long_factor")?);
    if model.has_type("phimoe") {
        let [short, long] = [about.number("short_mscale")?, about.number("long_mscale")?];
        if short != long {
            return Err(
                about.error(format!("`short_mscale` is {short}, but `long_mscale` is {long}: both must be equal"))
            );
        }
        // The class uses the factors of short texts for texts of all lengths.
        (default, long_factor) = (short, short_factor.clone());
        about.skip(&["attention_factor"]);
    }
    Ok(RopeScaling::LongRope {
        short_factor,
        long_factor,
        original_max_position: original,
        attention_factor: if model.has_type("phimoe") {
            default
        } else {
            about.number_or("attention_factor", default)?
        },
    })
}

/// Returns the length of texts in the first training of the model: a field of the model or of the object of rotary
/// positions, otherwise the longest length.
fn original_positions(model: &Fields, about: &Fields) -> Result<f64> {
    if let Some(length) = model.number_opt("original_max_position_embeddings")? {
        about.skip(&["original_max_position_embeddings"]);
        return Ok(length);
    }
    match about.number_opt("original_max_position_embeddings")? {
        Some(length) => Ok(length),
        None => model.number("max_position_embeddings"),
    }
}

/// Returns the field `factor`, otherwise the ratio of the longest length to the original length.
fn factor_or_ratio(model: &Fields, about: &Fields, original: f64) -> Result<f64> {
    match about.number_opt("factor")? {
        Some(factor) => Ok(factor),
        None => Ok(model.number("max_position_embeddings")? / original),
    }
}

/// Returns YaRN's factor of attention for texts that are `factor` times longer than the original length.
pub(super) fn yarn_scale(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

/// Rotates only a part of the features of each head.
fn with_rotated_share(about: &Fields, rope: Rope, head_dim: usize, partial: Option<f64>) -> Result<Rope> {
    let share = partial.unwrap_or(1.0);
    let features = (head_dim as f64 * share) as usize;
    match share {
        1.0 => Ok(rope),
        _ if share > 0.0 && share < 1.0 && features > 0 && features.is_multiple_of(2) => Ok(rope.rotary_dim(features)),
        _ => Err(about.error(format!("`partial_rotary_factor` of {share} rotates {features} features of {head_dim}"))),
    }
}
