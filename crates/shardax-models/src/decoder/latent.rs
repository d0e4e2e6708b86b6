//! Multi-head latent attention.

use shardax_nn::QueryGrowth;
use shardax_nn::prelude::*;

use super::block::scaled;
use super::indexer::Indexer;
use super::recurrence::rank_error;
use super::{DecoderConfig, LatentConfig, LatentGate};

/// Multi-head latent attention ([DeepSeek-V2](https://arxiv.org/abs/2405.04434)). Keys and values are computed from a
/// latent vector of few features for each position, so that the cache is small: it stores only the latent vectors.
///
/// Each head has features without rotary positions, followed by features with rotary positions. All heads share the
/// rotated features of the key. In layers without rotary positions these features are not rotated, but shared.
#[derive(Module, Clone, Debug)]
pub struct LatentAttention {
    /// Projects features to the latent vector of queries, if queries have one.
    pub query_down: Option<Linear>,
    /// Normalizes the latent vector of queries.
    pub query_norm: Option<RmsNorm>,
    /// Projects the latent vector, or otherwise the features, to queries `[heads, depth]`.
    pub query: LinearGeneral,
    /// Projects features to the latent vector of keys and values, followed by the rotated features of the key.
    pub latent: Linear,
    /// Normalizes the latent vector of keys and values.
    pub latent_norm: RmsNorm,
    /// Projects the latent vector to keys, followed by values, `[heads, depth of both]`.
    pub key_value: LinearGeneral,
    /// Projects values, `[heads, depth]`, to features.
    pub out: LinearGeneral,
    /// Projects features, or the latent vector of queries, to the factors of the results of heads, if they have some.
    pub gate: Option<LinearGeneral>,
    /// Chooses the positions that queries see, if attention is sparse.
    pub indexer: Option<Indexer>,
    /// The normalized latent vectors and the rotated keys of earlier positions, `[batch, length, features of both]`.
    pub cached: Option<Cache>,
    /// The number of positions in the cache, int32.
    pub cache_index: Option<Cache>,
    /// The number of positions that queries see, if an earlier layer chooses them.
    #[tree(static)]
    shared_count: Option<usize>,
    rope: Option<Rope>,
    query_growth: Option<QueryGrowth>,
    gates_from_latents: bool,
    query_latent_scale: Option<f64>,
    latent_scale: Option<f64>,
    scale: f64,
    rank: usize,
    key_dim: usize,
}

/// Added to the mean square in the norms of latent vectors. DeepSeek's other norms use a number from the configuration.
const LATENT_EPSILON: f64 = 1e-6;

impl LatentAttention {
    /// Creates the attention of the decoder's layer with this index. All dimensions except the latent ones are sharded by heads.
    #[track_caller]
    pub(super) fn new(config: &DecoderConfig, latent: &LatentConfig, layer: usize, rngs: &mut Rngs) -> Self {
        let rope = config.rope_of(layer);
        let DecoderConfig { features, heads, biases, .. } = *config;
        let LatentConfig { query_rank, rank, key_dim, rope_dim, value_dim, .. } = *latent;
        // All heads share the latent vectors, so only the projections from them can be sharded by heads.
        let query_features = match (query_rank, latent.gate) {
            (Some(rank), Some(LatentGate::Latents)) => 2 * rank,
            (rank, _) => rank.unwrap_or(features),
        };
        let out = LinearGeneral::builder([heads, value_dim], [features]).use_bias(biases.out);
        // `DecoderConfig::check` requires rotary positions for an indexer.
        let index_rope = rope.clone().unwrap_or_default().rotary_dim(rope_dim);
        LatentAttention {
            query_down: query_rank.map(|rank| down(features, rank, biases.qkv, rngs)),
            query_norm: query_rank.map(|rank| norm(rank, rngs)),
            query: to_heads(query_features, [heads, key_dim + rope_dim], rngs),
            latent: down(features, rank + rope_dim, biases.qkv, rngs),
            latent_norm: norm(rank, rngs),
            key_value: to_heads(rank, [heads, key_dim + value_dim], rngs),
            out: out.kernel_axes([Some("heads"), None, Some("embed")]).build(rngs),
            gate: latent.gate.map(|gate| match gate {
                LatentGate::Heads => {
                    let layer = LinearGeneral::builder([features], [heads, 1]).use_bias(false);
                    layer.kernel_axes([Some("embed"), Some("heads"), None]).build(rngs)
                }
                LatentGate::Latents => to_heads(query_features, [heads, value_dim], rngs),
            }),
            gates_from_latents: latent.gate == Some(LatentGate::Latents),
            indexer: latent
                .sparse
                .as_ref()
                .filter(|sparse| !sparse.is_shared(layer))
                .map(|sparse| Indexer::new([features, query_rank.unwrap_or(features)], sparse, index_rope, rngs)),
            cached: None,
            cache_index: None,
            shared_count: latent.sparse.as_ref().filter(|sparse| sparse.is_shared(layer)).map(|sparse| sparse.count),
            rope,
            query_growth: config.query_growth.clone(),
            query_latent_scale: query_rank.filter(|_| latent.scales_latents).map(|rank| latent_scale(features, rank)),
            latent_scale: latent.scales_latents.then(|| latent_scale(features, rank)),
            scale: config.attention_scale.unwrap_or_else(|| ((key_dim + rope_dim) as f64).sqrt().recip()),
            rank,
            key_dim,
        }
    }

