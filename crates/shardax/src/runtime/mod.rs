//! The runtime: compilation, caching and execution of programs on the PJRT client, and data movement.

pub mod aot;
pub(crate) mod assemble;
mod cache_miss;
pub(crate) mod callable;
mod calling_thread;
mod compile_also_for;
pub(crate) mod concrete_inputs;
pub mod counts;
pub(crate) mod cross_compile;
pub(crate) mod device_put;
mod disk_cache;
pub(crate) mod dispatch;
pub(crate) mod eager;
pub(crate) mod execute;
pub(crate) mod implicit_jit;
pub(crate) mod inner_traces;
pub(crate) mod input_names;
pub(crate) mod layouts;
pub(crate) mod load;
pub(crate) mod local_data;
mod memory_kinds;
pub(crate) mod memory_profile;
mod multi_process;
mod nan_check;
mod number_operands;
pub(crate) mod op_sharding;
pub(crate) mod placement;
mod places;
pub(crate) mod profiler_server;
pub(crate) mod program_cache;
pub(crate) mod reshard;
mod reused_text;
mod serialize;
pub(crate) mod stacked;
pub(crate) mod stages;

pub use counts::{Counts, count};
pub use program_cache::clear_caches;

pub use crate::sharding::device::*;
