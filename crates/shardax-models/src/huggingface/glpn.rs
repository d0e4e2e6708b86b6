//! GLPN, which estimates the depth of each pixel with the encoder of SegFormer.

use shardax_nn::prelude::*;

use super::depth::head_index;
use super::interpolation::{bilinear_weights, resized};
use super::segformer::{encoder_keys, read_encoder};
use super::vision::{ConvNorm, ConvShape, conv_norm_keys};
use super::{Config, KeyMap, Pretrained, Segformer, SegformerConfig, SegformerHead, check_type};
use crate::error::value_error;
use crate::ranks::allow_any_ranks;

/// The architecture of a [`Glpn`].
#[derive(Clone, Debug, PartialEq)]
pub struct GlpnConfig {
    /// The encoder.
    pub encoder: SegformerConfig,
    /// The features of the joined stages.
    pub features: usize,
    /// The number of the joined stages that the head reads; 0 is only the last stage of the encoder.
    pub head_index: usize,
    /// The factor of depths.
    pub max_depth: f64,
}

/// GLPN ([Kim et al. 2022](https://arxiv.org/abs/2201.07436)), which estimates the depth of each pixel. The model type is `glpn`.
#[derive(Module, Clone, Debug)]
pub struct Glpn {
    encoder: Segformer,
    /// The first one reads the last stage.
    stages: Vec<Stage>,
    first: Conv,
    last: Conv,
    head_index: usize,
    max_depth: f64,
}

/// Joins the features of a stage with the features of the stages after it.
#[derive(Module, Clone, Debug)]
struct Stage {
    /// The layer for another number of features.
    projection: Option<Conv>,
    fusion: Option<Fusion>,
}

/// Chooses for each pixel the shares of two features.
#[derive(Module, Clone, Debug)]
struct Fusion {
    first: ConvNorm,
    second: ConvNorm,
    last: Conv,
}

impl Pretrained for Glpn {
    type Architecture = GlpnConfig;

    fn read(config: &Config) -> Result<(GlpnConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "glpn")?;
        if let Some(name) = fields.class()?
            && !name.ends_with("ForDepthEstimation")
        {
            return Err(fields.error(format!("the class {name:?} of `architectures` is not supported")));
        }
        let encoder = read_encoder(&fields, "glpn", SegformerHead::None)?;
        let read = GlpnConfig {
            features: fields.size("decoder_hidden_size")?,
            head_index: head_index(&fields, encoder.depths.len())?,
            max_depth: fields.number("max_depth")?,
            encoder,
        };
        if read.features < 2 {
            return Err(fields.error("`decoder_hidden_size` must be at least 2"));
        }
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &GlpnConfig, rngs: &mut Rngs) -> Result<Self> {
        let features = config.features;
        let encoder = Segformer::make(&config.encoder, rngs)?;
        let sizes = config.encoder.hidden_sizes.iter().rev().enumerate();
        let stages = sizes.map(|(index, size)| Stage {
            projection: (*size != features).then(|| Conv::new(*size, features, [1, 1], rngs)),
            fusion: (index > 0).then(|| Fusion {
                first: ConvNorm::new([features.saturating_mul(2), features], with_bias(), rngs),
                second: ConvNorm::new([features, features / 2], with_bias(), rngs),
                last: square(features / 2, 2, rngs),
            }),
        });
        Ok(Glpn {
            encoder,
            stages: stages.collect(),
            first: square(features, features, rngs),
            last: square(features, 1, rngs),
            head_index: config.head_index,
            max_depth: config.max_depth,
        })
    }

    fn extents(config: &GlpnConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (layers, mut matrices) = Segformer::extents(&config.encoder);
        matrices.push(("convolution of joined features", config.features.saturating_mul(18), config.features));
        (layers, matrices)
    }
}

/// Returns the kernel of the convolutions before norms.
fn with_bias() -> ConvShape {
    ConvShape { has_bias: true, ..ConvShape::new(3, 1) }
}

/// Creates a convolution of 3 by 3 entries.
fn square(before: usize, features: usize, rngs: &mut Rngs) -> Conv {
    Conv::builder(before, features, [3, 3]).padding(Padding::Explicit(vec![(1, 1); 2])).build(rngs)
}

/// Returns the names of the arrays.
fn keys(config: &GlpnConfig) -> KeyMap {
    let fusion = "decoder.stages.*.fusion.convolutional_layer";
    let keys = [("first", 1), ("second", 2)].into_iter().fold(KeyMap::new(), |keys, (part, number)| {
        conv_norm_keys(keys, &format!("stages[*].fusion.{part}"), &format!("{fusion}{number}"), ["0", "1"])
    });
    keys.conv("stages[*].fusion.last", &format!("{fusion}3"))
        .conv("stages[*].projection", "decoder.stages.*.convolution")
        .conv("first", "head.head.0")
        .conv("last", "head.head.2")
        .and(encoder_keys("glpn.", config.encoder.depths.len()).inside("encoder.", ""))
}

impl Fusion {
    fn forward(&self, local: Array, global: Array) -> Array {
        let x = concatenate(&[local.clone(), global.clone()], -1);
        let x = relu(self.second.forward(relu(self.first.forward(x))));
        let shares = sigmoid(self.last.forward(x));
        local * shares.get((Ellipsis, ..1)) + global * shares.get((Ellipsis, 1..))
    }
}

impl Glpn {
    /// Computes the depth of each pixel, `[batch, rows, columns]`, from images `[batch, rows, columns, channels]`. Each stage of the
    /// encoder must have half the rows and columns of the stage before it. `transformers` expects the channels first instead.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let images = images.into_array();
        self.try_forward(&images).unwrap_or_else(|error| Array::from_error(error, &images))
    }

    #[track_caller]
    fn try_forward(&self, images: &Array) -> Result<Array> {
        let features = self.encoder.encode(images)?;
        let _ranks = allow_any_ranks();
        let mut joined: Option<Array> = None;
        for (x, stage) in features.into_iter().rev().zip(&self.stages).take(self.head_index + 1) {
            let x = stage.projection.iter().fold(x, |x, layer| layer.forward(x));
            let x = match (joined, &stage.fusion) {
                (Some(before), Some(_)) if before.shape() != x.shape() => {
                    let message = format!(
                        "Glpn: a stage has the shape {:?}, and the stage after it {:?}",
                        x.shape(),
                        before.shape()
                    );
                    return Err(value_error(message, "use images whose rows and columns are multiples of 32"));
                }
                (Some(before), Some(fusion)) => fusion.forward(x, before),
                _ => x,
            };
            joined = Some(doubled(x)?);
        }
        let Some(x) = joined else { return Ok(images.clone()) };
        let x = if self.head_index + 1 == self.stages.len() { doubled(x)? } else { x };
        let x = self.last.forward(relu(self.first.forward(x)));
        Ok((sigmoid(x) * self.max_depth).squeeze(-1))
    }
}

/// Interpolates images of features to twice their rows and columns.
fn doubled(x: Array) -> Result<Array> {
    x.check()?;
    let size = [x.shape()[1], x.shape()[2]].map(|size| size.saturating_mul(2));
    resized(x, size, bilinear_weights)
}
