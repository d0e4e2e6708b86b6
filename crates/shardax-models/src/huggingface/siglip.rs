//! SigLIP.

use shardax_nn::prelude::*;

use super::clip::{blocks, tower, tower_keys, tower_norm};
use super::encoder::EncoderBlock;
use super::fields::Fields;
use super::interpolation::Interpolation;
use super::patches::{PatchSizes, Patches};
use super::{ClipTower, Config, KeyMap, Layout, Pretrained, attention};
use crate::Mlp;
use crate::decoder::check_positions;
use crate::ranks::allow_any_ranks;
use crate::shardings::{gather_positions, products_of_rows, reshard_like};

/// The architecture of a [`Siglip`].
#[derive(Clone, Debug, PartialEq)]
pub struct SiglipConfig {
    /// The encoder of texts.
    pub text: ClipTower,
    /// The encoder of images. Its features must have the size of the text features.
    pub vision: ClipTower,
    /// The number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// The maximal number of tokens of a text.
    pub max_position_embeddings: usize,
    /// The rows and columns of an image.
    pub image_size: usize,
    /// The rows and columns of a patch. They must divide the rows and columns of an image.
    pub patch_size: usize,
    /// The number of color channels.
    pub num_channels: usize,
    /// True if images can have any size, because positions are interpolated (SigLIP 2 NaFlex).
    pub any_size: bool,
}

/// SigLIP ([Zhai et al. 2023](https://arxiv.org/abs/2303.15343)), which compares texts with images (`SiglipModel`), and SigLIP 2
/// ([Tschannen et al. 2025](https://arxiv.org/abs/2502.14786)) for images of a fixed size or of any size (`Siglip2Model`).
#[derive(Module, Clone, Debug)]
pub struct Siglip {
    tokens: Embed,
    positions: Embed,
    text_blocks: Vec<EncoderBlock>,
    text_norm: LayerNorm,
    text_projection: Linear,
    patches: Patches,
    image_blocks: Vec<EncoderBlock>,
    image_norm: LayerNorm,
    pooling: Pooling,
    /// `[1]`: the logarithm of the factor for the logits.
    logit_scale: Array,
    /// `[1]`: added to the logits.
    logit_bias: Array,
}

/// Pools the patches by attention with a single learned query, followed by an MLP.
#[derive(Module, Clone, Debug)]
struct Pooling {
    /// `[1, 1, features]`
    probe: Array,
    attention: MultiHeadAttention,
    norm: LayerNorm,
    mlp: Mlp,
}

impl Pretrained for Siglip {
    type Architecture = SiglipConfig;

