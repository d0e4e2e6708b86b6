//! YOLOS, a ViT that detects objects.

use shardax_nn::prelude::*;

use super::encoder::{BlockSizes, EncoderBlock, VIT_NORMS, small_normal, vit_block_keys};
use super::interpolation::Interpolation;
use super::patches::{for_each_image, interpolated};
use super::vision::{check_channels, classes_of_head};
use super::{Config, KeyMap, Layout, Pretrained, check_type};
use crate::Activation;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;

/// The architecture of a [`Yolos`].
#[derive(Clone, Debug, PartialEq)]
pub struct YolosConfig {
    /// The features of a patch.
    pub hidden_size: usize,
    /// The features inside an MLP.
    pub intermediate_size: usize,
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The number of attention heads. It must divide the features.
    pub num_attention_heads: usize,
    /// The rows and columns of an image whose patches have learned positions. Positions of other images are interpolated.
    pub image_size: [usize; 2],
    /// The rows and columns of a patch.
    pub patch_size: usize,
    /// The number of color channels.
    pub num_channels: usize,
    /// The number of objects in an image.
    pub num_detection_tokens: usize,
    /// True if positions are added after each block, except for the last one.
    pub use_mid_position_embeddings: bool,
    /// True if the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
    /// Added to the variance in norms.
    pub layer_norm_eps: f64,
    /// The number of classes; `None` if the results are features.
    pub classes: Option<usize>,
}

/// YOLOS ([Fang et al. 2021](https://arxiv.org/abs/2106.00666)). The model type is `yolos`.
///
/// You can pass images of any size, `[batch, rows, columns, channels]`. Dimensions are named `embed`, `heads` and `mlp`, see [`Rules`].
#[derive(Module, Clone, Debug)]
pub struct Yolos {
    patches: Conv,
    /// `[1, 1, features]`: the learned entry before the patches.
    class: Array,
    /// `[1, objects, features]`: the learned entries after the patches, which become objects.
    objects: Array,
    /// `[1, 1 + patches + objects, features]`
    positions: Array,
    /// `[blocks - 1, 1, 1 + patches + objects, features]`: the positions after each block.
    later_positions: Option<Array>,
    blocks: Vec<EncoderBlock>,
    norm: LayerNorm,
    /// The layers that compute logits of classes.
    classes: Vec<Linear>,
    /// The layers that compute boxes.
    boxes: Vec<Linear>,
    /// The rows and columns of the patches that have learned positions.
    #[tree(static)]
    grid: [usize; 2],
}

impl Pretrained for Yolos {
    type Architecture = YolosConfig;

