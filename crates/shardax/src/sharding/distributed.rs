//! Several processes: joining those that a launcher started, and agreeing with them.

mod store;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
pub use shardax_exchange::SumOrder;
use shardax_exchange::{Exchange, Shared};
use shardax_mpi as mpi;
use shardax_pjrt as pjrt;

use crate::error::{AtCaller, Error, Result, err};
use crate::{config, settings, warning};

/// How long processes wait for each other, unless it is set.
const TIMEOUT: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(30);

/// What to do about processes that went apart.
const SAME_ORDER: &str = "look for a branch that depends on the process, such as `if process_index() == 0`, around a computation on arrays of several processes";

/// What is said of what comes after the end.
const LEFT: &str = "this process has left the others: `distributed::shutdown` was called";

static JOINED: OnceLock<Processes> = OnceLock::new();
/// In milliseconds; 0 where it was not set.
static LIMITS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// The processes that run this program together.
pub(crate) struct Processes {
    world: mpi::World,
    exchange: Arc<Exchange>,
    /// The process of each device, by id; none where the plugin itself knows several processes.
    owners: Vec<usize>,
    registered: AtomicBool,
    left: AtomicBool,
}

/// The processes that this one has joined; none when it runs alone.
pub(crate) fn processes() -> Option<&'static Processes> {
    JOINED.get()
}

/// Joins the other processes that `mpirun` or `srun` started, and says whether there are any. Call it first in `main`:
/// it decides which devices there are. In a program that was started by hand it does nothing, so that one program runs
/// both ways.
///
/// Afterwards [`devices`](crate::devices) gives the devices of all processes, process by process, and
/// [`local_devices`](crate::local_devices) those of this one. All processes must then run the same computations in the
/// same order; one that does not is an error on all of them.
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
/// Fails on another platform than CPU and GPUs (jobs of several TPU hosts cannot start yet), when devices are in use
/// already, when it is called twice, when no MPI library is found or it is not the launcher's, when the processes differ in
/// platform, plugin or version, and when another does not come in time.
#[track_caller]
pub fn initialize() -> Result<bool> {
    Options::default().join().at_caller()
}

/// How to [`initialize`].
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
    initialization_timeout: Option<Duration>,
    sum_order: Option<SumOrder>,
}

impl Options {
    /// The MPI library to load; by default the one that `SHARDAX_MPI_LIBRARY` names, the launcher's, or one that the
    /// system knows.
    pub fn mpi_library(mut self, path: impl Into<PathBuf>) -> Self {
        self.mpi_library = Some(path.into());
        self
    }

    /// How long the others are waited for (300 s).
    pub fn initialization_timeout(mut self, timeout: Duration) -> Self {
        self.initialization_timeout = Some(timeout);
        self
    }

    /// In which order sums over the devices of several processes are made: by default [`SumOrder::Exact`], or what the
    /// environment variable `SHARDAX_SUM_ORDER` names, `exact` or `fast`. It must be the same on all processes.
    pub fn sum_order(mut self, order: SumOrder) -> Self {
        self.sum_order = Some(order);
        self
    }

    /// As [`initialize`](initialize()).
    #[track_caller]
    pub fn initialize(self) -> Result<bool> {
        self.join().at_caller()
    }

