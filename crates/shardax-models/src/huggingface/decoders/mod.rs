//! The decoders of `transformers`: their configurations, and the names of their arrays.

use shardax::error::Result;
use shardax_nn::Rope;

use super::config::{Fields, rope, scaled_rope};
use super::{KeyMap, Layout};
use crate::{Biases, DecoderConfig, NormKind, Positions};

/// The model types that are known.
pub(super) const KNOWN: [&str; 10] =
    ["gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3"];

/// The architecture of a decoder, and its arrays.
pub(super) fn read(fields: &Fields) -> Result<(DecoderConfig, KeyMap)> {
    match fields.text("model_type")? {
        "gpt2" => gpt2(fields),
        kind @ ("llama" | "mistral" | "qwen2" | "qwen3") => llama(fields, kind),
        kind @ ("gemma" | "gemma2" | "gemma3_text") => gemma(fields, kind),
        "phi" => phi(fields),
        "phi3" => phi3(fields),
        other => Err(fields.error(format!("the model_type {other:?} is none of {}", KNOWN.join(", ")))),
    }
}

/// The sizes that all but GPT-2 name alike.
fn sizes(fields: &Fields) -> Result<DecoderConfig> {
    let (features, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    let head_dim = fields.size_opt("head_dim")?;
    if head_dim.is_none() {
        fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
    }
    let kv_heads = fields.size_opt("num_key_value_heads")?.unwrap_or(heads);
    fields.divides(("num_key_value_heads", kv_heads), ("num_attention_heads", heads))?;
    let layers = fields.layers("num_hidden_layers")?;
    Ok(DecoderConfig {
        kv_heads,
        head_dim: head_dim.unwrap_or(features / heads),
        hidden: fields.size("intermediate_size")?,
        tie_embeddings: fields.flag_or("tie_word_embeddings", false)?,
        ..DecoderConfig::new(fields.size("vocab_size")?, layers, features, heads)
    })
}

/// The window of each layer, from `layer_types` or from `is_local`.
fn windows(
    fields: &Fields,
    layers: usize,
    window: Option<usize>,
    is_local: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>> {
    let types = fields.list_opt("layer_types")?;
    if let Some(types) = types.filter(|types| types.len() != layers) {
        return Err(fields.error(format!("`layer_types` has {} entries for {layers} layers", types.len())));
    }
    let of = |layer: usize| match types.map(|types| types[layer].as_str().unwrap_or_default()) {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") => match window {
            Some(window) => Ok(Some(window)),
            None => Err(fields.error("`layer_types` has windows, and `sliding_window` says none")),
        },
        Some(other) => Err(fields.error(format!("the layer type {other:?} is not known"))),
        None => Ok(window.filter(|_| is_local(layer))),
    };
    (0..layers).map(of).collect()
}

fn llama(fields: &Fields, kind: &str) -> Result<(DecoderConfig, KeyMap)> {
    let mut config = sizes(fields)?;
    config.epsilon = fields.number_or("rms_norm_eps", 1e-6)?;
    config.activation = fields.activation("hidden_act", "silu")?;
    config.positions = Positions::Rotary(rope(fields, 10_000.0, config.head_dim, None)?);
    config.biases = match kind {
        "llama" | "qwen3" => {
            let attention = fields.flag_or("attention_bias", false)?;
            let mlp = kind == "llama" && fields.flag_or("mlp_bias", false)?;
            Biases { qkv: attention, out: attention, mlp, head: false }
        }
        "qwen2" => Biases { qkv: true, ..Biases::NONE },
        _ => Biases::NONE,
    };
    config.qk_norm = kind == "qwen3";
    config.windows = match kind {
        "llama" => windows(fields, config.layers, None, |_| false)?,
        "mistral" => windows(fields, config.layers, fields.size_opt("sliding_window")?, |_| true)?,
        _ => {
            let used = fields.flag_or("use_sliding_window", false)?;
            let window = fields.size_opt("sliding_window")?.filter(|_| used);
            let first = fields.number_or("max_window_layers", 28.0)?;
            windows(fields, config.layers, window, |layer| layer as f64 >= first)?
        }
    };
    Ok((config, llama_keys().ignore("model.layers.*.self_attn.rotary_emb.inv_freq")))
}

/// The names of most decoders.
fn llama_keys() -> KeyMap {
    norms(projections(KeyMap::new()))
        .linear("blocks[*].attention.query", "model.layers.*.self_attn.q_proj")
        .linear("blocks[*].attention.key", "model.layers.*.self_attn.k_proj")
        .linear("blocks[*].attention.value", "model.layers.*.self_attn.v_proj")
        .linear("blocks[*].mlp.gate", "model.layers.*.mlp.gate_proj")
        .linear("blocks[*].mlp.up", "model.layers.*.mlp.up_proj")
        .scale("blocks[*].attention.query_norm", "model.layers.*.self_attn.q_norm")
        .scale("blocks[*].attention.key_norm", "model.layers.*.self_attn.k_norm")
        .scale("blocks[*].mlp_norm.0", "model.layers.*.post_attention_layernorm")
}

fn projections(keys: KeyMap) -> KeyMap {
    keys.array("embed.embedding", "model.embed_tokens.weight", Layout::Same)
        .linear("blocks[*].attention.out", "model.layers.*.self_attn.o_proj")
        .linear("blocks[*].mlp.down", "model.layers.*.mlp.down_proj")
        .linear("head", "lm_head")
        .tied("lm_head.weight", "model.embed_tokens.weight")
}

fn norms(keys: KeyMap) -> KeyMap {
    keys.scale("blocks[*].norm.0", "model.layers.*.input_layernorm").scale("norm.0", "model.norm")
}

fn gemma(fields: &Fields, kind: &str) -> Result<(DecoderConfig, KeyMap)> {
    let sized = sizes(fields)?;
    let mut config = DecoderConfig {
        head_dim: fields.size_opt("head_dim")?.unwrap_or(256),
        tie_embeddings: fields.flag_or("tie_word_embeddings", true)?,
        norm: NormKind::RmsOffset,
        epsilon: fields.number_or("rms_norm_eps", 1e-6)?,
        embedding_scale: Some((sized.features as f64).sqrt()),
        ..sized
    };
    // Of Gemma both names were read at a time; later models read the newer one alone.
    let older = fields.activation("hidden_act", "gelu_pytorch_tanh")?;
    config.activation = match fields.text_opt("hidden_activation")? {
        None if kind == "gemma" => older,
        _ => fields.activation("hidden_activation", "gelu_pytorch_tanh")?,
    };
    let attention = fields.flag_or("attention_bias", false)?;
    config.biases = Biases { qkv: attention, out: attention, ..Biases::NONE };
    if kind == "gemma" {
        config.positions = Positions::Rotary(rope(fields, 10_000.0, config.head_dim, None)?);
        return Ok((config, llama_keys().ignore("model.layers.*.self_attn.rotary_emb.inv_freq")));
    }
    let is_third = kind == "gemma3_text";
    config.post_norms = true;
    config.qk_norm = is_third;
    config.attention_scale = Some(fields.number_or("query_pre_attn_scalar", 256.0)?.powf(-0.5));
    let caps = if is_third { [None, None] } else { [Some(50.0), Some(30.0)] };
    let cap = |name, default: Option<f64>| match default {
        Some(default) => fields.nullable_or(name, default),
        None => fields.number_opt(name),
    };
    config.attention_soft_cap = cap("attn_logit_softcapping", caps[0])?;
    config.logits_soft_cap = cap("final_logit_softcapping", caps[1])?;
    let window = fields.size_opt("sliding_window")?.unwrap_or(4096);
    let named = if is_third { "sliding_window_pattern" } else { "_sliding_window_pattern" };
    let pattern = match fields.size_opt(named)? {
        Some(pattern) => pattern,
        None => fields.size_opt("_sliding_window_pattern")?.unwrap_or(if is_third { 6 } else { 2 }),
    };
    config.windows = windows(fields, config.layers, Some(window), |layer| !(layer + 1).is_multiple_of(pattern))?;
    let head_dim = config.head_dim;
    if is_third {
        let [global, local] = gemma3_ropes(fields, head_dim)?;
        (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
    } else {
        config.positions = Positions::Rotary(rope(fields, 10_000.0, head_dim, None)?);
    }
    let keys = KeyMap::new()
        .scale("blocks[*].post_attention_norm.0", "model.layers.*.post_attention_layernorm")
        .scale("blocks[*].mlp_norm.0", "model.layers.*.pre_feedforward_layernorm")
        .scale("blocks[*].post_mlp_norm.0", "model.layers.*.post_feedforward_layernorm");
    Ok((config, keys.and(llama_keys())))
}

/// The rotary positions of layers without and with a window, of one object for each or of older fields.
fn gemma3_ropes(fields: &Fields, head_dim: usize) -> Result<[Rope; 2]> {
    let theta = [fields.number_or("rope_theta", 1_000_000.0)?, fields.number_or("rope_local_base_freq", 10_000.0)?];
    let types = fields.object_opt("rope_parameters")?;
    let about = match &types {
        Some(types) => [types.object_opt("full_attention")?, types.object_opt("sliding_attention")?],
        None => [fields.object_opt("rope_scaling")?, None],
    };
    if let Some(types) = &types {
        types.finish()?;
    }
    let scaled = |about: &Option<Fields>, theta: f64| match about {
        Some(about) => scaled_rope(about, theta, head_dim, None),
        None => Ok(Rope::new(theta)),
    };
    Ok([scaled(&about[0], theta[0])?, scaled(&about[1], theta[1])?])
}

fn phi(fields: &Fields) -> Result<(DecoderConfig, KeyMap)> {
    let mut config = DecoderConfig {
        norm: NormKind::Layer,
        epsilon: fields.number_or("layer_norm_eps", 1e-5)?,
        activation: fields.activation("hidden_act", "gelu_new")?,
        gated: false,
        biases: Biases::ALL,
        parallel: true,
        ..sizes(fields)?
    };
    config.positions = Positions::Rotary(rope(fields, 10_000.0, config.head_dim, Some(0.5))?);
    let keys = KeyMap::new()
        .linear("blocks[*].attention.out", "model.layers.*.self_attn.dense")
        .linear("blocks[*].mlp.up", "model.layers.*.mlp.fc1")
        .linear("blocks[*].mlp.down", "model.layers.*.mlp.fc2")
        .norm("blocks[*].norm.0", "model.layers.*.input_layernorm")
        .norm("norm.0", "model.final_layernorm");
    Ok((config, keys.and(llama_keys())))
}

fn phi3(fields: &Fields) -> Result<(DecoderConfig, KeyMap)> {
    let mut config = DecoderConfig {
        epsilon: fields.number_or("rms_norm_eps", 1e-5)?,
        activation: fields.activation("hidden_act", "silu")?,
        ..sizes(fields)?
    };
    // The length before long contexts, which scaled rotary positions alone use.
    fields.skip(&["original_max_position_embeddings"]);
    config.windows = windows(fields, config.layers, fields.size_opt("sliding_window")?, |_| true)?;
    config.positions = Positions::Rotary(rope(fields, 10_000.0, config.head_dim, Some(1.0))?);
    let (wide, narrow) =
        (config.heads.saturating_mul(config.head_dim), config.kv_heads.saturating_mul(config.head_dim));
    let rows = |start: usize, count: usize, of: usize| Layout::Rows { start, end: start.saturating_add(count), of };
    let all = wide.saturating_add(narrow.saturating_mul(2));
    let both = config.hidden.saturating_mul(2);
    let qkv = "model.layers.*.self_attn.qkv_proj";
    let gate_up = "model.layers.*.mlp.gate_up_proj";
    let keys = norms(projections(KeyMap::new()))
        .weights("blocks[*].attention.query", qkv, rows(0, wide, all))
        .weights("blocks[*].attention.key", qkv, rows(wide, narrow, all))
        .weights("blocks[*].attention.value", qkv, rows(wide.saturating_add(narrow), narrow, all))
        .weights("blocks[*].mlp.gate", gate_up, rows(0, config.hidden, both))
        .weights("blocks[*].mlp.up", gate_up, rows(config.hidden, config.hidden, both))
        .scale("blocks[*].mlp_norm.0", "model.layers.*.post_attention_layernorm");
    Ok((config, keys))
}

fn gpt2(fields: &Fields) -> Result<(DecoderConfig, KeyMap)> {
    let (features, heads) = (fields.size("n_embd")?, fields.size("n_head")?);
    fields.divides(("n_head", heads), ("n_embd", features))?;
    let layers = fields.layers("n_layer")?;
    let config = DecoderConfig {
        hidden: fields.size_opt("n_inner")?.unwrap_or(features.saturating_mul(4)),
        positions: Positions::Learned(fields.size("n_positions")?),
        norm: NormKind::Layer,
        epsilon: fields.number_or("layer_norm_epsilon", 1e-5)?,
        activation: fields.activation("activation_function", "gelu_new")?,
        gated: false,
        biases: Biases { head: false, ..Biases::ALL },
        tie_embeddings: fields.flag_or("tie_word_embeddings", true)?,
        ..DecoderConfig::new(fields.size("vocab_size")?, layers, features, heads)
    };
    let part = |index| Layout::Part { index, of: 3 };
    // Its layers have `[in, out]`, and queries, keys and values in one.
    let keys = KeyMap::new()
        .prefix("transformer.")
        .array("embed.embedding", "wte.weight", Layout::Same)
        .array("positions.embedding", "wpe.weight", Layout::Same)
        .norm("blocks[*].norm.0", "h.*.ln_1")
        .weights("blocks[*].attention.query", "h.*.attn.c_attn", part(0))
        .weights("blocks[*].attention.key", "h.*.attn.c_attn", part(1))
        .weights("blocks[*].attention.value", "h.*.attn.c_attn", part(2))
        .weights("blocks[*].attention.out", "h.*.attn.c_proj", Layout::Same)
        .norm("blocks[*].mlp_norm.0", "h.*.ln_2")
        .weights("blocks[*].mlp.up", "h.*.mlp.c_fc", Layout::Same)
        .weights("blocks[*].mlp.down", "h.*.mlp.c_proj", Layout::Same)
        .norm("norm.0", "ln_f")
        .linear("head", "lm_head")
        .tied("lm_head.weight", "wte.weight")
        .ignore("h.*.attn.bias")
        .ignore("h.*.attn.masked_bias");
    Ok((config, keys))
}
