//! Sizes of queries and keys, and the matmuls of attention.

use shardax::lax::DotOptions;
use shardax::prelude::*;

/// The sizes of matching queries and keys. The heads of queries form one group for each head of the keys.
pub(super) struct Shapes {
    pub batch: Vec<usize>,
    pub queries: usize,
    pub keys: usize,
    pub key_heads: usize,
    pub groups: usize,
    pub depth: usize,
}

impl Shapes {
    pub fn of(q: &Array, k: &Array) -> Self {
        let rank = q.ndim();
        let (q, k) = (q.shape(), k.shape());
        Shapes {
            batch: q[..rank - 3].to_vec(),
            queries: q[rank - 3],
            keys: k[rank - 3],
            key_heads: k[rank - 2],
            groups: q[rank - 2] / k[rank - 2],
            depth: q[rank - 1],
        }
    }

    /// Returns the dimensions of the batch, followed by `last`.
    pub fn with<const N: usize>(&self, last: [usize; N]) -> Vec<usize> {
        [self.batch.as_slice(), &last].concat()
    }

    /// Reshapes numbers, one for each example, so that they broadcast with scores.
    pub fn per_example(&self, numbers: &Array) -> Array {
        numbers.reshape(self.with([1, 1, 1]))
    }

    /// Returns the batch dimensions of a matmul: batch and heads of the keys.
    fn shared(&self) -> Vec<usize> {
        (0..=self.batch.len()).collect()
    }

    /// Groups the heads of queries: `[..., queries, heads, depth]` to `[..., key heads, groups, queries, depth]`.
    fn grouped(&self, x: &Array) -> Array {
        let depth = x.shape().last().copied().unwrap_or(0);
        x.reshape(self.with([self.queries, self.key_heads, self.groups, depth])).moveaxis(-4, -2)
    }

    /// Groups the heads of weights `[..., heads, queries, keys]`.
    fn grouped_weights(&self, weights: &Array) -> Array {
        weights.reshape(self.with([self.key_heads, self.groups, self.queries, self.keys]))
    }

    /// Returns the dot products of every query and every key: `[..., heads, queries, keys]`, in float32 at least.
    #[track_caller]
    pub fn products(&self, q: &Array, k: &Array, dot: DotOptions) -> Array {
        let (n, shared) = (self.batch.len(), self.shared());
        let dot = dot.preferred_element_type(wide(k));
        let products = match self.queries * self.groups {
            // With a single query, the matmul reads the keys in their order, so that no transpose copies them.
            1 => {
                let heads: Vec<usize> = (0..n).chain([n + 1]).collect();
                dot.dot_general(q, k, (&[n + 2], &[n + 2]), (&heads, &heads))
            }
            _ => {
                let k = k.swapaxes(-3, -2);
                dot.dot_general(&self.grouped(q), &k, (&[n + 3], &[n + 2]), (&shared, &shared))
            }
        };
        products.reshape(self.with([self.key_heads * self.groups, self.queries, self.keys]))
    }

    /// Returns the weighted sums of values: `[..., queries, heads, depth]`.
    #[track_caller]
    pub fn values(&self, weights: &Array, v: &Array, dot: DotOptions) -> Array {
        let (n, shared) = (self.batch.len(), self.shared());
        let weights = self.grouped_weights(weights);
        let sums = dot.dot_general(&weights, &v.swapaxes(-3, -2), (&[n + 3], &[n + 1]), (&shared, &shared));
        let depth = v.shape().last().copied().unwrap_or(0);
        sums.moveaxis(-2, -4).reshape(self.with([self.queries, self.key_heads * self.groups, depth]))
    }

    /// Returns the weighted sums over the queries of `x`, `[..., queries, heads, depth]`, for each key: `[..., keys,
    /// key heads, depth]`, in float32 at least.
    #[track_caller]
    pub fn sum_over_queries(&self, weights: &Array, x: &Array, dot: DotOptions) -> Array {
        let (n, shared) = (self.batch.len(), self.shared());
        let (weights, x, summed) = (self.grouped_weights(weights), self.grouped(x), [n + 1, n + 2]);
        let dot = dot.preferred_element_type(wide(&x));
        dot.dot_general(&weights, &x, (&summed, &summed), (&shared, &shared)).swapaxes(-3, -2)
    }
}

/// Returns the accumulation dtype for half precision.
pub(super) fn wide(x: &Array) -> Option<DType> {
    (x.dtype().byte_size() < 4).then_some(DType::F32)
}