    fn read(config: &Config) -> Result<(SiglipConfig, KeyMap)> {
        let fields = config.fields();
        let any_size = match fields.text("model_type")? {
            "siglip" => false,
            "siglip2" => true,
            other => {
                let message = format!("the model_type is {other:?}, but should be \"siglip\" or \"siglip2\"");
                return Err(fields.error(message));
            }
        };
        let [text, vision] = if any_size {
            [("text_config", "siglip2_text_model"), ("vision_config", "siglip2_vision_model")]
        } else {
            [("text_config", "siglip_text_model"), ("vision_config", "siglip_vision_model")]
        }
        .map(|(name, kind)| fields.model(name, kind));
        let (text, vision) = (text?, vision?);
        let patch_size = vision.size("patch_size")?;
        let read = SiglipConfig {
            text: tower(&text)?,
            vision: tower(&vision)?,
            vocab_size: text.size("vocab_size")?,
            max_position_embeddings: text.size("max_position_embeddings")?,
            image_size: if any_size {
                grid_of(&vision)?.saturating_mul(patch_size)
            } else {
                vision.size("image_size")?
            },
            patch_size,
            num_channels: vision.size("num_channels")?,
            any_size,
        };
        vision.divides(("patch_size", read.patch_size), ("image_size", read.image_size))?;
        let features = text.size_opt("projection_size")?.unwrap_or(read.text.hidden_size);
        // Logits are cosine similarities, so the vectors of texts and images must have the same size.
        if features != read.vision.hidden_size {
            let message = format!("texts have {features} features, and images {}", read.vision.hidden_size);
            return Err(fields.error(message));
        }
        if !vision.flag("vision_use_head")? {
            return Err(
                vision.error("field `vision_use_head` is false, but only models with a head for images are supported")
            );
        }
        fields.finish()?;
        text.finish()?;
        vision.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &SiglipConfig, rngs: &mut Rngs) -> Result<Self> {
        let (text, vision) = (&config.text, &config.vision);
        let patches = PatchSizes {
            channels: config.num_channels,
            features: vision.hidden_size,
            image: config.image_size,
            patch: config.patch_size,
            conv_bias: true,
            has_class: false,
            has_distillation: false,
            registers: 0,
            is_flat: true,
            has_mask: false,
            has_mask_dims: false,
            has_positions: true,
            interpolation: config.any_size.then_some(Interpolation::FilteredLinear),
        };
        let projection = Linear::builder(text.hidden_size, vision.hidden_size);
        Ok(Siglip {
            tokens: Embed::builder(config.vocab_size, text.hidden_size).axes(["vocab", "embed"]).build(rngs),
            positions: Embed::new(config.max_position_embeddings, text.hidden_size, rngs),
            text_blocks: blocks(text, false, rngs),
            text_norm: tower_norm(text, rngs),
            text_projection: projection.kernel_axes([Some("embed"), None]).build(rngs),
            patches: Patches::new(&patches, rngs)?,
            image_blocks: blocks(vision, false, rngs),
            image_norm: tower_norm(vision, rngs),
            pooling: Pooling {
                probe: zeros_dtype([1, 1, vision.hidden_size], rngs.policy().param_dtype),
                attention: attention(vision.num_attention_heads, vision.hidden_size).build(rngs),
                norm: tower_norm(vision, rngs),
                mlp: Mlp::new(vision.hidden_size, vision.intermediate_size, vision.hidden_act, false, true, rngs),
            },
            // The initial factor is 10, and the initial bias assumes that few pairs of a batch match.
            logit_scale: array([10f32.ln()]).astype(rngs.policy().param_dtype),
            logit_bias: array([-10f32]).astype(rngs.policy().param_dtype),
        })
    }

    fn extents(config: &SiglipConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let patches = config.image_size / config.patch_size.max(1);
        let patch = config.patch_size.saturating_mul(config.patch_size);
        let mut matrices = vec![
            ("token table", config.vocab_size, config.text.hidden_size),
            ("position table", config.max_position_embeddings, config.text.hidden_size),
            ("table of patches", patches.saturating_mul(patches), config.vision.hidden_size),
            ("patch", patch, config.num_channels.saturating_mul(config.vision.hidden_size)),
        ];
        for tower in [&config.text, &config.vision] {
            matrices.push(("query kernel", tower.hidden_size, tower.hidden_size));
            matrices.push(("MLP kernel", tower.hidden_size, tower.intermediate_size));
        }
        (config.text.num_hidden_layers.saturating_add(config.vision.num_hidden_layers), matrices)
    }
}

/// Returns the rows and columns of learned positions, which are a square.
fn grid_of(vision: &Fields) -> Result<usize> {
    let count = vision.size("num_patches")?;
    let grid = count.isqrt();
    if grid * grid == count {
        Ok(grid)
    } else {
        Err(vision.error(format!("`num_patches` is {count}, which is not the square of an integer")))
    }
}

