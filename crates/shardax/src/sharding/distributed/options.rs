//! Options to join other processes, by MPI or by a store that all of them can reach.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shardax_mpi::{self as mpi, KeyValue};
use shardax_pjrt as pjrt;

use super::{JOINED, Processes, SumOrder, leave_at_end, processes, watch};
use crate::error::{AtCaller, Error, Result, err};
use crate::{config, settings, warning};

/// The default timeout for all processes to join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(300);

/// The maximum number of processes.
const MAX_PROCESSES: usize = 1 << 20;

/// Options of [`initialize`](super::initialize()).
///
/// ```
/// let joined = shardax::distributed::Options::default()
///     .initialization_timeout(std::time::Duration::from_secs(60))
///     .initialize()?;
/// assert!(!joined);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options {
    mpi_library: Option<PathBuf>,
    coordinator_address: Option<String>,
    store: Option<OwnStore>,
    num_processes: Option<usize>,
    process_id: Option<usize>,
    initialization_timeout: Option<Duration>,
    sum_order: Option<SumOrder>,
}

/// A store that the user passed.
#[derive(Clone)]
struct OwnStore(Arc<dyn KeyValue>);

impl fmt::Debug for OwnStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnStore")
    }
}

/// The value of `SHARDAX_COORDINATOR_ADDRESS`, if it is set and not empty.
pub(super) fn address_of_setting() -> Option<String> {
    settings::COORDINATOR_ADDRESS.get()
}

impl Options {
    /// Sets the MPI library to load. The default is `SHARDAX_MPI_LIBRARY`, otherwise the launcher's library, otherwise
    /// one that the system finds.
    pub fn mpi_library(mut self, path: impl Into<PathBuf>) -> Self {
        self.mpi_library = Some(path.into());
        self
    }

    /// Sets the store by which the processes find each other without MPI: `file:/shared/job`, a folder that all hosts
    /// can see. The default is `SHARDAX_COORDINATOR_ADDRESS`. Jobs that run at the same time must use different
    /// folders; a restarted job can use its folder again.
    ///
    /// GPUs exchange data over their own network, so a store is enough for them. On CPU a store provides barriers,
    /// checkpoints and notices of preemption, but each process computes only on its own devices: programs on devices of
    /// several processes need MPI, and otherwise fail.
    ///
    /// ```no_run
    /// let joined = shardax::distributed::Options::default()
    ///     .coordinator_address("file:/shared/jobs/17")
    ///     .num_processes(4)
    ///     .process_id(std::env::var("JOB_COMPLETION_INDEX").ok().and_then(|text| text.parse().ok()).unwrap_or(0))
    ///     .initialize()?;
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn coordinator_address(mut self, address: impl Into<String>) -> Self {
        self.coordinator_address = Some(address.into());
        self
    }

