//! One program on many devices: collectives, `shard_map`, and `pmap` on top of it.

pub(crate) mod collective;
pub(crate) mod constraint;
pub(crate) mod context;
mod functions;
pub(crate) mod lint;
mod mapped;
mod ordered;
mod permute;
pub(crate) mod pmap;
pub(crate) mod shard_map;
pub(crate) mod vary;

pub use constraint::with_sharding_constraint;
pub use context::{AbstractMesh, IntoMesh, MeshArg, MeshGuard, get_mesh, set_mesh};
pub use functions::{
    all_gather, all_gather_invariant, all_gather_tiled, all_to_all, all_to_all_tiled, axis_index, axis_size,
    pbroadcast, pcast, pmax, pmean, pmin, ppermute, pshuffle, psum, psum_scatter, psum_scatter_tiled, pswapaxes,
};
pub use pmap::{Pmap, pmap};
pub use shard_map::{ShardMapped, Smapped, shard_map, smap};

pub use crate::shape::{Grouped, axis_index_groups};
