//! The architecture of a model with an encoder and a decoder.

use shardax_nn::prelude::*;

use crate::error::value_error;
use crate::{Activation, NormKind};

/// The architecture of an [`EncoderDecoder`](crate::EncoderDecoder).
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderDecoderConfig {
    /// The number of tokens.
    pub vocab_size: usize,
    /// The features of a token.
    pub features: usize,
    /// The features of a head. Default the features divided by the heads.
    pub head_dim: Option<usize>,
    /// The encoder.
    pub encoder: Side,
    /// The decoder.
    pub decoder: Side,
    /// The bands of the features of sound, if the encoder reads sound.
    pub mel_bins: Option<usize>,
    /// The encoding of positions.
    pub positions: EncoderDecoderPositions,
    /// The kind of normalization.
    pub norm: NormKind,
    /// Added to the variance or the mean square in norms.
    pub epsilon: f64,
    /// The function in MLPs.
    pub activation: Activation,
    /// True if MLPs have a gate.
    pub gated: bool,
    /// True if linear layers have biases, except for keys.
    pub biases: bool,
    /// True if the layers of keys have biases too.
    pub key_biases: bool,
    /// True if logits have biases.
    pub logits_bias: bool,
    /// The number of entries at the start of tables of positions that no token has.
    pub first_position: usize,
    /// The factor of token embeddings.
    pub embedding_scale: Option<f64>,
    /// True if embeddings are normalized before the first layer.
    pub embedding_norm: bool,
    /// True if the sums of inputs and outputs of layers are normalized, instead of the inputs.
    pub sum_norms: bool,
    /// True if the outputs of the last layers are normalized.
    pub final_norm: bool,
    /// The factor of attention scores. Default `1 / sqrt(head_dim)`.
    pub attention_scale: Option<f64>,
    /// True if the table of tokens is the last layer too.
    pub tie_embeddings: bool,
    /// The factor of the features that logits are computed from.
    pub logits_scale: Option<f64>,
}

/// The sizes of an encoder or a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// The number of blocks.
    pub layers: usize,
    /// The heads of attention.
    pub heads: usize,
    /// The features inside an MLP.
    pub hidden: usize,
}

/// The encoding of positions in an [`EncoderDecoder`](crate::EncoderDecoder).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderDecoderPositions {
    /// Tables of these lengths are added to the first features.
    Learned {
        /// The length of the encoder's table.
        encoder: usize,
        /// The length of the decoder's table.
        decoder: usize,
    },
    /// Sines and cosines are added to the first features, up to this length.
    Sines {
        /// The number of positions.
        length: usize,
        /// True if the last frequency belongs to the last position, as in M2M-100; otherwise to the position before it.
        is_inclusive: bool,
    },
    /// Each head has a bias for each group of distances.
    Relative {
        /// The number of groups, an even number.
        buckets: usize,
        /// The distance from which on all are in one group.
        max_distance: usize,
        /// True if each layer has biases of its own.
        per_layer: bool,
    },
}

impl EncoderDecoderConfig {
    /// The features of a head.
    pub(super) fn head_dim(&self, side: &Side) -> usize {
        self.head_dim.unwrap_or_else(|| self.features.checked_div(side.heads).unwrap_or(0))
    }

    /// All sizes must be positive and must fit each other.
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        let location = std::panic::Location::caller();
        self.checked().map_err(|error| error.at(location))
    }

    fn checked(&self) -> Result<()> {
        // Sizes are checked here, because a layer of size 0 would only fail in its initializer, without the field's name.
        let (encoder, decoder) = (&self.encoder, &self.decoder);
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("features", self.features),
            ("head_dim", self.head_dim.unwrap_or(1)),
            ("encoder.layers", encoder.layers),
            ("encoder.heads", encoder.heads),
            ("encoder.hidden", encoder.hidden),
            ("decoder.layers", decoder.layers),
            ("decoder.heads", decoder.heads),
            ("decoder.hidden", decoder.hidden),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(value_error(format!("a model's {name} must be positive, got 0"), "give a positive size"));
        }
        let heads = [encoder.heads, decoder.heads];
        if let Some(heads) =
            heads.iter().find(|heads| self.head_dim.is_none() && !self.features.is_multiple_of(**heads))
        {
            let message = format!("heads ({heads}) do not divide features ({})", self.features);
            return Err(value_error(message, "set head_dim, or give heads that divide the features"));
        }
        if let Some((name, a, b)) =
            self.extents().into_iter().find(|(_, a, b)| a.checked_mul(*b).is_none_or(|n| n > isize::MAX as usize / 8))
        {
            return Err(value_error(format!("a model's {name}, {a} by {b}, overflows"), "give smaller sizes"));
        }
        match self.positions {
            EncoderDecoderPositions::Relative { buckets, max_distance, .. }
                if buckets < 4 || buckets % 2 == 1 || max_distance <= buckets / 2 =>
            {
                let message = format!("{buckets} buckets do not divide distances up to {max_distance}");
                Err(value_error(message, "give an even number of at least 4, and a distance of more than half of it"))
            }
            EncoderDecoderPositions::Relative { .. } | EncoderDecoderPositions::Sines { .. }
                if self.mel_bins.is_some() =>
            {
                Err(value_error("a model of sound has no table of positions", "use EncoderDecoderPositions::Learned"))
            }
            _ => Ok(()),
        }
    }

    /// The largest matrices, for bounds.
    pub(super) fn extents(&self) -> Vec<(&'static str, usize, usize)> {
        let (encoder, decoder) = match self.positions {
            EncoderDecoderPositions::Learned { encoder, decoder } => (encoder, decoder),
            EncoderDecoderPositions::Relative { .. } | EncoderDecoderPositions::Sines { .. } => (0, 0),
        };
        let mut matrices = vec![
            ("token table", self.vocab_size, self.features),
            ("position table", encoder.max(decoder), self.features),
            ("kernel of sound", self.mel_bins.unwrap_or(0), self.features),
        ];
        for side in [&self.encoder, &self.decoder] {
            matrices.push(("query kernel", side.heads.saturating_mul(self.head_dim(side)), self.features));
            matrices.push(("MLP kernel", side.hidden, self.features));
        }
        matrices
    }
}
