//! The engine: programs compiled, kept and run, and arrays moved to where they are asked for.

pub(crate) mod assemble;
mod bytes;
pub(crate) mod calling;
pub mod counts;
mod disk_cache;
pub(crate) mod dispatch;
pub(crate) mod eager;
mod elsewhere;
pub(crate) mod execute;
pub(crate) mod input_names;
pub(crate) mod known;
pub(crate) mod layouts;
pub(crate) mod load;
pub(crate) mod local_data;
mod memory_kinds;
mod miss;
pub(crate) mod op_sharding;
pub(crate) mod placement;
pub(crate) mod programs;
pub(crate) mod put;
pub(crate) mod reshard;
mod spanning;
pub(crate) mod stacked;
pub(crate) mod staged;
pub mod stages;
pub(crate) mod unloaded;
mod watch;
