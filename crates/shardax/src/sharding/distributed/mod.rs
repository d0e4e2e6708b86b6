//! Programs of several processes: joining the processes of a launcher, and agreement between processes.

mod options;
pub mod preemption;
mod store;
mod watch;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use options::Options;
use sha2::{Digest, Sha256};
pub use shardax_exchange::SumOrder;
use shardax_exchange::{Exchange, Shared};
use shardax_mpi as mpi;
pub use shardax_mpi::{Error as StoreError, KeyValue, Kind as StoreErrorKind};
use shardax_pjrt as pjrt;

use crate::error::{AtCaller, Error, Result, err};
pub(crate) use watch::reached;

use crate::{config, settings, warning};

/// The default timeout between processes.
const TIMEOUT: Duration = Duration::from_secs(600);
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The advice for processes that diverged.
const SAME_ORDER: &str = "look for a branch that depends on the process, such as `if process_index() == 0`, around a computation on arrays of several processes";

/// The error after `shutdown`.
const HAS_LEFT: &str = "this process has left the others: `distributed::shutdown` was called";

static JOINED: OnceLock<Processes> = OnceLock::new();
/// The timeouts in milliseconds; 0 if not set.
static LIMITS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// The processes that run this program together.
pub(crate) struct Processes {
    world: mpi::World,
    exchange: Arc<Exchange>,
    /// The process of each device, by id. Empty if the plugin itself supports several processes.
    owners: Vec<usize>,
    registered: AtomicBool,
    left: AtomicBool,
    watch: watch::Watch,
}

/// The processes that this process has joined; `None` if it runs alone.
pub(crate) fn processes() -> Option<&'static Processes> {
    JOINED.get()
}

/// Joins the other processes started by `mpirun` or `srun`, or the processes that share the store of
/// `SHARDAX_COORDINATOR_ADDRESS` ([`Options::coordinator_address`]). Returns `true` if there are any. You must call it
/// first in `main`, because it determines the devices. In a program started by hand it does nothing, so one program can
/// run both ways.
///
/// Afterwards [`devices`](crate::devices) returns the devices of all processes, process by process, and
/// [`local_devices`](crate::local_devices) returns this process's devices. All processes must then run the same
/// computations in the same order; if one does not, all of them fail.
///
/// ```
/// use shardax::prelude::*;
///
/// fn main() -> Result<()> {
///     let joined = shardax::distributed::initialize()?;
///     assert_eq!(joined, process_count() > 1);
///     println!("process {} of {} has {:?}", process_index(), process_count(), local_devices()?);
///     Ok(())
/// }
/// ```
///
/// # Errors
/// Returns an error on platforms other than CPU and GPUs (hosts of a TPU slice need no launcher), if devices are
/// already in use, if it is called twice, if no MPI library is found or the library is not the launcher's, if the
/// processes differ in platform, plugin or version, and if another process does not join in time.
#[track_caller]
pub fn initialize() -> Result<bool> {
    Options::default().initialize().at_caller()
}

/// Returns `true` if this process has joined others.
pub fn is_initialized() -> bool {
    processes().is_some()
}

/// Leaves the other processes when all of them leave. A process that ends successfully does so automatically. After
/// this call you cannot compute with other processes.
///
/// # Errors
/// Returns an error if the other processes do not arrive within the [collective timeout](set_collective_timeout).
#[track_caller]
pub fn shutdown() -> Result<()> {
    match processes() {
        Some(p) if !p.left.swap(true, Ordering::SeqCst) => {
            p.close_watch();
            p.exchange.close(HAS_LEFT);
            p.world.leave(timeout()).map_err(Error::from).at_caller()
        }
        _ => Ok(()),
    }
}

/// Sets the time that processes can wait for each other in a collective, in a compilation or at the end (the
/// environment variable `SHARDAX_COLLECTIVE_TIMEOUT`, in seconds). The default is 600 s. You can set it at any time.
///
/// It includes compilation, because one process of each host compiles a program while the others wait for it.
pub fn set_collective_timeout(timeout: Duration) {
    set_limit(0, timeout);
}

