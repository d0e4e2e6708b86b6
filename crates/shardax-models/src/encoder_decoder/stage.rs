//! The encoder or the decoder of a model: its positions and its blocks.

use shardax_nn::prelude::*;

use super::{EncoderDecoderConfig, EncoderDecoderPositions, Side, positions};
use crate::decoder::check_positions;
use crate::error::value_error;
use crate::huggingface::{GlobalAttention, attention};
use crate::shardings::{gather_mask, rows_at};
use crate::{Mlp, Norm};

/// The encoder or the decoder.
#[derive(Module, Clone, Debug)]
pub(super) struct Stage {
    /// The learned embedding of positions.
    pub positions: Option<Embed>,
    /// The row of the position embedding for position 0.
    pub first_position: usize,
    #[tree(static)]
    pub sines: Option<Sines>,
    /// Normalizes the sum of the token and position embeddings.
    pub embedding_norm: Option<Norm>,
    /// True if only the token embeddings are normalized.
    pub norm_before_positions: bool,
    /// The bias of each head for distances, `[buckets, heads]`.
    pub distances: Option<Embed>,
    /// The bias of each head for distances of blocks, if tokens see sums of blocks.
    pub block_distances: Option<Embed>,
    pub blocks: Vec<Block>,
    pub norm: Norm,
}

/// The tokens that a [`Stage`] attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// All tokens of its input.
    Encoder,
    /// The earlier tokens of its input, and an encoded input.
    Decoder,
    /// All tokens of its input, and an encoded input.
    Reader,
}

/// Sinusoidal positions, see [`EncoderDecoderPositions::Sines`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sines {
    pub length: usize,
    is_inclusive: bool,
}

#[derive(Module, Clone, Debug)]
pub(super) struct Block {
    pub norm: Norm,
    pub attention: MultiHeadAttention,
    /// The bias of each head for distances, if each layer has separate biases.
    pub distances: Option<Embed>,
    /// The layers of tokens that see all tokens, if the other tokens see only their neighbors.
    pub global: Option<GlobalAttention>,
    /// Normalizes the sums of blocks, if tokens see them.
    pub block_norm: Option<Norm>,
    /// Normalizes the input of `cross`.
    pub cross_norm: Option<Norm>,
    /// Attention to the encoded input, in a decoder.
    pub cross: Option<MultiHeadAttention>,
    pub mlp_norm: Norm,
    pub mlp: Mlp,
    pub sum_norms: bool,
}

impl Block {
    /// Adds the result of a layer to its input. The norm is applied to the sum if `sum_norms` is set, otherwise to the
    /// input of the layer.
    #[track_caller]
    pub fn added(&self, norm: &Norm, x: Array, layer: impl FnOnce(&Array) -> Array) -> Array {
        if self.sum_norms {
            norm.forward(&x + layer(&x))
        } else {
            let normed = norm.forward(&x);
            x + layer(&normed)
        }
    }
}

