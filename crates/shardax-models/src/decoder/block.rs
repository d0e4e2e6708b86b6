//! The blocks of a decoder.

use shardax_nn::prelude::*;

use super::attention;
use super::experts::{self, BesideMlp};
use super::mlp::Mlp;
use super::norm::{Norm, norm_if, with_factors};
use super::residuals::Residuals;
use super::shared::SharedUse;
use super::slopes::Slopes;
use super::state_layer::StateLayer;
use super::streams::{LayerInput, LowRank, Streams};
use super::{
    DecoderConfig, GatedDelta, LatentAttention, LayerParts, LightningAttention, Positions, ResidualFactors, RgLru,
    SelectiveState, ShortConv, StateSpace,
};
use crate::shardings::{gather_positions, reshard_like};

/// A block of a [`Decoder`](crate::Decoder): attention and an MLP, each added to its input.
///
/// Instead of attention a block can have a convolution, linear attention or latent attention, and instead of an MLP it can
/// have experts. The fields of layers that the block does not have are `None`.
#[derive(Module, Clone, Debug)]
pub struct Block {
    /// Normalizes the input of attention, see [`DecoderConfig::pre_norms`].
    pub norm: Option<Norm>,
    /// Causal attention.
    pub attention: Option<MultiHeadAttention>,
    /// A convolution instead of attention.
    pub conv: Option<ShortConv>,
    /// Linear attention.
    pub delta: Option<GatedDelta>,
    /// A state-space layer.
    pub state_space: Option<StateSpace>,
    /// A state-space layer of the first form of Mamba.
    pub selective: Option<SelectiveState>,
    /// Linear attention whose states decay at constant rates.
    pub lightning: Option<LightningAttention>,
    /// A gated linear recurrent unit.
    pub rg_lru: Option<RgLru>,
    /// Attention with latent keys and values.
    pub latent: Option<LatentAttention>,
    /// Normalizes the output of attention, see [`DecoderConfig::post_norms`].
    pub post_attention_norm: Option<Norm>,
    /// Normalizes the input of the MLP. It is `None` without [`DecoderConfig::pre_norms`], and if the MLP has the same
    /// input as attention.
    pub mlp_norm: Option<Norm>,
    /// The MLP.
    pub mlp: Option<Mlp>,
    /// The experts.
    pub experts: Option<MixtureOfExperts<Mlp>>,
    /// The shared expert, an MLP that processes all tokens.
    pub shared_expert: Option<Mlp>,
    /// The gate of the shared expert.
    pub shared_gate: Option<Linear>,
    /// Normalizes the output of the MLP, see [`DecoderConfig::post_norms`].
    pub post_mlp_norm: Option<Norm>,
    /// The norms of experts next to an MLP, see [`ExpertsConfig::beside_mlp`](crate::ExpertsConfig::beside_mlp).
    pub beside: Option<BesideMlp>,
    /// The parts for a layer that several blocks share, see [`DecoderConfig::shared`].
    pub shared: Option<Box<SharedUse>>,
    /// Adds an embedding of the tokens, see [`DecoderConfig::layer_embedding`].
    pub layer_input: Option<LayerInput>,
    /// Several streams of features, see [`DecoderConfig::streams`].
    pub streams: Option<Streams>,
    /// A linear layer of low rank, which is added to attention, see [`DecoderConfig::streams`].
    pub low_rank: Option<LowRank>,
    /// `[1]`: the factor of the output, see [`DecoderConfig::layer_scale`].
    pub layer_scale: Option<Array>,
    /// Adds the outputs of attention and of the MLP to their inputs, see [`DecoderConfig::sums`].
    pub residuals: Residuals,
    /// The earlier layer whose keys and values attention uses, see [`DecoderConfig::key_layers`].
    #[tree(static)]
    pub(super) key_layer: Option<usize>,
    /// True if a later layer uses the keys and values of this one.
    lends_keys: bool,
    /// The slope of each head's scores over the distance, for [`Positions::Alibi`](crate::Positions::Alibi).
    #[tree(static)]
    alibi_slopes: Option<Slopes>,
    /// The factor of rounded biases, for [`Positions::RoundedAlibi`](crate::Positions::RoundedAlibi).
    rounded_alibi: Option<f64>,
    /// The number of positions in a chunk of attention.
    #[tree(static)]
    chunk: Option<usize>,
    pub(super) has_embeddings: bool,
    pub(super) weighs_inputs: bool,
    pub(super) averages_shared: bool,
    pub(super) sum_norms: bool,
    pub(super) residual_scale: Option<f64>,
    pub(super) residual_factors: Option<ResidualFactors>,
    attention_input_scale: Option<f64>,
    attention_output_scale: Option<f64>,
    pub(super) parallel: bool,
    #[tree(static)]
    pub(super) rules: Rules,
}

