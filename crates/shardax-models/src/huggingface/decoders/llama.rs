//! Llama, and models that differ from it in a few fields.

use shardax_nn::{QueryGrowth, Rope, RopeScaling};

use super::super::rope::rope_object;
use super::gemma::{ropes, ropes_by_type};
use super::*;
use crate::{Activation, AttentionGate, ConvConfig};

/// Reads the models that have Llama's blocks.
pub(super) fn read(fields: &Fields, kind: &str) -> Read {
    let mut config = if kind == "exaone" { exaone_sizes(fields)? } else { llama_sizes(fields)? };
    let is_hunyuan = matches!(kind, "hunyuan_v1_dense" | "hunyuan_vl_text");
    if is_hunyuan {
        // Fields of early versions of the model's code, which the class ignores.
        fields.skip(&["attention_head_dim", "cla_share_factor", "class_num", "dense_list", "org_vocab_size"]);
    }
    rotary(&mut config, fields, None)?;
    config.biases = match kind {
        "llama" | "arcee" | "iquestcoder" | "exaone" | "emu3_text_model" => biases(fields)?,
        "internlm3" => internlm_biases(fields)?,
        "helium" => Biases { out: false, ..biases(fields)? },
        "seed_oss" => Biases { out: fields.flag("attention_out_bias")?, ..biases(fields)? },
        "qwen3" | "hunyuan_v1_dense" | "hunyuan_vl_text" => attention_biases(fields)?,
        "ernie4_5" | "paddleocr_vl_text" => {
            let has_bias = fields.flag("use_bias")?;
            Biases { qkv: has_bias, out: has_bias, mlp: has_bias, head: false }
        }
        "qwen3_vl_text" => attention_biases(fields)?,
        "qwen2" | "qwen2_vl_text" | "qwen2_5_vl_text" | "qwen2_5_omni_text" => Biases { qkv: true, ..Biases::NONE },
        _ => Biases::NONE,
    };
    if is_hunyuan || matches!(kind, "qwen3" | "qwen3_vl_text") {
        config.qk_norm = QkNorm::Head;
        config.qk_norm_after_rope = is_hunyuan;
    }
    // Arcee's MLP has no gate.
    config.gated = kind != "arcee";
    if matches!(kind, "helium" | "ernie4_5") {
        interleave(&mut config);
    }
    if kind == "ministral3" {
        config.query_growth = Some(ministral_growth(fields)?);
    }
    config.windows = match kind {
        "mistral" | "ministral3" => window_of_all(fields, config.layers, fields.size_opt("sliding_window")?)?,
        "ministral" => windows(fields, config.layers, fields.size_opt("sliding_window")?, |_| true)?,
        "cwm" => {
            let window = fields.size_opt("sliding_window")?;
            windows(fields, config.layers, window, |layer| !layer.is_multiple_of(4))?
        }
        "qwen2" | "qwen3" | "qwen2_vl_text" | "qwen2_5_vl_text" | "qwen2_5_omni_text" => {
            qwen_windows(fields, config.layers)?
        }
        _ => windows(fields, config.layers, None, |_| false)?,
    };
    let keys = match kind {
        _ if is_hunyuan => KeyMap::new()
            .scale("blocks[*].attention.query_norm", "model.layers.*.self_attn.query_layernorm")
            .scale("blocks[*].attention.key_norm", "model.layers.*.self_attn.key_layernorm"),
        "exaone" => exaone_keys(),
        _ => KeyMap::new(),
    };
    Ok((config, keys.and(llama_keys())))
}

/// Reads the factor of Ministral 3's queries, which is a part of `rope_parameters`.
pub(super) fn ministral_growth(fields: &Fields) -> Result<QueryGrowth> {
    let Some(about) = rope_object(fields)? else {
        return Err(fields.error("missing field `rope_parameters`"));
    };
    let (rate, length) = (about.number("llama_4_scaling_beta")?, about.number("original_max_position_embeddings")?);
    Ok(QueryGrowth { rate, length, offset: 0.0, power: false })
}

