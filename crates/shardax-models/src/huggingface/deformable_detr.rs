//! Deformable DETR, which detects objects.

use std::f64::consts::TAU;

use shardax_nn::prelude::*;

use super::detr::{check_and_skip, image_encoder, sines};
use super::encoder::small_normal;
use super::fields::Fields;
use super::rt_detr::{DeformableAttention, anchors, flattened, log_odds, mlp};
use super::vision::classes_of;
use super::{Config, KeyMap, Layout, Pretrained, Resnet, ResnetConfig, attention, check_type};
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::{Activation, Mlp, Side};

/// The architecture of a [`DeformableDetr`].
#[derive(Clone, Debug, PartialEq)]
pub struct DeformableDetrConfig {
    /// The convolutions that compute features of an image.
    pub encoder_of_images: ResnetConfig,
    /// The stages, counted from 1, whose features are read. 0 stands for the features before the first stage.
    pub outputs: Vec<usize>,
    /// The number of levels of features, at least the number of stages. Convolutions compute the other levels.
    pub num_feature_levels: usize,
    /// The features in the blocks.
    pub d_model: usize,
    /// The blocks that read the features of an image.
    pub encoder: Side,
    /// The blocks that compute objects.
    pub decoder: Side,
    /// The numbers of places in each level to which a place of the image and an object attend.
    pub points: [usize; 2],
    /// The number of objects in an image.
    pub num_queries: usize,
    /// The activation of the MLPs.
    pub activation_function: Activation,
    /// True if each block corrects the boxes of the block before.
    pub with_box_refine: bool,
    /// True if objects begin at the places of the image with the best scores, instead of learned places.
    pub two_stage: bool,
    /// The number of classes.
    pub classes: usize,
}

/// Deformable DETR ([Zhu et al. 2020](https://arxiv.org/abs/2010.04159)) with a ResNet. The model type is `deformable_detr`.
///
/// You can pass images of any size, `[batch, rows, columns, channels]`. Dimensions are named `embed`, `heads` and `mlp`, see [`Rules`].
#[derive(Module, Clone, Debug)]
pub struct DeformableDetr {
    image: Resnet,
    levels: Vec<Level>,
    /// `[levels, features]`: the learned part of the positions in each level.
    level_positions: Array,
    encoder: Vec<EncoderBlock>,
    start: Start,
    decoder: Vec<DecoderBlock>,
    /// The classes of objects. There is a layer for each block, and one for places of the image, if objects begin at such places.
    classes: Vec<Linear>,
    /// The boxes of objects. There is one for each block if blocks correct boxes, and one for places of the image.
    boxes: Vec<BoxLayers>,
    #[tree(static)]
    outputs: Vec<usize>,
    with_box_refine: bool,
}

/// Computes the features of a level, from a stage of the image or from the level before.
#[derive(Module, Clone, Debug)]
pub(super) struct Level {
    conv: Conv,
    norm: GroupNorm,
}

/// The layers that compute boxes.
#[derive(Module, Clone, Debug)]
pub(super) struct BoxLayers {
    pub layers: Vec<Linear>,
}

/// The first features and places of objects.
#[derive(Module, Clone, Debug)]
struct Start {
    /// `[objects, 2 * features]`: learned positions, and learned features.
    objects: Option<Array>,
    /// Computes points from learned positions.
    points: Option<Linear>,
    proposals: Option<Proposals>,
}

/// Chooses places of the image as the first places of objects.
#[derive(Module, Clone, Debug)]
struct Proposals {
    layer: Linear,
    norm: LayerNorm,
    positions: Linear,
    positions_norm: LayerNorm,
    count: usize,
}

/// A block whose places attend to places near them.
#[derive(Module, Clone, Debug)]
pub(super) struct EncoderBlock {
    attention: DeformableAttention,
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
}

/// Added to the variance in norms.
const NORM_EPSILON: f64 = 1e-5;

/// The groups of features that the norms of levels normalize.
pub(super) const GROUPS: usize = 32;

/// The factor of distances from the center of a box, in extents of the box.
pub(super) const OFFSET_SCALE: f64 = 0.5;

