//! Joining and leaving the processes of a job, by MPI if a launcher started them together, or by a store without MPI.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::abi::Table;
use crate::comm::Communicator;
use crate::copies::Copies;
use crate::error::{Error, Kind, Result};
use crate::find::{self, Search};
use crate::key_value::KeyValue;
use crate::launch::{Family, Launcher};
use crate::rendezvous;
use crate::store::Store;

/// All processes of a job. Cloning increments a reference count.
#[derive(Clone)]
pub struct World {
    inner: Arc<Inner>,
}

struct Inner {
    launcher: Option<Launcher>,
    rank: usize,
    /// The host of each process.
    hosts: Vec<String>,
    values: Arc<dyn KeyValue>,
    store: Store,
    /// `None` for processes that joined without MPI.
    mpi: Option<Mpi>,
}

struct Mpi {
    table: Arc<Table>,
    data: Communicator,
    copies: Arc<Copies>,
}

/// The timeout of the first exchange, in which processes send the names of their hosts.
const START: Duration = Duration::from_secs(300);

static JOINED: AtomicBool = AtomicBool::new(false);

impl World {
    /// Joins the other processes of the job: loads an MPI library, initializes it, and connects. Once in a process.
    ///
    /// # Errors
    /// Returns [`Kind::NoLibrary`] with the places searched; [`Kind::WrongLibrary`] if the library belongs to another
    /// MPI than the launcher, and sees only this process; [`Kind::FailedPrecondition`] in a second call; or an error of
    /// MPI.
    pub fn join(launcher: Option<&Launcher>, search: &Search) -> Result<World> {
        if JOINED.swap(true, Ordering::SeqCst) {
            return Err(Error::new(Kind::FailedPrecondition, "this process has already joined the others"));
        }
        World::join_first(launcher, search).inspect_err(|error| {
            // Another library may be tried, but MPI cannot be initialized twice.
            if error.kind == Kind::NoLibrary {
                JOINED.store(false, Ordering::SeqCst);
            }
        })
    }

    fn join_first(launcher: Option<&Launcher>, search: &Search) -> Result<World> {
        let table = search.load().map_err(|mut error| {
            if let Some(launcher) = launcher {
                error.message = format!("this process is {}, and {}", place(launcher), error.message);
            }
            error
        });
        let table = Arc::new(table?);
        // Other libraries end the process if Open MPI's launcher started it.
        if let Some(launcher) = launcher.filter(|launcher| launcher.family == Some(Family::OpenMpi))
            && !table.version.contains("Open MPI")
        {
            return Err(wrong_library(launcher, &table, "and "));
        }
        table.start()?;
        // SAFETY: the world lives as long as MPI, and only duplicates of it are passed on.
        let world = unsafe { Communicator::from_handle(&table, table.constants.world)? };
        if let Some(launcher) = launcher
            && launcher.size != world.size()
        {
            return Err(wrong_library(
                launcher,
                &table,
                &format!("but to the MPI library it is one of {}: ", world.size()),
            ));
        }
        // Separate from each other, and from other uses of MPI's world in this process.
        let (data, copies) = (world.duplicate()?, Arc::new(Copies::new(world.duplicate()?)));
        let hosts = data.all_gather_any(host_name().as_bytes(), Instant::now() + START)?;
        let hosts = hosts.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        let mpi = Mpi { table, data, copies: copies.clone() };
        Ok(World::new(launcher, world.rank(), hosts, copies, Some(mpi)))
    }

    /// Joins the processes of a job that share a store, without MPI: they have the store and its barriers, and cannot
    /// exchange data. `place` is the rank of this process and the number of processes. Once in a process.
    ///
    /// Earlier jobs may have used the store; two jobs must not use it at the same time.
    ///
    /// # Errors
    /// Returns [`Kind::DeadlineExceeded`] with the processes that do not join in time; [`Kind::InvalidArgument`] if the
    /// processes do not agree on their number; [`Kind::FailedPrecondition`] in a second call, if two processes have the
    /// same rank, or if the store does; an error of the store.
    pub fn join_store(
        launcher: Option<&Launcher>,
        values: Arc<dyn KeyValue>,
        place: (usize, usize),
        timeout: Duration,
    ) -> Result<World> {
        if place.0 >= place.1 {
            return Err(Error::invalid_argument(format!("there is no process {} of {}", place.0, place.1)));
        }
        if JOINED.swap(true, Ordering::SeqCst) {
            return Err(Error::new(Kind::FailedPrecondition, "this process has already joined the others"));
        }
        let (values, hosts) = rendezvous::meet(values, place, &host_name(), timeout)?;
        Ok(World::new(launcher, place.0, hosts, values, None))
    }

    fn new(
        launcher: Option<&Launcher>,
        rank: usize,
        hosts: Vec<String>,
        values: Arc<dyn KeyValue>,
        mpi: Option<Mpi>,
    ) -> World {
        let store = Store::new(values.clone(), rank, hosts.len());
        World { inner: Arc::new(Inner { launcher: launcher.cloned(), rank, hosts, values, store, mpi }) }
    }

