//! The decoders of `transformers`: readers of their configurations, and the names of their arrays.

mod bloom;
mod experts;
mod fused;
mod gemma;
mod gpt;
mod latent;
mod layered;
mod linear;
mod llama;
mod state_space;
mod windowed;

use shardax::error::Result;

use super::config::Fields;
use super::rope::{rope, rope_named};
use super::{KeyMap, Layout};
use crate::{Biases, DecoderConfig, NormKind, Positions, QkNorm};

/// A configuration, and the names of the model's arrays.
type Read = Result<(DecoderConfig, KeyMap)>;

/// The families: their model types, and the function that reads their configurations.
const FAMILIES: &[(&[&str], fn(&Fields, &str) -> Read)] = &[
    (&["llama", "mistral", "qwen2", "qwen3", "arcee", "seed_oss", "helium", "ernie4_5"], llama::read),
    (&["qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"], llama::read),
    (&["internlm3", "iquestcoder", "ministral", "cwm", "hunyuan_v1_dense", "exaone"], llama::read),
    (
        &["granite", "smollm3", "olmo", "olmo2", "olmo3", "cohere", "cohere2", "stablelm", "starcoder2"],
        llama::read_variant,
    ),
    (&["ministral3"], llama::read),
    (&["nanochat"], llama::nanochat),
    (&["nemotron", "jais2", "exaone4", "hyperclovax", "apertus", "lfm2"], llama::read_variant),
    (&["gemma", "gemma2", "gemma3_text", "vaultgemma"], gemma::read),
    (&["gemma3n_text", "gemma4_text"], layered::read),
    (&["lfm3"], llama::lfm3),
    (&["eurobert"], llama::eurobert),
    (&["laguna"], windowed::laguna),
    (&["phi3", "glm", "glm4"], fused::read),
    (&["granite_swa", "granitemoe_swa"], windowed::granite),
    (&["modernbert-decoder"], windowed::modern_bert),
    (&["mellum", "flint", "afmoe", "hy_v3"], windowed::experts),
    (&["cohere2_moe"], windowed::cohere_experts),
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
    (&["bloom"], bloom::bloom),
    (&["mpt"], bloom::mpt),
    (&["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe", "granitemoe", "gpt_oss"], experts::read),
    (&["dots1", "minimax_m2", "flex_olmo", "granitemoeshared", "ernie4_5_moe"], experts::read),
    (&["exaone_moe", "hunyuan_v1_moe", "solar_open", "sarvam_moe", "llama4_text"], experts::read),
    (&["qwen3_vl_moe_text", "lfm2_moe"], experts::read),
    (&["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"], linear::qwen),
    (
        &["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu", "sarvam_mla", "minicpm3", "axk1", "mistral4"],
        latent::read,
    ),
];

/// Models of text and images. Only the text is read: the object `text_config` describes a decoder.
const WRAPPERS: [&str; 30] = [
    "gemma3",
    "gemma3n",
    "gemma4",
    "mistral3",
    "llava",
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "llava_next",
    "llava_onevision",
    "internvl",
    "aya_vision",
    "smolvlm",
    "idefics3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_vl_moe",
    "llama4",
    "cohere2_vision",
    "lfm2_vl",
    "llava_next_video",
    "vipllava",
    "exaone4_5",
    "lighton_ocr",
    "got_ocr2",
    "idefics2",
    "video_llava",
    "ovis2",
    "video_llama_3",
    "deepseek_vl",
];

/// Returns `true` if models of this type are supported.
pub(super) fn is_known(kind: &str) -> bool {
    WRAPPERS.contains(&kind) || FAMILIES.iter().any(|(kinds, _)| kinds.contains(&kind))
}

/// Reads the architecture of a decoder and the names of its arrays.
pub(super) fn read(fields: &Fields) -> Read {
    let kind = fields.text("model_type")?;
    if WRAPPERS.contains(&kind) {
        return wrapped(fields, kind);
    }
    read_kind(fields, kind)
}

fn read_kind(fields: &Fields, kind: &str) -> Read {
    match FAMILIES.iter().find(|(kinds, _)| kinds.contains(&kind)) {
        Some((_, read)) => read(fields, kind),
        None => {
            let known: Vec<&str> = FAMILIES.iter().flat_map(|(kinds, _)| *kinds).copied().chain(WRAPPERS).collect();
            Err(fields.error(format!("the model_type {kind:?} is not one of {}", known.join(", "))))
        }
    }
}

