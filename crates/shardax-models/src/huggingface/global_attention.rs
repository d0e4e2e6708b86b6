//! Attention of Longformer and LED: most tokens see their neighbors, and some tokens see all tokens.

use shardax_nn::prelude::*;

use super::{BertOptions, attention};
use crate::shardings::gather_mask;

/// The queries, keys and values of tokens that see all tokens, in Longformer and LED.
#[derive(Module, Clone, Debug)]
pub(crate) struct GlobalAttention {
    query: LinearGeneral,
    key: Option<LinearGeneral>,
    value: Option<LinearGeneral>,
    /// The number of tokens before and after another token that it sees.
    window: usize,
}

/// The tokens that are no padding, `[batch, length]`, and the tokens that see all tokens and that all tokens see.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    visible: Array,
    global: Option<Array>,
}

impl Scope {
    /// Reads the masks in the options for tokens of this shape. If `marks_first` is true, the first token sees all tokens unless the
    /// options have other ones.
    pub fn new(shape: &[usize], options: &BertOptions, marks_first: bool) -> Scope {
        let tokens = shape.last().copied().unwrap_or(0) as i32;
        let global = match &options.global {
            Some(global) => Some(gathered(global)),
            None if marks_first => Some(gathered(&arange(0..tokens).equal(0).broadcast_to(shape.to_vec()))),
            None => None,
        };
        let visible = options.mask().map_or_else(|| ones_dtype(shape, DType::Bool), gathered);
        Scope { global: global.map(|global| global & &visible), visible }
    }
}

fn gathered(mask: &Array) -> Array {
    gather_mask(mask.astype(DType::Bool))
}

impl GlobalAttention {
    pub fn new(window: usize, [heads, features]: [usize; 2], rngs: &mut Rngs) -> GlobalAttention {
        let MultiHeadAttention { query, key, value, .. } = attention(heads, features).build(rngs);
        GlobalAttention { query, key, value, window }
    }

    /// Computes the outputs of heads, `[batch, length, heads, depth]`, with all scores. Padding has the output 0.
    pub fn attend(&self, attention: &MultiHeadAttention, x: &Array, scope: &Scope) -> Option<Array> {
        let length = x.shape()[1] as i32;
        let keys = scope.visible.expand_dims(1).expand_dims(1);
        let places = arange(0..length);
        let near = (places.expand_dims(1) - &places).abs().less_equal(self.window as i32);
        let seen = match &scope.global {
            Some(global) => near | global.expand_dims(1).expand_dims(1),
            None => near,
        };
        let mut y = AttentionOptions::new().mask(&keys & seen).dot_product_attention(
            attention.query.forward(x),
            attention.key.as_ref()?.forward(x),
            attention.value.as_ref()?.forward(x),
        );
        if let Some(global) = &scope.global {
            let everywhere = AttentionOptions::new().mask(keys).dot_product_attention(
                self.query.forward(x),
                self.key.as_ref()?.forward(x),
                self.value.as_ref()?.forward(x),
            );
            y = where_(global.expand_dims(-1).expand_dims(-1), everywhere, y);
        }
        let visible = scope.visible.expand_dims(-1).expand_dims(-1);
        Some(where_(visible, &y, zeros_like(&y)))
    }
}
