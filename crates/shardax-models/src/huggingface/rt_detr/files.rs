//! The configuration of RT-DETR, and the names of its arrays.

use shardax_nn::prelude::*;

use super::super::fields::Fields;
use super::super::vision::{classes_of, conv_norm_keys};
use super::super::{Config, KeyMap, Layout, Pretrained, check_type, known_type};
use super::{RtDetr, RtDetrBackbone, RtDetrConfig, backbone, pyramid};
use crate::Side;

/// The supported model types.
pub(in crate::huggingface) const KNOWN: [&str; 2] = ["rt_detr", "rt_detr_v2"];

impl Pretrained for RtDetr {
    type Architecture = RtDetrConfig;

    fn read(config: &Config) -> Result<(RtDetrConfig, KeyMap)> {
        let fields = config.fields();
        let kind = known_type(&fields, &KNOWN)?;
        if let Some(name) = fields.class()?
            && !name.ends_with("ForObjectDetection")
        {
            return Err(fields.error(format!("the class {name:?} of `architectures` is not supported")));
        }
        let about = fields.model("backbone_config", "rt_detr_resnet")?;
        if about.has("model_type") {
            check_type(&about, "rt_detr_resnet")?;
        }
        let backbone = RtDetrBackbone::read(&about)?;
        about.finish_but_empty()?;
        let is_second = kind == "rt_detr_v2";
        let read = RtDetrConfig {
            encoder_hidden_dim: fields.size("encoder_hidden_dim")?,
            encoder: Side {
                layers: fields.natural("encoder_layers")?,
                heads: fields.size("encoder_attention_heads")?,
                hidden: fields.size("encoder_ffn_dim")?,
            },
            encoded_stages: encoded_stages(&fields, backbone.outputs.len())?,
            encoder_activation: fields.activation("encoder_activation_function")?,
            pre_norms: fields.flag("normalize_before")?,
            // The class has no positions for images of a fixed size.
            position_base: match fields.size_opt("eval_size")? {
                Some(_) => None,
                None => Some(fields.number("positional_encoding_temperature")?),
            },
            expansion: fields.number("hidden_expansion")?,
            activation: fields.activation("activation_function")?,
            d_model: fields.size("d_model")?,
            decoder: Side {
                layers: fields.layers("decoder_layers")?,
                heads: fields.size("decoder_attention_heads")?,
                hidden: fields.size("decoder_ffn_dim")?,
            },
            decoder_activation: fields.activation("decoder_activation_function")?,
            points: fields.size("decoder_n_points")?,
            offset_scale: if is_second { fields.number("decoder_offset_scale")? } else { 0.5 },
            num_queries: fields.size("num_queries")?,
            layer_norm_eps: fields.number("layer_norm_eps")?,
            batch_norm_eps: fields.number("batch_norm_eps")?,
            has_denoising: fields.number("num_denoising")? > 0.0,
            classes: classes_of(&fields)?,
            backbone,
        };
        check_and_skip(&fields, &read, is_second)?;
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &RtDetrConfig, rngs: &mut Rngs) -> Result<Self> {
        Ok(RtDetr::new(config, rngs))
    }

    fn extents(config: &RtDetrConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (depth, mut matrices) = config.backbone.extents();
        let (features, inner) = (config.d_model, config.encoder_hidden_dim);
        let places = config.points.saturating_mul(config.backbone.outputs.len()).saturating_mul(2);
        let widest = config.backbone.features().into_iter().max().unwrap_or(0);
        matrices.push(("projection of a stage", widest, inner));
        matrices.push(("convolution of stages", inner.saturating_mul(2).max(config.inner_features()), {
            config.inner_features().saturating_mul(9).max(inner.saturating_mul(9))
        }));
        matrices.push(("query kernel", features.saturating_mul(2), features.max(inner)));
        matrices.push(("MLP kernel", features.max(inner), config.encoder.hidden.max(config.decoder.hidden)));
        matrices.push(("kernel of places", features, config.decoder.heads.saturating_mul(places)));
        matrices.push(("table of classes", config.classes, features));
        let encoders = config.encoder.layers.saturating_mul(config.encoded_stages.len());
        (depth.saturating_add(encoders).saturating_add(config.decoder.layers), matrices)
    }
}

/// Reads the stages that have blocks of attention.
fn encoded_stages(fields: &Fields, stages: usize) -> Result<Vec<usize>> {
    let numbers = fields.numbers("encode_proj_layers")?;
    let stage = |number: &f64| (0..stages).find(|stage| *stage as f64 == *number);
    let found: Option<Vec<usize>> = numbers.iter().map(stage).collect();
    found.ok_or_else(|| fields.error(format!("`encode_proj_layers` is {numbers:?}, but there are {stages} stages")))
}

