//! The configuration of encoder-decoder models.

use shardax_nn::prelude::*;

use super::LocalEncoderConfig;
use crate::error::value_error;
use crate::huggingface::{Fields, Pretrained, Swin, SwinConfig, Vit, VitConfig};
use crate::{Activation, NormKind};

/// The architecture of an [`EncoderDecoder`](crate::EncoderDecoder).
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderDecoderConfig {
    /// The size of the vocabulary.
    pub vocab_size: usize,
    /// The size of the encoder's vocabulary, if the encoder has a token embedding of its own.
    pub source_vocab_size: Option<usize>,
    /// The number of features of a token.
    pub features: usize,
    /// The number of features of a head. Default `features / heads`.
    pub head_dim: Option<usize>,
    /// The encoder.
    pub encoder: Side,
    /// The decoder.
    pub decoder: Side,
    /// The number of mel bands, if the encoder reads sound.
    pub mel_bins: Option<usize>,
    /// The encoder, if it reads features of sound by convolutions with gates.
    pub frames: Option<FramesEncoderConfig>,
    /// The encoder, if it reads samples of sound.
    pub samples: Option<SamplesEncoderConfig>,
    /// The encoder, if it reads images. The field `encoder` has no effect then.
    pub images: Option<ImageEncoderConfig>,
    /// The attention of the encoder to near tokens, as in LongT5. If it is `None`, each token sees all tokens, unless `windows` is set.
    pub local: Option<LocalEncoderConfig>,
    /// The number of tokens before and after a token that it sees in each layer of the encoder, as in LED. If the list is empty, each token
    /// sees all tokens.
    pub windows: Vec<usize>,
    /// The position encoding.
    pub positions: EncoderDecoderPositions,
    /// The kind of normalization.
    pub norm: NormKind,
    /// The number that norms add to the variance or the mean square.
    pub epsilon: f64,
    /// The activation function of MLPs.
    pub activation: Activation,
    /// True if MLPs have a gate.
    pub gated: bool,
    /// True if linear layers have biases, except for keys.
    pub biases: bool,
    /// True if the key layers have biases.
    pub key_biases: bool,
    /// True if logits have biases.
    pub logits_bias: bool,
    /// The number of rows at the start of position embeddings that are not used.
    pub first_position: usize,
    /// The factor of token embeddings.
    pub embedding_scale: Option<f64>,
    /// True if embeddings are normalized before the first layer.
    pub embedding_norm: bool,
    /// True if the decoder does not scale token embeddings, and normalizes them before it adds positions, as in Blenderbot Small.
    pub norm_before_positions: bool,
    /// True if a layer normalizes the sum of its input and its output, instead of its input.
    pub sum_norms: bool,
    /// True if the outputs of the encoder and of the decoder are normalized.
    pub final_norm: bool,
    /// The factor of attention scores. Default `1 / sqrt(head_dim)`.
    pub attention_scale: Option<f64>,
    /// True if a layer with an activation and a norm come before the last layer, as in BERT.
    pub output_transform: bool,
    /// True if the token embedding is also the last layer.
    pub tie_embeddings: bool,
    /// The factor of the input of the last layer.
    pub logits_scale: Option<f64>,
}

/// The convolutions with gates of an [`EncoderDecoder`](crate::EncoderDecoder) that reads features of sound, as in Speech2Text. Each of
/// them halves the number of frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FramesEncoderConfig {
    /// The number of features of a frame.
    pub bins: usize,
    /// The number of features between two convolutions, before the gates. It must be even.
    pub channels: usize,
    /// The number of frames that each convolution reads.
    pub kernels: Vec<usize>,
}

/// The encoder of samples of an [`EncoderDecoder`](crate::EncoderDecoder), as in Moonshine. Three convolutions compute frames from
/// samples, and attention has no biases after heads are joined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplesEncoderConfig {
    /// The activation of the encoder's MLPs, which have no gate.
    pub activation: Activation,
    /// True if queries, keys and values have biases.
    pub biases: bool,
}

