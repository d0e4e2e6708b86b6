//! Execution of a compiled program: places the arguments, executes, wraps the results.

use std::any::Any;
use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shardax_exchange::Shared;
use shardax_pjrt as pjrt;
use smallvec::SmallVec;

use super::calling_thread::{CallingThread, flops};
use super::load::Request;
use super::memory_kinds::moved_to_memory;
use super::nan_check;
use super::placement::Place;
use super::program_cache::LastUse;
use super::reshard;
use crate::config;
use crate::core::array::{Array, Buffers, Concrete, transfer};
use crate::core::program::Aval;
use crate::error::{AtCaller, Result, err};
use crate::ops::callback::turn;
use crate::sharding::Sharding;
use crate::sharding::device::{NEW_CLIENT_HELP, latest};
use crate::sharding::distributed::processes;
use crate::timeline;
use crate::transfer_guard::{self, Direction};
use crate::warning;

/// A program compiled for its devices.
pub(crate) struct LoadedProgram {
    pub name: String,
    pub executable: pjrt::Executable,
    /// The partitioned program before its collectives were replaced, if some of its devices belong to other processes.
    pub partitioned: Option<pjrt::Partitioned>,
    /// The processes that run the program, if some of its devices belong to other processes.
    pub shared: Option<Arc<Shared>>,
    pub place: Place,
    pub in_shardings: Vec<Sharding>,
    pub out_avals: Vec<Aval>,
    pub out_shardings: Vec<Sharding>,
    pub donated: Vec<bool>,
    /// `true` if the program has ordered host calls. Its results are then followed by a token.
    pub ordered: bool,
    /// Objects that must outlive the execution, such as the host functions that the program calls.
    pub retained: Vec<Arc<dyn Any + Send + Sync>>,
    /// The results that are moved to the memory of their shardings after the execution, because the program itself
    /// cannot place them there.
    pub moved: Vec<usize>,
    /// `true` if the program is launched on each device separately, which is faster if there is little work.
    pub per_device: bool,
    /// `true` after the warning about a moved donated argument was issued.
    pub warned: AtomicBool,
    /// The compilation request; `None` if the user compiled the program with options.
    pub request: Option<Request>,
    /// The StableHLO text with locations, if it may serve other devices.
    pub text: Option<Arc<str>>,
    /// An estimate of the program's memory.
    pub bytes: usize,
    pub last_use: LastUse,
    pub calling_thread: CallingThread,
}

/// The minimum number of floating-point operations for a joint launch on all devices. The CPU plugin (xla-cpu-pjrt
/// 0.0.1) runs a smaller program for one device on the calling thread, while a joint launch uses other threads, which
/// costs more than the work.
const MIN_FLOPS_FOR_JOINT_LAUNCH: f64 = 1000.0;

impl LoadedProgram {
    /// Returns `true` if the executable should be launched device by device, because it has little work and no device
    /// waits for another. Programs with donation are excluded; otherwise a launch could consume an argument's shards on
    /// some devices and fail on others.
    pub fn runs_per_device(executable: &pjrt::Executable) -> bool {
        executable.device_ids().len() > 1
            && executable.has_collectives() == Some(false)
            // The duration of a host call is unknown.
            && !executable.calls_host()
            && !executable.parameters().iter().any(|p| p.donated)
            && flops(executable).is_some_and(|flops| flops < MIN_FLOPS_FOR_JOINT_LAUNCH)
    }

    /// Returns the optimized instructions for each device. For a program of several processes, returns the instructions
    /// before optimization.
    pub fn instructions(&self) -> Result<Vec<pjrt::HloInstruction>> {
        Ok(match &self.partitioned {
            Some(partitioned) => partitioned.instructions()?,
            None => self.executable.instructions()?,
        })
    }

    /// Runs on all devices. Returns immediately, with arrays whose values are still being computed.
    ///
    /// `committed` sets whether the results are committed.
    pub fn run<A, C>(&self, args: &[A], committed: bool) -> Result<C>
    where
        A: Borrow<Concrete>,
        C: FromIterator<Array>,
    {
        match config::debugs_values() {
            None => self.start(args, committed),
            Some(which) => Ok(nan_check::run(self, args, committed, which)?.into_iter().collect()),
        }
    }

