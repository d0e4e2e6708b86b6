//! Commands around training runs: `shardax-run`, `shardax-top` and `shardax-doctor`.
//!
//! You normally use the commands. The library exists so that tests can call their parts.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod doctor;
pub mod run;
pub mod top;
