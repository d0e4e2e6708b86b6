//! RT-DETR, which detects objects.

mod backbone;
mod deformable;
mod files;
mod pyramid;

use shardax_nn::prelude::*;

use self::backbone::Backbone;
pub use self::backbone::RtDetrBackbone;
pub(super) use self::deformable::DeformableAttention;
pub(super) use self::files::KNOWN;
use self::pyramid::Pyramid;
use super::attention;
use super::vision::{ConvNorm, ConvShape, check_channels};
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::{Activation, Mlp, Side};

/// The architecture of an [`RtDetr`].
#[derive(Clone, Debug, PartialEq)]
pub struct RtDetrConfig {
    /// The convolutions that compute features of an image.
    pub backbone: RtDetrBackbone,
    /// The features of the layers that join stages.
    pub encoder_hidden_dim: usize,
    /// The blocks of attention in one stage.
    pub encoder: Side,
    /// The stages, counted from 0, that have these blocks.
    pub encoded_stages: Vec<usize>,
    /// The activation of the MLPs of these blocks.
    pub encoder_activation: Activation,
    /// True if these blocks normalize their inputs. Otherwise they normalize sums.
    pub pre_norms: bool,
    /// The base of the frequencies of positions in these blocks; `None` if they have no positions.
    pub position_base: Option<f64>,
    /// The ratio of the features inside of the layers that join stages to `encoder_hidden_dim`.
    pub expansion: f64,
    /// The activation of convolutions.
    pub activation: Activation,
    /// The features of objects.
    pub d_model: usize,
    /// The blocks that compute objects.
    pub decoder: Side,
    /// The activation of their MLPs.
    pub decoder_activation: Activation,
    /// The number of places in each stage to which an object attends.
    pub points: usize,
    /// The factor of the distances of these places from the object.
    pub offset_scale: f64,
    /// The number of objects in an image.
    pub num_queries: usize,
    /// Added to the variance in norms of features.
    pub layer_norm_eps: f64,
    /// Added to the variance in norms of convolutions.
    pub batch_norm_eps: f64,
    /// True if the files contain a table of classes for training.
    pub has_denoising: bool,
    /// The number of classes.
    pub classes: usize,
}

/// RT-DETR ([Zhao et al. 2023](https://arxiv.org/abs/2304.08069)) or its second version, which detect objects in real time. The
/// model type is `rt_detr` or `rt_detr_v2`, with a ResNet.
///
/// The rows and columns of images must be multiples of 32, `[batch, rows, columns, channels]`. Dimensions are named `embed`,
/// `heads` and `mlp`, see [`Rules`].
#[derive(Module, Clone, Debug)]
pub struct RtDetr {
    backbone: Backbone,
    projections: Vec<ConvNorm>,
    /// The blocks of attention, for each encoded stage.
    encoders: Vec<Encoder>,
    pyramid: Pyramid,
    /// The convolutions that compute the features to which objects attend.
    memories: Vec<ConvNorm>,
    memory: Linear,
    memory_norm: LayerNorm,
    scores: Linear,
    places: Vec<Linear>,
    query_positions: Vec<Linear>,
    decoder: Vec<DecoderBlock>,
    /// The classes of objects after each block. Only the classes after the last block are computed.
    classes: Vec<Linear>,
    /// `[classes + 1, features]`: a table for training. It is only stored because the files contain it.
    denoising: Option<Array>,
    position_base: Option<f64>,
    pre_norms: bool,
    num_queries: usize,
    #[tree(static)]
    encoded_stages: Vec<usize>,
}

/// The blocks of attention in one stage.
#[derive(Module, Clone, Debug)]
struct Encoder {
    blocks: Vec<EncoderBlock>,
}

#[derive(Module, Clone, Debug)]
struct EncoderBlock {
    attention: MultiHeadAttention,
    norm: LayerNorm,
    mlp: Mlp,
    mlp_norm: LayerNorm,
}

