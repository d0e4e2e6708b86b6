//! Commands around training runs: `shardax-run`, `shardax-top` and `shardax-doctor`.
//!
//! The library contains their parts for tests. You normally use the commands.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod doctor;
pub mod run;
pub mod top;
