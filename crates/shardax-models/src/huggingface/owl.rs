//! OWL-ViT and OWLv2, which detect objects that texts describe.

use shardax_nn::prelude::*;

use super::clip::{keys as clip_keys, towers};
use super::interpolation::Interpolation;
use super::{Clip, ClipConfig, Config, KeyMap, Pretrained, known_type};
use crate::Activation;
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::{gather_last, gather_positions};

/// The architecture of an [`Owl`].
#[derive(Clone, Debug, PartialEq)]
pub struct OwlConfig {
    /// The encoders of texts and of images.
    pub clip: ClipConfig,
    /// True if the model computes how likely a patch has any object, as OWLv2 does.
    pub has_objectness: bool,
}

/// OWL-ViT ([Minderer et al. 2022](https://arxiv.org/abs/2205.06230)) and OWLv2 ([Minderer et al.
/// 2023](https://arxiv.org/abs/2306.09683)), which detect the objects of images that texts describe: one box for each patch.
///
/// You can pass images of any size, `[batch, rows, columns, channels]`. Rows and columns after the last entire patch are not read.
#[derive(Module, Clone, Debug)]
pub struct Owl {
    clip: Clip,
    /// Normalizes the features of patches after they are multiplied with the class entry.
    norm: LayerNorm,
    /// Computes the features that are compared with texts.
    class: Linear,
    /// Compute an offset and a factor of the logits of each patch.
    shift: Linear,
    scale: Linear,
    boxes: Vec<Linear>,
    /// Empty if the model does not compute how likely a patch has an object.
    objectness: Vec<Linear>,
    patch_size: usize,
}

/// The supported model types.
pub(super) const KNOWN: [&str; 2] = ["owlvit", "owlv2"];

impl Pretrained for Owl {
    type Architecture = OwlConfig;

    fn read(config: &Config) -> Result<(OwlConfig, KeyMap)> {
        let fields = config.fields();
        let kind = known_type(&fields, &KNOWN)?;
        let class = fields.class()?.unwrap_or("ForObjectDetection");
        if !class.ends_with("ForObjectDetection") {
            let message = format!("the class {class:?} of `architectures` does not detect objects");
            return Err(fields.error(message));
        }
        let text = fields.model("text_config", &format!("{kind}_text_model"))?;
        let vision = fields.model("vision_config", &format!("{kind}_vision_model"))?;
        let read = OwlConfig { clip: towers(&fields, &text, &vision)?, has_objectness: kind == "owlv2" };
        // The features of texts are compared with features that are computed from patches.
        fields.check_size("projection_dim", read.clip.text.hidden_size)?;
        fields.finish()?;
        Ok((read, keys(kind)))
    }

    fn make(config: &OwlConfig, rngs: &mut Rngs) -> Result<Self> {
        let (text, image) = (config.clip.text.hidden_size, config.clip.vision.hidden_size);
        Ok(Owl {
            clip: Clip::make(&config.clip, rngs)?.with_interpolation(Interpolation::Bicubic),
            norm: LayerNorm::builder(image).epsilon(config.clip.vision.layer_norm_eps).build(rngs),
            class: Linear::new(image, text, rngs),
            shift: Linear::new(image, 1, rngs),
            scale: Linear::new(image, 1, rngs),
            boxes: head(image, 4, rngs),
            objectness: if config.has_objectness { head(image, 1, rngs) } else { Vec::new() },
            patch_size: config.clip.patch_size,
        })
    }

    fn extents(config: &OwlConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (layers, mut matrices) = Clip::extents(&config.clip);
        matrices.push(("layer of classes", config.clip.vision.hidden_size, config.clip.text.hidden_size));
        (layers, matrices)
    }
}

/// Creates the layers that compute this number of outputs for each patch.
fn head(features: usize, outputs: usize, rngs: &mut Rngs) -> Vec<Linear> {
    [features, features, outputs].map(|outputs| Linear::new(features, outputs, rngs)).into()
}

/// Applies the layers of a head.
fn apply_head(layers: &[Linear], x: &Array) -> Array {
    layers.iter().enumerate().fold(x.clone(), |x, (index, layer)| {
        let x = if index == 0 { x } else { Activation::Gelu.apply(x) };
        layer.forward(x)
    })
}

/// Returns the names of the arrays.
fn keys(kind: &str) -> KeyMap {
    KeyMap::new()
        // CLIP's name of this norm has a spelling error.
        .norm("clip.first_norm", &format!("{kind}.vision_model.pre_layernorm"))
        .and(clip_keys().inside("clip.", &format!("{kind}.")))
        .norm("norm", "layer_norm")
        .linear("class", "class_head.dense0")
        .linear("shift", "class_head.logit_shift")
        .linear("scale", "class_head.logit_scale")
        .linear("boxes[*]", "box_head.dense*")
        .linear("objectness[*]", "objectness_head.dense*")
}

