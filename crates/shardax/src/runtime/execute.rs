//! Running a compiled program: place the arguments, execute, wrap the results.

use std::any::Any;
use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shardax_exchange::Shared;
use shardax_pjrt as pjrt;
use smallvec::SmallVec;

use super::load::Request;
use super::memory_kinds::moved_to_memory;
use super::nan_check;
use super::placement::Place;
use super::program_cache::LastUse;
use super::reshard;
use crate::config;
use crate::core::array::{Array, Buffers, Concrete, transfer};
use crate::core::program::Aval;
use crate::error::{Result, err};
use crate::ops::callback::turn;
use crate::profiler;
use crate::sharding::Sharding;
use crate::sharding::device::GO_ON;
use crate::sharding::distributed::processes;
use crate::warning;

/// A program compiled for its devices.
pub(crate) struct LoadedProgram {
    pub name: String,
    pub executable: pjrt::Executable,
    /// The program of one device before its collectives were made local, where it has devices of other processes.
    pub partitioned: Option<pjrt::Partitioned>,
    /// The processes that run it together, where it has devices of others.
    pub shared: Option<Arc<Shared>>,
    pub place: Place,
    pub in_shardings: Vec<Sharding>,
    pub out_avals: Vec<Aval>,
    pub out_shardings: Vec<Sharding>,
    pub donated: Vec<bool>,
    /// Whether it has calls of the host that keep their order: after its results comes a token.
    pub ordered: bool,
    /// What its primitives need while it runs: functions of the host that it calls.
    pub retained: Vec<Arc<dyn Any + Send + Sync>>,
    /// The results that are moved to the memory of their shardings after it ran, which it could not.
    pub moved: Vec<usize>,
    /// Whether each device is told to run it by itself, which is quicker for little work.
    pub apart: bool,
    /// Whether it was said that a donated argument had to be moved.
    pub warned: AtomicBool,
    /// What it was compiled for; none where it was compiled with options of the user's.
    pub request: Option<Request>,
    /// About what it takes in memory.
    pub bytes: usize,
    pub last_use: LastUse,
}

/// Under so many floating-point operations the CPU plugin runs a program on the calling thread, when it is for one
/// device; one launched on several devices goes through other threads, which costs more than the work.
const LITTLE_WORK: f64 = 1000.0;

impl LoadedProgram {
    /// Whether the executable is best run device by device: it has little to do, and no device waits for another.
    /// One that donates is not, so that a launch never takes some devices' part of an argument and fails on others.
    pub fn runs_apart(executable: &pjrt::Executable) -> bool {
        let work = || executable.cost_analysis().ok()?.into_iter().find(|(name, _)| name == "flops").map(|(_, v)| v);
        executable.device_ids().len() > 1
            && executable.has_collectives() == Some(false)
            // What a call costs is not known.
            && !executable.calls_host()
            && !executable.parameters().iter().any(|p| p.donated)
            && matches!(work(), Some(pjrt::Value::Float(flops)) if f64::from(flops) < LITTLE_WORK)
    }

    /// The instructions that each device runs, optimized; of a program for several processes not yet.
    pub fn instructions(&self) -> Result<Vec<pjrt::HloInstruction>> {
        Ok(match &self.partitioned {
            Some(partitioned) => partitioned.instructions()?,
            None => self.executable.instructions()?,
        })
    }

    /// Runs on all devices; returns at once, with arrays whose values are still being computed.
    ///
    /// `committed` says whether the results stay where they are when they meet arrays on other devices.
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