    /// Applies causal attention to `x`, `[..., length, features]`. The result has the same shape.
    #[track_caller]
    pub fn forward(&self, x: impl ArrayLike) -> Array {
        self.forward_over(x.into_array(), None).0
    }

    /// Computes [`forward`](LatentAttention::forward). `earlier` are the positions that an earlier layer has chosen. Also returns
    /// the positions that this layer chooses, `[..., 1, queries, keys]`.
    #[track_caller]
    pub(super) fn forward_over(&self, x: Array, earlier: Option<&Array>) -> (Array, Option<Array>) {
        let length = x.shape().get(x.ndim().saturating_sub(2)).copied().unwrap_or(0);
        let positions = arange(0..length as i32);
        let (query_latent, query_input) = self.query_latent(&x);
        let query = self.queries(&query_input, &positions);
        let latent = self.latents(&x, &positions);
        let key_value = self.key_value.forward(latent.get((Ellipsis, ..self.rank)));
        let (key, value) = (key_value.get((Ellipsis, ..self.key_dim)), key_value.get((Ellipsis, self.key_dim..)));
        let rotated = latent.get((Ellipsis, self.rank..)).expand_dims(-2);
        let mut shape = key.shape().to_vec();
        if let (Some(last), Some(depth)) = (shape.last_mut(), rotated.shape().last()) {
            *last = *depth;
        }
        // If types have shardings, the heads of both parts of the key must be sharded in the same way.
        let sharding = key.aval().sharding().cloned();
        let rotated = sharding.iter().fold(rotated.broadcast_to(shape), reshard);
        let key = concatenate(&[key, rotated], -1);
        let options = AttentionOptions::new().is_causal(true).scale(self.scale);
        // All positions of shorter texts are visible.
        let chosen = self.indexer.as_ref().filter(|indexer| length > indexer.count()).map(|indexer| {
            let visible = positions.expand_dims(1).greater_equal(&positions);
            let keys = indexer.keys(&x, &positions);
            indexer.chosen([&x, &query_latent], &positions, &keys, &visible)
        });
        let shared = match self.shared_positions(length, earlier, &x) {
            Ok(shared) => shared,
            Err(failed) => return (failed, None),
        };
        let options = chosen.iter().chain(shared).fold(options, |options, mask| options.mask(mask));
        (self.output(&x, &query_input, options.dot_product_attention(query, key, value)), chosen)
    }