    fn join(self) -> Result<bool> {
        static JOINING: Mutex<()> = Mutex::new(());
        let _one = JOINING.lock().unwrap_or_else(PoisonError::into_inner);
        if processes().is_some() {
            return Err(err!(Runtime, "distributed.initialize should only be called once.")
                .help("call it once, first in `main`; `distributed::is_initialized` says whether it was"));
        }
        let Some(launcher) = mpi::Launcher::detect().filter(|launcher| launcher.size > 1) else { return Ok(false) };
        if let Some(count) = config::devices_in_use() {
            return Err(err!(
                Runtime,
                "distributed.initialize() must be called before any computations are executed: {count} devices are in use already"
            )
            .help("call it first in `main`, before anything makes an array or asks for devices"));
        }
        settings::check()?;
        let platform = config::platform()?;
        if !matches!(platform.as_str(), "cpu" | "cuda" | "gpu") {
            return Err(err!(
                NotImplemented,
                "several processes work on the platforms cpu and cuda so far, not on {platform}"
            )
            .help("set SHARDAX_PLATFORM=cpu, or run one process"));
        }
        let sum_order = self.sum_order.or_else(|| settings::SUM_ORDER.get()).unwrap_or_default();
        let mut search = mpi::Search::from_environment(Some(&launcher));
        if self.mpi_library.is_some() {
            search.named = self.mpi_library;
        }
        let world = mpi::World::join(Some(&launcher), &search)?;
        if let Some(text) = world.binding_warning() {
            warning::warn(&text, "start it with `mpirun --bind-to none` (Open MPI, MPICH) or `srun --cpu-bind=none`");
        }
        let deadline = mpi::deadline(self.initialization_timeout.unwrap_or(Duration::from_secs(300)));
        let joined = Processes::meet(world, &platform, sum_order, deadline)?;
        if joined.exchanges() {
            config::freeze(joined.owners.iter().filter(|&&owner| owner == joined.rank()).count());
        }
        let _ = JOINED.set(joined);
        pjrt::at_exit(leave_at_end);
        Ok(true)
    }
}

/// Whether this process has joined others.
pub fn is_initialized() -> bool {
    processes().is_some()
}

/// Leaves the others, once all processes do so. At the end of a process that ends well it happens by itself; after this
/// nothing can be computed with others.
///
/// Fails when the others do not come within the [collective timeout](set_collective_timeout).
#[track_caller]
pub fn shutdown() -> Result<()> {
    let leave = |p: &Processes| {
        if p.left.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        p.exchange.close(LEFT);
        p.world.leave(timeout()).map_err(Error::from)
    };
    processes().map_or(Ok(()), leave).at_caller()
}

/// Waits until all processes have come to the barrier of this name, as often as this one. Alone it returns at once.
///
/// To wait for what devices compute as well, use [`multihost::sync_global_devices`](crate::multihost::sync_global_devices).
///
/// Fails with [`ErrorKind::DeadlineExceeded`](crate::ErrorKind) naming the processes that have not come in time.
#[track_caller]
pub fn wait_at_barrier(name: &str, timeout: Duration) -> Result<()> {
    let wait = |p: &Processes| {
        p.check()?;
        p.world.store().barrier(&format!("user/{name}"), timeout).map_err(|mut error| {
            error.message = error.message.replacen("\"user/", "\"", 1);
            Error::from(error).context("DEADLINE_EXCEEDED: Barrier timed out").help(
                "every process must come to it, under the same name and equally often; look at what the missing ones print",
            )
        })
    };
    processes().map_or(Ok(()), wait).at_caller()
}

/// Sets how long processes wait for each other in a collective, a compilation or at the end, before it is an error (the
/// environment variable `SHARDAX_COLLECTIVE_TIMEOUT`, in seconds); 600 s by default. It may be set at any time.
///
/// Compiling takes part in it: one process of each host compiles a program, and the others wait for it.
pub fn set_collective_timeout(timeout: Duration) {
    set_limit(0, timeout);
}

/// Sets after how long a wait in a collective there is a warning that names the processes that are late (the environment
/// variable `SHARDAX_COLLECTIVE_PATIENCE`, in seconds); 30 s by default. It may be set at any time.
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

/// How long others are waited for.
pub(crate) fn timeout() -> Duration {
    limit(0, &settings::COLLECTIVE_TIMEOUT, TIMEOUT)
}

fn patience() -> Duration {
    limit(1, &settings::COLLECTIVE_PATIENCE, PATIENCE)
}

