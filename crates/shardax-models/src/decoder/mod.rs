//! A transformer that predicts the next token. Its configuration chooses the architecture of one of many models.

mod attention;
mod block;
mod checks;
mod config;
mod conv;
mod delta;
mod delta_chunks;
mod experts;
mod gated_norm;
mod indexer;
mod latent;
mod lightning;
mod mixers;
mod mlp;
mod norm;
mod parts;
mod recurrence;
mod residuals;
mod rg_lru;
mod selective;
mod shared;
mod slopes;
mod state_chunks;
mod state_layer;
mod state_space;
mod streams;
mod sums;

pub use block::Block;
pub use config::DecoderConfig;
pub use conv::ShortConv;
pub use delta::GatedDelta;
pub use experts::BesideMlp;
pub use gated_norm::GatedNorm;
pub use indexer::Indexer;
pub use latent::LatentAttention;
pub use lightning::LightningAttention;
pub use mixers::{
    ConvConfig, DeltaConfig, LatentConfig, LatentGate, LightningConfig, RgLruConfig, SelectiveConfig, SparseConfig,
    StateSpaceConfig, StateSpaceNorm, StateSpaceScales,
};
pub use mlp::{Mlp, Xielu};
pub use norm::Norm;
pub use parts::{
    Activation, AttentionGate, Biases, ExpertsConfig, HeadSizes, LayerParts, NormKind, NormPlace, Positions, QkNorm,
    ResidualFactors, ResidualSums,
};
pub use residuals::Residuals;
pub use rg_lru::RgLru;
pub use selective::SelectiveState;
pub use shared::{LowRankAdapter, SharedConfig, SharedLayer, SharedUse};
pub use state_space::StateSpace;
pub use streams::{LayerEmbedding, LayerEmbeddingConfig, LayerInput, LowRank, Streams, StreamsConfig};

use block::{KeysAndValues, Lent};
use shardax::error::Result;
use shardax_nn::prelude::*;

use crate::ranks::allow_any_ranks;

/// A transformer that predicts the next token. Its [`DecoderConfig`] chooses the architecture: Llama's by default, or
/// another one, such as Qwen's, Gemma's, GPT-2's or Mixtral's.
///
/// Its dimensions are named `vocab`, `embed`, `heads`, `mlp` and `layers` (see [`Rules`]). If you create it with rules that
/// split `batch`, the activations between layers are split too.
///
/// ```
/// use shardax_models::{Decoder, DecoderConfig};
/// use shardax_nn::prelude::*;
/// let config = DecoderConfig { kv_heads: 2, tie_embeddings: true, ..DecoderConfig::new(100, 2, 32, 4) };
/// let model = Decoder::new(&config, &mut Rngs::new(0))?;
/// let tokens = array([[3, 1, 4, 1, 5]]);
/// let logits = model.forward(&tokens);
/// assert_eq!(logits.shape(), [1, 5, 100]);
///
/// // One token after the other, with a cache of the keys and values of earlier tokens.
/// let mut decoder = model.clone();
/// decoder.init_cache(1, 5);
/// let first = decoder.decode(tokens.get((.., ..4)));
/// let last = decoder.decode(tokens.get((.., 4..)));
/// assert!(allclose(concatenate(&[first, last], 1), logits, 1e-4, 1e-4)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct Decoder {
    /// The table of tokens.
    pub embed: Embed,
    /// Converts the features of the table of tokens, see [`DecoderConfig::embedding_features`].
    pub embedding_projection: Option<Linear>,
    /// The table of positions, of a model that learns them.
    pub positions: Option<Embed>,
    /// True if sines and cosines of the positions are added to token embeddings.
    has_sines: bool,
    /// Normalizes token embeddings, see [`DecoderConfig::embedding_norm`].
    pub embedding_norm: Option<Norm>,
    /// The embedding of tokens for all layers, see [`DecoderConfig::layer_embedding`].
    pub layer_embedding: Option<LayerEmbedding>,
    /// The linear layers that compute the other streams from the first one, see [`DecoderConfig::streams`].
    pub stream_inputs: Vec<Linear>,
    /// The linear layers from the other streams to features that are averaged.
    pub stream_outputs: Vec<Linear>,
    /// Attention and MLPs that several layers share, see [`DecoderConfig::shared`].
    pub shared: Vec<SharedLayer>,
    /// The layers. Empty if the layers are a [`stack`](Decoder::stack).
    pub blocks: Vec<Block>,
    /// The layers as a single loop, see [`DecoderConfig::scan_layers`].
    pub stack: Option<Stack<Block>>,
    /// Normalizes the output of the last layer.
    pub norm: Norm,
    /// Converts the output of the last layer to the features of the table of tokens.
    pub output_projection: Option<Linear>,
    /// The linear layer before the head, see [`DecoderConfig::head_activation`].
    pub head_dense: Option<Linear>,
    /// Normalizes the output of `head_dense`.
    pub head_norm: Option<Norm>,
    /// The layer that computes logits. `None` if the table of tokens does.
    pub head: Option<Linear>,
    /// `[vocabulary]`: added to the logits that the table of tokens computes.
    pub head_bias: Option<Array>,
    #[tree(static)]
    head_activation: Option<Activation>,
    first_position: usize,
    embedding_scale: Option<f64>,
    logits_scale: Option<f64>,
    logits_soft_cap: Option<f64>,
    pub(crate) is_bidirectional: bool,
    /// The largest length of texts with the first frequencies of rotary positions, see [`DecoderConfig::rope_limit`].
    pub(crate) rope_limit: Option<usize>,
    #[tree(static)]
    checkpoint: Option<CheckpointPolicy>,
}

