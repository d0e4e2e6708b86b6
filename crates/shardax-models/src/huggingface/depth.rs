//! Depth Anything and DPT, which estimate the depth of each pixel of an image.

use shardax_nn::prelude::*;

use super::fields::Fields;
use super::interpolation::{bilinear_weights, corner_weights, resized};
use super::vision::{FrozenNorm, Upsample, frozen_norm_keys, stage_keys};
use super::vit::{DPT, read_fields};
use super::{Config, KeyMap, Layout, Pretrained, Vit, VitConfig, VitHead, check_type, known_type};
use crate::Activation;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::reshard_like;

/// The architecture of a [`DepthEstimator`]. Lists have an entry for each block whose features are read.
#[derive(Clone, Debug, PartialEq)]
pub struct DepthEstimatorConfig {
    /// The encoder.
    pub encoder: VitConfig,
    /// The numbers of blocks whose outputs are read, counted from 1; 0 is the input of the first block.
    pub layers: Vec<usize>,
    /// True if these outputs are normalized.
    pub norms_layers: bool,
    /// The features that are computed from the outputs.
    pub neck_hidden_sizes: Vec<usize>,
    /// The factors by which the rows and columns of the features change.
    pub scales: Vec<DepthScale>,
    /// The activation of layers that join each patch with the first entry, as in DPT. `None` if the first entry is not read.
    pub readout: Option<Activation>,
    /// True if the convolutions of joined outputs have biases.
    pub fusion_bias: bool,
    /// True if these convolutions are followed by norms with constant means and variances.
    pub fusion_norms: bool,
    /// True if joined outputs become twice as large, as in DPT. Otherwise they get the size of the next output.
    pub doubles: bool,
    /// The features of the joined outputs.
    pub fusion_hidden_size: usize,
    /// True if the model accepts only square images, as DPT with its own encoder.
    pub is_square: bool,
    /// The joined output that the head reads.
    pub head_index: usize,
    /// The features inside of the head.
    pub head_hidden_size: usize,
    /// True if depths are relative. Otherwise they are between 0 and `max_depth`.
    pub is_relative: bool,
    /// The factor of depths.
    pub max_depth: f64,
}

/// The factor by which the rows and columns of features change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DepthScale {
    /// Each entry becomes a square of entries.
    Up(usize),
    /// The size does not change.
    Same,
    /// A convolution with this stride.
    Down(usize),
}

/// Depth Anything ([Yang et al. 2024](https://arxiv.org/abs/2401.10891)) and its second version, whose encoder is DINOv2, and DPT
/// ([Ranftl et al. 2021](https://arxiv.org/abs/2103.13413)) with a ViT or DINOv2. The model type is `depth_anything` or `dpt`.
#[derive(Module, Clone, Debug)]
pub struct DepthEstimator {
    encoder: Vit,
    #[tree(static)]
    layers: Vec<usize>,
    norms_layers: bool,
    stages: Vec<Stage>,
    /// The first one reads the last stage.
    fusions: Vec<Fusion>,
    head: Head,
    head_index: usize,
    patch_size: usize,
    doubles: bool,
    /// True if all images are squares.
    is_square: bool,
}

/// The features of a block, as an image.
#[derive(Module, Clone, Debug)]
struct Stage {
    /// Joins each patch with the first entry.
    readout: Option<Linear>,
    #[tree(static)]
    readout_act: Activation,
    projection: Conv,
    upsample: Option<Upsample>,
    downsample: Option<Conv>,
    conv: Conv,
}

/// Adds the features of a stage to the features of the stages after it.
#[derive(Module, Clone, Debug)]
struct Fusion {
    first: Residual,
    second: Residual,
    projection: Conv,
}

#[derive(Module, Clone, Debug)]
struct Residual {
    first: Conv,
    first_norm: Option<FrozenNorm>,
    second: Conv,
    second_norm: Option<FrozenNorm>,
}

#[derive(Module, Clone, Debug)]
struct Head {
    first: Conv,
    second: Conv,
    last: Conv,
    is_relative: bool,
    max_depth: f64,
}

/// The supported model types.
pub(super) const KNOWN: [&str; 2] = ["depth_anything", "dpt"];