/// The base of the frequencies of positions of boxes.
const POSITION_BASE: f64 = 10_000.0;

impl Pretrained for DeformableDetr {
    type Architecture = DeformableDetrConfig;

    fn read(config: &Config) -> Result<(DeformableDetrConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "deformable_detr")?;
        if let Some(name) = fields.class()?
            && !name.ends_with("ForObjectDetection")
        {
            return Err(fields.error(format!("the class {name:?} of `architectures` is not supported")));
        }
        let images = image_encoder(&fields)?;
        let [encoder, decoder] = Side::read_both(&fields)?;
        let two_stage = fields.flag("two_stage")?;
        let read = DeformableDetrConfig {
            encoder_of_images: images.config,
            num_feature_levels: fields.size("num_feature_levels")?,
            outputs: images.outputs,
            d_model: fields.size("d_model")?,
            encoder,
            decoder,
            points: [fields.size("encoder_n_points")?, fields.size("decoder_n_points")?],
            num_queries: fields.size(if two_stage { "two_stage_num_proposals" } else { "num_queries" })?,
            activation_function: fields.activation("activation_function")?,
            with_box_refine: fields.flag("with_box_refine")?,
            two_stage,
            classes: classes_of(&fields)?,
        };
        check(&fields, &read)?;
        fields.finish()?;
        let keys = keys(&read).and(images.keys);
        Ok((read, keys))
    }

    fn make(config: &DeformableDetrConfig, rngs: &mut Rngs) -> Result<Self> {
        let features = config.d_model;
        let sizes = DeformableSizes {
            features,
            side: config.encoder,
            levels: [config.num_feature_levels, config.points[0]],
            activation: config.activation_function,
            epsilon: NORM_EPSILON,
        };
        Ok(DeformableDetr {
            image: Resnet::make(&config.encoder_of_images, rngs)?,
            levels: Level::all(&stage_features(config), [features, config.num_feature_levels], rngs),
            level_positions: small_normal(&[config.num_feature_levels, features], rngs),
            encoder: (0..config.encoder.layers).map(|_| EncoderBlock::new(&sizes, rngs)).collect(),
            start: Start::new(config, rngs),
            decoder: (0..config.decoder.layers).map(|_| DecoderBlock::new(config, rngs)).collect(),
            classes: (0..config.class_layers()).map(|_| Linear::new(features, config.classes, rngs)).collect(),
            boxes: (0..config.box_layers())
                .map(|_| BoxLayers {
                    layers: [features, features, 4].map(|outputs| Linear::new(features, outputs, rngs)).into(),
                })
                .collect(),
            outputs: config.outputs.clone(),
            with_box_refine: config.with_box_refine,
        })
    }

    fn extents(config: &DeformableDetrConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (layers, mut matrices) = Resnet::extents(&config.encoder_of_images);
        let (features, heads) = (config.d_model, config.encoder.heads.max(config.decoder.heads));
        let points = config.points[0].max(config.points[1]).saturating_mul(config.num_feature_levels).saturating_mul(2);
        let positions = features.saturating_mul(if config.two_stage { 2 } else { 1 });
        matrices.push(("query kernel", features, positions));
        matrices.push(("MLP kernel", features, config.encoder.hidden.max(config.decoder.hidden)));
        matrices.push(("kernel of places", features, heads.saturating_mul(points)));
        matrices.push(("table of objects", if config.two_stage { 0 } else { config.num_queries }, features));
        matrices.push(("table of levels", config.num_feature_levels, features));
        matrices.push(("table of classes", config.classes, features));
        (layers.saturating_add(config.encoder.layers).saturating_add(config.decoder.layers), matrices)
    }
}

impl DeformableDetrConfig {
    /// The number of layers for classes.
    fn class_layers(&self) -> usize {
        if self.two_stage { self.decoder.layers + 1 } else { 1 }
    }

    /// The number of layers for boxes.
    fn box_layers(&self) -> usize {
        match (self.with_box_refine, self.two_stage) {
            (false, _) => 1,
            (true, false) => self.decoder.layers,
            (true, true) => self.decoder.layers + 1,
        }
    }
}

