//! Configurations and array names of T5, BART, Whisper and similar models.

use shardax_nn::prelude::*;

use super::{
    EncoderDecoder, EncoderDecoderConfig, EncoderDecoderPositions, ImageEncoderConfig, ImageTower, LocalEncoderConfig,
    Side, blip, fsmt, moonshine,
};
use crate::huggingface::{
    Config, DONUT, Fields, KeyMap, Layout, Pretrained, checked, known_type, swin_fields, unknown_type, vit_fields,
    windows,
};
use crate::{Activation, NormKind};

impl Pretrained for EncoderDecoder {
    type Architecture = EncoderDecoderConfig;

    fn read(config: &Config) -> Result<(EncoderDecoderConfig, KeyMap)> {
        let fields = config.fields();
        let name = fields.class()?.unwrap_or("WithLMHeadModel");
        if !["ForConditionalGeneration", "WithLMHeadModel", "MTModel", "EncoderDecoderModel"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            let message = format!("the class {name:?} of `architectures` does not generate text");
            return Err(match name {
                "BlipForQuestionAnswering" => fields.error(message).help("load it with `BlipAnswerer`"),
                "BlipForImageTextRetrieval" => fields.error(message).help("load it with `BlipMatcher`"),
                _ => fields.error(message),
            });
        }
        let (read, keys) = match fields.text("model_type")? {
            kind @ ("t5" | "mt5" | "umt5" | "longt5") => t5(&fields, kind)?,
            kind @ ("bart" | "mbart" | "marian" | "pegasus" | "m2m_100" | "blenderbot" | "blenderbot-small"
            | "plbart" | "mvp" | "led") => bart(&fields, kind)?,
            "whisper" => whisper(&fields)?,
            "moonshine" => moonshine::read(&fields)?,
            "fsmt" => fsmt::read(&fields)?,
            "speech_to_text" => fsmt::read_speech(&fields)?,
            "blip" => blip::read(&fields)?,
            IMAGES => images(&fields)?,
            other => return Err(unknown_type(&fields, other, &KNOWN)),
        };
        fields.finish()?;
        checked(config, read.extents(), read.check())?;
        Ok((read, keys))
    }

    fn make(architecture: &EncoderDecoderConfig, rngs: &mut Rngs) -> Result<Self> {
        EncoderDecoder::new(architecture, rngs)
    }

    fn extents(architecture: &EncoderDecoderConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let encoder = match &architecture.images {
            Some(images) => images.encoder.extents().0,
            None => architecture.encoder.layers,
        };
        (encoder.saturating_add(architecture.decoder.layers), architecture.extents())
    }
}

/// The supported model types.
pub(crate) const KNOWN: [&str; 20] = [
    "t5",
    "longt5",
    "mt5",
    "umt5",
    "bart",
    "mbart",
    "marian",
    "pegasus",
    "m2m_100",
    "blenderbot",
    "blenderbot-small",
    "plbart",
    "mvp",
    "led",
    "whisper",
    "moonshine",
    "fsmt",
    "speech_to_text",
    "blip",
    "vision-encoder-decoder",
];

/// The type of models that read images.
const IMAGES: &str = "vision-encoder-decoder";