#[derive(Module, Clone, Debug)]
struct DecoderBlock {
    attention: MultiHeadAttention,
    norm: LayerNorm,
    cross: DeformableAttention,
    cross_norm: LayerNorm,
    mlp: Mlp,
    mlp_norm: LayerNorm,
    /// The layers that compute boxes.
    boxes: Vec<Linear>,
}

/// The extent of the first boxes in the first stage, as a share of the image. It doubles with each stage.
const FIRST_EXTENT: f64 = 0.05;
/// First boxes whose center or extent is nearer to the edge of an image are not used.
const MARGIN: f64 = 0.01;
/// The smallest number whose logarithm is computed.
const SMALLEST: f64 = 1e-5;

impl RtDetr {
    fn new(config: &RtDetrConfig, rngs: &mut Rngs) -> RtDetr {
        let (features, inner) = (config.d_model, config.encoder_hidden_dim);
        let norm =
            |features: usize, rngs: &mut Rngs| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
        let backbone = Backbone::new(&config.backbone, rngs);
        let outputs = config.backbone.features();
        let point = |epsilon: f64| ConvShape { epsilon, ..ConvShape::new(1, 1) };
        let projections = outputs.iter().map(|size| ConvNorm::new([*size, inner], point(1e-5), rngs)).collect();
        let encoders = (0..config.encoded_stages.len()).map(|_| Encoder {
            blocks: (0..config.encoder.layers)
                .map(|_| EncoderBlock {
                    attention: attention(config.encoder.heads, inner).build(rngs),
                    norm: norm(inner, rngs),
                    mlp: Mlp::new(inner, config.encoder.hidden, config.encoder_activation, false, true, rngs),
                    mlp_norm: norm(inner, rngs),
                })
                .collect(),
        });
        let encoders = encoders.collect();
        let decoder = (0..config.decoder.layers).map(|_| DecoderBlock {
            attention: attention(config.decoder.heads, features).build(rngs),
            norm: norm(features, rngs),
            cross: DeformableAttention::new(
                [features, config.decoder.heads],
                [outputs.len(), config.points],
                config.offset_scale,
                rngs,
            ),
            cross_norm: norm(features, rngs),
            mlp: Mlp::new(features, config.decoder.hidden, config.decoder_activation, false, true, rngs),
            mlp_norm: norm(features, rngs),
            boxes: linear_layers(&[features, features, features, 4], rngs),
        });
        let decoder = decoder.collect();
        RtDetr {
            backbone,
            projections,
            encoders,
            pyramid: Pyramid::new(config, outputs.len(), rngs),
            memories: outputs
                .iter()
                .map(|_| ConvNorm::new([inner, features], point(config.batch_norm_eps), rngs))
                .collect(),
            memory: Linear::new(features, features, rngs),
            memory_norm: norm(features, rngs),
            scores: Linear::new(features, config.classes, rngs),
            places: linear_layers(&[features, features, features, 4], rngs),
            query_positions: linear_layers(&[4, 2 * features, features], rngs),
            decoder,
            classes: (0..config.decoder.layers).map(|_| Linear::new(features, config.classes, rngs)).collect(),
            denoising: config
                .has_denoising
                .then(|| zeros_dtype([config.classes + 1, features], rngs.policy().param_dtype)),
            position_base: config.position_base,
            pre_norms: config.pre_norms,
            num_queries: config.num_queries,
            encoded_stages: config.encoded_stages.clone(),
        }
    }

