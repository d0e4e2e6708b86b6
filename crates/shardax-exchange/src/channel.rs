//! The way from one group of devices to the processes of its members: every exchange is agreed on, watched and bounded.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shardax_mpi::{Communicator, Messages, Request, World, deadline};

use crate::call::Call;
use crate::order::{LONG, LOOK, Step};
use crate::{Exchange, Outcome, lock};

/// Those who wait longer than so many milliseconds say so, for others to tell who is missing; at most.
const GRACE: Duration = Duration::from_millis(200);

/// A communicator of the processes of a group of devices. Two groups of the same processes may exchange at the same
/// time, so each has its own.
pub(crate) struct Channel {
    comm: Communicator,
    /// The processes of its ranks.
    processes: Vec<usize>,
    devices: Vec<usize>,
    /// Exchanges so far, which all members count alike.
    turns: AtomicU64,
    /// The launch whose program was compared last.
    agreed: Mutex<i64>,
}

/// Which call of which program an exchange is for.
#[derive(Clone, Copy)]
pub(crate) struct At {
    launch: i64,
    program: u64,
    number: i64,
}

impl At {
    pub(crate) fn of(call: &Call<'_>) -> At {
        At { launch: call.launch, program: call.program, number: call.number }
    }

    /// The computation that this is in, among those shared with other processes.
    fn step(&self, exchange: &Exchange) -> Option<Step> {
        exchange.order.of_launch(self.launch, self.program)
    }

    fn describe(&self, exchange: &Exchange) -> String {
        match exchange.name_of(self.program) {
            Some(name) => format!("call {} of `{name}`", self.number),
            None if self.program == 0 => format!("call {}", self.number),
            None => format!("call {} of a program that is unknown here", self.number),
        }
    }

    fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.program.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.number.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> At {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        At { launch: 0, program: word(0), number: word(8) as i64 }
    }
}

impl Channel {
    /// Made by all processes of the group, each of which says first that it has come: making it has no deadline.
    pub(crate) fn make(
        (exchange, world): (&Exchange, &World),
        devices: &[usize],
        processes: &[usize],
        at: At,
    ) -> Outcome<Channel> {
        let name = format!("shardax.group/{devices:?}");
        let met = exchange.exchange_at(at.step(exchange).as_ref(), (&name, processes), &[], exchange.timeout());
        met.map_err(|error| format!("{} (at {})", error.message, at.describe(exchange)))?;
        // Several groups may be made at once by the threads of one process.
        let tag = devices.iter().fold(17u32, |hash, &d| hash.wrapping_mul(31).wrapping_add(d as u32)) as u16;
        let comm = world.data().group(processes, tag).map_err(|error| error.message)?;
        let (processes, devices) = (processes.to_vec(), devices.to_vec());
        Ok(Channel { comm, processes, devices, turns: AtomicU64::new(0), agreed: Mutex::new(-1) })
    }

    pub(crate) fn all_gather(
        &self,
        (exchange, at): (&Exchange, At),
        data: Vec<u8>,
        counts: &[usize],
    ) -> Outcome<Vec<u8>> {
        self.agree(exchange, at)?;
        Ok(self.wait(exchange, at, self.comm.all_gather(data, counts))?.into_buffers().1.pop().unwrap_or_default())
    }

    /// Starts messages between the processes; each finishes what it started in the same order.
    pub(crate) fn start(&self, (exchange, at): (&Exchange, At), tag: u16, messages: Messages) -> Outcome<Request> {
        self.agree(exchange, at)?;
        self.comm.exchange(tag, messages).map_err(|error| self.failed(exchange, at, &error))
    }

    /// The memory of messages that were started: what was sent, and what came.
    pub(crate) fn finish(
        &self,
        (exchange, at): (&Exchange, At),
        request: Request,
    ) -> Outcome<(Vec<Vec<u8>>, Vec<Vec<u8>>)> {
        Ok(self.wait(exchange, at, Ok(request))?.into_buffers())
    }

