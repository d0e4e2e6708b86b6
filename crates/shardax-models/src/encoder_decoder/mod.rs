//! Models with an encoder of the input and a decoder of the output, such as T5, BART and Whisper.

mod blip;
mod blip_texts;
mod config;
mod florence;
mod frames;
mod fsmt;
mod generate;
mod local;
mod moonshine;
mod positions;
mod read;
mod samples;
mod sound;
mod stage;

pub(crate) use positions::bias as distance_bias;
pub(crate) use read::KNOWN;

pub use blip_texts::{BlipAnswerer, BlipMatcher, BlipMatcherConfig};
pub use config::{
    EncoderDecoderConfig, EncoderDecoderPositions, FramesEncoderConfig, ImageEncoderConfig, ImageTower,
    SamplesEncoderConfig, Side,
};
pub use florence::{Florence, FlorenceConfig};
use frames::Frames;
pub use local::LocalEncoderConfig;
use local::LocalScope;
use samples::Samples;
pub use sound::log_mel;
use stage::{Block, Role, Stage};

use shardax_nn::prelude::*;

use crate::error::value_error;
use crate::huggingface::{BertOptions, Pretrained, Scope, Swin, Vit};
use crate::ranks::allow_any_ranks;
use crate::shardings::gather_positions;
use crate::{Activation, Norm};

/// An encoder-decoder model. The encoder reads the entire input, and the decoder generates a text that attends to it.
///
/// T5 ([Raffel et al. 2019](https://arxiv.org/abs/1910.10683)) and BART
/// ([Lewis et al. 2019](https://arxiv.org/abs/1910.13461)) read text, Whisper
/// ([Radford et al. 2022](https://arxiv.org/abs/2212.04356)) and Moonshine
/// ([Jeffries et al. 2024](https://arxiv.org/abs/2410.15608)) read sound, and TrOCR
/// ([Li et al. 2021](https://arxiv.org/abs/2109.10282)) and Donut ([Kim et al. 2021](https://arxiv.org/abs/2111.15664)) read images of
/// texts.
///
/// Dimensions are named `vocab`, `embed`, `heads` and `mlp`, see [`Rules`].
///
/// ```no_run
/// use shardax_models::{EncoderDecoder, GenerateOptions, Pretrained};
/// use shardax_nn::prelude::*;
/// let model = EncoderDecoder::from_pretrained("whisper-tiny")?;
/// // Ten seconds of sound at 16 kHz. The prompt asks for an English transcript without timestamps.
/// let sound = zeros([1, 160_000]);
/// let features = model.sound_features(&sound);
/// let prompt = [50258, 50259, 50359, 50363];
/// let written = model.generate(features, &prompt, &GenerateOptions::new(100).stop_tokens([50257]))?;
/// # let _ = written;
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct EncoderDecoder {
    /// The token embedding.
    pub embed: Embed,
    /// The token embedding of the encoder, if it differs.
    source: Option<Embed>,
    /// The convolutions at the start of an encoder that reads sound.
    sound: Option<[Conv; 2]>,
    /// The convolutions with gates at the start of an encoder that reads sound.
    frames: Option<Frames>,
    /// The convolutions at the start of an encoder that reads samples.
    samples: Option<Samples>,
    /// The encoder, if it reads images.
    images: Option<Vit>,
    /// The encoder, if it reads images and has stages.
    pages: Option<Swin>,
    /// The layer after the encoder of images.
    image_projection: Option<Linear>,
    /// The encoder, if it reads texts or sound.
    encoder: Option<Stage>,
    decoder: Stage,
    /// The layers before the last one, if there are any.
    transform: Option<OutputTransform>,
    /// The layer that computes the logits, or `None` if the token embedding computes them.
    pub head: Option<Linear>,
    /// The bias of the logits, `[vocabulary]`.
    logits_bias: Option<Array>,
    embedding_scale: Option<f64>,
    logits_scale: Option<f64>,
    attention_scale: Option<f64>,
    max_distance: usize,
    #[tree(static)]
    local: Option<LocalEncoderConfig>,
}

/// A layer with an activation and a norm before the last layer.
#[derive(Module, Clone, Debug)]
struct OutputTransform {
    layer: Linear,
    norm: Norm,
    #[tree(static)]
    activation: Activation,
}

