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
//!
//! # Sharp bits: 64 bits from the host
//!
//! A plain number takes the dtype of what it meets: `x * 2.0` has the dtype of `x`. Rust writes `1.0` as an `f64`, so the
//! same holds for host data whose dtype nobody stated: `array([0.5, 1.5])`, [`Array::from_vec`] of a `Vec<f64>`, a range
//! `0.0..1.0`. They are *weakly typed*, printed as `float64~`. Alone, and in what is computed from them alone, they keep
//! their 64 bits; where they meet float32, bfloat16 or a complex array they take its dtype; an integer array takes theirs.
//! A parameter that is written down stays so through its gradient and the update, so that a program of float32 stays one.
//!
//! | host data | dtype | with float32 | with float64 |
//! |---|---|---|---|
//! | `array([1.0, 2.0])`, `Array::from_vec(vec![1.0, 2.0], ..)`, `arange(0.0..2.0)` | `float64~` | float32 | float64 |
//! | `array_of([1.0, 2.0], DType::F64)`, `x.astype(DType::F64)`, `Array::from_bytes`, an `ndarray` of `f64` | float64 | float64 | float64 |
//! | `array([1.0f32, 2.0])` | float32 | float32 | float64 |
//! | `array([1, 2])`: Rust's integers have 32 bits, as JAX's | int32 | float32 | float64 |
//! | `array([1i64, 2])` | int64 | float32 | float64 |
//! | `2.0`, `2` | float32, int32, weak | float32 | float64 |
//!
//! A program that means float64 says so once, with [`array_of`], `astype` or `zeros_dtype`: whatever the stated array
//! meets becomes float64.
//!
//! ```
//! # use shardax::prelude::*;
//! let weights = array([0.25, 0.75]);
//! assert_eq!((&weights * 2.0).dtype(), DType::F64);
//! assert_eq!((ones([2]) * &weights).dtype(), DType::F32);
//! assert_eq!((ones([2]) * array_of([0.25, 0.75], DType::F64)).dtype(), DType::F64);
//! # Ok::<(), shardax::Error>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

// Derived code names this crate by its name, here too.
extern crate self as shardax;

// The floors of the house: each uses those above it in this list. `docs/architecture.md` draws them.
mod client_options;
mod compiler_options;
pub mod config;
pub mod dtype;
pub mod error;
mod local;
mod precision;
pub mod profiler;
mod scope;
mod settings;
pub mod shape;
mod source;
mod stack;
mod tuples;
mod warning;

pub mod sharding;

mod core;

mod interpret;

mod ops;

pub mod runtime;

pub mod export;
pub mod fft;
pub mod image;
pub mod linalg;
pub mod nn;
pub mod random;
pub mod scipy;
mod spmd;
mod transform;

pub use core::{function, prefix, program, tree};
pub use ops::callback::debug;
pub use ops::checkify;
pub use ops::{control_flow, lax, numpy};
pub use runtime::aot as stages;

