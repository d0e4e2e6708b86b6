//! Primitives defined outside of shardax, with all their rules.
//!
//! [`stencil`] computes: it has its own StableHLO, derivatives and a batching rule. [`split`] computes nothing and sets
//! the sharding of a value.

mod split;
mod stencil;

pub use split::split;
pub use stencil::stencil;