/// An encoded input: its keys and values in each layer of the decoder, and its mask.
#[derive(Tree, Clone, Debug)]
pub struct EncodedInput {
    layers: Vec<(Array, Array)>,
    mask: Option<Array>,
}

impl EncoderDecoder {
    /// Creates a model with random weights.
    ///
    /// # Errors
    /// Returns an error if [`EncoderDecoderConfig::check`] rejects the configuration.
    #[track_caller]
    pub fn new(config: &EncoderDecoderConfig, rngs: &mut Rngs) -> Result<EncoderDecoder> {
        config.check()?;
        let features = config.features;
        let sound = config.mel_bins.map(|bins| {
            [(bins, 1), (features, 2)].map(|(inputs, stride)| {
                Conv::builder(inputs, features, [3]).strides([stride]).padding([(1, 1)]).build(rngs)
            })
        });
        // The order of these calls is the order in which random numbers are drawn.
        let embed = Embed::builder(config.vocab_size, features).axes(["vocab", "embed"]).build(rngs);
        let head = (!config.tie_embeddings).then(|| {
            let builder = Linear::builder(features, config.vocab_size).use_bias(false);
            builder.kernel_axes(["embed", "vocab"]).build(rngs)
        });
        Ok(EncoderDecoder {
            embed,
            source: config
                .source_vocab_size
                .map(|size| Embed::builder(size, features).axes(["vocab", "embed"]).build(rngs)),
            sound,
            frames: config.frames.as_ref().map(|frames| Frames::new(frames, features, rngs)),
            samples: config.samples.map(|_| Samples::new(features, rngs)),
            images: match config.images.as_ref().map(|images| &images.encoder) {
                Some(ImageTower::Vit(encoder)) => Some(Vit::make(encoder, rngs)?),
                _ => None,
            },
            pages: match config.images.as_ref().map(|images| &images.encoder) {
                Some(ImageTower::Swin(encoder)) => Some(Swin::make(encoder, rngs)?),
                _ => None,
            },
            image_projection: config
                .images
                .as_ref()
                .filter(|images| images.is_projected)
                .map(|images| Linear::new(images.encoder.features(), features, rngs)),
            encoder: config.images.is_none().then(|| Stage::new(config, &config.encoder, Role::Encoder, rngs)),
            decoder: Stage::new(config, &config.decoder, Role::Decoder, rngs),
            transform: config.output_transform.then(|| OutputTransform {
                layer: Linear::new(features, features, rngs),
                norm: Norm::new(config.norm, features, config.epsilon, rngs),
                activation: config.activation,
            }),
            head,
            logits_bias: config.logits_bias.then(|| zeros_dtype([config.vocab_size], rngs.policy().param_dtype)),
            embedding_scale: config.embedding_scale,
            logits_scale: config.logits_scale,
            attention_scale: config.attention_scale,
            max_distance: match config.positions {
                EncoderDecoderPositions::Relative { max_distance, .. } => max_distance,
                EncoderDecoderPositions::Learned { .. }
                | EncoderDecoderPositions::Sines { .. }
                | EncoderDecoderPositions::Rotary { .. } => 0,
            },
            local: config.local,
        })
    }

    /// Computes the input features of the encoder, `[batch, frames, bins]`, from sound at 16 kHz, `[batch, samples]`.
    ///
    /// The sound is padded with silence to the length that the model was trained with, for Whisper 30 seconds, and must
    /// not be longer. The model must read sound. See [`log_mel`] for the features.
    #[track_caller]
    pub fn sound_features(&self, sound: impl ArrayLike) -> Array {
        let sound = sound.into_array();
        let samples = sound.shape().last().copied().unwrap_or(0);
        let positions = self.encoder.as_ref().and_then(|encoder| encoder.positions.as_ref());
        let (Some([first, _]), Some(table)) = (&self.sound, positions) else {
            let kind = match (&self.encoder, &self.frames) {
                (None, _) => "images",
                (_, Some(_)) => "features of sound that another program computes",
                (_, None) => "texts",
            };
            let error =
                value_error(format!("the model reads {kind}, not sound"), "pass its inputs to `encode` instead");
            return Array::from_error(error, &sound);
        };
        let max_samples = table.embedding.shape().first().copied().unwrap_or(0) * 2 * sound::HOP;
        if sound.ndim() != 2 || samples > max_samples {
            let message = format!(
                "sound_features: expected a shape of [batch, samples] with at most {max_samples} samples, got {:?}",
                sound.shape()
            );
            let error = value_error(message, "split longer sound into parts, and pass each part as one row");
            return Array::from_error(error, &sound);
        }
        let silence = zeros_dtype([sound.shape()[0], max_samples - samples], sound.dtype());
        let bins = first.kernel.shape().get(1).copied().unwrap_or(0);
        log_mel(concatenate(&[sound, silence], 1), bins)
    }

