//! Parts of Gemma 3n and Gemma 4: an embedding of tokens that each layer adds, and several streams of features.
//!
//! Between the layers, the last dimension of `x` has the features of all streams, and then the embeddings of all layers. So
//! you can apply the blocks one after the other, as in models without these parts.

use shardax_nn::prelude::*;

use super::{Activation, DecoderConfig, Norm};

/// The sizes of a [`LayerEmbedding`].
#[derive(Clone, Debug, PartialEq)]
pub struct LayerEmbeddingConfig {
    /// The number of tokens in the table. Other tokens have the embedding of token 0.
    pub vocab_size: usize,
    /// The number of features of each layer's embedding.
    pub features: usize,
}

/// Several streams of features. Each layer reads and writes one of them, and corrects the others
/// ([Baykal et al. 2023](https://arxiv.org/abs/2301.13310)).
#[derive(Clone, Debug, PartialEq)]
pub struct StreamsConfig {
    /// The number of streams.
    pub count: usize,
    /// The stream that the layers read.
    pub active: usize,
    /// True if the stream is multiplied by learned factors before the embedding of tokens is added.
    pub scales_active: bool,
    /// The number of features between the two linear layers that are added to attention.
    pub rank: usize,
}

/// The embedding of tokens for all layers.
#[derive(Module, Clone, Debug)]
pub struct LayerEmbedding {
    /// The table of tokens, with the features of all layers.
    pub embed: Embed,
    /// Computes a second embedding from the input of the first layer.
    pub projection: Linear,
    /// Normalizes the second embedding of each layer.
    pub norm: Norm,
    features: usize,
}

/// The part of a block that adds the embedding of tokens.
#[derive(Module, Clone, Debug)]
pub struct LayerInput {
    /// The linear layer whose activated results are multiplied with the embedding.
    pub gate: Linear,
    /// The linear layer from the products to the features of the model.
    pub out: Linear,
    /// Normalizes the output.
    pub norm: Norm,
    #[tree(static)]
    activation: Activation,
    /// The number of features of all streams.
    width: usize,
    /// The embedding of this layer among the embeddings of all layers.
    start: usize,
    features: usize,
}

/// The part of a block that combines streams.
#[derive(Module, Clone, Debug)]
pub struct Streams {
    /// Normalizes the input of `router`.
    pub norm: Norm,
    /// Computes a number for each stream.
    pub router: Linear,
    /// Computes the factors of all pairs of streams before the layer.
    pub prediction: Linear,
    /// Computes the factors of the layer's change of all streams.
    pub correction: Linear,
    /// `[features]`: the factors of the active stream.
    pub scale: Array,
    count: usize,
    active: usize,
    scales_active: bool,
}

/// Two linear layers with few features between them, whose normalized output is added to their input.
#[derive(Module, Clone, Debug)]
pub struct LowRank {
    /// The first layer.
    pub down: Linear,
    /// The second layer.
    pub up: Linear,
    /// Normalizes the output.
    pub norm: Norm,
}

impl LayerEmbedding {
    pub(super) fn new(config: &DecoderConfig, about: &LayerEmbeddingConfig, rngs: &mut Rngs) -> LayerEmbedding {
        let size = config.layers * about.features;
        LayerEmbedding {
            embed: Embed::builder(about.vocab_size, size).axes(["vocab", "embed"]).build(rngs),
            projection: linear(config.features, size, [Some("embed"), None], rngs),
            norm: Norm::new(config.norm, about.features, config.epsilon, rngs),
            features: about.features,
        }
    }

    /// Returns the number of features of all layers' embeddings together.
    pub(super) fn size(&self) -> usize {
        self.embed.embedding.shape().get(1).copied().unwrap_or(0)
    }

    /// Computes the embeddings of all layers, `[..., layers * features]`, from tokens and the input of the first layer.
    pub(super) fn forward(&self, tokens: &Array, x: &Array) -> Array {
        let count = self.embed.embedding.shape().first().copied().unwrap_or(0);
        let is_known = tokens.greater_equal(0) & tokens.less(count as i32);
        let embedded = self.embed.forward(where_(is_known, tokens, 0)) * (self.features as f64).sqrt();
        let features = x.shape().last().copied().unwrap_or(1).max(1);
        let projected = self.projection.forward(x) * (features as f64).powf(-0.5);
        let layers = [&x.shape()[..x.ndim().saturating_sub(1)], &[self.size() / self.features, self.features]].concat();
        let projected = self.norm.forward(projected.reshape(layers)).reshape(embedded.shape());
        (projected + embedded) * std::f64::consts::FRAC_1_SQRT_2
    }
}

impl LayerInput {
    pub(super) fn new(
        config: &DecoderConfig,
        about: &LayerEmbeddingConfig,
        layer: usize,
        rngs: &mut Rngs,
    ) -> LayerInput {
        let streams = config.streams.as_ref().map_or(1, |streams| streams.count);
        LayerInput {
            gate: linear(config.features, about.features, [Some("embed"), None], rngs),
            out: linear(about.features, config.features, [None, Some("embed")], rngs),
            norm: Norm::new(config.norm, config.features, config.epsilon, rngs),
            activation: config.activation,
            width: config.features * streams,
            start: layer * about.features,
            features: about.features,
        }
    }

