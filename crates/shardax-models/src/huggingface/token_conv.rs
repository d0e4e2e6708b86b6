//! Convolutions of tokens next to attention, whose weights depend on the tokens.

use shardax_nn::prelude::*;

use crate::shardings::gather_positions;

/// A convolution whose weights are computed from the tokens that it reads, as in ConvBERT
/// ([Jiang et al. 2020](https://arxiv.org/abs/2008.02496)).
#[derive(Module, Clone, Debug)]
pub(super) struct TokenConv {
    /// A convolution of each feature, from whose results and from queries the weights are computed.
    depthwise: Conv,
    pointwise: LinearGeneral,
    /// Computes the weights of all heads.
    weights: LinearGeneral,
    values: LinearGeneral,
    size: usize,
}

/// Creates attention with half of the features. Its last layer also reads the results of as many heads of a convolution.
pub(super) fn half_attention(heads: usize, features: usize, rngs: &mut Rngs) -> MultiHeadAttention {
    let depth = features / heads / 2;
    let builder = MultiHeadAttention::builder(heads, features).qkv_features(heads * depth);
    let mut attention = builder.kernel_axes([Some("embed"), Some("heads"), None]).build(rngs);
    let out = LinearGeneral::builder([2 * heads, depth], [features]);
    attention.out = out.kernel_axes([None, None, Some("embed")]).build(rngs);
    attention
}

impl TokenConv {
    pub fn new([heads, features]: [usize; 2], size: usize, rngs: &mut Rngs) -> TokenConv {
        let depth = features / heads / 2;
        let by_heads =
            LinearGeneral::builder([features], [heads, depth]).kernel_axes([Some("embed"), Some("heads"), None]);
        let depthwise = Conv::builder(features, features, [size]).feature_group_count(features).use_bias(false);
        let around = (size / 2) as i64;
        let weights = LinearGeneral::builder([heads, depth], [heads * size]);
        TokenConv {
            depthwise: depthwise.padding(Padding::Explicit(vec![(around, around)])).build(rngs),
            pointwise: by_heads.clone().build(rngs),
            weights: weights.kernel_axes([Some("heads"), None, None]).build(rngs),
            values: by_heads.build(rngs),
            size,
        }
    }

    /// Computes attention and the convolution of tokens, `[batch, length, features]`.
    pub fn attend(&self, attention: &MultiHeadAttention, x: &Array, options: AttentionOptions) -> Array {
        let (Some(key), Some(value)) = (&attention.key, &attention.value) else { return x.clone() };
        let (batch, length) = (x.shape()[0], x.shape()[1]);
        let query = attention.query.forward(x);
        let heads = query.shape()[2];
        let attended = options.dot_product_attention(&query, key.forward(x), value.forward(x));
        let mixed = self.pointwise.forward(self.depthwise.forward(x)) * &query;
        let weights = self.weights.forward(mixed).reshape([batch, length, heads, self.size]);
        let weights = softmax(weights, -1);
        let around = self.size / 2;
        let values = pad(
            gather_positions(self.values.forward(x)),
            vec![(0, 0), (around, around), (0, 0), (0, 0)],
            PadMode::Constant(0.0),
        );
        let terms = (0..self.size)
            .map(|place| values.get((.., place..place + length)) * weights.get((Ellipsis, place..place + 1)));
        let mixed = terms.reduce(|sum, term| sum + term).unwrap_or_else(|| attended.clone());
        // Both have all heads on each device, because heads are joined.
        attention.out.forward(concatenate(&[gather_positions(attended), mixed], 2))
    }
}
