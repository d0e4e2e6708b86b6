//! DETR and Table Transformer, which detect objects.

use shardax_nn::prelude::*;

use super::depth::layers;
use super::fields::Fields;
use super::vision::{classes_of, conv_norm_keys, stage_keys};
use super::{Config, KeyMap, Layout, Pretrained, Resnet, ResnetConfig, attention, known_type, resnet};
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::reshard_like;
use crate::{Activation, Mlp, Side};

/// The architecture of a [`Detr`].
#[derive(Clone, Debug, PartialEq)]
pub struct DetrConfig {
    /// The convolutions that compute features of an image.
    pub encoder_of_images: ResnetConfig,
    /// The features in the blocks.
    pub d_model: usize,
    /// The blocks that read the features of an image.
    pub encoder: Side,
    /// The blocks that compute objects.
    pub decoder: Side,
    /// The number of objects in an image.
    pub num_queries: usize,
    /// The activation of the MLPs.
    pub activation_function: Activation,
    /// True if blocks normalize their inputs, as in Table Transformer. Otherwise they normalize sums.
    pub pre_norms: bool,
    /// The number of classes.
    pub classes: usize,
}

/// DETR ([Carion et al. 2020](https://arxiv.org/abs/2005.12872)) or Table Transformer ([Smock et al.
/// 2021](https://arxiv.org/abs/2110.00061)) with a ResNet. The model type is `detr` or `table-transformer`.
///
/// You can pass images of any size, `[batch, rows, columns, channels]`. Dimensions are named `embed`, `heads` and `mlp`, see [`Rules`].
#[derive(Module, Clone, Debug)]
pub struct Detr {
    image: Resnet,
    projection: Conv,
    encoder: Vec<Block>,
    /// Normalizes the output of the encoder.
    encoder_norm: Option<LayerNorm>,
    /// `[objects, features]`: the learned positions of the objects.
    objects: Array,
    decoder: Vec<Block>,
    decoder_norm: LayerNorm,
    classes: Linear,
    /// The layers that compute boxes.
    boxes: Vec<Linear>,
    pre_norms: bool,
}

#[derive(Module, Clone, Debug)]
pub(super) struct Block {
    attention: MultiHeadAttention,
    norm: LayerNorm,
    /// Attention to the image, in the decoder.
    cross: Option<MultiHeadAttention>,
    cross_norm: Option<LayerNorm>,
    mlp: Mlp,
    mlp_norm: LayerNorm,
}

/// The supported model types.
pub(super) const KNOWN: [&str; 2] = ["detr", "table-transformer"];

/// The part of the names that convolutions share.
const IMAGE: &str = "model.backbone.conv_encoder.model";

impl Pretrained for Detr {
    type Architecture = DetrConfig;

    fn read(config: &Config) -> Result<(DetrConfig, KeyMap)> {
        let (read, image_keys) = read_fields(config, &KNOWN)?;
        let keys = keys(&read).and(image_keys);
        Ok((read, keys))
    }

    fn make(config: &DetrConfig, rngs: &mut Rngs) -> Result<Self> {
        let features = config.d_model;
        let last = config.encoder_of_images.hidden_sizes.last().copied().unwrap_or(1);
        let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(NORM_EPSILON).build(rngs);
        // A class more means that there is no object.
        let classes = config.classes.saturating_add(1);
        Ok(Detr {
            image: Resnet::make(&config.encoder_of_images, rngs)?,
            projection: Conv::new(last, features, [1, 1], rngs),
            encoder: (0..config.encoder.layers).map(|_| Block::new(config, &config.encoder, false, rngs)).collect(),
            encoder_norm: config.pre_norms.then(|| norm(rngs)),
            objects: zeros_dtype([config.num_queries, features], rngs.policy().param_dtype),
            decoder: (0..config.decoder.layers).map(|_| Block::new(config, &config.decoder, true, rngs)).collect(),
            decoder_norm: norm(rngs),
            classes: Linear::new(features, classes, rngs),
            boxes: [features, features, 4].map(|outputs| Linear::new(features, outputs, rngs)).into(),
            pre_norms: config.pre_norms,
        })
    }

    fn extents(config: &DetrConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        extents(config)
    }
}

/// Added to the variance in norms.
pub(super) const NORM_EPSILON: f64 = 1e-5;