fn keys(config: &SiglipConfig) -> KeyMap {
    let features = config.vision.hidden_size;
    // PyTorch stores one matrix for queries, keys and values. Its name has no dot.
    let joined = ["query", "key", "value"].into_iter().enumerate().fold(KeyMap::new(), |keys, (index, layer)| {
        let path = format!("pooling.attention.{layer}");
        let rows = Layout::nth_rows(index, features, 3);
        keys.array(format!("{path}.kernel"), "vision_model.head.attention.in_proj_weight", rows).array(
            format!("{path}.bias"),
            "vision_model.head.attention.in_proj_bias",
            rows,
        )
    });
    joined
        .array("tokens.embedding", "text_model.embeddings.token_embedding.weight", Layout::Same)
        .array("positions.embedding", "text_model.embeddings.position_embedding.weight", Layout::Same)
        .and(tower_keys("text_blocks[*]", "text_model"))
        .norm("text_norm", "text_model.final_layer_norm")
        .linear("text_projection", "text_model.head")
        .weights(
            "patches.conv",
            "vision_model.embeddings.patch_embedding",
            if config.any_size {
                // A linear layer of the rows, columns and channels of a patch.
                Layout::Transposed
            } else {
                Layout::Convolution
            },
        )
        .array("patches.positions", "vision_model.embeddings.position_embedding.weight", Layout::Same)
        .and(tower_keys("image_blocks[*]", "vision_model"))
        .norm("image_norm", "vision_model.post_layernorm")
        .array("pooling.probe", "vision_model.head.probe", Layout::Same)
        .linear("pooling.attention.out", "vision_model.head.attention.out_proj")
        .norm("pooling.norm", "vision_model.head.layernorm")
        .linear("pooling.mlp.up", "vision_model.head.mlp.fc1")
        .linear("pooling.mlp.down", "vision_model.head.mlp.fc2")
        .array("logit_scale", "logit_scale", Layout::Same)
        .array("logit_bias", "logit_bias", Layout::Same)
        .ignore("text_model.embeddings.position_ids")
        .ignore("vision_model.embeddings.position_ids")
}

impl Siglip {
    /// Computes the features of texts, `[batch, features]`, from their tokens `[batch, length]`. The features are not
    /// normalized.
    ///
    /// You should pad texts to the maximal length, as in training, because the features of the last position represent
    /// the text. A text can have at most as many tokens as the model has positions.
    #[track_caller]
    pub fn text_features(&self, tokens: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let tokens = tokens.into_array();
        if let Err(error) = check_positions("Siglip", &self.positions, 0, &tokens) {
            return Array::from_error(error, &tokens);
        }
        let length = tokens.shape().last().copied().unwrap_or(0);
        let x = self.tokens.forward(&tokens) + self.positions.forward(arange(0..length as i32));
        let x = self.text_blocks.iter().fold(x, |x, block| block.forward(x));
        self.text_projection.forward(gather_positions(self.text_norm.forward(x)).get((.., -1)))
    }

    /// Computes the features of images, `[batch, features]`, from `[batch, rows, columns, channels]`. The features are
    /// not normalized.
    ///
    /// SigLIP 2 for images of any size computes images whose rows and columns are multiples of the rows and columns of a patch. All
    /// images of a batch have one size.
    #[track_caller]
    pub fn image_features(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        if let Err(error) = self.patches.check_size(&images) {
            return Array::from_error(error, &images);
        }
        let x = self.patches.forward(images);
        if x.check().is_err() {
            return x;
        }
        let x = self.image_blocks.iter().fold(x, |x, block| block.forward(x));
        let x = self.image_norm.forward(x);
        let Pooling { probe, attention, norm, mlp } = &self.pooling;
        let probe = probe.astype(x.dtype()).broadcast_to([x.shape()[0], 1, x.shape()[2]]);
        let probe = reshard_like(probe, &x);
        let x = attention.attend(probe, &x, &x, AttentionOptions::new());
        (&x + mlp.forward(norm.forward(&x))).get((.., 0))
    }

    /// Computes logits `[images, texts]`: the cosine similarity of the features of each image and each text, times the
    /// learned factor, plus the learned bias. The sigmoid of a logit is the probability that image and text match.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let (texts, images) = (self.text_features(tokens), self.image_features(images));
        let [texts, images] = [texts, images].map(|x| &x / x.square().sum_keepdims(-1).sqrt());
        let cosines = products_of_rows(&images, texts);
        let dtype = cosines.dtype();
        cosines * self.logit_scale.exp().astype(dtype) + self.logit_bias.astype(dtype)
    }
}
