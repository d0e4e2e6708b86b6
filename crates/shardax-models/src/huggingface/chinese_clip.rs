//! Chinese CLIP and AltCLIP, whose encoders of texts are BERT and XLM-RoBERTa.

use shardax_nn::prelude::*;

use super::bert_files::read_part;
use super::clip::{ImageSide, blocks, image_keys, patches, projection, similarities, tower, tower_norm};
use super::encoder::EncoderBlock;
use super::patches::Patches;
use super::{Bert, BertConfig, BertOptions, ClipTower, Config, KeyMap, Pretrained, known_type};
use crate::ranks::allow_any_ranks;
use crate::shardings::first_token;

/// The architecture of a [`ChineseClip`].
#[derive(Clone, Debug, PartialEq)]
pub struct ChineseClipConfig {
    /// The encoder of texts.
    pub text: BertConfig,
    /// The encoder of images.
    pub vision: ClipTower,
    /// The rows and columns of an image.
    pub image_size: usize,
    /// The rows and columns of a patch. They must divide the rows and columns of an image.
    pub patch_size: usize,
    /// The number of color channels.
    pub num_channels: usize,
    /// The number of features of the results, for texts and for images.
    pub projection_dim: usize,
    /// The features of the layer after the encoder of texts, if there is one, as in AltCLIP.
    pub transformed_features: Option<usize>,
}

/// Chinese CLIP ([Yang et al. 2022](https://arxiv.org/abs/2211.01335)), which compares Chinese texts with images, and AltCLIP
/// ([Chen et al. 2022](https://arxiv.org/abs/2211.06679)), which compares texts of several languages. The model type is `chinese_clip`
/// or `altclip`.
#[derive(Module, Clone, Debug)]
pub struct ChineseClip {
    text: Bert,
    /// The norm and the layer after the encoder of texts.
    transformation: Option<(LayerNorm, Linear)>,
    text_projection: Linear,
    patches: Patches,
    first_norm: LayerNorm,
    image_blocks: Vec<EncoderBlock>,
    image_norm: LayerNorm,
    image_projection: Linear,
    /// The logarithm of the factor of the logits, a scalar.
    logit_scale: Array,
}

/// The supported model types.
pub(super) const KNOWN: [&str; 2] = ["chinese_clip", "altclip"];

impl Pretrained for ChineseClip {
    type Architecture = ChineseClipConfig;

    fn read(config: &Config) -> Result<(ChineseClipConfig, KeyMap)> {
        let fields = config.fields();
        let is_alt = known_type(&fields, &KNOWN)? == "altclip";
        let (text_type, vision_type, kind, prefix) = match is_alt {
            true => ("altclip_text_model", "altclip_vision_model", "roberta", "text_model.roberta."),
            false => ("chinese_clip_text_model", "chinese_clip_vision_model", "bert", "text_model."),
        };
        // If AltCLIP has these fields, they replace the others.
        if is_alt && (fields.has("text_config_dict") || fields.has("vision_config_dict")) {
            return Err(fields.error("`text_config_dict` and `vision_config_dict` are not supported"));
        }
        let text_fields = fields.model("text_config", text_type)?;
        let vision = fields.model("vision_config", vision_type)?;
        let (text, text_keys) = read_part(&text_fields, kind)?;
        let read = ChineseClipConfig {
            text,
            vision: tower(&vision)?,
            image_size: vision.size("image_size")?,
            patch_size: vision.size("patch_size")?,
            num_channels: vision.size("num_channels")?,
            projection_dim: fields.size("projection_dim")?,
            transformed_features: if is_alt { Some(text_fields.size("project_dim")?) } else { None },
        };
        vision.divides(("patch_size", read.patch_size), ("image_size", read.image_size))?;
        // The initial value for training, and copies of both objects in older files, which no class reads.
        fields.skip(&["logit_scale_init_value", "text_config_dict", "vision_config_dict"]);
        for part in [&fields, &text_fields, &vision] {
            part.finish()?;
        }
        let keys = text_keys
            .inside("text.", prefix)
            .linear("text_projection", "text_projection")
            .norm("transformation[0]", "text_model.pre_LN")
            .linear("transformation[1]", "text_model.transformation");
        let keys = keys.ignore(&format!("{prefix}pooler.**"));
        let images = image_keys();
        // transformers writes other names for AltCLIP than published files have.
        let [written, published] = ["vision_model.encoder.layer.", "vision_model.encoder.layers."];
        let images = if is_alt { images.renamed(published, written).prefix_alias(written, published) } else { images };
        Ok((read, keys.and(images)))
    }