    /// Encodes the input, which is tokens, `[batch, length]`, embedded tokens, `[batch, length, features]`, features of sound, `[batch, frames, bins]`,
    /// sound at 16 kHz, `[batch, samples]` (Moonshine), or images, `[batch, rows, columns, channels]`. Models of images return encoded
    /// inputs, `[batch, length, features]`, unchanged.
    ///
    /// The result is `[batch, length, features]`. For features of sound, `length` is half the number of frames of Whisper, and a quarter
    /// of the frames of Speech2Text. If texts, samples or frames of Speech2Text are padded, you must pass their mask in the options.
    #[track_caller]
    pub fn encode(&self, inputs: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let inputs = inputs.into_array();
        let Some(encoder) = &self.encoder else {
            // Encoded inputs instead of images.
            let is_encoded = inputs.ndim() == 3 && !inputs.dtype().is_integer();
            return if is_encoded { inputs } else { self.encode_images(inputs) };
        };
        let x = match (&self.sound, &self.samples, &self.frames) {
            (Some(layers), _, _) => layers.iter().fold(inputs, |x, layer| gelu_exact(layer.forward(x))),
            (None, Some(samples), _) => match samples.forward(inputs.clone()) {
                Ok(x) => x,
                Err(error) => return Array::from_error(error, &inputs),
            },
            (None, None, Some(frames)) => match frames.forward(inputs.clone()) {
                Ok(x) => self.embedding_scale.map_or_else(|| x.clone(), |scale| &x * scale),
                Err(error) => return Array::from_error(error, &inputs),
            },
            (None, None, None) if inputs.ndim() == 3 && !inputs.dtype().is_integer() => inputs,
            (None, None, None) => self.embedded(inputs),
        };
        let (Ok(()), 3) = (x.check(), x.ndim()) else { return x };
        if options.has_global_attention() && encoder.blocks.iter().all(|block| block.global.is_none()) {
            let message = "EncoderDecoder: all tokens of the model see all tokens";
            return Array::from_error(value_error(message, "pass options without `global_attention`"), &x);
        }
        let length = x.shape()[1];
        let places = encoder.places_of(length, self.mask_of(options, length).as_ref());
        let x = match encoder.positioned(x, || places) {
            Ok(x) => x,
            Err(error) => return error,
        };
        let places = arange(0..length as i32);
        let has_windows = encoder.blocks.iter().any(|block| block.global.is_some());
        let scope = has_windows.then(|| Scope::new(&x.shape()[..2], options, false));
        // Windows need the neighbors of the positions of each device.
        let x = if has_windows || self.local.is_some() { gather_positions(x) } else { x };
        let tables = (encoder.distances.as_ref(), encoder.block_distances.as_ref(), self.max_distance);
        let local = self.local.map(|config| LocalScope::new(config, length, options.mask(), tables));
        let x = encoder.blocks.iter().fold(x, |x, block| {
            if let Some(local) = &local {
                let x = block.added(&block.norm, x, |x| {
                    let keys = local.keys(block.block_norm.as_ref(), x);
                    block.attention.attend(x, &keys, &keys, local.options.clone())
                });
                return block.added(&block.mlp_norm, x, |x| block.mlp.forward(x));
            }
            let table = block.distances.as_ref().or(encoder.distances.as_ref());
            let bias = table.map(|table| positions::bias(table, &places, &places, (true, self.max_distance), length));
            let attention = bias.iter().fold(AttentionOptions::new(), |attention, bias| attention.bias(bias));
            let attention =
                self.mask_of(options, length).iter().fold(attention, |attention, mask| attention.mask(over_keys(mask)));
            let scoped = block.global.as_ref().zip(scope.as_ref());
            let x = block.added(&block.norm, x, |x| {
                let heads = scoped.and_then(|(global, scope)| global.attend(&block.attention, x, scope));
                heads.map_or_else(|| block.attention.attend(x, x, x, attention), |x| block.attention.out.forward(x))
            });
            block.added(&block.mlp_norm, x, |x| block.mlp.forward(x))
        });
        encoder.norm.forward(x)
    }

