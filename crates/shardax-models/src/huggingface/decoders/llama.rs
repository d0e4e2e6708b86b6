//! Llama, and the models that differ from it by a few fields.

use super::gemma::ropes;
use super::*;
use crate::Activation;

/// Reads the models that have Llama's blocks.
pub(super) fn read(fields: &Fields, kind: &str) -> Read {
    let mut config = llama_sizes(fields)?;
    rotary(&mut config, fields, None)?;
    config.biases = match kind {
        "llama" | "arcee" => biases(fields)?,
        "helium" => Biases { out: false, ..biases(fields)? },
        "seed_oss" => Biases { out: fields.flag("attention_out_bias")?, ..biases(fields)? },
        "qwen3" => attention_biases(fields)?,
        "ernie4_5" => {
            let all = fields.flag("use_bias")?;
            Biases { qkv: all, out: all, mlp: all, head: false }
        }
        "qwen2" => Biases { qkv: true, ..Biases::NONE },
        _ => Biases::NONE,
    };
    if kind == "qwen3" {
        config.qk_norm = QkNorm::Head;
    }
    // Arcee's MLP has no gate.
    config.gated = kind != "arcee";
    if matches!(kind, "helium" | "ernie4_5") {
        interleave(&mut config);
    }
    config.windows = match kind {
        "mistral" => windows(fields, config.layers, fields.size_opt("sliding_window")?, |_| true)?,
        "qwen2" | "qwen3" => qwen_windows(fields, config.layers)?,
        _ => windows(fields, config.layers, None, |_| false)?,
    };
    Ok((config, llama_keys()))
}

/// Reads the models that have Llama's names, and other blocks.
pub(super) fn read_variant(fields: &Fields, kind: &str) -> Read {
    match kind {
        "granite" => granite(fields),
        "smollm3" => smollm3(fields),
        "olmo" => olmo(fields),
        "olmo2" | "olmo3" => olmo2(fields, kind),
        "stablelm" => stablelm(fields),
        "starcoder2" => starcoder2(fields),
        _ => cohere(fields, kind),
    }
}

/// Turns pairs of neighboring features.
pub(super) fn interleave(config: &mut DecoderConfig) {
    if let Positions::Rotary(rope) = &mut config.positions {
        rope.interleaved = true;
    }
}

/// The biases of attention and of MLPs, by the fields of these names.
fn biases(fields: &Fields) -> Result<Biases> {
    Ok(Biases { mlp: fields.flag("mlp_bias")?, ..attention_biases(fields)? })
}

/// The biases of attention, by the field of this name.
pub(super) fn attention_biases(fields: &Fields) -> Result<Biases> {
    let attention = fields.flag("attention_bias")?;
    Ok(Biases { qkv: attention, out: attention, ..Biases::NONE })
}

/// Sets the factors of Granite's models.
pub(super) fn granite_factors(config: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    let factor = |name| -> Result<Option<f64>> { Ok(Some(fields.number(name)?).filter(|factor| *factor != 1.0)) };
    config.embedding_scale = factor("embedding_multiplier")?;
    config.residual_scale = factor("residual_multiplier")?;
    config.attention_scale = Some(fields.number("attention_multiplier")?);
    config.logits_scale = factor("logits_scaling")?.map(f64::recip);
    Ok(())
}

fn granite(fields: &Fields) -> Read {
    let mut config = DecoderConfig { biases: biases(fields)?, ..llama_sizes(fields)? };
    rotary(&mut config, fields, None)?;
    granite_factors(&mut config, fields)?;
    Ok((config, llama_keys()))
}

fn smollm3(fields: &Fields) -> Read {
    let mut config = DecoderConfig { biases: biases(fields)?, ..llama_sizes(fields)? };
    rotary(&mut config, fields, None)?;
    let interval = fields.size("no_rope_layer_interval")?;
    let with_rope = fields.list_opt("no_rope_layers")?;
    if let Some(list) = with_rope.filter(|list| list.len() != config.layers) {
        let what = format!("`no_rope_layers` has {} entries for {} layers", list.len(), config.layers);
        return Err(fields.error(what));
    }
    // The field's name notwithstanding, its entries are 1 for layers with rotary positions.
    let without = |layer: usize| match with_rope {
        Some(list) => list[layer].as_u64() == Some(0),
        None => (layer + 1).is_multiple_of(interval),
    };
    config.without_rope = (0..config.layers).map(without).collect();
    fields.skip(&["max_window_layers"]);
    let is_used = fields.flag("use_sliding_window")?;
    let window = fields.size_opt("sliding_window")?.filter(|_| is_used);
    config.windows = windows(fields, config.layers, window, without)?;
    Ok((config, llama_keys()))
}

