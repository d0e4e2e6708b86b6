//! Attention in plain operations, for all queries and keys or for a block of them.

use super::{Attention, HIDDEN, Operands};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::lax::{DotOptions, iota};
use crate::ops::select::where_;

/// Returns the positions of queries, `[queries, 1]`, and of keys, `[1, keys]`.
pub(crate) fn positions(queries: usize, keys: usize) -> [Array; 2] {
    [iota(DType::I32, &[queries, 1], 0), iota(DType::I32, &[1, keys], 1)]
}

/// A block of queries with a block of keys.
pub(crate) struct Block<'a> {
    of: &'a Attention,
    pub x: Operands,
    /// The visible keys, in a shape that broadcasts to `[..., heads, queries, keys]`.
    pub seen: Option<Array>,
}

impl<'a> Block<'a> {
    /// Creates a block of all queries and keys.
    pub fn all(of: &'a Attention, x: Operands) -> Self {
        let [query, key] = positions(x.queries(), x.keys());
        Block::new(of, x, [query, key], None)
    }

    /// Creates a block of the queries and keys at these positions, `[queries, 1]` and `[1, keys]`. Keys from `end` on
    /// are padding.
    pub fn new(of: &'a Attention, x: Operands, [query, key]: [Array; 2], end: Option<usize>) -> Self {
        let [before, after] = of.window.limits();
        let before = before.map(|n| query.less_equal(&key + n));
        let after = after.map(|n| key.less_equal(&query + n));
        let end = end.map(|end| key.less(end as i32));
        let masks = x.combined_mask().into_iter().chain(x.length_mask(&query, &key));
        let visible = masks.chain(before).chain(after).chain(end).reduce(|a, b| a & b);
        Block { of, x, seen: visible }
    }

    /// Splits query heads, in dimension `heads` from the end, into key heads and groups.
    fn grouped(&self, x: &Array, heads: usize) -> Array {
        let (batch, last) = x.shape().split_at(x.ndim() - heads);
        let key_heads = self.x.key_heads();
        x.reshape([batch, &[key_heads, last[0] / key_heads], &last[1..]].concat())
    }

    fn together(x: Array, heads: usize) -> Array {
        let (batch, last) = x.shape().split_at(x.ndim() - heads - 1);
        let shape = [batch, &[last[0] * last[1]], &last[2..]].concat();
        x.reshape(shape)
    }

    /// Computes a product in float32.
    fn product(&self, spec: &str, a: &Array, b: &Array) -> Array {
        let dot = DotOptions::new().precision(self.of.precision);
        match a.dtype() {
            DType::F32 => dot.einsum(spec, &[a, b]),
            _ => dot.preferred_element_type(DType::F32).einsum(spec, &[a, b]),
        }
    }

    /// Computes the dot products of queries and keys: `[..., heads, queries, keys]`.
    pub fn dots(&self, q: &Array, k: &Array) -> Array {
        Self::together(self.product("...qhgd,...khd->...hgqk", &self.grouped(q, 2), k), 3)
    }

    /// Computes a weighted sum over keys for each query.
    pub fn sum_over_keys(&self, weights: &Array, x: &Array) -> Array {
        let weights = self.grouped(&weights.astype(x.dtype()), 3);
        Self::together(self.product("...hgqk,...khd->...qhgd", &weights, x), 2)
    }

    /// Computes a weighted sum over queries for each key. The smaller operand comes first, because the first operand is
    /// transposed.
    pub fn sum_over_queries(&self, weights: &Array, x: &Array) -> Array {
        let weights = self.grouped(&weights.astype(x.dtype()), 3);
        self.product("...qhgd,...hgqk->...khd", &self.grouped(x, 2), &weights)
    }

    pub fn hidden(&self, x: Array, value: f64) -> Array {
        self.seen.as_ref().map_or(x.clone(), |seen| where_(seen, x, value))
    }

    fn scaled(&self, x: Array) -> Array {
        if self.of.factor() == 1.0 { x } else { x * self.of.factor() }
    }

    /// Computes the scaled and capped dot products of queries and keys, before the bias.
    fn capped(&self) -> Array {
        let scores = self.scaled(self.dots(&self.x.q, &self.x.k));
        match self.of.cap() {
            Some(cap) => (scores / cap).tanh() * cap,
            None => scores,
        }
    }