/// The keys and values of a layer, `[..., length, key heads, depth]`.
pub(super) type KeysAndValues = (Array, Array);

/// The arrays that a layer lends to later layers: keys and values, and the positions that queries of sparse attention see.
pub(super) type Lent = (Option<KeysAndValues>, Option<Array>);

/// Applies a layer with a state, which needs all positions of `x` in order. The result is sharded like `x`.
pub(super) fn with_all_positions(x: &Array, forward: impl FnOnce(Array) -> Array) -> Array {
    reshard_like(forward(gather_positions(x.clone())), x)
}

impl Block {
    /// Creates the block with this index. The index determines its window and its rotary positions.
    #[track_caller]
    pub fn new(config: &DecoderConfig, layer: usize, rngs: &mut Rngs) -> Block {
        // Do not change the order of these calls: layers draw their weights from `rngs`, so that another order would
        // change the model of every seed.
        let DecoderConfig { features, activation, gated, biases, .. } = *config;
        let hidden = config.layer_hidden.get(layer).copied().unwrap_or(config.hidden);
        let is_normalized = config.first_norm || layer > 0;
        let (pre_norms, post_norms) = config.normalizes(layer);
        let has_norm = (pre_norms && is_normalized) || config.sum_norms;
        let attention_norm = norm_if(has_norm && config.parts_of(layer) != LayerParts::Mlp, config, rngs);
        let attention_norm = with_factors(attention_norm, config.norm_gates, features, rngs);
        let latent = config.latent.as_ref().filter(|_| config.delta_of(layer).is_none());
        let latent = latent.map(|latent| LatentAttention::new(config, latent, layer, rngs));
        let conv = config.conv_of(layer).map(|conv| ShortConv::new(features, conv, rngs));
        let delta = config.delta_of(layer).map(|delta| GatedDelta::new(features, delta, config.epsilon, rngs));
        let parts = config.parts_of(layer);
        let space = config.state_space_of(layer);
        let state_space = space.map(|space| StateSpace::new(features, space, config.epsilon, rngs));
        let selective = config.selective_of(layer).map(|space| SelectiveState::new(features, space, rngs));
        let lightning = config.lightning_of(layer).map(|about| LightningAttention::new(config, about, layer, rngs));
        let rg_lru = config.rg_lru_of(layer).map(|about| RgLru::new(config, about, rngs));
        let has_attention = parts != LayerParts::Mlp
            && latent.is_none()
            && conv.is_none()
            && delta.is_none()
            && selective.is_none()
            && lightning.is_none()
            && rg_lru.is_none()
            && space.is_none_or(|space| space.beside_attention);
        let attention = has_attention.then(|| attention::build(config, layer, rngs));
        let post_attention_norm = norm_if(post_norms, config, rngs);
        let has_mlp_norm = pre_norms && !(config.parallel && config.shared_norm);
        let has_mlp = parts != LayerParts::Mixer;
        let mlp_norm = norm_if((has_mlp_norm || config.sum_norms) && has_mlp, config, rngs);
        let chosen = config.experts_of(layer).filter(|_| has_mlp);
        let mlp_norm = with_factors(mlp_norm, config.norm_gates.filter(|_| chosen.is_some()), features, rngs);
        let experts = chosen.and_then(|chosen| experts::build(config, chosen, layer, rngs));
        let bound = config.mlp_bounds.get(layer).copied().flatten();
        let is_beside = chosen.is_some_and(|chosen| chosen.beside_mlp);
        let delays = config.delays_experts(layer);
        let mlp = ((experts.is_none() || is_beside || delays) && has_mlp).then(|| {
            let mlp = Mlp::new(features, hidden, activation, gated, biases.mlp, rngs).scales(config).bound(bound);
            let mlp = mlp.sparsity(config.gate_sparsity.get(layer).copied().filter(|share| *share > 0.0));
            if config.inner_norms { mlp.normalized(hidden, config.epsilon, rngs) } else { mlp }
        });
        let shared_hidden = chosen.and_then(|chosen| chosen.shared_hidden);
        let shared_expert =
            shared_hidden.map(|hidden| Mlp::new(features, hidden, activation, gated, biases.mlp, rngs).bound(bound));
        let has_gate = shared_expert.is_some() && chosen.is_some_and(|chosen| chosen.shared_gate);
        let shared_gate = has_gate.then(|| Linear::builder(features, 1).use_bias(false).build(rngs));
        let normalizes_experts = chosen.is_some_and(|chosen| chosen.post_norms);
        let post_mlp_norm = norm_if(post_norms || normalizes_experts, config, rngs);
        Block {
            norm: attention_norm,
            attention,
            conv,
            delta,
            state_space,
            selective,
            lightning,
            rg_lru,
            latent,
            post_attention_norm,
            mlp_norm,
            mlp,
            experts,
            shared_expert,
            shared_gate,
            post_mlp_norm,
            beside: chosen.filter(|_| is_beside).map(|chosen| BesideMlp::new(config, chosen.count, rngs)),
            shared: config.shared_of(layer).map(|(about, index)| Box::new(SharedUse::new(config, about, index, rngs))),
            has_embeddings: config.shared.is_some(),
            layer_input: config.layer_embedding.as_ref().map(|about| LayerInput::new(config, about, layer, rngs)),
            streams: config.streams.as_ref().map(|about| Streams::new(config, about, rngs)),
            low_rank: config.streams.as_ref().map(|about| LowRank::new(config, about, rngs)),
            residuals: Residuals::new(config, layer, rngs),
            layer_scale: config.layer_scale.then(|| ones_dtype([1], rngs.policy().param_dtype)),
            key_layer: config.key_layer(layer),
            lends_keys: config.key_layers.contains(&Some(layer)),
            alibi_slopes: config.alibi_slopes().map(Slopes::new),
            rounded_alibi: match config.positions {
                Positions::RoundedAlibi(factor) => Some(factor),
                _ => None,
            },
            chunk: config.chunk.filter(|_| config.rope_of(layer).is_some()),
            weighs_inputs: chosen.is_some_and(|chosen| chosen.weighs_inputs),
            averages_shared: chosen.is_some_and(|chosen| chosen.averages_shared),
            sum_norms: config.sum_norms,
            residual_scale: config.residual_scale,
            residual_factors: config.residual_factors.get(layer).cloned(),
            attention_input_scale: config.attention_input_scale,
            attention_output_scale: config.attention_output_scale,
            parallel: config.parallel,
            rules: rngs.rules(),
        }
    }

