//! Collectives: primitives that communicate over named axes, and the functions that apply them.

pub(crate) mod axes;
pub(crate) mod constraint;
mod functions;
pub(crate) mod gather;
mod mapped;
mod narrow;
mod permute;
mod ragged;
pub(crate) mod reduce;

pub(crate) use constraint::ShardingConstraint;
pub use constraint::with_sharding_constraint;
pub use functions::{
    SourceTarget, all_gather, all_gather_invariant, all_gather_tiled, all_to_all, all_to_all_tiled, axis_index,
    axis_size, pbroadcast, pcast, pcast_to, pmax, pmean, pmin, ppermute, pshift, pshuffle, psum, psum_scatter,
    psum_scatter_tiled, pswapaxes,
};
pub use ragged::{RaggedSlices, ragged_all_to_all};
pub use reduce::CastTo;
