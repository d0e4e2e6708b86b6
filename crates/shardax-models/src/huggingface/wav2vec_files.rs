//! The configurations of Wav2Vec2 and related encoders of sound, and the names of their arrays.

use shardax_nn::prelude::*;

use super::fields::Fields;
use super::vision::frozen_norm_keys;
use super::wav2vec::{
    ConformerConfig, ConformerPositions, FrameAdapterConfig, SoundConvolution, SoundDistances, SoundEncoder,
    SoundEncoderConfig, SoundHead,
};
use super::{Config, KeyMap, Layout, Pretrained, known_type};

/// The supported model types.
pub(super) const KNOWN: [&str; 9] = [
    "wav2vec2",
    "hubert",
    "wavlm",
    "unispeech",
    "unispeech-sat",
    "data2vec-audio",
    "wav2vec2-conformer",
    "wav2vec2-bert",
    SEW,
];

/// The type whose blocks read several frames as one.
const SEW: &str = "sew";

impl Pretrained for SoundEncoder {
    type Architecture = SoundEncoderConfig;

    fn read(config: &Config) -> Result<(SoundEncoderConfig, KeyMap)> {
        let fields = config.fields();
        let kind = known_type(&fields, &KNOWN)?;
        let is_data2vec = kind == "data2vec-audio";
        let features = fields.size("hidden_size")?;
        let heads = fields.size("num_attention_heads")?;
        fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
        let is_bert = kind == "wav2vec2-bert";
        let conformer = if is_bert || kind == "wav2vec2-conformer" { Some(conformer(&fields, is_bert)?) } else { None };
        let has_positions = conformer.is_none();
        let read = SoundEncoderConfig {
            hidden_size: features,
            intermediate_size: fields.size("intermediate_size")?,
            num_hidden_layers: fields.layers("num_hidden_layers")?,
            num_attention_heads: heads,
            convolutions: if is_bert { Vec::new() } else { convolutions(&fields)? },
            conv_bias: !is_bert && fields.flag("conv_bias")?,
            norms_layers: is_bert || norms_layers(&fields)?,
            conv_act: fields.activation(if is_bert { "hidden_act" } else { "feat_extract_activation" })?,
            norms_projection: kind != "hubert" || fields.flag("feat_proj_layer_norm")?,
            position_kernel: match kind {
                _ if !has_positions => 1,
                "data2vec-audio" => fields.size("conv_pos_kernel_size")?,
                _ => fields.size("num_conv_pos_embeddings")?,
            },
            position_layers: if is_data2vec { Some(fields.layers("num_conv_pos_embeddings")?) } else { None },
            position_groups: if has_positions { fields.size("num_conv_pos_embedding_groups")? } else { 1 },
            pre_norms: !is_data2vec && has_positions && fields.flag("do_stable_layer_norm")?,
            hidden_act: fields.activation("hidden_act")?,
            layer_norm_eps: fields.number("layer_norm_eps")?,
            distances: if kind == "wavlm" { Some(distances(&fields)?) } else { None },
            adapter_size: if kind == "wav2vec2" { fields.size_opt("adapter_attn_dim")? } else { None },
            // The vector that replaces masked positions in training is in the files only if something was masked.
            has_mask: kind == "unispeech-sat"
                || fields.number("mask_time_prob")? > 0.0
                || fields.number("mask_feature_prob")? > 0.0,
            input_features: if is_bert { Some(fields.size("feature_projection_input_dim")?) } else { None },
            norms_frames: !is_bert,
            squeeze_factor: if kind == SEW { squeeze_factor(&fields)? } else { 1 },
            frame_adapter: if is_bert && fields.flag("add_adapter")? { Some(frame_adapter(&fields)?) } else { None },
            conformer,
            head: head(&fields)?,
        };
        if read.adapter_size.is_some() && !read.pre_norms {
            return Err(fields.error("`adapter_attn_dim` is set, but `do_stable_layer_norm` is false"));
        }
        fields.divides(("num_conv_pos_embedding_groups", read.position_groups), ("hidden_size", features))?;
        check_and_skip(&fields)?;
        fields.finish()?;
        let keys = keys(&fields, kind, &read)?;
        Ok((read, keys))
    }

    fn make(config: &SoundEncoderConfig, rngs: &mut Rngs) -> Result<Self> {
        Ok(SoundEncoder::new(config, rngs))
    }

