//! Models of text and images or sound. Only their decoder of texts is read.

use super::*;

/// The types of these models. Their object `text_config` describes a decoder.
pub(super) const WRAPPERS: &[&str] = &[
    "apertus1p5",
    "aria",
    "audioflamingo3",
    "aya_vision",
    "blip-2",
    "cohere2_vision",
    "cohere_compass",
    "cosmos3_edge",
    "cosmos3_omni",
    "deepseek_ocr2",
    "deepseek_vl",
    "deepseek_vl_hybrid",
    "emu3",
    "ernie4_5_vl_moe",
    "exaone4_5",
    "fast_vlm",
    "fun_asr_nano",
    "fuyu",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
    "glm46v",
    "glm4v",
    "glm4v_moe",
    "glm_ocr",
    "glmasr",
    "glmga",
    "got_ocr2",
    "granite4_vision",
    "granite_docling",
    "granite_speech",
    "granite_speech_plus",
    "hunyuan_vl",
    "hyperclovax_vision_v2",
    "idefics2",
    "idefics3",
    "instructblip",
    "instructblipvideo",
    "internvl",
    "janus",
    "kimi_k25",
    "lfm2_vl",
    "lfm3_vl",
    "lighton_ocr",
    "llama4",
    "llava",
    "llava_next",
    "llava_next_video",
    "llava_onevision",
    "minicpm_ocr",
    "minicpmv4_6",
    "minicpmv4_7",
    "mistral3",
    "mllama",
    "molmo2",
    "moss_transcribe_diarize",
    "musicflamingo",
    "nemotron_h_omni",
    "ovis2",
    "paddleocr_vl",
    "paligemma",
    "perception_lm",
    "pp_chart2table",
    "qianfan_ocr",
    "qwen2_5_omni",
    "qwen2_5_omni_thinker",
    "qwen2_5_vl",
    "qwen2_audio",
    "qwen2_vl",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_asr",
    "qwen3_omni_moe",
    "qwen3_omni_moe_thinker",
    "qwen3_vl",
    "qwen3_vl_moe",
    "shieldgemma2",
    "smolvlm",
    "step3p7",
    "vibevoice_asr",
    "video_llama_3",
    "video_llava",
    "vipllava",
    "voxtral",
];

/// The types whose logits have the factor and the bound of the decoder's class. The classes of the other types compute
/// logits without both.
const WITH_FACTORS: [&str; 7] =
    ["gemma3n", "gemma4", "gemma4_unified", "granite4_vision", "granite_docling", "hyperclovax_vision_v2", "paligemma"];