/// Checks that sizes fit each other, and marks fields as read that have no effect.
fn check_and_skip(fields: &Fields, config: &RtDetrConfig, is_second: bool) -> Result<()> {
    let (features, inner) = (config.d_model, config.encoder_hidden_dim);
    fields.divides(("encoder_attention_heads", config.encoder.heads), ("encoder_hidden_dim", inner))?;
    fields.divides(("decoder_attention_heads", config.decoder.heads), ("d_model", features))?;
    if !inner.is_multiple_of(4) {
        return Err(
            fields.error("`encoder_hidden_dim` must be a multiple of 4, because positions have sines and cosines")
        );
    }
    if config.encoder.layers > crate::huggingface::MAX_LAYERS {
        return Err(fields.error(format!("field `encoder_layers` is {}, which are too many", config.encoder.layers)));
    }
    let outputs = config.backbone.features();
    for (name, expected) in
        [("encoder_in_channels", outputs.clone()), ("decoder_in_channels", vec![inner; outputs.len()])]
    {
        let list = fields.size_list(name)?;
        if list != expected {
            return Err(fields.error(format!("`{name}` is {list:?}, but must be {expected:?}")));
        }
    }
    fields.check_size("num_feature_levels", outputs.len())?;
    if config.inner_features() == 0 || config.expansion > 1e6 {
        return Err(fields.error(format!("`hidden_expansion` is {}, which is not supported", config.expansion)));
    }
    if is_second {
        fields.check_size("decoder_n_levels", outputs.len())?;
        match fields.text("decoder_method")? {
            "default" => {}
            other => return Err(fields.error(format!("`decoder_method` {other:?} is not supported"))),
        }
    }
    if fields.flag("learn_initial_query")? {
        return Err(fields.error("field `learn_initial_query` is true, which is not supported"));
    }
    if fields.has("anchor_image_size") {
        return Err(fields.error("`anchor_image_size` is set, but first boxes of a fixed size are not supported"));
    }
    // The stride of stages follows from the convolutions, and the other fields are for training.
    fields.skip(&["feat_strides", "freeze_backbone_batch_norms", "disable_custom_kernels", "with_box_refine"]);
    fields.skip(&["positional_encoding_temperature", "label_noise_ratio", "box_noise_scale", "is_encoder_decoder"]);
    fields.skip(&["initializer_bias_prior_prob", "tie_word_embeddings", "auxiliary_loss", "use_focal_loss"]);
    fields.skip(&["matcher_alpha", "matcher_gamma", "matcher_class_cost", "matcher_bbox_cost", "matcher_giou_cost"]);
    fields.skip(&["focal_loss_alpha", "focal_loss_gamma", "weight_loss_vfl", "weight_loss_bbox", "weight_loss_giou"]);
    fields.skip(&["eos_coefficient", "backbone", "use_timm_backbone", "use_pretrained_backbone", "backbone_kwargs"]);
    Ok(())
}

/// Returns the names of the arrays.
fn keys(config: &RtDetrConfig) -> KeyMap {
    let stages = config.backbone.outputs.len();
    let mut keys = backbone::keys(&config.backbone, "model.backbone.model.").inside("backbone.", "");
    for stage in 0..stages {
        for (part, name) in [("projections", "encoder_input_proj"), ("memories", "decoder_input_proj")] {
            let (path, name) = (format!("{part}[{stage}]"), format!("model.{name}.{stage}"));
            keys = conv_norm_keys(keys, &path, &name, ["0", "1"]);
        }
    }
    for index in 0..config.encoded_stages.len() {
        let (path, name) = (format!("encoders[{index}].blocks[*]"), format!("model.encoder.encoder.{index}.layers.*"));
        keys = block_keys(keys, &path, &name);
    }
    let layer = "model.decoder.layers.*";
    keys = block_keys(keys, "decoder[*]", layer).and(pyramid::keys("model.encoder.").inside("pyramid.", ""));
    keys = [
        ("offsets", "sampling_offsets"),
        ("scores", "attention_weights"),
        ("value", "value_proj"),
        ("out", "output_proj"),
    ]
    .into_iter()
    .fold(keys, |keys, (part, name)| {
        keys.linear(&format!("decoder[*].cross.{part}"), &format!("{layer}.encoder_attn.{name}"))
    })
    .norm("decoder[*].cross_norm", &format!("{layer}.encoder_attn_layer_norm"))
    // It follows from the number of places.
    .ignore(&format!("{layer}.encoder_attn.n_points_scale"));
    for index in 0..3 {
        keys = keys
            .linear(&format!("decoder[*].boxes[{index}]"), &format!("model.decoder.bbox_embed.*.layers.{index}"))
            .linear(&format!("places[{index}]"), &format!("model.enc_bbox_head.layers.{index}"))
            .linear(&format!("query_positions[{index}]"), &format!("model.decoder.query_pos_head.layers.{index}"));
    }
    keys.linear("memory", "model.enc_output.0")
        .norm("memory_norm", "model.enc_output.1")
        .linear("scores", "model.enc_score_head")
        .linear("classes[*]", "model.decoder.class_embed.*")
        .array("denoising", "model.denoising_class_embed.weight", Layout::Same)
        // Files of early versions have copies of these layers.
        .ignore("class_embed.**")
        .ignore("bbox_embed.**")
        .ignore("model.anchors")
        .ignore("model.valid_mask")
}

/// Adds the names of attention and an MLP.
fn block_keys(keys: KeyMap, path: &str, name: &str) -> KeyMap {
    let parts = [("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "out_proj")];
    let keys = parts.into_iter().fold(keys, |keys, (part, array)| {
        keys.linear(&format!("{path}.attention.{part}"), &format!("{name}.self_attn.{array}"))
    });
    keys.norm(&format!("{path}.norm"), &format!("{name}.self_attn_layer_norm"))
        .linear(&format!("{path}.mlp.up"), &format!("{name}.fc1"))
        .linear(&format!("{path}.mlp.down"), &format!("{name}.fc2"))
        .norm(&format!("{path}.mlp_norm"), &format!("{name}.final_layer_norm"))
}