    /// Returns the positions of an earlier layer that queries of a text of this length see, if this layer shares them. The error
    /// is a result of the layer.
    fn shared_positions<'a>(
        &self,
        length: usize,
        earlier: Option<&'a Array>,
        x: &Array,
    ) -> std::result::Result<Option<&'a Array>, Array> {
        match (self.shared_count.filter(|count| length > *count), earlier) {
            (None, _) => Ok(None),
            (Some(_), Some(chosen)) => Ok(Some(chosen)),
            (Some(count), None) => {
                let message = format!("LatentAttention: no earlier layer has chosen {count} of the {length} positions");
                let help =
                    "apply the layers of the `Decoder` in their order, with `forward` or `decode` of the `Decoder`";
                Err(Array::from_error(Error::new(ErrorKind::Value, message).help(help), x))
            }
        }
    }

    /// Creates an empty cache of this shape, `[..., length]`. You must call it before the first
    /// [`decode`](Self::decode), and again before a new text.
    #[track_caller]
    pub fn init_cache(&mut self, shape: &[usize]) {
        let features = self.latent.kernel.shape().last().copied().unwrap_or(0);
        self.cached = Some(zeros_dtype([shape, &[features]].concat(), self.latent.kernel.dtype()).into());
        self.cache_index = Some(zeros_dtype((), DType::I32).into());
        if let Some(indexer) = &mut self.indexer {
            indexer.init_cache(shape);
        }
    }

    /// Computes the next positions `x`, `[batch, length, features]`, which also attend to the positions in the cache. You must call
    /// `init_cache` first. Results beyond the length of the cache are NaN.
    ///
    /// If texts do not begin at the first position of the cache, you must pass their `positions`, `[batch, length]`, and a mask that
    /// broadcasts to `[batch, heads, length, length of the cache]`.
    #[track_caller]
    pub fn decode(&mut self, x: Array, positions: Option<&Array>, mask: Option<&Array>) -> Array {
        self.decode_over(x, positions, mask, None).0
    }

    /// Computes [`decode`](LatentAttention::decode). `earlier` are the positions that an earlier layer has chosen. Also returns the
    /// positions that this layer chooses.
    #[track_caller]
    pub(super) fn decode_over(
        &mut self,
        x: Array,
        positions: Option<&Array>,
        mask: Option<&Array>,
        earlier: Option<&Array>,
    ) -> (Array, Option<Array>) {
        let (Some(cached), Some(index)) = (&self.cached, self.cache_index.clone()) else {
            let error = Error::new(ErrorKind::Value, "LatentAttention: the cache is not initialized");
            return (Array::from_error(error.help("call `init_cache` before you decode the first token"), &x), None);
        };
        let &[.., new, _] = x.shape() else { return (rank_error("LatentAttention", &x), None) };
        let (axis, new) = (x.ndim() as i32 - 2, new as i32);
        let length = cached.shape().get(axis as usize).copied().unwrap_or(0) as i32;
        let location = &*index + arange(0..new);
        let positions = positions.cloned().unwrap_or_else(|| location.clone());
        let (query_latent, query_input) = self.query_latent(&x);
        let query = self.queries(&query_input, &positions);
        let latents = self.latents(&x, &positions).astype(cached.dtype());
        let cached = lax::dynamic_update_slice_in_dim(cached, &latents, &*index, axis);
        let end = &*index + new;

        // Queries are multiplied by the kernel of the keys instead of the keys, which would have to be computed again for all
        // positions in the cache.
        let kernel = self.key_value.kernel.astype(query.dtype());
        let (key, value) = (kernel.get((Ellipsis, ..self.key_dim)), kernel.get((Ellipsis, self.key_dim..)));
        let latent_query = einsum("...qhd,rhd->...qhr", &[&query.get((Ellipsis, ..self.key_dim)), &key]);
        let query = concatenate(&[latent_query, query.get((Ellipsis, self.key_dim..))], -1);
        let keys = cached.astype(query.dtype()).expand_dims(-2);
        let values = keys.get((Ellipsis, ..self.rank));
        let visible = location.expand_dims(1).greater_equal(arange(0..length));
        let visible = match mask {
            Some(mask) => mask.astype(DType::Bool) & visible,
            None => visible,
        };
        let chosen = self.indexer.as_mut().filter(|indexer| length as usize > indexer.count()).map(|indexer| {
            let keys = indexer.keys_with_cached(&x, &positions, &index, axis);
            indexer.chosen([&x, &query_latent], &positions, &keys, &visible)
        });
        let shared = match self.shared_positions(length as usize, earlier, &x) {
            Ok(shared) => shared,
            Err(failed) => return (failed, None),
        };
        let visible = chosen.as_ref().or(shared).cloned().unwrap_or(visible);
        let options = AttentionOptions::new().scale(self.scale).mask(visible);
        let attended = options.dot_product_attention(query, keys, values);
        let y = self.output(&x, &query_input, einsum("...qhr,rhd->...qhd", &[&attended, &value]));
        let y = where_(end.greater(length), f64::NAN, y);
        (self.cached, self.cache_index) = (Some(cached.into()), Some(end.into()));
        (y, chosen)
    }

    /// Computes the result for `x` from the results of heads, `[..., heads, depth]`.
    #[track_caller]
    fn output(&self, x: &Array, query_input: &Array, attended: Array) -> Array {
        let gate_input = if self.gates_from_latents { query_input } else { x };
        let gates = self.gate.as_ref().map(|gate| sigmoid(gate.forward(gate_input)));
        self.out.forward(gates.into_iter().fold(attended, |y, gates| y * gates))
    }

    /// Computes the normalized latent vector of queries, or returns the features if there is none. Also returns the input of
    /// the projection to queries.
    #[track_caller]
    fn query_latent(&self, x: &Array) -> (Array, Array) {
        let (Some(down), Some(norm)) = (&self.query_down, &self.query_norm) else { return (x.clone(), x.clone()) };
        let latent = down.forward(x);
        let normalized = scaled(norm.forward(&latent), self.query_latent_scale);
        if self.gates_from_latents {
            (normalized.clone(), concatenate(&[normalized, latent], -1))
        } else {
            (normalized.clone(), normalized)
        }
    }

    /// Computes queries, `[..., length, heads, depth]`, whose last features are rotated.
    #[track_caller]
    fn queries(&self, latent: &Array, positions: &Array) -> Array {
        let query = self.query.forward(latent);
        let query = match &self.rope {
            Some(rope) => {
                let rotated = rope.apply(query.get((Ellipsis, self.key_dim..)), positions);
                concatenate(&[query.get((Ellipsis, ..self.key_dim)), rotated], -1)
            }
            None => query,
        };
        match &self.query_growth {
            Some(growth) => (&query * growth.factors(positions)).astype(query.dtype()),
            None => query,
        }
    }

    /// Computes the normalized latent vector and the rotated key of each position.
    #[track_caller]
    fn latents(&self, x: &Array, positions: &Array) -> Array {
        let compressed = self.latent.forward(x);
        let latent = scaled(self.latent_norm.forward(compressed.get((Ellipsis, ..self.rank))), self.latent_scale);
        let key = compressed.get((Ellipsis, self.rank..));
        let key = match &self.rope {
            Some(rope) => rope.apply(key.expand_dims(-2), positions).squeeze(-2),
            None => key,
        };
        concatenate(&[latent, key], -1)
    }
}

/// Returns the factor of a latent vector of `rank` features, see [`LatentConfig::scales_latents`].
fn latent_scale(features: usize, rank: usize) -> f64 {
    (features as f64 / rank as f64).sqrt()
}

/// Creates the norm of a latent vector.
fn norm(features: usize, rngs: &mut Rngs) -> RmsNorm {
    RmsNorm::builder(features).epsilon(LATENT_EPSILON).build(rngs)
}

/// Creates a projection of features to the heads.
fn to_heads(from: usize, heads_and_depth: [usize; 2], rngs: &mut Rngs) -> LinearGeneral {
    let builder = LinearGeneral::builder([from], heads_and_depth).use_bias(false);
    builder.kernel_axes([None, Some("heads"), None]).build(rngs)
}

/// Creates a projection of features to a latent vector.
fn down(features: usize, to: usize, use_bias: bool, rngs: &mut Rngs) -> Linear {
    Linear::builder(features, to).use_bias(use_bias).kernel_axes([Some("embed"), None]).build(rngs)
}