/// Reads the fields of a model of one of these types. Also returns the names of the arrays of its ResNet.
pub(super) fn read_fields(config: &Config, known: &[&str]) -> Result<(DetrConfig, KeyMap)> {
    let fields = config.fields();
    let kind = known_type(&fields, known)?;
    if let Some(name) = fields.class()?
        && !name.ends_with("ForObjectDetection")
    {
        return Err(fields.error(format!("the class {name:?} of `architectures` is not supported")));
    }
    let images = image_encoder(&fields)?;
    let count = images.config.hidden_sizes.len();
    if images.outputs.last() != Some(&count) {
        let message = format!("`out_indices` or `out_features` must end with the last of the {count} stages");
        return Err(fields.error(message));
    }
    let [encoder, decoder] = Side::read_both(&fields)?;
    let read = DetrConfig {
        encoder_of_images: images.config,
        d_model: fields.size("d_model")?,
        encoder,
        decoder,
        num_queries: fields.size("num_queries")?,
        activation_function: fields.activation("activation_function")?,
        pre_norms: kind == "table-transformer",
        classes: classes_of(&fields)?,
    };
    check_and_skip(&fields, read.d_model)?;
    fields.finish()?;
    Ok((read, images.keys))
}

/// Returns the number of blocks and the sizes of the largest matrices.
pub(super) fn extents(config: &DetrConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
    let (layers, mut matrices) = Resnet::extents(&config.encoder_of_images);
    let features = config.d_model;
    matrices.push(("query kernel", features, features));
    matrices.push(("MLP kernel", features, config.encoder.hidden.max(config.decoder.hidden)));
    matrices.push(("table of objects", config.num_queries, features));
    matrices.push(("table of classes", config.classes, features));
    (layers.saturating_add(config.encoder.layers).saturating_add(config.decoder.layers), matrices)
}

/// The ResNet of a model that detects objects.
pub(super) struct ImageEncoder {
    pub config: ResnetConfig,
    /// The names of its arrays.
    pub keys: KeyMap,
    /// The stages, counted from 1, whose features the model reads. 0 stands for the features before the first stage.
    pub outputs: Vec<usize>,
}

/// Reads the ResNet, either from an object or by its name in the library `timm`.
pub(super) fn image_encoder(fields: &Fields) -> Result<ImageEncoder> {
    let about = fields.object_opt("backbone_config")?;
    if let Some(about) = about.as_ref().filter(|about| !about.has_type("timm_backbone")) {
        super::check_type(about, "resnet")?;
        let read = resnet::read_fields(about)?;
        let config = ResnetConfig { stages: super::StagedConfig { classes: None, ..read.stages }, ..read };
        let outputs = layers(about, config.hidden_sizes.len())?;
        about.finish()?;
        fields.skip(&["use_timm_backbone", "backbone", "backbone_kwargs", "use_pretrained_backbone", "num_channels"]);
        let keys = resnet::keys(&config).inside("image.", &format!("{IMAGE}."));
        return Ok(ImageEncoder { config, keys, outputs });
    }
    let (name, channels) = match &about {
        Some(about) => {
            about.skip(&["features_only", "use_pretrained_backbone", "out_indices", "out_features"]);
            about.skip(&["stage_names", "freeze_batch_norm_2d"]);
            let read = (about.text("backbone")?, about.size("num_channels")?);
            about.finish()?;
            read
        }
        None => (fields.text_opt("backbone")?.unwrap_or("resnet50"), fields.size("num_channels")?),
    };
    fields.skip(&["use_timm_backbone", "backbone", "backbone_kwargs", "use_pretrained_backbone", "num_channels"]);
    let config = resnet::named(name, channels)
        .ok_or_else(|| fields.error(format!("the `backbone` {name:?} is not supported")))?;
    let keys = timm_keys(&config);
    let outputs = match &about {
        Some(about) if about.has("out_indices") => layers(about, config.hidden_sizes.len())?,
        // transformers chooses them.
        _ => vec![2, 3, 4],
    };
    Ok(ImageEncoder { config, keys, outputs })
}