/// T5, mT5 and umT5.
fn t5(fields: &Fields, kind: &str) -> Result<(EncoderDecoderConfig, KeyMap)> {
    let features = fields.size("d_model")?;
    let layers = fields.layers("num_layers")?;
    let side =
        |layers: usize| Ok::<_, Error>(Side { layers, heads: fields.size("num_heads")?, hidden: fields.size("d_ff")? });
    let projection = fields.text("feed_forward_proj")?;
    let (gated, name) = match projection.strip_prefix("gated-") {
        Some(name) => (true, name),
        None => (false, projection),
    };
    let activation = match (gated, name) {
        // In gated MLPs, T5 means the tanh approximation of GELU.
        (true, "gelu") => Activation::GeluTanh,
        _ => fields.activation_named("feed_forward_proj", name)?,
    };
    // T5's token embedding is also the last layer, and the input of the last layer is scaled. Version 1.1 does neither.
    let is_tied = fields.flag_or("tie_word_embeddings", true)?;
    let is_scaled = kind != "mt5" && fields.flag_or("scale_decoder_outputs", is_tied)?;
    // In LongT5 this field is only about the scale.
    let is_tied = is_tied || kind == "longt5";
    let local = if kind == "longt5" { Some(local_encoder(fields)?) } else { None };
    // These fields follow from `feed_forward_proj`, or are limits that the model does not have.
    fields.skip(&["dense_act_fn", "is_gated_act", "n_positions"]);
    let config = EncoderDecoderConfig {
        vocab_size: fields.size("vocab_size")?,
        source_vocab_size: None,
        features,
        head_dim: Some(fields.size("d_kv")?),
        encoder: side(layers)?,
        decoder: side(match fields.value("num_decoder_layers") {
            Some(_) => fields.layers("num_decoder_layers")?,
            None => layers,
        })?,
        mel_bins: None,
        frames: None,
        samples: None,
        images: None,
        local,
        windows: Vec::new(),
        positions: EncoderDecoderPositions::Relative {
            buckets: fields.size("relative_attention_num_buckets")?,
            max_distance: fields.size("relative_attention_max_distance")?,
            per_layer: kind == "umt5",
        },
        norm: NormKind::Rms,
        epsilon: fields.number("layer_norm_epsilon")?,
        activation,
        gated,
        biases: false,
        key_biases: false,
        logits_bias: false,
        first_position: 0,
        embedding_scale: None,
        embedding_norm: false,
        norm_before_positions: false,
        sum_norms: false,
        final_norm: true,
        attention_scale: Some(1.0),
        output_transform: false,
        tie_embeddings: is_tied,
        logits_scale: is_scaled.then(|| (features as f64).sqrt().recip()),
    };
    Ok((config, t5_keys(gated, is_tied, local)))
}

/// Reads the attention of LongT5's encoder.
fn local_encoder(fields: &Fields) -> Result<LocalEncoderConfig> {
    let (radius, block) = (fields.size("local_radius")?, fields.size("global_block_size")?);
    match fields.text("encoder_attention_type")? {
        "local" => Ok(LocalEncoderConfig { radius, block: None }),
        "transient-global" => Ok(LocalEncoderConfig { radius, block: Some(block) }),
        other => Err(fields.error(format!("field `encoder_attention_type` is {other:?}, which is not supported"))),
    }
}

/// Returns the names of T5's arrays.
fn t5_keys(gated: bool, is_tied: bool, local: Option<LocalEncoderConfig>) -> KeyMap {
    let input = if gated { "wi_1" } else { "wi" };
    let mut keys = KeyMap::new().array("embed.embedding", "shared.weight", Layout::Same).linear("head", "lm_head");
    for (stage, mlp) in [("encoder", 1), ("decoder", 2)] {
        let layer = format!("{stage}.block.*.layer");
        let block = format!("{stage}.blocks[*]");
        let attention = match local {
            Some(LocalEncoderConfig { block: Some(_), .. }) if stage == "encoder" => "TransientGlobalSelfAttention",
            Some(_) if stage == "encoder" => "LocalSelfAttention",
            _ => "SelfAttention",
        };
        let table = format!("{stage}.block.0.layer.0.{attention}.relative_attention_bias.weight");
        keys = attention_keys(
            keys,
            &format!("{block}.attention"),
            &format!("{layer}.0.{attention}"),
            ["q", "k", "v", "o"],
        )
        .array(format!("{stage}.distances.embedding"), table, Layout::Same)
        .array(
            format!("{stage}.block_distances.embedding"),
            format!("{stage}.block.0.layer.0.{attention}.global_relative_attention_bias.weight"),
            Layout::Same,
        )
        .scale(&format!("{block}.block_norm.0"), &format!("{layer}.0.{attention}.global_input_layer_norm"))
        .array(
            format!("{block}.distances.embedding"),
            format!("{layer}.0.SelfAttention.relative_attention_bias.weight"),
            Layout::Same,
        )
        .scale(&format!("{block}.norm.0"), &format!("{layer}.0.layer_norm"))
        .scale(&format!("{block}.mlp_norm.0"), &format!("{layer}.{mlp}.layer_norm"))
        .linear(&format!("{block}.mlp.gate"), &format!("{layer}.{mlp}.DenseReluDense.wi_0"))
        .linear(&format!("{block}.mlp.up"), &format!("{layer}.{mlp}.DenseReluDense.{input}"))
        .linear(&format!("{block}.mlp.down"), &format!("{layer}.{mlp}.DenseReluDense.wo"))
        .scale(&format!("{stage}.norm.0"), &format!("{stage}.final_layer_norm"))
        .tied(&format!("{stage}.embed_tokens.weight"), "shared.weight");
    }
    let cross = "decoder.block.*.layer.1.EncDecAttention";
    keys = attention_keys(keys, "decoder.blocks[*].cross", cross, ["q", "k", "v", "o"])
        .scale("decoder.blocks[*].cross_norm.0", "decoder.block.*.layer.1.layer_norm")
        // Older files have this array, but no model uses it.
        .ignore("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight");
    if is_tied { keys.tied("lm_head.weight", "shared.weight") } else { keys }
}

