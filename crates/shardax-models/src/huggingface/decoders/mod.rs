//! The decoders of `transformers`: readers of their configurations, and the names of their arrays.

mod bailing;
mod beam;
mod bitnet;
mod bloom;
mod cohere;
mod cohere_experts;
mod dbrx;
mod doge;
mod ernie;
mod experts;
mod fused;
mod gemma;
mod gpt;
mod granite_swa;
mod kimi;
mod kolibri;
mod laguna;
mod latent;
mod layered;
mod linear;
mod llama;
mod longcat;
mod mimo;
mod modern_bert;
mod molmo;
mod olmo_hybrid;
mod qwen_linear;
mod recurrent;
mod state_space;
mod step;
mod windowed;
mod wrapper;
mod zamba;

use shardax::error::Result;

use self::wrapper::WRAPPERS;
use super::fields::Fields;
use super::rope::{rope, rope_named};
use super::{KeyMap, Layout, unknown_type};
use crate::{Biases, DecoderConfig, NormKind, Positions, QkNorm};

/// A configuration, and the names of the model's arrays.
type Read = Result<(DecoderConfig, KeyMap)>;

/// The families: their model types, and the function that reads their configurations.
const FAMILIES: &[(&[&str], fn(&Fields, &str) -> Read)] = &[
    (&["llama", "mistral", "qwen2", "qwen3", "arcee", "seed_oss", "helium", "ernie4_5"], llama::read),
    (&["qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "qwen2_5_omni_text"], llama::read),
    (&["paddleocr_vl_text", "hunyuan_vl_text"], llama::read),
    (&["emu3_text_model"], llama::read),
    (&["bitnet"], bitnet::read),
    (&["molmo2_text"], molmo::read),
    (&["kolibri1"], kolibri::read),
    (&["lara_mini"], qwen_linear::lara_mini),
    (&["apertus1p5_text"], llama::read_variant),
    (&["cohere_compass_text"], cohere::compass),
    (&["phi4_multimodal", "phi4mm"], fused::read),
    (&["gpt_neox_japanese"], gpt::gpt_neox_japanese),
    (&["bert-generation"], bloom::bert_generation),
    (&["internlm3", "iquestcoder", "ministral", "cwm", "hunyuan_v1_dense", "exaone"], llama::read),
    (&["granite", "smollm3", "olmo", "olmo2", "olmo3", "stablelm", "starcoder2"], llama::read_variant),
    (&["cohere", "cohere2"], cohere::read),
    (&["ministral3"], llama::read),
    (&["nanochat"], llama::nanochat),
    (&["nemotron", "jais2", "exaone4", "hyperclovax", "granite_docling_text", "apertus", "lfm2"], llama::read_variant),
    (&["gemma", "gemma2", "gemma3_text", "vaultgemma"], gemma::read),
    (&["gemma3n_text", "gemma4_text", "gemma4_unified_text"], layered::read),
    (&["lfm3"], llama::lfm3),
    (&["cosmos3_edge_text"], llama::cosmos_edge),
    (&["dbrx"], dbrx::read),
    (&["deepseek_ocr2_text"], latent::deepseek_ocr),
    (&["step3p5"], step::read),
    (&["eurobert"], llama::eurobert),
    (&["recurrent_gemma"], recurrent::gemma),
    (&["minimax"], recurrent::minimax),
    (&["laguna"], laguna::read),
    (&["mimo_v2_flash"], mimo::read),
    (&["phi3", "glm", "glm4", "glm4v_text", "glm_ocr_text"], fused::read),
    (&["granite_swa", "granitemoe_swa"], granite_swa::read),
    (&["modernbert-decoder"], modern_bert::read),
    (&["mellum", "flint", "afmoe", "hy_v3"], windowed::experts),
    (&["cohere2_moe"], cohere_experts::read),
    (&["phimoe"], experts::phimoe),
    (&["mamba2"], state_space::mamba2),
    (&["mamba", "falcon_mamba"], state_space::mamba),
    (&["jamba"], state_space::jamba),
    (&["bamba"], state_space::bamba),
    (&["granitemoehybrid"], state_space::granite),
    (&["nemotron_h"], state_space::nemotron),
    (&["falcon_h1"], state_space::falcon),
    (&["gpt2", "gpt-sw3"], gpt::gpt2),
    (&["gpt_bigcode"], gpt::gpt_bigcode),
    (&["gpt_neo"], gpt::gpt_neo),
    (&["openai-gpt"], gpt::openai_gpt),
    (&["gptj", "codegen"], gpt::gptj),
    (&["gpt_neox"], gpt::gpt_neox),
    (&["falcon"], gpt::falcon),
    (&["phi"], gpt::phi),
    (&["persimmon"], gpt::persimmon),
    (&["opt"], bloom::opt),
    (&["biogpt"], bloom::biogpt),
    (&["xglm"], bloom::xglm),
    (&["bloom"], bloom::bloom),
    (&["mpt"], bloom::mpt),
    (&["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe", "granitemoe", "gpt_oss"], experts::read),
    (&["dots1", "minimax_m2", "flex_olmo", "granitemoeshared"], experts::read),
    (&["ernie4_5_moe", "ernie4_5_vl_moe_text"], ernie::read),
    (&["exaone_moe", "hunyuan_v1_moe", "solar_open", "sarvam_moe", "llama4_text"], experts::read),
    (&["qwen3_vl_moe_text", "lfm2_moe", "qwen3_omni_moe_text", "glm4v_moe_text", "aria_text"], experts::read),
    (&["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"], qwen_linear::read),
    (&["kimi_linear"], kimi::read),
    (&["bailing_hybrid"], bailing::read),
    (&["longcat_flash"], longcat::read),
    (&["beam"], beam::read),
    (&["zamba2"], zamba::read),
    (&["diffllama"], llama::diffllama),
    (&["doge"], doge::read),
    (&["olmo_hybrid"], olmo_hybrid::read),
    (
        &[
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm_moe_dsa",
            "kimi_k2",
            "glm4_moe_lite",
            "youtu",
            "sarvam_mla",
            "minicpm3",
            "axk1",
            "axk2",
            "mistral4",
        ],
        latent::read,
    ),
];

/// Returns `true` if models of this type are supported.
pub(super) fn is_known(kind: &str) -> bool {
    WRAPPERS.contains(&kind) || FAMILIES.iter().any(|(kinds, _)| kinds.contains(&kind))
}

/// Reads the architecture of a decoder and the names of its arrays.
pub(super) fn read(fields: &Fields) -> Read {
    let kind = fields.text("model_type")?;
    match kind {
        "qwen2_5_omni" | "qwen3_omni_moe" => wrapper::read_thinker(fields, kind),
        _ if WRAPPERS.contains(&kind) => wrapper::read(fields, kind),
        _ => read_kind(fields, kind),
    }
}

fn read_kind(fields: &Fields, kind: &str) -> Read {
    match FAMILIES.iter().find(|(kinds, _)| kinds.contains(&kind)) {
        Some((_, read)) => {
            let (mut config, keys) = read(fields, kind)?;
            // A decoder is one even if a file says so.
            fields.skip(&["is_decoder"]);
            // The classes of the two types mask later positions themselves.
            let is_causal = fields.flag_or("is_causal", true)? || matches!(kind, "gpt_neo" | "openai-gpt");
            if !is_causal && !config.bidirectional {
                see_later_positions(fields, &mut config)?;
            }
            // Files of a model without a head have no prefix.
            let keys = keys.prefix_alias("model.", "").ignore("model.rotary_emb.inv_freq");
            Ok((config.clone(), if config.tie_embeddings { keys.with_either_copy() } else { keys }))
        }
        None => {
            let known: Vec<&str> = FAMILIES.iter().flat_map(|(kinds, _)| *kinds).chain(WRAPPERS).copied().collect();
            Err(unknown_type(fields, kind, &known))
        }
    }
}

/// Lets positions attend to later ones. transformers masks only positions outside of windows then, where a window counts the
/// positions before or after a position, without the position itself.
fn see_later_positions(fields: &Fields, config: &mut DecoderConfig) -> Result<()> {
    if config.latent.is_some() || config.chunk.is_some() || config.shared.is_some() {
        return Err(fields.error("field `is_causal` is false, which is not supported with this attention"));
    }
    config.bidirectional = true;
    config.windows.iter_mut().flatten().for_each(|window| *window = window.saturating_add(1));
    Ok(())
}

/// Reads the sizes whose field names most decoders share.
fn sizes(fields: &Fields) -> Result<DecoderConfig> {
    let sized = sizes_without_hidden(fields)?;
    let hidden = match fields.size_opt("intermediate_size")? {
        Some(hidden) => hidden,
        // All layers of the type have experts.
        None if fields.size_opt("moe_intermediate_size")?.is_some() => sized.features,
        None => fields.size("intermediate_size")?,
    };
    Ok(DecoderConfig { hidden, ..sized })
}

/// Reads these sizes except for the hidden features of MLPs.
fn sizes_without_hidden(fields: &Fields) -> Result<DecoderConfig> {
    sizes_with_key_heads(fields, "num_key_value_heads")
}

/// Reads these sizes. `kv_name` is the field of the number of key heads.
fn sizes_with_key_heads<'a>(fields: &Fields<'a>, kv_name: &'a str) -> Result<DecoderConfig> {
    let (features, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    let head_dim = fields.size_opt("head_dim")?;
    if head_dim.is_none() {
        fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
    }
    let kv_heads = fields.size_opt(kv_name)?.unwrap_or(heads);
    fields.divides((kv_name, kv_heads), ("num_attention_heads", heads))?;
    let layers = fields.layers("num_hidden_layers")?;
    Ok(DecoderConfig {
        kv_heads,
        head_dim: head_dim.unwrap_or(features / heads),
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        ..DecoderConfig::new(fields.size("vocab_size")?, layers, features, heads)
    })
}

/// Reads the sizes and the parts whose field names Llama and most later models share.
fn llama_sizes(fields: &Fields) -> Result<DecoderConfig> {
    Ok(DecoderConfig {
        epsilon: fields.number("rms_norm_eps")?,
        activation: fields.activation("hidden_act")?,
        ..sizes(fields)?
    })
}

/// Sets rotary positions. `share` is the default share of a head's features that the model rotates; `None` rotates all.
fn rotary(config: &mut DecoderConfig, fields: &Fields, share: Option<f64>) -> Result<()> {
    config.positions = Positions::Rotary(rope(fields, config.head_dim, share)?);
    Ok(())
}

/// Returns the window of each layer, from `layer_types` or from `is_local`.
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
    let Some(types) = types else {
        return Ok((0..layers).map(|layer| window.filter(|_| is_local(layer))).collect());
    };
    types
        .iter()
        .map(|entry| match entry.as_str().unwrap_or_default() {
            "full_attention" => Ok(None),
            "sliding_attention" => match window {
                Some(window) => Ok(Some(window)),
                None => Err(fields.error("`layer_types` has layers with windows, but `sliding_window` is missing")),
            },
            other => Err(fields.error(format!("`layer_types` has the layer type {other:?}, which is not supported"))),
        })
        .collect()
}

/// Returns the windows of a model that has the same window in all layers. Returns an error if the file has
/// `layer_types` with another window, because the model's class does not read the list.
fn window_of_all(fields: &Fields, layers: usize, window: Option<usize>) -> Result<Vec<Option<usize>>> {
    let kind = if window.is_some() { "sliding_attention" } else { "full_attention" };
    match fields.list_opt("layer_types")?.and_then(|types| types.iter().find(|entry| entry.as_str() != Some(kind))) {
        Some(other) => {
            Err(fields.error(format!("`layer_types` has {other}, but all layers of this model must be \"{kind}\"")))
        }
        None => Ok(vec![window; layers]),
    }
}

/// Returns the windows of Qwen's models. If `use_sliding_window` is true, layers from `max_window_layers` on have one.
fn qwen_windows(fields: &Fields, layers: usize) -> Result<Vec<Option<usize>>> {
    fields.skip(&["sliding_window"]);
    let window = if fields.flag("use_sliding_window")? { fields.size_opt("sliding_window")? } else { None };
    let first_layer = fields.number_or("max_window_layers", 0.0)?;
    windows(fields, layers, window, |layer| layer as f64 >= first_layer)
}

/// Returns the name of an array of every layer.
fn of_layer(name: &str) -> String {
    format!("model.layers.*.{name}")
}

/// Returns the array names that most decoders share.
fn llama_keys() -> KeyMap {
    norms(projections(KeyMap::new()))
        .linear("blocks[*].attention.query", "model.layers.*.self_attn.q_proj")
        .linear("blocks[*].attention.key", "model.layers.*.self_attn.k_proj")
        .linear("blocks[*].attention.value", "model.layers.*.self_attn.v_proj")
        .linear("blocks[*].mlp.gate", "model.layers.*.mlp.gate_proj")
        .linear("blocks[*].mlp.up", "model.layers.*.mlp.up_proj")
        .scale("blocks[*].attention.query_norm", "model.layers.*.self_attn.q_norm")
        .scale("blocks[*].attention.key_norm", "model.layers.*.self_attn.k_norm")
        .norm("blocks[*].mlp_norm.0", "model.layers.*.post_attention_layernorm")
        .ignore("model.layers.*.self_attn.rotary_emb.inv_freq")
}

fn projections(keys: KeyMap) -> KeyMap {
    keys.array("embed.embedding", "model.embed_tokens.weight", Layout::Same)
        .linear("blocks[*].attention.out", "model.layers.*.self_attn.o_proj")
        .linear("blocks[*].mlp.down", "model.layers.*.mlp.down_proj")
        .linear("head", "lm_head")
        .array("head_bias", "lm_head.bias", Layout::Same)
        .tied("lm_head.weight", "model.embed_tokens.weight")
}

fn norms(keys: KeyMap) -> KeyMap {
    keys.norm("blocks[*].norm.0", "model.layers.*.input_layernorm").norm("norm.0", "model.norm")
}