/// Reads the decoder of a model of text and images.
fn wrapped(fields: &Fields, kind: &str) -> Read {
    let text = match (fields.object_opt("text_config")?, kind) {
        (Some(_), kind) if kind.starts_with("qwen") => fields.model("text_config", &format!("{kind}_text"))?,
        (Some(text), _) => text,
        // Older files have the fields of the decoder next to the object for images.
        (None, "qwen2_vl" | "qwen2_5_vl") => {
            let text = fields.with_defaults_of(&format!("{kind}_text"));
            text.skip(&["vision_config"]);
            fields.skip_all();
            text
        }
        (None, _) => return Err(fields.error("missing field `text_config`")),
    };
    skip_images(fields);
    let kind = if kind.starts_with("qwen") { format!("{kind}_text") } else { text.text("model_type")?.to_owned() };
    text.skip(&["model_type"]);
    let (mut config, keys) = read_kind(&text, &kind)?;
    // The decoder of Qwen3-VL with experts has another default than the entire model.
    if fields.has("tie_word_embeddings") || kind == "qwen3_vl_moe_text" {
        config.tie_embeddings = fields.flag("tie_word_embeddings")?;
    }
    if !kind.starts_with("gemma") && !kind.starts_with("qwen") {
        // The classes of these models compute logits without the factors of the decoder's class.
        (config.logits_scale, config.logits_soft_cap) = (None, None);
    }
    text.finish()?;
    Ok((config, keys_without_images(keys)))
}

/// Marks the fields as read that describe images, their embeddings and the layers for them.
fn skip_images(fields: &Fields) {
    fields.skip(&["vision_config", "mm_tokens_per_image", "projector_hidden_act", "multimodal_projector_bias"]);
    fields.skip(&["spatial_merge_size", "vision_feature_layer", "vision_feature_select_strategy", "image_seq_length"]);
    // The sizes and the order of image patches.
    fields.skip(&["image_grid_pinpoints", "vision_aspect_ratio", "use_image_newline_parameter", "downsample_ratio"]);
    fields.skip(&["downsample_factor", "adapter_layer_norm_eps", "scale_factor", "projector_hidden_size"]);
    fields.skip(&[
        "alignment_intermediate_size",
        "projector_bias",
        "projector_layernorm_eps",
        "projector_use_layernorm",
    ]);
    // The sizes of image embeddings, and the tokens that mark images.
    fields.skip(&["perceiver_config", "visual_indicator_token_ids", "hidden_size", "vocab_size"]);
    fields.skip(&["audio_config", "audio_soft_tokens_per_image", "vision_soft_tokens_per_image"]);
    fields.skip(&["spatial_pool_mode", "spatial_pool_stride", "video_seq_length", "vision_feature_layers"]);
}

/// Adds the names that the decoder's arrays have in files of models of text and images. The other arrays are ignored.
fn keys_without_images(keys: KeyMap) -> KeyMap {
    let keys = keys
        // Most classes use the token table as the last layer, unless the files have a separate layer.
        .absent("lm_head.weight", "model.embed_tokens.weight", Layout::Transposed)
        .prefix_alias("model.", "language_model.model.")
        .prefix_alias("model.", "model.language_model.")
        .prefix_alias("model.", "model.text_model.")
        .prefix_alias("lm_head.", "language_model.lm_head.");
    let parts = [
        "audio_tower",
        "embed_audio",
        "embed_vision",
        "image_tower",
        "video_tower",
        "visual_embeddings_table",
        "projector",
        "aligner",
        "vision_tower",
        "multi_modal_projector",
        "vision_model",
        "visual",
        "connector",
        "vision_encoder",
        "vision_projection",
    ];
    let keys =
        parts.iter().fold(keys, |keys, part| keys.ignore(&format!("{part}.**")).ignore(&format!("model.{part}.**")));
    keys.ignore("image_newline").ignore("model.image_newline")
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
            other => Err(fields.error(format!("the layer type {other:?} is not supported"))),
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
    let window = match fields.flag("use_sliding_window")? {
        true => fields.size_opt("sliding_window")?,
        false => None,
    };
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