    /// Detects objects in images `[batch, rows, columns, channels]`. `transformers` expects the channels first instead.
    ///
    /// Returns logits, `[batch, objects, classes]`, and boxes, `[batch, objects, 4]`: the column and the row of the center, the
    /// width and the height, as shares of the image.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> (Array, Array) {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        let detected = self.check_images(&images).and_then(|()| self.detect(images.clone()));
        detected.unwrap_or_else(|error| {
            let failed = Array::from_error(error, &images);
            (failed.clone(), failed)
        })
    }

    /// Returns an error if images have another rank, or sizes that stages cannot halve.
    fn check_images(&self, images: &Array) -> Result<()> {
        let Some(first) = self.backbone.first.first() else { return Ok(()) };
        check_channels("RtDetr", images, &first.conv)?;
        let (rows, columns) = (images.shape()[1], images.shape()[2]);
        if rows == 0 || columns == 0 || !rows.is_multiple_of(32) || !columns.is_multiple_of(32) {
            let message = format!("RtDetr: images of {rows} by {columns} pixels, but both must be multiples of 32");
            return Err(value_error(message, "scale the images, for example to 640 by 640 pixels"));
        }
        Ok(())
    }

    fn detect(&self, images: Array) -> Result<(Array, Array)> {
        let outputs = self.backbone.forward(images).into_iter().zip(&self.projections);
        let mut stages: Vec<Array> = outputs.map(|(x, projection)| projection.forward(x)).collect();
        for (encoder, stage) in self.encoders.iter().zip(&self.encoded_stages) {
            if let Some(x) = stages.get_mut(*stage) {
                *x = self.encode(encoder, x)?;
            }
        }
        let joined = self.pyramid.forward(stages);
        let levels: Vec<Array> = joined.into_iter().zip(&self.memories).map(|(x, layer)| layer.forward(x)).collect();
        let grids: Vec<[usize; 2]> = levels.iter().map(|x| [x.shape()[1], x.shape()[2]]).collect();
        let flat: Vec<Array> = levels.iter().map(flattened).collect();
        let memory = concatenate(&flat, 1);
        let (mut x, first_boxes) = self.choose_places(&memory, &grids)?;
        let mut boxes = sigmoid(first_boxes);
        for block in &self.decoder {
            let positions = mlp(&self.query_positions, boxes.clone());
            let placed = &x + &positions;
            x = block.norm.forward(&x + block.attention.attend(&placed, &placed, &x, AttentionOptions::new()));
            let cross = block.cross.forward(&(&x + &positions), &boxes, &memory, &grids);
            x = block.cross_norm.forward(x + cross);
            x = block.mlp_norm.forward(&x + block.mlp.forward(&x));
            boxes = sigmoid(mlp(&block.boxes, x.clone()) + log_odds(&boxes));
        }
        let logits = self.classes.last().map_or_else(|| x.clone(), |layer| layer.forward(&x));
        Ok((logits, boxes))
    }

    /// Applies attention between all places of a stage.
    fn encode(&self, encoder: &Encoder, x: &Array) -> Result<Array> {
        let shape = x.shape().to_vec();
        let positions = match self.position_base {
            Some(base) => Some(sines([shape[1], shape[2]], shape[3], base)?.astype(x.dtype())),
            None => None,
        };
        let x = encoder.blocks.iter().fold(flattened(x), |x, block| {
            let y = if self.pre_norms { block.norm.forward(&x) } else { x.clone() };
            let placed = positions.iter().fold(y.clone(), |y, positions| y + positions);
            let x = &x + block.attention.attend(&placed, &placed, &y, AttentionOptions::new());
            if self.pre_norms {
                // The class adds the output of the MLP to the normalized sum.
                let x = block.mlp_norm.forward(x);
                return &x + block.mlp.forward(&x);
            }
            let x = block.norm.forward(x);
            block.mlp_norm.forward(&x + block.mlp.forward(&x))
        });
        Ok(x.reshape(shape))
    }

    /// Chooses the places with the best scores. Returns their features, `[batch, objects, features]`, and their boxes, before the
    /// sigmoid.
    fn choose_places(&self, memory: &Array, grids: &[[usize; 2]]) -> Result<(Array, Array)> {
        let (batch, places, features) = (memory.shape()[0], memory.shape()[1], memory.shape()[2]);
        if places < self.num_queries {
            let message =
                format!("RtDetr: the images have {places} places, which are less than {} objects", self.num_queries);
            return Err(value_error(message, "use larger images"));
        }
        let (anchors, is_valid) = anchors(grids)?;
        let x = memory * is_valid.astype(memory.dtype());
        let x = self.memory_norm.forward(self.memory.forward(x));
        let best = self.scores.forward(&x).max(-1);
        let (_, chosen) = lax::top_k(&best, self.num_queries);
        let boxes = mlp(&self.places, x.clone()).astype(DType::F32) + anchors;
        let rows = chosen.expand_dims(-1);
        let rows_of = |width: usize| rows.broadcast_to([batch, self.num_queries, width]);
        let boxes = boxes.take_along_axis(rows_of(4), 1).astype(memory.dtype());
        Ok((x.take_along_axis(rows_of(features), 1), boxes))
    }
}