/// Computes a block as a function of arrays alone, which [`checkpoint`] needs.
fn forward_block(block: Block, x: Array, lent: Lent, mask: Option<Array>) -> (Array, Lent) {
    block.forward_over(x, lent, mask.as_ref())
}

impl Decoder {
    /// Creates a model with random weights.
    ///
    /// # Errors
    /// Returns an error if a size is 0 or if sizes do not fit each other.
    #[track_caller]
    pub fn new(config: &DecoderConfig, rngs: &mut Rngs) -> Result<Decoder> {
        config.check()?;
        let DecoderConfig { vocab_size, layers, features, .. } = *config;
        let embedding_features = config.embedding_features.unwrap_or(features);
        // Do not change the order of these layers: they draw their weights from `rngs`, so another order would change the
        // weights of a seed.
        let embed = Embed::builder(vocab_size, embedding_features).axes(["vocab", "embed"]).build(rngs);
        let [embedding_projection, output_projection] =
            [(embedding_features, features), (features, embedding_features)].map(|(from, to)| {
                let layer = Linear::builder(from, to).use_bias(false);
                config.embedding_features.map(|_| layer.kernel_axes([Some("embed"), None]).build(rngs))
            });
        let positions = match config.positions {
            Positions::Learned(length) => {
                Some(Embed::builder(length, features).axes([None, Some("embed")]).build(rngs))
            }
            Positions::Rotary(_) | Positions::Sines | Positions::Alibi(_) | Positions::RoundedAlibi(_) => None,
        };
        let embedding_norm = config.embedding_norm.then(|| Norm::new(config.norm, features, config.epsilon, rngs));
        let layer_embedding = config.layer_embedding.as_ref().map(|about| LayerEmbedding::new(config, about, rngs));
        let others = config.streams.as_ref().map_or(0, |streams| streams.count.saturating_sub(1));
        let [stream_inputs, stream_outputs] = [(); 2].map(|()| {
            let layer = Linear::builder(features, features).use_bias(false).kernel_axes([Some("embed"), None]);
            (0..others).map(|_| layer.clone().build(rngs)).collect::<Vec<Linear>>()
        });
        let shared_count = config.shared.as_ref().map_or(0, |shared| shared.count);
        let shared = (0..shared_count).map(|_| SharedLayer::new(config, rngs)).collect::<Vec<SharedLayer>>();
        let (mut blocks, mut stack) = (Vec::new(), None);
        if config.scan_layers {
            // The layers are one loop, so they must have the structure of layer 0.
            let layers = Stack::new(layers, rngs, |rngs| Block::new(config, 0, rngs))?.axis_name("layers");
            stack = Some(config.checkpoint.iter().fold(layers, |layers, policy| layers.checkpoint(policy.clone())));
        } else {
            blocks = (0..layers).map(|layer| Block::new(config, layer, rngs)).collect();
        }
        let norm =
            if config.final_norm { Norm::new(config.norm, features, config.epsilon, rngs) } else { Norm::Identity };
        let head_dense = config.head_activation.map(|(_, use_bias)| {
            let layer = Linear::builder(features, features).use_bias(use_bias);
            layer.kernel_axes([Some("embed"), None]).build(rngs)
        });
        let head_norm = config.head_activation.map(|_| Norm::new(config.norm, features, config.epsilon, rngs));
        let has_bias = config.tie_embeddings && config.biases.head;
        let head_bias = has_bias.then(|| zeros_dtype([vocab_size], rngs.policy().param_dtype));
        let head = (!config.tie_embeddings).then(|| {
            let logits = config.logits.unwrap_or(vocab_size);
            let builder = Linear::builder(embedding_features, logits).use_bias(config.biases.head);
            builder.kernel_axes(["embed", "vocab"]).build(rngs)
        });
        Ok(Decoder {
            embed,
            embedding_projection,
            positions,
            has_sines: config.positions == Positions::Sines,
            embedding_norm,
            layer_embedding,
            stream_inputs,
            stream_outputs,
            shared,
            blocks,
            stack,
            norm,
            output_projection,
            head_dense,
            head_norm,
            head,
            head_bias,
            head_activation: config.head_activation.map(|(activation, _)| activation),
            first_position: config.first_position,
            embedding_scale: config.embedding_scale,
            logits_scale: config.logits_scale,
            logits_soft_cap: config.logits_soft_cap,
            is_bidirectional: config.bidirectional,
            rope_limit: config.rope_limit(),
            checkpoint: config.checkpoint.clone(),
        })
    }

