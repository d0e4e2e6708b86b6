//! Depth Anything and DPT, which estimate the depth of each pixel of an image.

mod files;

use shardax_nn::prelude::*;

pub(super) use files::{head_index, layers};

use super::bit::{Bit, BitConfig};
use super::interpolation::{bilinear_weights, corner_weights, resized};
use super::vision::{FrozenNorm, Upsample};
use super::{Config, KeyMap, Pretrained, Vit, VitConfig};
use crate::Activation;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::reshard_like;

/// The architecture of a [`DepthEstimator`]. Lists have an entry for each block whose features are read.
#[derive(Clone, Debug, PartialEq)]
pub struct DepthEstimatorConfig {
    /// The convolutions before the encoder, if it reads their features instead of patches of an image.
    pub convolutions: Option<BitConfig>,
    /// The stages of the convolutions, counted from 1, whose features are the first outputs.
    pub stages: Vec<usize>,
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
    /// True if the model can read known depths, as Prompt Depth Anything.
    pub reads_depths: bool,
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
/// ([Ranftl et al. 2021](https://arxiv.org/abs/2103.13413)) with a ViT, with a ViT after convolutions (DPT-Hybrid) or with DINOv2. The
/// model type is `depth_anything`, `prompt_depth_anything` or `dpt`.
#[derive(Module, Clone, Debug)]
pub struct DepthEstimator {
    /// The convolutions whose features the encoder reads instead of an image.
    convolutions: Option<Bit>,
    #[tree(static)]
    convolution_stages: Vec<usize>,
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
    /// The first layer. The features of convolutions have none.
    projection: Option<Conv>,
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
    /// The convolutions of given depths, in Prompt Depth Anything.
    prompt: Vec<Conv>,
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

/// The type that reads known depths too.
const PROMPT: &str = "prompt_depth_anything";

/// The supported model types.
pub(super) const KNOWN: [&str; 3] = ["depth_anything", PROMPT, "dpt"];

/// The features inside of DPT's head.
const DPT_HEAD_SIZE: usize = 32;

/// Added to the variance in the norms of joined outputs.
const NORM_EPSILON: f64 = 1e-5;

/// The largest factor by which the size of features changes.
const MAX_SCALE: f64 = 64.0;

impl Pretrained for DepthEstimator {
    type Architecture = DepthEstimatorConfig;

    fn read(config: &Config) -> Result<(DepthEstimatorConfig, KeyMap)> {
        files::read(config)
    }

    fn make(config: &DepthEstimatorConfig, rngs: &mut Rngs) -> Result<Self> {
        let (features, joined) = (config.encoder.hidden_size, config.fusion_hidden_size);
        let convolutions = config.convolutions.as_ref().map(|config| Bit::make(config, rngs)).transpose()?;
        let encoder = Vit::make(&config.encoder, rngs)?;
        let stages = config.neck_hidden_sizes.iter().zip(&config.scales).enumerate();
        let stages = stages.map(|(index, (size, scale))| {
            if index < config.first_outputs() {
                return Stage::of_convolutions(*size, joined, rngs);
            }
            let stage = Stage::new(features, *size, joined, *scale, rngs);
            let readout = config.readout.map(|_| Linear::new(features.saturating_mul(2), features, rngs));
            Stage { readout, readout_act: config.readout.unwrap_or(Activation::Gelu), ..stage }
        });
        let stages = stages.collect();
        // Features of each layer are joined with the features of the layers after it, so there is a fusion for each.
        let fusions = config.neck_hidden_sizes.iter().map(|_| Fusion {
            first: Residual::new(config, rngs),
            second: Residual::new(config, rngs),
            projection: Conv::new(joined, joined, [1, 1], rngs),
            prompt: match config.reads_depths {
                true => [1, joined, joined].map(|before| square(before, joined, 1, true, rngs)).into(),
                false => Vec::new(),
            },
        });
        Ok(DepthEstimator {
            convolutions,
            convolution_stages: config.stages.clone(),
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
            patch_size: match &config.convolutions {
                Some(convolutions) => convolutions.stride(),
                None => config.encoder.patch_size,
            },
            doubles: config.doubles,
            is_square: config.is_square,
        })
    }

