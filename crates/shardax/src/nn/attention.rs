//! The fused attention primitive, for `shardax-nn` to use where it applies.

use crate::core::array::Array;
pub use crate::ops::primitive::attention::{Attention, HIDDEN, Implementation, Operands, Window};

/// Computes `softmax(q kᵀ) v` per head, with the options of `of`; also returns two numbers of each query, `[..., heads,
/// queries]` in float32: a score, usually its largest, through which no gradient flows, and its sum of exponentials
/// relative to that. A query that sees no key attends to all equally.
#[track_caller]
pub fn attention(of: &Attention, operands: &Operands) -> [Array; 3] {
    of.with_residual(operands)
}