    fn extents(config: &SoundEncoderConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let features = config.hidden_size;
        let mut matrices = vec![
            ("query kernel", features, features),
            ("MLP kernel", features, config.intermediate_size),
            (
                "convolution of positions",
                config.position_kernel.saturating_mul(features),
                features / config.position_groups.max(1),
            ),
            (
                "table of distances",
                config.distances.map_or(0, |distances| distances.groups),
                config.num_attention_heads,
            ),
            (
                "convolution of the adapter",
                config.frame_adapter.as_ref().map_or(0, |about| about.features.saturating_mul(about.kernel)),
                config.frame_adapter.as_ref().map_or(0, |about| about.features.saturating_mul(2)),
            ),
            (
                "MLP kernel of the adapter",
                config.frame_adapter.as_ref().map_or(0, |about| about.features.max(features)),
                config.intermediate_size,
            ),
            ("features of the input", config.input_features.unwrap_or(0), features),
            ("convolution of frames", config.conformer.as_ref().map_or(0, |about| about.kernel), features),
            (
                "table of learned distances",
                config.conformer.as_ref().map_or(0, |about| match about.positions {
                    ConformerPositions::Learned { left, right } => left.saturating_add(right).saturating_add(1),
                    _ => 0,
                }),
                features / config.num_attention_heads.max(1),
            ),
            ("adapter", config.adapter_size.unwrap_or(0), features),
        ];
        // The first convolution reads samples, which have one feature. The product must not overflow, because sizes come
        // from a file.
        let mut before = 1;
        for convolution in &config.convolutions {
            let inputs = before * convolution.kernel.min(usize::MAX / before.max(1));
            matrices.push(("convolution", inputs, convolution.features));
            before = convolution.features;
        }
        if config.squeeze_factor > 1 {
            matrices.push(("layer after the blocks", features, features.saturating_mul(config.squeeze_factor)));
        }
        match config.head {
            SoundHead::None => {}
            SoundHead::Letters(count) => matrices.push((
                "table of letters",
                count,
                config.frame_adapter.as_ref().map_or(features, |about| about.features),
            )),
            SoundHead::Classes { count, features: inner } => {
                matrices.push(("layer before classes", inner, features));
                matrices.push(("table of classes", count, inner));
            }
        }
        let positions = config.position_layers.unwrap_or(1);
        let layers = config.num_hidden_layers.saturating_add(config.convolutions.len()).saturating_add(positions);
        (layers, matrices)
    }
}

/// Reads the number of frames that the blocks of SEW read as one.
fn squeeze_factor(fields: &Fields) -> Result<usize> {
    match fields.size("squeeze_factor")? {
        // The class would have a layer after the blocks that shardax-models does not have.
        1 => Err(fields.error("field `squeeze_factor` is 1, which is not supported")),
        factor if factor > 1 << 16 => Err(fields.error(format!("field `squeeze_factor` is {factor}"))),
        factor => Ok(factor),
    }
}

/// Reads the blocks of a Conformer.
fn conformer(fields: &Fields, is_causal: bool) -> Result<ConformerConfig> {
    let kernel = fields.size("conv_depthwise_kernel_size")?;
    if kernel.is_multiple_of(2) {
        return Err(fields.error(format!("`conv_depthwise_kernel_size` is {kernel}, but must be odd")));
    }
    if fields.flag("use_intermediate_ffn_before_adapter")? {
        return Err(fields.error("field `use_intermediate_ffn_before_adapter` is true, which is not supported"));
    }
    let default = if is_causal { "relative_key" } else { "relative" };
    let positions = match fields.text_opt("position_embeddings_type")? {
        None if fields.is_null("position_embeddings_type") => ConformerPositions::None,
        kind => match kind.unwrap_or(default) {
            "relative" => ConformerPositions::Sines,
            "rotary" => ConformerPositions::Rotary(fields.number("rotary_embedding_base")?),
            "relative_key" if is_causal => ConformerPositions::Learned {
                left: fields.natural("left_max_position_embeddings")?,
                right: fields.natural("right_max_position_embeddings")?,
            },
            other => return Err(fields.error(format!("`position_embeddings_type` {other:?} is not supported"))),
        },
    };
    // The length of a table of sines, which the class extends, and options of the other kinds of positions and of adapters.
    fields.skip(&["max_source_positions", "rotary_embedding_base", "left_max_position_embeddings"]);
    fields.skip(&["right_max_position_embeddings", "adapter_act", "conformer_conv_dropout"]);
    fields.skip(&["num_conv_pos_embeddings", "num_conv_pos_embedding_groups"]);
    Ok(ConformerConfig { positions, kernel, is_causal })
}