/// Reads the biases of InternLM3, whose files have older field names.
fn internlm_biases(fields: &Fields) -> Result<Biases> {
    let attention = fields.flag(older_name(fields, "attention_bias", "qkv_bias"))?;
    let mlp = fields.flag(older_name(fields, "mlp_bias", "bias"))?;
    if attention == mlp {
        Ok(Biases { head: false, qkv: attention, out: attention, mlp })
    } else {
        Err(fields.error(format!("`qkv_bias` is {attention} and `bias` is {mlp}, which transformers rejects")))
    }
}

/// Reads the sizes of EXAONE models, whose files have older field names.
fn exaone_sizes(fields: &Fields) -> Result<DecoderConfig> {
    let layers = fields.layers(older_name(fields, "num_hidden_layers", "num_layers"))?;
    let epsilon = fields.number(older_name(fields, "rms_norm_eps", "layer_norm_epsilon"))?;
    let activation = fields.activation(older_name(fields, "hidden_act", "activation_function"))?;
    Ok(DecoderConfig { layers, epsilon, activation, ..sizes(fields)? })
}

/// Returns the names of EXAONE's arrays.
fn exaone_keys() -> KeyMap {
    KeyMap::new()
        .array("embed.embedding", "transformer.wte.weight", Layout::Same)
        .scale("blocks[*].norm.0", "transformer.h.*.ln_1")
        .linear("blocks[*].attention.query", "transformer.h.*.attn.attention.q_proj")
        .linear("blocks[*].attention.key", "transformer.h.*.attn.attention.k_proj")
        .linear("blocks[*].attention.value", "transformer.h.*.attn.attention.v_proj")
        .linear("blocks[*].attention.out", "transformer.h.*.attn.attention.out_proj")
        .scale("blocks[*].mlp_norm.0", "transformer.h.*.ln_2")
        .linear("blocks[*].mlp.gate", "transformer.h.*.mlp.c_fc_0")
        .linear("blocks[*].mlp.up", "transformer.h.*.mlp.c_fc_1")
        .linear("blocks[*].mlp.down", "transformer.h.*.mlp.c_proj")
        .scale("norm.0", "transformer.ln_f")
        .tied("lm_head.weight", "transformer.wte.weight")
        .ignore("transformer.h.*.attn.attention.rotary.inv_freq")
}

/// Reads models that use Llama's names for different blocks.
pub(super) fn read_variant(fields: &Fields, kind: &str) -> Read {
    match kind {
        "granite" | "granite_docling_text" | "hyperclovax" => granite(fields, kind),
        "nemotron" | "jais2" => nemotron(fields, kind),
        "exaone4" => exaone4(fields),
        "apertus" | "apertus1p5_text" => apertus(fields, kind),
        "lfm2" => lfm2(fields, kind),
        "smollm3" => smollm3(fields),
        "olmo" => olmo(fields),
        "olmo2" | "olmo3" => olmo2(fields, kind),
        "stablelm" => stablelm(fields),
        _ => starcoder2(fields),
    }
}

/// Rotates pairs of neighboring features instead of pairs from the two halves.
pub(super) fn interleave(config: &mut DecoderConfig) {
    if let Positions::Rotary(rope) = &mut config.positions {
        rope.interleaved = true;
    }
}

/// Reads whether attention and MLPs have biases.
pub(super) fn biases(fields: &Fields) -> Result<Biases> {
    Ok(Biases { mlp: fields.flag("mlp_bias")?, ..attention_biases(fields)? })
}

/// Reads whether attention has biases, from the field with this name.
pub(super) fn attention_biases(fields: &Fields) -> Result<Biases> {
    let attention = fields.flag("attention_bias")?;
    Ok(Biases { qkv: attention, out: attention, ..Biases::NONE })
}

