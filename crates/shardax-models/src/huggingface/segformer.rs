//! SegFormer, an encoder of images with a head for the classes of pixels.

use shardax_nn::prelude::*;

use super::encoder::small_normal;
use super::fields::Fields;
use super::interpolation::linear_weights;
use super::patches::for_each_image;
use super::vision::{FrozenNorm, check_channels, frozen_norm_keys, skip_features_of_stages, stage_keys, stages};
use super::{Config, KeyMap, Layout, Pretrained, attention, known_type, remove_input_biases};
use crate::Activation;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;

/// The architecture of a [`Segformer`]. Lists have an entry for each stage.
#[derive(Clone, Debug, PartialEq)]
pub struct SegformerConfig {
    /// The number of color channels.
    pub num_channels: usize,
    /// The features.
    pub hidden_sizes: Vec<usize>,
    /// The numbers of blocks.
    pub depths: Vec<usize>,
    /// The numbers of attention heads.
    pub num_attention_heads: Vec<usize>,
    /// The rows and columns of the squares that keys and values are computed from.
    pub sr_ratios: Vec<usize>,
    /// The rows and columns of the first convolutions.
    pub patch_sizes: Vec<usize>,
    /// The distances of neighboring patches.
    pub strides: Vec<usize>,
    /// The features inside of MLPs.
    pub mlp_sizes: Vec<usize>,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
    /// Added to the variance in the norms of the encoder.
    pub layer_norm_eps: f64,
    /// True if the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The numbers of patches of all stages, if their positions are learned and MLPs have no convolutions, as in the first version of
    /// PVT. The last stage has an entry before its patches.
    pub learned_patches: Option<Vec<usize>>,
    /// The head.
    pub head: SegformerHead,
}

/// The head of a [`Segformer`]. The field `architectures` chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegformerHead {
    /// No head: the results are the features of the last stage.
    None,
    /// Logits for the classes of the image.
    Classes(usize),
    /// Logits for the classes of each patch of the first stage.
    Pixels {
        /// The number of classes.
        classes: usize,
        /// The features inside of the head.
        features: usize,
    },
}

/// SegFormer ([Xie et al. 2021](https://arxiv.org/abs/2105.15203)), or the second version of PVT, which has the same encoder ([Wang et al.
/// 2021](https://arxiv.org/abs/2106.13797)). Images can have any size, except in the first version of PVT ([Wang et al.
/// 2021](https://arxiv.org/abs/2102.12122)), which has learned positions.
#[derive(Module, Clone, Debug)]
pub struct Segformer {
    stages: Vec<Stage>,
    classifier: Option<Linear>,
    pixels: Option<PixelHead>,
}

#[derive(Module, Clone, Debug)]
struct Stage {
    patches: Conv,
    patch_norm: LayerNorm,
    /// `[1, 1, 1, features]`: the entry before the patches of the last stage.
    first: Option<Array>,
    /// `[1, patches, features]`
    positions: Option<Array>,
    blocks: Vec<Block>,
    norm: Option<LayerNorm>,
}

#[derive(Module, Clone, Debug)]
struct Block {
    norm: LayerNorm,
    attention: MultiHeadAttention,
    /// The convolution and the norm that compute the inputs of keys and values from squares of patches.
    reduction: Option<Conv>,
    reduction_norm: Option<LayerNorm>,
    mlp_norm: LayerNorm,
    up: Linear,
    conv: Option<Conv>,
    down: Linear,
    #[tree(static)]
    activation: Activation,
}

/// The head for the classes of pixels, which joins the features of all stages.
#[derive(Module, Clone, Debug)]
struct PixelHead {
    /// A layer for each stage.
    stages: Vec<Linear>,
    fuse: Conv,
    norm: FrozenNorm,
    classifier: Conv,
}

/// The supported model types.
pub(super) const KNOWN: [&str; 3] = ["segformer", PYRAMID, FIRST_PYRAMID];

/// The second version of PVT, whose arrays have other names.
const PYRAMID: &str = "pvt_v2";

/// The first version of PVT.
const FIRST_PYRAMID: &str = "pvt";

/// Added to the variance in norms of SegFormer. The class does not use the field `layer_norm_eps`.
const EPSILON: f64 = 1e-5;

impl Pretrained for Segformer {
    type Architecture = SegformerConfig;

