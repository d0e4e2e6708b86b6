//! Primitives written outside of shardax, with all their rules.
//!
//! [`stencil`] computes: it has StableHLO of its own, derivatives, a batching rule. [`split`] computes nothing and says
//! where a value lies.

mod split;
mod stencil;

pub use split::split;
pub use stencil::stencil;
