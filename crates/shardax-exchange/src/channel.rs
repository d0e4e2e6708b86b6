//! Communication between the processes of a group of devices, with checks of the program, warnings and deadlines.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shardax_mpi::{Communicator, Messages, Request, World, deadline};
use shardax_pjrt::ffi::failure_of_run;

use crate::call::Call;
use crate::order::{COMPARE_AFTER, COMPARE_INTERVAL, Step};
use crate::{Exchange, Outcome, lock};

/// The time that a process waits for announcements before it reports others as missing.
const ANNOUNCEMENT_WAIT: Duration = Duration::from_millis(200);

/// A communicator between the processes of a group of devices. Groups of the same processes can communicate
/// concurrently, so each group has its own.
pub(crate) struct Channel {
    comm: Communicator,
    /// The process index of each rank.
    processes: Vec<usize>,
    devices: Vec<usize>,
    /// The number of exchanges so far, which is equal on all members.
    turns: AtomicU64,
    /// The launch in which the programs were compared last.
    agreed: Mutex<i64>,
}

/// The call and program of an exchange.
#[derive(Clone, Copy)]
pub(crate) struct CallId {
    launch: i64,
    program: u64,
    number: i64,
}

impl CallId {
    pub(crate) fn of(call: &Call<'_>) -> CallId {
        CallId { launch: call.launch, program: call.program, number: call.number }
    }

    /// The step of this launch, if the program is shared with other processes.
    fn step(&self, exchange: &Exchange) -> Option<Step> {
        exchange.order.step_of_launch(self.launch, self.program)
    }

    fn describe(&self, exchange: &Exchange) -> String {
        match exchange.name_of(self.program) {
            Some(name) => format!("call {} of `{name}`", self.number),
            None if self.program == 0 => format!("call {}", self.number),
            None => format!("call {} of a program unknown to this process", self.number),
        }
    }

    fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.program.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.number.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> CallId {
        CallId { launch: 0, program: read_u64(bytes, 0), number: read_u64(bytes, 8) as i64 }
    }
}

fn read_u64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(bytes[offset..offset + 8].try_into().unwrap_or_default())
}

/// Describes that two processes are at different computations.
pub(crate) fn different_position(process: usize, other: &str, this: &str) -> String {
    let another = if other == this { " (another program of that name)" } else { "" };
    format!(
        "process {process} is at {other}{another} where this one is at {this}: all processes must run the same \
         computations in the same order"
    )
}

impl Channel {
    /// Creates the channel in all processes of the group. Because creating the communicator has no deadline, all of
    /// them first announce that they are about to create it.
    pub(crate) fn create(
        (exchange, world): (&Exchange, &World),
        devices: &[usize],
        processes: &[usize],
        call: CallId,
    ) -> Outcome<Channel> {
        let name = format!("shardax.group/{devices:?}");
        let gathered = exchange.exchange_at(call.step(exchange).as_ref(), (&name, processes), &[], exchange.timeout());
        gathered.map_err(|error| format!("{} (at {})", error.message, call.describe(exchange)))?;
        // Threads of one process may create several groups concurrently, so the messages of each need their own tag.
        let tag = devices.iter().fold(17u32, |hash, &d| hash.wrapping_mul(31).wrapping_add(d as u32)) as u16;
        let comm = world.data().and_then(|data| data.group(processes, tag)).map_err(|error| error.message)?;
        let (processes, devices) = (processes.to_vec(), devices.to_vec());
        Ok(Channel { comm, processes, devices, turns: AtomicU64::new(0), agreed: Mutex::new(-1) })
    }

    pub(crate) fn all_gather(
        &self,
        (exchange, call): (&Exchange, CallId),
        data: Vec<u8>,
        counts: &[usize],
    ) -> Outcome<Vec<u8>> {
        self.agree(exchange, call)?;
        Ok(self.wait(exchange, call, self.comm.all_gather(data, counts))?.into_buffers().1.pop().unwrap_or_default())
    }

    /// Starts messages between the processes. Each process must finish its messages in the order in which it started
    /// them.
    pub(crate) fn start(
        &self,
        (exchange, call): (&Exchange, CallId),
        tag: u16,
        messages: Messages,
    ) -> Outcome<Request> {
        self.agree(exchange, call)?;
        self.comm.exchange(tag, messages).map_err(|error| self.failed(exchange, call, &error))
    }