/// Reads the decoder of a model of text and images.
pub(super) fn read(fields: &Fields, kind: &str) -> Read {
    let default_type = format!("{}_text", kind.strip_suffix("_thinker").unwrap_or(kind));
    // The types of all Qwen models follow from the type of the entire model.
    let is_fixed = kind.starts_with("qwen") && !SOUND.contains(&kind)
        || matches!(kind, "cosmos3_omni" | "ernie4_5_vl_moe" | "granite4_vision" | "step3p7");
    let default_type = match kind {
        "cosmos3_omni" => "qwen3_vl_text".to_owned(),
        "step3p7" => "step3p5".to_owned(),
        // The class of the text differs only by the images that it adds to the outputs of layers.
        "granite4_vision" => "granite".to_owned(),
        "emu3" => "emu3_text_model".to_owned(),
        "fast_vlm" => "qwen2".to_owned(),
        "perception_lm" => "llama".to_owned(),
        "nemotron_h_omni" => "nemotron_h".to_owned(),
        "blip-2" | "instructblip" | "instructblipvideo" => "opt".to_owned(),
        "qwen2_audio" | "audioflamingo3" | "musicflamingo" | "vibevoice_asr" => "qwen2".to_owned(),
        "voxtral" | "glmasr" => "llama".to_owned(),
        "granite_speech" | "granite_speech_plus" => "granite".to_owned(),
        "qwen3_asr" | "fun_asr_nano" | "moss_transcribe_diarize" => "qwen3".to_owned(),
        "mllama" => MLLAMA.to_owned(),
        _ => default_type,
    };
    // The older name of the object.
    let name = if kind == "nemotron_h_omni" && fields.has("llm_config") { "llm_config" } else { "text_config" };
    let text = match (fields.object_opt(name)?, kind) {
        (Some(text), _) if is_fixed || !text.has("model_type") => fields.model(name, &default_type)?,
        (Some(text), _) => text,
        // Older files have the fields of the decoder next to the object for images.
        (None, "qwen2_vl" | "qwen2_5_vl" | "paddleocr_vl" | "hunyuan_vl") => {
            let text = fields.with_defaults_of(&default_type);
            skip_images(&text);
            fields.skip_all();
            text
        }
        (None, _) => return Err(fields.error("missing field `text_config`")),
    };
    skip_images(fields);
    check_other_defaults(fields, &text, kind)?;
    if kind.starts_with("granite_speech") {
        // The frames that the projector reads at once.
        fields.skip(&["window_size"]);
    }
    if kind == "fuyu" {
        // The sizes of the decoder, which its own object repeats.
        fields.skip_all();
    }
    let text_type = match text.text_opt("model_type")? {
        Some(text_type) if !is_fixed && text_type != kind => text_type,
        _ => &default_type,
    };
    let (mut config, keys) = if text_type == MLLAMA { mllama(&text)? } else { read_kind(&text, text_type)? };
    // The decoders of these types have another default than the entire model.
    if fields.has("tie_word_embeddings") || kind == "qwen3_vl_moe" || kind.ends_with("_thinker") {
        config.tie_embeddings = fields.flag("tie_word_embeddings")?;
    }
    if SOUND.contains(&kind) || kind == "mllama" {
        config.tie_embeddings = TIED.contains(&kind) && fields.flag_or("tie_word_embeddings", true)?;
    }
    if !WITH_FACTORS.contains(&kind) {
        (config.logits_scale, config.logits_soft_cap) = (None, None);
    }
    text.finish()?;
    // The layers of text and images have experts of both kinds, whose indices are behind those of the experts for texts.
    let count = config.experts.as_ref().filter(|_| kind == "ernie4_5_vl_moe").map_or(0, |experts| experts.count);
    let experts = (0..config.layers).flat_map(|layer| (count..2 * count).map(move |expert| [layer, expert]));
    let keys = experts
        .fold(keys, |keys, [layer, expert]| keys.ignore(&format!("model.layers.{layer}.mlp.experts.{expert}.**")));
    Ok((config, keys_without_images(keys, kind)))
}

/// The types that hear. Their text is the text of a decoder of any type.
const SOUND: [&str; 11] = [
    "audioflamingo3",
    "fun_asr_nano",
    "glmasr",
    "granite_speech",
    "granite_speech_plus",
    "moss_transcribe_diarize",
    "musicflamingo",
    "qwen2_audio",
    "qwen3_asr",
    "vibevoice_asr",
    "voxtral",
];

/// The types that hear and use the token table as the last layer, unless a field of the entire model is false. The classes of the
/// other types always have another layer.
const TIED: [&str; 6] =
    ["fun_asr_nano", "glmasr", "granite_speech", "granite_speech_plus", "moss_transcribe_diarize", "qwen3_asr"];

/// Returns an error if a field of the text is missing whose default depends on the entire model.
fn check_other_defaults(fields: &Fields, text: &Fields, kind: &str) -> Result<()> {
    let names = match kind {
        "voxtral" => &[
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_key_value_heads",
            "rms_norm_eps",
            "head_dim",
        ][..],
        "glmasr" => &[
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_key_value_heads",
            "rms_norm_eps",
            "num_attention_heads",
        ],
        _ => return Ok(()),
    };
    match names.iter().find(|name| !text.has(name)) {
        Some(name) => Err(fields.error(format!("missing field `text_config.{name}`"))),
        None => {
            // The base of rotary positions has another default too, which takes precedence over the field outside of the object in
            // one type.
            let rope = text.object_opt("rope_parameters")?;
            let has_base = rope.is_some_and(|rope| rope.has("rope_theta"));
            match has_base || (kind == "voxtral" && text.has("rope_theta")) {
                true => Ok(()),
                false => Err(fields.error("missing field `text_config.rope_parameters.rope_theta`")),
            }
        }
    }
}