    fn read(config: &Config) -> Result<(SegformerConfig, KeyMap)> {
        let fields = config.fields();
        let kind = known_type(&fields, &KNOWN)?;
        let read = read_encoder(&fields, kind, head(&fields)?)?;
        if kind != "segformer" && matches!(read.head, SegformerHead::Pixels { .. }) {
            return Err(fields.error("`architectures` names a head for pixels, which this model type does not have"));
        }
        // Sizes of the other head, and a number for training.
        fields.skip(&["semantic_loss_ignore_index", "decoder_hidden_size"]);
        fields.finish()?;
        let keys = match kind {
            PYRAMID => pyramid_keys(&read),
            FIRST_PYRAMID => first_pyramid_keys(&read),
            _ => keys(&read),
        };
        Ok((read, keys))
    }

    fn make(config: &SegformerConfig, rngs: &mut Rngs) -> Result<Self> {
        let last = config.hidden_sizes[config.hidden_sizes.len() - 1];
        let (classifier, pixels) = match config.head {
            SegformerHead::None => (None, None),
            SegformerHead::Classes(classes) => (Some(Linear::new(last, classes, rngs)), None),
            SegformerHead::Pixels { classes, features } => {
                (None, Some(PixelHead::new(&config.hidden_sizes, [features, classes], rngs)))
            }
        };
        let stages = (0..config.depths.len()).map(|stage| Stage::new(config, stage, rngs)).collect();
        Ok(Segformer { stages, classifier, pixels })
    }

    fn extents(config: &SegformerConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let mut matrices = Vec::new();
        let learned = config.learned_patches.iter().flatten().zip(&config.hidden_sizes);
        matrices.extend(learned.map(|(count, features)| ("position table", *count, *features)));
        for (stage, features) in config.hidden_sizes.iter().copied().enumerate() {
            let before = stage.checked_sub(1).map_or(config.num_channels, |before| config.hidden_sizes[before]);
            let [patch, square] =
                [config.patch_sizes[stage], config.sr_ratios[stage]].map(|size| size.saturating_mul(size));
            let square = if square > 1 { square } else { 0 };
            matrices.push(("MLP kernel", features, config.mlp_sizes[stage]));
            matrices.push(("patch", patch, before.saturating_mul(features)));
            matrices.push(("square", square, features.saturating_mul(features)));
        }
        let last = config.hidden_sizes.last().copied().unwrap_or(0);
        match config.head {
            SegformerHead::None => {}
            SegformerHead::Classes(classes) => matrices.push(("table of classes", classes, last)),
            SegformerHead::Pixels { classes, features } => {
                matrices.push(("table of classes", classes, features));
                matrices.push(("head", features, last.max(features)));
            }
        }
        (config.depths.iter().fold(0, |sum, depth| depth.saturating_add(sum)), matrices)
    }
}

/// Reads the fields of the stages, without the check of unknown fields.
pub(super) fn read_encoder(fields: &Fields, kind: &str, head: SegformerHead) -> Result<SegformerConfig> {
    let (is_pyramid, is_first) = (kind == PYRAMID, kind == FIRST_PYRAMID);
    let (hidden_sizes, depths) = stages(fields, "hidden_sizes")?;
    let count = fields.size("num_encoder_blocks")?;
    if count != depths.len() {
        return Err(fields.error(format!("`num_encoder_blocks` must be {}, the length of `depths`", depths.len())));
    }
    let list = |name| {
        let sizes = fields.size_list(name)?;
        if sizes.len() == count {
            Ok(sizes)
        } else {
            Err(fields.error(format!("`{name}` must have {count} entries, got {}", sizes.len())))
        }
    };
    let ratios = fields.numbers("mlp_ratios")?;
    if ratios.len() != count || ratios.iter().any(|ratio| !(*ratio > 0.0 && *ratio < 1e6)) {
        return Err(fields.error(format!("`mlp_ratios` must have {count} positive numbers")));
    }
    let mlp_sizes = hidden_sizes.iter().zip(ratios).map(|(features, ratio)| (*features as f64 * ratio) as usize);
    let read = SegformerConfig {
        num_channels: fields.size("num_channels")?,
        num_attention_heads: list("num_attention_heads")?,
        sr_ratios: list(if is_first { "sequence_reduction_ratios" } else { "sr_ratios" })?,
        // The class of the first version names them the other way round.
        patch_sizes: list(if is_first { "strides" } else { "patch_sizes" })?,
        strides: list(if is_first { "patch_sizes" } else { "strides" })?,
        mlp_sizes: mlp_sizes.collect(),
        hidden_act: fields.activation("hidden_act")?,
        layer_norm_eps: if is_pyramid || is_first { fields.number("layer_norm_eps")? } else { EPSILON },
        qkv_bias: !(is_pyramid || is_first) || fields.flag("qkv_bias")?,
        learned_patches: None,
        head,
        hidden_sizes,
        depths,
    };
    for (heads, features) in read.num_attention_heads.iter().zip(&read.hidden_sizes) {
        fields.divides(("num_attention_heads", *heads), ("hidden_sizes", *features))?;
    }
    if is_pyramid && fields.flag("linear_attention")? {
        return Err(fields.error("field `linear_attention` is true, which is not supported"));
    }
    let learned_patches = if is_first { Some(learned_patches(fields, &read)?) } else { None };
    skip_features_of_stages(fields);
    // Fields that the class does not use.
    fields.skip(&["layer_norm_eps", "downsampling_rates", "image_size", "reshape_last_stage"]);
    Ok(SegformerConfig { learned_patches, ..read })
}

