//! Host functions for collectives between the devices of several processes.
//!
//! [`shardax_pjrt::Partitioned::localize`] replaces a program's collectives by calls of these functions. In each call,
//! the participating devices of this process rendezvous in memory, and the last to arrive exchanges data with the other
//! processes over MPI for all of them.
//!
//! **Exact order.** Values are reduced one by one in the order of the group, and rounded like in the plugin's
//! collectives within a process: `bf16` is summed in `f32`, `f16` is rounded after every step. Therefore the results do
//! not depend on the number of processes. [`SumOrder::Fast`] does not guarantee this, but is faster.
//!
//! **Failure.** Every wait has a deadline. The first failure is the result of the launch and of all later calls,
//! because the processes no longer agree on their position. If a host function of the program fails in a process, the
//! process sends the error to all others, instead of values that were computed from the function's zeros.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod buffers;
mod call;
mod channel;
mod devices;
mod group;
mod moves;
mod order;
mod reduce;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use shardax_mpi::World;
use shardax_pjrt::ffi::rendezvous::Rendezvous;
use shardax_pjrt::ffi::{self, CallFrame};
use shardax_pjrt::{Plugin, Result};

use crate::buffers::Buffers;
use crate::call::{Call, EncodedGroups};
use crate::channel::{CallId, Channel};
use crate::group::Places;
use crate::order::Order;
pub use crate::order::{Shared, Step};

/// The default time after which missing processes are reported.
const WARN_AFTER: Duration = Duration::from_secs(10);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(time: Duration) -> AtomicU64 {
    AtomicU64::new(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1))
}

/// The result of a call, with a message for the user.
type Outcome<T> = std::result::Result<T, String>;

/// The number of calls that a program can make after a failure. Without this limit, a loop that waits for a value from
/// another process would never end, because the value never arrives.
const CALLS_AFTER_FAILURE: u32 = 10_000;

/// The order of a sum over the devices of several processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SumOrder {
    /// In the order of the devices, regardless of the processes: the bits of the result are always the same.
    #[default]
    Exact,
    /// Each process first adds the values of its devices, and sends the sum. This sends less data if processes have
    /// many devices, but the last bits depend on the number of devices per process.
    Fast,
}

/// The exchange of data between devices of this process and devices of other processes.
pub struct Exchange {
    world: Option<World>,
    rank: usize,
    /// The process of each device id.
    owners: Vec<usize>,
    sum_order: SumOrder,
    /// In milliseconds: the timeout, and the time after which missing processes are reported.
    limits: [AtomicU64; 2],
    /// Receives reports of missing processes.
    hook: OnceLock<Box<dyn Fn(&str) + Send + Sync>>,
    /// By launch, and the devices of this process in the group.
    rendezvous: Rendezvous<(i64, Vec<usize>)>,
    buffers: Buffers,
    channels: Mutex<HashMap<Vec<usize>, Arc<Channel>>>,
    /// By program, call and device, with the encoded groups of the call.
    groups: Mutex<HashMap<(u64, i64, usize), (Arc<EncodedGroups>, Arc<Places>)>>,
    /// The computations shared with other processes.
    order: Order,
    /// The names of programs, by number.
    names: Mutex<HashMap<u64, String>>,
    failure: OnceLock<String>,
    calls_after_failure: AtomicU32,
}

impl Exchange {
    /// Creates an exchange. `owners` has the process of each device, by id. If you pass no world, this process is the
    /// only one. You must pass the same order of sums in all processes, because each of them chooses its messages by it.
    pub fn new(world: Option<World>, owners: Vec<usize>, timeout: Duration, sum_order: SumOrder) -> Arc<Exchange> {
        let rank = world.as_ref().map_or(0, World::rank);
        Arc::new(Exchange {
            world,
            rank,
            owners,
            sum_order,
            limits: [millis(timeout), millis(WARN_AFTER)],
            hook: OnceLock::new(),
            rendezvous: Rendezvous::default(),
            buffers: Buffers::default(),
            channels: Mutex::default(),
            groups: Mutex::default(),
            order: Order::default(),
            names: Mutex::default(),
            failure: OnceLock::new(),
            calls_after_failure: AtomicU32::new(0),
        })
    }

    /// Sets the timeout, and the time after which missing processes are reported.
    pub fn set_limits(&self, timeout: Duration, warn_after: Duration) {
        for (limit, time) in self.limits.iter().zip([timeout, warn_after]) {
            limit.store(millis(time).into_inner(), Ordering::Relaxed);
        }
    }

    /// Sets the function that receives reports of missing processes. Only the first call has an effect. Without such a
    /// function, reports are written to standard error.
    pub fn set_warning_hook(&self, hook: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.hook.set(Box::new(hook));
    }

    /// The order of sums.
    pub fn sum_order(&self) -> SumOrder {
        self.sum_order
    }

    /// Sets the name of a program that was [localized](shardax_pjrt::Partitioned::localize_as) under a number, so that
    /// errors and warnings can name it.
    pub fn name_program(&self, number: u64, name: &str) {
        // Calls carry a number without its lowest bit, so that it fits into a signed attribute.
        lock(&self.names).insert(number >> 1, name.to_owned());
    }

    /// The first failure, after which no data is exchanged.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Stops all exchanges, so that threads which wait for other processes can end. Later calls fail with `why`, unless
    /// an earlier failure exists.
    pub fn close(&self, why: &str) {
        let _ = self.failure.set(why.to_owned());
    }

