//! The configurations of models of depths, and the names of their arrays.

use shardax_nn::prelude::*;

use super::{DPT_HEAD_SIZE, DepthEstimatorConfig, DepthScale, KNOWN, MAX_SCALE, PROMPT};
use crate::Activation;
use crate::huggingface::bit::{self, BitConfig};
use crate::huggingface::fields::Fields;
use crate::huggingface::vision::{StagedConfig, frozen_norm_keys, stage_keys};
use crate::huggingface::vit::{DPT, read_fields};
use crate::huggingface::{Config, KeyMap, Layout, VitConfig, VitHead, check_type, known_type};

/// Reads a configuration. Also returns the names of the arrays.
pub(super) fn read(config: &Config) -> Result<(DepthEstimatorConfig, KeyMap)> {
    let fields = config.fields();
    let kind = known_type(&fields, &KNOWN)?;
    let is_dpt = kind == DPT;
    if let Some(name) = fields.class()?
        && !name.ends_with("ForDepthEstimation")
    {
        return Err(fields.error(format!("the class {name:?} of `architectures` is not supported")));
    }
    let EncoderPart { convolutions, encoder, keys: encoder_keys, layers, norms_layers, is_inside } =
        encoder(&fields, is_dpt)?;
    let convolution_keys = convolutions.as_ref().map_or_else(KeyMap::new, |(config, _)| {
        bit::keys(config, "dpt.embeddings.backbone.bit.").inside("convolutions.", "")
    });
    let (convolutions, stages) = convolutions.unzip();
    let stages: Vec<usize> = stages.unwrap_or_default();
    // The last stage of the convolutions is the input of the encoder.
    let outputs = stages.len().saturating_sub(1) + layers.len();
    let neck_hidden_sizes = fields.size_list("neck_hidden_sizes")?;
    let scales = fields.numbers("reassemble_factors")?.into_iter().map(|factor| scale(&fields, factor));
    let scales = scales.collect::<Result<Vec<_>>>()?;
    if neck_hidden_sizes.len() != outputs || scales.len() != outputs {
        return Err(fields.error(format!(
            "`neck_hidden_sizes` has {} entries and `reassemble_factors` {}, but {outputs} layers of the encoder are read",
            neck_hidden_sizes.len(),
            scales.len(),
        )));
    }
    for (stage, size) in stages.iter().zip(&neck_hidden_sizes).take(stages.len().saturating_sub(1)) {
        let features = convolutions.as_ref().map_or(0, |config| config.features(*stage));
        if *size != features {
            let message = format!("`neck_hidden_sizes` has {size}, but the convolutions have {features} features");
            return Err(fields.error(message));
        }
    }
    // The sizes are written twice in published files. The model can have only one of each.
    for (name, size) in [("patch_size", encoder.patch_size), ("reassemble_hidden_size", encoder.hidden_size)] {
        if !is_dpt && fields.size(name)? != size {
            return Err(fields.error(format!("`{name}` must be {size}, as in `backbone_config`")));
        }
    }
    let fusion_hidden_size = fields.size("fusion_hidden_size")?;
    if fusion_hidden_size < 2 {
        return Err(fields.error("`fusion_hidden_size` must be at least 2"));
    }
    let fusion_norms = is_dpt && fields.flag("use_batch_norm_in_fusion_residual")?;
    let read = DepthEstimatorConfig {
        readout: if is_dpt { readout(&fields)? } else { None },
        fusion_bias: !is_dpt || fields.flag_or("use_bias_in_fusion_residual", !fusion_norms)?,
        fusion_norms,
        doubles: is_dpt,
        is_square: is_dpt && is_inside,
        head_index: head_index(&fields, outputs)?,
        convolutions,
        stages,
        encoder,
        layers,
        norms_layers,
        neck_hidden_sizes,
        scales,
        fusion_hidden_size,
        head_hidden_size: if is_dpt { DPT_HEAD_SIZE } else { fields.size("head_hidden_size")? },
        is_relative: match if is_dpt { "relative" } else { fields.text("depth_estimation_type")? } {
            "relative" => true,
            "metric" => false,
            other => return Err(fields.error(format!("`depth_estimation_type` {other:?} is not supported"))),
        },
        reads_depths: kind == PROMPT,
        max_depth: if is_dpt { 1.0 } else { fields.number_or("max_depth", 1.0)? },
    };
    if is_dpt {
        check_and_skip(&fields, read.convolutions.is_some())?;
    }
    fields.finish()?;
    let prefix = if is_inside { "" } else { "backbone." };
    let keys = keys(&read, is_dpt).and(convolution_keys).and(encoder_keys.inside("encoder.", prefix));
    Ok((read, keys))
}