/// Joins rows and columns.
pub(super) fn flattened(x: &Array) -> Array {
    let &[batch, rows, columns, features] = x.shape() else { return x.clone() };
    x.reshape([batch, rows * columns, features])
}

/// Creates layers between these numbers of features, which [`mlp`] applies.
pub(super) fn linear_layers(sizes: &[usize], rngs: &mut Rngs) -> Vec<Linear> {
    sizes.windows(2).map(|pair| Linear::new(pair[0], pair[1], rngs)).collect()
}

/// Applies layers with ReLU between them.
pub(super) fn mlp(layers: &[Linear], x: Array) -> Array {
    layers.iter().enumerate().fold(x, |x, (index, layer)| layer.forward(if index == 0 { x } else { relu(x) }))
}

/// Returns the number whose sigmoid is `x`.
pub(super) fn log_odds(x: &Array) -> Array {
    let x = x.clip(0.0, 1.0);
    (x.maximum(SMALLEST) / (1.0 - &x).maximum(SMALLEST)).log()
}

/// Returns the sines and cosines of rows, and then of columns, `[rows * columns, features]`.
fn sines([rows, columns]: [usize; 2], features: usize, base: f64) -> Result<Array> {
    let quarter = features / 4;
    let speeds: Vec<f64> = (0..quarter).map(|index| base.powf(-(index as f64) / quarter as f64)).collect();
    let mut values = Vec::with_capacity(rows * columns * features);
    for place in 0..rows * columns {
        for coordinate in [place / columns, place % columns] {
            let angles = speeds.iter().map(|speed| coordinate as f64 * speed);
            values.extend(angles.clone().map(|angle| angle.sin() as f32));
            values.extend(angles.map(|angle| angle.cos() as f32));
        }
    }
    Array::from_vec(values, &[rows * columns, features])
}

/// Returns the first box of each place of all stages, before the sigmoid, `[places, 4]`, and whether it is used, `[places, 1]`.
pub(super) fn anchors(grids: &[[usize; 2]]) -> Result<(Array, Array)> {
    let (mut boxes, mut is_valid) = (Vec::new(), Vec::new());
    for (level, [rows, columns]) in grids.iter().copied().enumerate() {
        let extent = FIRST_EXTENT * (level as f64).exp2();
        for place in 0..rows * columns {
            let center =
                [((place % columns) as f64 + 0.5) / columns as f64, ((place / columns) as f64 + 0.5) / rows as f64];
            let edges = [center[0], center[1], extent, extent];
            let is_used = edges.iter().all(|edge| (MARGIN..1.0 - MARGIN).contains(edge));
            boxes.extend(edges.map(|edge| if is_used { (edge / (1.0 - edge)).ln() as f32 } else { f32::MAX }));
            is_valid.push(f32::from(u8::from(is_used)));
        }
    }
    let count = is_valid.len();
    Ok((Array::from_vec(boxes, &[count, 4])?, Array::from_vec(is_valid, &[count, 1])?))
}
