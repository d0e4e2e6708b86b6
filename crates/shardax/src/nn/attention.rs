//! The fused attention primitive, which `shardax-nn` uses where it applies.

use crate::core::array::Array;
pub use crate::ops::primitive::attention::{Attention, HIDDEN, Implementation, Operands, Window};

/// Computes `softmax(q kᵀ) v` for each head. It also returns two float32 arrays of shape `[..., heads, queries]`: for each
/// query a score (usually the largest, without a gradient), and the sum of the exponentials of the scores relative to it. A
/// query that sees no key attends to all keys equally.
#[track_caller]
pub fn attention(options: &Attention, operands: &Operands) -> [Array; 3] {
    options.with_residual(operands)
}