/// Sets the wait in a collective after which a warning names the late processes (the environment variable
/// `SHARDAX_COLLECTIVE_PATIENCE`, in seconds). The default is 10 s. You can set it at any time.
pub fn set_collective_patience(patience: Duration) {
    set_limit(1, patience);
}

fn set_limit(which: usize, time: Duration) {
    LIMITS[which].store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    if let Some(p) = processes() {
        p.exchange.set_limits(timeout(), patience());
    }
}

fn limit(which: usize, setting: &pjrt::Setting<Duration>, default: Duration) -> Duration {
    match LIMITS[which].load(Ordering::Relaxed) {
        0 => setting.get().unwrap_or(default),
        millis => Duration::from_millis(millis),
    }
}

/// The timeout between processes.
pub(crate) fn timeout() -> Duration {
    limit(0, &settings::COLLECTIVE_TIMEOUT, TIMEOUT)
}

fn patience() -> Duration {
    limit(1, &settings::COLLECTIVE_PATIENCE, LEAVE_TIMEOUT)
}

/// The advice for an operation that only one process requests.
const SINGLE_PROCESS_HELP: &str = "One process alone computes with its own arrays: `device_get(&x)` of one that is replicated, `process_allgather(&x)` on all of them of one that is split";

impl Processes {
    /// Exchanges this process's configuration with the other processes.
    fn connect(world: mpi::World, platform: &str, sum_order: SumOrder, timeout_of_join: Duration) -> Result<Processes> {
        let (plugin, count) = match platform {
            "cpu" => (pjrt::Plugin::cpu(), config::num_cpu_devices()?),
            other => (pjrt::Plugin::find(other), 0),
        };
        let plugin = plugin.map_err(|e| err!(Plugin, "{e}"))?;
        let bytes = std::fs::metadata(plugin.path()).map_or(0, |file| file.len());
        let version = env!("CARGO_PKG_VERSION");
        let version_text = format!(
            "shardax {version} with a plugin of {bytes} bytes, {:?}, and sums in the order {sum_order:?}",
            plugin.api_version()
        );
        // All processes exchange their number of devices and a text, which must be equal on all.
        let ranks: Vec<usize> = (0..world.size()).collect();
        let configuration = format!("{count}\n{version_text}");
        let configurations =
            world.store().exchange("shardax.join", &ranks, configuration.as_bytes(), timeout_of_join)?;
        let mut owners = Vec::new();
        for (process, facts) in configurations.iter().enumerate() {
            let facts = String::from_utf8_lossy(facts);
            let (device_count, their_version) = facts.split_once('\n').unwrap_or(("0", ""));
            if their_version != version_text {
                return Err(err!(
                    Runtime,
                    "process {process} runs {their_version}, and process {} {version_text}",
                    world.rank()
                )
                .help("start the same program with the same plugin and settings on all hosts"));
            }
            owners.extend(std::iter::repeat_n(process, device_count.parse().unwrap_or(0)));
        }
        const MAX_DEVICES: usize = pjrt::Client::MAX_CPU_DEVICES;
        if owners.len() > MAX_DEVICES {
            return Err(err!(
                Value,
                "{} devices of {} processes are more than the CPU plugin can drive together, {MAX_DEVICES}",
                owners.len(),
                world.size()
            )
            .help(
                "use fewer processes, or fewer devices on each: a process needs no more than one for all of its cores",
            ));
        }
        let exchange = Exchange::new(Some(world.clone()), owners.clone(), timeout(), sum_order);
        exchange.set_limits(timeout(), patience());
        exchange.set_warning_hook(|text| {
            warning::warn(text, "every process must run the same computations; check what the late processes do");
        });
        Ok(Processes {
            world,
            exchange,
            owners,
            registered: AtomicBool::new(false),
            left: AtomicBool::new(false),
            watch: watch::Watch::default(),
        })
    }

    pub fn rank(&self) -> usize {
        self.world.rank()
    }

    /// Fails if the exchange is closed.
    fn check(&self) -> Result<()> {
        match self.exchange.failure() {
            None if !self.left.load(Ordering::SeqCst) => Ok(()),
            failure => Err(err!(Runtime, "{}", failure.unwrap_or(HAS_LEFT))),
        }
    }