/// Reads the layers after the blocks of a Conformer.
fn frame_adapter(fields: &Fields) -> Result<FrameAdapterConfig> {
    let hidden = fields.size("hidden_size")?;
    let adapter = FrameAdapterConfig {
        layers: fields.layers("num_adapter_layers")?,
        kernel: fields.size("adapter_kernel_size")?,
        stride: fields.size("adapter_stride")?,
        features: fields.size_opt("output_hidden_size")?.unwrap_or(hidden),
        activation: fields.activation("adapter_act")?,
    };
    if adapter.kernel.max(adapter.stride) > i32::MAX as usize / 4 {
        return Err(fields.error(format!("`adapter_kernel_size` is {}, which is too large", adapter.kernel)));
    }
    fields.divides(
        ("num_attention_heads", fields.size("num_attention_heads")?),
        ("output_hidden_size", adapter.features),
    )?;
    if fields.class()?.is_some_and(|name| name.ends_with("ForSequenceClassification")) {
        return Err(fields.error("field `add_adapter` is true, which models with classes of sounds do not support"));
    }
    Ok(adapter)
}

/// Reads whether a norm follows each convolution of samples.
fn norms_layers(fields: &Fields) -> Result<bool> {
    let default = if fields.is_null("feat_extract_norm") { "null" } else { "layer" };
    match fields.text_opt("feat_extract_norm")?.unwrap_or(default) {
        "layer" => Ok(true),
        "group" => Ok(false),
        other => Err(fields.error(format!("`feat_extract_norm` {other:?} is not supported"))),
    }
}

/// Reads the convolutions of samples.
fn convolutions(fields: &Fields) -> Result<Vec<SoundConvolution>> {
    let [features, kernels, strides] =
        [fields.size_list("conv_dim")?, fields.size_list("conv_kernel")?, fields.size_list("conv_stride")?];
    if kernels.len() != features.len() || strides.len() != features.len() {
        return Err(fields.error("`conv_dim`, `conv_kernel` and `conv_stride` have different lengths"));
    }
    let layers = features.into_iter().zip(kernels).zip(strides);
    Ok(layers.map(|((features, kernel), stride)| SoundConvolution { features, kernel, stride }).collect())
}

/// Reads the groups of distances. A quarter of the groups contain a single distance each, so that the other distances need more.
fn distances(fields: &Fields) -> Result<SoundDistances> {
    let (groups, max_distance) = (fields.size("num_buckets")?, fields.size("max_bucket_distance")?);
    if !groups.is_multiple_of(4) || max_distance <= groups / 4 {
        let message = format!("`num_buckets` is {groups} and `max_bucket_distance` is {max_distance}");
        return Err(fields.error(format!("{message}, but must be a multiple of 4 and more than a quarter of it")));
    }
    Ok(SoundDistances { groups, max_distance })
}

/// Returns the head that `architectures` names. The default is the head for letters.
fn head(fields: &Fields) -> Result<SoundHead> {
    let name = fields.class()?.unwrap_or("ForCTC");
    match name {
        // The files for pretraining have an encoder with other layers.
        name if name.ends_with("Model") || name.ends_with("ForPreTraining") => Ok(SoundHead::None),
        name if name.ends_with("ForCTC") => Ok(SoundHead::Letters(fields.size("vocab_size")?)),
        name if name.ends_with("ForSequenceClassification") => {
            if fields.flag("use_weighted_layer_sum")? {
                let message = "field `use_weighted_layer_sum` is true, but sums of all layers are not supported";
                return Err(fields.error(message));
            }
            let count = fields.count_opt("id2label")?.filter(|count| *count > 0).unwrap_or(2);
            Ok(SoundHead::Classes { count, features: fields.size("classifier_proj_size")? })
        }
        other => Err(fields.error(format!("the class {other:?} of `architectures` is not supported"))),
    }
}