    /// Computes features of patches, `[batch, length, features]`.
    #[track_caller]
    fn encode_images(&self, images: Array) -> Array {
        let Some(encoder) = &self.images else {
            let x = self.pages.iter().fold(images, |images, encoder| encoder.encode(images));
            let &[batch, rows, columns, features] = x.shape() else { return x };
            let x = x.reshape([batch, rows * columns, features]);
            return self.image_projection.iter().fold(x, |x, layer| layer.forward(x));
        };
        if let Err(error) = images.check().and_then(|()| encoder.check_images(&images)) {
            return Array::from_error(error, &images);
        }
        let x = encoder.encode(images);
        self.image_projection.iter().fold(x, |x, layer| layer.forward(x))
    }

    /// Computes the keys and values of encoded inputs in each layer of the decoder.
    #[track_caller]
    pub fn attend_to(&self, encoded: impl ArrayLike, options: &BertOptions) -> EncodedInput {
        let encoded = encoded.into_array();
        let cross_layers = self.decoder.blocks.iter().filter_map(|block| block.cross.as_ref());
        let layers =
            cross_layers.map(|cross| cross.keys_and_values(&encoded, &AttentionOptions::new()).into()).collect();
        let length = encoded.shape().get(1).copied().unwrap_or(0);
        EncodedInput { layers, mask: self.mask_of(options, length).as_ref().map(over_keys) }
    }

    /// Returns the mask of encoded inputs of this length.
    fn mask_of(&self, options: &BertOptions, length: usize) -> Option<Array> {
        let mask = options.mask()?;
        Some(match (&self.samples, &self.frames) {
            (Some(_), _) => Samples::frame_mask(mask, length),
            (None, Some(frames)) => frames.mask_of(mask, length),
            (None, None) => mask.clone(),
        })
    }

    /// Computes the logits for the token after each token of `targets`, `[batch, length]`.
    ///
    /// `inputs` and the options are passed to [`encode`](EncoderDecoder::encode). The result is
    /// `[batch, length, vocabulary]`.
    #[track_caller]
    pub fn forward(&self, inputs: impl ArrayLike, targets: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let targets = targets.into_array();
        let input = self.attend_to(self.encode(inputs, options), options);
        let length = targets.shape().last().copied().unwrap_or(0);
        let places = arange(0..length as i32);
        let x = match self.decoder.positioned(self.embedded_targets(&targets), || places.clone()) {
            Ok(x) => x,
            Err(error) => return error,
        };
        let layers = self.decoder.blocks.iter().zip(&input.layers);
        let x = layers.fold(x, |x, (block, keys)| {
            let bias = self.bias_of_decoder(block, &places, length);
            let attention = bias.iter().fold(AttentionOptions::new(), |attention, bias| attention.bias(bias));
            let x = block.added(&block.norm, x, |x| block.attention.attend(x, x, x, attention));
            self.rest(block, x, keys, &input.mask)
        });
        self.logits(x)
    }

    /// Creates an empty cache of keys and values for `batch` texts of at most `length` tokens. You must call it before
    /// you decode the first token, and again before other texts.
    #[track_caller]
    pub fn init_cache(&mut self, batch: usize, length: usize) {
        for block in &mut self.decoder.blocks {
            let dtype = block.attention.out.kernel.dtype();
            block.attention.init_cache([batch, length, 1], dtype);
        }
    }

