//! The fused attention primitive, for `shardax-nn` to use where it applies.

use crate::core::array::Array;
use crate::ops::primitive::attention;
use crate::precision::{self, Precision};

pub use crate::ops::primitive::attention::HIDDEN;

/// Computes `softmax(q kᵀ) v` per head in float32; also returns each query's largest score and its sum of exponentials
/// relative to that score.
///
/// `q` is `[..., queries, heads, depth]`, `k` and `v` are `[..., keys, key heads, depth]`, with equal leading
/// dimensions; the other results are `[..., heads, queries]`. `near` limits how many keys before and after its own
/// position a query sees; `mask`, booleans that broadcast to `[..., heads, queries, keys]`, excludes keys. A query that
/// sees no key attends to all equally. No gradient flows through the largest scores.
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
