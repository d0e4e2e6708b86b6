//! MPI loaded at run time: joining the processes of a job, exchanging bytes, a key-value store, and barriers that name
//! missing processes. The store works without MPI too, in a [folder](Folder) that all hosts see.
//!
//! This is the second crate of shardax with `unsafe` code. It does not need MPI at build time: a library is loaded when
//! a process [joins](World::join) the others that a launcher started with it. Single-process programs never load MPI.
//! One binary works with Open MPI, with MPICH and its derivatives, and with any library of MPI 5's standard ABI.
//!
//! No call of the public interface, in any order and from any number of threads, reads or writes memory that is not its
//! own. Memory that is passed to MPI belongs to the [`Request`], and is leaked if the request is dropped early. Every
//! wait has a deadline, except MPI's own initialization and finalization.
//!
//! ```
//! use shardax_mpi::Launcher;
//!
// A process without a launcher has nothing to join.
//! let variables = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
//! let look = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
//! let launcher = Launcher::from_variables(look).unwrap();
//! assert_eq!(launcher.to_string(), "process 1 of 4 started by mpirun (Open MPI)");
//! assert_eq!(Launcher::from_variables(|_| None), None);
//! ```

#![warn(missing_docs)]

mod abi;
mod comm;
mod copies;
mod error;
mod find;
mod folder;
mod key_value;
mod launch;
mod rendezvous;
mod store;
mod world;

pub use comm::{Communicator, Messages, Request};
pub use error::{Error, Kind, Result};
pub use find::Search;
pub use folder::Folder;
pub use key_value::KeyValue;
pub use launch::{Family, Launcher};
pub use store::Store;
pub use world::World;

/// The time `timeout` from now, at most a year, because a later time may overflow the clock.
pub fn deadline(timeout: std::time::Duration) -> std::time::Instant {
    const YEAR: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);
    let start = std::time::Instant::now();
    start.checked_add(timeout).unwrap_or_else(|| start + YEAR)
}
