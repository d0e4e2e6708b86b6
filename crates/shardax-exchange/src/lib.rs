//! The functions of the host in which the devices of several processes meet.
//!
//! [`shardax_pjrt::Partitioned::localize`] turns a program's collectives into calls of these functions. In each call the
//! devices of this process that take part meet in memory, and the last to come exchanges with the other processes
//! over MPI, for all of them.
//!
//! **Exact order.** Values are combined one contribution after the other in the order of the group, as the plugin's own
//! collectives do within a process, with its roundings: `bf16` is summed in `f32`, `f16` is rounded after every step. So
//! results do not depend on how many processes the devices are spread over. [`SumOrder::Fast`] is the other way.
//!
//! **Failure.** Every wait ends at a deadline. The first failure is the result of the launch, and of every later call: the
//! processes no longer agree on where they are.
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
use crate::call::{Call, Written};
use crate::channel::{At, Channel};
use crate::group::Places;
use crate::order::Order;
pub use crate::order::{Shared, Step};

/// How long others may be late before somebody hears of it, unless it is set.
const PATIENCE: Duration = Duration::from_secs(30);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(time: Duration) -> AtomicU64 {
    AtomicU64::new(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1))
}

/// What went wrong in a call, for people.
type Outcome<T> = std::result::Result<T, String>;

/// Calls that a program may make after a failure: a loop that waits for what cannot come would make more.
const CALLS_AFTER_FAILURE: u32 = 10_000;

/// In which order a sum over the devices of several processes is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SumOrder {
    /// That of the devices, however they are spread over processes: the same bits everywhere.
    #[default]
    Exact,
    /// Each process first adds what its own devices bring, and sends the sum: less data where a process has many
    /// devices, and last bits that depend on how many.
    Fast,
}

/// The meeting place of this process's devices, and their way to the others.
pub struct Exchange {
    world: Option<World>,
    rank: usize,
    /// The process of each device, by id.
    owners: Vec<usize>,
    sum_order: SumOrder,
    /// In milliseconds: what nobody may take longer than, and what is worth a word.
    limits: [AtomicU64; 2],
    /// Who is told of others that are late.
    listener: OnceLock<Box<dyn Fn(&str) + Send + Sync>>,
    /// By launch, and this process's devices of the group.
    meetings: Rendezvous<(i64, Vec<usize>)>,
    buffers: Buffers,
    channels: Mutex<HashMap<Vec<usize>, Arc<Channel>>>,
    /// By program, call and device, with what the call says of its groups.
    groups: Mutex<HashMap<(u64, i64, usize), (Arc<Written>, Arc<Places>)>>,
    /// The computations shared with other processes.
    order: Order,
    /// What programs are called, by their numbers.
    names: Mutex<HashMap<u64, String>>,
    failure: OnceLock<String>,
    calls_after_failure: AtomicU32,
}

impl Exchange {
    /// The exchange of devices whose process is known by their ids. Without a world there is this process alone. The order
    /// of sums must be that of all processes.
    pub fn new(world: Option<World>, owners: Vec<usize>, timeout: Duration, sum_order: SumOrder) -> Arc<Exchange> {
        let rank = world.as_ref().map_or(0, World::rank);
        Arc::new(Exchange {
            world,
            rank,
            owners,
            sum_order,
            limits: [millis(timeout), millis(PATIENCE)],
            listener: OnceLock::new(),
            meetings: Rendezvous::default(),
            buffers: Buffers::default(),
            channels: Mutex::default(),
            groups: Mutex::default(),
            order: Order::default(),
            names: Mutex::default(),
            failure: OnceLock::new(),
            calls_after_failure: AtomicU32::new(0),
        })
    }

    /// Sets how long the others are waited for, and after how long a wait somebody is told.
    pub fn set_limits(&self, timeout: Duration, patience: Duration) {
        for (limit, time) in self.limits.iter().zip([timeout, patience]) {
            limit.store(millis(time).into_inner(), Ordering::Relaxed);
        }
    }

    /// Has somebody told of processes that are late. The first one given is.
    pub fn set_listener(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// In which order sums are made.
    pub fn sum_order(&self) -> SumOrder {
        self.sum_order
    }

    /// Says what a program is called that was [localized](shardax_pjrt::Partitioned::localize_as) under a number.
    pub fn name_program(&self, number: u64, name: &str) {
        lock(&self.names).insert(number >> 1, name.to_owned());
    }

    /// What went wrong first, after which nothing is exchanged any more.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Lets nothing be exchanged any more; `why` is what later calls fail with, unless something failed before.
    pub fn close(&self, why: &str) {
        let _ = self.failure.set(why.to_owned());
    }

    fn name_of(&self, program: u64) -> Option<String> {
        lock(&self.names).get(&program).cloned()
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.limits[0].load(Ordering::Relaxed))
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(self.limits[1].load(Ordering::Relaxed))
    }

    fn say(&self, text: &str) {
        match self.listener.get() {
            Some(listener) => listener(text),
            None => eprintln!("shardax: {text}"),
        }
    }

    /// Makes the functions known to a plugin. Once in a process.
    ///
    /// # Errors
    /// They are known already, or the plugin cannot call the host.
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

    fn enter(
        &self,
        name: &str,
        frame: &mut CallFrame<'_>,
        function: fn(&Exchange, Call<'_>, &mut CallFrame<'_>) -> Outcome<()>,
    ) -> Outcome<()> {
        if let Some(failure) = self.failure.get() {
            if self.calls_after_failure.fetch_add(1, Ordering::Relaxed) > CALLS_AFTER_FAILURE {
                eprintln!("shardax: a program goes on calling the other processes after this: {failure}");
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

    fn owner(&self, device: usize) -> Outcome<usize> {
        self.owners.get(device).copied().ok_or_else(|| format!("there is no device {device}"))
    }

    /// The channel of a group of devices, whose processes are given.
    fn channel(&self, devices: &[usize], processes: &[usize], at: At) -> Outcome<Arc<Channel>> {
        let world = self.world.as_ref().ok_or("the group has devices of other processes, and this one is alone")?;
        if let Some(known) = lock(&self.channels).get(devices) {
            return Ok(known.clone());
        }
        let made = Arc::new(Channel::make((self, world), devices, processes, at)?);
        lock(&self.channels).insert(devices.to_vec(), made.clone());
        Ok(made)
    }
}

/// The place of this device in the program's mesh.
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

/// Gives its first argument back, once the second is there.
fn after(frame: &mut CallFrame<'_>) -> Outcome<()> {
    let (args, rets) = frame.split();
    rets[0].data().copy_from_slice(args[0].data);
    Ok(())
}