fn olmo(fields: &Fields) -> Read {
    let mut config = DecoderConfig {
        norm: NormKind::LayerPlain,
        epsilon: 1e-5,
        activation: fields.activation("hidden_act")?,
        biases: attention_biases(fields)?,
        ..sizes(fields)?
    };
    rotary(&mut config, fields, None)?;
    Ok((config, llama_keys()))
}

fn olmo2(fields: &Fields, kind: &str) -> Read {
    let mut config = DecoderConfig {
        biases: attention_biases(fields)?,
        pre_norms: false,
        post_norms: true,
        qk_norm: QkNorm::AllHeads,
        ..llama_sizes(fields)?
    };
    if kind == "olmo3" {
        let window = fields.size_opt("sliding_window")?;
        config.windows = windows(fields, config.layers, window, |layer| !(layer + 1).is_multiple_of(4))?;
        let [global, local] = ropes(fields, config.head_dim, ("rope_theta", [500_000.0; 2]))?;
        (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
    } else {
        rotary(&mut config, fields, None)?;
    }
    let keys = KeyMap::new()
        .scale("blocks[*].post_attention_norm.0", "model.layers.*.post_attention_layernorm")
        .scale("blocks[*].post_mlp_norm.0", "model.layers.*.post_feedforward_layernorm");
    Ok((config, keys.and(llama_keys())))
}

fn stablelm(fields: &Fields) -> Read {
    let parallel = fields.flag("use_parallel_residual")?;
    let mut config = DecoderConfig {
        norm: NormKind::Layer,
        epsilon: fields.number("layer_norm_eps")?,
        activation: fields.activation("hidden_act")?,
        biases: Biases { qkv: fields.flag("use_qkv_bias")?, ..Biases::NONE },
        parallel,
        shared_norm: parallel,
        ..sizes(fields)?
    };
    rotary(&mut config, fields, Some(0.25))?;
    Ok((config, llama_keys()))
}

fn starcoder2(fields: &Fields) -> Read {
    let all = fields.flag("use_bias")?;
    let mut config = DecoderConfig {
        norm: NormKind::Layer,
        epsilon: fields.number("norm_epsilon")?,
        activation: fields.activation("hidden_act")?,
        gated: false,
        biases: Biases { qkv: all, out: all, mlp: all, head: false },
        ..sizes(fields)?
    };
    rotary(&mut config, fields, None)?;
    config.windows = windows(fields, config.layers, fields.size_opt("sliding_window")?, |_| true)?;
    let keys = KeyMap::new()
        .linear("blocks[*].mlp.up", "model.layers.*.mlp.c_fc")
        .linear("blocks[*].mlp.down", "model.layers.*.mlp.c_proj");
    Ok((config, keys.and(llama_keys())))
}

fn cohere(fields: &Fields, kind: &str) -> Read {
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
        // What all models of this type have, which the first ones say.
        fields.skip(&["layer_switch", "order_of_interleaved_layers", "position_embedding_type", "rotary_pct"]);
        fields.skip(&["use_embedding_sharing", "use_gated_activation", "use_parallel_block"]);
        let pattern = fields.size_opt("sliding_window_pattern")?.unwrap_or(4);
        let window = fields.size_opt("sliding_window")?;
        config.windows = windows(fields, config.layers, window, |layer| !(layer + 1).is_multiple_of(pattern))?;
        config.without_rope = config.windows.iter().map(Option::is_none).collect();
    }
    Ok((config, llama_keys()))
}

/// The activation of a configuration, if it is the only one that a model computes.
pub(super) fn only_silu(fields: &Fields) -> Result<()> {
    match fields.activation("hidden_act")? {
        Activation::Silu => Ok(()),
        other => Err(fields.error(format!("`hidden_act` is {other:?}, and this model's gate is of silu"))),
    }
}
