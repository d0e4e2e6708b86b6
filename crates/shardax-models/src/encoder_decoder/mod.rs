//! Models with an encoder of the input and a decoder of the output, such as T5, BART and Whisper.

mod config;
mod generate;
mod positions;
mod read;
mod sound;

pub(crate) use positions::bias as distance_bias;
pub(crate) use read::KNOWN;

pub use config::{EncoderDecoderConfig, EncoderDecoderPositions, Side};
pub use sound::log_mel;

use shardax_nn::prelude::*;

use crate::decoder::check_positions;
use crate::error::value_error;
use crate::huggingface::{BertOptions, attention};
use crate::ranks::allow_any_ranks;
use crate::shardings::{gather_mask, rows_at};
use crate::{Mlp, Norm};

/// A model that encodes an input, and writes a text one token after the other that attends to it: T5
/// ([Raffel et al. 2019](https://arxiv.org/abs/1910.10683)) and BART ([Lewis et al. 2019](https://arxiv.org/abs/1910.13461)) from
/// text, and Whisper ([Radford et al. 2022](https://arxiv.org/abs/2212.04356)) from sound.
///
/// Dimensions are named `vocab`, `embed`, `heads` and `mlp`, see [`Rules`].
///
/// ```no_run
/// use shardax_models::{EncoderDecoder, GenerateOptions, Pretrained};
/// use shardax_nn::prelude::*;
/// let model = EncoderDecoder::from_pretrained("whisper-tiny")?;
/// // Ten seconds of sound at 16 kHz; transcribe it in English, without times.
/// let sound = zeros([1, 160_000]);
/// let features = model.sound_features(&sound);
/// let prompt = [50258, 50259, 50359, 50363];
/// let written = model.generate(features, &prompt, &GenerateOptions::new(100).stop_tokens([50257]))?;
/// # let _ = written;
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct EncoderDecoder {
    /// The table of tokens.
    pub embed: Embed,
    /// The layers from features of sound to the first features of the encoder, if it reads sound.
    sound: Option<[Conv; 2]>,
    encoder: Stage,
    decoder: Stage,
    /// The layer that gives logits; `None` where it is the table of tokens.
    pub head: Option<Linear>,
    /// `[vocabulary]`: added to the logits.
    logits_bias: Option<Array>,
    embedding_scale: Option<f64>,
    logits_scale: Option<f64>,
    attention_scale: Option<f64>,
    max_distance: usize,
}

/// The encoder or the decoder.
#[derive(Module, Clone, Debug)]
struct Stage {
    /// The table of positions that are added to the first features.
    positions: Option<Embed>,
    /// The first entry of the table that a token has.
    first_position: usize,
    #[tree(static)]
    sines: Option<Sines>,
    /// Normalizes the first features.
    embedding_norm: Option<Norm>,
    /// The bias of each head for distances, `[buckets, heads]`.
    distances: Option<Embed>,
    blocks: Vec<Block>,
    norm: Norm,
}

/// Positions that are sines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sines {
    length: usize,
    is_inclusive: bool,
}

#[derive(Module, Clone, Debug)]
struct Block {
    norm: Norm,
    attention: MultiHeadAttention,
    /// The bias of each head for distances, if layers have biases of their own.
    distances: Option<Embed>,
    /// Normalizes the input of `cross`.
    cross_norm: Option<Norm>,
    /// Attention to the encoded input, in a decoder.
    cross: Option<MultiHeadAttention>,
    mlp_norm: Norm,
    mlp: Mlp,
    sum_norms: bool,
}

/// The keys and values of an encoded input in each layer of the decoder, and the mask of the input.
#[derive(Tree, Clone, Debug)]
pub struct EncodedInput {
    layers: Vec<(Array, Array)>,
    mask: Option<Array>,
}