    fn name_of(&self, program: u64) -> Option<String> {
        lock(&self.names).get(&program).cloned()
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.limits[0].load(Ordering::Relaxed))
    }

    fn warn_after(&self) -> Duration {
        Duration::from_millis(self.limits[1].load(Ordering::Relaxed))
    }

    fn warn(&self, text: &str) {
        match self.hook.get() {
            Some(hook) => hook(text),
            None => eprintln!("shardax: {text}"),
        }
    }

    /// Registers the functions with a plugin. You can do this once in a process, because the plugin keeps the functions
    /// for its lifetime.
    ///
    /// # Errors
    /// Returns an error if the functions are already registered, or the plugin cannot call host functions.
    pub fn register(self: &Arc<Exchange>, plugin: &Plugin) -> Result<()> {
        type Function = fn(&Exchange, Call<'_>, &mut CallFrame<'_>) -> Outcome<()>;
        const FUNCTIONS: [(&str, Function); 5] = [
            ("shardax.all_reduce", Exchange::all_reduce),
            ("shardax.all_gather", Exchange::all_gather),
            ("shardax.reduce_scatter", Exchange::reduce_scatter),
            ("shardax.all_to_all", Exchange::all_to_all),
            ("shardax.permute", Exchange::permute),
        ];
        for (name, function) in FUNCTIONS {
            let exchange = self.clone();
            ffi::register(plugin, name, move |frame| exchange.enter(name, frame, function))?;
        }
        ffi::register(plugin, "shardax.partition_id", partition_id)?;
        ffi::register(plugin, "shardax.after", after)
    }

    /// Runs a collective for one device, unless the exchange has failed. Its error becomes the failure of the exchange.
    fn enter(
        &self,
        name: &str,
        frame: &mut CallFrame<'_>,
        function: fn(&Exchange, Call<'_>, &mut CallFrame<'_>) -> Outcome<()>,
    ) -> Outcome<()> {
        if let Some(failure) = self.failure.get() {
            // The plugin cannot cancel a launch. A program that loops on a result of this call can therefore only be
            // stopped by ending the process.
            if self.calls_after_failure.fetch_add(1, Ordering::Relaxed) > CALLS_AFTER_FAILURE {
                eprintln!("shardax: a program keeps communicating after a failure: {failure}");
                match &self.world {
                    Some(world) => world.abort(1),
                    None => std::process::abort(),
                }
            }
            return Err(failure.clone());
        }
        let call = Call::read(frame)?;
        let (number, device) = (call.number, call.device);
        function(self, call, frame).map_err(|message| {
            let message = format!("call {number} ({name}) of device {device} in process {}: {message}", self.rank);
            self.failure.get_or_init(|| message).clone()
        })
    }

    /// Stops the exchanges of all processes, because a host function has failed on this one. Returns the failure.
    pub fn report(&self, error: &str) -> String {
        let mut is_first_failure = false;
        let failure = self.failure.get_or_init(|| {
            is_first_failure = true;
            format!("a host function has failed on process {}: {error}", self.rank)
        });
        if let (Some(world), true) = (&self.world, is_first_failure) {
            let peers: Vec<usize> = (0..world.size()).filter(|process| *process != self.rank).collect();
            // Without the message the other processes would wait until the time limit.
            let _ = world.store().publish(&failed_key(self.rank), failure.as_bytes(), &peers);
        }
        failure.clone()
    }

    /// The failure that another process has reported.
    fn reported(&self) -> Option<String> {
        let world = self.world.as_ref()?;
        let failure = (0..world.size()).find_map(|process| world.store().try_get(&failed_key(process)).ok()?)?;
        Some(String::from_utf8_lossy(&failure).into_owned())
    }

    fn owner(&self, device: usize) -> Outcome<usize> {
        self.owners.get(device).copied().ok_or_else(|| format!("there is no device {device}"))
    }

    /// The channel of a group of devices and their processes.
    fn channel(&self, devices: &[usize], processes: &[usize], call: CallId) -> Outcome<Arc<Channel>> {
        let world =
            self.world.as_ref().ok_or("the group has devices of other processes, but this is the only process")?;
        if let Some(channel) = lock(&self.channels).get(devices) {
            return Ok(channel.clone());
        }
        // The lock is released here, because creating a channel waits for other processes.
        let channel = Arc::new(Channel::create((self, world), devices, processes, call)?);
        lock(&self.channels).insert(devices.to_vec(), channel.clone());
        Ok(channel)
    }
}

/// The key of the store under which a process reports its failure.
fn failed_key(process: usize) -> String {
    format!("shardax.failed/{process}")
}

/// Returns the index of this device in the program's mesh.
fn partition_id(frame: &mut CallFrame<'_>) -> Outcome<()> {
    let device = call::device(frame)?;
    let devices = frame.attr("devices").and_then(|devices| devices.as_i64s());
    let position = match devices {
        Some(devices) => devices.iter().position(|&d| d == device as i64).ok_or("the device is not in the mesh")?,
        None => device,
    };
    frame.rets()[0].data().copy_from_slice(&(position as u32).to_ne_bytes());
    Ok(())
}

/// Returns its first argument after the second is available, so that a program can order calls that share no data.
fn after(frame: &mut CallFrame<'_>) -> Outcome<()> {
    let (args, rets) = frame.split();
    rets[0].data().copy_from_slice(args[0].data);
    Ok(())
}
