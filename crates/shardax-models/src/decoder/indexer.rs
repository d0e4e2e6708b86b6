//! The positions that sparse attention sees.

use shardax_nn::prelude::*;

use super::SparseConfig;
use crate::shardings::gather_positions;

/// Chooses the positions that each query of [`LatentAttention`](crate::LatentAttention) sees
/// ([DeepSeek-V3.2](https://arxiv.org/abs/2512.02556)).
///
/// The score of a position is a sum over a few small heads, which share the keys. A query sees the positions with the largest
/// scores. The layer has no effect in texts that are not longer than this number of positions.
#[derive(Module, Clone, Debug)]
pub struct Indexer {
    /// Projects the latent vector of queries to `[heads, depth]`.
    pub query: LinearGeneral,
    /// Projects features to the key of a position.
    pub key: Linear,
    /// Normalizes keys.
    pub key_norm: LayerNorm,
    /// Projects features to the weights of the heads.
    pub weights: Linear,
    /// The keys of earlier positions, `[batch, length, depth]`.
    pub cached: Option<Cache>,
    rope: Rope,
    count: usize,
}

/// Added to the variance in the norm of keys.
const KEY_EPSILON: f64 = 1e-6;

impl Indexer {
    /// Creates the layer of an attention whose queries have a latent vector of `rank` features. `rope` rotates the first
    /// features of each head.
    #[track_caller]
    pub(super) fn new([features, rank]: [usize; 2], sparse: &SparseConfig, rope: Rope, rngs: &mut Rngs) -> Indexer {
        let SparseConfig { heads, depth, count, interleaved, .. } = *sparse;
        let key = Linear::builder(features, depth).use_bias(false).kernel_axes([Some("embed"), None]);
        let weights = Linear::builder(features, heads).use_bias(false).kernel_axes([Some("embed"), None]);
        Indexer {
            query: LinearGeneral::builder([rank], [heads, depth]).use_bias(false).build(rngs),
            key: key.build(rngs),
            key_norm: LayerNorm::builder(depth).epsilon(KEY_EPSILON).build(rngs),
            weights: weights.build(rngs),
            cached: None,
            rope: Rope { interleaved, ..rope },
            count,
        }
    }

    /// Returns the largest number of positions that a query sees.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Creates an empty cache of this shape, `[..., length]`.
    pub(super) fn init_cache(&mut self, shape: &[usize]) {
        let depth = self.key.kernel.shape().last().copied().unwrap_or(0);
        self.cached = Some(zeros_dtype([shape, &[depth]].concat(), self.key.kernel.dtype()).into());
    }

    /// Computes the keys of `x`, `[..., length, features]`: `[..., length, depth]`.
    #[track_caller]
    pub(super) fn keys(&self, x: &Array, positions: &Array) -> Array {
        let key = self.key_norm.forward(self.key.forward(x)).expand_dims(-2);
        gather_positions(self.rope.apply(key, positions).squeeze(-2))
    }

    /// Computes the keys of `x` and stores them in the cache from this index on. Returns all keys in the cache.
    #[track_caller]
    pub(super) fn keys_with_cached(&mut self, x: &Array, positions: &Array, index: &Array, axis: i32) -> Array {
        let keys = self.keys(x, positions);
        let Some(cached) = &self.cached else { return keys };
        let cached = lax::dynamic_update_slice_in_dim(cached, &keys.astype(cached.dtype()), index, axis);
        self.cached = Some(cached.clone().into());
        cached
    }

    /// Returns the keys that queries at `positions` see, `[..., 1, queries, keys]`, of the keys that `visible` allows.
    /// `latent` is the latent vector of the queries, which are computed from `x`.
    #[track_caller]
    pub(super) fn chosen(&self, [x, latent]: [&Array; 2], positions: &Array, keys: &Array, visible: &Array) -> Array {
        let query = self.rope.apply(self.query.forward(latent), positions).astype(DType::F32);
        let scores = relu(einsum("...qhd,...kd->...qhk", &[&query, &keys.astype(DType::F32)]));
        // The factors of scores and weights have no effect on the order, because both are positive.
        let weights = self.weights.forward(x).astype(DType::F32);
        let scores = einsum("...qhk,...qh->...qk", &[&scores, &weights]).expand_dims(-3);
        let scores = where_(visible, scores, f64::NEG_INFINITY);
        // The place of each key in the descending order. A comparison with the smallest of the largest scores would choose more
        // keys if several have this score.
        let places = (-scores).argsort(-1).argsort(-1);
        places.less(self.count as i32) & visible
    }
}