    /// The rank of this process.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.inner.hosts.len()
    }

    /// The rank of this process among the processes of its host.
    pub fn local_rank(&self) -> usize {
        let hosts = &self.inner.hosts;
        hosts[..self.rank()].iter().filter(|host| **host == hosts[self.rank()]).count()
    }

    /// The number of processes on this host.
    pub fn local_size(&self) -> usize {
        self.inner.hosts.iter().filter(|host| **host == self.inner.hosts[self.rank()]).count()
    }

    /// The host name of each process.
    pub fn hosts(&self) -> &[String] {
        &self.inner.hosts
    }

    /// The launcher, if it is known.
    pub fn launcher(&self) -> Option<&Launcher> {
        self.inner.launcher.as_ref()
    }

    /// The communicator of all processes.
    ///
    /// # Errors
    /// Returns [`Kind::NoLibrary`] if the processes joined without MPI.
    pub fn data(&self) -> Result<&Communicator> {
        self.inner.mpi.as_ref().map(|mpi| &mpi.data).ok_or_else(|| {
            Error::new(Kind::NoLibrary, "the processes have joined by a store, without MPI, and cannot exchange data")
        })
    }

    /// The key-value store of all processes.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// The library in use, such as `Open MPI v4.1.4 (libmpi.so.40)`; `None` without MPI.
    pub fn library(&self) -> Option<String> {
        self.inner.mpi.as_ref().map(|mpi| format!("{} ({})", mpi.table.version, mpi.table.path))
    }

    /// A warning if the launcher binds this process to fewer cores than its share of the host's.
    pub fn binding_warning(&self) -> Option<String> {
        let cores = allowed_cores("self")?;
        // The launcher itself is not bound.
        let cores_of_launcher = allowed_cores(&find::parent_of("self")?)?;
        bound(cores, cores_of_launcher, self.local_size())
    }

    /// Ends all processes of the job with this exit code; without MPI, this process.
    pub fn abort(&self, code: i32) -> ! {
        if let Some(mpi) = &self.inner.mpi {
            // SAFETY: the world lives as long as MPI.
            unsafe { (mpi.table.abort)(mpi.table.constants.world, code) };
        }
        std::process::abort()
    }

    /// Leaves the job, and waits for the other processes to leave. You should call it at the end, because otherwise
    /// launchers regard the end of this process as a failure and end the others. Nothing can be exchanged afterwards.
    ///
    /// # Errors
    /// Returns an error of MPI; [`Kind::DeadlineExceeded`] with the processes that have not arrived, after which it may
    /// be called again.
    pub fn leave(&self, timeout: Duration) -> Result<()> {
        // `finalize` would wait without a deadline. After this barrier, all sent data has been received.
        self.inner.store.barrier("shardax.leave", timeout)?;
        let Some(mpi) = &self.inner.mpi else { return self.leave_store() };
        mpi.copies.close()?;
        let (table, mut ended) = (&mpi.table, 0);
        // SAFETY: `finalized` may be called at any time, and `finalize` once.
        unsafe {
            table.check("MPI_Finalized", (table.finalized)(&raw mut ended))?;
            if ended != 0 {
                return Ok(());
            }
            table.check("MPI_Finalize", (table.finalize)())
        }
    }

    /// Leaves a store. The first process removes the job's values when the others have read them.
    fn has_left(&self, rank: usize) -> bool {
        matches!(self.inner.values.get(&left_key(rank)), Ok(Some(_)))
    }

    fn leave_store(&self) -> Result<()> {
        const MAX_WAIT: Duration = Duration::from_secs(5);
        if self.rank() > 0 {
            return self.inner.values.set(&left_key(self.rank()), &[], &[0]);
        }
        let end = Instant::now() + MAX_WAIT;
        while !(1..self.size()).all(|rank| self.has_left(rank)) && Instant::now() < end {
            std::thread::sleep(self.inner.values.interval());
        }
        self.inner.values.remove_all("")
    }
}

/// The key under which a process reports that it has left.
fn left_key(rank: usize) -> String {
    format!("left/{rank}")
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("rank", &self.rank()).field("size", &self.size()).finish_non_exhaustive()
    }
}

/// Formatted as `1 of 4 started by mpirun (Open MPI)`.
fn place(launcher: &Launcher) -> String {
    launcher.to_string().trim_start_matches("process ").to_owned()
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "?".to_owned(), |name| name.trim().to_owned())
}

/// The number of cores that a process may use.
fn allowed_cores(process: &str) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    count_list(list.trim())
}

/// The number of cores in a list such as `0-3,8`.
fn count_list(list: &str) -> Option<usize> {
    list.split(',')
        .map(|part| match part.split_once('-') {
            Some((first, last)) => (last.parse::<usize>().ok()? + 1).checked_sub(first.parse().ok()?),
            None => part.parse::<usize>().ok().map(|_| 1),
        })
        .sum()
}

fn bound(own: usize, all: usize, processes: usize) -> Option<String> {
    (own < all / processes.max(1)).then(|| {
        format!(
            "the launcher lets this process use {own} of {all} cores, and this host has {processes} processes: XLA's \
             threads would share {own}. `mpirun --bind-to none` lets each process use all of them"
        )
    })
}

fn wrong_library(launcher: &Launcher, table: &Table, seen: &str) -> Error {
    Error::new(
        Kind::WrongLibrary,
        format!(
            "this process is {}, {seen}{} ({}, {}) belongs to another MPI than the launcher. Set SHARDAX_MPI_LIBRARY \
             to the library of the launcher's MPI, or use the launcher of the library's MPI",
            place(launcher),
            table.path,
            table.version,
            table.constants.interface
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_bound_to_less_than_its_share_is_warned() {
        assert_eq!(
            bound(1, 8, 2).unwrap(),
            "the launcher lets this process use 1 of 8 cores, and this host has 2 processes: XLA's threads would \
                 share 1. `mpirun --bind-to none` lets each process use all of them"
        );
        assert_eq!((bound(4, 8, 2), bound(1, 2, 2), bound(1, 2, 4)), (None, None, None));
    }

    #[test]
    fn lists_of_cores_are_counted() {
        assert_eq!((count_list("0-3,8"), count_list("5"), count_list("0-63")), (Some(5), Some(1), Some(64)));
        assert_eq!((count_list(""), count_list("3-1")), (None, None));
    }
}