    fn extents(config: &DepthEstimatorConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (layers, mut matrices) = Vit::extents(&config.encoder);
        let (more_layers, more) = config.convolutions.as_ref().map(Bit::extents).unwrap_or_default();
        let layers = layers.saturating_add(more_layers);
        matrices.extend(more);
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

impl DepthEstimatorConfig {
    /// Returns the number of outputs of the convolutions.
    fn first_outputs(&self) -> usize {
        self.stages.len().saturating_sub(1)
    }
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
            projection: Some(Conv::new(features, size, [1, 1], rngs)),
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

    /// Creates a stage that reads features of convolutions.
    fn of_convolutions(size: usize, joined: usize, rngs: &mut Rngs) -> Stage {
        Stage {
            readout: None,
            readout_act: Activation::Gelu,
            projection: None,
            upsample: None,
            downsample: None,
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
        let x = x.reshape([batch, grid[0], grid[1], features]);
        let x = self.projection.iter().fold(x, |x, layer| layer.forward(x));
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
        self.try_forward(&images, None).unwrap_or_else(|error| Array::from_error(error, &images))
    }

    /// Computes the depth of each pixel like [`forward`](Self::forward), from images and known depths, `[batch, rows, columns]`, of a
    /// sensor. They can have fewer rows and columns than the images. Depths of an image that are all equal give NaN. Only
    /// `prompt_depth_anything` reads depths.
    #[track_caller]
    pub fn forward_with_depths(&self, images: impl ArrayLike, depths: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let (images, depths) = (images.into_array(), depths.into_array());
        let computed = self.check_depths(&images, &depths).and_then(|()| {
            let [low, high] = [depths.min([1, 2]), depths.max([1, 2])].map(|bound| bound.reshape([-1, 1, 1]));
            let range = high - &low;
            let shares = (depths - &low) / &range;
            Ok(self.try_forward(&images, Some(shares.expand_dims(-1)))? * range + low)
        });
        computed.unwrap_or_else(|error| Array::from_error(error, &images))
    }

    fn check_depths(&self, images: &Array, depths: &Array) -> Result<()> {
        images.check()?;
        depths.check()?;
        if self.fusions.iter().any(|fusion| fusion.prompt.is_empty()) {
            let message = "the model does not read depths";
            return Err(value_error(message, "load a model of the type `prompt_depth_anything`, or call `forward`"));
        }
        if depths.ndim() != 3 || images.shape().first() != depths.shape().first() || depths.size() == 0 {
            let message = format!("depths of the shape {:?} for images of {:?}", depths.shape(), images.shape());
            return Err(value_error(message, "pass depths of the shape [batch, rows, columns], one for each image"));
        }
        Ok(())
    }

    fn try_forward(&self, images: &Array, depths: Option<Array>) -> Result<Array> {
        let (mut first, images) = match &self.convolutions {
            Some(convolutions) => {
                let outputs = convolutions.outputs(images)?;
                let mut outputs =
                    self.convolution_stages.iter().map(|stage| outputs[*stage].clone()).collect::<Vec<_>>();
                let last = outputs.pop().unwrap_or_else(|| images.clone());
                (outputs, last)
            }
            None => (Vec::new(), images.clone()),
        };
        self.encoder.check_images(&images)?;
        let patch_size = if self.convolutions.is_some() { 1 } else { self.patch_size };
        let grid = [1, 2].map(|axis| images.shape()[axis] / patch_size);
        if self.is_square && grid[0] != grid[1] {
            let message = format!("images of {} by {} patches are not squares", grid[0], grid[1]);
            return Err(value_error(message, "resize the images to `image_size` of the configuration"));
        }
        let layers = self.encoder.outputs(&images, &self.layers, self.norms_layers);
        let (convolved, encoded) = self.stages.split_at(first.len());
        first.iter_mut().zip(convolved).for_each(|(x, stage)| *x = stage.conv.forward(&*x));
        let encoded = layers.iter().zip(encoded).map(|(x, stage)| stage.forward(x, grid));
        let stages: Vec<Array> = first.into_iter().chain(encoded).collect();
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
            let x = match &depths {
                Some(depths) => {
                    let depths = resized(depths.astype(x.dtype()), [x.shape()[1], x.shape()[2]], bilinear_weights)?;
                    let layers = fusion.prompt.iter().enumerate();
                    x + layers.fold(depths, |y, (index, layer)| layer.forward(if index == 0 { y } else { relu(y) }))
                }
                None => x,
            };
            let size = match stages.len().checked_sub(index + 2).filter(|_| !self.doubles) {
                Some(next) => [stages[next].shape()[1], stages[next].shape()[2]],
                None => [2 * x.shape()[1], 2 * x.shape()[2]],
            };
            joined = Some(fusion.projection.forward(resized(x, size, corner_weights)?));
        }
        let Some(x) = joined else { return Ok(images) };
        let x = self.head.first.forward(x);
        let size =
            if self.doubles { [2 * x.shape()[1], 2 * x.shape()[2]] } else { grid.map(|size| size * self.patch_size) };
        let x = resized(x, size, corner_weights)?;
        let x = self.head.last.forward(relu(self.head.second.forward(x)));
        let x = if self.head.is_relative { relu(x) } else { sigmoid(x) };
        Ok((x * self.head.max_depth).squeeze(-1))
    }
}