/// Returns an error if fields do not fit each other, and marks fields as read that have no effect.
fn check(fields: &Fields, config: &DeformableDetrConfig) -> Result<()> {
    check_and_skip(fields, config.d_model)?;
    if !config.d_model.is_multiple_of(GROUPS) {
        let message = format!("`d_model` is {}, but norms need a multiple of {GROUPS}", config.d_model);
        return Err(fields.error(message));
    }
    if config.outputs.len() > config.num_feature_levels || config.num_feature_levels > 64 {
        let message = format!(
            "`num_feature_levels` is {}, but must be at least the number of stages, which is {}, and at most 64",
            config.num_feature_levels,
            config.outputs.len()
        );
        return Err(fields.error(message));
    }
    if config.two_stage && !config.with_box_refine {
        return Err(fields.error("`two_stage` is true, but `with_box_refine` is false, which transformers rejects"));
    }
    // Numbers for training, and numbers of objects of the other form.
    fields.skip(&["return_intermediate", "disable_custom_kernels", "num_queries"]);
    fields.skip(&["two_stage_num_proposals", "tie_word_embeddings"]);
    Ok(())
}

/// Returns the names of the arrays, without the names of the convolutions.
fn keys(config: &DeformableDetrConfig) -> KeyMap {
    let keys = KeyMap::new()
        .array("level_positions", "model.level_embed", Layout::Same)
        .array("start.objects", "model.query_position_embeddings.weight", Layout::Same)
        .linear("start.points", "model.reference_points")
        .linear("start.proposals.layer", "model.enc_output")
        .norm("start.proposals.norm", "model.enc_output_norm")
        .linear("start.proposals.positions", "model.pos_trans")
        .norm("start.proposals.positions_norm", "model.pos_trans_norm")
        .conv("levels[*].conv", "model.input_proj.*.0")
        .norm("levels[*].norm", "model.input_proj.*.1");
    let mut keys = head_keys(keys, config);
    let parts = [("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "out_proj")];
    for (part, name) in parts {
        keys =
            keys.linear(&format!("decoder[*].attention.{part}"), &format!("model.decoder.layers.*.self_attn.{name}"));
    }
    let parts = [
        ("offsets", "sampling_offsets"),
        ("scores", "attention_weights"),
        ("value", "value_proj"),
        ("out", "output_proj"),
    ];
    for (part, name) in parts {
        keys = keys
            .linear(&format!("encoder[*].attention.{part}"), &format!("model.encoder.layers.*.self_attn.{name}"))
            .linear(&format!("decoder[*].cross.{part}"), &format!("model.decoder.layers.*.encoder_attn.{name}"));
    }
    ["encoder", "decoder"].into_iter().fold(keys, |keys, stage| {
        let (path, layer) = (format!("{stage}[*]"), format!("model.{stage}.layers.*"));
        keys.norm(&format!("{path}.norm"), &format!("{layer}.self_attn_layer_norm"))
            .norm(&format!("{path}.cross_norm"), &format!("{layer}.encoder_attn_layer_norm"))
            .norm(&format!("{path}.mlp_norm"), &format!("{layer}.final_layer_norm"))
            .linear(&format!("{path}.mlp.up"), &format!("{layer}.fc1"))
            .linear(&format!("{path}.mlp.down"), &format!("{layer}.fc2"))
    })
}

/// Adds the names of the layers for classes and boxes.
///
/// The layers of all blocks are copies of one layer where blocks do not depend on them. Files can have all copies, of which only the
/// last one has an effect on the results.
fn head_keys(keys: KeyMap, config: &DeformableDetrConfig) -> KeyMap {
    let last = config.decoder.layers.saturating_sub(1);
    let parts = [".weight", ".bias"];
    let keys = if config.two_stage {
        keys.linear("classes[*]", "model.decoder.class_embed.*")
            .prefix_alias("model.decoder.class_embed.", "class_embed.")
    } else {
        parts.into_iter().fold(keys.linear("classes[0]", "class_embed.0"), |keys, part| {
            keys.preferred(&format!("class_embed.0{part}"), &format!("class_embed.{last}{part}"))
        })
    };
    let keys = (0..3).fold(keys, |keys, index| match config.with_box_refine {
        true => {
            keys.linear(&format!("boxes[*].layers[{index}]"), &format!("model.decoder.bbox_embed.*.layers.{index}"))
        }
        false => {
            let name = |number: usize| format!("bbox_embed.{number}.layers.{index}");
            parts.into_iter().fold(keys.linear(&format!("boxes[0].layers[{index}]"), &name(0)), |keys, part| {
                keys.preferred(&format!("{}{part}", name(0)), &format!("{}{part}", name(last)))
            })
        }
    });
    let keys =
        if config.with_box_refine { keys.prefix_alias("model.decoder.bbox_embed.", "bbox_embed.") } else { keys };
    keys.ignore("class_embed.**").ignore("bbox_embed.**")
}

/// Returns the features of the stages of the image that are read.
fn stage_features(config: &DeformableDetrConfig) -> Vec<usize> {
    let images = &config.encoder_of_images;
    let features = config.outputs.iter().map(|stage| match stage {
        0 => images.embedding_size,
        _ => images.hidden_sizes[stage - 1],
    });
    features.collect()
}

impl Level {
    /// Creates `count` levels of this number of features, which read stages with these features. Levels without a stage read the
    /// level before them, and the first of them reads the last stage.
    pub fn all(stages: &[usize], [features, count]: [usize; 2], rngs: &mut Rngs) -> Vec<Level> {
        let layers = (0..count).map(|level| {
            let conv = match stages.get(level) {
                Some(before) => Conv::builder(*before, features, [1, 1]),
                None => {
                    let before = if level == stages.len() { stages.last() } else { None };
                    let conv = Conv::builder(before.copied().unwrap_or(features), features, [3, 3]);
                    conv.strides([2, 2]).padding(vec![(1, 1), (1, 1)])
                }
            };
            let norm = GroupNorm::builder(features, GROUPS).epsilon(NORM_EPSILON);
            Level { conv: conv.build(rngs), norm: norm.build(rngs) }
        });
        layers.collect()
    }

    /// Computes the features of all levels, `[batch, rows, columns, features]`.
    pub fn outputs(levels: &[Level], stages: &[Array]) -> Result<Vec<Array>> {
        let mut outputs: Vec<Array> = Vec::with_capacity(levels.len());
        for (index, level) in levels.iter().enumerate() {
            let input = match stages.get(index) {
                Some(stage) => Some(stage),
                None if index == stages.len() => stages.last(),
                None => outputs.last(),
            };
            let Some(input) = input else { break };
            let x = level.norm.forward(level.conv.forward(input));
            x.check()?;
            if x.size() == 0 {
                return Err(value_error("a level of the image has no pixels", "pass larger images"));
            }
            outputs.push(x);
        }
        Ok(outputs)
    }
}

/// The sizes of an [`EncoderBlock`].
pub(super) struct DeformableSizes {
    pub features: usize,
    pub side: Side,
    /// The number of levels, and of places in each level to which a place attends.
    pub levels: [usize; 2],
    pub activation: Activation,
    pub epsilon: f64,
}

impl EncoderBlock {
    pub fn new(sizes: &DeformableSizes, rngs: &mut Rngs) -> EncoderBlock {
        let (features, side) = (sizes.features, &sizes.side);
        let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(sizes.epsilon).build(rngs);
        EncoderBlock {
            attention: DeformableAttention::new([features, side.heads], sizes.levels, OFFSET_SCALE, rngs),
            norm: norm(rngs),
            mlp: Mlp::new(features, side.hidden, sizes.activation, false, true, rngs),
            mlp_norm: norm(rngs),
        }
    }

    /// Applies the block to the features of all places, `[batch, places, features]`, which attend to places near them.
    pub fn forward(&self, x: Array, positions: &Array, points: &Array, grids: &[[usize; 2]]) -> Array {
        let y = self.attention.forward(&(&x + positions), points, &x, grids);
        let x = self.norm.forward(x + y);
        self.mlp_norm.forward(&x + self.mlp.forward(&x))
    }
}

impl DecoderBlock {
    fn new(config: &DeformableDetrConfig, rngs: &mut Rngs) -> DecoderBlock {
        let (features, side) = (config.d_model, &config.decoder);
        let levels = [config.num_feature_levels, config.points[1]];
        DecoderBlock {
            attention: attention(side.heads, features).build(rngs),
            norm: norm(features, rngs),
            cross: DeformableAttention::new([features, side.heads], levels, OFFSET_SCALE, rngs),
            cross_norm: norm(features, rngs),
            mlp: Mlp::new(features, side.hidden, config.activation_function, false, true, rngs),
            mlp_norm: norm(features, rngs),
        }
    }

    /// Applies the block to the features of objects, `[batch, objects, features]`, with points or boxes.
    fn forward(&self, x: Array, positions: &Array, places: &Array, memory: &Array, grids: &[[usize; 2]]) -> Array {
        let placed = &x + positions;
        let x = self.norm.forward(&x + self.attention.attend(&placed, &placed, &x, AttentionOptions::new()));
        let y = self.cross.forward(&(&x + positions), places, memory, grids);
        let x = self.cross_norm.forward(x + y);
        self.mlp_norm.forward(&x + self.mlp.forward(&x))
    }
}

fn norm(features: usize, rngs: &mut Rngs) -> LayerNorm {
    LayerNorm::builder(features).epsilon(NORM_EPSILON).build(rngs)
}

impl Start {
    fn new(config: &DeformableDetrConfig, rngs: &mut Rngs) -> Start {
        let features = config.d_model;
        let wide = features.saturating_mul(2);
        let is_learned = !config.two_stage;
        Start {
            objects: is_learned.then(|| small_normal(&[config.num_queries, wide], rngs)),
            points: is_learned.then(|| Linear::new(features, 2, rngs)),
            proposals: config.two_stage.then(|| Proposals {
                layer: Linear::new(features, features, rngs),
                norm: norm(features, rngs),
                positions: Linear::new(wide, wide, rngs),
                positions_norm: norm(wide, rngs),
                count: config.num_queries,
            }),
        }
    }
}

impl Proposals {
    /// Chooses the places with the best scores of the first class. Returns their boxes, and positions and first features of objects,
    /// `[batch, objects, 2 * features]`.
    fn choose(
        &self,
        memory: &Array,
        grids: &[[usize; 2]],
        classes: &Linear,
        boxes: &BoxLayers,
    ) -> Result<(Array, Array)> {
        let &[batch, places, features] = memory.shape() else { return Ok((memory.clone(), memory.clone())) };
        if places < self.count {
            let message =
                format!("DeformableDetr: the images have {places} places, which are less than {} objects", self.count);
            return Err(value_error(message, "use larger images"));
        }
        let (anchors, is_valid) = anchors(grids)?;
        let x = self.norm.forward(self.layer.forward(memory * is_valid.astype(memory.dtype())));
        let scores = classes.forward(&x).get((Ellipsis, 0));
        let all = mlp(&boxes.layers, x).astype(DType::F32) + anchors;
        let (_, chosen) = lax::top_k(&scores, self.count);
        let chosen = chosen.expand_dims(-1).broadcast_to([batch, self.count, 4]);
        let chosen = sigmoid(all.take_along_axis(chosen, 1));
        let positions = box_positions(&chosen, features / 2)?.astype(memory.dtype());
        let positions = self.positions_norm.forward(self.positions.forward(positions));
        Ok((chosen.astype(memory.dtype()), positions))
    }
}

/// Returns the sines and cosines of the numbers of boxes or points, `[batch, objects, numbers * features]`. Neighboring features are a
/// sine and a cosine.
pub(super) fn box_positions(boxes: &Array, features: usize) -> Result<Array> {
    let &[batch, objects, numbers] = boxes.shape() else { return Ok(boxes.clone()) };
    let speeds =
        (0..features / 2).map(|pair| (TAU * POSITION_BASE.powf(-((2 * pair) as f64) / features as f64)) as f32);
    let speeds = Array::from_vec(speeds.collect::<Vec<f32>>(), &[features / 2])?;
    let angles = boxes.expand_dims(-1) * speeds;
    let waves = stack(&[angles.sin(), angles.cos()], -1);
    Ok(waves.reshape([batch, objects, numbers * features]))
}

/// Returns the centers of all places, `[1, places, 2]`: the column and the row, as shares of the image.
pub(super) fn centers(grids: &[[usize; 2]]) -> Result<Array> {
    let points = grids.iter().flat_map(|&[rows, columns]| {
        let of_size = |index: usize, size: usize| (index as f32 + 0.5) / size as f32;
        (0..rows * columns).flat_map(move |place| [of_size(place % columns, columns), of_size(place / columns, rows)])
    });
    let points: Vec<f32> = points.collect();
    let shape = [1, points.len() / 2, 2];
    Array::from_vec(points, &shape)
}

impl DeformableDetr {
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
        let stages = self.image.outputs(images)?;
        let stages: Vec<Array> = self.outputs.iter().map(|stage| stages[*stage].clone()).collect();
        let levels = Level::outputs(&self.levels, &stages)?;
        let grids: Vec<[usize; 2]> = levels.iter().map(|x| [x.shape()[1], x.shape()[2]]).collect();
        let positions = grids.iter().enumerate().map(|(level, grid)| {
            let of_level = self.level_positions.get(level);
            Ok(sines(*grid, of_level.size(), 0.5)?.astype(of_level.dtype()) + of_level)
        });
        let positions = concatenate(&positions.collect::<Result<Vec<_>>>()?, 0);
        let x = concatenate(&levels.iter().map(flattened).collect::<Vec<_>>(), 1);
        let (positions, points) = (positions.astype(x.dtype()), centers(&grids)?.astype(x.dtype()));
        let memory = self.encoder.iter().fold(x, |x, block| block.forward(x, &positions, &points, &grids));
        let (mut places, objects) = self.first_objects(&memory, &grids)?;
        let features = memory.shape()[2];
        let (positions, mut x) = (objects.get((Ellipsis, ..features)), objects.get((Ellipsis, features..)));
        for (index, block) in self.decoder.iter().enumerate() {
            x = block.forward(x, &positions, &places, &memory, &grids);
            if self.with_box_refine || index + 1 == self.decoder.len() {
                let layers = &self.boxes[if self.with_box_refine { index } else { 0 }].layers;
                places = corrected(&places, mlp(layers, x.clone()));
            }
        }
        // If there is a layer for each block, the last one is for places of the image.
        let classes = self.classes.len().saturating_sub(2);
        Ok((self.classes[classes].forward(x), places))
    }

    /// Returns the first points or boxes of objects, and their positions and features, `[batch, objects, 2 * features]`.
    fn first_objects(&self, memory: &Array, grids: &[[usize; 2]]) -> Result<(Array, Array)> {
        let (batch, features) = (memory.shape()[0], memory.shape()[2]);
        match (&self.start.objects, &self.start.points, &self.start.proposals) {
            (Some(objects), Some(points), _) => {
                let objects = objects.astype(memory.dtype());
                let points = sigmoid(points.forward(objects.get((.., ..features))));
                let for_each = |x: Array| x.expand_dims(0).broadcast_to([batch, x.shape()[0], x.shape()[1]]);
                Ok((for_each(points), for_each(objects)))
            }
            (_, _, Some(proposals)) => {
                let last = self.classes.len() - 1;
                proposals.choose(memory, grids, &self.classes[last], &self.boxes[last])
            }
            _ => Ok((memory.clone(), memory.clone())),
        }
    }
}

/// Adds corrections to points or boxes, before the sigmoid. The result are boxes.
pub(super) fn corrected(places: &Array, corrections: Array) -> Array {
    let places = log_odds(places);
    if places.shape()[2] == 4 {
        return sigmoid(corrections + places);
    }
    let centers = corrections.get((Ellipsis, ..2)) + places;
    sigmoid(concatenate(&[centers, corrections.get((Ellipsis, 2..))], -1))
}