    fn read(config: &Config) -> Result<(YolosConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "yolos")?;
        let (features, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
        fields.divides(("num_attention_heads", heads), ("hidden_size", features))?;
        let image_size = <[usize; 2]>::try_from(fields.size_list("image_size")?);
        let read = YolosConfig {
            hidden_size: features,
            intermediate_size: fields.size("intermediate_size")?,
            num_hidden_layers: fields.layers("num_hidden_layers")?,
            num_attention_heads: heads,
            image_size: image_size.map_err(|_| fields.error("field `image_size` must have two sizes"))?,
            patch_size: fields.size("patch_size")?,
            num_channels: fields.size("num_channels")?,
            num_detection_tokens: fields.size("num_detection_tokens")?,
            use_mid_position_embeddings: fields.flag("use_mid_position_embeddings")?,
            qkv_bias: fields.flag("qkv_bias")?,
            hidden_act: fields.activation("hidden_act")?,
            layer_norm_eps: fields.number("layer_norm_eps")?,
            classes: classes_of_head(&fields, "ForObjectDetection")?,
        };
        if read.grid().contains(&0) {
            let [rows, columns] = read.image_size;
            let message =
                format!("`image_size` is {rows} by {columns}, which is less than `patch_size`, {}", read.patch_size);
            return Err(fields.error(message));
        }
        // The class in transformers counts the positions after blocks by the area of an image.
        let has_rest = read.image_size.iter().any(|size| !size.is_multiple_of(read.patch_size));
        if has_rest && read.use_mid_position_embeddings {
            return Err(
                fields.error("`image_size` must be multiples of `patch_size` if there are positions after blocks")
            );
        }
        // The loss.
        fields.skip(&["auxiliary_loss", "class_cost", "bbox_cost", "giou_cost", "bbox_loss_coefficient"]);
        fields.skip(&["giou_loss_coefficient", "eos_coefficient"]);
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &YolosConfig, rngs: &mut Rngs) -> Result<Self> {
        let features = config.hidden_size;
        let patches = Conv::builder(config.num_channels, features, [config.patch_size; 2]);
        let sizes = [features, config.intermediate_size, config.num_attention_heads];
        let sizes = BlockSizes::new(sizes, config.hidden_act, config.layer_norm_eps, config.qkv_bias);
        let (length, layers) = (config.length(), config.num_hidden_layers);
        let has_later = config.use_mid_position_embeddings && layers > 1;
        let head = |outputs: usize, rngs: &mut Rngs| {
            [features, features, outputs].map(|outputs| Linear::new(features, outputs, rngs)).into()
        };
        // A class more means that there is no object.
        let [classes, boxes] = match config.classes {
            Some(classes) => [head(classes.saturating_add(1), rngs), head(4, rngs)],
            None => [Vec::new(), Vec::new()],
        };
        Ok(Yolos {
            patches: patches.strides([config.patch_size; 2]).padding(Padding::Valid).build(rngs),
            class: small_normal(&[1, 1, features], rngs),
            objects: small_normal(&[1, config.num_detection_tokens, features], rngs),
            positions: small_normal(&[1, length, features], rngs),
            later_positions: has_later.then(|| small_normal(&[layers - 1, 1, length, features], rngs)),
            blocks: (0..layers).map(|_| EncoderBlock::new(&sizes, rngs)).collect(),
            norm: LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs),
            classes,
            boxes,
            grid: config.grid(),
        })
    }

    fn extents(config: &YolosConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let features = config.hidden_size;
        let patch = config.patch_size.saturating_mul(config.patch_size);
        let matrices = vec![
            ("position table", config.length(), features),
            ("query kernel", features, features),
            ("MLP kernel", features, config.intermediate_size),
            ("patch", patch, config.num_channels.saturating_mul(features)),
            ("table of classes", config.classes.unwrap_or(0), features),
        ];
        (config.num_hidden_layers, matrices)
    }
}

impl YolosConfig {
    /// Returns the rows and columns of the patches that have learned positions.
    fn grid(&self) -> [usize; 2] {
        self.image_size.map(|size| size / self.patch_size.max(1))
    }

    /// Returns the number of learned positions.
    fn length(&self) -> usize {
        let [rows, columns] = self.grid();
        rows.saturating_mul(columns).saturating_add(self.num_detection_tokens).saturating_add(1)
    }
}

/// Returns the names of the arrays. Files of a model without a head have no prefix.
fn keys(config: &YolosConfig) -> KeyMap {
    let prefix = if config.classes.is_some() { "vit." } else { "" };
    let layer = format!("{prefix}encoder.layer.*");
    let keys = vit_block_keys(&layer, VIT_NORMS, ["intermediate.dense", "output.dense"])
        .conv("patches", &format!("{prefix}embeddings.patch_embeddings.projection"))
        .array("class", format!("{prefix}embeddings.cls_token"), Layout::Same)
        .array("objects", format!("{prefix}embeddings.detection_tokens"), Layout::Same)
        .array("positions", format!("{prefix}embeddings.position_embeddings"), Layout::Same)
        .array("later_positions", format!("{prefix}encoder.mid_position_embeddings"), Layout::Same)
        .norm("norm", &format!("{prefix}layernorm"))
        .linear("classes[*]", "class_labels_classifier.layers.*")
        .linear("boxes[*]", "bbox_predictor.layers.*");
    // The class without a head has a pooling layer that does not contribute to the features.
    let keys = keys.ignore(&format!("{prefix}pooler.**"));
    if prefix.is_empty() {
        let keys = keys.prefix_alias("", "vit.").ignore("vit.pooler.**");
        keys.ignore("class_labels_classifier.**").ignore("bbox_predictor.**")
    } else {
        keys
    }
}