/// Returns the numbers of patches of all stages, for which positions are learned.
fn learned_patches(fields: &Fields, config: &SegformerConfig) -> Result<Vec<usize>> {
    let size = fields.size("image_size")?;
    if config.sr_ratios.last() != Some(&1) {
        return Err(fields
            .error("`sequence_reduction_ratios` must end with 1, because the last stage has no square of patches"));
    }
    let counts = config.strides.iter().enumerate().map(|(stage, stride)| {
        // Each stage after the first one reads an image of half the size.
        let size = if stage == 0 { size } else { size.checked_shr(stage as u32 + 1).unwrap_or(0) };
        (size / stride).saturating_mul(size / stride)
    });
    let counts: Vec<usize> = counts.collect();
    if counts.contains(&0) {
        return Err(fields.error(format!("`image_size` is {size}, which is less than the patches of the stages")));
    }
    Ok(counts)
}

/// Returns the head that `architectures` names. The default is the head for classes of images.
fn head(fields: &Fields) -> Result<SegformerHead> {
    let name = fields.class()?.unwrap_or("ForImageClassification");
    let labels = fields.count_opt("id2label")?.filter(|count| *count > 0);
    // The number takes precedence in the first version of PVT, whose class has more classes than other classes by default.
    let classes = match fields.has_type(FIRST_PYRAMID) {
        true if labels.is_none() || fields.has("num_labels") => fields.size("num_labels")?,
        _ => labels.unwrap_or(2),
    };
    match name.rsplit_once("For").map_or(name, |(_, head)| head) {
        "ImageClassification" => Ok(SegformerHead::Classes(classes)),
        "SemanticSegmentation" if !fields.flag_or("reshape_last_stage", true)? => {
            Err(fields.error("field `reshape_last_stage` is false, which the head for pixels does not support"))
        }
        "SemanticSegmentation" => Ok(SegformerHead::Pixels { classes, features: fields.size("decoder_hidden_size")? }),
        name if name.ends_with("Model") => Ok(SegformerHead::None),
        other => Err(fields.error(format!("the head {other:?} of `architectures` is not supported"))),
    }
}

/// Returns the names of the arrays.
fn keys(config: &SegformerConfig) -> KeyMap {
    // A model without a head is the encoder itself, so its names have no prefix.
    let prefix = if config.head == SegformerHead::None { "" } else { "segformer." };
    let head = "decode_head";
    let keys = KeyMap::new()
        .linear("classifier", "classifier")
        .conv("pixels.fuse", &format!("{head}.linear_fuse"))
        .conv("pixels.classifier", &format!("{head}.classifier"))
        .linear("pixels.stages[*]", &format!("{head}.linear_c.*.proj"));
    let keys = frozen_norm_keys(keys, "pixels.norm", &format!("{head}.batch_norm"));
    keys.and(encoder_keys(prefix, config.depths.len()))
}