/// The features inside of DPT's head.
const DPT_HEAD_SIZE: usize = 32;

/// Added to the variance in the norms of joined outputs.
const NORM_EPSILON: f64 = 1e-5;

/// The largest factor by which the size of features changes.
const MAX_SCALE: f64 = 64.0;

impl Pretrained for DepthEstimator {
    type Architecture = DepthEstimatorConfig;

    fn read(config: &Config) -> Result<(DepthEstimatorConfig, KeyMap)> {
        let fields = config.fields();
        let is_dpt = known_type(&fields, &KNOWN)? == DPT;
        if let Some(name) = fields.class()?
            && !name.ends_with("ForDepthEstimation")
        {
            return Err(fields.error(format!("the class {name:?} of `architectures` is not supported")));
        }
        let EncoderPart { encoder, keys: encoder_keys, layers, norms_layers, is_inside } = encoder(&fields, is_dpt)?;
        let neck_hidden_sizes = fields.size_list("neck_hidden_sizes")?;
        let scales = fields.numbers("reassemble_factors")?.into_iter().map(|factor| scale(&fields, factor));
        let scales = scales.collect::<Result<Vec<_>>>()?;
        if neck_hidden_sizes.len() != layers.len() || scales.len() != layers.len() {
            return Err(fields.error(format!(
                "`neck_hidden_sizes` has {} entries and `reassemble_factors` {}, but {} layers of the encoder are read",
                neck_hidden_sizes.len(),
                scales.len(),
                layers.len()
            )));
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
            head_index: head_index(&fields, layers.len())?,
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
            max_depth: if is_dpt { 1.0 } else { fields.number_or("max_depth", 1.0)? },
        };
        if is_dpt {
            check_and_skip(&fields)?;
        }
        fields.finish()?;
        let prefix = if is_inside { "" } else { "backbone." };
        let keys = keys(&read, is_dpt).and(encoder_keys.inside("encoder.", prefix));
        Ok((read, keys))
    }

    fn make(config: &DepthEstimatorConfig, rngs: &mut Rngs) -> Result<Self> {
        let (features, joined) = (config.encoder.hidden_size, config.fusion_hidden_size);
        let encoder = Vit::make(&config.encoder, rngs)?;
        let stages = config.neck_hidden_sizes.iter().zip(&config.scales);
        let stages = stages.map(|(size, scale)| {
            let stage = Stage::new(features, *size, joined, *scale, rngs);
            let readout = config.readout.map(|_| Linear::new(features.saturating_mul(2), features, rngs));
            Stage { readout, readout_act: config.readout.unwrap_or(Activation::Gelu), ..stage }
        });
        let stages = stages.collect();
        // Features of each layer are joined with the features of the layers after it, so there is a fusion for each.
        let fusions = config.layers.iter().map(|_| Fusion {
            first: Residual::new(config, rngs),
            second: Residual::new(config, rngs),
            projection: Conv::new(joined, joined, [1, 1], rngs),
        });
        Ok(DepthEstimator {
            encoder,
            layers: config.layers.clone(),
            norms_layers: config.norms_layers,
            stages,
            fusions: fusions.collect(),
            head: Head {
                first: square(joined, joined / 2, 1, true, rngs),
                second: square(joined / 2, config.head_hidden_size, 1, true, rngs),
                last: Conv::new(config.head_hidden_size, 1, [1, 1], rngs),
                is_relative: config.is_relative,
                max_depth: config.max_depth,
            },
            head_index: config.head_index,
            patch_size: config.encoder.patch_size,
            doubles: config.doubles,
            is_square: config.is_square,
        })
    }

    fn extents(config: &DepthEstimatorConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (layers, mut matrices) = Vit::extents(&config.encoder);
        let joined = config.fusion_hidden_size;
        let largest = config.neck_hidden_sizes.iter().copied().max().unwrap_or(0);
        matrices.push(("layer of the neck", config.encoder.hidden_size, largest));
        if config.readout.is_some() {
            matrices.push(("layer of the first entry", config.encoder.hidden_size, config.encoder.hidden_size));
        }
        matrices.push(("convolution of the neck", largest.saturating_mul(9), joined));
        matrices.push(("convolution of joined features", joined.saturating_mul(9), joined));
        matrices.push(("convolution of the head", (joined / 2).saturating_mul(9), config.head_hidden_size));
        for (size, scale) in config.neck_hidden_sizes.iter().zip(&config.scales) {
            if let DepthScale::Up(factor) = scale {
                matrices.push(("kernel of larger features", size.saturating_mul(factor.pow(2)), *size));
            }
        }
        (layers, matrices)
    }
}

