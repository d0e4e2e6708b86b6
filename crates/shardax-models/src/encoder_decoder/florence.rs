//! Florence-2, which writes texts about images.

use shardax_nn::prelude::*;

use super::read::florence_text;
use super::{EncoderDecoder, EncoderDecoderConfig};
use crate::GenerateOptions;
use crate::error::value_error;
use crate::huggingface::{
    BertOptions, Config, DaVit, DaVitConfig, KeyMap, Layout, Pretrained, check_type, checked, davit_keys,
};
use crate::ranks::allow_any_ranks;
use crate::shardings::gather_mask;

/// The architecture of a [`Florence`].
#[derive(Clone, Debug, PartialEq)]
pub struct FlorenceConfig {
    /// The encoder of images.
    pub images: DaVitConfig,
    /// The encoder and the decoder of texts.
    pub text: EncoderDecoderConfig,
    /// The number of rows and of columns of features that have positions.
    pub positions: usize,
    /// The number of positions in a video. Images have the first position.
    pub frames: usize,
    /// The token that the features of an image replace.
    pub image_token: i32,
}

/// Florence-2 ([Xiao et al. 2023](https://arxiv.org/abs/2311.06242)), which describes images, finds objects in them and reads
/// their texts, as a prompt asks. The model type is `florence2`.
///
/// The tokens of a prompt begin with as many image tokens as an image has features, see
/// [`image_features`](Florence::image_features). Dimensions are named `vocab`, `embed`, `heads` and `mlp`, see [`Rules`].
///
/// ```no_run
/// use shardax_models::{BertOptions, Florence, GenerateOptions, Pretrained};
/// use shardax_nn::prelude::*;
/// let model = Florence::from_pretrained("Florence-2-base")?;
/// let images = zeros([1, 768, 768, 3]);
/// // 577 image tokens, and "What does the image describe?".
/// let mut tokens = vec![51289; 577];
/// tokens.extend([0, 2264, 473, 5, 2274, 6190, 116, 2]);
/// let tokens = Array::from_vec(tokens, &[1, 585])?;
/// let written = model.generate(images, tokens, &[2], &GenerateOptions::new(100).stop_tokens([2]))?;
/// # let _ = written;
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Florence {
    images: DaVit,
    rows: Embed,
    columns: Embed,
    /// `[frames, features]`: the positions in a video.
    frames: Array,
    projection: Linear,
    projection_norm: LayerNorm,
    /// The encoder and the decoder of texts.
    pub text: EncoderDecoder,
    #[tree(static)]
    image_token: i32,
}

/// Added to the variance in the norm of image features. The class does not read it from the configuration.
const EPSILON: f64 = 1e-5;

impl Pretrained for Florence {
    type Architecture = FlorenceConfig;

    fn read(config: &Config) -> Result<(FlorenceConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "florence2")?;
        match fields.class()? {
            None | Some("Florence2ForConditionalGeneration") => {}
            Some(other) => {
                return Err(fields.error(format!("the class {other:?} of `architectures` does not generate text")));
            }
        }
        let vision = fields.model("vision_config", "florence_vision")?;
        let images = DaVitConfig::read(&vision)?;
        let text = fields.model("text_config", "bart")?;
        if text.has("model_type") && !text.has_type("bart") {
            return Err(text.error("`model_type` is not \"bart\", which is the only supported one"));
        }
        let is_tied = fields.flag_or("tie_word_embeddings", true)?;
        let (text_config, keys) = florence_text(&text, is_tied)?;
        let features = text_config.features;
        vision.check_size("projection_dim", features)?;
        let read = FlorenceConfig {
            positions: vision.size("max_position_embeddings")?,
            frames: vision.size("max_temporal_embeddings")?,
            image_token: fields.natural("image_token_id")? as i32,
            images,
            text: text_config,
        };
        if read.image_token as usize >= read.text.vocab_size {
            let message = format!("`image_token_id` is {}, which is not in the vocabulary", read.image_token);
            return Err(fields.error(message));
        }
        if read.images.features() < 2 {
            return Err(vision.error("`embed_dim` must be at least 2 in the last stage"));
        }
        vision.finish()?;
        text.finish()?;
        fields.skip(&["is_encoder_decoder", "projection_dim"]);
        fields.finish()?;
        checked(config, read.text.extents(), read.text.check())?;
        let projector = "model.multi_modal_projector";
        let keys = keys
            .inside("text.", "")
            .and(davit_keys(&read.images, "model.vision_tower.").inside("images.", ""))
            .array("rows.embedding", format!("{projector}.image_position_embed.row_embeddings.weight"), Layout::Same)
            .array(
                "columns.embedding",
                format!("{projector}.image_position_embed.column_embeddings.weight"),
                Layout::Same,
            )
            .array("frames", format!("{projector}.visual_temporal_embed.pos_idx_to_embed"), Layout::Same)
            .linear("projection", &format!("{projector}.image_projection"))
            .norm("projection_norm", &format!("{projector}.image_proj_norm"));
        let table = "model.language_model.shared.weight";
        let copies = ["model.language_model.encoder", "model.language_model.decoder"];
        let keys = copies.iter().fold(keys, |keys, stage| keys.tied(&format!("{stage}.embed_tokens.weight"), table));
        Ok((read, if is_tied { keys.tied("lm_head.weight", table) } else { keys }))
    }

    fn make(config: &FlorenceConfig, rngs: &mut Rngs) -> Result<Self> {
        let (features, count) = (config.images.features(), config.positions);
        let half = features / 2;
        Ok(Florence {
            images: DaVit::new(&config.images, rngs),
            rows: Embed::new(count, half, rngs),
            columns: Embed::new(count, features - half, rngs),
            frames: zeros_dtype([config.frames, features], rngs.policy().param_dtype),
            projection: Linear::builder(features, config.text.features).use_bias(false).build(rngs),
            projection_norm: LayerNorm::builder(config.text.features).epsilon(EPSILON).build(rngs),
            text: EncoderDecoder::new(&config.text, rngs)?,
            image_token: config.image_token,
        })
    }

    fn extents(config: &FlorenceConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (depth, images) = config.images.extents();
        let (layers, mut matrices) = EncoderDecoder::extents(&config.text);
        let features = config.images.features();
        matrices.push(("table of image positions", config.positions, features));
        matrices.push(("table of frames", config.frames, features));
        matrices.push(("projection of images", features, config.text.features));
        (layers.saturating_add(depth), [images, matrices].concat())
    }
}

