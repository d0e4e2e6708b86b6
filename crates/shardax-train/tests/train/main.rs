//! Data, metrics, logs and the loop.

mod augment;
mod batches;
#[path = "../common/mod.rs"]
mod common;
mod data;
mod limits;
mod logs;
mod metrics;
#[path = "../../../shardax-nn/tests/mistakes.rs"]
mod mistakes;
mod mutants;
#[path = "../../../shardax/tests/common/mutants.rs"]
mod mutating;
mod pack;
mod records;
mod trainer;

use common::{Folder, fails};
use shardax::prelude::*;
use shardax_alloc as _;

fn setup() {
    config::set_num_cpu_devices(8).expect("eight CPU devices");
}