/// BART, and the models with the same blocks: mBART, Marian, Pegasus, M2M-100, NLLB, Blenderbot, Blenderbot Small, PLBART,
/// MVP and LED.
fn bart(fields: &Fields, kind: &str) -> Result<(EncoderDecoderConfig, KeyMap)> {
    let features = fields.size("d_model")?;
    let [encoder, decoder] = Side::read_both(fields)?;
    let vocab_size = fields.size("vocab_size")?;
    if kind == "marian" {
        let is_other = fields.size_opt("decoder_vocab_size")?.is_some_and(|size| size != vocab_size);
        if is_other || !fields.flag_or("share_encoder_decoder_embeddings", true)? {
            return Err(fields.error("the encoder and the decoder have separate token embeddings"));
        }
    }
    if kind == "mvp" && fields.flag("use_prompt")? {
        return Err(fields.error("field `use_prompt` is true, but learned prompts are not supported"));
    }
    // The sizes of these prompts.
    fields.skip(&["prompt_length", "prompt_mid_dim"]);
    // Options of training, another name of `encoder_layers`, and fields of the first versions that no class reads.
    fields.skip(&["encoder_layerdrop", "decoder_layerdrop", "num_hidden_layers", "classif_dropout"]);
    fields.skip(&["add_bias_logits", "add_final_layer_norm", "normalize_before", "normalize_embedding"]);
    fields.skip(&["static_position_embeddings", "extra_pos_embeddings", "force_bos_token_to_be_generated"]);
    let is_led = kind == "led";
    let lengths = match is_led {
        true => [fields.size("max_encoder_position_embeddings")?, fields.size("max_decoder_position_embeddings")?],
        false => [fields.size("max_position_embeddings")?; 2],
    };
    let is_learned = matches!(kind, "bart" | "mbart" | "blenderbot" | "blenderbot-small" | "plbart" | "mvp" | "led");
    let sum_norms = matches!(kind, "bart" | "marian" | "blenderbot-small" | "plbart" | "mvp" | "led");
    let first_position = match kind {
        "m2m_100" => fields.natural_or("pad_token_id", 1)? + 1,
        _ if is_learned && !is_led && !kind.starts_with("blenderbot") => BART_FIRST_POSITION,
        _ => 0,
    };
    let is_tied = fields.flag_or("tie_word_embeddings", true)?;
    let config = EncoderDecoderConfig {
        vocab_size,
        source_vocab_size: None,
        features,
        head_dim: None,
        encoder,
        decoder,
        mel_bins: None,
        frames: None,
        samples: None,
        images: None,
        local: None,
        windows: if is_led { windows(fields, encoder.layers)? } else { Vec::new() },
        positions: if is_learned {
            let [encoder, decoder] = lengths.map(|length| length.saturating_add(first_position));
            EncoderDecoderPositions::Learned { encoder, decoder }
        } else {
            EncoderDecoderPositions::Sines { length: lengths[0], is_inclusive: kind == "m2m_100" }
        },
        norm: NormKind::Layer,
        epsilon: 1e-5,
        activation: fields.activation("activation_function")?,
        gated: false,
        biases: true,
        key_biases: true,
        logits_bias: kind != "m2m_100",
        first_position,
        embedding_scale: fields.flag("scale_embedding")?.then(|| (features as f64).sqrt()),
        embedding_norm: is_learned && kind != "blenderbot",
        norm_before_positions: kind == "blenderbot-small",
        sum_norms,
        final_norm: !sum_norms,
        attention_scale: None,
        output_transform: false,
        tie_embeddings: is_tied,
        logits_scale: None,
    };
    let keys = bart_keys(is_learned, is_tied);
    Ok((config, if is_led { led_keys().and(keys).renamed("model.", "led.") } else { keys }))
}

