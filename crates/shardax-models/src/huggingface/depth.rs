//! Depth Anything, which estimates the depth of each pixel of an image.

use shardax_nn::prelude::*;

use super::config::Fields;
use super::encoder::small_normal;
use super::vision::stage_keys;
use super::vit::read_fields;
use super::{Config, KeyMap, Layout, Pretrained, Vit, VitConfig, VitHead, check_type};
use crate::ranks::allow_any_ranks;

/// The architecture of a [`DepthAnything`]. Lists have an entry for each block whose features are read.
#[derive(Clone, Debug, PartialEq)]
pub struct DepthAnythingConfig {
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
    /// The features of the joined outputs.
    pub fusion_hidden_size: usize,
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

/// Depth Anything ([Yang et al. 2024](https://arxiv.org/abs/2401.10891)) and its second version, whose encoder is DINOv2. The model
/// type is `depth_anything`.
#[derive(Module, Clone, Debug)]
pub struct DepthAnything {
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
}

/// The features of a block, as an image.
#[derive(Module, Clone, Debug)]
struct Stage {
    projection: Conv,
    upsample: Option<Upsample>,
    downsample: Option<Conv>,
    conv: Conv,
}

/// A transposed convolution whose kernel is as large as its stride.
#[derive(Module, Clone, Debug)]
struct Upsample {
    /// `[features, features, rows, columns]`
    kernel: Array,
    bias: Array,
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
    second: Conv,
}

#[derive(Module, Clone, Debug)]
struct Head {
    first: Conv,
    second: Conv,
    last: Conv,
    is_relative: bool,
    max_depth: f64,
}

/// The largest factor by which the size of features changes.
const MAX_SCALE: f64 = 64.0;

impl Pretrained for DepthAnything {
    type Architecture = DepthAnythingConfig;

