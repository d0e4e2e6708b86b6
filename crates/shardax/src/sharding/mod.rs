//! Meshes of devices, partition specs, and shardings.

pub(crate) mod abstract_mesh;
pub(crate) mod axis_env;
pub(crate) mod context;
pub(crate) mod device;
pub mod distributed;
pub(crate) mod layout;
pub(crate) mod memory;
mod mesh;
pub mod mesh_utils;
mod named;
pub(crate) mod no_collectives;
mod spec;
mod topology;
pub(crate) mod typed;
pub(crate) mod visualize;

pub use abstract_mesh::{AbstractMesh, MeshAxis};
pub use context::{IntoMesh, MeshArg, MeshGuard, get_abstract_mesh, get_mesh, manual_axes};
pub use device::{
    Device, default_backend, device_count, devices, local_device_count, local_devices, process_count, process_index,
};
pub use layout::{AutoLayout, Format, Layout, LayoutOptions};
pub use memory::{Memory, MemoryStats, Space};
pub(crate) use mesh::axis_text;
pub use mesh::{AxisType, Mesh, make_mesh};
pub use named::{NamedSharding, Sharding, SingleDeviceSharding};
pub use no_collectives::{NoCollectivesGuard, no_collectives};
pub use spec::{DimSpec, IntoDimSpec, PartitionSpec, UnreducedKind};
pub use topology::{GpuSpec, GpuTopology, Topology, TpuTopology};
pub use typed::Typed;
pub use visualize::{visualize_sharding, visualize_sharding_color, visualize_sharding_svg};

/// A part of an array: a range for each dimension.
pub type Index = smallvec::SmallVec<[std::ops::Range<usize>; 4]>;