impl EncoderDecoder {
    /// A model with random weights.
    ///
    /// All sizes must be positive and must fit each other.
    #[track_caller]
    pub fn new(config: &EncoderDecoderConfig, rngs: &mut Rngs) -> Result<EncoderDecoder> {
        config.check()?;
        let features = config.features;
        let sound = config.mel_bins.map(|bins| {
            [(bins, 1), (features, 2)].map(|(from, stride)| {
                Conv::builder(from, features, [3]).strides([stride]).padding([(1, 1)]).build(rngs)
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
            sound,
            encoder: Stage::new(config, &config.encoder, false, rngs),
            decoder: Stage::new(config, &config.decoder, true, rngs),
            head,
            logits_bias: config.logits_bias.then(|| zeros_dtype([config.vocab_size], rngs.policy().param_dtype)),
            embedding_scale: config.embedding_scale,
            logits_scale: config.logits_scale,
            attention_scale: config.attention_scale,
            max_distance: match config.positions {
                EncoderDecoderPositions::Relative { max_distance, .. } => max_distance,
                EncoderDecoderPositions::Learned { .. } | EncoderDecoderPositions::Sines { .. } => 0,
            },
        })
    }

    /// The features that the encoder reads, of sound at 16 kHz `[batch, samples]`, which silence prolongs to the length that
    /// the model was trained with: `[batch, frames, bins]`, see [`log_mel`].
    ///
    /// The model must have an encoder of sound, and the sound must not be longer than that.
    #[track_caller]
    pub fn sound_features(&self, sound: impl ArrayLike) -> Array {
        let sound = sound.into_array();
        let samples = sound.shape().last().copied().unwrap_or(0);
        let (Some([first, _]), Some(table)) = (&self.sound, &self.encoder.positions) else {
            let error = value_error("the model reads texts", "give the numbers of tokens to `encode`");
            return Array::from_error(error, &sound);
        };
        let most = table.embedding.shape().first().copied().unwrap_or(0) * 2 * sound::HOP;
        if sound.ndim() != 2 || samples > most {
            let message = format!("sound_features: sound is {:?}, and the model reads {most} samples", sound.shape());
            let error = value_error(message, "give sound `[batch, samples]`, in parts that are short enough");
            return Array::from_error(error, &sound);
        }
        let silence = zeros_dtype([sound.shape()[0], most - samples], sound.dtype());
        let bins = first.kernel.shape().get(1).copied().unwrap_or(0);
        log_mel(concatenate(&[sound, silence], 1), bins)
    }

    /// The features of the input, `[batch, length, features]`: of tokens `[batch, length]`, or of sound
    /// `[batch, frames, bins]`, which is twice as long as the result. The options have the mask of tokens.
    #[track_caller]
    pub fn encode(&self, inputs: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let inputs = inputs.into_array();
        let x = match &self.sound {
            Some(layers) => layers.iter().fold(inputs, |x, layer| gelu_exact(layer.forward(x))),
            None => self.embedded(inputs),
        };
        let (Ok(()), 3) = (x.check(), x.ndim()) else { return x };
        let length = x.shape()[1];
        let places = self.encoder.places_of(length, options.mask());
        let x = match self.encoder.positioned(x, || places) {
            Ok(x) => x,
            Err(error) => return error,
        };
        let places = arange(0..length as i32);
        let x = self.encoder.blocks.iter().fold(x, |x, block| {
            let table = block.distances.as_ref().or(self.encoder.distances.as_ref());
            let bias = table.map(|table| positions::bias(table, &places, &places, (true, self.max_distance), length));
            let attention = bias.iter().fold(AttentionOptions::new(), |attention, bias| attention.bias(bias));
            let attention = options.mask().iter().fold(attention, |attention, mask| attention.mask(over_keys(mask)));
            let x = block.added(&block.norm, x, |x| block.attention.attend(x, x, x, attention));
            block.added(&block.mlp_norm, x, |x| block.mlp.forward(x))
        });
        self.encoder.norm.forward(x)
    }

    /// The keys and values of encoded inputs in each layer of the decoder.
    #[track_caller]
    pub fn attend_to(&self, encoded: impl ArrayLike, options: &BertOptions) -> EncodedInput {
        let encoded = encoded.into_array();
        let cross_layers = self.decoder.blocks.iter().filter_map(|block| block.cross.as_ref());
        let layers = cross_layers.map(|cross| (cross.key.forward(&encoded), cross.value.forward(&encoded))).collect();
        EncodedInput { layers, mask: options.mask().map(over_keys) }
    }

    /// Logits `[batch, length, vocabulary]` of the tokens that follow each of `targets`, `[batch, length]`, for these inputs
    /// (see [`encode`](EncoderDecoder::encode)).
    #[track_caller]
    pub fn forward(&self, inputs: impl ArrayLike, targets: impl ArrayLike, options: &BertOptions) -> Array {
        let _ranks = allow_any_ranks();
        let targets = targets.into_array();
        let input = self.attend_to(self.encode(inputs, options), options);
        let length = targets.shape().last().copied().unwrap_or(0);
        let places = arange(0..length as i32);
        let x = match self.decoder.positioned(self.embedded(&targets), || places.clone()) {
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

    /// Creates an empty cache of keys and values for `batch` texts of at most `length` tokens.
    #[track_caller]
    pub fn init_cache(&mut self, batch: usize, length: usize) {
        for block in &mut self.decoder.blocks {
            let dtype = block.attention.key.kernel.dtype();
            block.attention.init_cache([batch, length, 1], dtype);
        }
    }

    /// Appends tokens, `[batch, length]`, to those in the cache, and returns the logits of the token after each.
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
        let mut x = match self.decoder.positioned(self.embedded(&tokens), || places.clone()) {
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

    /// The parts of a decoder's block after its attention to the text.
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

    /// The features of tokens, before positions.
    #[track_caller]
    fn embedded(&self, tokens: impl ArrayLike) -> Array {
        let x = self.embed.forward(tokens);
        match self.embedding_scale {
            Some(scale) => x * scale,
            None => x,
        }
    }

    /// The bias of queries at these places over as many keys, if positions are distances.
    fn bias_of_decoder(&self, block: &Block, places: &Array, keys: usize) -> Option<Array> {
        let table = block.distances.as_ref().or(self.decoder.distances.as_ref())?;
        Some(positions::bias(table, places, &arange(0..keys as i32), (false, self.max_distance), keys))
    }

    /// Logits `[..., vocabulary]` of the output of the last layer.
    #[track_caller]
    fn logits(&self, x: Array) -> Array {
        let x = self.decoder.norm.forward(x);
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

impl Block {
    /// Adds the result of a layer to its input. Either the input or the sum is normalized.
    #[track_caller]
    fn added(&self, norm: &Norm, x: Array, layer: impl FnOnce(&Array) -> Array) -> Array {
        match self.sum_norms {
            true => norm.forward(&x + layer(&x)),
            false => {
                let normed = norm.forward(&x);
                x + layer(&normed)
            }
        }
    }
}

/// A mask of keys, `[batch, keys]`, for all heads and queries.
fn over_keys(mask: &Array) -> Array {
    mask.expand_dims(1).expand_dims(1)
}

impl Stage {
    #[track_caller]
    fn new(config: &EncoderDecoderConfig, side: &Side, is_decoder: bool, rngs: &mut Rngs) -> Stage {
        // Layers draw their weights from `rngs` in the order of these lines: another order changes every seed's model.
        let features = config.features;
        let mut distances_of_layer = None;
        let mut sines = None;
        let (positions, distances) = match config.positions {
            EncoderDecoderPositions::Learned { encoder, decoder } => {
                let length = if is_decoder { decoder } else { encoder };
                (Some(Embed::builder(length, features).axes([None, Some("embed")]).build(rngs)), None)
            }
            EncoderDecoderPositions::Sines { length, is_inclusive } => {
                sines = Some(Sines { length, is_inclusive });
                (None, None)
            }
            EncoderDecoderPositions::Relative { buckets, per_layer: true, .. } => {
                distances_of_layer = Some(buckets);
                (None, None)
            }
            EncoderDecoderPositions::Relative { buckets, .. } => {
                (None, Some(Embed::builder(buckets, side.heads).axes([None, Some("heads")]).build(rngs)))
            }
        };
        let blocks = (0..side.layers).map(|_| Block {
            norm: config.new_norm(rngs),
            attention: config.new_attention(side, is_decoder, rngs),
            distances: distances_of_layer
                .map(|buckets| Embed::builder(buckets, side.heads).axes([None, Some("heads")]).build(rngs)),
            cross_norm: is_decoder.then(|| config.new_norm(rngs)),
            cross: is_decoder.then(|| config.new_attention(side, false, rngs)),
            mlp_norm: config.new_norm(rngs),
            mlp: Mlp::new(features, side.hidden, config.activation, config.gated, config.biases, rngs),
            sum_norms: config.sum_norms,
        });
        let blocks = blocks.collect();
        let last_norm = if config.final_norm { config.new_norm(rngs) } else { Norm::Identity };
        let embedding_norm = config.embedding_norm.then(|| config.new_norm(rngs));
        let first_position = config.first_position;
        Stage { positions, first_position, sines, embedding_norm, distances, blocks, norm: last_norm }
    }

    /// Adds the positions of features `[batch, length, features]`. The error is an array that has one.
    #[track_caller]
    fn positioned(&self, x: Array, places: impl FnOnce() -> Array) -> std::result::Result<Array, Array> {
        let tokens = x.get((Ellipsis, 0));
        let first_position = self.first_position;
        let x = match (&self.positions, &self.sines) {
            (Some(table), _) => match check_positions("EncoderDecoder", table, first_position, &tokens) {
                Ok(()) => x + table.forward(places() + first_position as i32),
                Err(error) => return Err(Array::from_error(error, &x)),
            },
            (None, Some(sines)) => match sines.table(first_position, &x) {
                Ok(table) => &x + rows_at(&table, &places()).astype(x.dtype()),
                Err(error) => return Err(Array::from_error(error, &x)),
            },
            (None, None) => x,
        };
        Ok(self.embedding_norm.iter().fold(x, |x, norm| norm.forward(x)))
    }

    /// The position of each token of an input. Models whose sines begin behind the padding token do not count padding.
    fn places_of(&self, length: usize, mask: Option<&Array>) -> Array {
        match mask.filter(|_| self.sines.is_some() && self.first_position > 0) {
            Some(mask) => (gather_mask(mask.astype(DType::I32)).cumsum(-1) - 1).maximum(0),
            None => arange(0..length as i32),
        }
    }
}

impl Sines {
    /// The sines of all positions, `[length, features]`. Fails for more tokens than there are positions.
    fn table(&self, first: usize, x: &Array) -> Result<Array> {
        let (length, features) = (x.shape()[x.ndim() - 2], x.shape()[x.ndim() - 1]);
        if length > self.length {
            let message =
                format!("EncoderDecoder: texts of {length} tokens, and the model has {} positions", self.length);
            return Err(value_error(message, "cut the texts: `tokens.get((.., ..length))`"));
        }
        Array::from_vec(positions::sines(first, self.length, features, self.is_inclusive), &[self.length, features])
    }
}

impl EncoderDecoderConfig {
    fn new_norm(&self, rngs: &mut Rngs) -> Norm {
        Norm::new(self.norm, self.features, self.epsilon, rngs)
    }

    fn new_attention(&self, side: &Side, is_causal: bool, rngs: &mut Rngs) -> MultiHeadAttention {
        let builder = attention(side.heads, self.features).qkv_features(side.heads * self.head_dim(side));
        let builder = self.attention_scale.into_iter().fold(builder, MultiHeadAttentionBuilder::scale);
        let mut layer = builder.is_causal(is_causal).use_bias(self.biases).build(rngs);
        if !self.key_biases {
            // A bias of keys would add the same number to all scores of a query.
            layer.key.bias = None;
        }
        layer
    }
}
