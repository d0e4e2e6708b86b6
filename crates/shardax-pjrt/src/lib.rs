//! A safe interface to the PJRT C API: finding and loading plugins, compiling, executing, transferring data.
//!
//! This crate and `shardax-mpi` contain all `unsafe` code of shardax. No call of the public interface crashes the
//! process or hangs, in any order and from any number of threads. The modules that guard against defects of plugins are
//! private; their documentation states the hazard, the plugin's version and the test:
//!
//! - `buffer_reference`: an argument that another thread deletes or donates during a launch;
//! - `launch_limiter`: more launches in flight than the CPU plugin supports;
//! - `launch_failure`: a host function that fails on one device while the others wait in a collective;
//! - `client` (`launch_id`): two clients that run collectives at the same time;
//! - `elf`, `permissions`: a truncated library, or one that other users can write to;
//! - `topology`: sizes that end the process or that the plugin never finishes with;
//! - `plugin_environment`: a TPU plugin that waits for a metadata server;
//! - `cache_entry`: a compiled program that was damaged, or written by another plugin or for another processor;
//! - `exit`: a process that ends or forks while programs run.
//!
//! ```no_run
//! use shardax_pjrt::{Client, CompileOptions, ElementType, ParameterSpec, Plugin, Signature, Value};
//!
//! # fn main() -> shardax_pjrt::Result<()> {
//! let client = Client::new(&Plugin::cpu()?, &[("cpu_device_count", Value::Int(1))])?;
//! let program = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
//!   %y = stablehlo.add %x, %x : tensor<2xf32>
//!   return %y : tensor<2xf32>
//! }";
//! let signature = Signature { parameters: vec![ParameterSpec::new(ElementType::F32, [2])] };
//! let double = client.compile(program, &CompileOptions::default(), signature)?;
//! let bytes: Vec<u8> = [1.5f32, 2.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
//! let x = client.buffer_from_host(&bytes, ElementType::F32, &[2], &client.devices()[0])?;
//! let results = double.execute(&[&x])?;
//! results[0][0].with_bytes(|bytes| assert_eq!(bytes[..4], 3.0f32.to_ne_bytes()))?;
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod api;
mod buffer;
mod buffer_reference;
mod cache_entry;
mod client;
mod device;
pub mod dlpack;
mod element;
mod elf;
mod error;
mod event;
mod executable;
mod execute;
mod exit;
pub mod ffi;
mod hlo;
mod host_bytes;
mod host_copy;
mod install;
mod key_value_store;
mod launch_failure;
mod launch_limiter;
mod layout;
mod log_level;
mod memory;
mod named_value;
mod options;
mod panics;
mod partition;
pub mod permissions;
mod plugin;
mod plugin_environment;
mod plugin_search;
mod profiler;
mod raw;
mod settings;
mod sharding;
mod topology;

pub use buffer::{Buffer, BufferView};
pub use buffer_reference::BufferReference;
pub use cache_entry::ENTRY_FORMAT;
pub use client::Client;
pub use device::{Device, MemoryStats};
pub use element::ElementType;
pub use error::{Code, Error, Result};
pub use event::{Event, EventFuture};
pub use executable::{CompiledProgram, CrossCompiledExecutable, Executable, MemoryAnalysis};
pub use exit::at_exit;
pub use hlo::HloInstruction;
pub use host_bytes::HostBytes;
pub use key_value_store::KeyValueStore;
pub use layout::Layout;
pub use memory::Memory;
pub use named_value::Value;
pub use options::{CompileOptions, ParameterSpec, Signature};
pub use panics::panic_text;
pub use partition::Partitioned;
pub use plugin::Plugin;
pub use plugin_search::{Environment, PluginSpec, Wheel};
pub use profiler::Profiler;
pub use settings::{Setting, check_settings};
pub use sharding::{OpSharding, ShardingKind};
pub use topology::{GpuSpec, GpuTopology, Topology, TopologyDevice, TpuTopology};