    /// At its first exchange in a launch, all processes compare which program they are in.
    fn agree(&self, exchange: &Exchange, at: At) -> Outcome<()> {
        let mut agreed = lock(&self.agreed);
        if *agreed == at.launch || at.program == 0 {
            return Ok(());
        }
        at.step(exchange);
        let own = at.bytes().to_vec();
        let counts = vec![own.len(); self.processes.len()];
        let (_, all) = self.wait(exchange, at, self.comm.all_gather(own.clone(), &counts))?.into_buffers();
        for (process, theirs) in self.processes.iter().zip(all[0].chunks_exact(own.len())) {
            if theirs != own {
                let theirs = At::from_bytes(theirs);
                let (what, own) = (theirs.describe(exchange), at.describe(exchange));
                let another = if what == own { " (another program of that name)" } else { "" };
                return Err(format!(
                    "process {process} is at {what}{another} where this one is at {own}: all processes must run the same \
                     computations in the same order"
                ));
            }
        }
        *agreed = at.launch;
        Ok(())
    }

    fn failed(&self, exchange: &Exchange, at: At, error: &shardax_mpi::Error) -> String {
        let others: Vec<usize> = self.processes.iter().copied().filter(|&p| p != exchange.rank).collect();
        format!("{} (at {}, with processes {others:?})", error.message, at.describe(exchange))
    }

    /// Waits until a request is done.
    fn wait(&self, exchange: &Exchange, at: At, request: shardax_mpi::Result<Request>) -> Outcome<Request> {
        let failed = |error: shardax_mpi::Error| self.failed(exchange, at, &error);
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let mut request = request.map_err(failed)?;
        let timeout = exchange.timeout();
        let warn = exchange.patience().min(timeout);
        let end = deadline(timeout);
        // Those who wait say so before anybody complains.
        let mut announcement = Some(deadline(warn / 2));
        let mut warning = (warn < timeout).then(|| deadline(warn));
        let mut comparison = deadline(LONG);
        loop {
            let moments = [announcement, warning, Some(comparison)];
            if request.wait_until(moments.into_iter().flatten().fold(end, Instant::min)).map_err(failed)? {
                return Ok(request);
            }
            let now = Instant::now();
            if now >= end {
                break;
            }
            let is_due = |moment: &mut Instant| *moment <= now;
            if announcement.take_if(is_due).is_some() {
                self.announce(exchange, turn);
            }
            if warning.take_if(is_due).is_some() {
                exchange.say(&format!(
                    "{} have not come to {} for {} s",
                    self.missing(exchange, turn),
                    at.describe(exchange),
                    warn.as_secs_f64()
                ));
            }
            if comparison <= now {
                if let Some(apart) = at.step(exchange).and_then(|step| exchange.apart(&step)) {
                    return Err(apart);
                }
                comparison = now + LOOK;
            }
        }
        Err(format!(
            "process {} waited in vain for the others: within {timeout:?} {} have not come to {}",
            exchange.rank,
            self.missing(exchange, turn),
            at.describe(exchange)
        ))
    }

    fn key(&self, turn: u64, process: usize) -> String {
        let mut key = format!("shardax.waiting/{turn}/{process}/");
        let _ = write!(key, "{:?}", self.devices);
        key
    }

    fn announce(&self, exchange: &Exchange, turn: u64) {
        if let Some(world) = &exchange.world {
            let _ = world.store().put(&self.key(turn, exchange.rank), &[]);
        }
    }

    /// The processes of which nobody has heard that they wait here, too.
    fn missing(&self, exchange: &Exchange, turn: u64) -> String {
        let Some(world) = &exchange.world else { return "others".into() };
        let silent = |p: &&usize| !matches!(world.store().try_get(&self.key(turn, **p)), Ok(Some(_)));
        let look = || self.processes.iter().filter(silent).collect::<Vec<_>>();
        let mut missing = look();
        let deadline = Instant::now() + GRACE;
        while !missing.is_empty() && Instant::now() < deadline {
            std::thread::sleep(GRACE / 20);
            missing = look();
        }
        match missing.is_empty() {
            true => "some of the data that all processes sent".into(),
            false => format!("processes {missing:?}"),
        }
    }
}