/// Checks fields that the configuration does not store, and marks fields as read that have no effect.
fn check_and_skip(fields: &Fields) -> Result<()> {
    for name in ["add_adapter", "conv_pos_batch_norm"] {
        if fields.flag(name)? && !(name == "add_adapter" && fields.has_type("wav2vec2-bert")) {
            return Err(fields.error(format!("field `{name}` is true, which is not supported")));
        }
    }
    // Options of training: replaced frames, the loss, and the vectors that are predicted.
    fields.skip(&["apply_spec_augment", "mask_time_length", "mask_time_min_masks", "mask_feature_length"]);
    fields.skip(&["mask_feature_min_masks", "mask_channel_length", "mask_channel_min_space", "mask_channel_other"]);
    fields.skip(&["mask_channel_prob", "mask_channel_selection", "mask_time_min_space", "mask_time_other"]);
    fields.skip(&["mask_time_selection", "no_mask_channel_overlap", "no_mask_time_overlap"]);
    fields.skip(&["ctc_loss_reduction", "ctc_zero_infinity", "contrastive_logits_temperature", "num_negatives"]);
    fields.skip(&["num_codevectors_per_group", "num_codevector_groups", "codevector_dim", "proj_codevector_dim"]);
    fields.skip(&["mask_time_prob", "mask_feature_prob"]);
    fields.skip(&["diversity_loss_weight", "layerdrop", "num_clusters", "num_ctc_classes", "replace_prob"]);
    // Sizes of heads and adapters that the model does not have, and numbers that follow from other fields.
    fields.skip(&["classifier_proj_size", "use_weighted_layer_sum", "tdnn_dim", "tdnn_kernel", "tdnn_dilation"]);
    fields.skip(&["xvector_output_dim", "adapter_kernel_size", "adapter_stride", "num_adapter_layers"]);
    fields.skip(&["output_hidden_size", "vocab_size", "num_feat_extract_layers"]);
    Ok(())
}