/// Checks fields that a configuration with `features` features does not store, and marks fields as read that have no effect.
pub(super) fn check_and_skip(fields: &Fields, features: usize) -> Result<()> {
    for name in ["dilation", "auxiliary_loss"] {
        if fields.flag(name)? {
            return Err(fields.error(format!("field `{name}` is true, which is not supported")));
        }
    }
    match fields.text("position_embedding_type")? {
        "sine" => {}
        other => return Err(fields.error(format!("`position_embedding_type` {other:?} is not supported"))),
    }
    if !features.is_multiple_of(4) {
        return Err(fields.error("`d_model` must be a multiple of 4, because positions have sines of rows and columns"));
    }
    // Losses, dropped layers, initial values, and other names of these fields.
    fields.skip(&["cls_loss_coefficient", "focal_alpha"]);
    fields.skip(&["class_cost", "bbox_cost", "giou_cost", "mask_loss_coefficient", "dice_loss_coefficient"]);
    fields.skip(&["bbox_loss_coefficient", "giou_loss_coefficient", "eos_coefficient", "encoder_layerdrop"]);
    fields.skip(&["decoder_layerdrop", "init_xavier_std", "num_hidden_layers", "max_position_embeddings"]);
    fields.skip(&["classifier_dropout", "scale_embedding"]);
    Ok(())
}