/// Sets the factors of Granite's models.
pub(super) fn granite_factors(config: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    config.embedding_scale = factor(fields, "embedding_multiplier")?;
    config.residual_scale = factor(fields, "residual_multiplier")?;
    config.attention_scale = Some(fields.number("attention_multiplier")?);
    config.logits_scale = factor(fields, "logits_scaling")?.map(f64::recip);
    Ok(())
}

/// Reads the factor with this name. Returns `None` for a factor of 1.
fn factor<'a>(fields: &Fields<'a>, name: &'a str) -> Result<Option<f64>> {
    Ok(Some(fields.number(name)?).filter(|factor| *factor != 1.0))
}

fn granite(fields: &Fields, kind: &str) -> Read {
    let mut config = DecoderConfig { biases: biases(fields)?, ..llama_sizes(fields)? };
    rotary(&mut config, fields, None)?;
    if kind != "hyperclovax" {
        granite_factors(&mut config, fields)?;
        return Ok((config, llama_keys()));
    }
    config.embedding_scale = factor(fields, "embedding_multiplier")?;
    config.residual_scale = factor(fields, "residual_multiplier")?;
    config.attention_scale = fields.number_opt("attention_multiplier")?;
    config.logits_scale = factor(fields, "logits_scaling")?;
    config.post_norms = fields.flag("use_post_norm")?;
    let keys = KeyMap::new()
        .scale("blocks[*].post_attention_norm.0", "model.layers.*.post_norm1")
        .scale("blocks[*].post_mlp_norm.0", "model.layers.*.post_norm2");
    Ok((config, keys.and(llama_keys())))
}

/// Reads models with layer norms and with MLPs without a gate.
fn nemotron(fields: &Fields, kind: &str) -> Read {
    let is_nemotron = kind == "nemotron";
    let mut config = DecoderConfig {
        norm: if is_nemotron { NormKind::LayerOffset } else { NormKind::Layer },
        epsilon: fields.number(if is_nemotron { "norm_eps" } else { "layer_norm_eps" })?,
        activation: fields.activation("hidden_act")?,
        gated: false,
        biases: biases(fields)?,
        ..sizes(fields)?
    };
    rotary(&mut config, fields, is_nemotron.then_some(0.5))?;
    Ok((config, llama_keys()))
}

/// Reads the decoder of Cosmos 3 Edge, whose MLPs have no gate.
pub(super) fn cosmos_edge(fields: &Fields, _: &str) -> Read {
    let mut config = DecoderConfig { gated: false, biases: biases(fields)?, ..llama_sizes(fields)? };
    rotary(&mut config, fields, None)?;
    // The names of published files, and of the class.
    let keys = KeyMap::new()
        .linear("blocks[*].mlp.up", "model.layers.*.mlp.up_proj")
        .linear("blocks[*].mlp.down", "model.layers.*.mlp.down_proj");
    let keys = ["weight", "bias"].into_iter().fold(keys, |keys, part| {
        keys.alias(&format!("mlp.up_proj.{part}"), &format!("mlp.fc1.{part}"))
            .alias(&format!("mlp.down_proj.{part}"), &format!("mlp.fc2.{part}"))
    });
    Ok((config, keys.and(llama_keys())))
}

fn exaone4(fields: &Fields) -> Read {
    let mut config =
        DecoderConfig { pre_norms: false, post_norms: true, qk_norm: QkNorm::Head, ..llama_sizes(fields)? };
    exaone_windows(&mut config, fields)?;
    let keys = KeyMap::new()
        .scale("blocks[*].post_attention_norm.0", "model.layers.*.post_attention_layernorm")
        .scale("blocks[*].post_mlp_norm.0", "model.layers.*.post_feedforward_layernorm");
    Ok((config, keys.and(llama_keys())))
}

