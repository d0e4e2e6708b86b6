//! BLIP's classes that read texts about images: answers to questions, and the retrieval of images and texts.

use shardax_nn::prelude::*;

use super::{EncoderDecoder, EncoderDecoderConfig, ImageTower, Role, Stage, blip, over_keys};
use crate::error::value_error;
use crate::huggingface::{BertOptions, Config, KeyMap, Pretrained, VitConfig, check_type, checked};
use crate::ranks::allow_any_ranks;
use crate::shardings::{first_token, products_of_rows};
use crate::{GenerateOptions, Vit};

/// BLIP ([Li et al. 2022](https://arxiv.org/abs/2201.12086)) that answers questions about images: `BlipForQuestionAnswering`. The model
/// type is `blip`. [`EncoderDecoder`] reads the class that writes captions, and [`BlipMatcher`] the class that compares images with
/// texts.
#[derive(Module, Clone, Debug)]
pub struct BlipAnswerer {
    questions: TextReader,
    /// The encoder of images, and the decoder of answers.
    text: EncoderDecoder,
}

/// The architecture of a [`BlipMatcher`].
#[derive(Clone, Debug, PartialEq)]
pub struct BlipMatcherConfig {
    /// The encoders of images and of texts.
    pub text: EncoderDecoderConfig,
    /// The number of features that are compared.
    pub image_text_hidden_size: usize,
}

/// BLIP that compares images with texts: `BlipForImageTextRetrieval`. The model type is `blip`.
#[derive(Module, Clone, Debug)]
pub struct BlipMatcher {
    images: Vit,
    texts: TextReader,
    /// Computes whether an image and a text match.
    matches: Linear,
    image_projection: Linear,
    text_projection: Linear,
}

/// An encoder of texts, whose tokens can attend to an image.
#[derive(Module, Clone, Debug)]
struct TextReader {
    embed: Embed,
    stage: Stage,
}

impl TextReader {
    #[track_caller]
    fn new(config: &EncoderDecoderConfig, rngs: &mut Rngs) -> TextReader {
        TextReader {
            embed: Embed::builder(config.vocab_size, config.features).axes(["vocab", "embed"]).build(rngs),
            stage: Stage::new(config, &config.decoder, Role::Reader, rngs),
        }
    }

    /// Computes the features of tokens, `[batch, length, features]`. `image` has features of an image for each text.
    #[track_caller]
    fn forward(&self, tokens: impl ArrayLike, image: Option<&Array>, options: &BertOptions) -> Array {
        let x = self.embed.forward(tokens);
        if x.check().is_err() {
            return x;
        }
        let length = x.shape().get(1).copied().unwrap_or(0);
        let x = match self.stage.positioned(x, || arange(0..length as i32)) {
            Ok(x) => x,
            Err(error) => return error,
        };
        let options =
            options.mask().iter().fold(AttentionOptions::new(), |options, mask| options.mask(over_keys(mask)));
        self.stage.blocks.iter().fold(x, |x, block| {
            let x = block.added(&block.norm, x, |x| block.attention.attend(x, x, x, options.clone()));
            let x = match (&block.cross_norm, &block.cross, image) {
                (Some(norm), Some(cross), Some(image)) => {
                    block.added(norm, x, |x| cross.attend(x, image, image, AttentionOptions::new()))
                }
                _ => x,
            };
            block.added(&block.mlp_norm, x, |x| block.mlp.forward(x))
        })
    }
}

/// Reads the fields that both classes share. `class` is the name of the class.
fn read_fields(config: &Config, class: &str) -> Result<(EncoderDecoderConfig, KeyMap, usize)> {
    let fields = config.fields();
    check_type(&fields, "blip")?;
    if let Some(name) = fields.class()?
        && name != class
    {
        return Err(fields.error(format!("the class {name:?} of `architectures` is not {class:?}")));
    }
    let compared = fields.size("image_text_hidden_size")?;
    let (read, keys) = blip::read(&fields)?;
    fields.finish()?;
    checked(config, read.extents(), read.check())?;
    Ok((read, keys, compared))
}

/// Returns the sizes of a model that has a second encoder of texts.
fn extents_of(config: &EncoderDecoderConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
    let (layers, matrices) = EncoderDecoder::extents(config);
    (layers.saturating_add(config.encoder.layers), matrices)
}

/// Returns the configuration of the encoder of images.
fn images_of(config: &EncoderDecoderConfig) -> Result<&VitConfig> {
    match config.images.as_ref().map(|images| &images.encoder) {
        Some(ImageTower::Vit(images)) => Ok(images),
        _ => Err(value_error("BLIP: the configuration has no ViT", "set `images` to `ImageTower::Vit`")),
    }
}

impl Pretrained for BlipAnswerer {
    type Architecture = EncoderDecoderConfig;

    fn read(config: &Config) -> Result<(EncoderDecoderConfig, KeyMap)> {
        let (read, keys, _) = read_fields(config, "BlipForQuestionAnswering")?;
        let images = images_of(&read)?;
        if images.hidden_size != read.features {
            let message = format!(
                "images have {} features and texts {}, but the decoder of answers needs equal numbers",
                images.hidden_size, read.features
            );
            return Err(config.fields().error(message));
        }
        let keys = blip::with_copies(keys.inside("text.", ""));
        Ok((read, keys.and(blip::reader_keys("questions.embed", "questions.stage", "text_encoder"))))
    }

