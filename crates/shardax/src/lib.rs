//! JAX's SPMD programming model in Rust, on XLA.
//!
//! Write a function for one device; differentiate it with [`grad`], vectorize it with [`vmap`], compile it with
//! [`jit`], and run it over many devices with [`pmap`] and [`shard_map`].
//!
//! ```
//! use shardax::prelude::*;
//! # shardax::config::set_num_cpu_devices(8).ok();
//!
//! let f = pmap(|x: Array| {
//!     let scaled = x * 2;
//!     let total = psum(scaled.sum(..), "devices");
//!     (scaled, total)
//! })
//! .axis_name("devices");
//! let (scaled, total) = f.call(arange(0..32).reshape([8, 4]))?;
//! assert_eq!(total.to_vec::<i32>()?, [992; 8]);
//! # Ok::<(), shardax::Error>(())
//! ```

#![forbid(unsafe_code)]

// Derived code names this crate by its name, here too.
extern crate self as shardax;

// The floors of the house: each uses those above it in this list. `docs/architecture.md` draws them.
pub mod config;
pub mod dtype;
pub mod error;
mod local;
pub mod profiler;
pub mod shape;
mod source;
mod stack;
mod warning;

pub mod sharding;

mod core;

mod interpret;

mod ops;

mod engine;

pub mod linalg;
pub mod nn;
pub mod random;
mod spmd;
mod transform;

pub use core::{function, lower, prefix, program, tree};
pub use engine::stages;
pub use ops::callback::debug;
pub use ops::{control_flow, lax, numpy};

/// Arrays: what they are made of, how they are indexed and where they lie.
pub mod array {
    pub use crate::core::array::*;
    pub use crate::engine::assemble::*;
    pub use crate::engine::local_data::*;
    pub use crate::engine::put::{PutOptions, device_put};
    pub use crate::engine::stacked::*;
    pub use crate::ops::index::{At, Ellipsis, IndexItem, IntoIndex, IntoIndexItem, NewAxis, Rows, Slice};
    pub use crate::ops::operators::Operand;
}

pub mod primitive {
    #![doc = include_str!("primitive.md")]

    pub use crate::core::lower::{Lowering, Region, Value, bools, ints};
    pub use crate::core::primitive::*;
    pub use crate::core::program::{Aval, Program};
    pub use crate::interpret::batching::move_batch;
    pub use crate::shape::{AxisName, AxisSet};
    pub use smallvec::{SmallVec, smallvec};
}

/// The devices of this process and of the others.
pub mod runtime {
    pub use crate::engine::counts::{Counts, count};
    pub use crate::engine::programs::clear_caches;
    pub use crate::sharding::device::*;
}

pub use array::{
    Array, At, Ellipsis, IndexItem, IntoIndex, IntoIndexItem, NewAxis, PutOptions, Slice, array, block_until_ready,
    device_get, device_put,
};
pub use array::{
    device_put_replicated, device_put_sharded, make_array_from_callback, make_array_from_process_local_data,
    make_array_from_process_local_data_of_shape, make_array_from_single_device_arrays, replicate, unreplicate,
};
pub use control_flow::{
    ScanOptions, associative_scan, cond, custom_jvp, custom_vjp, fori_loop, scan, scan_n, switch, while_loop,
};
pub use core::array::visualize_array_sharding;
pub use core::function::{Function, IntoArgnums};
pub use core::sharding_like::ShardingLike;
pub use core::tree::{Static, Tree};
pub use dtype::DType;
pub use engine::counts::{Counts, count};
pub use engine::programs::clear_caches;
pub use engine::staged::{DisableJit, disable_jit};
pub use engine::stages::{Compiled, Lowered, eval_shape, shape_dtype_struct};
pub use error::{Error, ErrorKind, Result};
pub use interpret::flat::make_program;
pub use ops::callback::{
    HostArg, HostCallback, HostResult, IntoOperands, VmapMethod, ffi_call, io_callback, pure_callback,
};
pub use ops::collective::*;
pub use ops::primitive::checkpoint::CheckpointPolicy;
pub use ops::primitive::stop_gradient::stop_gradient;
pub use shape::{Grouped, axis_index_groups};
pub use sharding::distributed;
pub use sharding::{
    AbstractMesh, AxisType, IntoMesh, Mesh, MeshArg, MeshGuard, NamedSharding, PartitionSpec, Sharding,
    SingleDeviceSharding, get_mesh, make_mesh,
};
pub use sharding::{Device, device_count, devices, local_device_count, local_devices, process_count, process_index};
pub use sharding::{visualize_sharding, visualize_sharding_color, visualize_sharding_svg};
pub use spmd::multihost;
pub use spmd::*;
pub use transform::{
    Arg, Argnums, Checkpoint, Grad, GradAux, Jit, LinearFn, MaxTraces, ValueAndGrad, ValueAndGradAux, VjpFn, Vmap,
    assert_max_traces, checkpoint, checkpoint_name, grad, hessian, jacfwd, jacrev, jit, jvp, linear_transpose,
    linearize, value_and_grad, vjp, vjp_has_aux, vmap,
};
// The derive macro and the trait share their name.
pub use shardax_macros::{Module, Tree};