/// Sets the windows of EXAONE's models, and the layers with rotary positions.
pub(super) fn exaone_windows(config: &mut DecoderConfig, fields: &Fields) -> Result<()> {
    rotary(config, fields, None)?;
    let window = fields.size_opt("sliding_window")?;
    let pattern = fields.size_opt("sliding_window_pattern");
    config.windows = match (fields.has("layer_types"), window) {
        (true, _) => {
            fields.skip(&["sliding_window_pattern"]);
            windows(fields, config.layers, window, |_| false)?
        }
        (false, None) => vec![None; config.layers],
        (false, Some(_)) => {
            let pattern = pattern?.unwrap_or(4);
            windows(fields, config.layers, window, |layer| !(layer + 1).is_multiple_of(pattern))?
        }
    };
    // If some layers have windows, the others have no rotary positions.
    if window.is_some() {
        config.without_rope = config.windows.iter().map(Option::is_none).collect();
    }
    Ok(())
}

/// Reads Apertus, whose MLPs have no gate and a learned activation. In version 1.5, not all tokens have logits.
fn apertus(fields: &Fields, kind: &str) -> Read {
    let mut config = DecoderConfig {
        gated: false,
        biases: attention_biases(fields)?,
        qk_norm: QkNorm::Head,
        ..llama_sizes(fields)?
    };
    if kind == "apertus1p5_text" {
        let logits = fields.size_opt("output_vocab_size")?;
        config.logits = logits.filter(|logits| *logits != config.vocab_size);
    }
    rotary(&mut config, fields, None)?;
    let keys = ["alpha_p", "alpha_n", "beta", "eps"].into_iter().fold(KeyMap::new(), |keys, name| {
        keys.array(format!("blocks[*].mlp.xielu.{name}"), format!("model.layers.*.mlp.act_fn.{name}"), Layout::Same)
    });
    let keys = keys
        .scale("blocks[*].norm.0", "model.layers.*.attention_layernorm")
        .scale("blocks[*].mlp_norm.0", "model.layers.*.feedforward_layernorm");
    Ok((config, keys.and(llama_keys())))
}

/// Reads nanochat, whose norms have no parameters and whose rotary positions turn in the opposite direction.
pub(super) fn nanochat(fields: &Fields, _: &str) -> Read {
    let mut config = DecoderConfig {
        norm: NormKind::RmsPlain,
        gated: false,
        embedding_norm: true,
        qk_norm: QkNorm::HeadPlain,
        qk_norm_after_rope: true,
        biases: attention_biases(fields)?,
        logits_soft_cap: fields.number_opt("final_logit_softcapping")?,
        ..llama_sizes(fields)?
    };
    config.positions = Positions::Rotary(rope(fields, config.head_dim, None)?.reversed(true));
    let keys = KeyMap::new()
        .linear("blocks[*].mlp.up", "model.layers.*.mlp.fc1")
        .linear("blocks[*].mlp.down", "model.layers.*.mlp.fc2");
    Ok((config, keys.and(llama_keys())))
}