    /// Separates the features of streams from the embeddings of all layers.
    pub(super) fn split(&self, x: &Array) -> (Array, Array) {
        (x.get((Ellipsis, ..self.width)), x.get((Ellipsis, self.width..)))
    }

    /// Computes the change of `x` from the embeddings of all layers.
    pub(super) fn forward(&self, x: &Array, embeddings: &Array) -> Array {
        let embedding = embeddings.get((Ellipsis, self.start..self.start + self.features));
        let gated = self.activation.apply(self.gate.forward(x)) * embedding;
        self.norm.forward(self.out.forward(gated))
    }
}

impl Streams {
    pub(super) fn new(config: &DecoderConfig, about: &StreamsConfig, rngs: &mut Rngs) -> Streams {
        let StreamsConfig { count, active, scales_active, .. } = *about;
        Streams {
            norm: Norm::new(config.norm, config.features, config.epsilon, rngs),
            router: linear(config.features, count, [Some("embed"), None], rngs),
            prediction: linear(count, count * count, [None, None], rngs),
            correction: linear(count, count, [None, None], rngs),
            scale: ones_dtype([config.features], rngs.policy().param_dtype),
            count,
            active,
            scales_active,
        }
    }

    /// Computes the next values of all streams `x`, `[..., streams * features]`. `layer` computes the active stream.
    pub(super) fn update(
        &self,
        x: &Array,
        input: &LayerInput,
        embeddings: &Array,
        layer: impl FnOnce(Array) -> Array,
    ) -> Array {
        let outer = &x.shape()[..x.ndim().saturating_sub(1)];
        let streams = x.reshape([outer, &[self.count, x.shape()[outer.len()] / self.count]].concat());
        // Predict the streams after the layer.
        let factors = self.prediction.forward(self.weights(&self.active_of(&streams)));
        let factors = factors.reshape([outer, &[self.count, self.count]].concat());
        let predicted = &streams + factors.matmul(&streams);
        // Compute the active stream, and correct the others by its difference from the prediction.
        let active = self.active_of(&predicted);
        let computed = layer(active.clone());
        let factors = self.correction.forward(self.weights(&computed)) + 1.0;
        let corrected = predicted + factors.expand_dims(-1) * (computed - active).expand_dims(-2);
        // Add the embedding of tokens to all streams except the first one.
        let active = self.active_of(&corrected);
        let active = if self.scales_active { &active * self.scale.astype(active.dtype()) } else { active };
        let change = input.forward(&active, embeddings).expand_dims(-2);
        let first = corrected.get((Ellipsis, ..1, ..));
        concatenate(&[first, corrected.get((Ellipsis, 1.., ..)) + change], -2).reshape(x.shape())
    }

    /// Returns the active one of the streams, `[..., streams, features]`.
    fn active_of(&self, streams: &Array) -> Array {
        streams.get((Ellipsis, self.active, ..))
    }

    /// Computes a number for each stream from the active one.
    fn weights(&self, x: &Array) -> Array {
        let features = x.shape().last().copied().unwrap_or(1).max(1);
        self.router.forward(self.norm.forward(x) * (1.0 / features as f64)).tanh()
    }
}

impl LowRank {
    pub(super) fn new(config: &DecoderConfig, about: &StreamsConfig, rngs: &mut Rngs) -> LowRank {
        LowRank {
            down: linear(config.features, about.rank, [Some("embed"), None], rngs),
            up: linear(about.rank, config.features, [None, Some("embed")], rngs),
            norm: Norm::new(config.norm, config.features, config.epsilon, rngs),
        }
    }

    pub(super) fn forward(&self, x: &Array) -> Array {
        x + self.norm.forward(self.up.forward(self.down.forward(x)))
    }
}

/// Creates a linear layer without a bias.
fn linear(from: usize, to: usize, axes: [Option<&'static str>; 2], rngs: &mut Rngs) -> Linear {
    Linear::builder(from, to).use_bias(false).kernel_axes(axes).build(rngs)
}

/// Computes all streams from the first one, `x`. The others are projections of the same magnitude.
pub(super) fn spread(x: &Array, layers: &[Linear]) -> Array {
    let others = layers.iter().map(|layer| with_magnitude_of(layer.forward(x), x));
    concatenate(&std::iter::once(x.clone()).chain(others).collect::<Vec<_>>(), -1)
}

/// Computes the mean of all streams `x`, `[..., streams * features]`. All except the first one are projected.
pub(super) fn join(x: &Array, layers: &[Linear]) -> Array {
    let count = layers.len() + 1;
    let features = x.shape().last().copied().unwrap_or(0) / count;
    let first = x.get((Ellipsis, ..features));
    let others = layers.iter().enumerate().map(|(i, layer)| {
        let stream = x.get((Ellipsis, (i + 1) * features..(i + 2) * features));
        with_magnitude_of(layer.forward(stream), &first)
    });
    others.fold(first.clone(), |sum, y| sum + y) * (1.0 / count as f64)
}

/// Scales `x` so that its mean square is the mean square of `like`.
fn with_magnitude_of(x: Array, like: &Array) -> Array {
    let target = like.square().mean_keepdims(-1).sqrt();
    let magnitude = x.square().mean_keepdims(-1).maximum(1e-5).sqrt();
    x * target / magnitude
}