/// Returns the logits of the boxes that the model moves, `[patches, 4]`: their centers are the lower right corners of the patches, and
/// they are as large as patches.
fn first_boxes([rows, columns]: [usize; 2]) -> Result<Array> {
    let size = [logit_of_share(1, columns), logit_of_share(1, rows)];
    let boxes = (0..rows * columns).flat_map(|patch| {
        let center = [logit_of_share(patch % columns + 1, columns), logit_of_share(patch / columns + 1, rows)];
        center.into_iter().chain(size)
    });
    Array::from_vec(boxes.collect::<Vec<f32>>(), &[rows * columns, 4])
}

/// Returns the logit of `part / total`, which is finite for 0 and 1 too.
fn logit_of_share(part: usize, total: usize) -> f32 {
    let share = part as f32 / total as f32;
    (share + 1e-4).ln() - (1e-4 - share).ln_1p()
}

/// Divides vectors along the last dimension by their lengths.
fn with_unit_length(x: Array) -> Array {
    &x / (x.square().sum_keepdims(-1).sqrt() + 1e-6)
}

impl Owl {
    /// Computes the features of texts that describe objects, `[queries, features]`, from their tokens, `[queries, length]`.
    #[track_caller]
    pub fn text_features(&self, tokens: impl ArrayLike) -> Array {
        self.clip.text_features(tokens)
    }

    /// Computes the features of patches, `[batch, patches, features]`.
    #[track_caller]
    pub fn patch_features(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let side = self.clip.image_side();
        let x = side.encode(images);
        if x.check().is_err() {
            return x;
        }
        let x = gather_positions(side.norm.forward(x));
        self.norm.forward(x.get((.., 1..)) * x.get((.., ..1)))
    }

    /// Detects objects in images `[batch, rows, columns, channels]`. The tokens are texts that describe objects, `[queries, length]`, or
    /// others for each image, `[batch, queries, length]`. A text whose first token is 0 is padding.
    ///
    /// Returns logits, `[batch, patches, queries]`, and boxes, `[batch, patches, 4]`. A box is the column and row of the center, and the
    /// number of columns and rows, as fractions of the image.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, images: impl ArrayLike) -> (Array, Array) {
        let _ranks = allow_any_ranks();
        let (tokens, images) = (tokens.into_array(), images.into_array());
        self.try_forward(&tokens, &images).unwrap_or_else(|error| {
            let failed = Array::from_error(error, &images);
            (failed.clone(), failed)
        })
    }

    fn try_forward(&self, tokens: &Array, images: &Array) -> Result<(Array, Array)> {
        tokens.check()?;
        let x = self.patch_features(images);
        x.check()?;
        let (batch, grid) = (x.shape()[0], [1, 2].map(|dim| images.shape()[dim] / self.patch_size));
        if tokens.ndim() != 2 && !(tokens.ndim() == 3 && tokens.shape()[0] == batch) {
            let message = format!("Owl: tokens of the shape {:?} are not texts for {batch} images", tokens.shape());
            return Err(value_error(message, "pass tokens `[queries, length]` or `[batch, queries, length]`"));
        }
        let length = tokens.shape()[tokens.ndim() - 1];
        let texts = with_unit_length(self.text_features(tokens.reshape([-1, length as i32])));
        let pictures = with_unit_length(self.class.forward(&x));
        let texts = if tokens.ndim() == 3 { texts.reshape([batch as i32, -1, texts.shape()[1] as i32]) } else { texts };
        let similarities = match tokens.ndim() {
            3 => einsum("bpd,bqd->bpq", &[&pictures, &texts]),
            _ => einsum("bpd,qd->bpq", &[&pictures, &texts]),
        };
        let logits = (similarities + self.shift.forward(&x)) * (elu(self.scale.forward(&x), 1.0) + 1.0);
        let is_text = gather_last(tokens.clone()).get((Ellipsis, 0)).greater(0).expand_dims(-2);
        let logits = where_(is_text, &logits, full_like(&logits, f32::MIN));
        let boxes = apply_head(&self.boxes, &x);
        let boxes = sigmoid(&boxes + first_boxes(grid)?.astype(boxes.dtype()));
        Ok((logits, boxes))
    }

    /// Computes how likely each patch has any object, as logits `[batch, patches]`. OWL-ViT does not have this head, which is an error.
    #[track_caller]
    pub fn objectness(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let x = self.patch_features(images);
        if self.objectness.is_empty() {
            let message = "Owl: the model does not compute how likely a patch has an object";
            return Array::from_error(value_error(message, "load a model of the type `owlv2`, or call `forward`"), &x);
        }
        apply_head(&self.objectness, &x).squeeze(-1)
    }
}