/// Reads LFM2, in which most layers have a short convolution instead of attention.
pub(super) fn lfm2(fields: &Fields, kind: &str) -> Read {
    let (features, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
    let kv_heads = fields.size("num_key_value_heads")?;
    fields.divides(("num_key_value_heads", kv_heads), ("num_attention_heads", heads))?;
    let layers = fields.layers("num_hidden_layers")?;

    let hidden = match kind {
        "lfm2_moe" => fields.size("intermediate_size")?,
        _ => lfm2_hidden(fields)?,
    };
    fields.skip(&["block_multiple_of", "block_ffn_dim_multiplier", "intermediate_size"]);
    // Fields for initialization and alternative names of sizes, which the class ignores.
    fields.skip(&["block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu"]);
    fields.skip(&[
        "block_use_xavier_init",
        "conv_dim",
        "conv_dim_out",
        "conv_use_xavier_init",
        "num_heads",
        "use_pos_enc",
    ]);
    let has_conv = lfm2_layers_with_conv(fields, layers)?;
    let mut config = DecoderConfig {
        kv_heads,
        hidden,
        epsilon: fields.number("norm_eps")?,
        qk_norm: QkNorm::Head,
        tie_embeddings: fields.flag(older_name(fields, "tie_word_embeddings", "tie_embedding"))?,
        conv: Some(ConvConfig {
            width: fields.size("conv_L_cache")?,
            use_bias: fields.flag("conv_bias")?,
            layers: has_conv,
        }),
        ..DecoderConfig::new(fields.size("vocab_size")?, layers, features, heads)
    };
    fields.skip(&["tie_word_embeddings"]);
    rotary(&mut config, fields, None)?;
    Ok((config, lfm2_keys().and(llama_keys())))
}

/// Returns the names of the arrays of LFM2 that differ from Llama's.
fn lfm2_keys() -> KeyMap {
    KeyMap::new()
        .scale("blocks[*].norm.0", &of_layer("operator_norm"))
        .scale("blocks[*].mlp_norm.0", &of_layer("ffn_norm"))
        .linear("blocks[*].attention.out", &of_layer("self_attn.out_proj"))
        .scale("blocks[*].attention.query_norm", &of_layer("self_attn.q_layernorm"))
        .scale("blocks[*].attention.key_norm", &of_layer("self_attn.k_layernorm"))
        .linear("blocks[*].conv.input", &of_layer("conv.in_proj"))
        .array("blocks[*].conv.taps", of_layer("conv.conv.weight"), Layout::Same)
        .array("blocks[*].conv.bias", of_layer("conv.conv.bias"), Layout::Same)
        .linear("blocks[*].conv.out", &of_layer("conv.out_proj"))
        .linear("blocks[*].mlp.gate", &of_layer("feed_forward.w1"))
        .linear("blocks[*].mlp.up", &of_layer("feed_forward.w3"))
        .linear("blocks[*].mlp.down", &of_layer("feed_forward.w2"))
        .scale("norm.0", "model.embedding_norm")
}

/// Reads the hidden size of LFM2's MLPs, which is two thirds of the field if the configuration asks for it, scaled and
/// rounded up to a multiple.
fn lfm2_hidden(fields: &Fields) -> Result<usize> {
    let hidden = fields.size(older_name(fields, "intermediate_size", "block_ff_dim"))?;
    if !fields.flag("block_auto_adjust_ff_dim")? {
        return Ok(hidden);
    }
    let multiple = fields.size("block_multiple_of")?;
    let scaled = hidden.saturating_mul(2) / 3;
    Ok(match fields.number_opt("block_ffn_dim_multiplier")? {
        Some(factor) => ((factor * scaled as f64) as usize).div_ceil(multiple).saturating_mul(multiple),
        None => scaled,
    })
}

/// Returns for each layer of LFM2 whether it has a convolution instead of attention.
fn lfm2_layers_with_conv(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    match (fields.list_opt("layer_types")?, fields.list_opt("full_attn_idxs")?) {
        (Some(types), _) if types.len() != layers => {
            Err(fields.error(format!("`layer_types` has {} entries for {layers} layers", types.len())))
        }
        (Some(types), _) => {
            let has_conv = types.iter().map(|entry| match entry.as_str() {
                Some("conv") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => Err(fields.error(format!("`layer_types` has the layer type {entry}, which is not supported"))),
            });
            has_conv.collect()
        }
        // The older field lists the layers with attention.
        (None, Some(list)) => {
            Ok((0..layers).map(|layer| !list.iter().any(|entry| entry.as_u64() == Some(layer as u64))).collect())
        }
        (None, None) => Ok(vec![false; layers]),
    }
}

/// Reads LFM3, whose layers have short convolutions, or gated attention with or without a window.
pub(super) fn lfm3(fields: &Fields, _: &str) -> Read {
    let sized = sizes(fields)?;
    let layers = sized.layers;
    let window = fields.size_opt("sliding_window")?;
    let types = match fields.list_opt("layer_types")? {
        Some(list) if list.len() != layers => {
            return Err(fields.error(format!("`layer_types` has {} entries for {layers} layers", list.len())));
        }
        Some(list) => list.iter().map(|entry| entry.as_str().unwrap_or_default()).collect(),
        None => (0..layers).map(lfm3_type).collect::<Vec<&str>>(),
    };
    if let Some(other) = types.iter().find(|kind| !["conv", "full_attention", "sliding_attention"].contains(*kind)) {
        return Err(fields.error(format!("`layer_types` has the layer type {other:?}, which is not supported")));
    }
    let is_local: Vec<bool> = types.iter().map(|kind| *kind == "sliding_attention").collect();
    // Without this error, the layers would attend to all positions.
    if window.is_none() && is_local.contains(&true) {
        return Err(fields.error("`layer_types` has layers with windows, but `sliding_window` is missing"));
    }
    let has_gate = fields.flag("use_attention_gate")?;
    let biases = attention_biases(fields)?;
    if has_gate && biases.qkv {
        return Err(fields.error("`attention_bias` is true, but gates without biases are not supported with it"));
    }
    let mut config = DecoderConfig {
        epsilon: fields.number("norm_eps")?,
        biases,
        qk_norm: QkNorm::Head,
        post_norms: fields.flag("use_sandwich_norm")?,
        attention_gate: has_gate.then_some(AttentionGate { per_head: true, ..AttentionGate::default() }),
        windows: is_local.iter().map(|is_local| window.filter(|_| *is_local)).collect(),
        conv: Some(ConvConfig {
            width: fields.size("conv_L_cache")?,
            use_bias: fields.flag("conv_bias")?,
            layers: types.iter().map(|kind| *kind == "conv").collect(),
        }),
        ..sized
    };
    let proportional = RopeScaling::Proportional { pairs: config.head_dim / 4, factor: 1.0 };
    let defaults = [Rope::new(1_000_000.0).scaling(proportional), Rope::new(10_000.0)];
    let [global, local] = ropes_by_type(fields, [config.head_dim; 2], defaults, None)?;
    (config.positions, config.local_rope) = (Positions::Rotary(global), Some(local));
    fields.skip(&["rope_theta"]);
    let keys = KeyMap::new()
        .scale("blocks[*].post_attention_norm.0", &of_layer("post_operator_norm"))
        .scale("blocks[*].post_mlp_norm.0", &of_layer("post_ffn_norm"))
        .linear("blocks[*].attention.gate", &of_layer("self_attn.gate_proj"))
        .linear("blocks[*].attention.out", &of_layer("self_attn.o_proj"))
        .scale("blocks[*].attention.query_norm", &of_layer("self_attn.q_norm"))
        .scale("blocks[*].attention.key_norm", &of_layer("self_attn.k_norm"));
    Ok((config, keys.and(lfm2_keys()).and(llama_keys())))
}

/// Returns the type that a layer of LFM3 has by default.
fn lfm3_type(layer: usize) -> &'static str {
    match layer % 4 {
        2 => "full_attention",
        0 if layer > 0 => "sliding_attention",
        _ => "conv",
    }
}