    /// Sets a store of your own instead of [`coordinator_address`](Self::coordinator_address), for example a client of
    /// etcd or Redis. Its errors become [`StoreError`](super::StoreError)s. The store in this example is a map, so it
    /// works for one process only:
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use std::sync::Mutex;
    ///
    /// use shardax::distributed::{KeyValue, Options, StoreError};
    ///
    /// type Result<T> = std::result::Result<T, StoreError>;
    ///
    /// #[derive(Default)]
    /// struct Map(Mutex<HashMap<String, Vec<u8>>>);
    ///
    /// impl KeyValue for Map {
    ///     fn set(&self, key: &str, value: &[u8], _readers: &[usize]) -> Result<()> {
    ///         self.0.lock().unwrap().insert(key.to_owned(), value.to_vec());
    ///         Ok(())
    ///     }
    ///     fn set_new(&self, key: &str, value: &[u8], _readers: &[usize]) -> Result<bool> {
    ///         let mut map = self.0.lock().unwrap();
    ///         let is_new = !map.contains_key(key);
    ///         map.entry(key.to_owned()).or_insert(value.to_vec());
    ///         Ok(is_new)
    ///     }
    ///     fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
    ///         Ok(self.0.lock().unwrap().get(key).cloned())
    ///     }
    ///     fn remove(&self, key: &str) -> Result<()> {
    ///         self.0.lock().unwrap().remove(key);
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let joined = Options::default().store(Map::default()).num_processes(1).process_id(0).initialize()?;
    /// assert!(!joined);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn store(mut self, store: impl KeyValue + 'static) -> Self {
        self.store = Some(OwnStore(Arc::new(store)));
        self
    }

    /// Sets the number of processes that share the store. The default is `SHARDAX_NUM_PROCESSES`, otherwise the
    /// launcher's number.
    pub fn num_processes(mut self, count: usize) -> Self {
        self.num_processes = Some(count);
        self
    }

    /// Sets the number of this process, counted from 0. The default is `SHARDAX_PROCESS_ID`, otherwise the launcher's
    /// number, otherwise the index of a pod in an indexed Kubernetes job (`JOB_COMPLETION_INDEX`).
    pub fn process_id(mut self, id: usize) -> Self {
        self.process_id = Some(id);
        self
    }

    /// Sets the timeout for the other processes to join (300 s by default).
    pub fn initialization_timeout(mut self, timeout: Duration) -> Self {
        self.initialization_timeout = Some(timeout);
        self
    }

    /// Sets the order of sums over the devices of several processes. The default is the value of the environment
    /// variable `SHARDAX_SUM_ORDER`, `exact` or `fast`, otherwise [`SumOrder::Exact`]. It must be the same on all
    /// processes.
    pub fn sum_order(mut self, order: SumOrder) -> Self {
        self.sum_order = Some(order);
        self
    }

    /// Joins the processes like [`initialize`](super::initialize()), with these options.
    ///
    /// # Errors
    /// Returns an error if the processes cannot join. If you use a store, this includes an invalid address, a folder
    /// that cannot be written to, a missing number of processes or index of this process, and two processes with the
    /// same index.
    #[track_caller]
    pub fn initialize(self) -> Result<bool> {
        self.join().at_caller()
    }

    fn join(self) -> Result<bool> {
        static JOINING: Mutex<()> = Mutex::new(());
        // Two threads must not join at the same time, because the second would overwrite the first one's processes.
        let _one = JOINING.lock().unwrap_or_else(PoisonError::into_inner);
        if processes().is_some() {
            return Err(err!(Runtime, "distributed.initialize should only be called once.")
                .help("call it once, first in `main`; `distributed::is_initialized` says whether it was"));
        }
        settings::check()?;
        let launcher = mpi::Launcher::detect();
        let place = self.place(launcher.as_ref())?;
        if place.is_none_or(|(_, size)| size == 1) {
            return Ok(false);
        }
        if let Some(count) = config::devices_in_use() {
            return Err(err!(
                Runtime,
                "distributed.initialize() must be called before any computations are executed: {count} devices are in use already"
            )
            .help("call it first in `main`, before anything makes an array or asks for devices"));
        }
        let platform = config::platform()?;
        if !matches!(platform.as_str(), "cpu" | "cuda" | "gpu") {
            return Err(err!(
                NotImplemented,
                "several processes join on the platforms cpu and cuda, not on {platform}"
            )
            .help("hosts of a TPU slice find each other by themselves: start the program by hand on each; or set SHARDAX_PLATFORM=cpu"));
        }
        let sum_order = self.sum_order.or_else(|| settings::SUM_ORDER.get()).unwrap_or_default();
        let timeout = self.initialization_timeout.unwrap_or(JOIN_TIMEOUT);
        let world = match (self.values()?, place) {
            (Some(values), Some(place)) => mpi::World::join_store(launcher.as_ref(), values, place, timeout)?,
            _ => self.join_by_mpi(launcher.as_ref())?,
        };
        let joined = Processes::connect(world, &platform, sum_order, timeout)?;
        if joined.exchanges() {
            config::freeze(joined.owners.iter().filter(|&&owner| owner == joined.rank()).count());
        }
        watch::start(JOINED.get_or_init(|| joined))?;
        pjrt::at_exit(leave_at_end);
        Ok(true)
    }

    fn join_by_mpi(&self, launcher: Option<&mpi::Launcher>) -> Result<mpi::World> {
        let mut search = mpi::Search::from_environment(launcher);
        if self.mpi_library.is_some() {
            search.named.clone_from(&self.mpi_library);
        }
        let world = mpi::World::join(launcher, &search)?;
        if let Some(text) = world.binding_warning() {
            warning::warn(&text, "start it with `mpirun --bind-to none` (Open MPI, MPICH) or `srun --cpu-bind=none`");
        }
        Ok(world)
    }

    fn address(&self) -> Option<String> {
        self.coordinator_address.clone().or_else(address_of_setting)
    }

    /// The index of this process and the number of processes; `None` if the process is alone.
    fn place(&self, launcher: Option<&mpi::Launcher>) -> Result<Option<(usize, usize)>> {
        let count = self.num_processes.or_else(|| settings::NUM_PROCESSES.get());
        let id = self.process_id.or_else(|| settings::PROCESS_ID.get());
        let Some(address) = self.store.as_ref().map(|_| "a store".to_owned()).or_else(|| self.address()) else {
            return match (count, id) {
                (None, None) => Ok(launcher.map(|launcher| (launcher.rank, launcher.size))),
                _ => Err(err!(Value, "num_processes or process_id is given without coordinator_address")
                    .help("launchers of MPI count the processes; without one give `coordinator_address(\"file:/shared/job\")`, or set SHARDAX_COORDINATOR_ADDRESS")),
            };
        };
        // A pod of an indexed Kubernetes job knows its index, but not their number.
        let id = id
            .or(launcher.map(|launcher| launcher.rank))
            .or_else(|| std::env::var("JOB_COMPLETION_INDEX").ok()?.trim().parse().ok());
        let count = count.or(launcher.map(|launcher| launcher.size));
        let count =
            count.ok_or_else(|| unset(&address, "num_processes", "`num_processes` or SHARDAX_NUM_PROCESSES"))?;
        let id = id.ok_or_else(|| unset(&address, "process_id", "`process_id` or SHARDAX_PROCESS_ID"))?;
        if count > MAX_PROCESSES {
            return Err(err!(Value, "num_processes is {count}, but at most {MAX_PROCESSES} processes can join")
                .help("pass the number of processes that were started"));
        }
        if id < count {
            Ok(Some((id, count)))
        } else {
            Err(err!(Value, "process_id is {id}, but there are {count} processes")
                .help("pass a process id from 0 to the number of processes minus 1"))
        }
    }

    /// The store by which the processes find each other; `None` with MPI.
    fn values(&self) -> Result<Option<Arc<dyn KeyValue>>> {
        if let Some(OwnStore(store)) = &self.store {
            return Ok(Some(store.clone()));
        }
        let Some(address) = self.address() else { return Ok(None) };
        match address.strip_prefix("file:").map(|path| path.strip_prefix("//").unwrap_or(path)) {
            Some(path) if path.starts_with('/') => match mpi::Folder::new(path) {
                Ok(folder) => Ok(Some(Arc::new(folder))),
                Err(error) => Err(Error::from(error).help("name a folder that all hosts see and may write to")),
            },
            _ => Err(err!(Value, "invalid address {address:?} of the coordinator: expected `file:` and the path of a folder that all hosts see")
                .help("pass an address such as `file:/shared/jobs/17`. Unlike JAX, shardax has no server that listens at a host and port; if you run one, such as etcd or Redis, pass its client to `Options::store`")),
        }
    }
}

/// The error for a launch that does not say how many processes there are, or which one this is.
fn unset(address: &str, name: &str, setting: &str) -> Error {
    err!(Value, "the processes join by {address}, but {name} is not set")
        .help(format!("set {setting}, or start them with `srun`, which sets it"))
}