    /// Computes the logits of the token after each token of `[..., length]`: `[..., length, vocabulary]`.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike) -> Array {
        self.logits(self.hidden(self.embed(tokens)))
    }

    /// Computes the input of the first layer for tokens `[..., length]`: `[..., length, features]`. With
    /// [`DecoderConfig::shared`], the last dimension is `2 * features`.
    #[track_caller]
    pub fn embed(&self, tokens: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let tokens = tokens.into_array();
        if let Err(error) = check_tokens("Decoder", &self.embed, &tokens) {
            return Array::from_error(error, &tokens);
        }
        if let Some(Err(error)) =
            self.positions.as_ref().map(|table| check_positions("Decoder", table, self.first_position, &tokens))
        {
            return Array::from_error(error, &tokens);
        }
        let length = tokens.shape().last().copied().unwrap_or(0);
        self.embed_at(tokens, || arange(0..length))
    }

    /// Applies the layers to `x`, `[..., length, features]`. With [`DecoderConfig::shared`], the last dimension of `x` and of the
    /// result is `2 * features`. With [`ExpertsConfig::delayed`], it is so only between the layers.
    #[track_caller]
    pub fn hidden(&self, x: Array) -> Array {
        self.hidden_with(x, None)
    }

    /// Computes [`hidden`](Decoder::hidden) with a mask, which must broadcast to `[batch, heads, queries, keys]`.
    #[track_caller]
    fn hidden_with(&self, x: Array, mask: Option<&Array>) -> Array {
        let _ranks = allow_any_ranks();
        if let Some(stack) = &self.stack {
            let scanned = stack.scan(|block: &Block, x: Array| (block.forward(x), ()), x.clone());
            return scanned.map_or_else(|error| Array::from_error(error, &x), |(y, ())| y);
        }
        let mut x = x;
        // The keys and values of layers that later layers use, and the positions that the last layers have chosen.
        let mut lent: Vec<Option<KeysAndValues>> = Vec::new();
        let mut chosen = None;
        for block in &self.blocks {
            let keys = block.key_layer.and_then(|layer| lent.get(layer).cloned().flatten());
            let borrowed = (keys, chosen.clone());
            let block = &self.with_shared_layer(block);
            let (y, (keys, positions)) = match &self.checkpoint {
                Some(policy) => {
                    let recomputed = checkpoint(forward_block).policy(policy.clone());
                    Function::<(Block, Array, Lent, Option<Array>)>::apply(
                        &recomputed,
                        (block.clone(), x.clone(), borrowed, mask.cloned()),
                    )
                    .unwrap_or_else(|error| (Array::from_error(error, &x), (None, None)))
                }
                None => block.forward_over(x, borrowed, mask),
            };
            lent.push(keys);
            chosen = positions.or(chosen);
            x = y;
        }
        x
    }

    /// Returns the block with the shared layer that it uses, if it uses one.
    fn with_shared_layer(&self, block: &Block) -> Block {
        let mut block = block.clone();
        if let Some(user) = &mut block.shared {
            user.layer = self.shared.get(user.index).cloned();
        }
        block
    }

    /// Joins the streams of features, and removes the embeddings of layers that follow the features.
    #[track_caller]
    fn without_streams(&self, x: Array) -> Array {
        let x = match &self.layer_embedding {
            Some(embedding) => x.get((Ellipsis, ..-(embedding.size() as i32))),
            None if !self.shared.is_empty() => {
                let features = x.shape().last().map_or(0, |features| features / 2);
                x.get((Ellipsis, ..features))
            }
            None => x,
        };
        if self.stream_outputs.is_empty() { x } else { streams::join(&x, &self.stream_outputs) }
    }

    /// Computes the normalized output of the last layer for tokens `[batch, length]`: `[batch, length, features]`. `mask`,
    /// `[batch, length]`, is 0 for padding, to which no other token attends.
    #[track_caller]
    pub(crate) fn encode(&self, tokens: impl ArrayLike, mask: Option<&Array>) -> Array {
        let _ranks = allow_any_ranks();
        let mask = mask.filter(|_| self.is_bidirectional).map(|mask| {
            // `[batch, heads, queries, keys]`
            mask.astype(DType::Bool).expand_dims(1).expand_dims(1)
        });
        let x = self.hidden_with(self.embed(tokens), mask.as_ref());
        self.norm.forward(self.without_streams(x))
    }

    /// Computes logits `[..., vocabulary]` from the output of the last layer.
    #[track_caller]
    pub fn logits(&self, x: Array) -> Array {
        let x = self.norm.forward(self.without_streams(x));
        let x = self.output_projection.iter().fold(x, |x, layer| layer.forward(x));
        let x = match (&self.head_dense, self.head_activation) {
            (Some(layer), Some(activation)) => activation.apply(layer.forward(x)),
            _ => x,
        };
        let x = self.head_norm.iter().fold(x, |x, norm| norm.forward(x));
        let logits = match &self.head {
            Some(head) => head.forward(x),
            None => self.embed.attend(x),
        };
        let logits = self.head_bias.iter().fold(logits, |logits, bias| &logits + bias.astype(logits.dtype()));
        let logits = match self.logits_scale {
            Some(scale) => logits * scale,
            None => logits,
        };
        match self.logits_soft_cap {
            Some(cap) => (logits / cap).tanh() * cap,
            None => logits,
        }
    }

    /// Creates an empty cache of keys and values for `batch` texts of at most `length` tokens. You must call it before
    /// you decode the first token, and again before other texts.
    #[track_caller]
    pub fn init_cache(&mut self, batch: usize, length: usize) {
        self.blocks.iter_mut().for_each(|block| block.init_cache(&[batch, length]));
        if let Some(stack) = &mut self.stack {
            let depth = stack.depth();
            stack.layers.init_cache(&[depth, batch, length]);
            stack.layers.set_cache_index(zeros_dtype([depth], DType::I32).into());
        }
    }

    /// Appends tokens, `[batch, length]`, to the tokens in the cache. Returns the logits of the token after each of them,
    /// `[batch, length, vocabulary]`. Results beyond the length of the cache are NaN.
    ///
    /// You must call `init_cache` first.
    #[track_caller]
    pub fn decode(&mut self, tokens: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let x = self.decode_hidden(tokens.into_array(), None, None);
        self.logits(x)
    }

    /// Appends tokens at these positions, `[batch, length]`, with a mask of the cache. Returns only the logits of the token
    /// after the last one, `[batch, vocabulary]`, because the others would take memory and time for each token of a prompt.
    #[track_caller]
    pub(crate) fn decode_last(&mut self, tokens: Array, positions: &Array, mask: &Array) -> Array {
        let _ranks = allow_any_ranks();
        let x = self.decode_hidden(tokens, Some(positions), Some(mask));
        self.logits(x.get((.., -1..))).get((.., 0))
    }

    /// Appends tokens to the cache. Returns the output of the last layer for them.
    #[track_caller]
    fn decode_hidden(&mut self, tokens: Array, positions: Option<&Array>, mask: Option<&Array>) -> Array {
        let length = tokens.shape().last().copied().unwrap_or(0) as i32;
        let cached = self.cached();
        let mut x = self.embed_at(tokens, || positions.cloned().unwrap_or_else(|| cached + arange(0..length)));
        let mut chosen = None;
        for layer in 0..self.blocks.len() {
            let (earlier, others) = self.blocks.split_at_mut(layer);
            let Some(block) = others.first_mut() else { continue };
            let keys = block.key_layer.and_then(|layer| earlier.get(layer));
            if let Some(user) = &mut block.shared {
                user.layer = self.shared.get(user.index).cloned();
            }
            let (y, seen) = block.decode_over(x, positions, mask, (keys, chosen.as_ref()));
            if let Some(user) = &mut block.shared {
                user.layer = None;
            }
            chosen = seen.or(chosen);
            x = y;
        }
        if let Some(stack) = &mut self.stack {
            let decoded = stack.update_each(|block: &mut Block, x: Array| block.decode(x, positions, mask), x.clone());
            x = decoded.unwrap_or_else(|error| Array::from_error(error, &x));
        }
        x
    }

    /// Returns the number of tokens in the cache, a scalar. It is 0 without a cache.
    pub(crate) fn cached(&self) -> Array {
        let index = match (&self.stack, self.blocks.first()) {
            (Some(stack), _) => stack.layers.cache_index().map(|index| index.get(0)),
            (None, block) => block.and_then(Block::cache_index).map(|index| (**index).clone()),
        };
        index.unwrap_or_else(|| zeros_dtype((), DType::I32))
    }

    /// Computes the input of the first layer for tokens at these positions, which are only computed if the model learned
    /// them.
    #[track_caller]
    fn embed_at(&self, tokens: Array, positions: impl FnOnce() -> Array) -> Array {
        let x = self.embed.forward(&tokens);
        let x = match self.embedding_scale {
            Some(scale) => x * scale,
            None => x,
        };
        let x = self.embedding_projection.iter().fold(x, |x, layer| layer.forward(x));
        let x = match &self.positions {
            Some(table) => x + table.forward(positions() + self.first_position as i32),
            None if self.has_sines => {
                let features = x.shape().last().copied().unwrap_or(0);
                let sines = sines_at(&(positions() + self.first_position as i32), features);
                &x + sines.astype(x.dtype())
            }
            None => x,
        };
        let x = self.embedding_norm.iter().fold(x, |x, norm| norm.forward(x));
        let embeddings = self.layer_embedding.as_ref().map(|embedding| embedding.forward(&tokens, &x));
        let x = if self.stream_inputs.is_empty() { x } else { streams::spread(&x, &self.stream_inputs) };
        let embeddings = embeddings.or_else(|| (!self.shared.is_empty()).then(|| x.clone()));
        embeddings.into_iter().fold(x, |x, embeddings| concatenate(&[x, embeddings], -1))
    }

    /// Returns the maximal length of a text, if the model learned a table of positions.
    pub(crate) fn max_positions(&self) -> Option<usize> {
        let table = self.positions.as_ref()?;
        let length = table.embedding.shape().first().copied().unwrap_or(0);
        Some(length.saturating_sub(self.first_position))
    }
}

