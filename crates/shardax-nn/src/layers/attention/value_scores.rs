//! Scores of keys that are computed from their values.

use shardax::prelude::*;

use crate::attention::AttentionOptions;
use crate::layers::LinearGeneral;
use crate::shardings::{gather_heads, gather_positions};
use crate::{Module, Rngs};

/// Scores of keys that are computed from their values and added to the scores of all queries, as in
/// [Doge](https://arxiv.org/abs/2412.11834). Queries see only the visible keys with the largest of these scores.
///
/// ```
/// use shardax_nn::ValueScores;
/// use shardax_nn::prelude::*;
/// let mut rngs = Rngs::new(0);
/// let mut layer = MultiHeadAttention::builder(4, 32).num_kv_heads(2).is_causal(true).build(&mut rngs);
/// // Each query sees at most three keys.
/// layer.value_scores = Some(Box::new(ValueScores::new(2, 8, 3, false, &mut rngs)));
/// assert_eq!(layer.forward(ones([1, 6, 32])).shape(), [1, 6, 32]);
/// // The layer does not have the heads of these scores.
/// layer.value_scores = Some(Box::new(ValueScores::new(3, 8, 3, false, &mut rngs)));
/// assert!(layer.forward(ones([1, 6, 32])).check().is_err());
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Module, Clone, Debug)]
pub struct ValueScores {
    /// The projection from the values of all heads to a number for each key head.
    pub steps: LinearGeneral,
    /// `[key heads]`: the factors of these numbers, after softplus. The exponential function of the product is the score.
    pub rates: Array,
    /// The largest number of keys that a query sees.
    count: usize,
}

impl ValueScores {
    /// Creates the scores of values `[key heads, depth]`. A query sees at most `count` keys.
    #[track_caller]
    pub fn new(kv_heads: usize, depth: usize, count: usize, use_bias: bool, rngs: &mut Rngs) -> ValueScores {
        ValueScores {
            steps: LinearGeneral::builder([kv_heads, depth], [kv_heads]).use_bias(use_bias).build(rngs),
            rates: zeros_dtype([kv_heads], rngs.policy().param_dtype),
            count,
        }
    }

    /// Adds the scores to the options of attention of `query`, `[..., queries, heads, depth]`, over `key` and `value`, `[...,
    /// keys, key heads, depth]`.
    #[track_caller]
    pub(super) fn add_to(&self, options: &AttentionOptions, [query, key, value]: [&Array; 3]) -> AttentionOptions {
        let steps = self.steps.forward(gather_positions(gather_heads(value.clone())));
        let rates = self.rates.astype(DType::F32);
        let scores = (shardax::nn::softplus(steps.astype(DType::F32)) * rates).exp().swapaxes(-1, -2);
        if scores.check().is_err() {
            return options.clone().bias(scores);
        }
        let (rows, &[kv_heads, keys]) = scores.shape().split_at(scores.ndim() - 2) else { return options.clone() };
        let heads = query.shape()[query.ndim() - 2];
        let grouped = scores.expand_dims(-2).broadcast_to([rows, &[kv_heads, heads / kv_heads, keys]].concat());
        let scores = grouped.reshape([rows, &[heads, 1, keys]].concat());
        let options = options.clone().add_bias(&scores);
        if keys <= self.count {
            return options;
        }
        let queries = query.shape()[query.ndim() - 3];
        let scores = scores.broadcast_to([rows, &[heads, queries, keys]].concat());
        let visible = options.visible(query, key);
        let scores = visible.iter().fold(scores, |scores, visible| where_(visible, scores, f64::NEG_INFINITY));
        // The place of each key in the descending order. A comparison with the smallest of the largest scores would choose more
        // keys if several have this score.
        let is_kept = (-scores).argsort(-1).argsort(-1).less(self.count as i32);
        options.mask(visible.into_iter().fold(is_kept, |kept, visible| kept & visible))
    }
}