    fn make(config: &ChineseClipConfig, rngs: &mut Rngs) -> Result<Self> {
        let vision = &config.vision;
        let features = config.text.hidden_size;
        let transformed = config.transformed_features.unwrap_or(features);
        let sizes = [config.num_channels, vision.hidden_size, config.image_size, config.patch_size];
        Ok(ChineseClip {
            text: Bert::make(&config.text, rngs)?,
            transformation: config.transformed_features.map(|transformed| {
                let norm = LayerNorm::builder(features).epsilon(config.text.layer_norm_eps).build(rngs);
                (norm, Linear::new(features, transformed, rngs))
            }),
            text_projection: projection(transformed, config.projection_dim, rngs),
            patches: patches(sizes, rngs)?,
            first_norm: tower_norm(vision, rngs),
            image_blocks: blocks(vision, false, rngs),
            image_norm: tower_norm(vision, rngs),
            image_projection: projection(vision.hidden_size, config.projection_dim, rngs),
            // The logarithm of 1 / 0.07.
            logit_scale: array((1.0f32 / 0.07).ln()).astype(rngs.policy().param_dtype),
        })
    }

    fn extents(config: &ChineseClipConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (vision, (layers, mut matrices)) = (&config.vision, Bert::extents(&config.text));
        let patches = config.image_size / config.patch_size.max(1);
        let patch = config.patch_size.saturating_mul(config.patch_size);
        matrices.extend([
            ("table of patches", patches.saturating_mul(patches), vision.hidden_size),
            ("patch", patch, config.num_channels.saturating_mul(vision.hidden_size)),
            ("projection", config.projection_dim, config.text.hidden_size.max(vision.hidden_size)),
            (
                "layer after texts",
                config.transformed_features.unwrap_or(0),
                config.text.hidden_size.max(config.projection_dim),
            ),
            ("query kernel", vision.hidden_size, vision.hidden_size),
            ("MLP kernel", vision.hidden_size, vision.intermediate_size),
        ]);
        (layers.saturating_add(vision.num_hidden_layers), matrices)
    }
}

impl ChineseClip {
    /// Computes the features of texts, `[batch, projected features]`, from their tokens `[batch, length]`. The options have the mask of
    /// padded texts. The features are not normalized.
    #[track_caller]
    pub fn text_features(&self, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let x = self.text.encode(tokens, options);
        if x.check().is_err() {
            return x;
        }
        let x = first_token(x);
        let x = self.transformation.iter().fold(x, |x, (norm, layer)| layer.forward(norm.forward(x)));
        self.text_projection.forward(x)
    }

    /// Computes the features of images, `[batch, projected features]`, from `[batch, rows, columns, channels]`. The features are not
    /// normalized.
    #[track_caller]
    pub fn image_features(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let side = ImageSide {
            patches: &self.patches,
            first_norm: &self.first_norm,
            blocks: &self.image_blocks,
            norm: &self.image_norm,
            projection: &self.image_projection,
        };
        side.features(images)
    }

    /// Computes logits `[images, texts]`: the cosine similarity of the features of each image and each text, times the learned factor.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, images: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        similarities(self.text_features(tokens, options), self.image_features(images), &self.logit_scale)
    }
}
