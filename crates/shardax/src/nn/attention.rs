//! What `shardax-nn` makes attention of, where a primitive has it in one piece.

use crate::core::array::Array;
use crate::ops::primitive::attention;
use crate::precision::{self, Precision};

pub use crate::ops::primitive::attention::HIDDEN;

/// `softmax(q kᵀ) v` for each head of float32, with each query's largest score and its sum of exponentials less that.
///
/// `q` is `[..., queries, heads, depth]`, `k` and `v` are `[..., keys, key heads, depth]`, of the same dimensions before; the
/// other results are `[..., heads, queries]`. A query sees as many keys before its own position and behind it as `near` says,
/// where `mask` holds, booleans of `[..., heads, queries, keys]`, any of which may be 1. One that sees none takes the same of
/// all. No gradient flows through the largest scores.
#[track_caller]
pub fn attention(
    q: &Array,
    k: &Array,
    v: &Array,
    mask: Option<&Array>,
    near: (usize, usize),
    precision: Option<Precision>,
) -> [Array; 3] {
    let precision = precision.or_else(precision::current).unwrap_or_default();
    attention::Attention { before: near.0, after: near.1, precision }.apply(q, k, v, mask)
}