    fn read(config: &Config) -> Result<(DepthAnythingConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "depth_anything")?;
        let list = fields.list_opt("architectures")?;
        if let Some(name) = list.and_then(|list| list.first()).and_then(|name| name.as_str())
            && !name.ends_with("ForDepthEstimation")
        {
            return Err(fields.error(format!("the class {name:?} of `architectures` is not supported")));
        }
        let about = fields.object_opt("backbone_config")?;
        let about = about.ok_or_else(|| fields.error("missing field `backbone_config`"))?;
        check_type(&about, "dinov2")?;
        let (encoder, encoder_keys) = read_fields(&about, Some(VitHead::None))?;
        if about.flag("reshape_hidden_states")? {
            return Err(about.error("field `reshape_hidden_states` must be false"));
        }
        let layers = layers(&about, encoder.num_hidden_layers)?;
        let norms_layers = about.flag("apply_layernorm")?;
        about.finish()?;
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
            if fields.size(name)? != size {
                return Err(fields.error(format!("`{name}` must be {size}, as in `backbone_config`")));
            }
        }
        let fusion_hidden_size = fields.size("fusion_hidden_size")?;
        if fusion_hidden_size < 2 {
            return Err(fields.error("`fusion_hidden_size` must be at least 2"));
        }
        let read = DepthAnythingConfig {
            head_index: head_index(&fields, layers.len())?,
            encoder,
            layers,
            norms_layers,
            neck_hidden_sizes,
            scales,
            fusion_hidden_size,
            head_hidden_size: fields.size("head_hidden_size")?,
            is_relative: match fields.text("depth_estimation_type")? {
                "relative" => true,
                "metric" => false,
                other => return Err(fields.error(format!("`depth_estimation_type` {other:?} is not supported"))),
            },
            max_depth: fields.number_or("max_depth", 1.0)?,
        };
        fields.finish()?;
        let keys = keys(&read).and(encoder_keys.inside("encoder.", "backbone."));
        Ok((read, keys))
    }

    fn make(config: &DepthAnythingConfig, rngs: &mut Rngs) -> Result<Self> {
        let (features, joined) = (config.encoder.hidden_size, config.fusion_hidden_size);
        let encoder = Vit::make(&config.encoder, rngs)?;
        let stages = config.neck_hidden_sizes.iter().zip(&config.scales);
        let stages = stages.map(|(size, scale)| Stage::new(features, *size, joined, *scale, rngs)).collect();
        // Features of each layer are joined with the features of the layers after it, so there is a fusion for each.
        let fusions = config.layers.iter().map(|_| Fusion {
            first: Residual::new(joined, rngs),
            second: Residual::new(joined, rngs),
            projection: Conv::new(joined, joined, [1, 1], rngs),
        });
        Ok(DepthAnything {
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
        })
    }

    fn extents(config: &DepthAnythingConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (layers, mut matrices) = Vit::extents(&config.encoder);
        let joined = config.fusion_hidden_size;
        let largest = config.neck_hidden_sizes.iter().copied().max().unwrap_or(0);
        matrices.push(("layer of the neck", config.encoder.hidden_size, largest));
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

/// Returns the numbers of the layers that `out_indices` or `out_features` name.
fn layers(fields: &Fields, count: usize) -> Result<Vec<usize>> {
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
fn head_index(fields: &Fields, count: usize) -> Result<usize> {
    let index = fields.number("head_in_index")?;
    let from_start = if index < 0.0 { index + count as f64 } else { index };
    if from_start >= 0.0 && from_start < count as f64 && from_start.fract() == 0.0 {
        Ok(from_start as usize)
    } else {
        Err(fields.error(format!("`head_in_index` is {index}, but there are {count} joined outputs")))
    }
}

/// Returns the names of the arrays, without the encoder's.
fn keys(config: &DepthAnythingConfig) -> KeyMap {
    let fusion = "neck.fusion_stage.layers.*";
    let keys = ["first", "second"].into_iter().zip([1, 2]).fold(KeyMap::new(), |keys, (residual, number)| {
        let (path, name) = (format!("fusions[*].{residual}"), format!("{fusion}.residual_layer{number}"));
        keys.conv(&format!("{path}.first"), &format!("{name}.convolution1"))
            .conv(&format!("{path}.second"), &format!("{name}.convolution2"))
    });
    let keys = keys
        .conv("fusions[*].projection", &format!("{fusion}.projection"))
        .conv("head.first", "head.conv1")
        .conv("head.second", "head.conv2")
        .conv("head.last", "head.conv3");
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
        let dtype = rngs.policy().param_dtype;
        Stage {
            projection: Conv::new(features, size, [1, 1], rngs),
            upsample: match scale {
                DepthScale::Up(factor) => Some(Upsample {
                    kernel: small_normal(&[size, size, factor, factor], rngs),
                    bias: zeros_dtype([size], dtype),
                }),
                _ => None,
            },
            downsample: match scale {
                DepthScale::Down(stride) => Some(square(size, size, stride, true, rngs)),
                _ => None,
            },
            conv: square(size, joined, 1, false, rngs),
        }
    }

    fn forward(&self, x: Array) -> Array {
        let x = self.projection.forward(x);
        let x = self.upsample.iter().fold(x, |x, layer| layer.forward(x));
        let x = self.downsample.iter().fold(x, |x, layer| layer.forward(x));
        self.conv.forward(x)
    }
}

impl Upsample {
    fn forward(&self, x: Array) -> Array {
        let (&[batch, rows, columns, _], &[_, features, factor, _]) = (x.shape(), self.kernel.shape()) else {
            return x;
        };
        let squares = einsum("bijc,coyx->biyjxo", &[&x, &self.kernel.astype(x.dtype())]);
        let y = squares.reshape([batch, rows * factor, columns * factor, features]);
        &y + self.bias.astype(y.dtype())
    }
}

impl Residual {
    fn new(features: usize, rngs: &mut Rngs) -> Residual {
        Residual { first: square(features, features, 1, true, rngs), second: square(features, features, 1, true, rngs) }
    }

    fn forward(&self, x: Array) -> Array {
        let y = self.second.forward(relu(self.first.forward(relu(&x))));
        x + y
    }
}

/// Returns the weights `[to, from]` of linear interpolation between the centers of the first and the last entry, as in PyTorch's
/// `interpolate` with `align_corners`.
fn corner_weights(from: usize, to: usize) -> Result<Array> {
    let mut weights = vec![0.0f32; to * from];
    for row in 0..to {
        let place = row as f64 * (from - 1) as f64 / (to - 1).max(1) as f64;
        let first = (place as usize).min(from - 1);
        let share = place - first as f64;
        weights[row * from + first] = (1.0 - share) as f32;
        if share > 0.0 {
            weights[row * from + (first + 1).min(from - 1)] += share as f32;
        }
    }
    Array::from_vec(weights, &[to, from])
}

/// Interpolates the rows and columns of `[batch, rows, columns, features]`.
fn resized(x: Array, size: [usize; 2]) -> Result<Array> {
    let &[_, rows, columns, _] = x.shape() else { return Ok(x) };
    if [rows, columns] == size {
        return Ok(x);
    }
    let [down, right] = [corner_weights(rows, size[0])?, corner_weights(columns, size[1])?];
    Ok(einsum("ia,jb,nabf->nijf", &[&down.astype(x.dtype()), &right.astype(x.dtype()), &x]))
}

impl DepthAnything {
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
        let layers = self.encoder.outputs(images, &self.layers, self.norms_layers);
        let stages = layers.into_iter().zip(&self.stages).map(|(x, stage)| {
            // The first entry represents the image.
            let x = x.get((.., 1..));
            let features = x.shape()[2];
            stage.forward(x.reshape([x.shape()[0], grid[0], grid[1], features]))
        });
        let stages: Vec<Array> = stages.collect();
        let mut joined: Option<Array> = None;
        // The outputs are joined from the last one to the first one; later outputs than the head's have no effect.
        for (index, (stage, fusion)) in stages.iter().rev().zip(&self.fusions).enumerate().take(self.head_index + 1) {
            stage.check()?;
            let x = match joined {
                Some(x) => x + fusion.first.forward(stage.clone()),
                None => stage.clone(),
            };
            let x = fusion.second.forward(x);
            let size = match stages.len().checked_sub(index + 2) {
                Some(next) => [stages[next].shape()[1], stages[next].shape()[2]],
                None => [2 * x.shape()[1], 2 * x.shape()[2]],
            };
            joined = Some(fusion.projection.forward(resized(x, size)?));
        }
        let Some(x) = joined else { return Ok(images.clone()) };
        let x = resized(self.head.first.forward(x), grid.map(|size| size * self.patch_size))?;
        let x = self.head.last.forward(relu(self.head.second.forward(x)));
        let x = if self.head.is_relative { relu(x) } else { sigmoid(x) };
        Ok((x * self.head.max_depth).squeeze(-1))
    }
}