/// Returns an error if tokens are not in the table of a model. While a function is traced, their values are not known; then
/// the embedding of an unknown token is NaN.
#[track_caller]
pub(crate) fn check_tokens(model: &str, table: &Embed, tokens: &Array) -> Result<()> {
    tokens.check()?;
    if tokens.is_traced() || !tokens.dtype().is_integer() || !tokens.is_fully_addressable() {
        return Ok(());
    }
    let count = table.embedding.shape().first().copied().unwrap_or(0);
    // An operation on the tokens would be recorded by an enclosing trace, and its result would have no value.
    match tokens.to_f64_vec()?.into_iter().find(|token| !(0.0..count as f64).contains(token)) {
        Some(token) => {
            let message = format!(
                "{model}: the token {token} is not in the vocabulary, which has the tokens 0 to {}",
                count.saturating_sub(1)
            );
            Err(Error::new(ErrorKind::Value, message).help("encode the texts with the tokenizer of this model"))
        }
        None => Ok(()),
    }
}

/// Returns the sines of positions in the first half of the features, and their cosines in the second half. The frequencies decrease from
/// 1 to 1 / 10000.
fn sines_at(positions: &Array, features: usize) -> Array {
    let half = features / 2;
    let last = half.saturating_sub(1).max(1) as f64;
    let speeds: Vec<f32> = (0..half).map(|pair| 10_000f64.powf(-(pair as f64) / last) as f32).collect();
    let angles = positions.astype(DType::F32).expand_dims(-1) * array(speeds);
    concatenate(&[angles.sin(), angles.cos()], -1)
}

