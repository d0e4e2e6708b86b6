//! Conditional DETR, which detects objects.

use shardax_nn::prelude::*;

use super::deformable_detr::{box_positions, corrected};
use super::detr::{self, Block, DetrConfig, NORM_EPSILON, sines};
use super::rt_detr::{flattened, linear_layers, mlp};
use super::{Config, KeyMap, Pretrained, Resnet};
use crate::Mlp;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::reshard_like;

/// Conditional DETR ([Meng et al. 2021](https://arxiv.org/abs/2108.06152)) with a ResNet. The model type is `conditional_detr`.
///
/// You can pass images of any size, `[batch, rows, columns, channels]`. Dimensions are named `embed`, `heads` and `mlp`, see [`Rules`].
#[derive(Module, Clone, Debug)]
pub struct ConditionalDetr {
    image: Resnet,
    projection: Conv,
    encoder: Vec<Block>,
    /// `[objects, features]`: the learned positions of the objects.
    objects: Array,
    /// The layers that compute points from learned positions.
    points: Vec<Linear>,
    /// The layers that compute the factors of the sines of points from the features of objects.
    scales: Vec<Linear>,
    decoder: Vec<DecoderBlock>,
    decoder_norm: LayerNorm,
    classes: Linear,
    /// The layers that compute boxes.
    boxes: Vec<Linear>,
}

#[derive(Module, Clone, Debug)]
struct DecoderBlock {
    attention: PlacedAttention,
    norm: LayerNorm,
    /// Attention to the image.
    cross: PlacedAttention,
    cross_norm: LayerNorm,
    mlp: Mlp,
    mlp_norm: LayerNorm,
}

/// Attention with separate layers for features and for positions.
#[derive(Module, Clone, Debug)]
struct PlacedAttention {
    query: LinearGeneral,
    key: LinearGeneral,
    value: LinearGeneral,
    out: LinearGeneral,
    /// Computes the part of queries that depends on learned positions. Without it, positions are not added to features.
    query_positions: Option<LinearGeneral>,
    key_positions: LinearGeneral,
    /// Computes the second half of queries, whose keys are positions, from the sines of points.
    query_sines: Option<LinearGeneral>,
}

/// The supported model types.
const KNOWN: [&str; 1] = ["conditional_detr"];

impl Pretrained for ConditionalDetr {
    type Architecture = DetrConfig;

    fn read(config: &Config) -> Result<(DetrConfig, KeyMap)> {
        let (read, image_keys) = detr::read_fields(config, &KNOWN)?;
        Ok((read.clone(), keys().and(detr::keys(&read)).and(image_keys)))
    }

    fn make(config: &DetrConfig, rngs: &mut Rngs) -> Result<Self> {
        let features = config.d_model;
        let last = config.encoder_of_images.hidden_sizes.last().copied().unwrap_or(1);
        Ok(ConditionalDetr {
            image: Resnet::make(&config.encoder_of_images, rngs)?,
            projection: Conv::new(last, features, [1, 1], rngs),
            encoder: (0..config.encoder.layers).map(|_| Block::new(config, &config.encoder, false, rngs)).collect(),
            objects: zeros_dtype([config.num_queries, features], rngs.policy().param_dtype),
            points: linear_layers(&[features, features, 2], rngs),
            scales: linear_layers(&[features; 3], rngs),
            decoder: (0..config.decoder.layers).map(|layer| DecoderBlock::new(config, layer == 0, rngs)).collect(),
            decoder_norm: LayerNorm::builder(features).epsilon(NORM_EPSILON).build(rngs),
            classes: Linear::new(features, config.classes, rngs),
            boxes: linear_layers(&[features, features, features, 4], rngs),
        })
    }

    fn extents(config: &DetrConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        detr::extents(config)
    }
}

/// Returns the names of the arrays of the decoder.
fn keys() -> KeyMap {
    let keys = (0..2).fold(KeyMap::new(), |keys, index| {
        keys.linear(&format!("points[{index}]"), &format!("model.decoder.ref_point_head.layers.{index}"))
            .linear(&format!("scales[{index}]"), &format!("model.decoder.query_scale.layers.{index}"))
    });
    let parts = [
        ("query", "qcontent_proj"),
        ("query_positions", "qpos_proj"),
        ("key", "kcontent_proj"),
        ("key_positions", "kpos_proj"),
        ("value", "v_proj"),
        ("query_sines", "qpos_sine_proj"),
    ];
    let layer = "model.decoder.layers.*";
    [("attention", "sa", "self_attn"), ("cross", "ca", "encoder_attn")].into_iter().fold(
        keys,
        |keys, (path, start, attention)| {
            let path = format!("decoder[*].{path}");
            let keys = parts.into_iter().fold(keys, |keys, (part, name)| {
                keys.linear(&format!("{path}.{part}"), &format!("{layer}.{start}_{name}"))
            });
            keys.linear(&format!("{path}.out"), &format!("{layer}.{attention}.out_proj"))
        },
    )
}

