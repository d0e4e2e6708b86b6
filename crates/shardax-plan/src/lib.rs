//! Predictions of a training step on TPUs and GPUs you do not have: memory on each device by purpose, floating-point
//! operations, communication by mesh axis and link, and a roofline of its time.
//!
//! The step is compiled by the platform's own compiler if that is installed
//! ([`Lowered::compile_for`](shardax::Lowered::compile_for)), and otherwise by the CPU's for the same number of
//! simulated devices; the report states which. Nothing runs.
//!
//! [`main!`] makes a binary a planner in one line; in a program, [`Plan`] makes a [`Report`] for a [`Target`].
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

/// Makes a binary a planner of a step, given as a function from a [`Setup`] to a [`Plan`].
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