/// The encoder of images of an [`EncoderDecoder`](crate::EncoderDecoder).
#[derive(Clone, Debug, PartialEq)]
pub struct ImageEncoderConfig {
    /// The encoder.
    pub encoder: ImageTower,
    /// True if a layer computes as many features as the decoder has. Otherwise the decoder's keys and values read the features of the
    /// encoder.
    pub is_projected: bool,
}

/// The encoder of an [`ImageEncoderConfig`].
#[derive(Clone, Debug, PartialEq)]
pub enum ImageTower {
    /// A ViT, as in TrOCR.
    Vit(VitConfig),
    /// A Swin Transformer, as in Donut.
    Swin(SwinConfig),
}

impl ImageTower {
    /// Returns the features of the result.
    pub(super) fn features(&self) -> usize {
        match self {
            ImageTower::Vit(config) => config.hidden_size,
            ImageTower::Swin(config) => config.features(config.stages.depths.len().saturating_sub(1)),
        }
    }

    /// Returns the number of blocks, and the names and sizes of the largest matrices.
    pub(super) fn extents(&self) -> (usize, Vec<(&'static str, usize, usize)>) {
        match self {
            ImageTower::Vit(config) => Vit::extents(config),
            ImageTower::Swin(config) => Swin::extents(config),
        }
    }
}

/// The sizes of an encoder or a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// The number of blocks.
    pub layers: usize,
    /// The number of attention heads.
    pub heads: usize,
    /// The number of hidden features of an MLP.
    pub hidden: usize,
}

impl Side {
    /// Reads the encoder and the decoder from the fields of BART, which models that detect objects have too.
    pub(crate) fn read_both(fields: &Fields) -> Result<[Side; 2]> {
        let features = fields.size("d_model")?;
        let encoder = Side {
            layers: fields.layers("encoder_layers")?,
            heads: fields.size("encoder_attention_heads")?,
            hidden: fields.size("encoder_ffn_dim")?,
        };
        let decoder = Side {
            layers: fields.layers("decoder_layers")?,
            heads: fields.size("decoder_attention_heads")?,
            hidden: fields.size("decoder_ffn_dim")?,
        };
        fields.divides(("encoder_attention_heads", encoder.heads), ("d_model", features))?;
        fields.divides(("decoder_attention_heads", decoder.heads), ("d_model", features))?;
        Ok([encoder, decoder])
    }
}

/// The position encoding of an [`EncoderDecoder`](crate::EncoderDecoder).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EncoderDecoderPositions {
    /// Learned position embeddings, which are added to the token embeddings.
    Learned {
        /// The number of positions of the encoder.
        encoder: usize,
        /// The number of positions of the decoder.
        decoder: usize,
    },
    /// Sinusoidal positions, which are added to the token embeddings.
    Sines {
        /// The number of positions.
        length: usize,
        /// True if the frequencies include `1 / 10000`, as in M2M-100. Otherwise the lowest frequency is one step higher.
        is_inclusive: bool,
    },
    /// Relative positions: each head has a learned bias for each bucket of distances.
    Relative {
        /// The number of buckets, which must be even.
        buckets: usize,
        /// The smallest distance in the last bucket.
        max_distance: usize,
        /// True if each layer has separate biases. Otherwise the first layer's biases are shared.
        per_layer: bool,
    },
    /// Rotary positions of neighboring features.
    Rotary {
        /// The base of the frequencies.
        base: f64,
        /// The number of features of each head that are rotated.
        features: usize,
    },
}

impl EncoderDecoderConfig {
    /// Returns the number of features of a head.
    pub(super) fn head_dim(&self, side: &Side) -> usize {
        self.head_dim.unwrap_or_else(|| self.features.checked_div(side.heads).unwrap_or(0))
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// Returns an error if a size is 0, if sizes do not divide each other, or if a matrix would be too large.
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        let location = std::panic::Location::caller();
        self.checked().map_err(|error| error.at(location))
    }