    fn make(config: &EncoderDecoderConfig, rngs: &mut Rngs) -> Result<Self> {
        Ok(BlipAnswerer { questions: TextReader::new(config, rngs), text: EncoderDecoder::new(config, rngs)? })
    }

    fn extents(config: &EncoderDecoderConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        extents_of(config)
    }
}

impl BlipAnswerer {
    /// Computes the features of questions, `[batch, length, features]`, about images `[batch, rows, columns, channels]`.
    #[track_caller]
    fn encode(&self, images: impl ArrayLike, questions: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let image = self.text.encode_images(images.into_array());
        if image.check().is_err() {
            return image;
        }
        self.questions.forward(questions, Some(&image), options)
    }

    /// Computes the logits for the token after each token of `answers`, `[batch, length]`, for images `[batch, rows, columns,
    /// channels]` and the tokens of questions, `[batch, length]`. The options can have the mask of the questions. Answers attend to
    /// padding of questions too, as in `transformers`, but the tokens of a question do not.
    #[track_caller]
    pub fn forward(
        &self,
        images: impl ArrayLike,
        questions: impl ArrayLike,
        answers: impl ArrayLike,
        options: &BertOptions,
    ) -> Array {
        self.text.forward(self.encode(images, questions, options), answers, &BertOptions::new())
    }

    /// Generates the answer to a question about each image. All answers start with the tokens `start`, usually `bos_token_id` of the
    /// texts, and end with `sep_token_id`, which you must pass as a stop token. Questions must have the same length.
    ///
    /// # Errors
    /// Returns the errors of [`EncoderDecoder::generate`].
    #[track_caller]
    pub fn generate(
        &self,
        images: impl ArrayLike,
        questions: impl ArrayLike,
        start: &[i32],
        options: &GenerateOptions,
    ) -> Result<Vec<Vec<i32>>> {
        let encode = jit(|model: BlipAnswerer, images: Array, questions: Array| {
            model.encode(images, questions, &BertOptions::new())
        });
        let encoded = encode.call((self, images.into_array(), questions.into_array()))?;
        self.text.generate(encoded, start, options)
    }
}

impl Pretrained for BlipMatcher {
    type Architecture = BlipMatcherConfig;

    fn read(config: &Config) -> Result<(BlipMatcherConfig, KeyMap)> {
        let (text, _, image_text_hidden_size) = read_fields(config, "BlipForImageTextRetrieval")?;
        let keys = blip::image_keys(images_of(&text)?.hidden_size)
            .inside("images.", "")
            .and(blip::reader_keys("texts.embed", "texts.stage", "text_encoder"))
            .linear("matches", "itm_head")
            .linear("image_projection", "vision_proj")
            .linear("text_projection", "text_proj");
        Ok((BlipMatcherConfig { text, image_text_hidden_size }, keys))
    }

    fn make(config: &BlipMatcherConfig, rngs: &mut Rngs) -> Result<Self> {
        config.text.check()?;
        let (images, features, compared) =
            (images_of(&config.text)?, config.text.features, config.image_text_hidden_size);
        Ok(BlipMatcher {
            images: Vit::make(images, rngs)?,
            texts: TextReader::new(&config.text, rngs),
            matches: Linear::new(features, 2, rngs),
            image_projection: Linear::new(images.hidden_size, compared, rngs),
            text_projection: Linear::new(features, compared, rngs),
        })
    }

    fn extents(config: &BlipMatcherConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (layers, mut matrices) = EncoderDecoder::extents(&config.text);
        matrices.push(("projection", config.text.features, config.image_text_hidden_size));
        (layers, matrices)
    }
}

impl BlipMatcher {
    /// Computes logits, `[batch, 2]`, of images `[batch, rows, columns, channels]` and a text for each of them, `[batch, length]`. The
    /// second logit is for an image and a text that match. The options can have the mask of the texts.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let image = self.encode(images);
        if image.check().is_err() {
            return image;
        }
        self.matches.forward(first_token(self.texts.forward(tokens, Some(&image), options)))
    }

    /// Computes the cosine similarities of images and texts, `[images, texts]`, which need no attention of each text to each image.
    #[track_caller]
    pub fn similarities(&self, images: impl ArrayLike, tokens: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let (image, text) = (self.encode(images), self.texts.forward(tokens, None, options));
        if let Some(error) = [&image, &text].into_iter().find(|x| x.check().is_err()) {
            return error.clone();
        }
        let image = self.image_projection.forward(first_token(image));
        let text = self.text_projection.forward(first_token(text));
        let [image, text] = [image, text].map(|x| &x / x.square().sum_keepdims(-1).sqrt().maximum(SHORTEST));
        products_of_rows(&image, text)
    }

    /// Computes features of patches, `[batch, length, features]`.
    #[track_caller]
    fn encode(&self, images: impl ArrayLike) -> Array {
        let images = images.into_array();
        match images.check().and_then(|()| self.images.check_images(&images)) {
            Ok(()) => self.images.encode(images),
            Err(error) => Array::from_error(error, &images),
        }
    }
}

/// The length of vectors by which shorter ones are divided.
const SHORTEST: f64 = 1e-12;