/// Arrays: what they are made of, how they are indexed and where they lie.
pub mod array {
    pub use crate::core::array::*;
    pub use crate::ops::index::{At, Ellipsis, IndexItem, IntoIndex, IntoIndexItem, NewAxis, Rows, Slice};
    pub use crate::ops::operators::ArrayLike;
    pub use crate::runtime::assemble::*;
    pub use crate::runtime::device_put::{PutOptions, device_put};
    pub use crate::runtime::local_data::*;
    pub use crate::runtime::stacked::*;
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

pub use array::{
    Array, At, Ellipsis, IndexItem, IntoIndex, IntoIndexItem, NewAxis, PutOptions, Slice, array, array_of,
    block_until_ready, device_get, device_put,
};
pub use array::{
    device_put_replicated, device_put_sharded, make_array_from_callback, make_array_from_process_local_data,
    make_array_from_process_local_data_of_shape, make_array_from_single_device_arrays, replicate, unreplicate,
};
pub use control_flow::{
    AssociativeScanOptions, ScanOptions, associative_scan, cond, custom_jvp, custom_vjp, custom_vmap, fori_loop, scan,
    scan_n, sequential_vmap, switch, while_loop,
};
pub use core::array::visualize_array_sharding;
pub use core::function::{Function, IntoArgnums};
pub use core::sharding_like::ShardingLike;
pub use core::tree::{Static, Tree};
pub use dtype::DType;
pub use error::{Error, ErrorKind, Result};
pub use interpret::flat::make_program;
pub use ops::callback::{
    DeviceArg, DeviceCall, HostArg, HostCallback, HostResult, IntoOperands, VmapMethod, ffi_call, io_callback,
    pure_callback,
};
pub use ops::collective::*;
pub use ops::primitive::checkpoint_policy::{CheckpointPolicy, Offload, Operation};
pub use ops::primitive::layout_constraint::with_layout_constraint;
pub use ops::primitive::stop_gradient::stop_gradient;
pub use precision::{PrecisionGuard, default_matmul_precision};
pub use runtime::aot::{
    Compiled, CrossCompiled, Lowered, compile_all, eval_shape, shape_dtype_struct, shape_dtype_struct_on,
};
pub use runtime::counts::{Counts, count};
pub use runtime::implicit_jit::{DisableJit, disable_jit};
pub use runtime::program_cache::clear_caches;
pub use scope::{NamedScope, named_scope};
pub use shape::{Grouped, axis_index_groups};
pub use sharding::device::{DeviceGuard, default_device};
pub use sharding::distributed;
pub use sharding::mesh_utils;
pub use sharding::{
    AbstractMesh, AxisType, IntoMesh, Mesh, MeshArg, MeshGuard, NamedSharding, PartitionSpec, Sharding,
    SingleDeviceSharding, get_mesh, make_mesh, manual_axes,
};
pub use sharding::{AutoLayout, Format, Layout, LayoutOptions};
pub use sharding::{Device, device_count, devices, local_device_count, local_devices, process_count, process_index};
pub use sharding::{GpuSpec, GpuTopology, Topology, TpuTopology};
pub use sharding::{Memory, MemoryStats, Space};
pub use sharding::{visualize_sharding, visualize_sharding_color, visualize_sharding_svg};
pub use spmd::multihost;
pub use spmd::*;
pub use transform::jacobian;
pub use transform::{
    Arg, Argnums, Checkify, Checkpoint, Grad, GradAux, Hessian, IntoJit, Jacobian, Jit, LinearFn, MapOptions,
    MaxTraces, Unravel, ValueAndGrad, ValueAndGradAux, VjpFn, Vmap, assert_max_traces, checkify, checkpoint,
    checkpoint_name, grad, hessian, jacfwd, jacrev, jit, jvp, linear_transpose, linearize, ravel_pytree,
    value_and_grad, vjp, vjp_has_aux, vmap,
};
// The derive macro and the trait share their name.
pub use shardax_macros::{Module, Tree};

/// What a program needs: `use shardax::prelude::*;`
pub mod prelude {
    pub use crate::array::{ArrayLike, array, array_of};
    pub use crate::checkify::Checks;
    pub use crate::error::Result;
    pub use crate::numpy::*;
    pub use crate::ops::callback::{VmapMethod, ffi_call, io_callback, pure_callback};
    pub use crate::ops::collective::*;
    pub use crate::shape::{Grouped, axis_index_groups};
    pub use crate::sharding::{
        AbstractMesh, AxisType, GpuSpec, GpuTopology, IntoMesh, Mesh, MeshArg, MeshGuard, NamedSharding, PartitionSpec,
        Sharding, SingleDeviceSharding, Space, Topology, TpuTopology, get_mesh, make_mesh, manual_axes,
    };
    pub use crate::spmd::*;
    pub use crate::stages::{
        Collective, CollectiveKind, Compiled, CrossCompiled, Lowered, compile_all, eval_shape, shape_dtype_struct,
        shape_dtype_struct_on,
    };
    pub use crate::tree::{self, Static, Tree};
    pub use crate::{
        Arg, Array, AssociativeScanOptions, CheckpointPolicy, DType, Device, Ellipsis, Function, IntoJit, NewAxis,
        PutOptions, ScanOptions, Slice, assert_max_traces, associative_scan, block_until_ready, checkify, checkpoint,
        checkpoint_name, cond, custom_jvp, custom_vjp, custom_vmap, device_count, device_get, device_put,
        device_put_replicated, device_put_sharded, devices, disable_jit, fori_loop, grad, hessian, jacfwd, jacrev, jit,
        jvp, linear_transpose, linearize, local_device_count, local_devices, make_array_from_callback,
        make_array_from_process_local_data, make_array_from_process_local_data_of_shape,
        make_array_from_single_device_arrays, make_program, named_scope, process_count, process_index, replicate, scan,
        scan_n, sequential_vmap, stop_gradient, switch, unreplicate, value_and_grad, visualize_array_sharding,
        visualize_sharding, visualize_sharding_color, visualize_sharding_svg, vjp, vmap, while_loop,
        with_layout_constraint,
    };
    pub use crate::{P, check, config, debug_print, lax, linalg, random, s};
    pub use shardax_macros::{Module, Tree};
}

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