/// Returns the names of the arrays, without the names of the convolutions.
pub(super) fn keys(config: &DetrConfig) -> KeyMap {
    let keys = KeyMap::new()
        .conv("projection", "model.input_projection")
        .array("objects", "model.query_position_embeddings.weight", Layout::Same)
        .norm("encoder_norm", "model.encoder.layernorm")
        .norm("decoder_norm", "model.decoder.layernorm")
        .linear("classes", "class_labels_classifier")
        .linear("boxes[*]", "bbox_predictor.layers.*");
    let parts = [("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "out_proj")];
    let keys = ["encoder", "decoder"].into_iter().fold(keys, |keys, stage| {
        let (path, layer) = (format!("{stage}[*]"), format!("model.{stage}.layers.*"));
        let keys = parts.into_iter().fold(keys, |keys, (part, name)| {
            keys.linear(&format!("{path}.attention.{part}"), &format!("{layer}.self_attn.{name}"))
                .linear(&format!("{path}.cross.{part}"), &format!("{layer}.encoder_attn.{name}"))
        });
        keys.norm(&format!("{path}.norm"), &format!("{layer}.self_attn_layer_norm"))
            .norm(&format!("{path}.cross_norm"), &format!("{layer}.encoder_attn_layer_norm"))
            .norm(&format!("{path}.mlp_norm"), &format!("{layer}.final_layer_norm"))
            .linear(&format!("{path}.mlp.up"), &format!("{layer}.fc1"))
            .linear(&format!("{path}.mlp.down"), &format!("{layer}.fc2"))
    });
    // Files of a model for segmentation are not read, and the names have no other prefix.
    if config.pre_norms { keys } else { keys.ignore("model.encoder.layernorm.**") }
}

/// Returns the names that the library `timm` has for the arrays of a ResNet.
fn timm_keys(config: &ResnetConfig) -> KeyMap {
    let keys = conv_norm_keys(KeyMap::new(), "image.first", IMAGE, ["conv1", "bn1"]);
    let layers = if config.is_bottleneck { 3 } else { 2 };
    stage_keys(keys, config.hidden_sizes.len(), |keys, path, stage| {
        let (path, block) = (format!("image.{path}.blocks[*]"), format!("{IMAGE}.layer{}.*", stage + 1));
        let keys = conv_norm_keys(keys, &format!("{path}.shortcut"), &format!("{block}.downsample"), ["0", "1"]);
        (1..=layers).fold(keys, |keys, number| {
            let parts = [format!("conv{number}"), format!("bn{number}")];
            let path = format!("{path}.layers[{}]", number - 1);
            conv_norm_keys(keys, &path, &block, parts.each_ref().map(String::as_str))
        })
    })
}

impl Block {
    pub fn new(config: &DetrConfig, side: &Side, has_cross: bool, rngs: &mut Rngs) -> Block {
        let features = config.d_model;
        let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(NORM_EPSILON).build(rngs);
        Block {
            attention: attention(side.heads, features).build(rngs),
            norm: norm(rngs),
            cross: has_cross.then(|| attention(side.heads, features).build(rngs)),
            cross_norm: has_cross.then(|| norm(rngs)),
            mlp: Mlp::new(features, side.hidden, config.activation_function, false, true, rngs),
            mlp_norm: norm(rngs),
        }
    }

    /// Applies the block to `x`, `[batch, length, features]`, at these places, which are added to the inputs of queries and keys, but
    /// not of values. `image` has the features of an image and their places.
    pub fn forward(&self, x: Array, places: &Array, image: Option<(&Array, &Array)>, pre_norms: bool) -> Array {
        let x = added(&self.norm, x, pre_norms, |x| {
            let placed = x + places;
            self.attention.attend(&placed, &placed, x, AttentionOptions::new())
        });
        let x = match (&self.cross, &self.cross_norm, image) {
            (Some(cross), Some(norm), Some((image, image_places))) => added(norm, x, pre_norms, |x| {
                cross.attend(x + places, image + image_places, image, AttentionOptions::new())
            }),
            _ => x,
        };
        added(&self.mlp_norm, x, pre_norms, |x| self.mlp.forward(x))
    }
}

/// Adds the result of a layer to its input, and normalizes either the input of the layer or the sum.
fn added(norm: &LayerNorm, x: Array, pre_norms: bool, layer: impl FnOnce(&Array) -> Array) -> Array {
    if pre_norms {
        let y = layer(&norm.forward(&x));
        x + y
    } else {
        let y = layer(&x);
        norm.forward(x + y)
    }
}

/// Returns the places of a grid, `[rows * columns, features]`. The first half of the features are sines and cosines of the row, and the
/// second half of the column, both between 0 and one turn. `first` is the place of the first row and column.
pub(super) fn sines(grid: [usize; 2], features: usize, first: f64) -> Result<Array> {
    sines_with_base(grid, features, first, 10_000.0)
}

/// Returns the places of a grid like [`sines`]. The frequencies are between 1 and 1 divided by `base`.
pub(super) fn sines_with_base([rows, columns]: [usize; 2], features: usize, first: f64, base: f64) -> Result<Array> {
    let half = features / 2;
    let speeds: Vec<f64> = (0..half).map(|index| base.powf(-((index / 2 * 2) as f64) / half as f64)).collect();
    let mut places = Vec::with_capacity(rows * columns * features);
    for place in 0..rows * columns {
        for (index, count) in [(place / columns, rows), (place % columns, columns)] {
            let turn = (index as f64 + first) / (count as f64 + 1e-6) * std::f64::consts::TAU;
            let waves = speeds.iter().enumerate().map(|(index, speed)| match index % 2 {
                0 => (turn * speed).sin() as f32,
                _ => (turn * speed).cos() as f32,
            });
            places.extend(waves);
        }
    }
    Array::from_vec(places, &[rows * columns, features])
}

impl Detr {
    /// Detects objects in images `[batch, rows, columns, channels]`. Returns logits, `[batch, objects, classes + 1]`, and
    /// boxes, `[batch, objects, 4]`. The last class means that there is no object. A box is the column and row of the center, and the
    /// number of columns and rows, as fractions of the image. All images of a batch must have one size, because padding is not masked.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> (Array, Array) {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        let x = self.try_encode(&images).unwrap_or_else(|error| Array::from_error(error, &images));
        if x.check().is_err() {
            return (x.clone(), x);
        }
        let boxes = self.boxes.iter().enumerate().fold(x.clone(), |x, (index, layer)| {
            let x = if index == 0 { x } else { relu(x) };
            layer.forward(x)
        });
        (self.classes.forward(x), sigmoid(boxes))
    }

    /// Computes features of objects, `[batch, objects, features]`.
    fn try_encode(&self, images: &Array) -> Result<Array> {
        let x = self.image.encode(images);
        x.check()?;
        let x = self.projection.forward(x);
        let &[batch, rows, columns, features] = x.shape() else { return Ok(x) };
        if rows == 0 || columns == 0 {
            return Err(value_error("Detr: the images have no pixels", "pass larger images"));
        }
        let places = sines([rows, columns], features, 1.0)?.astype(x.dtype());
        let x = x.reshape([batch, rows * columns, features]);
        let x = self.encoder.iter().fold(x, |x, block| block.forward(x, &places, None, self.pre_norms));
        let image = self.encoder_norm.iter().fold(x, |x, norm| norm.forward(x));
        let objects = self.objects.astype(image.dtype());
        let start = zeros_dtype([batch, objects.shape()[0], features], image.dtype());
        let start = reshard_like(start, &image);
        let x = self
            .decoder
            .iter()
            .fold(start, |x, block| block.forward(x, &objects, Some((&image, &places)), self.pre_norms));
        Ok(self.decoder_norm.forward(x))
    }
}