    /// Applies the block to `x`, `[..., length, features]`. The result has the same shape.
    ///
    /// With [`DecoderConfig::shared`], the last dimension of both is `2 * features`. With
    /// [`ExpertsConfig::delayed`](crate::ExpertsConfig::delayed), the last dimension of the result of a layer with experts is
    /// `2 * features`, and the next layer takes this result.
    #[track_caller]
    pub fn forward(&self, x: Array) -> Array {
        self.forward_over(x, (None, None), None).0
    }

    /// Computes the output of the block. `keys` are the keys and values of the layer that the configuration names, if it names
    /// one, and `mask` must broadcast to `[batch, heads, queries, keys]`. Also returns the arrays of this block that later layers
    /// use.
    #[track_caller]
    pub(super) fn forward_over(&self, x: Array, (keys, earlier): Lent, mask: Option<&Array>) -> (Array, Lent) {
        if self.has_embeddings {
            return (self.forward_shared(&x), (None, None));
        }
        let (mut lent, mut chosen) = (None, None);
        let y = self.add_layers(x, |x| {
            let attended = self.attention.as_ref().map(|attention| {
                let x = scaled(x.clone(), self.attention_input_scale);
                let length = x.shape().get(x.ndim().saturating_sub(2)).copied().unwrap_or(0);
                let options = self.with_alibi(AttentionOptions::new(), length);
                let places = arange(0..length as i32);
                let options = mask
                    .iter()
                    .fold(self.with_chunk(options, &places, &places, None), |options, mask| options.mask(*mask));
                // The keys are computed before the attention, because later layers need them too.
                lent = self.lends_keys.then(|| attention.keys_and_values(&x, &options).into());
                let y = match keys.clone().or_else(|| lent.clone()) {
                    Some((keys, values)) => attention.attend_over(&x, keys, values, options),
                    None => attention.attend(&x, &x, &x, options),
                };
                scaled(y, self.attention_output_scale)
            });
            let latent = self.latent.as_ref().map(|latent| {
                let (y, positions) = latent.forward_over(x.clone(), earlier.as_ref());
                chosen = positions;
                y
            });
            let others = self.state_layers().map(|layer| with_all_positions(&x, |x| layer.forward(x)));
            attended.into_iter().chain(latent).chain(others).reduce(|sum, result| sum + result)
        });
        (y, (lent, chosen))
    }