/// The type of the text of Llama 3.2 with images.
const MLLAMA: &str = "mllama_text_model";

/// The rows of the token table for tokens of images, after the other tokens.
const MLLAMA_IMAGE_TOKENS: usize = 8;

/// The layers of published models that attend to images.
const MLLAMA_CROSS_LAYERS: [usize; 8] = [3, 8, 13, 18, 23, 28, 33, 38];

/// Reads the text of Llama 3.2 with images. The layers that attend to images are left out, because they have no effect on texts without
/// images.
fn mllama(text: &Fields) -> Read {
    let mut config = llama_sizes(text)?;
    rotary(&mut config, text, None)?;
    let cross: Vec<usize> = match text.list_opt("cross_attention_layers")? {
        None => MLLAMA_CROSS_LAYERS.to_vec(),
        Some(list) => {
            let layers = list.iter().map(|layer| usize::try_from(layer.as_u64()?).ok());
            let layers: Option<Vec<usize>> = layers.collect();
            layers.ok_or_else(|| text.error("field `cross_attention_layers` must be a list of layers"))?
        }
    };
    let layers: Vec<usize> = (0..config.layers).filter(|layer| !cross.contains(layer)).collect();
    if layers.is_empty() {
        return Err(text.error("all layers of `num_hidden_layers` are in `cross_attention_layers`"));
    }
    let table =
        Layout::FirstRows { rows: config.vocab_size, of: config.vocab_size.saturating_add(MLLAMA_IMAGE_TOKENS) };
    config.layers = layers.len();
    let keys = KeyMap::new()
        .array("embed.embedding", "model.embed_tokens.weight", table)
        .and(llama_keys())
        .with_layers(layers.iter().copied().enumerate());
    let keys = cross.iter().fold(keys, |keys, layer| {
        ["model.", "model.language_model.", "language_model.model."]
            .iter()
            .fold(keys, |keys, start| keys.ignore(&format!("{start}layers.{layer}.**")))
    });
    Ok((config, keys))
}

/// Reads the decoder of a model that hears, sees and speaks. The decoder writes the text that another decoder speaks.
pub(super) fn read_thinker(fields: &Fields, kind: &str) -> Read {
    let thinker_type = format!("{kind}_thinker");
    let thinker = fields.model("thinker_config", &thinker_type)?;
    let (config, keys) = read(&thinker, &thinker_type)?;
    thinker.finish()?;
    fields.skip(&["talker_config", "token2wav_config", "code2wav_config", "enable_audio_output", "enable_talker"]);
    let keys = keys.prefix("thinker.");
    Ok((config, ["talker.**", "token2wav.**", "code2wav.**"].into_iter().fold(keys, |keys, part| keys.ignore(part))))
}

/// The starts of names of fields that describe images and sounds, and their embeddings.
const IMAGE_FIELDS: [&str; 39] = [
    "acoustic_",
    "adapter_",
    "adaptor_",
    "alignment_",
    "audio_",
    "deepstack_",
    "density_router_",
    "downsample_",
    "encoder_config",
    "force_image_size",
    "has_lora_adapter",
    "im_",
    "image_",
    "insert_layer_id",
    "merge",
    "mm_",
    "multimodal_",
    "newline_id",
    "num_query_tokens",
    "perceiver_",
    "position_id_per_seconds",
    "projection_",
    "projector_",
    "qformer_",
    "scale_factor",
    "seconds_per_chunk",
    "semantic_",
    "slice_",
    "sound_",
    "spatial_",
    "use_decoder_only_language_model",
    "use_image_newline_parameter",
    "video_",
    "vision_",
    "visual_",
    "vit_config",
    "vit_hidden_size",
    "vocabulary_map",
    "vq_config",
];

/// Marks the fields as read that describe images and sounds, their embeddings and the layers for them.
fn skip_images<'a>(fields: &Fields<'a>) {
    let names = fields.entries().map(|(name, _)| name.as_str());
    let names: Vec<&'a str> = names.filter(|name| IMAGE_FIELDS.iter().any(|start| name.starts_with(start))).collect();
    fields.skip(&names);
    // The sizes of image embeddings, and other parts.
    fields.skip(&["hidden_size", "vocab_size", "high_res_vision_config", "drop_vision_last_layer", "image_size"]);
}