    /// Like [`run`](Self::run), without checks of the values. The steps are: move the arguments to the program's shardings, launch,
    /// move results to their memory, then mark the donated arguments. A step that fails leaves the arguments usable unless the
    /// program was launched.
    pub fn start<A, C>(&self, args: &[A], committed: bool) -> Result<C>
    where
        A: Borrow<Concrete>,
        C: FromIterator<Array>,
    {
        let _span = timeline::span(|| self.name.clone().into());
        let moved = self.move_arguments(args)?;
        let mut placed: SmallVec<[&Buffers; 32]> = args.iter().map(|arg| &arg.borrow().buffers).collect();
        for (i, buffers) in &moved {
            placed[*i] = buffers;
        }
        let begun = timeline::now();
        let outs = self.launch_on_all(args, &placed)?;
        if let Some(moment) = begun {
            let devices = self.place.devices().iter().filter(|device| device.is_addressable());
            let shards = outs.first().into_iter().flatten().zip(devices);
            let devices = shards.filter_map(|(out, d)| Some((d.id(), d.to_string(), out.ready().ok()?)));
            timeline::launched(moment, &self.name, devices);
        }
        for (arg, _) in args.iter().zip(&self.donated).filter(|(_, donated)| **donated) {
            arg.borrow().mark_taken(&self.name);
        }
        for (i, _) in moved.iter().filter(|(i, _)| self.donated[*i]) {
            // The program donated a copy, so the rest of the original must be freed too.
            args[*i].borrow().free_own_memory()?;
        }
        let arrays =
            outs.into_iter().zip(&self.out_avals).zip(&self.out_shardings).map(|((buffers, aval), sharding)| {
                Array::from_concrete(Concrete::with_type(aval.clone(), sharding.clone(), committed, buffers))
            });
        Ok(arrays.collect())
    }

    /// Checks the arguments, and moves arguments whose sharding differs from the program's. Returns the position and
    /// the buffers of each argument that moved.
    fn move_arguments<A: Borrow<Concrete>>(&self, args: &[A]) -> Result<SmallVec<[(usize, Buffers); 2]>> {
        // All arguments are checked before any argument moves, because a move may free a donated array.
        let mut moved: SmallVec<[(usize, Buffers); 2]> = SmallVec::new();
        for (i, (arg, want)) in args.iter().zip(&self.in_shardings).enumerate() {
            let arg = arg.borrow();
            // XLA would accept an array whose memory was reused, so such an array is rejected here.
            if arg.is_taken() {
                arg.check_alive()?;
            }
            if arg.sharding != *want {
                reshard::check_argument(arg, want)?;
                transfer_guard::check(Direction::DeviceToDevice, false, &arg.aval)?;
                moved.push((i, SmallVec::new()));
            }
        }
        self.check_same_values(args, &moved)?;
        for (i, buffers) in &mut moved {
            *buffers = reshard::reshard(args[*i].borrow(), &self.in_shardings[*i])?;
        }
        for (i, buffers) in moved.iter().filter(|(i, _)| self.donated[*i]) {
            self.warn_of_move(args[*i].borrow(), &self.in_shardings[*i], buffers);
        }
        Ok(moved)
    }

    /// Launches the program on all of its devices, and moves its results to their memory.
    fn launch_on_all<A: Borrow<Concrete>>(&self, args: &[A], placed: &[&Buffers]) -> Result<SmallVec<[Buffers; 8]>> {
        let count = self.out_avals.len() + usize::from(self.ordered);
        let mut outs: SmallVec<[Buffers; 8]> = SmallVec::from_elem(Buffers::new(), count);
        let turn = self.ordered.then(turn);
        let mut launch = || self.launch(placed, &mut outs);
        let launched = match (&self.shared, processes()) {
            (Some(shared), Some(processes)) if self.executable.is_multi_process() => processes.launch(shared, launch),
            _ => launch(),
        };
        launched.or_else(|error| {
            // XLA's error for a deleted argument would not contain the name that the user knows.
            args.iter().try_for_each(|arg| arg.borrow().check_alive())?;
            Err(if self.executable.client().is_broken() { error.help(NEW_CLIENT_HELP) } else { error })
        })?;
        if !self.retained.is_empty() {
            self.keep_until_done(&outs)?;
        }
        for &i in &self.moved {
            outs[i] = moved_to_memory(&outs[i], self.out_shardings[i].kind())?;
        }
        for ((buffers, aval), sharding) in outs.iter_mut().zip(&self.out_avals).zip(&self.out_shardings) {
            if aval.shape.contains(&0) {
                transfer::split_empty(buffers, aval, sharding)?;
            }
        }
        if let Some(turn) = turn {
            let tokens = outs.pop().unwrap_or_default();
            turn.ends_with(tokens.iter().filter_map(|token| token.ready().ok()));
        }
        Ok(outs)
    }