impl DecoderBlock {
    fn new(config: &DetrConfig, is_first: bool, rngs: &mut Rngs) -> DecoderBlock {
        let (features, side) = (config.d_model, &config.decoder);
        let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(NORM_EPSILON).build(rngs);
        DecoderBlock {
            attention: PlacedAttention::new([features, side.heads], true, false, rngs),
            norm: norm(rngs),
            // Only the first block adds learned positions to the queries of an image.
            cross: PlacedAttention::new([features, side.heads], is_first, true, rngs),
            cross_norm: norm(rngs),
            mlp: Mlp::new(features, side.hidden, config.activation_function, false, true, rngs),
            mlp_norm: norm(rngs),
        }
    }

    /// Applies the block to the features of objects, `[batch, objects, features]`, with learned positions, `[objects, features]`, and
    /// sines of points. `image` has the features of an image and their places.
    fn forward(&self, x: Array, positions: &Array, sines: &Array, image: (&Array, &Array)) -> Array {
        let y = self.attention.forward(&x, positions, (&x, positions), sines);
        let x = self.norm.forward(x + y);
        let y = self.cross.forward(&x, positions, image, sines);
        let x = self.cross_norm.forward(x + y);
        self.mlp_norm.forward(&x + self.mlp.forward(&x))
    }
}

impl PlacedAttention {
    fn new([features, heads]: [usize; 2], adds_positions: bool, has_sines: bool, rngs: &mut Rngs) -> PlacedAttention {
        let depth = features / heads;
        let by_heads = |rngs: &mut Rngs| {
            let layer = LinearGeneral::builder([features], [heads, depth]);
            layer.kernel_axes([Some("embed"), Some("heads"), None]).build(rngs)
        };
        let out = LinearGeneral::builder([heads, depth], [features]);
        PlacedAttention {
            query: by_heads(rngs),
            key: by_heads(rngs),
            value: by_heads(rngs),
            out: out.kernel_axes([Some("heads"), None, Some("embed")]).build(rngs),
            query_positions: adds_positions.then(|| by_heads(rngs)),
            key_positions: by_heads(rngs),
            query_sines: has_sines.then(|| by_heads(rngs)),
        }
    }

    /// Attends from `x`, `[batch, objects, features]`, to the features `memory`, `[batch, length, features]`, at these places, `[length,
    /// features]`.
    fn forward(&self, x: &Array, positions: &Array, (memory, places): (&Array, &Array), sines: &Array) -> Array {
        let (mut query, mut key) = (self.query.forward(x), self.key.forward(memory));
        let key_positions = self.key_positions.forward(places);
        if let Some(layer) = &self.query_positions {
            (query, key) = (query + layer.forward(positions), key + &key_positions);
        }
        if let Some(layer) = &self.query_sines {
            query = concatenate(&[query, layer.forward(sines)], -1);
            // Each image has the same places.
            let key_positions = zeros_like(&key) + key_positions;
            key = concatenate(&[key, key_positions], -1);
        }
        let value = self.value.forward(memory);
        self.out.forward(AttentionOptions::new().dot_product_attention(query, key, value))
    }
}

impl ConditionalDetr {
    /// Detects objects in images `[batch, rows, columns, channels]`. Returns logits, `[batch, objects, classes]`, and boxes, `[batch,
    /// objects, 4]`. A box is the column and row of the center, and the number of columns and rows, as fractions of the image. All
    /// images of a batch must have one size, because padding is not masked.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> (Array, Array) {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        self.detect(&images).unwrap_or_else(|error| {
            let failed = Array::from_error(error, &images);
            (failed.clone(), failed)
        })
    }

    fn detect(&self, images: &Array) -> Result<(Array, Array)> {
        let x = self.image.encode(images);
        x.check()?;
        let x = self.projection.forward(x);
        let &[batch, rows, columns, features] = x.shape() else { return Ok((x.clone(), x)) };
        if rows == 0 || columns == 0 {
            return Err(value_error("ConditionalDetr: the images have no pixels", "pass larger images"));
        }
        let places = sines([rows, columns], features, 1.0)?.astype(x.dtype());
        let image = self.encoder.iter().fold(flattened(&x), |x, block| block.forward(x, &places, None, false));
        let objects = self.objects.astype(image.dtype());
        let points = sigmoid(mlp(&self.points, objects.clone())).expand_dims(0);
        // The sines of rows precede the sines of columns.
        let by_row = concatenate(&[points.get((Ellipsis, 1..)), points.get((Ellipsis, ..1))], -1);
        let waves = box_positions(&by_row, features / 2)?.astype(image.dtype());
        let start = zeros_dtype([batch, objects.shape()[0], features], image.dtype());
        let start = reshard_like(start, &image);
        let x = self.decoder.iter().enumerate().fold(start, |x, (index, block)| {
            let scales = if index == 0 { ones_like(&x) } else { mlp(&self.scales, x.clone()) };
            block.forward(x, &objects, &(scales * &waves), (&image, &places))
        });
        let x = self.decoder_norm.forward(x);
        let boxes = corrected(&points, mlp(&self.boxes, x.clone()));
        Ok((self.classes.forward(x), boxes))
    }
}