    /// The same, whatever the values are.
    pub fn start<A, C>(&self, args: &[A], committed: bool) -> Result<C>
    where
        A: Borrow<Concrete>,
        C: FromIterator<Array>,
    {
        let _span = profiler::span(|| self.name.clone().into());
        let mut moved: SmallVec<[(usize, Buffers); 2]> = SmallVec::new();
        for (i, (arg, want)) in args.iter().zip(&self.in_shardings).enumerate() {
            let arg = arg.borrow();
            // An array whose memory went on into another is refused here, not by XLA.
            if arg.is_taken() {
                arg.check_alive()?;
            }
            if arg.sharding != *want {
                reshard::check_argument(arg, want)?;
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
        let mut placed: SmallVec<[&Buffers; 32]> = args.iter().map(|arg| &arg.borrow().buffers).collect();
        for (i, buffers) in &moved {
            placed[*i] = buffers;
        }
        let begun = profiler::now();
        let count = self.out_avals.len() + usize::from(self.ordered);
        let mut outs: SmallVec<[Buffers; 8]> = SmallVec::from_elem(Buffers::new(), count);
        let turn = self.ordered.then(turn);
        let mut launch = || self.launch(&placed, &mut outs);
        let launched = match (&self.shared, processes()) {
            (Some(shared), Some(processes)) if self.executable.crosses() => processes.launch(shared, launch),
            _ => launch(),
        };
        launched.or_else(|error| {
            // XLA's word for an argument that is gone is not the user's.
            args.iter().try_for_each(|arg| arg.borrow().check_alive())?;
            Err(match self.executable.client().is_broken() {
                true => error.help(GO_ON),
                false => error,
            })
        })?;
        if !self.retained.is_empty() {
            self.keep_until_done(&outs)?;
        }
        for &i in &self.moved {
            outs[i] = moved_to_memory(&outs[i], self.out_shardings[i].kind())?;
        }
        if let Some(turn) = turn {
            let tokens = outs.pop().unwrap_or_default();
            turn.ends_with(tokens.iter().filter_map(|token| token.ready().ok()));
        }
        if let Some(moment) = begun {
            let devices = self.place.devices().iter().filter(|device| device.is_addressable());
            let first = outs.first().into_iter().flatten().zip(devices);
            let devices = first.filter_map(|(out, d)| Some((d.id(), d.to_string(), out.ready().ok()?)));
            profiler::launched(moment, &self.name, devices);
        }
        for (arg, _) in args.iter().zip(&self.donated).filter(|(_, donated)| **donated) {
            arg.borrow().mark_taken(&self.name);
        }
        for (i, _) in moved.iter().filter(|(i, _)| self.donated[*i]) {
            // A copy was donated: what is left of the original goes too.
            args[*i].borrow().free_own_memory()?;
        }
        let wrap = |((buffers, aval), sharding): ((Buffers, &Aval), &Sharding)| {
            Array::from_concrete(Concrete::new(aval.clone(), sharding.clone(), committed, buffers))
        };
        Ok(outs.into_iter().zip(&self.out_avals).zip(&self.out_shardings).map(wrap).collect())
    }

    /// Fails, on all processes, where a value that each of them gives by itself, as a plain number or an array of its own,
    /// is not the same on each.
    fn check_same_values<A: Borrow<Concrete>>(&self, args: &[A], moved: &[(usize, Buffers)]) -> Result<()> {
        let (Some(shared), Some(processes)) = (&self.shared, processes()) else { return Ok(()) };
        let own = |(i, _): &&(usize, Buffers)| reshard::spans(args[*i].borrow(), &self.in_shardings[*i]);
        let given: SmallVec<[usize; 4]> = moved.iter().filter(own).map(|(i, _)| *i).collect();
        if given.is_empty() {
            return Ok(());
        }
        let bytes: Vec<Vec<u8>> = given.iter().map(|&i| transfer::to_host(args[i].borrow())).collect::<Result<_>>()?;
        let values: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        processes.agree(&shared.processes, &format!("the call of {}", shared.what), &values, &|rank, at| {
            let i = given[at];
            let names = self.request.as_ref().map(|request| request.input_names.all()).unwrap_or_default();
            let name = names.get(i).cloned().unwrap_or_else(|| format!("input {i}"));
            err!(
                Value,
                "{name} of {}, of type {}, is not the same on each process: process {rank} has another value",
                self.name,
                args[i].borrow().aval
            )
            .help("pass the same value on each process, such as `multihost::broadcast_one_to_all` gives; each process's own part is made a global array by `make_array_from_process_local_data`")
        })
    }

    /// Keeps the functions that it calls until it has run, also when nothing else holds the program any more. One without
    /// results does not say when it is done: its functions stay.
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

    /// Says, once for each program, that what is donated had to be copied to where the program takes it.
    fn warn_of_move(&self, arg: &Concrete, want: &Sharding, moved: &Buffers) {
        let copied = moved.iter().any(|b| !arg.buffers.iter().any(|a| Arc::ptr_eq(a, b)));
        if !copied || self.warned.swap(true, Ordering::Relaxed) {
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
        let mut keep = |results: Vec<pjrt::Buffer>| {
            for (out, buffer) in outs.iter_mut().zip(results) {
                out.push(Arc::new(buffer));
            }
        };
        let devices = self.executable.devices();
        if self.apart {
            for (d, device) in devices.iter().enumerate() {
                let args: SmallVec<[&pjrt::Buffer; 32]> = placed.iter().map(|buffers| &*buffers[d]).collect();
                keep(self.executable.execute_on(&args, device)?);
            }
            return Ok(());
        }
        let mut args: SmallVec<[&pjrt::Buffer; 32]> = SmallVec::with_capacity(devices.len() * placed.len());
        for d in 0..devices.len() {
            args.extend(placed.iter().map(|buffers| &*buffers[d]));
        }
        self.executable.execute(&args)?.into_iter().for_each(keep);
        Ok(())
    }
}