/// Returns the names of the arrays of all stages, which begin with `prefix`.
pub(super) fn encoder_keys(prefix: &str, stages: usize) -> KeyMap {
    stage_keys(KeyMap::new(), stages, |keys, path, stage| {
        let encoder = format!("{prefix}encoder");
        let (patches, block) = (format!("{encoder}.patch_embeddings.{stage}"), format!("{encoder}.block.{stage}.*"));
        let (path_of_block, attention) = (format!("{path}.blocks[*]"), format!("{block}.attention.self"));
        let keys = ["query", "key", "value"].iter().fold(keys, |keys, part| {
            keys.linear(&format!("{path_of_block}.attention.{part}"), &format!("{attention}.{part}"))
        });
        keys.conv(&format!("{path}.patches"), &format!("{patches}.proj"))
            .norm(&format!("{path}.patch_norm"), &format!("{patches}.layer_norm"))
            .norm(&format!("{path}.norm"), &format!("{encoder}.layer_norm.{stage}"))
            .norm(&format!("{path_of_block}.norm"), &format!("{block}.layer_norm_1"))
            .norm(&format!("{path_of_block}.mlp_norm"), &format!("{block}.layer_norm_2"))
            .linear(&format!("{path_of_block}.attention.out"), &format!("{block}.attention.output.dense"))
            .conv(&format!("{path_of_block}.reduction"), &format!("{attention}.sr"))
            .norm(&format!("{path_of_block}.reduction_norm"), &format!("{attention}.layer_norm"))
            .linear(&format!("{path_of_block}.up"), &format!("{block}.mlp.dense1"))
            .conv(&format!("{path_of_block}.conv"), &format!("{block}.mlp.dwconv.dwconv"))
            .linear(&format!("{path_of_block}.down"), &format!("{block}.mlp.dense2"))
    })
}

/// Returns the names of the arrays of the first version of PVT, which are names of SegFormer in part.
fn first_pyramid_keys(config: &SegformerConfig) -> KeyMap {
    let prefix = if config.head == SegformerHead::None { "" } else { "pvt." };
    let (count, encoder) = (config.depths.len(), format!("{prefix}encoder"));
    let last = count.saturating_sub(1);
    let keys = KeyMap::new()
        .linear("classifier", "classifier")
        .norm(&format!("stages[{last}].norm"), &format!("{encoder}.layer_norm"));
    let keys = stage_keys(keys, count, |keys, path, stage| {
        let patches = format!("{encoder}.patch_embeddings.{stage}");
        keys.conv(&format!("{path}.patches"), &format!("{patches}.projection"))
            .array(format!("{path}.positions"), format!("{patches}.position_embeddings"), Layout::Same)
            .array(format!("{path}.first"), format!("{patches}.cls_token"), Layout::Same)
            .conv(
                &format!("{path}.blocks[*].reduction"),
                &format!("{encoder}.block.{stage}.*.attention.self.sequence_reduction"),
            )
    });
    keys.and(encoder_keys(prefix, count))
}

/// Returns the names of the arrays of the second version of PVT.
fn pyramid_keys(config: &SegformerConfig) -> KeyMap {
    let prefix = if config.head == SegformerHead::None { "" } else { "pvt_v2." };
    let keys = KeyMap::new().linear("classifier", "classifier");
    stage_keys(keys, config.depths.len(), |keys, path, stage| {
        let layer = format!("{prefix}encoder.layers.{stage}");
        let (block, path_of_block) = (format!("{layer}.blocks.*"), format!("{path}.blocks[*]"));
        let attention = format!("{block}.attention");
        let keys = ["query", "key", "value"].iter().fold(keys, |keys, part| {
            keys.linear(&format!("{path_of_block}.attention.{part}"), &format!("{attention}.{part}"))
        });
        keys.conv(&format!("{path}.patches"), &format!("{layer}.patch_embedding.proj"))
            .norm(&format!("{path}.patch_norm"), &format!("{layer}.patch_embedding.layer_norm"))
            .norm(&format!("{path}.norm"), &format!("{layer}.layer_norm"))
            .norm(&format!("{path_of_block}.norm"), &format!("{block}.layer_norm_1"))
            .norm(&format!("{path_of_block}.mlp_norm"), &format!("{block}.layer_norm_2"))
            .linear(&format!("{path_of_block}.attention.out"), &format!("{attention}.proj"))
            .conv(&format!("{path_of_block}.reduction"), &format!("{attention}.spatial_reduction"))
            .norm(&format!("{path_of_block}.reduction_norm"), &format!("{attention}.layer_norm"))
            .linear(&format!("{path_of_block}.up"), &format!("{block}.mlp.dense1"))
            .conv(&format!("{path_of_block}.conv"), &format!("{block}.mlp.dwconv.dwconv"))
            .linear(&format!("{path_of_block}.down"), &format!("{block}.mlp.dense2"))
    })
}

