//! The functions of the host in which the devices of several processes meet.
//!
//! [`shardax_pjrt::Partitioned::localize`] turns a program's collectives into calls of these functions. In each call the
//! devices of this process that take part meet in memory, and the last to come exchanges with the other processes
//! over MPI, for all of them.
//!
//! **Exact order.** Values are combined one contribution after the other in the order of the group, as the plugin's own
//! collectives do within a process, with its roundings: `bf16` is summed in `f32`, `f16` is rounded after every step. So
//! results do not depend on how many processes the devices are spread over.
//!
//! **Failure.** Every wait ends at a deadline. The first failure is the result of the launch, and of every later call: the
//! processes no longer agree on where they are.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod call;
mod group;
mod meet;
mod moves;
mod reduce;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use shardax_mpi::{Communicator, World};
use shardax_pjrt::ffi::{self, CallFrame};
use shardax_pjrt::{Plugin, Result};

use crate::call::Call;
use crate::meet::Meetings;

/// What went wrong in a call, for people.
type Outcome<T> = std::result::Result<T, String>;

/// Calls that a program may make after a failure: a loop that waits for what cannot come would make more.
const CALLS_AFTER_FAILURE: u32 = 10_000;

/// The meeting place of this process's devices, and their way to the others.
pub struct Exchange {
    world: Option<World>,
    rank: usize,
    /// The process of each device, by id.
    owners: Vec<usize>,
    timeout: Duration,
    meetings: Meetings,
    /// One for each group of devices: two groups of the same processes may exchange at the same time.
    communicators: Mutex<HashMap<Vec<usize>, Communicator>>,
    failure: OnceLock<String>,
    calls_after_failure: AtomicU32,
}

impl Exchange {
    /// The exchange of devices whose process is known by their ids. Without a world there is this process alone.
    pub fn new(world: Option<World>, owners: Vec<usize>, timeout: Duration) -> Arc<Exchange> {
        let rank = world.as_ref().map_or(0, World::rank);
        Arc::new(Exchange {
            world,
            rank,
            owners,
            timeout,
            meetings: Meetings::default(),
            communicators: Mutex::default(),
            failure: OnceLock::new(),
            calls_after_failure: AtomicU32::new(0),
        })
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

    /// The communicator of a group of devices, whose processes are given.
    fn communicator(&self, devices: &[usize], processes: &[usize]) -> Outcome<Communicator> {
        let world = self.world.as_ref().ok_or("the group has devices of other processes, and this one is alone")?;
        let lock = || self.communicators.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(devices) {
            return Ok(known.clone());
        }
        // Making it has no deadline: so everybody says first that they have come.
        let name = format!("shardax.group/{devices:?}");
        if processes.len() == world.size() {
            world.store().barrier(&name, self.timeout).map_err(|error| error.message)?;
        }
        // Several groups may be made at once by the threads of one process.
        let tag = devices.iter().fold(17u32, |hash, &d| hash.wrapping_mul(31).wrapping_add(d as u32)) as u16;
        let made = world.data().group(processes, tag).map_err(|error| error.message)?;
        lock().insert(devices.to_vec(), made.clone());
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
