//! Attention of encoders to near tokens and to sums of blocks (LongT5).

use shardax_nn::prelude::*;

use super::{over_keys, positions};
use crate::shardings::{gather_mask, reshard_like};

/// The attention of an encoder to near tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalEncoderConfig {
    /// The number of tokens before and after a token that it sees.
    pub radius: usize,
    /// The number of tokens of a block, if each token also sees the sums of all blocks.
    pub block: Option<usize>,
}

/// The masks and biases that the attention of all layers shares.
pub(super) struct LocalScope {
    /// The masks and the biases of near tokens and of blocks.
    pub options: AttentionOptions,
    /// `[batch or 1, blocks, length]`: 1 for the tokens of a block, and 0 for other tokens.
    blocks: Option<Array>,
}

impl LocalScope {
    /// Computes the masks and the biases for texts of this length. The tables have the biases for distances of tokens and of blocks.
    pub fn new(
        config: LocalEncoderConfig,
        length: usize,
        mask: Option<&Array>,
        (table, block_table, max_distance): (Option<&Embed>, Option<&Embed>, usize),
    ) -> LocalScope {
        let places = arange(0..length as i32);
        let distances = (places.expand_dims(0) - places.expand_dims(1)).abs();
        let near = distances.less_equal(i32::try_from(config.radius).unwrap_or(i32::MAX)).expand_dims(0).expand_dims(0);
        let mask = mask.map(|mask| gather_mask(mask.astype(DType::Bool)));
        let near = mask.as_ref().map_or(near.clone(), |mask| logical_and(&near, over_keys(mask)));
        let bias = table.map(|table| positions::bias(table, &places, &places, (true, max_distance), length));
        let (Some(size), Some(block_table)) = (config.block, block_table) else {
            let options = bias.into_iter().fold(AttentionOptions::new().mask(near), AttentionOptions::bias);
            return LocalScope { options, blocks: None };
        };
        let size = size.max(1);
        let (count, blocks) = (length / size, block_of_tokens(length, size, mask.as_ref()));
        // Padding can be longer than the text. Then the last blocks have no tokens.
        let numbers = arange(0..count as i32);
        let has_tokens = numbers.less_equal(blocks.max_keepdims(-1));
        let block_bias = positions::bias(block_table, &blocks, &numbers, (true, max_distance), count + 2);
        let batch = blocks.shape()[0];
        let seen = over_keys(&has_tokens).broadcast_to([batch, 1, length, count]);
        let near = reshard_like(near.broadcast_to([batch, 1, length, length]), &seen);
        let bias = bias.map(|bias| {
            let heads = bias.shape()[0];
            let bias = reshard_like(bias.broadcast_to([batch, heads, length, length]), &block_bias);
            concatenate(&[bias, block_bias], -1)
        });
        let options = AttentionOptions::new().mask(concatenate(&[near, seen], -1));
        let options = bias.into_iter().fold(options, AttentionOptions::bias);
        let members = blocks.expand_dims(1).equal(numbers.expand_dims(1));
        LocalScope { options, blocks: Some(members) }
    }

    /// Returns the inputs of keys and values for the tokens `x`, `[batch, length, features]`: the tokens, and the normalized sums of
    /// blocks.
    pub fn keys(&self, norm: Option<&crate::Norm>, x: &Array) -> Array {
        match (&self.blocks, norm) {
            (Some(blocks), Some(norm)) => {
                let sums = blocks.astype(x.dtype()).matmul(x);
                concatenate(&[x.clone(), norm.forward(sums)], 1)
            }
            _ => x.clone(),
        }
    }
}

/// Returns the number of the block of each token, `[batch or 1, length]`. The tokens after the last entire block belong to it, and padding
/// belongs to no block, which is -1.
fn block_of_tokens(length: usize, size: usize, mask: Option<&Array>) -> Array {
    let size = i32::try_from(size).unwrap_or(i32::MAX);
    let places = arange(0..length as i32).expand_dims(0);
    let numbers = floor_divide(&places, size);
    let numbers = match mask {
        Some(mask) => where_(mask, &numbers, -1),
        None => numbers,
    };
    let is_end = logical_and((&places % size).equal(size - 1), numbers.greater_equal(0));
    let last = is_end.astype(DType::I32).sum_keepdims(-1) - 1;
    numbers.minimum(last)
}
