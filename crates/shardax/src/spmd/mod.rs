//! One program on many devices: `shard_map`, and `pmap` on top of it.

mod lint;
mod local_shards;
pub mod multihost;
mod pmap;
mod pmap_hosts;
mod pmap_mesh;
mod set_mesh;
mod shard_map;

pub use pmap::{Pmap, pmap};
pub use set_mesh::{set_mesh, use_abstract_mesh};
pub use shard_map::{ShardMapped, Smapped, shard_map, smap};