    /// Appends tokens, `[batch, length]`, to the cache and returns the logits for the token after each of them.
    ///
    /// You must call `init_cache` first.
    #[track_caller]
    pub fn decode(&mut self, tokens: impl ArrayLike, input: &EncodedInput) -> Array {
        let _ranks = allow_any_ranks();
        let tokens = tokens.into_array();
        let attention = self.decoder.blocks.first().map(|block| &block.attention);
        let index = attention.and_then(|attention| attention.cache_index.as_ref()).map(|index| (**index).clone());
        let room = attention.and_then(|attention| Some(attention.cached_key.as_ref()?.shape()[1])).unwrap_or(0);
        let length = tokens.shape().last().copied().unwrap_or(0);
        let places = index.unwrap_or_else(|| zeros_dtype((), DType::I32)) + arange(0..length as i32);
        let mut x = match self.decoder.positioned(self.embedded_targets(&tokens), || places.clone()) {
            Ok(x) => x,
            Err(error) => return error,
        };
        for number in 0..self.decoder.blocks.len() {
            let bias = self.bias_of_decoder(&self.decoder.blocks[number], &places, room);
            let options = bias.iter().fold(AttentionOptions::new(), |options, bias| options.bias(bias));
            let block = &mut self.decoder.blocks[number];
            let (mut attention, norm) = (block.attention.clone(), block.norm.clone());
            x = block.added(&norm, x, |x| attention.decode_with(x, options));
            block.attention = attention;
            x = self.rest(&self.decoder.blocks[number], x, &input.layers[number], &input.mask);
        }
        self.logits(x)
    }

    /// Applies the layers of a decoder block that follow its self-attention: attention to the input, and the MLP.
    #[track_caller]
    fn rest(&self, block: &Block, x: Array, (keys, values): &(Array, Array), mask: &Option<Array>) -> Array {
        let x = match (&block.cross_norm, &block.cross) {
            (Some(norm), Some(cross)) => {
                let options = mask.iter().fold(AttentionOptions::new(), |options, mask| options.mask(mask));
                let options = self.attention_scale.into_iter().fold(options, AttentionOptions::scale);
                block.added(norm, x, |x| {
                    cross.out.forward(options.dot_product_attention(cross.query.forward(x), keys, values))
                })
            }
            _ => x,
        };
        block.added(&block.mlp_norm, x, |x| block.mlp.forward(x))
    }

    /// Embeds the tokens of the encoder, without positions.
    #[track_caller]
    fn embedded(&self, tokens: impl ArrayLike) -> Array {
        self.scaled(self.source.as_ref().unwrap_or(&self.embed).forward(tokens))
    }

    /// Scales embedded tokens.
    fn scaled(&self, x: Array) -> Array {
        match self.embedding_scale {
            Some(scale) => x * scale,
            None => x,
        }
    }

    /// Embeds the tokens of the decoder, without positions. The decoder of Blenderbot Small does not scale them, because it normalizes
    /// them.
    #[track_caller]
    fn embedded_targets(&self, tokens: impl ArrayLike) -> Array {
        let x = self.embed.forward(tokens);
        if self.decoder.norm_before_positions { x } else { self.scaled(x) }
    }

    /// Returns the attention bias of a decoder block, if the model has relative positions. The queries have the positions
    /// `places`, the keys the positions `0..keys`.
    fn bias_of_decoder(&self, block: &Block, places: &Array, keys: usize) -> Option<Array> {
        let table = block.distances.as_ref().or(self.decoder.distances.as_ref())?;
        Some(positions::bias(table, places, &arange(0..keys as i32), (false, self.max_distance), keys))
    }

    /// Computes the logits, `[..., vocabulary]`, from the output of the last block.
    #[track_caller]
    fn logits(&self, x: Array) -> Array {
        let x = self.decoder.norm.forward(x);
        let x = match &self.transform {
            Some(OutputTransform { layer, norm, activation }) => norm.forward(activation.apply(layer.forward(x))),
            None => x,
        };
        let x = match self.logits_scale {
            Some(scale) => x * scale,
            None => x,
        };
        let logits = match &self.head {
            Some(head) => head.forward(x),
            None => self.embed.attend(x),
        };
        match &self.logits_bias {
            Some(bias) => &logits + bias.astype(logits.dtype()),
            None => logits,
        }
    }
}

/// Expands a mask of keys, `[batch, keys]`, to the shape of attention masks, `[batch, 1, 1, keys]`.
fn over_keys(mask: &Array) -> Array {
    mask.expand_dims(1).expand_dims(1)
}
