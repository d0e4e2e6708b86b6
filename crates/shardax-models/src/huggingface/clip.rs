//! CLIP.

use shardax_nn::prelude::*;

use super::encoder::{BlockSizes, EncoderBlock, block_keys};
use super::fields::Fields;
use super::interpolation::Interpolation;
use super::patches::{PatchSizes, Patches, patch_keys};
use super::{Config, KeyMap, Layout, Pretrained};
use crate::Activation;
use crate::decoder::check_positions;
use crate::ranks::allow_any_ranks;
use crate::shardings::products_of_rows;

/// The architecture of a [`Clip`].
#[derive(Clone, Debug, PartialEq)]
pub struct ClipConfig {
    /// The encoder of texts.
    pub text: ClipTower,
    /// The encoder of images.
    pub vision: ClipTower,
    /// The number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// The maximal number of tokens of a text.
    pub max_position_embeddings: usize,
    /// The token whose first position has the features of a text. `None` selects the position of the largest token.
    pub end_token: Option<i32>,
    /// The rows and columns of an image.
    pub image_size: usize,
    /// The rows and columns of a patch. They must divide the rows and columns of an image.
    pub patch_size: usize,
    /// The number of color channels.
    pub num_channels: usize,
    /// The number of features of the results, for texts and for images.
    pub projection_dim: usize,
}

/// The sizes of one of the encoders of a [`Clip`].
#[derive(Clone, Debug, PartialEq)]
pub struct ClipTower {
    /// The features of a token or a patch.
    pub hidden_size: usize,
    /// The features inside an MLP.
    pub intermediate_size: usize,
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The number of attention heads. It must divide the features.
    pub num_attention_heads: usize,
    /// Added to the variance in norms.
    pub layer_norm_eps: f64,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
}

/// CLIP ([Radford et al. 2021](https://arxiv.org/abs/2103.00020)), which compares texts with images: `CLIPModel`, and
/// `MetaClip2Model` for texts in many languages.
#[derive(Module, Clone, Debug)]
pub struct Clip {
    tokens: Embed,
    positions: Embed,
    text_blocks: Vec<EncoderBlock>,
    text_norm: LayerNorm,
    text_projection: Linear,
    patches: Patches,
    first_norm: LayerNorm,
    image_blocks: Vec<EncoderBlock>,
    image_norm: LayerNorm,
    image_projection: Linear,
    /// The logarithm of the factor of the logits, a scalar.
    logit_scale: Array,
    #[tree(static)]
    end_token: Option<i32>,
}

/// The encoder of images in a [`Clip`], and the layer after it.
#[derive(Clone, Copy)]
pub(super) struct ImageSide<'a> {
    pub patches: &'a Patches,
    pub first_norm: &'a LayerNorm,
    pub blocks: &'a [EncoderBlock],
    pub norm: &'a LayerNorm,
    pub projection: &'a Linear,
}

impl ImageSide<'_> {
    /// Computes the features of the class entry and of patches, `[batch, 1 + patches, features]`, without the last norm.
    #[track_caller]
    pub fn encode(self, images: impl ArrayLike) -> Array {
        let x = self.patches.forward(images);
        if x.check().is_err() {
            return x;
        }
        self.blocks.iter().fold(self.first_norm.forward(x), |x, block| block.forward(x))
    }

    /// Computes the features of images, `[batch, projected features]`.
    #[track_caller]
    pub fn features(self, images: impl ArrayLike) -> Array {
        let x = self.encode(images);
        if x.check().is_err() {
            return x;
        }
        self.projection.forward(self.norm.forward(x.get((.., 0))))
    }
}

/// Computes the cosine similarities `[images, texts]` of features, times a factor whose logarithm is `scale`.
pub(super) fn similarities(texts: Array, images: Array, scale: &Array) -> Array {
    let [texts, images] = [texts, images].map(|x| &x / x.square().sum_keepdims(-1).sqrt());
    let cosines = products_of_rows(&images, texts);
    &cosines * scale.exp().astype(cosines.dtype())
}

impl Pretrained for Clip {
    type Architecture = ClipConfig;

    fn read(config: &Config) -> Result<(ClipConfig, KeyMap)> {
        let fields = config.fields();
        let is_meta = match fields.text("model_type")? {
            "clip" => false,
            "metaclip_2" => true,
            other => {
                let message = format!("the model_type is {other:?}, but should be \"clip\" or \"metaclip_2\"");
                return Err(fields.error(message));
            }
        };
        // If the older fields are present, they contain all fields of an encoder.
        let parts = [
            ("text_config", "text_config_dict", if is_meta { "metaclip_2_text_model" } else { "clip_text_model" }),
            (
                "vision_config",
                "vision_config_dict",
                if is_meta { "metaclip_2_vision_model" } else { "clip_vision_model" },
            ),
        ];
        let [text, vision] =
            parts.map(
                |(name, older, kind)| {
                    if fields.has(older) { fields.model(older, kind) } else { fields.model(name, kind) }
                },
            );
        let (text, vision) = (text?, vision?);
        fields.skip(&["text_config", "text_config_dict", "vision_config", "vision_config_dict"]);
        // Configurations of CLIP with this number are older than the support for the field.
        let end_token = Some(text.natural("eos_token_id")? as i32).filter(|end| is_meta || *end != 2);
        let read = ClipConfig { end_token, ..towers(&fields, &text, &vision)? };
        fields.finish()?;
        Ok((read, keys()))
    }