/// The starts of names of arrays for images and sounds.
const IMAGE_PARTS: [&str; 51] = [
    "acoustic_",
    "adaptor.",
    "aligner.",
    "audio_adaptor.",
    "audio_tower.",
    "connector.",
    "embed_audio.",
    "embed_vision.",
    "encoder.",
    "generation_aligner.",
    "generation_embeddings.",
    "generation_head.",
    "high_res_vision_alpha",
    "high_res_vision_model.",
    "high_res_vision_neck.",
    "high_res_vision_proj.",
    "image_newline",
    "image_tower.",
    "language_projection.",
    "layerwise_projectors.",
    "merger.",
    "mlp1.",
    "mlp2.",
    "mlp_AR.",
    "mm_projector.",
    "multi_modal_projector.",
    "projector.",
    "qformer.",
    "query_tokens",
    "qwen2_model.",
    "resampler_model.",
    "sam_model.",
    "semantic_",
    "sound_encoder.",
    "sound_projection.",
    "spatial_projectors.",
    "video_tower.",
    "view_seperator",
    "vision_backbone.",
    "vision_embed_tokens.",
    "vision_embedder.",
    "vision_encoder.",
    "vision_model.",
    "vision_projection.",
    "vision_projector.",
    "vision_tower.",
    "visual.",
    "visual_embeddings_table.",
    "vit.",
    "vit_large_projector.",
    "vqmodel.",
];

/// Adds the names that the decoder's arrays have in files of models of text and images. The other arrays are ignored.
fn keys_without_images(keys: KeyMap, kind: &str) -> KeyMap {
    let keys = keys
        // Most classes use the token table as the last layer, unless the files have a separate layer.
        .absent("lm_head.weight", "model.embed_tokens.weight", Layout::Transposed)
        .prefix_alias("model.", "language_model.model.")
        .prefix_alias("model.", "model.language_model.")
        .prefix_alias("model.", "model.language_model.model.")
        .prefix_alias("model.", "model.text_model.")
        .prefix_alias("lm_head.", "language_model.lm_head.")
        // Names that transformers writes although published files have the usual ones.
        .prefix_alias("model.layers.", "language_model.model.blocks.")
        .prefix_alias("model.layers.", "language_model.model.encoder.layers.");
    let keys = IMAGE_PARTS
        .iter()
        .fold(keys, |keys, part| keys.ignore(&format!("{part}**")).ignore(&format!("model.{part}**")));
    match kind {
        "emu3" => keys.prefix_alias("model.", "text_model.model.").prefix_alias("lm_head.", "text_model.lm_head."),
        "cosmos3_omni" | "cosmos3_edge" => cosmos_keys(keys),
        // The prefix of OPT's names is not a part of them.
        "blip-2" | "instructblip" | "instructblipvideo" => keys
            .prefix_alias("decoder.", "language_model.model.decoder.")
            .prefix_alias("decoder.", "model.language_model.decoder."),
        _ => keys,
    }
}

/// Adds the names of Cosmos 3, in which the arrays of the decoder and of the vision tower have no prefix.
fn cosmos_keys(keys: KeyMap) -> KeyMap {
    let layers = [("q_proj", "to_q"), ("k_proj", "to_k"), ("v_proj", "to_v"), ("o_proj", "to_out")]
        .map(|names| (names, Layout::Transposed));
    let norms = [("q_norm", "norm_q"), ("k_norm", "norm_k")].map(|names| (names, Layout::Same));
    let keys = layers.into_iter().chain(norms).fold(keys, |keys, ((name, other), layout)| {
        let [name, other] = [format!("{}.{name}", of_layer("self_attn")), format!("layers.*.self_attn.{other}")];
        keys.absent(&format!("{name}.weight"), &format!("{other}.weight"), layout).absent(
            &format!("{name}.bias"),
            &format!("{other}.bias"),
            Layout::Same,
        )
    });
    ["blocks.", "patch_embed.", "pos_embed.", "deepstack_merger_list."]
        .iter()
        .fold(keys.prefix_alias("model.", ""), |keys, part| keys.ignore(&format!("{part}**")))
}
