//! Data, metrics, logs and the loop.

mod augment;
mod batches;
#[path = "../common/mod.rs"]
mod common;
mod data;
mod limits;
mod logs;
mod metrics;
mod mutants;
#[path = "../../../shardax/tests/common/mutants.rs"]
mod mutating;
mod pack;
mod trainer;

use common::{Folder, fails};
use shardax::prelude::*;

fn setup() {
    config::set_num_cpu_devices(8).expect("eight CPU devices");
}