    fn make(config: &ClipConfig, rngs: &mut Rngs) -> Result<Self> {
        let (text, vision) = (&config.text, &config.vision);
        let sizes = [config.num_channels, vision.hidden_size, config.image_size, config.patch_size];
        Ok(Clip {
            tokens: Embed::builder(config.vocab_size, text.hidden_size).axes(["vocab", "embed"]).build(rngs),
            positions: Embed::new(config.max_position_embeddings, text.hidden_size, rngs),
            text_blocks: blocks(text, true, rngs),
            text_norm: tower_norm(text, rngs),
            text_projection: projection(text.hidden_size, config.projection_dim, rngs),
            patches: patches(sizes, rngs)?,
            first_norm: tower_norm(vision, rngs),
            image_blocks: blocks(vision, false, rngs),
            image_norm: tower_norm(vision, rngs),
            image_projection: projection(vision.hidden_size, config.projection_dim, rngs),
            // The logarithm of 1 / 0.07.
            logit_scale: array((1.0f32 / 0.07).ln()).astype(rngs.policy().param_dtype),
            end_token: config.end_token,
        })
    }

    fn extents(config: &ClipConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let patches = config.image_size / config.patch_size.max(1);
        let patch = config.patch_size.saturating_mul(config.patch_size);
        let mut matrices = vec![
            ("token table", config.vocab_size, config.text.hidden_size),
            ("position table", config.max_position_embeddings, config.text.hidden_size),
            ("table of patches", patches.saturating_mul(patches), config.vision.hidden_size),
            ("patch", patch, config.num_channels.saturating_mul(config.vision.hidden_size)),
            ("projection", config.projection_dim, config.text.hidden_size.max(config.vision.hidden_size)),
        ];
        for tower in [&config.text, &config.vision] {
            matrices.push(("query kernel", tower.hidden_size, tower.hidden_size));
            matrices.push(("MLP kernel", tower.hidden_size, tower.intermediate_size));
        }
        (config.text.num_hidden_layers.saturating_add(config.vision.num_hidden_layers), matrices)
    }
}

/// Reads both encoders. The features of a text are the features of its largest token.
pub(super) fn towers(fields: &Fields, text: &Fields, vision: &Fields) -> Result<ClipConfig> {
    let read = ClipConfig {
        text: tower(text)?,
        vision: tower(vision)?,
        vocab_size: text.size("vocab_size")?,
        max_position_embeddings: text.size("max_position_embeddings")?,
        end_token: None,
        image_size: vision.size("image_size")?,
        patch_size: vision.size("patch_size")?,
        num_channels: vision.size("num_channels")?,
        projection_dim: fields.size("projection_dim")?,
    };
    vision.divides(("patch_size", read.patch_size), ("image_size", read.image_size))?;
    // The initial value for training.
    fields.skip(&["logit_scale_init_value"]);
    text.finish()?;
    vision.finish()?;
    Ok(read)
}

/// Reads the sizes that have the same names for both encoders.
pub(super) fn tower(fields: &Fields) -> Result<ClipTower> {
    let tower = ClipTower {
        hidden_size: fields.size("hidden_size")?,
        intermediate_size: fields.size("intermediate_size")?,
        num_hidden_layers: fields.layers("num_hidden_layers")?,
        num_attention_heads: fields.size("num_attention_heads")?,
        layer_norm_eps: fields.number("layer_norm_eps")?,
        hidden_act: fields.activation("hidden_act")?,
    };
    fields.divides(("num_attention_heads", tower.num_attention_heads), ("hidden_size", tower.hidden_size))?;
    // Fields of the classes for a single encoder, and fields that older versions wrote to every configuration.
    fields.skip(&["projection_dim", "tie_word_embeddings", "remove_invalid_values", "tie_encoder_decoder"]);
    Ok(tower)
}

/// Creates the patches of images with this number of channels, features, rows of an image and rows of a patch.
#[track_caller]
pub(super) fn patches([channels, features, image, patch]: [usize; 4], rngs: &mut Rngs) -> Result<Patches> {
    let sizes = PatchSizes {
        channels,
        features,
        image,
        patch,
        conv_bias: false,
        has_class: true,
        has_distillation: false,
        registers: 0,
        is_flat: true,
        has_mask: false,
        has_mask_dims: false,
        has_positions: true,
        interpolation: None,
    };
    Patches::new(&sizes, rngs)
}