/// Reads the BART that writes the texts of Florence-2, whose logits have no biases.
pub(super) fn florence_text(fields: &Fields, is_tied: bool) -> Result<(EncoderDecoderConfig, KeyMap)> {
    let (config, _) = bart(fields, "bart")?;
    let config = EncoderDecoderConfig { logits_bias: false, tie_embeddings: is_tied, ..config };
    Ok((config, bart_keys(true, is_tied).renamed("model.", "model.language_model.")))
}

/// Returns the names of the layers that LED has in place of BART's attention.
fn led_keys() -> KeyMap {
    let (path, layer) = ("encoder.blocks[*]", "model.encoder.layers.*.self_attn");
    let parts = ["query", "key", "value"];
    parts.iter().fold(
        KeyMap::new().linear(&format!("{path}.attention.out"), &format!("{layer}.output")),
        |keys, part| {
            keys.linear(&format!("{path}.attention.{part}"), &format!("{layer}.longformer_self_attn.{part}"))
                .linear(&format!("{path}.global.{part}"), &format!("{layer}.longformer_self_attn.{part}_global"))
        },
    )
}

/// Returns the names of the arrays of BART and of models with the same blocks.
fn bart_keys(is_learned: bool, is_tied: bool) -> KeyMap {
    let mut keys = KeyMap::new()
        .array("embed.embedding", "model.shared.weight", Layout::Same)
        .array("logits_bias", "final_logits_bias", Layout::Row)
        .linear("head", "lm_head");
    for stage in ["encoder", "decoder"] {
        let path = format!("model.{stage}");
        keys = side_keys(keys, stage)
            .norm(&format!("{stage}.embedding_norm.0"), &format!("{path}.layernorm_embedding"))
            .tied(&format!("{path}.embed_tokens.weight"), "model.shared.weight");
        if !is_learned {
            // Some files contain the sinusoidal positions, which are computed here.
            keys = keys
                .ignore(&format!("{path}.embed_positions.weight"))
                .ignore(&format!("{path}.embed_positions.weights"));
        }
    }
    let keys = cross_keys(keys).prefix_alias("model.", "");
    if is_tied { keys.tied("lm_head.weight", "model.shared.weight") } else { keys }
}

/// The row of BART's position embedding for position 0.
const BART_FIRST_POSITION: usize = 2;

/// Adds the array names of the encoder or of the decoder.
pub(super) fn side_keys(keys: KeyMap, stage: &str) -> KeyMap {
    let layer = format!("model.{stage}.layers.*");
    let block = format!("{stage}.blocks[*]");
    attention_keys(keys, &format!("{block}.attention"), &format!("{layer}.self_attn"), PROJECTIONS)
        .array(format!("{stage}.positions.embedding"), format!("model.{stage}.embed_positions.weight"), Layout::Same)
        .norm(&format!("{block}.norm.0"), &format!("{layer}.self_attn_layer_norm"))
        .norm(&format!("{block}.mlp_norm.0"), &format!("{layer}.final_layer_norm"))
        .linear(&format!("{block}.mlp.up"), &format!("{layer}.fc1"))
        .linear(&format!("{block}.mlp.down"), &format!("{layer}.fc2"))
        .norm(&format!("{stage}.norm.0"), &format!("model.{stage}.layer_norm"))
}