impl Processes {
    /// Tells the others what this process is and has, and hears the same of them.
    fn meet(world: mpi::World, platform: &str, sum_order: SumOrder, deadline: Instant) -> Result<Processes> {
        let (plugin, count) = match platform {
            "cpu" => (pjrt::Plugin::cpu(), config::num_cpu_devices()?),
            other => (pjrt::Plugin::find(other), 0),
        };
        let plugin = plugin.map_err(|e| err!(Plugin, "{e}"))?;
        let bytes = std::fs::metadata(plugin.path()).map_or(0, |file| file.len());
        let version = env!("CARGO_PKG_VERSION");
        let same = format!(
            "shardax {version} with a plugin of {bytes} bytes, {:?}, and sums in the order {sum_order:?}",
            plugin.api_version()
        );
        let all = world.data().all_gather_any(format!("{count}\n{same}").as_bytes(), deadline)?;
        let mut owners = Vec::new();
        for (process, facts) in all.iter().enumerate() {
            let facts = String::from_utf8_lossy(facts);
            let (theirs, what) = facts.split_once('\n').unwrap_or(("0", ""));
            if what != same {
                return Err(err!(Runtime, "process {process} runs {what}, and process {} {same}", world.rank())
                    .help("start the same program with the same plugin and settings on all hosts"));
            }
            owners.extend(std::iter::repeat_n(process, theirs.parse().unwrap_or(0)));
        }
        const MOST: usize = pjrt::Client::MAX_CPU_DEVICES;
        if owners.len() > MOST {
            return Err(err!(
                Value,
                "{} devices of {} processes are more than the CPU plugin can drive together, {MOST}",
                owners.len(),
                world.size()
            )
            .help(
                "use fewer processes, or fewer devices on each: a process needs no more than one for all of its cores",
            ));
        }
        let exchange = Exchange::new(Some(world.clone()), owners.clone(), timeout(), sum_order);
        exchange.set_limits(timeout(), patience());
        exchange.set_listener(|text| {
            warning::warn(text, "every process must run the same computations; look at what the late ones do");
        });
        Ok(Processes { world, exchange, owners, registered: AtomicBool::new(false), left: AtomicBool::new(false) })
    }

    pub fn rank(&self) -> usize {
        self.world.rank()
    }

    /// Fails when nothing can be exchanged any more.
    fn check(&self) -> Result<()> {
        match self.exchange.failure() {
            None if !self.left.load(Ordering::SeqCst) => Ok(()),
            failure => Err(err!(Runtime, "{}", failure.unwrap_or(LEFT))),
        }
    }

    /// Whether the devices of several processes meet in functions of the host. Otherwise the plugin brings them together.
    pub fn exchanges(&self) -> bool {
        !self.owners.is_empty()
    }