/// Returns an error for texts that are longer than a learned table from position `first` on. The table would return NaN.
pub(crate) fn check_positions(model: &str, table: &Embed, first: usize, tokens: &Array) -> Result<()> {
    tokens.check()?;
    let length = tokens.shape().last().copied().unwrap_or(0);
    let positions = table.embedding.shape().first().copied().unwrap_or(0).saturating_sub(first);
    if length <= positions {
        return Ok(());
    }
    let message = format!("{model}: texts of {length} tokens are too long for the {positions} positions of the model");
    Err(Error::new(ErrorKind::Value, message).help("truncate the texts, for example with `tokens.get((.., ..length))`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `decode_last` returns the same logits for the last token as `decode`, and its program does not compute the others.
    #[test]
    fn last_logits_are_the_only_ones_computed() -> Result<()> {
        shardax::config::set_compiler_options(crate::quick::QUICK);
        const LENGTH: usize = 5;
        const VOCABULARY: usize = 67;
        let config = DecoderConfig { kv_heads: 2, ..DecoderConfig::new(VOCABULARY, 2, 32, 4) };
        let model = Decoder::new(&config, &mut Rngs::new(0))?;
        let tokens = array([[3, 1, 4, 1, 5]]);
        let decode_last = jit(|mut model: Decoder, tokens: Array| {
            model.init_cache(1, LENGTH);
            let positions = arange(0..LENGTH as i32).expand_dims(0);
            let mask = ones_dtype([1, 1, 1, LENGTH], DType::Bool);
            model.decode_last(tokens, &positions, &mask)
        });
        let mut decoder = model.clone();
        decoder.init_cache(1, LENGTH);
        let expected = decoder.decode(&tokens).get((.., -1));
        assert!(allclose(decode_last.call((&model, &tokens))?, expected, 1e-5, 1e-6)?);
        let text = decode_last.lower((&model, &tokens))?.as_text().to_string();
        assert!(text.contains(&format!("1x{VOCABULARY}xf32")), "{text}");
        assert!(!text.contains(&format!("{LENGTH}x{VOCABULARY}xf32")), "{text}");
        Ok(())
    }
}
