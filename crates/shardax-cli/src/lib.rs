//! Commands around training runs: `shardax-run`, `shardax-top` and `shardax-doctor`.
//!
//! The library has their parts, for tests; programs use the commands.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod doctor;
pub mod run;
pub mod top;