impl Stage {
    #[track_caller]
    pub fn new(config: &EncoderDecoderConfig, side: &Side, role: Role, rngs: &mut Rngs) -> Stage {
        let is_decoder = role != Role::Encoder;
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
            EncoderDecoderPositions::Rotary { .. } => (None, None),
            EncoderDecoderPositions::Relative { buckets, per_layer: true, .. } => {
                distances_of_layer = Some(buckets);
                (None, None)
            }
            EncoderDecoderPositions::Relative { buckets, .. } => {
                (None, Some(Embed::builder(buckets, side.heads).axes([None, Some("heads")]).build(rngs)))
            }
        };
        let windows = if is_decoder { &[][..] } else { &config.windows };
        let (activation, gated) = match config.samples {
            Some(samples) if !is_decoder => (samples.activation, false),
            _ => (config.activation, config.gated),
        };
        let has_blocks = !is_decoder && config.local.is_some_and(|local| local.block.is_some());
        let blocks = (0..side.layers).map(|layer| Block {
            norm: config.new_norm(rngs),
            attention: config.new_attention(side, role == Role::Decoder, config.rope(), rngs),
            distances: distances_of_layer
                .map(|buckets| Embed::builder(buckets, side.heads).axes([None, Some("heads")]).build(rngs)),
            global: windows.get(layer).map(|window| GlobalAttention::new(*window, [side.heads, features], rngs)),
            block_norm: has_blocks.then(|| config.new_norm(rngs)),
            cross_norm: is_decoder.then(|| config.new_norm(rngs)),
            cross: is_decoder.then(|| config.new_cross_attention(side, rngs)),
            mlp_norm: config.new_norm(rngs),
            mlp: Mlp::new(features, side.hidden, activation, gated, config.biases, rngs),
            sum_norms: config.sum_norms,
        });
        let blocks = blocks.collect();
        let last_norm = if config.final_norm { config.new_norm(rngs) } else { Norm::Identity };
        let embedding_norm = config.embedding_norm.then(|| config.new_norm(rngs));
        let first_position = config.first_position;
        let norm_before_positions = config.norm_before_positions && is_decoder;
        Stage {
            positions,
            first_position,
            sines,
            embedding_norm,
            norm_before_positions,
            block_distances: distances.clone().filter(|_| has_blocks),
            distances,
            blocks,
            norm: last_norm,
        }
    }

    /// Adds the position encoding to features, `[batch, length, features]`. The `Err` value is an array with an error, which
    /// the caller should return.
    #[track_caller]
    pub fn positioned(&self, x: Array, places: impl FnOnce() -> Array) -> std::result::Result<Array, Array> {
        let tokens = x.get((Ellipsis, 0));
        let norm = |x: Array| self.embedding_norm.iter().fold(x, |x, norm| norm.forward(x));
        let x = if self.norm_before_positions { norm(x) } else { x };
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
        Ok(if self.norm_before_positions { x } else { norm(x) })
    }

    /// Returns the position of each token of an input. Padding is not counted if the sinusoidal positions start after
    /// the padding token, as in M2M-100.
    pub fn places_of(&self, length: usize, mask: Option<&Array>) -> Array {
        match mask.filter(|_| self.sines.is_some() && self.first_position > 0) {
            Some(mask) => (gather_mask(mask.astype(DType::I32)).cumsum(-1) - 1).maximum(0),
            None => arange(0..length as i32),
        }
    }
}

impl Sines {
    /// Returns the sinusoidal positions of a text, `[length, features]`.
    ///
    /// # Errors
    /// Returns an error if the text has more tokens than the model has positions.
    pub fn table(&self, first: usize, x: &Array) -> Result<Array> {
        let (length, features) = (x.shape()[x.ndim() - 2], x.shape()[x.ndim() - 1]);
        if length > self.length {
            let message =
                format!("EncoderDecoder: a text has {length} tokens, but the model has {} positions", self.length);
            return Err(value_error(message, "shorten the texts, for example with `tokens.get((.., ..length))`"));
        }
        Array::from_vec(positions::sines(first, self.length, features, self.is_inclusive), &[self.length, features])
    }
}

impl EncoderDecoderConfig {
    pub(super) fn new_norm(&self, rngs: &mut Rngs) -> Norm {
        Norm::new(self.norm, self.features, self.epsilon, rngs)
    }

    /// Creates the decoder's attention to the encoded input, whose features may have another number.
    pub(super) fn new_cross_attention(&self, side: &Side, rngs: &mut Rngs) -> MultiHeadAttention {
        let mut layer = self.new_attention(side, false, None, rngs);
        if let Some(images) = self.images.as_ref().filter(|images| !images.is_projected) {
            let inner = side.heads * self.head_dim(side);
            let other = attention(side.heads, images.encoder.features()).qkv_features(inner).build(rngs);
            (layer.key, layer.value) = (other.key, other.value);
        }
        layer
    }

    /// Returns the rotary positions of attention between the positions of one text or sound.
    pub(super) fn rope(&self) -> Option<Rope> {
        match self.positions {
            EncoderDecoderPositions::Rotary { base, features } => {
                Some(Rope { interleaved: true, rotary_dim: Some(features), ..Rope::new(base) })
            }
            _ => None,
        }
    }

    pub(super) fn new_attention(
        &self,
        side: &Side,
        is_causal: bool,
        rope: Option<Rope>,
        rngs: &mut Rngs,
    ) -> MultiHeadAttention {
        let builder = attention(side.heads, self.features).qkv_features(side.heads * self.head_dim(side));
        let builder = rope.into_iter().fold(builder, MultiHeadAttentionBuilder::rope);
        let builder = self.attention_scale.into_iter().fold(builder, MultiHeadAttentionBuilder::scale);
        let mut layer = builder
            .is_causal(is_causal)
            .use_bias(self.samples.map_or(self.biases, |samples| samples.biases))
            .build(rngs);
        if self.samples.is_some() {
            layer.out.bias = None;
        }
        if !self.key_biases {
            // Whisper has no key biases: they would add the same number to all scores of a query.
            layer.key.iter_mut().for_each(|key| key.bias = None);
        }
        layer
    }
}
