//! Meshes of devices, partition specs, and the shardings made of them.

mod like;
mod mesh;
mod named;
mod spec;
mod visualize;

pub use like::ShardingLike;
pub use mesh::{AxisType, Mesh, make_mesh};
pub use named::{NamedSharding, Sharding, SingleDeviceSharding};
pub use spec::{DimSpec, IntoDimSpec, PartitionSpec};
pub use visualize::{visualize_array_sharding, visualize_sharding, visualize_sharding_color, visualize_sharding_svg};

/// A part of an array: the range of each dimension.
pub type Index = smallvec::SmallVec<[std::ops::Range<usize>; 4]>;
