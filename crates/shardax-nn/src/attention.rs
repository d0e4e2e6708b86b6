//! Attention.

use shardax::nn::softmax;
use shardax::prelude::*;

/// Scaled dot-product attention, `softmax(q kᵀ / sqrt(depth)) v` for each head.
///
/// `query` is `[..., queries, heads, depth]`, `key` and `value` are `[..., keys, heads, depth]`; the result is like
/// `query`.
///
/// Source: [Vaswani et al. 2017](https://arxiv.org/abs/1706.03762).
///
/// ```
/// use shardax_nn::prelude::*;
/// let (q, kv) = (ones([2, 3, 4, 8]), ones([2, 5, 4, 8]));
/// assert_eq!(dot_product_attention(&q, &kv, &kv).shape(), [2, 3, 4, 8]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn dot_product_attention(query: impl Operand, key: impl Operand, value: impl Operand) -> Array {
    let query = query.into_array();
    let depth = query.shape().last().copied().unwrap_or(1).max(1);
    // Heads become a batch dimension of the products.
    let heads_first = |x: Array| x.swapaxes(-3, -2);
    let (q, k, v) = (heads_first(query), heads_first(key.into_array()), heads_first(value.into_array()));
    // Scores and their softmax are in float32 at least, as JAX has them.
    let wide = |x: &Array| if x.dtype().byte_size() < 4 { x.astype(DType::F32) } else { x.clone() };
    let scores = wide(&q).matmul(wide(&k).mt()) / (depth as f64).sqrt();
    softmax(scores, -1).astype(k.dtype()).matmul(v).swapaxes(-3, -2)
}
