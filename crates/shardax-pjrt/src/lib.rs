//! The PJRT C API made safe: find and load a plugin, compile, execute, transfer.
//!
//! `shardax-mpi` and this are the crates of shardax with `unsafe` in them. What it promises: no call of its public
//! interface, in any order and from any number of threads, crashes the process or hangs. What the CPU plugin would hang or
//! crash on is kept from it, each in the module of its name:
//!
//! - `hold`: an argument that is wrong, deleted, or donated meanwhile by another thread;
//! - `gate`: more launches under way than it has room for;
//! - `launch`: a function of the host that fails on one device while the others wait in a collective;
//! - `client` (`launch_id`): two clients that run collectives at the same time;
//! - `elf`, `guard`: a library file that was cut short, or that others may have written;
//! - `topology`: sizes of machines that are none;
//! - `prepare`: the TPU plugin's questions to a network that does not answer;
//! - `sealed`: a compiled program whose bytes changed, or that another plugin or processor wrote;
//! - `exit`: the end of the process, or its `fork`, while programs run.
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
