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

pub mod array;
pub mod config;
pub mod control_flow;
pub mod dtype;
pub mod error;
pub mod function;
pub mod lax;
pub mod linalg;
pub mod lower;
pub mod nn;
pub mod numpy;
pub mod prefix;
pub mod primitive;
pub mod profiler;
pub mod program;
pub mod random;
pub mod runtime;
pub mod shape;
pub mod sharding;
mod source;
mod spmd;
pub mod stages;
mod transform;
pub mod tree;
mod warning;

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
pub use dtype::DType;
pub use error::{Error, ErrorKind, Result};
pub use function::{Function, IntoArgnums};
pub use runtime::load::clear_caches;
pub use runtime::{Device, device_count, devices, local_device_count, local_devices, process_count, process_index};
pub use sharding::{
    AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, ShardingLike, SingleDeviceSharding, make_mesh,
};
pub use sharding::{visualize_array_sharding, visualize_sharding, visualize_sharding_color, visualize_sharding_svg};
pub use spmd::*;
pub use stages::{Compiled, Lowered, eval_shape, shape_dtype_struct};
pub use transform::{
    Arg, Argnums, Checkpoint, CheckpointPolicy, DisableJit, Grad, GradAux, Jit, LinearFn, ValueAndGrad,
    ValueAndGradAux, VjpFn, Vmap, checkpoint, checkpoint_name, disable_jit, grad, hessian, jacfwd, jacrev, jit, jvp,
    linear_transpose, linearize, make_program, stop_gradient, value_and_grad, vjp, vmap,
};
pub use tree::{Static, Tree};
// The derive macro and the trait share their name.
pub use shardax_macros::{Module, Tree};

/// What a program needs: `use shardax::prelude::*;`
pub mod prelude {
    pub use crate::array::{
        Array, Ellipsis, NewAxis, Operand, PutOptions, Slice, array, block_until_ready, device_get, device_put,
    };
    pub use crate::array::{
        device_put_replicated, device_put_sharded, make_array_from_callback, make_array_from_process_local_data,
        make_array_from_process_local_data_of_shape, make_array_from_single_device_arrays, replicate, unreplicate,
    };
    pub use crate::control_flow::{
        ScanOptions, associative_scan, cond, custom_jvp, custom_vjp, fori_loop, scan, scan_n, switch, while_loop,
    };
    pub use crate::dtype::DType;
    pub use crate::error::Result;
    pub use crate::function::Function;
    pub use crate::numpy::*;
    pub use crate::runtime::{
        Device, device_count, devices, local_device_count, local_devices, process_count, process_index,
    };
    pub use crate::sharding::{
        AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding, make_mesh,
    };
    pub use crate::sharding::{
        visualize_array_sharding, visualize_sharding, visualize_sharding_color, visualize_sharding_svg,
    };
    pub use crate::spmd::*;
    pub use crate::stages::{Collective, CollectiveKind, Compiled, Lowered, eval_shape, shape_dtype_struct};
    pub use crate::transform::{
        Arg, CheckpointPolicy, checkpoint, checkpoint_name, disable_jit, grad, hessian, jacfwd, jacrev, jit, jvp,
        linear_transpose, linearize, make_program, stop_gradient, value_and_grad, vjp, vmap,
    };
    pub use crate::tree::{self, Static, Tree};
    pub use crate::{P, config, lax, linalg, random, s};
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

    /// Pairs that can be walked once are not a list of pairs.
    ///
    /// ```compile_fail
    /// shardax::ppermute(shardax::array(1.0f32), "i", (0..4).zip(1..5));
    /// ```
    fn test_ppermute_zip_error() {}
}