/// Adds the array names of the decoder's attention to the encoded input.
pub(super) fn cross_keys(keys: KeyMap) -> KeyMap {
    attention_keys(keys, "decoder.blocks[*].cross", "model.decoder.layers.*.encoder_attn", PROJECTIONS)
        .norm("decoder.blocks[*].cross_norm.0", "model.decoder.layers.*.encoder_attn_layer_norm")
}

/// Whisper.
fn whisper(fields: &Fields) -> Result<(EncoderDecoderConfig, KeyMap)> {
    let features = fields.size("d_model")?;
    let [encoder, decoder] = Side::read_both(fields)?;
    // Options of training, of sound classification and of word timestamps, and another name of `encoder_layers`.
    fields.skip(&["apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks"]);
    fields.skip(&["mask_feature_prob", "mask_feature_length", "mask_feature_min_masks", "encoder_layerdrop"]);
    fields.skip(&["decoder_layerdrop", "use_weighted_layer_sum", "classifier_proj_size", "median_filter_width"]);
    fields.skip(&["num_hidden_layers", "forced_decoder_ids", "alignment_heads", "lang_ids"]);
    let config = EncoderDecoderConfig {
        vocab_size: fields.size("vocab_size")?,
        source_vocab_size: None,
        features,
        head_dim: None,
        encoder,
        decoder,
        mel_bins: Some(fields.size("num_mel_bins")?),
        frames: None,
        samples: None,
        images: None,
        local: None,
        windows: Vec::new(),
        positions: EncoderDecoderPositions::Learned {
            encoder: fields.size("max_source_positions")?,
            decoder: fields.size("max_target_positions")?,
        },
        norm: NormKind::Layer,
        epsilon: 1e-5,
        activation: fields.activation("activation_function")?,
        gated: false,
        biases: true,
        key_biases: false,
        logits_bias: false,
        first_position: 0,
        embedding_scale: None,
        embedding_norm: false,
        norm_before_positions: false,
        sum_norms: false,
        final_norm: true,
        attention_scale: None,
        output_transform: false,
        tie_embeddings: fields.flag("tie_word_embeddings")?,
        logits_scale: None,
    };
    let mut keys = KeyMap::new()
        .array("embed.embedding", "model.decoder.embed_tokens.weight", Layout::Same)
        .conv("sound[0]", "model.encoder.conv1")
        .conv("sound[1]", "model.encoder.conv2")
        .linear("head", "proj_out");
    for stage in ["encoder", "decoder"] {
        keys = side_keys(keys, stage);
    }
    let keys = cross_keys(keys)
        .tied("proj_out.weight", "model.decoder.embed_tokens.weight")
        // The names in files without the last layer have no prefix.
        .prefix_alias("model.", "");
    Ok((config, keys))
}

