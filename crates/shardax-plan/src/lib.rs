//! Predictions of a training step on TPUs and GPUs you do not have: memory on each device by purpose, floating-point
//! operations, communication by mesh axis and link, and a roofline of its time.
//!
//! If the platform's own compiler is installed, it compiles the step
//! ([`Lowered::compile_for`](shardax::Lowered::compile_for)). Otherwise the compiler for CPUs partitions the step for the same
//! number of simulated devices. The report states which compiler was used. Nothing runs on the hardware, so you can plan for
//! devices that you do not have.
//!
//! With [`main!`] you can turn a binary into a planner in one line. In a program, you create a [`Plan`] and call
//! [`Plan::report`] for a [`Target`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cli;
mod device_spec;
mod error;
mod estimator;
mod json;
mod memory;
pub mod models;
mod network;
mod plan;
mod report;
mod roofline;
mod search;
mod setup;
mod svg;
mod target;
mod units;

pub use cli::run;
pub use device_spec::{DeviceSpec, Link, Network};
pub use memory::{Advice, Holder, Memory};
pub use network::Traffic;
pub use plan::Plan;
pub use report::Report;
pub use roofline::{ASSUMPTIONS, Roofline};
pub use search::{Candidate, Found, Search};
pub use setup::{Remat, Setup};
pub use target::Target;

/// Turns a binary into a planner of your step. You pass a function that returns a [`Plan`] for a [`Setup`].
///
/// ```no_run
/// use shardax::prelude::*;
/// use shardax_plan::{Plan, Setup};
///
/// fn step(setup: &Setup) -> Result<Plan> {
///     let rows = NamedSharding::new(&setup.mesh()?, P!["data"]);
///     Plan::new(|x: Array| x.square().mean(..), shape_dtype_struct_on([1024, 64], DType::F32, rows))
/// }
///
/// shardax_plan::main!(step);
/// ```
///
/// `cargo run -- --help` lists the options.
#[macro_export]
macro_rules! main {
    ($plan:expr) => {
        fn main() -> ::std::process::ExitCode {
            $crate::run(&$plan)
        }
    };
}