/// Reads DiffLlama, which subtracts the results of half of the heads from the others.
pub(super) fn diffllama(fields: &Fields, _: &str) -> Read {
    let mut config = DecoderConfig { biases: attention_biases(fields)?, differential: true, ..llama_sizes(fields)? };
    if !config.kv_heads.is_multiple_of(2) {
        return Err(fields.error(format!("`num_key_value_heads` is {}, but must be even", config.kv_heads)));
    }
    rotary(&mut config, fields, None)?;
    // The deviation of new weights.
    fields.skip(&["lambda_std_dev"]);
    let parts = [("first_query", "q1"), ("first_key", "k1"), ("second_query", "q2"), ("second_key", "k2")];
    let keys = parts.into_iter().fold(KeyMap::new(), |keys, (part, name)| {
        let path = format!("blocks[*].attention.difference.{part}");
        keys.array(path, of_layer(&format!("self_attn.lambda_{name}")), Layout::Same)
    });
    Ok((config, keys.and(llama_keys())))
}

/// Reads EuroBERT, whose positions attend to all positions.
pub(super) fn eurobert(fields: &Fields, _: &str) -> Read {
    let mut config = DecoderConfig { bidirectional: true, biases: biases(fields)?, ..llama_sizes(fields)? };
    config.biases.head = config.biases.mlp;
    rotary(&mut config, fields, None)?;
    fields.skip(&["classifier_pooling"]);
    Ok((config, llama_keys()))
}

