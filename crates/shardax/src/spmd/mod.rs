//! One program on many devices: collectives, `shard_map`, and `pmap` on top of it.

pub(crate) mod collective;
mod functions;
pub(crate) mod permute;
pub(crate) mod pmap;
pub(crate) mod shard_map;
pub(crate) mod vary;

pub use functions::{
    all_gather, all_gather_tiled, all_to_all, all_to_all_tiled, axis_index, axis_size, pcast, pmax, pmean, pmin,
    ppermute, psum, psum_scatter, psum_scatter_tiled,
};
pub use pmap::{Pmap, pmap};
pub use shard_map::{ShardMapped, shard_map};