impl Stage {
    fn new(config: &SegformerConfig, stage: usize, rngs: &mut Rngs) -> Stage {
        let (features, size, stride) = (config.hidden_sizes[stage], config.patch_sizes[stage], config.strides[stage]);
        let before = stage.checked_sub(1).map_or(config.num_channels, |before| config.hidden_sizes[before]);
        let learned = config.learned_patches.as_ref().map(|counts| counts[stage]);
        let is_last = stage + 1 == config.depths.len();
        let around = if learned.is_some() { 0 } else { (size / 2) as i64 };
        let patches = Conv::builder(before, features, [size; 2]).strides([stride; 2]);
        let has_first = learned.is_some() && is_last;
        Stage {
            patches: patches.padding(Padding::Explicit(vec![(around, around); 2])).build(rngs),
            patch_norm: norm(config, features, rngs),
            first: has_first.then(|| small_normal(&[1, 1, features], rngs)),
            positions: learned
                .map(|count| small_normal(&[1, count.saturating_add(usize::from(has_first)), features], rngs)),
            blocks: (0..config.depths[stage]).map(|_| Block::new(config, stage, rngs)).collect(),
            norm: (learned.is_none() || is_last).then(|| norm(config, features, rngs)),
        }
    }

    fn forward(&self, x: &Array) -> Result<Array> {
        let x = self.patch_norm.forward(self.patches.forward(x));
        x.check()?;
        let x = match &self.positions {
            Some(table) => self.add_positions(x, table)?,
            None => x,
        };
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        Ok(self.norm.iter().fold(x, |x, norm| norm.forward(x)))
    }

    /// Adds learned positions to `[batch, rows, columns, features]`. In the last stage, the result is `[batch, 1, entries,
    /// features]`, with the first entry before the patches.
    fn add_positions(&self, x: Array, table: &Array) -> Result<Array> {
        let (shape, table) = (x.shape().to_vec(), table.astype(x.dtype()));
        let learned = table.shape()[1] - usize::from(self.first.is_some());
        if shape[1] * shape[2] != learned {
            let (rows, columns) = (shape[1], shape[2]);
            let message =
                format!("Segformer: images of {rows} by {columns} patches, but {learned} positions are learned");
            return Err(value_error(message, "resize the images to `image_size` of the configuration"));
        }
        let Some(first) = &self.first else {
            return Ok(&x + table.reshape([1, shape[1], shape[2], shape[3]]));
        };
        let x = x.reshape([shape[0], learned, shape[3]]);
        let x = concatenate(&[for_each_image(first, &x), x], 1) + table;
        Ok(x.expand_dims(1))
    }
}

impl Block {
    fn new(config: &SegformerConfig, stage: usize, rngs: &mut Rngs) -> Block {
        let (features, hidden, ratio) = (config.hidden_sizes[stage], config.mlp_sizes[stage], config.sr_ratios[stage]);
        let reduction = Conv::builder(features, features, [ratio; 2]).strides([ratio; 2]).padding(Padding::Valid);
        let around = Padding::Explicit(vec![(1, 1); 2]);
        let mut attention = attention(config.num_attention_heads[stage], features).build(rngs);
        if !config.qkv_bias {
            remove_input_biases(&mut attention);
        }
        Block {
            norm: norm(config, features, rngs),
            attention,
            reduction: (ratio > 1).then(|| reduction.build(rngs)),
            reduction_norm: (ratio > 1).then(|| norm(config, features, rngs)),
            mlp_norm: norm(config, features, rngs),
            up: Linear::builder(features, hidden).kernel_axes(["embed", "mlp"]).build(rngs),
            conv: config
                .learned_patches
                .is_none()
                .then(|| Conv::builder(hidden, hidden, [3, 3]).padding(around).feature_group_count(hidden).build(rngs)),
            down: Linear::builder(hidden, features).kernel_axes(["mlp", "embed"]).build(rngs),
            activation: config.hidden_act,
        }
    }