fn smollm3(fields: &Fields) -> Read {
    let mut config = DecoderConfig { biases: biases(fields)?, ..llama_sizes(fields)? };
    rotary(&mut config, fields, None)?;
    let interval = fields.size("no_rope_layer_interval")?;
    let with_rope = fields.list_opt("no_rope_layers")?;
    if let Some(list) = with_rope.filter(|list| list.len() != config.layers) {
        let message = format!("`no_rope_layers` has {} entries for {} layers", list.len(), config.layers);
        return Err(fields.error(message));
    }
    // Despite the field's name, its entries are 1 for layers with rotary positions.
    let without_rope = (0..config.layers).map(|layer| match with_rope {
        Some(list) => list[layer].as_u64() == Some(0),
        None => (layer + 1).is_multiple_of(interval),
    });
    let without_rope: Vec<bool> = without_rope.collect();
    fields.skip(&["max_window_layers"]);
    let is_used = fields.flag("use_sliding_window")?;
    let window = fields.size_opt("sliding_window")?.filter(|_| is_used);
    config.windows = windows(fields, config.layers, window, |layer| without_rope[layer])?;
    config.without_rope = without_rope;
    Ok((config, llama_keys()))
}

fn olmo(fields: &Fields) -> Read {
    let mut config = DecoderConfig {
        norm: NormKind::LayerPlain,
        epsilon: 1e-5,
        activation: fields.activation("hidden_act")?,
        biases: attention_biases(fields)?,
        qkv_bound: fields.number_opt("clip_qkv")?,
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
        let [global, local] = ropes(fields, config.head_dim, ([Some("rope_theta"), None], [500_000.0; 2]))?;
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
        qk_norm: if fields.flag("qk_layernorm")? { QkNorm::EachHead } else { QkNorm::None },
        ..sizes(fields)?
    };
    rotary(&mut config, fields, Some(0.25))?;
    let [query, key] = ["q", "k"].map(|name| format!("model.layers.*.self_attn.{name}_layernorm.norms.#.weight"));
    let keys = KeyMap::new().array("blocks[*].attention.query_scale", query, Layout::Same).array(
        "blocks[*].attention.key_scale",
        key,
        Layout::Same,
    );
    Ok((config, keys.and(llama_keys())))
}

fn starcoder2(fields: &Fields) -> Read {
    let has_bias = fields.flag("use_bias")?;
    let mut config = DecoderConfig {
        norm: NormKind::Layer,
        epsilon: fields.number("norm_epsilon")?,
        activation: fields.activation("hidden_act")?,
        gated: false,
        biases: Biases { qkv: has_bias, out: has_bias, mlp: has_bias, head: false },
        ..sizes(fields)?
    };
    rotary(&mut config, fields, None)?;
    config.windows = window_of_all(fields, config.layers, fields.size_opt("sliding_window")?)?;
    let keys = KeyMap::new()
        .linear("blocks[*].mlp.up", "model.layers.*.mlp.c_fc")
        .linear("blocks[*].mlp.down", "model.layers.*.mlp.c_proj");
    Ok((config, keys.and(llama_keys())))
}

/// Returns an error unless the activation is silu, for models that support no other one.
pub(super) fn only_silu(fields: &Fields) -> Result<()> {
    match fields.activation("hidden_act")? {
        Activation::Silu => Ok(()),
        other => Err(fields.error(format!("`hidden_act` is {other:?}, but this model supports only silu"))),
    }
}

/// Returns the older name of a field if the configuration has it.
fn older_name<'a>(fields: &Fields, name: &'a str, older: &'a str) -> &'a str {
    if fields.has(older) { older } else { name }
}
