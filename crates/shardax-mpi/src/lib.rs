//! MPI found at run time: processes that join, exchange bytes, and say who is missing.
//!
//! This is the second crate of shardax with `unsafe` in it, and depends on no MPI at build time. A library is looked
//! for when a process [joins](World::join) the others that a launcher started with it; who never starts several
//! processes never needs one. The same binary works with Open MPI, MPICH and its family, and any library of MPI 5's
//! standard ABI.
//!
//! What it promises: no call of its public interface, in any order and from any number of threads, reads or writes
//! memory that is not its own. Memory that MPI is given belongs to the [`Request`]; one that is given up before its time
//! keeps it for ever. Every wait has a deadline, except for the library's own start and end.
//!
//! ```
//! use shardax_mpi::Launcher;
//!
//! // Started by hand, there is no launcher, and nothing to join.
//! let variables = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
//! let look = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
//! let launcher = Launcher::from_variables(look).unwrap();
//! assert_eq!(launcher.to_string(), "process 1 of 4 started by mpirun (Open MPI)");
//! assert_eq!(Launcher::from_variables(|_| None), None);
//! ```

#![warn(missing_docs)]

mod abi;
mod comm;
mod error;
mod find;
mod launch;
mod store;
mod world;

pub use comm::{Communicator, Messages, Request};
pub use error::{Error, Kind, Result};
pub use find::Search;
pub use launch::{Family, Launcher};
pub use store::Store;
pub use world::World;

/// The moment so long from now. What is further off than a clock can say is as good as a year.
pub fn deadline(timeout: std::time::Duration) -> std::time::Instant {
    const YEAR: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);
    let now = std::time::Instant::now();
    now.checked_add(timeout).unwrap_or_else(|| now + YEAR)
}