    /// Applies the block to `[batch, rows, columns, features]`.
    fn forward(&self, x: Array) -> Array {
        let &[batch, _, _, features] = x.shape() else { return x };
        let flat_shape = [batch as i32, -1, features as i32];
        let normed = self.norm.forward(&x);
        let reduced = self.reduction.iter().fold(normed.clone(), |x, conv| conv.forward(x));
        let reduced = self.reduction_norm.iter().fold(reduced, |x, norm| norm.forward(x)).reshape(flat_shape);
        let attended = self.attention.attend(normed.reshape(flat_shape), &reduced, &reduced, AttentionOptions::new());
        let x = &x + attended.reshape(x.shape());
        let hidden = self.up.forward(self.mlp_norm.forward(&x));
        let hidden = self.conv.iter().fold(hidden, |x, conv| conv.forward(x));
        x + self.down.forward(self.activation.apply(hidden))
    }
}

impl PixelHead {
    fn new(stages: &[usize], [features, classes]: [usize; 2], rngs: &mut Rngs) -> PixelHead {
        let joined = features.saturating_mul(stages.len());
        PixelHead {
            stages: stages.iter().map(|size| Linear::new(*size, features, rngs)).collect(),
            fuse: Conv::builder(joined, features, [1, 1]).use_bias(false).build(rngs),
            norm: FrozenNorm::new(features, EPSILON, rngs),
            classifier: Conv::new(features, classes, [1, 1], rngs),
        }
    }

    /// Computes logits `[batch, rows, columns, classes]` from the features of all stages. They have the rows and columns of the
    /// first stage, to which the features of the other stages are interpolated.
    fn forward(&self, stages: &[Array]) -> Result<Array> {
        let Some(&[_, rows, columns, _]) = stages.first().map(Array::shape) else {
            return Err(value_error("a model without stages has no classes of pixels", "add a stage"));
        };
        let mut parts = Vec::with_capacity(stages.len());
        for (layer, x) in self.stages.iter().zip(stages) {
            let y = layer.forward(x);
            y.check()?;
            let weights = [linear_weights(y.shape()[1], rows)?, linear_weights(y.shape()[2], columns)?];
            let [down, right] = weights.map(|weights| weights.astype(y.dtype()));
            parts.push(einsum("ia,jb,nabf->nijf", &[&down, &right, &y]));
        }
        // The features of the last stage come first.
        parts.reverse();
        let x = relu(self.norm.forward(self.fuse.forward(concatenate(&parts, -1))));
        Ok(self.classifier.forward(x))
    }
}

impl Segformer {
    /// Computes the features of each stage, `[batch, rows, columns, features]` (in the last stage of the first version of PVT `[batch,
    /// 1, 1 + patches, features]`), from images `[batch, rows, columns, channels]`.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Result<Vec<Array>> {
        let _ranks = allow_any_ranks();
        let mut x = images.into_array();
        if let Some(stage) = self.stages.first() {
            check_channels("Segformer", &x, &stage.patches)?;
        }
        let mut features = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            x = stage.forward(&x)?;
            features.push(x.clone());
        }
        Ok(features)
    }

    /// Computes logits from images `[batch, rows, columns, channels]`: `[batch, classes]` for classes of images, and `[batch,
    /// rows, columns, classes]` for classes of pixels, with the rows and columns of the first stage. `transformers` has the
    /// classes before the rows. Without a head, the results are the features of the last stage.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let images = images.into_array();
        self.try_forward(&images).unwrap_or_else(|error| Array::from_error(error, &images))
    }

    #[track_caller]
    fn try_forward(&self, images: &Array) -> Result<Array> {
        let features = self.encode(images)?;
        let _ranks = allow_any_ranks();
        let Some(last) = features.last() else { return Ok(images.clone()) };
        match (&self.classifier, &self.pixels) {
            (Some(head), _) if self.has_first_entry() => Ok(head.forward(last.get((.., 0, 0)))),
            (Some(head), _) => Ok(head.forward(last.mean([1, 2]))),
            (None, Some(head)) => head.forward(&features),
            (None, None) if self.has_first_entry() => Ok(last.squeeze(1)),
            (None, None) => Ok(last.clone()),
        }
    }

    /// Returns `true` if the last stage has an entry before its patches, as in the first version of PVT.
    fn has_first_entry(&self) -> bool {
        self.stages.last().is_some_and(|stage| stage.first.is_some())
    }
}

fn norm(config: &SegformerConfig, features: usize, rngs: &mut Rngs) -> LayerNorm {
    LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs)
}