    /// Waits for messages, and returns the sent and the received buffers.
    pub(crate) fn finish(
        &self,
        (exchange, call): (&Exchange, CallId),
        request: Request,
    ) -> Outcome<(Vec<Vec<u8>>, Vec<Vec<u8>>)> {
        Ok(self.wait(exchange, call, Ok(request))?.into_buffers())
    }

    /// Compares the program with the other processes at the first exchange of a launch. Returns an error on all
    /// processes if a host function of the launch has failed on this one, because the values to send may have been
    /// computed from the zeros that it returned.
    fn agree(&self, exchange: &Exchange, call: CallId) -> Outcome<()> {
        if let Some(error) = failure_of_run(call.launch) {
            return Err(exchange.report(&error.message));
        }
        let mut agreed = lock(&self.agreed);
        if *agreed == call.launch || call.program == 0 {
            return Ok(());
        }
        // Looking up the step marks the launch as running, even if nobody asks for the step later.
        call.step(exchange);
        let position = call.bytes().to_vec();
        let counts = vec![position.len(); self.processes.len()];
        let gathered = self.comm.all_gather(position.clone(), &counts);
        let (_, positions) = self.wait(exchange, call, gathered)?.into_buffers();
        for (process, other) in self.processes.iter().zip(positions[0].chunks_exact(position.len())) {
            if other != position {
                let (other, this) = (CallId::from_bytes(other).describe(exchange), call.describe(exchange));
                return Err(different_position(*process, &other, &this));
            }
        }
        *agreed = call.launch;
        Ok(())
    }

    fn failed(&self, exchange: &Exchange, call: CallId, error: &shardax_mpi::Error) -> String {
        let peers: Vec<usize> = self.processes.iter().copied().filter(|&p| p != exchange.rank).collect();
        format!("{} (at {}, with processes {peers:?})", error.message, call.describe(exchange))
    }

    /// Waits until a request is done. Meanwhile, it announces that this process waits, warns, and looks for failures
    /// and positions of other processes, each at its own interval.
    fn wait(&self, exchange: &Exchange, call: CallId, request: shardax_mpi::Result<Request>) -> Outcome<Request> {
        let _span =
            tracing::debug_span!("collective", at = call.describe(exchange), processes = ?self.processes).entered();
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let mut request = request.map_err(|error| self.failed(exchange, call, &error))?;
        let timeout = exchange.timeout();
        let warn = exchange.warn_after().min(timeout);
        let end = deadline(timeout);
        // Waiting processes announce themselves before any of them reports missing ones. Otherwise a report could name
        // processes that are waiting too.
        let mut announcement = Some(deadline(warn / 2));
        let mut warning = (warn < timeout).then(|| deadline(warn));
        let mut comparison = deadline(COMPARE_AFTER);
        loop {
            let moments = [announcement, warning, Some(comparison)];
            if request
                .wait_until(moments.into_iter().flatten().fold(end, Instant::min))
                .map_err(|error| self.failed(exchange, call, &error))?
            {
                return Ok(request);
            }
            let time = Instant::now();
            if time >= end {
                break;
            }
            if announcement.take_if(|due| *due <= time).is_some() {
                self.announce(exchange, turn);
            }
            if warning.take_if(|due| *due <= time).is_some() {
                exchange.warn(&format!(
                    "{} have not reached {} for {} s",
                    self.missing(exchange, turn),
                    call.describe(exchange),
                    warn.as_secs_f64()
                ));
            }
            if comparison <= time {
                if let Some(error) = exchange.reported() {
                    return Err(error);
                }
                if let Some(error) = call.step(exchange).and_then(|step| exchange.check_position(&step)) {
                    return Err(error);
                }
                comparison = time + COMPARE_INTERVAL;
            }
        }
        Err(format!(
            "process {} timed out waiting for the others: within {timeout:?} {} have not reached {}",
            exchange.rank,
            self.missing(exchange, turn),
            call.describe(exchange)
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

    /// Returns the processes that have not announced that they wait for this exchange.
    fn missing(&self, exchange: &Exchange, turn: u64) -> String {
        let Some(world) = &exchange.world else { return "others".into() };
        let mut missing = self.processes.clone();
        let deadline = Instant::now() + ANNOUNCEMENT_WAIT;
        loop {
            missing.retain(|process| !matches!(world.store().try_get(&self.key(turn, *process)), Ok(Some(_))));
            if missing.is_empty() || Instant::now() >= deadline {
                break;
            }
            std::thread::sleep(ANNOUNCEMENT_WAIT / 20);
        }
        if missing.is_empty() { "some of the data of all processes".into() } else { format!("processes {missing:?}") }
    }
}