    fn checked(&self) -> Result<()> {
        // Sizes are checked here, because a layer of size 0 would only fail in its initializer, without the field's name.
        let (encoder, decoder) = (&self.encoder, &self.decoder);
        // An encoder of images has been checked when it was read.
        let encoder = if self.images.is_some() { decoder } else { encoder };
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
            return Err(value_error(format!("a model's {name} must be positive, got 0"), "set it to a positive size"));
        }
        if self.source_vocab_size == Some(0) {
            return Err(value_error("a model's source_vocab_size is 0", "set it to a positive size, or to None"));
        }
        if let Some(frames) = &self.frames
            && (frames.bins == 0 || frames.channels < 2 || frames.kernels.is_empty() || frames.kernels.contains(&0))
        {
            let message = format!("a model cannot read frames with {frames:?}");
            return Err(value_error(message, "set positive sizes, an even number of channels, and a kernel"));
        }
        if self.local.is_some_and(|local| local.block == Some(0)) {
            return Err(value_error("a block of local attention has 0 tokens", "set local.block to a positive size"));
        }
        if !self.windows.is_empty() && self.windows.len() != encoder.layers {
            let message = format!("windows has {} entries for {} layers", self.windows.len(), encoder.layers);
            return Err(value_error(message, "set a window for each layer of the encoder, or none"));
        }
        let heads = [encoder.heads, decoder.heads];
        if let Some(heads) =
            heads.iter().find(|heads| self.head_dim.is_none() && !self.features.is_multiple_of(**heads))
        {
            let message = format!("heads ({heads}) do not divide features ({})", self.features);
            return Err(value_error(message, "set head_dim, or choose a number of heads that divides features"));
        }
        if let Some((name, a, b)) =
            self.extents().into_iter().find(|(_, a, b)| a.checked_mul(*b).is_none_or(|n| n > isize::MAX as usize / 8))
        {
            return Err(value_error(format!("a model's {name}, {a} by {b}, is too large"), "choose smaller sizes"));
        }
        match self.positions {
            EncoderDecoderPositions::Relative { buckets, max_distance, .. }
                if buckets < 4 || buckets % 2 == 1 || max_distance <= buckets / 2 =>
            {
                let message =
                    format!("relative positions cannot have {buckets} buckets and max_distance {max_distance}");
                let help = "choose an even number of at least 4 buckets, and a max_distance of more than half of them";
                Err(value_error(message, help))
            }
            EncoderDecoderPositions::Relative { .. }
            | EncoderDecoderPositions::Sines { .. }
            | EncoderDecoderPositions::Rotary { .. }
                if self.mel_bins.is_some() =>
            {
                let message = format!("a model that reads sound cannot have the positions {:?}", self.positions);
                Err(value_error(message, "use EncoderDecoderPositions::Learned"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the names and sizes of the largest matrices.
    pub(super) fn extents(&self) -> Vec<(&'static str, usize, usize)> {
        let (encoder, decoder) = match self.positions {
            EncoderDecoderPositions::Learned { encoder, decoder } => (encoder, decoder),
            EncoderDecoderPositions::Relative { .. }
            | EncoderDecoderPositions::Sines { .. }
            | EncoderDecoderPositions::Rotary { .. } => (0, 0),
        };
        let mut matrices = vec![
            ("token table", self.vocab_size, self.features),
            ("position table", encoder.max(decoder), self.features),
            ("kernel of sound", self.mel_bins.unwrap_or(0), self.features),
        ];
        matrices.push(("source token table", self.source_vocab_size.unwrap_or(0), self.features));
        if let Some(frames) = &self.frames {
            let kernel = frames.kernels.iter().copied().max().unwrap_or(0);
            let inputs = frames.bins.max(frames.channels / 2).saturating_mul(kernel);
            matrices.push(("kernel of frames", inputs, frames.channels.max(self.features.saturating_mul(2))));
        }
        if self.samples.is_some() {
            matrices.push(("kernel of frames", self.features.saturating_mul(7), self.features.saturating_mul(2)));
        }
        if let Some(images) = &self.images {
            matrices.extend(images.encoder.extents().1);
            matrices.push(("key kernel", images.encoder.features(), self.features));
        }
        let encoder = if self.images.is_some() { &self.decoder } else { &self.encoder };
        for side in [encoder, &self.decoder] {
            matrices.push(("query kernel", side.heads.saturating_mul(self.head_dim(side)), self.features));
            matrices.push(("MLP kernel", side.hidden, self.features));
        }
        matrices
    }
}
