//! Meshes of devices, partition specs, and the shardings made of them.

mod mesh;
mod named;
mod spec;

pub use mesh::{AxisType, Mesh, make_mesh};
pub use named::{NamedSharding, Sharding, SingleDeviceSharding};
pub use spec::{DimSpec, IntoDimSpec, PartitionSpec};

/// A part of an array: the range of each dimension.
pub type Index = smallvec::SmallVec<[std::ops::Range<usize>; 4]>;