/// What a program needs: `use shardax::prelude::*;`
pub mod prelude {
    pub use crate::array::{Operand, array};
    pub use crate::error::Result;
    pub use crate::numpy::*;
    pub use crate::ops::callback::{VmapMethod, ffi_call, io_callback, pure_callback};
    pub use crate::ops::collective::*;
    pub use crate::shape::{Grouped, axis_index_groups};
    pub use crate::sharding::{
        AbstractMesh, AxisType, IntoMesh, Mesh, MeshArg, MeshGuard, NamedSharding, PartitionSpec, Sharding,
        SingleDeviceSharding, get_mesh, make_mesh,
    };
    pub use crate::spmd::*;
    pub use crate::stages::{Collective, CollectiveKind, Compiled, Lowered, eval_shape, shape_dtype_struct};
    pub use crate::tree::{self, Static, Tree};
    pub use crate::{
        Arg, Array, CheckpointPolicy, DType, Device, Ellipsis, Function, NewAxis, PutOptions, ScanOptions, Slice,
        assert_max_traces, associative_scan, block_until_ready, checkpoint, checkpoint_name, cond, custom_jvp,
        custom_vjp, device_count, device_get, device_put, device_put_replicated, device_put_sharded, devices,
        disable_jit, fori_loop, grad, hessian, jacfwd, jacrev, jit, jvp, linear_transpose, linearize,
        local_device_count, local_devices, make_array_from_callback, make_array_from_process_local_data,
        make_array_from_process_local_data_of_shape, make_array_from_single_device_arrays, make_program, process_count,
        process_index, replicate, scan, scan_n, stop_gradient, switch, unreplicate, value_and_grad,
        visualize_array_sharding, visualize_sharding, visualize_sharding_color, visualize_sharding_svg, vjp, vmap,
        while_loop,
    };
    pub use crate::{P, config, debug_print, lax, linalg, random, s};
    pub use shardax_macros::{Module, Tree};
}

/// The programs of the migration guide, run by `cargo test`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/migrating-from-pmap.md")]
struct MigrationGuide;

/// The programs of the page on kinds of parallelism, run by `cargo test`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/parallelism.md")]
struct ParallelismPage;

/// The mistakes of the page on errors, made by `cargo test`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/errors.md")]
struct ErrorsPage;

/// The program of the page on several processes.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/processes.md")]
struct ProcessesPage;

/// What JAX finds out while it runs, and Rust's types before: programs that must not compile.
#[cfg(doctest)]
#[allow(dead_code)]
mod must_not_compile {
    /// A set has no order, so it cannot name axes.
    ///
    /// ```compile_fail
    /// shardax::pcast(shardax::array(1.0f32), std::collections::HashSet::from(["i"]));
    /// ```
    fn test_pcast_axis_name_is_not_set() {}
}