    /// Returns `true` if collectives between processes are host functions. Otherwise the plugin communicates.
    pub fn exchanges(&self) -> bool {
        !self.owners.is_empty()
    }

    /// Waits at a barrier of all processes.
    ///
    /// # Errors
    /// Returns an error if a process does not arrive within `timeout`, or if the processes have failed already.
    pub fn barrier(&self, name: &str, timeout: Duration) -> Result<()> {
        self.check()?;
        self.world.store().barrier(&format!("user/{name}"), timeout).map_err(|mut error| {
            error.message = error.message.replacen("\"user/", "\"", 1);
            Error::from(error).context("DEADLINE_EXCEEDED: Barrier timed out").help(
                "every process must reach it, with the same name and equally often; check the output of the missing ones",
            )
        })
    }

    /// Creates a client of a plugin that supports several processes. Each process starts one, and they find each other
    /// in the store. Unless devices are named, a process that shares its host uses the device with its local rank, as
    /// in JAX.
    pub fn client_with_store(
        &self,
        plugin: &pjrt::Plugin,
        mut options: Vec<(&'static str, pjrt::Value)>,
    ) -> Result<pjrt::Client> {
        options.push(("node_id", pjrt::Value::Int(self.rank() as i64)));
        options.push(("num_nodes", pjrt::Value::Int(self.world.size() as i64)));
        let place = match self.world.launcher() {
            Some(launcher) => launcher.local_rank,
            None => (self.world.local_size() > 1).then(|| self.world.local_rank()),
        };
        if let (Some(place), true) = (place, options.iter().all(|(name, _)| *name != "visible_devices")) {
            options.push(("visible_devices", pjrt::Value::Ints(vec![place as i64])));
        }
        Ok(pjrt::Client::with_store(plugin, &options, Arc::new(store::Store(self.world.clone())))?)
    }

    /// Creates a client with the devices of all processes that runs programs on this process's devices.
    pub fn client(&self, plugin: &pjrt::Plugin) -> Result<pjrt::Client> {
        let count = [("cpu_device_count", pjrt::Value::Int(self.owners.len() as i64))];
        let client = pjrt::Client::with_owners(plugin, &count, self.rank(), |id| self.owners[id])?;
        if !self.registered.swap(true, Ordering::SeqCst) {
            self.exchange.register(plugin)?;
        }
        Ok(client)
    }

    /// Checks that a program on devices of several processes can run.
    ///
    /// # Errors
    /// Returns an error if a program on devices of several processes cannot run, because the processes joined without
    /// MPI.
    pub fn check_exchange(&self, name: &str) -> Result<()> {
        self.world.data().map(drop).map_err(|_| {
            err!(
                NotImplemented,
                "{name} runs on devices of several processes, which exchange data by MPI on CPU, and these processes \
                 have joined by a store, without MPI"
            )
            .help(
                "start the program with `mpirun` or `srun`, and without SHARDAX_COORDINATOR_ADDRESS; without MPI, each \
                 process computes on its own devices, and barriers, checkpoints and notices of preemption work",
            )
        })
    }

    /// Returns `true` if results are bitwise equal for every number of processes.
    pub fn sums_exactly(&self) -> bool {
        self.exchange.sum_order() == SumOrder::Exact
    }

    /// Returns the processes of these devices, in ascending order.
    pub fn of(&self, devices: &[super::Device]) -> Vec<usize> {
        let mut ranks: Vec<usize> = devices.iter().map(super::Device::process_index).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Checks that these processes are about to do the same: both the operation `what` and the `values` must be equal
    /// on all. If values differ, `differ` creates the error from the process and the index of the value.
    pub fn agree(
        &self,
        ranks: &[usize],
        computation: &str,
        values: &[&[u8]],
        differ: &dyn Fn(usize, usize) -> Error,
    ) -> Result<()> {
        self.check().map_err(|e| e.context(format!("{computation} needs the other processes")))?;
        if pjrt::ffi::in_function() {
            return Err(err!(
                Runtime,
                "{computation} needs the other processes, and is inside a function of the host that a program calls"
            )
            .help("move it out of the function: the program continues when the function returns"));
        }
        let (digest, per_digest) = digests(values);
        let computation = &shortened(computation);
        let message = [digest.as_slice(), computation.as_bytes()].concat();
        let name = format!("shardax.agree/{ranks:?}");
        let step =
            self.exchange.reach(&Arc::new(Shared { program: 0, processes: ranks.to_vec(), what: computation.clone() }));
        let messages = self.exchange.exchange_at(Some(&step), (&name, ranks), &message, timeout()).map_err(|error| {
            match error.kind {
                mpi::Kind::FailedPrecondition => {
                    self.exchange.close(&error.message);
                    err!(Runtime, "{}", error.message).help(SAME_ORDER)
                }
                mpi::Kind::Failed => {
                    self.exchange.close(&error.message);
                    error.into()
                }
                mpi::Kind::DeadlineExceeded => {
                    let missing = error.message.rsplit_once("missing: ").map_or("others", |(_, who)| who);
                    let error = err!(DeadlineExceeded, "{missing} have not reached {computation} within {:?}", timeout());
                    // The exchange is closed, because late processes may still arrive after this one has continued.
                    self.exchange.close(error.message());
                    error.help(format!(
                        "all processes must run the same computations in the same order; check what the late processes do. {SINGLE_PROCESS_HELP}"
                    ))
                }
                _ => error.into(),
            }
        })?;
        for (&rank, theirs) in ranks.iter().zip(&messages) {
            let (value, their_what) = theirs.split_at_checked(digest.len()).unwrap_or((&[], theirs));
            if their_what != computation.as_bytes() {
                return Err(err!(
                    Runtime,
                    "process {rank} is at {} where this one is at {computation}: all processes must run the same computations in the same order",
                    String::from_utf8_lossy(their_what)
                )
                .help(format!("{SAME_ORDER}. {SINGLE_PROCESS_HELP}")));
            }
            let mut pairs = digest.chunks(DIGEST).zip(value.chunks(DIGEST));
            if let Some(index) = pairs.position(|(message, theirs)| message != theirs) {
                return Err(differ(rank, index * per_digest));
            }
        }
        Ok(())
    }

    /// Sends the value that the first of some processes computes to the other processes. Errors are sent too.
    pub fn share(
        &self,
        (sender, ranks): (usize, &[usize]),
        make: impl FnOnce() -> std::result::Result<Vec<u8>, String>,
    ) -> Result<std::result::Result<Vec<u8>, String>> {
        let comm = self.world.data()?;
        // A message has a head of nine bytes: 1 for an error, and the length of what follows.
        if self.rank() != sender {
            let head = comm.receive(sender, 9)?.wait(mpi::deadline(timeout())).map_err(|error| {
                Error::from(error).context(format!("process {sender} has not compiled what this one waits for"))
            })?;
            let length = u64::from_ne_bytes(head[1..].try_into().unwrap_or_default()) as usize;
            let bytes = comm.receive(sender, length)?.wait(mpi::deadline(timeout()))?;
            return Ok(match head[0] {
                0 => Ok(bytes),
                _ => Err(String::from_utf8_lossy(&bytes).into_owned()),
            });
        }
        let result = make();
        let (kind, bytes) = match &result {
            Ok(bytes) => (0, bytes.as_slice()),
            Err(message) => (1, message.as_bytes()),
        };
        let mut head = vec![kind];
        head.extend((bytes.len() as u64).to_ne_bytes());
        let mut sent = Vec::new();
        for &rank in ranks.iter().filter(|&&rank| rank != sender) {
            sent.push(comm.send(rank, head.clone())?);
            sent.push(comm.send(rank, bytes.to_vec())?);
        }
        let deadline = mpi::deadline(timeout());
        for request in sent {
            request.wait(deadline)?;
        }
        Ok(result)
    }

    /// Returns the processes among `ranks` that share this process's host and have as many devices.
    pub fn like(&self, ranks: &[usize]) -> Vec<usize> {
        let (rank, hosts) = (self.rank(), self.world.hosts());
        let count = self.device_count(rank);
        let candidates = ranks.iter().copied();
        candidates.filter(|&other| hosts[other] == hosts[rank] && self.device_count(other) == count).collect()
    }

    fn device_count(&self, rank: usize) -> usize {
        self.owners.iter().filter(|&&owner| owner == rank).count()
    }

    /// Launches a program with collectives between these processes.
    pub fn launch<T>(&self, shared: &Arc<Shared>, launch: impl FnOnce() -> Result<T>) -> Result<T> {
        self.exchange.launch(shared, launch)
    }

    /// Sends this process's error to all processes, and ends their exchange.
    pub fn report(&self, error: &Error) {
        self.exchange.report(error.message());
    }

    /// Sets the name of the program whose calls of the exchange have this number.
    pub fn name_program(&self, number: u64, name: &str) {
        self.exchange.name_program(number, name);
    }

    fn leave(&self) {
        if self.left.swap(true, Ordering::SeqCst) {
            return;
        }
        self.close_watch();
        let rank = self.rank();
        if let Some(failure) = self.exchange.failure() {
            eprintln!(
                "shardax: process {rank} cannot shut down cleanly, because the exchange between processes failed: {failure}"
            );
            return;
        }
        // This process waits as long as the others continue to work. Processes that wait for this one have their own
        // timeout.
        let mut reported = false;
        while let Err(error) = self.world.leave(patience()) {
            if error.kind != mpi::Kind::DeadlineExceeded {
                eprintln!("shardax: process {rank} cannot shut down cleanly: {error}");
                return;
            }
            if !std::mem::replace(&mut reported, true) {
                eprintln!("shardax: process {rank} has finished and waits for the others");
            }
        }
    }
}

/// The number of compared bytes of a value's digest.
const DIGEST: usize = 16;
/// The maximum number of digests to send. If there are more values, one digest covers several.
const MAX_DIGESTS: usize = 32;

/// The digests of values, and the number of values that each covers.
fn digests(values: &[&[u8]]) -> (Vec<u8>, usize) {
    let values_per_digest = values.len().div_ceil(MAX_DIGESTS).max(1);
    let mut digests = Vec::new();
    for chunk in values.chunks(values_per_digest) {
        let mut hasher = Sha256::new();
        for value in chunk {
            hasher.update((value.len() as u64).to_le_bytes());
            hasher.update(value);
        }
        digests.extend_from_slice(&hasher.finalize()[..DIGEST]);
    }
    (digests, values_per_digest)
}

/// Shortens a text so that MPI sends it eagerly, before this process takes part in the transfer.
fn shortened(what: &str) -> String {
    const MAX_BYTES: usize = 800;
    match (0..=MAX_BYTES).rev().find(|&at| what.is_char_boundary(at)).filter(|_| what.len() > MAX_BYTES) {
        Some(end) => format!("{} …", &what[..end]),
        None => what.to_owned(),
    }
}

/// Leaves the other processes if this process ends successfully or was preempted. A launcher treats a process that ends
/// without leaving as failed and kills the others, which is right only if this process failed.
fn leave_at_end(status: i32) {
    match processes() {
        Some(p) if matches!(status, 0 | preemption::EXIT_STATUS) => p.leave(),
        // A failed process does not call `leave`, because MPI must not be called while its library ends.
        Some(p) => {
            p.close_watch();
            p.end_others(status);
        }
        None => {}
    }
}

/// Warns once if the process was started with others and has not joined them.
pub(crate) fn warn_if_alone() {
    let launcher = mpi::Launcher::detect().filter(|launcher| launcher.size > 1);
    let situation = match (launcher, options::address_of_setting()) {
        (_, Some(address)) => format!("SHARDAX_COORDINATOR_ADDRESS is {address:?}, and this process"),
        (Some(launcher), None) => format!("this is {launcher}, and it"),
        (None, None) => return,
    };
    warning::warn(
        &format!("{situation} runs without the other processes"),
        "call `shardax::distributed::initialize()` first in `main`, to run with the others",
    );
}