/// Creates the blocks of an encoder.
#[track_caller]
pub(super) fn blocks(tower: &ClipTower, is_causal: bool, rngs: &mut Rngs) -> Vec<EncoderBlock> {
    let sizes = [tower.hidden_size, tower.intermediate_size, tower.num_attention_heads];
    let sizes = BlockSizes { is_causal, ..BlockSizes::new(sizes, tower.hidden_act, tower.layer_norm_eps, true) };
    (0..tower.num_hidden_layers).map(|_| EncoderBlock::new(&sizes, rngs)).collect()
}

pub(super) fn tower_norm(tower: &ClipTower, rngs: &mut Rngs) -> LayerNorm {
    LayerNorm::builder(tower.hidden_size).epsilon(tower.layer_norm_eps).build(rngs)
}

pub(super) fn projection(inputs: usize, features: usize, rngs: &mut Rngs) -> Linear {
    Linear::builder(inputs, features).use_bias(false).kernel_axes([Some("embed"), None]).build(rngs)
}

/// Returns the names of an encoder's blocks at a key path.
pub(super) fn tower_keys(path: &str, model: &str) -> KeyMap {
    let layer = format!("{model}.encoder.layers.*");
    let attention = ["q_proj", "k_proj", "v_proj", "out_proj"].map(|part| format!("{layer}.self_attn.{part}"));
    let norms = ["layer_norm1", "layer_norm2"].map(|part| format!("{layer}.{part}"));
    block_keys(path, &attention, &norms, &["mlp.fc1", "mlp.fc2"].map(|part| format!("{layer}.{part}")))
}

/// Returns the names of the arrays.
pub(super) fn keys() -> KeyMap {
    KeyMap::new()
        .array("tokens.embedding", "text_model.embeddings.token_embedding.weight", Layout::Same)
        .array("positions.embedding", "text_model.embeddings.position_embedding.weight", Layout::Same)
        .and(tower_keys("text_blocks[*]", "text_model"))
        .norm("text_norm", "text_model.final_layer_norm")
        .linear("text_projection", "text_projection")
        .ignore("text_model.embeddings.position_ids")
        .and(image_keys())
}

/// Returns the names of the encoder of images and of the factor of logits.
pub(super) fn image_keys() -> KeyMap {
    let embeddings = ["patch_embedding", "class_embedding", "position_embedding.weight"];
    let embeddings = embeddings.map(|part| format!("vision_model.embeddings.{part}"));
    patch_keys("patches", &embeddings)
        .norm("first_norm", "vision_model.pre_layrnorm")
        .and(tower_keys("image_blocks[*]", "vision_model"))
        .norm("image_norm", "vision_model.post_layernorm")
        .linear("image_projection", "visual_projection")
        .array("logit_scale", "logit_scale", Layout::Same)
        .ignore("vision_model.embeddings.position_ids")
}

impl Clip {
    /// Computes the features of texts, `[batch, projected features]`, from their tokens `[batch, length]`. Each text
    /// must end with the end token. The features are not normalized.
    ///
    /// A text can have at most as many tokens as the model has positions.
    #[track_caller]
    pub fn text_features(&self, tokens: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let tokens = tokens.into_array();
        if let Err(error) = check_positions("Clip", &self.positions, 0, &tokens) {
            return Array::from_error(error, &tokens);
        }
        let length = tokens.shape().last().copied().unwrap_or(0);
        let x = self.tokens.forward(&tokens) + self.positions.forward(arange(0..length as i32));
        let x = self.text_blocks.iter().fold(x, |x, block| block.forward(x));
        let x = self.text_norm.forward(x);
        let end = match self.end_token {
            Some(end) => tokens.equal(end).astype(DType::I32).argmax(-1),
            None => tokens.argmax(-1),
        };
        let x = (&x * one_hot(end, length).astype(x.dtype()).expand_dims(-1)).sum(-2);
        self.text_projection.forward(x)
    }

    /// Computes the features of images, `[batch, projected features]`, from `[batch, rows, columns, channels]`. The
    /// features are not normalized.
    #[track_caller]
    pub fn image_features(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        self.image_side().features(images)
    }

    /// Returns the encoder of images.
    pub(super) fn image_side(&self) -> ImageSide<'_> {
        ImageSide {
            patches: &self.patches,
            first_norm: &self.first_norm,
            blocks: &self.image_blocks,
            norm: &self.image_norm,
            projection: &self.image_projection,
        }
    }

    /// Interpolates positions for images of other sizes.
    pub(super) fn with_interpolation(mut self, interpolation: Interpolation) -> Clip {
        self.patches.interpolation = Some(interpolation);
        self
    }

    /// Computes logits `[images, texts]`: the cosine similarity of the features of each image and each text, times the
    /// learned factor.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        similarities(self.text_features(tokens), self.image_features(images), &self.logit_scale)
    }
}