/// Applies the layers of a head.
fn head(layers: &[Linear], x: &Array) -> Array {
    layers.iter().enumerate().fold(x.clone(), |x, (index, layer)| {
        let x = if index == 0 { x } else { relu(x) };
        layer.forward(x)
    })
}

impl Yolos {
    /// Computes features, `[batch, 1 + patches + objects, features]`, from images `[batch, rows, columns, channels]`. Rows and columns
    /// after the last entire patch are not read.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        self.try_encode(&images).unwrap_or_else(|error| Array::from_error(error, &images))
    }

    fn try_encode(&self, images: &Array) -> Result<Array> {
        check_channels("Yolos", images, &self.patches)?;
        let (patch, size) = (self.patches.kernel.shape()[0], &images.shape()[1..3]);
        if size.iter().any(|size| *size < patch) {
            let message =
                format!("Yolos: images of {} by {} pixels are less than a patch of {patch}", size[0], size[1]);
            return Err(value_error(message, "pass larger images"));
        }
        let x = self.patches.forward(images);
        let &[batch, rows, columns, features] = x.shape() else { return Ok(x) };
        let x = x.reshape([batch, rows * columns, features]);
        let all = concatenate(&[for_each_image(&self.class, &x), x.clone(), for_each_image(&self.objects, &x)], 1);
        let mut x = &all + self.positions_of(&self.positions, [rows, columns], all.dtype())?;
        for (index, block) in self.blocks.iter().enumerate() {
            x = block.forward(x);
            // The last block has no positions after it.
            if let Some(later) = self.later_positions.as_ref().filter(|_| index + 1 < self.blocks.len()) {
                x = &x + self.positions_of(&later.get(index), [rows, columns], x.dtype())?;
            }
        }
        Ok(self.norm.forward(x))
    }

    /// Returns the positions for a grid of patches from a table `[1, 1 + patches + objects, features]`.
    fn positions_of(&self, table: &Array, grid: [usize; 2], dtype: DType) -> Result<Array> {
        let table = table.reshape([-1, table.shape()[2] as i32]);
        if grid == self.grid {
            return Ok(table.astype(dtype));
        }
        Ok(interpolated(&table, Interpolation::Bicubic, 1, [self.grid, grid])?.astype(dtype))
    }

    /// Returns `true` if the model detects objects. Otherwise it computes only features.
    pub fn has_head(&self) -> bool {
        !self.classes.is_empty()
    }

    /// Detects objects in images `[batch, rows, columns, channels]`. Returns logits, `[batch, objects, classes + 1]`, and
    /// boxes, `[batch, objects, 4]`. The last class means that there is no object. A box is the column and row of the center, and the
    /// number of columns and rows, as fractions of the image. Without a head, this is an error.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> (Array, Array) {
        let _ranks = allow_any_ranks();
        let x = self.encode(images);
        if x.check().is_err() {
            return (x.clone(), x);
        }
        if !self.has_head() {
            let error =
                value_error("Yolos: the model has no head", "call `encode`, or load a model that detects objects");
            let x = Array::from_error(error, &x);
            return (x.clone(), x);
        }
        let objects = x.get((.., x.shape()[1] - self.objects.shape()[1]..));
        (head(&self.classes, &objects), sigmoid(head(&self.boxes, &objects)))
    }
}