    /// A client of a plugin that knows several processes itself, each of which starts one: they find each other in the
    /// store. Unless devices were named, a process that shares its host drives the one of its number there, as in JAX.
    pub fn client_with_store(
        &self,
        plugin: &pjrt::Plugin,
        mut options: Vec<(&'static str, pjrt::Value)>,
    ) -> Result<pjrt::Client> {
        options.push(("node_id", pjrt::Value::Int(self.rank() as i64)));
        options.push(("num_nodes", pjrt::Value::Int(self.world.size() as i64)));
        let place = self.world.launcher().and_then(|launcher| launcher.local_rank);
        if let (Some(place), true) = (place, options.iter().all(|(name, _)| *name != "visible_devices")) {
            options.push(("visible_devices", pjrt::Value::Ints(vec![place as i64])));
        }
        Ok(pjrt::Client::with_store(plugin, &options, Arc::new(store::Store(self.world.clone())))?)
    }

    /// A client that has the devices of all processes, and uses this one's.
    pub fn client(&self, plugin: &pjrt::Plugin) -> Result<pjrt::Client> {
        let count = [("cpu_device_count", pjrt::Value::Int(self.owners.len() as i64))];
        let client = pjrt::Client::with_owners(plugin, &count, self.rank(), |id| self.owners[id])?;
        if !self.registered.swap(true, Ordering::SeqCst) {
            self.exchange.register(plugin)?;
        }
        Ok(client)
    }

    /// Whether results are the same bits however many processes there are.
    pub fn sums_exactly(&self) -> bool {
        self.exchange.sum_order() == SumOrder::Exact
    }

    /// The processes of these devices, ascending.
    pub fn of(&self, devices: &[super::Device]) -> Vec<usize> {
        let mut ranks: Vec<usize> = devices.iter().map(super::Device::process_index).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Meets these processes, each of which says what it is about to do, as `what`, and with which values; both must be
    /// the same everywhere. `differ` is the error of values that differ, from the process and the number of the value.
    pub fn agree(
        &self,
        ranks: &[usize],
        what: &str,
        values: &[&[u8]],
        differ: &dyn Fn(usize, usize) -> Error,
    ) -> Result<()> {
        self.check().map_err(|e| e.context(format!("{what} needs the other processes")))?;
        if pjrt::ffi::in_function() {
            return Err(err!(
                Runtime,
                "{what} needs the other processes, and is inside a function of the host that a program calls"
            )
            .help("move it out of the function: the program goes on when the function returns"));
        }
        let (digest, per_digest) = digests(values);
        let what = &shortened(what);
        let own = [digest.as_slice(), what.as_bytes()].concat();
        let name = format!("shardax.agree/{ranks:?}");
        let step =
            self.exchange.comes_to(&Arc::new(Shared { program: 0, processes: ranks.to_vec(), what: what.clone() }));
        let all = self.exchange.exchange_at(Some(&step), (&name, ranks), &own, timeout()).map_err(|error| {
            match error.kind {
                mpi::Kind::FailedPrecondition => {
                    self.exchange.close(&error.message);
                    err!(Runtime, "{}", error.message).help(SAME_ORDER)
                }
                mpi::Kind::DeadlineExceeded => {
                    let missing = error.message.rsplit_once("missing: ").map_or("others", |(_, who)| who);
                    let error = err!(DeadlineExceeded, "{missing} have not come to {what} within {:?}", timeout());
                    // They may come now, when this process has gone on.
                    self.exchange.close(error.message());
                    error.help(
                        "all processes must run the same computations in the same order; look at what the late do",
                    )
                }
                _ => error.into(),
            }
        })?;
        for (&rank, theirs) in ranks.iter().zip(&all) {
            let (value, their_what) = theirs.split_at_checked(digest.len()).unwrap_or((&[], theirs));
            if their_what != what.as_bytes() {
                return Err(err!(
                    Runtime,
                    "process {rank} is at {} where this one is at {what}: all processes must run the same computations in the same order",
                    String::from_utf8_lossy(their_what)
                )
                .help(SAME_ORDER));
            }
            let same = |(own, theirs): (&[u8], &[u8])| own == theirs;
            if let Some(at) = digest.chunks(DIGEST).zip(value.chunks(DIGEST)).position(|pair| !same(pair)) {
                return Err(differ(rank, at * per_digest));
            }
        }
        Ok(())
    }

    /// Gives the value that the first of some processes makes to the others, errors included.
    pub fn share(
        &self,
        (first, ranks): (usize, &[usize]),
        make: impl FnOnce() -> std::result::Result<Vec<u8>, String>,
    ) -> Result<std::result::Result<Vec<u8>, String>> {
        let comm = self.world.data();
        if self.rank() != first {
            let head = comm.receive(first, 9)?.wait(mpi::deadline(timeout())).map_err(|error| {
                Error::from(error).context(format!("process {first} has not compiled what this one waits for"))
            })?;
            let length = u64::from_ne_bytes(head[1..].try_into().unwrap_or_default()) as usize;
            let bytes = comm.receive(first, length)?.wait(mpi::deadline(timeout()))?;
            return Ok(match head[0] {
                0 => Ok(bytes),
                _ => Err(String::from_utf8_lossy(&bytes).into_owned()),
            });
        }
        let made = make();
        let (kind, bytes) = match &made {
            Ok(bytes) => (0, bytes.as_slice()),
            Err(message) => (1, message.as_bytes()),
        };
        let mut head = vec![kind];
        head.extend((bytes.len() as u64).to_ne_bytes());
        let mut sent = Vec::new();
        for &rank in ranks.iter().filter(|&&rank| rank != first) {
            sent.push(comm.send(rank, head.clone())?);
            sent.push(comm.send(rank, bytes.to_vec())?);
        }
        let deadline = mpi::deadline(timeout());
        for request in sent {
            request.wait(deadline)?;
        }
        Ok(made)
    }

    /// Those of these processes that are on this one's host and have as many devices.
    pub fn like(&self, ranks: &[usize]) -> Vec<usize> {
        let own = self.rank();
        let hosts = self.world.hosts();
        let count = |rank: usize| self.owners.iter().filter(|&&owner| owner == rank).count();
        ranks.iter().copied().filter(|&rank| hosts[rank] == hosts[own] && count(rank) == count(own)).collect()
    }

    /// Launches a program in which these processes meet.
    pub fn launch<T>(&self, shared: &Arc<Shared>, launch: impl FnOnce() -> Result<T>) -> Result<T> {
        self.exchange.launches(shared, launch)
    }

    /// Says what a program is called whose calls of the exchange have this number.
    pub fn name_program(&self, number: u64, name: &str) {
        self.exchange.name_program(number, name);
    }

    fn leave(&self) {
        if self.left.swap(true, Ordering::SeqCst) {
            return;
        }
        let rank = self.rank();
        if let Some(failure) = self.exchange.failure() {
            eprintln!("shardax: process {rank} cannot end in good order, since the processes went apart: {failure}");
            return;
        }
        // For as long as the others work alone; those that wait for this one have a limit of their own.
        let mut said = false;
        while let Err(error) = self.world.leave(patience()) {
            if error.kind != mpi::Kind::DeadlineExceeded {
                eprintln!("shardax: process {rank} cannot end in good order: {error}");
                return;
            }
            if !std::mem::replace(&mut said, true) {
                eprintln!("shardax: process {rank} has finished and waits for the others");
            }
        }
    }
}

/// Bytes of a value's digest that are compared.
const DIGEST: usize = 16;
/// Digests that are sent, at most; one stands for several values where there are more.
const MANY_DIGESTS: usize = 32;

/// The digests of values, and for how many values each stands.
fn digests(values: &[&[u8]]) -> (Vec<u8>, usize) {
    let each = values.len().div_ceil(MANY_DIGESTS).max(1);
    let digest = |values: &[&[u8]]| {
        let mut all = Sha256::new();
        for value in values {
            all.update((value.len() as u64).to_le_bytes());
            all.update(value);
        }
        all.finalize()[..DIGEST].to_vec()
    };
    (values.chunks(each).flat_map(digest).collect(), each)
}

/// Short enough to be sent at once, without this process having a hand in it until it has arrived.
fn shortened(what: &str) -> String {
    const LONGEST: usize = 800;
    match (0..=LONGEST).rev().find(|&at| what.is_char_boundary(at)).filter(|_| what.len() > LONGEST) {
        Some(end) => format!("{} …", &what[..end]),
        None => what.to_owned(),
    }
}

/// Without leaving, a launcher takes the end of a process for a failure and ends the others: which is right where this
/// one failed.
fn leave_at_end(status: i32) {
    if let (0, Some(p)) = (status, processes()) {
        p.leave();
    }
}

/// Says, once, that the process was started with others and has not joined them.
pub(crate) fn warn_if_alone() {
    if let Some(launcher) = mpi::Launcher::detect().filter(|launcher| launcher.size > 1) {
        warning::warn(
            &format!("this is {launcher}, and it runs alone"),
            "call `shardax::distributed::initialize()` first in `main`, to run with the others",
        );
    }
}
