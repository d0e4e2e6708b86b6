//! `grad` and `vmap` with all their options. (Values are compared with JAX's in `golden.rs`.)

#[path = "../common/mod.rs"]
mod common;
mod grad;
mod jacobian;
mod references;
mod saved_residuals;
mod vmap;

use common::values::{close, message, noise, numbers, ramp};
use shardax_alloc as _;