    /// Returns an error on all processes if a value is not equal on all of them. This applies to values that each
    /// process passes separately, such as plain numbers and local arrays.
    fn check_same_values<A: Borrow<Concrete>>(&self, args: &[A], moved: &[(usize, Buffers)]) -> Result<()> {
        let (Some(shared), Some(processes)) = (&self.shared, processes()) else { return Ok(()) };
        let indices: SmallVec<[usize; 4]> = moved
            .iter()
            .filter(|(i, _)| reshard::spans(args[*i].borrow(), &self.in_shardings[*i]))
            .map(|(i, _)| *i)
            .collect();
        if indices.is_empty() {
            return Ok(());
        }
        let bytes: Vec<Vec<u8>> = indices
            .iter()
            .map(|&i| transfer::to_host(args[i].borrow()))
            .collect::<Result<_>>()
            // The other processes wait for this process, so they must learn that it failed.
            .inspect_err(|error| processes.report(error))?;
        let values: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        processes.agree(&shared.processes, &format!("the call of {}", shared.what), &values, &|rank, at| {
            let i = indices[at];
            let names = self.request.as_ref().map(|request| request.input_names.all()).unwrap_or_default();
            let name = names.get(i).cloned().unwrap_or_else(|| format!("input {i}"));
            err!(
                Value,
                "{name} of {}, of type {}, is not the same on each process: process {rank} has another value",
                self.name,
                args[i].borrow().aval
            )
            .help("pass the same value on each process, which `multihost::broadcast_one_to_all` returns; if each process has a different part, create a global array with `make_array_from_process_local_data`")
        })
    }

    /// Keeps the host functions alive until the execution ends, even if the program is dropped. A program without
    /// results does not report when it ends, so its functions are never freed.
    fn keep_until_done(&self, outs: &[Buffers]) -> Result<()> {
        if outs.is_empty() {
            std::mem::forget(self.retained.clone());
        }
        for buffer in outs.first().into_iter().flatten() {
            let retained = self.retained.clone();
            buffer.ready()?.on_ready(move |_| drop(retained));
        }
        Ok(())
    }

    /// Warns, once for each program, that a donated argument had to be copied to the program's devices. The copy of a scalar,
    /// such as the count of steps in the state of an optimizer, costs nothing.
    fn warn_of_move(&self, arg: &Concrete, want: &Sharding, moved: &Buffers) {
        let copied = moved.iter().any(|b| !arg.buffers.iter().any(|a| Arc::ptr_eq(a, b)));
        if !copied || arg.aval.shape.is_empty() || self.warned.swap(true, Ordering::Relaxed) {
            return;
        }
        let kind = if self.name.starts_with("pmap_") { "pmap" } else { "jit" };
        warning::warn(
            &format!(
                "Donated {kind} argument required resharding. This causes a brief 2x memory spike before the original is freed. An argument of {}, of type {}, was at {}, and is taken at {want}.",
                self.name, arg.aval, arg.sharding
            ),
            &format!("for optimal donation, place it before {kind} is called: `device_put(x, sharding)`"),
        );
    }

    /// Starts the program on all devices and appends each device's results to `outs`.
    fn launch(&self, placed: &[&Buffers], outs: &mut [Buffers]) -> Result<()> {
        let devices = self.executable.devices();
        if devices.len() > 1 {
            // Otherwise the buffers of each result would move three times while the results of eight devices are added.
            outs.iter_mut().for_each(|buffers| buffers.reserve_exact(devices.len()));
        }
        let mut append = |i: usize, result| outs[i].push(Arc::new(result));
        if self.per_device {
            for (d, device) in devices.iter().enumerate() {
                let args: SmallVec<[&pjrt::Buffer; 32]> = placed.iter().map(|buffers| &*buffers[d]).collect();
                self.executable.execute_on_with(&args, device, &mut append)?;
            }
            return Ok(());
        }
        if devices.len() == 1 {
            let args: SmallVec<[&pjrt::Buffer; 32]> = placed.iter().map(|buffers| &*buffers[0]).collect();
            return self.execute_on_one_device(&args, append);
        }
        let mut args: SmallVec<[&pjrt::Buffer; 32]> = SmallVec::with_capacity(devices.len() * placed.len());
        for d in 0..devices.len() {
            args.extend(placed.iter().map(|buffers| &*buffers[d]));
        }
        Ok(self.executable.execute_with(&args, |_, i, result| append(i, result))?)
    }
}

/// Waits until all programs that call host functions have ended. This includes callbacks and debug prints, ordered or
/// not, and programs without results.
///
/// ```
/// # use shardax::prelude::*;
/// let seen = std::sync::Arc::new(std::sync::atomic::AtomicI32::new(0));
/// let count = seen.clone();
/// let tell = io_callback(
///     move |args, _| {
///         count.store(args[0].values::<i32>()?.sum(), std::sync::atomic::Ordering::Relaxed);
///         Ok(())
///     },
///     (),
/// );
/// let _ = jit(move |x: Array| tell.call(x)).call(array([1, 2, 3]))?;
/// shardax::effects_barrier()?;
/// assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), 6);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns the first error of a host function since the last call of `effects_barrier`. Inside of a host function it
/// always returns an error, because the program would wait for itself.
#[track_caller]
pub fn effects_barrier() -> Result<()> {
    match latest() {
        Some(client) => client.pjrt.wait_for_host_calls().map_err(Into::into).at_caller(),
        // No program has been run.
        None => Ok(()),
    }
}