    /// Returns the scores, with `value` for masked keys, and the derivative of scores before the bias with respect to
    /// dot products, without the scale. The derivative is `None` if it is 1.
    pub fn scores(&self, value: f64) -> (Array, Option<Array>) {
        let capped = self.capped();
        let slope = self.of.cap().map(|cap| 1.0 - (&capped / cap).square());
        let scores = self.x.bias.iter().fold(capped, |scores, bias| scores + bias.astype(DType::F32));
        (self.hidden(scores, value), slope)
    }

    /// Converts a derivative of the scores to a derivative of the dot products.
    pub fn dots_derivative(&self, scores: &Array, slope: &Option<Array>) -> Array {
        self.scaled(slope.as_ref().map_or(scores.clone(), |slope| scores * slope))
    }

    /// Returns the weights and the slope of [`scores`](Self::scores).
    fn weights(&self, max: &Array, sum: &Array) -> (Array, Option<Array>) {
        let (scores, slope) = self.scores(HIDDEN);
        ((scores - max.expand_dims(-1)).exp() / sum.expand_dims(-1), slope)
    }

    pub fn forward(&self) -> Vec<Array> {
        let (scores, _) = self.scores(HIDDEN);
        let max = scores.max_keepdims(-1);
        let exponentials = (scores - &max).exp();
        let sum = exponentials.sum_keepdims(-1);
        let y = self.sum_over_keys(&(exponentials / &sum), &self.x.v).astype(self.x.q.dtype());
        vec![y, max.squeeze(-1), sum.squeeze(-1)]
    }

    /// Returns the tangent of the scores from the tangents of queries, keys and bias.
    pub fn scores_tangent(&self, [dq, dk]: [&Array; 2], dbias: Option<&Array>, slope: &Option<Array>) -> Array {
        let dots = self.dots(dq, &self.x.k) + self.dots(&self.x.q, dk);
        let scores = self.dots_derivative(&dots, slope);
        self.hidden(dbias.map_or(scores.clone(), |dbias| scores + dbias.astype(DType::F32)), 0.0)
    }

    /// Returns the tangents of the output and of the sums.
    pub fn tangent(&self, [max, sum]: [&Array; 2], [dq, dk, dv]: [&Array; 3], dbias: Option<&Array>) -> Vec<Array> {
        let (weights, slope) = self.weights(max, sum);
        let scores = self.scores_tangent([dq, dk], dbias, &slope);
        let mean = (&weights * &scores).sum_keepdims(-1);
        let dy = self.sum_over_keys(&(&weights * (scores - &mean)), &self.x.v) + self.sum_over_keys(&weights, dv);
        vec![dy.astype(self.x.q.dtype()), sum * mean.squeeze(-1)]
    }

    /// Returns the cotangents of queries, keys, values and scores, in float32, from the weights.
    pub fn cotangents(&self, weights: &Array, slope: &Option<Array>, ct: &Array, mean: &Array) -> [Array; 4] {
        let scores = self.hidden(weights * (self.dots(ct, &self.x.v) - mean.expand_dims(-1)), 0.0);
        let dots = self.dots_derivative(&scores, slope);
        let (q, k) = (&self.x.q, &self.x.k);
        [self.sum_over_keys(&dots, k), self.sum_over_queries(&dots, q), self.sum_over_queries(weights, ct), scores]
    }

    /// Returns the cotangents of queries, keys, values and bias.
    pub fn gradient(&self, [max, sum]: [&Array; 2], ct: &Array, mean: &Array) -> Vec<Array> {
        let (weights, slope) = self.weights(max, sum);
        let [dq, dk, dv, scores] = self.cotangents(&weights, &slope, ct, mean);
        let dtype = self.x.q.dtype();
        let of_bias = self.x.bias.iter().map(|bias| reduced(&scores, bias.shape()).astype(bias.dtype()));
        [dq, dk, dv].into_iter().map(|x| x.astype(dtype)).chain(of_bias).collect()
    }
}

/// Sums over the dimensions that are 1 in `shape`.
pub(crate) fn reduced(x: &Array, shape: &[usize]) -> Array {
    let axes: Vec<i32> = (0..x.ndim()).filter(|&d| shape[d] == 1 && x.shape()[d] != 1).map(|d| d as i32).collect();
    if axes.is_empty() { x.clone() } else { x.sum_keepdims(&axes[..]) }
}