impl Florence {
    /// Computes the features of images, `[batch, count, features]`, from images `[batch, rows, columns, channels]`: the mean of all
    /// features, and then the features of each place.
    #[track_caller]
    pub fn image_features(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let x = self.images.forward(images.into_array());
        let (Ok(()), &[batch, rows, columns, features]) = (x.check(), x.shape()) else { return x };
        let places = self.rows.embedding.shape()[0];
        if rows.max(columns) > places {
            let message =
                format!("Florence: an image has {rows} by {columns} features, but only {places} have positions");
            return Array::from_error(value_error(message, "use smaller images"), &x);
        }
        let by_row = self.rows.embedding.get(..rows).expand_dims(1);
        let by_column = self.columns.embedding.get(..columns).expand_dims(0);
        let shape = |table: &Array| [rows, columns, table.shape()[2]];
        let positions =
            concatenate(&[by_column.broadcast_to(shape(&by_column)), by_row.broadcast_to(shape(&by_row))], -1);
        let x = &x + positions.astype(x.dtype()) + self.frames.get(0).astype(x.dtype());
        let x = x.reshape([batch, rows * columns, features]);
        let x = concatenate(&[x.mean_keepdims(1), x], 1);
        self.projection_norm.forward(self.projection.forward(x))
    }

    /// Embeds tokens, `[batch, length]`, and replaces image tokens by these features of images, in their order.
    #[track_caller]
    fn embedded(&self, features: Array, tokens: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let tokens = tokens.into_array();
        if let Err(error) = features.check().and_then(|()| self.check_image_tokens(&tokens, features.shape()[1])) {
            return Array::from_error(error, &tokens);
        }
        let embedded = self.text.embedded(&tokens);
        let is_image = gather_mask(tokens).equal(self.image_token);
        let rank = is_image.astype(DType::I32).cumsum(-1) - 1;
        // A product with zeros and ones instead of a gather, whose sharding could not be inferred.
        let chosen = one_hot(rank, features.shape()[1]).astype(features.dtype());
        let chosen = chosen * is_image.expand_dims(-1).astype(features.dtype());
        let placed = einsum("bln,bnf->blf", &[&chosen, &features]).astype(embedded.dtype());
        where_(is_image.expand_dims(-1), placed, embedded)
    }

    /// Returns an error unless each text has as many image tokens as an image has features. While a function is traced, the
    /// tokens are not known.
    fn check_image_tokens(&self, tokens: &Array, features: usize) -> Result<()> {
        tokens.check()?;
        let &[_, length] = tokens.shape() else {
            let message = format!("Florence: tokens of the shape {:?} are not [batch, length]", tokens.shape());
            return Err(value_error(message, "pass the tokens of a prompt for each image"));
        };
        if tokens.is_traced() || !tokens.is_fully_addressable() {
            return Ok(());
        }
        let values = tokens.to_f64_vec()?;
        let count = |text: &[f64]| text.iter().filter(|token| **token == f64::from(self.image_token)).count();
        match values.chunks(length.max(1)).map(count).find(|count| *count != features) {
            Some(count) => {
                let token = self.image_token;
                let message =
                    format!("Florence: a text has {count} image tokens ({token}), but an image {features} features");
                Err(value_error(message, "begin each text with one image token for each feature of its image"))
            }
            None => Ok(()),
        }
    }

    /// Computes the logits for the token after each token of `targets`, `[batch, length]`, for images `[batch, rows, columns,
    /// channels]` and the tokens of prompts. The options can have the mask of the prompts.
    #[track_caller]
    pub fn forward(
        &self,
        images: impl ArrayLike,
        tokens: impl ArrayLike,
        targets: impl ArrayLike,
        options: &BertOptions,
    ) -> Array {
        self.text.forward(self.embedded(self.image_features(images), tokens), targets, options)
    }

    /// Generates a text for each image and its prompt. All texts start with the tokens `start`, usually
    /// `decoder_start_token_id`. Prompts must have the same length.
    ///
    /// # Errors
    /// Returns the errors of [`EncoderDecoder::generate`], and an error if a prompt does not have as many image tokens as an image
    /// has features.
    #[track_caller]
    pub fn generate(
        &self,
        images: impl ArrayLike,
        tokens: impl ArrayLike,
        start: &[i32],
        options: &GenerateOptions,
    ) -> Result<Vec<Vec<i32>>> {
        // The tokens are embedded outside of `jit`, where their values are known and checked.
        let features = jit(|model: Florence, images: Array| model.image_features(images));
        let features = features.call((self, images.into_array()))?;
        self.text.generate(self.embedded(features, tokens), start, options)
    }
}