/// Returns the names of the arrays.
fn keys(fields: &Fields, kind: &str, config: &SoundEncoderConfig) -> Result<KeyMap> {
    let name = fields.class()?.unwrap_or("ForCTC");
    let base = format!("{}.", kind.replace('-', "_"));
    let prefix = if name.ends_with("Model") { "" } else { base.as_str() };
    let layer = format!("{prefix}encoder.layers.*");
    let sample = format!("{prefix}feature_extractor.conv_layers.*");
    let (norm, projection) = match kind {
        SEW => ("layer_norm", "feature_projection"),
        _ => ("feature_projection.layer_norm", "feature_projection.projection"),
    };
    let keys = KeyMap::new()
        .conv("convolutions[*].conv", &format!("{sample}.conv"))
        .norm("convolutions[*].norm", &format!("{sample}.layer_norm"))
        .norm("convolutions[*].feature_norm", &format!("{sample}.layer_norm"))
        .norm("projection_norm", &format!("{prefix}{norm}"))
        .linear("projection", &format!("{prefix}{projection}"))
        .linear("expansion", &format!("{prefix}encoder.upsample.projection"))
        .array("mask", format!("{prefix}masked_spec_embed"), Layout::Same)
        // The names before PyTorch 2.
        .alias("conv.parametrizations.weight.original0", "conv.weight_g")
        .alias("conv.parametrizations.weight.original1", "conv.weight_v")
        .norm("norm", &format!("{prefix}encoder.layer_norm"))
        .array("distances.embedding", format!("{prefix}encoder.layers.0.attention.rel_attn_embed.weight"), Layout::Same)
        .array("gates[*].scale", format!("{layer}.attention.gru_rel_pos_const"), Layout::Same)
        .linear("gates[*].layer", &format!("{layer}.attention.gru_rel_pos_linear"))
        .norm("adapters[*].norm", &format!("{layer}.adapter_layer.norm"))
        .linear("adapters[*].down", &format!("{layer}.adapter_layer.linear_1"))
        .linear("adapters[*].up", &format!("{layer}.adapter_layer.linear_2"))
        .norm("blocks[*].norm", &format!("{layer}.layer_norm"))
        .norm("blocks[*].mlp_norm", &format!("{layer}.final_layer_norm"))
        .linear("blocks[*].mlp.up", &format!("{layer}.feed_forward.intermediate_dense"))
        .linear("blocks[*].mlp.down", &format!("{layer}.feed_forward.output_dense"))
        .linear("projector", "projector");
    let parts = [("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "out_proj")];
    let keys = parts.into_iter().fold(keys, |keys, (part, name)| {
        keys.linear(&format!("blocks[*].attention.{part}"), &format!("{layer}.attention.{name}"))
    });
    let positions = format!("{prefix}encoder.pos_conv_embed");
    let keys = match &config.conformer {
        // The class has a convolution of positions that it does not use.
        Some(_) => keys
            .ignore(&format!("{positions}**"))
            // The speeds of rotations.
            .ignore(&format!("{prefix}encoder.embed_positions.inv_freq"))
            .and(conformer_keys(&layer))
            .and(frame_adapter_keys(&format!("{prefix}adapter"))),
        None => keys,
    };
    let keys = match config.position_layers {
        Some(_) => keys.conv("positions[*].conv", &format!("{positions}.layers.*.conv")),
        None => {
            let weight = format!("{positions}.conv.parametrizations.weight");
            keys.array("positions[0].lengths", format!("{weight}.original0"), Layout::Convolution)
                .array("positions[0].conv.kernel", format!("{weight}.original1"), Layout::Convolution)
                .array("positions[0].conv.bias", format!("{positions}.conv.bias"), Layout::Same)
        }
    };
    let keys = if config.has_mask { keys } else { keys.ignore(&format!("{prefix}masked_spec_embed")) };
    Ok(match config.head {
        SoundHead::Letters(_) => keys.linear("head", "lm_head"),
        SoundHead::Classes { .. } => keys.linear("head", "classifier"),
        // Layers of other heads, and of training.
        SoundHead::None => {
            let others = ["lm_head", "projector", "classifier", "quantizer", "project_hid", "project_q", "ctc_proj"];
            let others =
                others.into_iter().chain(["speaker_proj", "label_embeddings_concat", "layer_norm_for_extract"]);
            let keys = others.fold(keys, |keys, other| keys.ignore(&format!("{other}**")));
            if prefix.is_empty() { keys.prefix_alias("", &base) } else { keys }
        }
    })
}

/// Returns the names of the blocks of a Conformer.
fn conformer_keys(layer: &str) -> KeyMap {
    let mut keys = KeyMap::new();
    for (path, name) in [("first", "ffn1"), ("second", "ffn2")] {
        keys = keys
            .norm(&format!("conformers[*].{path}_norm"), &format!("{layer}.{name}_layer_norm"))
            .linear(&format!("conformers[*].{path}_mlp.up"), &format!("{layer}.{name}.intermediate_dense"))
            .linear(&format!("conformers[*].{path}_mlp.down"), &format!("{layer}.{name}.output_dense"));
    }
    for (part, name) in [("query", "q"), ("key", "k"), ("value", "v"), ("out", "out")] {
        keys = keys.linear(&format!("conformers[*].attention.{part}"), &format!("{layer}.self_attn.linear_{name}"));
    }
    let (conv, path) = (format!("{layer}.conv_module"), "conformers[*].conv");
    let keys = keys
        .norm("conformers[*].attention_norm", &format!("{layer}.self_attn_layer_norm"))
        .array("conformers[*].distances", format!("{layer}.self_attn.distance_embedding.weight"), Layout::Same)
        .linear("conformers[*].sines.layer", &format!("{layer}.self_attn.linear_pos"))
        .array("conformers[*].sines.content_bias", format!("{layer}.self_attn.pos_bias_u"), Layout::Same)
        .array("conformers[*].sines.distance_bias", format!("{layer}.self_attn.pos_bias_v"), Layout::Same)
        .norm(&format!("{path}.norm"), &format!("{conv}.layer_norm"))
        .conv(&format!("{path}.input"), &format!("{conv}.pointwise_conv1"))
        .conv(&format!("{path}.frames"), &format!("{conv}.depthwise_conv"))
        .norm(&format!("{path}.frame_norm"), &format!("{conv}.depthwise_layer_norm"))
        .conv(&format!("{path}.output"), &format!("{conv}.pointwise_conv2"))
        .norm("conformers[*].norm", &format!("{layer}.final_layer_norm"));
    frozen_norm_keys(keys, &format!("{path}.batch_norm"), &format!("{conv}.batch_norm"))
}

/// Returns the names of the layers after the blocks of a Conformer.
fn frame_adapter_keys(name: &str) -> KeyMap {
    let (path, layer) = ("frame_adapter.layers[*]", format!("{name}.layers.*"));
    let keys = KeyMap::new()
        .linear("frame_adapter.projection", &format!("{name}.proj"))
        .norm("frame_adapter.projection_norm", &format!("{name}.proj_layer_norm"))
        .norm(&format!("{path}.residual_norm"), &format!("{layer}.residual_layer_norm"))
        .conv(&format!("{path}.residual"), &format!("{layer}.residual_conv"))
        .norm(&format!("{path}.norm"), &format!("{layer}.self_attn_layer_norm"))
        .conv(&format!("{path}.input"), &format!("{layer}.self_attn_conv"))
        .norm(&format!("{path}.mlp_norm"), &format!("{layer}.ffn_layer_norm"))
        .linear(&format!("{path}.mlp.up"), &format!("{layer}.ffn.intermediate_dense"))
        .linear(&format!("{path}.mlp.down"), &format!("{layer}.ffn.output_dense"));
    [("query", "q"), ("key", "k"), ("value", "v"), ("out", "out")].into_iter().fold(keys, |keys, (part, name)| {
        keys.linear(&format!("{path}.attention.{part}"), &format!("{layer}.self_attn.linear_{name}"))
    })
}
