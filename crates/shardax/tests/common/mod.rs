//! What integration tests share.
#![allow(dead_code)]

pub mod child;
pub mod snapshot;
pub mod values;

/// Simulates eight CPU devices; every test calls it first.
pub fn setup() {
    shardax::config::set_num_cpu_devices(8).expect("eight CPU devices");
}