/// An encoder of images with the decoder of TrOCR or mBART.
fn images(fields: &Fields) -> Result<(EncoderDecoderConfig, KeyMap)> {
    let missing = |name: &str| fields.error(format!("missing field `{name}`"));
    let about = fields.object_opt("encoder")?.ok_or_else(|| missing("encoder"))?;
    let (encoder, encoder_keys, path) = if about.has_type(DONUT) {
        let (encoder, keys) = swin_fields(&about)?;
        // The class without a head has no names for the norm and the pooling layer.
        (ImageTower::Swin(encoder), keys, "pages.")
    } else {
        let (encoder, keys) = vit_fields(&about)?;
        (ImageTower::Vit(encoder), keys, "images.")
    };
    about.finish()?;
    let text = fields.object_opt("decoder")?.ok_or_else(|| missing("decoder"))?;
    let is_trocr = known_type(&text, &["trocr", "mbart"])? == "trocr";
    let (features, heads) = (text.size("d_model")?, text.size("decoder_attention_heads")?);
    text.divides(("decoder_attention_heads", heads), ("d_model", features))?;
    let side = Side { layers: text.layers("decoder_layers")?, heads, hidden: text.size("decoder_ffn_dim")? };
    let length = text.size("max_position_embeddings")?;
    let is_learned = !is_trocr || text.flag("use_learned_position_embeddings")?;
    let read_features = if is_trocr { text.size_opt("cross_attention_hidden_size")? } else { None };
    let image_features = encoder.features();
    if read_features.is_some_and(|size| size != image_features) {
        return Err(text.error(format!("`cross_attention_hidden_size` must be {image_features}, as in `encoder`")));
    }
    let is_projected = read_features.is_none() && image_features != features;
    let is_tied = text.flag_or("tie_word_embeddings", true)?;
    let first_position = if is_learned { BART_FIRST_POSITION } else { text.natural_or("pad_token_id", 1)? + 1 };
    let config = EncoderDecoderConfig {
        vocab_size: text.size("vocab_size")?,
        source_vocab_size: None,
        features,
        head_dim: None,
        encoder: side,
        decoder: side,
        mel_bins: None,
        frames: None,
        samples: None,
        images: Some(ImageEncoderConfig { encoder, is_projected }),
        local: None,
        windows: Vec::new(),
        positions: if is_learned {
            let length = length.saturating_add(first_position);
            EncoderDecoderPositions::Learned { encoder: length, decoder: length }
        } else {
            EncoderDecoderPositions::Sines { length, is_inclusive: true }
        },
        norm: NormKind::Layer,
        epsilon: 1e-5,
        activation: text.activation("activation_function")?,
        gated: false,
        biases: true,
        key_biases: true,
        logits_bias: false,
        first_position,
        embedding_scale: text.flag("scale_embedding")?.then(|| (features as f64).sqrt()),
        embedding_norm: !is_trocr || text.flag("layernorm_embedding")?,
        norm_before_positions: false,
        sum_norms: is_trocr,
        final_norm: !is_trocr,
        attention_scale: None,
        output_transform: false,
        tie_embeddings: is_tied,
        logits_scale: None,
    };
    // The decoder attends to the image in any case, and layers are dropped only in training.
    text.skip(&["is_decoder", "add_cross_attention", "decoder_layerdrop", "num_hidden_layers", "hidden_size"]);
    text.skip(&["num_attention_heads", "classifier_dropout"]);
    if !is_trocr {
        // The encoder that mBART does not have here, and the norm that it always has.
        text.skip(&["encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "encoder_layerdrop"]);
        text.skip(&["add_final_layer_norm", "normalize_before", "normalize_embedding", "is_encoder_decoder"]);
        text.skip(&["add_bias_logits", "static_position_embeddings", "extra_pos_embeddings", "classif_dropout"]);
    }
    text.finish()?;
    fields.skip(&["tie_word_embeddings", "vocab_size", "processor_class", "is_encoder_decoder"]);
    Ok((config, image_keys(is_trocr, is_learned, is_tied).and(encoder_keys.inside(path, "encoder."))))
}

/// Returns the names of the arrays, without the encoder's.
fn image_keys(is_trocr: bool, is_learned: bool, is_tied: bool) -> KeyMap {
    let head = if is_trocr { "output_projection" } else { "lm_head" };
    let keys = KeyMap::new()
        .array("embed.embedding", "model.decoder.embed_tokens.weight", Layout::Same)
        .norm("decoder.embedding_norm.0", "model.decoder.layernorm_embedding")
        .linear("head", head);
    let keys =
        cross_keys(side_keys(keys, "decoder")).inside("", "decoder.").linear("image_projection", "enc_to_dec_proj");
    let table = "decoder.model.decoder.embed_tokens.weight";
    let keys = if is_tied { keys.tied(&format!("decoder.{head}.weight"), table) } else { keys };
    // Some files contain the sinusoidal positions, which are computed here.
    if is_learned { keys } else { keys.ignore("decoder.model.decoder.embed_positions.**") }
}

/// The names of the query, key, value and output layers.
const PROJECTIONS: [&str; 4] = ["q_proj", "k_proj", "v_proj", "out_proj"];

/// Adds the array names of an attention layer.
pub(super) fn attention_keys(keys: KeyMap, path: &str, name: &str, parts: [&str; 4]) -> KeyMap {
    let layers = ["query", "key", "value", "out"].into_iter().zip(parts);
    layers.fold(keys, |keys, (layer, part)| keys.linear(&format!("{path}.{layer}"), &format!("{name}.{part}")))
}