    /// Creates an empty cache of keys and values of this shape, `[..., length]`. You must call it before the first
    /// [`decode`](Self::decode), and again before a new text.
    #[track_caller]
    pub fn init_cache(&mut self, shape: &[usize]) {
        if let Some(attention) = &mut self.attention {
            let dtype = attention.out.kernel.dtype();
            attention.init_cache([shape, &[1]].concat(), dtype);
        }
        if let Some(latent) = &mut self.latent {
            latent.init_cache(shape);
        }
        if let Some(shared) = &mut self.shared {
            shared.init_cache(shape);
        }
        self.state_layers_mut().for_each(|layer| layer.init_cache(shape));
    }

    /// Returns the number of positions in the cache, or `None` if there is no cache.
    pub fn cache_index(&self) -> Option<&Cache> {
        let attention = self.attention.as_ref().and_then(|attention| attention.cache_index.as_ref());
        let latent = self.latent.as_ref().and_then(|latent| latent.cache_index.as_ref());
        attention.or(latent).or_else(|| self.state_layers().find_map(StateLayer::cache_index))
    }

    pub(super) fn set_cache_index(&mut self, index: Cache) {
        let attention = self.attention.as_mut().map(|attention| &mut attention.cache_index);
        let latent = self.latent.as_mut().map(|latent| &mut latent.cache_index);
        // A layer can have attention next to a state space.
        for place in attention.into_iter().chain(latent) {
            *place = Some(index.clone());
        }
        self.state_layers_mut().for_each(|layer| *layer.cache_index_mut() = Some(index.clone()));
    }

    /// Computes the next positions `x`, which attend to the positions in the cache.
    ///
    /// If texts do not start at the first position of the cache, you must pass their `positions`, `[batch, length]`, and a
    /// mask that broadcasts to `[batch, heads, length, length of the cache]`.
    #[track_caller]
    pub fn decode(&mut self, x: Array, positions: Option<&Array>, mask: Option<&Array>) -> Array {
        self.decode_over(x, positions, mask, (None, None)).0
    }

    /// Computes [`decode`](Block::decode) with the cache of the layer that the configuration names, if it names one, and with the
    /// positions that an earlier layer has chosen. Also returns the positions that this layer chooses.
    #[track_caller]
    pub(super) fn decode_over(
        &mut self,
        x: Array,
        positions: Option<&Array>,
        mask: Option<&Array>,
        (keys, earlier): (Option<&Block>, Option<&Array>),
    ) -> (Array, Option<Array>) {
        if self.has_embeddings {
            return (self.decode_shared(&x, positions, mask), None);
        }
        let mut chosen = None;
        let other = keys.and_then(|block| block.attention.as_ref());
        // `add_layers` borrows the block, so the caches change in a copy, which replaces the block at the end.
        let mut updated = self.clone();
        let y = self.add_layers(x, |x| {
            let attended = updated
                .attention
                .as_mut()
                .map(|attention| self.decode_attention(attention, &x, (positions, mask), other));
            let latent = updated.latent.as_mut().map(|latent| {
                let (y, seen) = latent.decode_over(x.clone(), positions, mask, earlier);
                chosen = seen;
                y
            });
            let others =
                updated.state_layers_mut().map(|layer| with_all_positions(&x, |x| layer.decode(x, positions, mask)));
            attended.into_iter().chain(latent).chain(others).reduce(|sum, result| sum + result)
        });
        *self = updated;
        (y, chosen)
    }