/// The encoder of a model, and the outputs that are read.
struct EncoderPart {
    /// The convolutions before the encoder, and their stages that are read.
    convolutions: Option<(BitConfig, Vec<usize>)>,
    encoder: VitConfig,
    keys: KeyMap,
    layers: Vec<usize>,
    norms_layers: bool,
    /// True if the fields of the encoder are the fields of the model.
    is_inside: bool,
}

/// Reads the encoder. DPT's own ViT has its fields in the model, other encoders have an object.
fn encoder(fields: &Fields, is_dpt: bool) -> Result<EncoderPart> {
    if is_dpt && fields.flag("is_hybrid")? {
        return hybrid_encoder(fields);
    }
    let Some(about) = fields.object_opt("backbone_config")? else {
        if !is_dpt {
            return Err(fields.error("missing field `backbone_config`"));
        }
        let (encoder, keys) = read_fields(fields, Some(VitHead::None))?;
        let layers = own_layers(fields, encoder.num_hidden_layers, 0)?;
        return Ok(EncoderPart { convolutions: None, encoder, keys, layers, norms_layers: false, is_inside: true });
    };
    check_type(&about, "dinov2")?;
    let (encoder, keys) = read_fields(&about, Some(VitHead::None))?;
    if about.flag("reshape_hidden_states")? {
        return Err(about.error("field `reshape_hidden_states` must be false"));
    }
    let layers = layers(&about, encoder.num_hidden_layers)?;
    let norms_layers = about.flag("apply_layernorm")?;
    about.finish()?;
    if is_dpt {
        // Sizes of the encoder that the object replaces.
        fields.skip(&["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "image_size"]);
        fields.skip(&["patch_size", "num_channels", "qkv_bias", "layer_norm_eps", "backbone_out_indices"]);
    }
    Ok(EncoderPart { convolutions: None, encoder, keys, layers, norms_layers, is_inside: false })
}

/// Reads the encoder of DPT-Hybrid: a ViT whose patches are the places of the last stage of convolutions.
fn hybrid_encoder(fields: &Fields) -> Result<EncoderPart> {
    let Some(about) = fields.object_opt("backbone_config")? else {
        return Err(
            fields.error("`is_hybrid` is true, but `backbone_config` is missing, which describes the convolutions")
        );
    };
    let about = if about.has("model_type") { about } else { fields.model("backbone_config", "bit")? };
    if about.has("model_type") {
        check_type(&about, "bit")?;
    }
    let bit = bit::read_fields(&about)?;
    let bit = BitConfig { stages: StagedConfig { classes: None, ..bit.stages }, ..bit };
    let stages = layers(&about, bit.hidden_sizes.len())?;
    about.finish()?;
    let (encoder, keys) = read_fields(fields, Some(VitHead::None))?;
    let (count, last) = (bit.hidden_sizes.len(), stages.last().copied().unwrap_or(0));
    if stages.len() != 3 || last != count {
        let message =
            format!("`out_features` of `backbone_config` must be three stages and end with the last of {count}");
        return Err(fields.error(message));
    }
    if encoder.patch_size != bit.stride() {
        let message = format!("`patch_size` must be {}, the stride of `backbone_config`", bit.stride());
        return Err(fields.error(message));
    }
    // The second number is the features of the input; the others are a size of images.
    let shape = fields.size_list("backbone_featmap_shape")?;
    if shape.get(1) != Some(&bit.features(last)) {
        let message =
            format!("`backbone_featmap_shape` is {shape:?}, but its second number must be {}", bit.features(last));
        return Err(fields.error(message));
    }
    let layers = own_layers(fields, encoder.num_hidden_layers, 2)?;
    let encoder = VitConfig {
        image_size: encoder.image_size / encoder.patch_size,
        patch_size: 1,
        num_channels: bit.features(last),
        ..encoder
    };
    let keys = KeyMap::new().conv("patches.conv", "dpt.embeddings.projection").and(keys);
    Ok(EncoderPart { convolutions: Some((bit, stages)), encoder, keys, layers, norms_layers: false, is_inside: true })
}

/// Returns the layers of DPT's own encoder that `backbone_out_indices` names, counted from 1, without the first `skipped` entries.
fn own_layers(fields: &Fields, count: usize, skipped: usize) -> Result<Vec<usize>> {
    // The field counts blocks from 0.
    let mut layers: Vec<f64> = fields.numbers("backbone_out_indices")?.into_iter().skip(skipped).collect();
    layers.sort_by(f64::total_cmp);
    layers.dedup();
    if layers.is_empty() || layers.iter().any(|layer| layer.fract() != 0.0 || !(0.0..count as f64).contains(layer)) {
        return Err(fields.error(format!("`backbone_out_indices` must be layers of the {count} layers")));
    }
    Ok(layers.into_iter().map(|layer| layer as usize + 1).collect())
}

/// Returns the activation of the layers that join patches with the first entry.
fn readout(fields: &Fields) -> Result<Option<Activation>> {
    match fields.text("readout_type")? {
        "project" => Ok(Some(fields.activation("hidden_act")?)),
        "ignore" => Ok(None),
        other => Err(fields.error(format!("`readout_type` {other:?} is not supported"))),
    }
}

/// Checks fields of DPT that the configuration does not store, and marks fields as read that have no effect on depths.
fn check_and_skip(fields: &Fields, is_hybrid: bool) -> Result<()> {
    let ignored = fields.numbers("neck_ignore_stages")?;
    match is_hybrid {
        true if ignored != [0.0, 1.0] => {
            let message = format!("`neck_ignore_stages` is {ignored:?}, but must be [0, 1] if `is_hybrid` is true");
            return Err(fields.error(message));
        }
        false if !ignored.is_empty() => {
            let message = "`neck_ignore_stages` must be empty, because only hybrid encoders ignore stages";
            return Err(fields.error(message));
        }
        _ => {}
    }
    if fields.flag("add_projection")? {
        return Err(fields.error("field `add_projection` is true, which is not supported"));
    }
    fields.skip(&["hidden_act", "backbone_featmap_shape", "use_auxiliary_head", "auxiliary_loss_weight"]);
    fields.skip(&["semantic_loss_ignore_index", "semantic_classifier_dropout"]);
    Ok(())
}

/// Returns the numbers of the layers that `out_indices` or `out_features` name.
pub(in crate::huggingface) fn layers(fields: &Fields, count: usize) -> Result<Vec<usize>> {
    let numbers: Option<Vec<usize>> = match (fields.list_opt("out_indices")?, fields.list_opt("out_features")?) {
        (Some(indices), _) => {
            let indices = indices.iter().map(|index| index.as_i64());
            // Negative indices count from the last layer.
            let indices = indices.map(|index| index.map(|i| if i < 0 { i + count as i64 + 1 } else { i }));
            indices.map(|index| usize::try_from(index?).ok()).collect()
        }
        (None, Some(names)) => names.iter().map(|name| layer_of_stage(name.as_str()?)).collect(),
        (None, None) => Some(vec![count]),
    };
    let numbers = numbers.filter(|numbers| numbers.iter().all(|number| *number <= count));
    let numbers = numbers.filter(|numbers| numbers.windows(2).all(|pair| pair[0] < pair[1]) && !numbers.is_empty());
    let message = format!("`out_indices` or `out_features` must be increasing layers of the {count} layers");
    numbers.ok_or_else(|| fields.error(message))
}

/// Returns the number of the layer that a name such as `stem` or `stage3` means.
fn layer_of_stage(name: &str) -> Option<usize> {
    if name == "stem" { Some(0) } else { name.strip_prefix("stage")?.parse().ok() }
}

/// Reads a factor, which is an integer or one divided by an integer.
fn scale(fields: &Fields, factor: f64) -> Result<DepthScale> {
    match factor {
        1.0 => Ok(DepthScale::Same),
        up if up > 1.0 && up <= MAX_SCALE && up.fract() == 0.0 => Ok(DepthScale::Up(up as usize)),
        down if down < 1.0 && 1.0 / down <= MAX_SCALE && down > 0.0 => Ok(DepthScale::Down((1.0 / down) as usize)),
        other => Err(fields.error(format!("`reassemble_factors` has {other}, which is not supported"))),
    }
}

/// Reads the index of a joined output. Negative numbers count from the last one.
pub(in crate::huggingface) fn head_index(fields: &Fields, count: usize) -> Result<usize> {
    let index = fields.number("head_in_index")?;
    let from_start = if index < 0.0 { index + count as f64 } else { index };
    if from_start >= 0.0 && from_start < count as f64 && from_start.fract() == 0.0 {
        Ok(from_start as usize)
    } else {
        Err(fields.error(format!("`head_in_index` is {index}, but there are {count} joined outputs")))
    }
}

/// Returns the names of the arrays, without the encoder's.
fn keys(config: &DepthEstimatorConfig, is_dpt: bool) -> KeyMap {
    let fusion = "neck.fusion_stage.layers.*";
    let keys = ["first", "second"].into_iter().zip([1, 2]).fold(KeyMap::new(), |keys, (residual, number)| {
        let (path, name) = (format!("fusions[*].{residual}"), format!("{fusion}.residual_layer{number}"));
        let keys = keys
            .conv(&format!("{path}.first"), &format!("{name}.convolution1"))
            .conv(&format!("{path}.second"), &format!("{name}.convolution2"));
        let keys = frozen_norm_keys(keys, &format!("{path}.first_norm"), &format!("{name}.batch_norm1"));
        frozen_norm_keys(keys, &format!("{path}.second_norm"), &format!("{name}.batch_norm2"))
    });
    let keys = (0..3).fold(keys, |keys, index| {
        let name = format!("{fusion}.prompt_depth_layer.convolution{}", index + 1);
        keys.conv(&format!("fusions[*].prompt[{index}]"), &name)
    });
    let head =
        if is_dpt { ["head.head.0", "head.head.2", "head.head.4"] } else { ["head.conv1", "head.conv2", "head.conv3"] };
    let keys = keys
        .conv("fusions[*].projection", &format!("{fusion}.projection"))
        .conv("head.first", head[0])
        .conv("head.second", head[1])
        .conv("head.last", head[2])
        .linear("stages[*].readout", "neck.reassemble_stage.readout_projects.*.0");
    stage_keys(keys, config.neck_hidden_sizes.len(), |keys, path, stage| {
        let layer = format!("neck.reassemble_stage.layers.{stage}");
        let keys = keys
            .conv(&format!("{path}.projection"), &format!("{layer}.projection"))
            .conv(&format!("{path}.conv"), &format!("neck.convs.{stage}"));
        match config.scales[stage] {
            DepthScale::Up(_) => keys
                .array(format!("{path}.upsample.kernel"), format!("{layer}.resize.weight"), Layout::Same)
                .array(format!("{path}.upsample.bias"), format!("{layer}.resize.bias"), Layout::Same),
            DepthScale::Same => keys,
            DepthScale::Down(_) => keys.conv(&format!("{path}.downsample"), &format!("{layer}.resize")),
        }
    })
}