/// The encoder of a model, and the outputs that are read.
struct EncoderPart {
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
        return Err(fields.error("field `is_hybrid` is true, but encoders that begin with a ResNet are not supported"));
    }
    let Some(about) = fields.object_opt("backbone_config")? else {
        if !is_dpt {
            return Err(fields.error("missing field `backbone_config`"));
        }
        let (encoder, keys) = read_fields(fields, Some(VitHead::None))?;
        // The field counts blocks from 0.
        let mut layers = fields.numbers("backbone_out_indices")?;
        layers.sort_by(f64::total_cmp);
        layers.dedup();
        let count = encoder.num_hidden_layers;
        if layers.is_empty() || layers.iter().any(|layer| layer.fract() != 0.0 || !(0.0..count as f64).contains(layer))
        {
            return Err(fields.error(format!("`backbone_out_indices` must be layers of the {count} layers")));
        }
        let layers = layers.into_iter().map(|layer| layer as usize + 1).collect();
        return Ok(EncoderPart { encoder, keys, layers, norms_layers: false, is_inside: true });
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
    Ok(EncoderPart { encoder, keys, layers, norms_layers, is_inside: false })
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
fn check_and_skip(fields: &Fields) -> Result<()> {
    if !fields.list_opt("neck_ignore_stages")?.is_none_or(|stages| stages.is_empty()) {
        return Err(fields.error("`neck_ignore_stages` must be empty, because only hybrid encoders ignore stages"));
    }
    if fields.flag("add_projection")? {
        return Err(fields.error("field `add_projection` is true, which is not supported"));
    }
    fields.skip(&["hidden_act", "backbone_featmap_shape", "use_auxiliary_head", "auxiliary_loss_weight"]);
    fields.skip(&["semantic_loss_ignore_index", "semantic_classifier_dropout"]);
    Ok(())
}

/// Returns the numbers of the layers that `out_indices` or `out_features` name.
pub(super) fn layers(fields: &Fields, count: usize) -> Result<Vec<usize>> {
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
pub(super) fn head_index(fields: &Fields, count: usize) -> Result<usize> {
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
    let head =
        if is_dpt { ["head.head.0", "head.head.2", "head.head.4"] } else { ["head.conv1", "head.conv2", "head.conv3"] };
    let keys = keys
        .conv("fusions[*].projection", &format!("{fusion}.projection"))
        .conv("head.first", head[0])
        .conv("head.second", head[1])
        .conv("head.last", head[2])
        .linear("stages[*].readout", "neck.reassemble_stage.readout_projects.*.0");
    stage_keys(keys, config.layers.len(), |keys, path, stage| {
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

/// Creates a convolution of 3 by 3 entries.
fn square(before: usize, features: usize, stride: usize, has_bias: bool, rngs: &mut Rngs) -> Conv {
    let conv = Conv::builder(before, features, [3, 3]).strides([stride; 2]).use_bias(has_bias);
    conv.padding(Padding::Explicit(vec![(1, 1); 2])).build(rngs)
}

impl Stage {
    fn new(features: usize, size: usize, joined: usize, scale: DepthScale, rngs: &mut Rngs) -> Stage {
        Stage {
            readout: None,
            readout_act: Activation::Gelu,
            projection: Conv::new(features, size, [1, 1], rngs),
            upsample: match scale {
                DepthScale::Up(factor) => Some(Upsample::new([size, size], factor, rngs)),
                _ => None,
            },
            downsample: match scale {
                DepthScale::Down(stride) => Some(square(size, size, stride, true, rngs)),
                _ => None,
            },
            conv: square(size, joined, 1, false, rngs),
        }
    }

    /// Computes an image of features from the entries of a grid, `[batch, 1 + patches, features]`. The first entry represents the image.
    fn forward(&self, x: &Array, grid: [usize; 2]) -> Array {
        let patches = x.get((.., 1..));
        let x = match &self.readout {
            Some(readout) => {
                let first = x.get((.., ..1)).broadcast_to(patches.shape().to_vec());
                let first = reshard_like(first, &patches);
                self.readout_act.apply(readout.forward(concatenate(&[patches, first], -1)))
            }
            None => patches,
        };
        let (batch, features) = (x.shape()[0], x.shape()[2]);
        let x = self.projection.forward(x.reshape([batch, grid[0], grid[1], features]));
        let x = self.upsample.iter().fold(x, |x, layer| layer.forward(x));
        let x = self.downsample.iter().fold(x, |x, layer| layer.forward(x));
        self.conv.forward(x)
    }
}

impl Residual {
    fn new(config: &DepthEstimatorConfig, rngs: &mut Rngs) -> Residual {
        let features = config.fusion_hidden_size;
        let norm = |rngs: &Rngs| config.fusion_norms.then(|| FrozenNorm::new(features, NORM_EPSILON, rngs));
        Residual {
            first: square(features, features, 1, config.fusion_bias, rngs),
            first_norm: norm(rngs),
            second: square(features, features, 1, config.fusion_bias, rngs),
            second_norm: norm(rngs),
        }
    }

    fn forward(&self, x: Array) -> Array {
        let y = self.first.forward(relu(&x));
        let y = self.first_norm.iter().fold(y, |y, norm| norm.forward(y));
        let y = self.second.forward(relu(y));
        x + self.second_norm.iter().fold(y, |y, norm| norm.forward(y))
    }
}

impl DepthEstimator {
    /// Computes the depth of each pixel, `[batch, rows, columns]`, from images `[batch, rows, columns, channels]`. The size of patches
    /// must divide the rows and columns. `transformers` expects the channels first instead.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        self.try_forward(&images).unwrap_or_else(|error| Array::from_error(error, &images))
    }

    fn try_forward(&self, images: &Array) -> Result<Array> {
        self.encoder.check_images(images)?;
        let grid = [1, 2].map(|axis| images.shape()[axis] / self.patch_size);
        if self.is_square && grid[0] != grid[1] {
            let message = format!("images of {} by {} patches are not squares", grid[0], grid[1]);
            return Err(value_error(message, "resize the images to `image_size` of the configuration"));
        }
        let layers = self.encoder.outputs(images, &self.layers, self.norms_layers);
        let stages = layers.iter().zip(&self.stages).map(|(x, stage)| stage.forward(x, grid));
        let stages: Vec<Array> = stages.collect();
        let mut joined: Option<Array> = None;
        // The outputs are joined from the last one to the first one; later outputs than the head's have no effect.
        for (index, (stage, fusion)) in stages.iter().rev().zip(&self.fusions).enumerate().take(self.head_index + 1) {
            stage.check()?;
            let x = match joined {
                Some(x) => {
                    let size = [x.shape()[1], x.shape()[2]];
                    x + fusion.first.forward(resized(stage.clone(), size, bilinear_weights)?)
                }
                None => stage.clone(),
            };
            let x = fusion.second.forward(x);
            let size = match stages.len().checked_sub(index + 2).filter(|_| !self.doubles) {
                Some(next) => [stages[next].shape()[1], stages[next].shape()[2]],
                None => [2 * x.shape()[1], 2 * x.shape()[2]],
            };
            joined = Some(fusion.projection.forward(resized(x, size, corner_weights)?));
        }
        let Some(x) = joined else { return Ok(images.clone()) };
        let x = self.head.first.forward(x);
        let size =
            if self.doubles { [2 * x.shape()[1], 2 * x.shape()[2]] } else { grid.map(|size| size * self.patch_size) };
        let x = resized(x, size, corner_weights)?;
        let x = self.head.last.forward(relu(self.head.second.forward(x)));
        let x = if self.head.is_relative { relu(x) } else { sigmoid(x) };
        Ok((x * self.head.max_depth).squeeze(-1))
    }
}