    /// Attends from the next positions `x` to the positions in the cache of `attention`.
    #[track_caller]
    fn decode_attention(
        &self,
        attention: &mut MultiHeadAttention,
        x: &Array,
        (positions, mask): (Option<&Array>, Option<&Array>),
        other: Option<&MultiHeadAttention>,
    ) -> Array {
        let options = positions.iter().fold(AttentionOptions::new(), |options, at| options.positions(*at));
        let keys = other.unwrap_or(attention).cached_key.as_ref().map(|keys| keys.shape());
        let length = keys.and_then(|shape| shape.get(shape.len().checked_sub(3)?).copied()).unwrap_or(0);
        let options = self.with_alibi(options, length);
        let options = match (self.chunk, &attention.cache_index) {
            (Some(_), Some(index)) => {
                let new = x.shape().get(x.ndim().saturating_sub(2)).copied().unwrap_or(0);
                let (queries, keys) = (&**index + arange(0..new as i32), arange(0..length as i32));
                // If a text starts later than the cache, its positions are less than the positions in the cache. The last position
                // shows it, because the positions of padding before the text are 0.
                let places = positions.map_or((queries.clone(), keys.clone()), |positions| {
                    let late = queries.get(-1) - positions.get((.., -1..));
                    ((*positions).clone(), keys - late)
                });
                self.with_chunk(options, &places.0, &places.1, mask)
            }
            _ => mask.iter().fold(options, |options, mask| options.mask(*mask)),
        };
        let x = scaled(x.clone(), self.attention_input_scale);
        let y = match other {
            Some(other) => attention.decode_over(x, other, options),
            None => attention.decode_with(x, options),
        };
        scaled(y, self.attention_output_scale)
    }

    /// Restricts attention to keys in the chunk of the query. `queries` and `keys` are their positions, `[..., length]`.
    /// `mask` is applied too.
    fn with_chunk(
        &self,
        options: AttentionOptions,
        queries: &Array,
        keys: &Array,
        mask: Option<&Array>,
    ) -> AttentionOptions {
        let Some(chunk) = self.chunk else { return options };
        let [query_chunks, key_chunks] = [queries, keys].map(|places| floor_divide(places, chunk as i32));
        let is_same = query_chunks.expand_dims(-1).equal(key_chunks.expand_dims(-2));
        // `[batch, heads, queries, keys]`
        let is_same = if is_same.ndim() > 2 { is_same.expand_dims(1) } else { is_same };
        options.mask(match mask {
            Some(mask) => mask.astype(DType::Bool) & is_same,
            None => is_same,
        })
    }

    /// Adds the bias of each head, `[heads, 1, keys]`, to the scores.
    ///
    /// The bias is computed from the position of the key instead of the distance. For each query, both differ by a constant,
    /// which does not change the softmax.
    fn with_alibi(&self, options: AttentionOptions, keys: usize) -> AttentionOptions {
        let Some(slopes) = &self.alibi_slopes else { return options };
        let (slopes, places) = (slopes.to_array().reshape([-1, 1, 1]), arange(0..keys as i32));
        options.bias(match self.rounded_alibi {
            None => slopes * places.astype(DType::F32),
            Some(factor) => rounded(rounded(slopes) * rounded(places.astype(DType::F32))) * factor,
        })
    }

    /// Shards the batch and the positions of `x` by the rules. A single position, for example in decoding, is not sharded.
    pub(super) fn place(&self, x: Array) -> Array {
        match x.shape() {
            [_, length, _] => {
                let length = (*length > 1).then_some("length");
                self.rules.constrain(x, [Some("batch"), length, None])
            }
            _ => x,
        }
    }
}

/// Rounds to bfloat16.
fn rounded(x: Array) -> Array {
    lax::reduce_precision(&x, 8, 7)
}

/// Multiplies `x` by a factor, if there is one.
pub(super) fn scaled(x: Array, factor: Option<f64>) -> Array {
    match factor {
        Some(factor) => x * factor,
        None => x,
    }
}
