//! A thread of each process that watches the other processes. After a notice of preemption it agrees with them on the
//! step at which all save. It names silent processes. Without a launcher it ends this process if another one has ended.
//!
//! The program's thread does not take part in the agreement, because it can be inside a computation that waits for
//! another process. Each process that learns of a notice publishes the number of steps that it has passed, and passes
//! no further step. When all have published, all stop at the step after the largest of these numbers, so that no
//! process is beyond it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Processes, patience, preemption, processes, timeout};
use crate::error::{Result, err};
use crate::warning;

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The interval of looks at a store on another machine.
const SHARED_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The interval of heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest silence that is reported.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(3);
/// The value that a process publishes when it leaves.
const LEFT: &str = "left";
/// The key under which a process publishes a notice.
const NOTICE: &str = "shardax.notice";
/// The key of the reason why all processes end, if there is no launcher to end them.
const ENDED: &str = "shardax.ended";

#[derive(Default)]
pub(super) struct Watch {
    state: Mutex<State>,
    agreed: Condvar,
}

#[derive(Default)]
struct State {
    closed: bool,
    /// The number of steps that the program has passed, counted by calls of [`reached`].
    passed: u64,
    /// `true` if the notice was sent to all processes, together with the number of steps.
    published: bool,
    /// The number of steps after which all processes stop.
    sync: Option<u64>,
    beats: u64,
    beaten: Option<Instant>,
    previous: Previous,
}

/// The previous process in a ring. Each process is watched by the next one.
#[derive(Default)]
struct Previous {
    beat: Vec<u8>,
    changed: Option<Instant>,
    reported: bool,
}

impl Watch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread.
pub(super) fn start(processes: &'static Processes) -> Result<()> {
    let shared = processes.world.store().is_shared();
    let thread = std::thread::Builder::new().name("shardax-watch".to_owned()).spawn(move || {
        while processes.tick() {
            // The state must not be locked here, because the end of the process locks it.
            if shared && let Ok(Some(why)) = processes.world.store().try_get(ENDED) {
                eprintln!("shardax: process {} ends, because {}", processes.rank(), String::from_utf8_lossy(&why));
                std::process::exit(1);
            }
            std::thread::sleep(if shared { SHARED_POLL_INTERVAL } else { POLL_INTERVAL });
        }
    });
    thread.map(drop).map_err(|error| {
        err!(Runtime, "no thread could be started to watch the other processes: {error}")
            .help("raise the limit of threads (`ulimit -u`), or end other programs")
    })
}

/// Returns `true` if all processes must stop after this step, because one of them has a notice. All processes must call
/// it equally often.
pub(crate) fn reached() -> Result<bool> {
    match processes() {
        Some(joined) => joined.reached(),
        None => Ok(preemption::notice().is_some()),
    }
}

fn key(what: &str, process: usize) -> String {
    format!("shardax.{what}/{process}")
}

impl Processes {
    /// Looks at the other processes once. Returns `false` if this process has left.
    fn tick(&self) -> bool {
        let mut state = self.watch.state();
        if state.closed {
            return false;
        }
        // Errors of the store are ignored here, because they appear where the program itself needs the other processes.
        let _ = self.agree_on_step(&mut state);
        let _ = self.beat(&mut state);
        true
    }

    fn all_ranks(&self) -> Vec<usize> {
        (0..self.world.size()).collect()
    }

    fn other_ranks(&self) -> impl Iterator<Item = usize> {
        let own_rank = self.rank();
        (0..self.world.size()).filter(move |rank| *rank != own_rank)
    }

    fn agree_on_step(&self, state: &mut State) -> shardax_mpi::Result<()> {
        if state.sync.is_some() {
            return Ok(());
        }
        let store = self.world.store();
        if !state.published {
            if let Some(reason) = preemption::notice() {
                let reason = format!("{reason}, process {}", self.rank());
                store.publish(NOTICE, reason.as_bytes(), &self.all_ranks())?;
            } else {
                let Some(reason) = store.try_get(NOTICE)? else { return Ok(()) };
                preemption::notify(&String::from_utf8_lossy(&reason));
            }
            store.publish(&key("passed", self.rank()), state.passed.to_string().as_bytes(), &self.all_ranks())?;
            state.published = true;
        }
        let mut most = state.passed;
        for process in self.other_ranks() {
            match store.try_get(&key("passed", process))? {
                // A process that has left publishes no number, so it does not affect the step.
                Some(passed) => most = most.max(String::from_utf8_lossy(&passed).parse().unwrap_or(0)),
                None => return Ok(()),
            }
        }
        state.sync = Some(most + 1);
        self.watch.agreed.notify_all();
        Ok(())
    }

    fn beat(&self, state: &mut State) -> shardax_mpi::Result<()> {
        let (rank, size) = (self.rank(), self.world.size());
        let time = Instant::now();
        if state.beaten.is_none_or(|last| time.duration_since(last) >= HEARTBEAT_INTERVAL) {
            state.beaten = Some(time);
            state.beats += 1;
            let beat = state.beats.to_string();
            self.world.store().publish(&key("beat", rank), beat.as_bytes(), &[(rank + 1) % size])?;
        }
        let before = (rank + size - 1) % size;
        // A process that ended before its first heartbeat counts as silent from the beginning.
        let beat = self.world.store().try_get(&key("beat", before))?.unwrap_or_default();
        let previous = &mut state.previous;
        let silent = time.duration_since(*previous.changed.get_or_insert(time));
        if beat != previous.beat || beat == LEFT.as_bytes() {
            if std::mem::take(&mut previous.reported) {
                let message = format!("process {before} is heard of again, after {} s", silent.as_secs());
                warning::warn(&message, "the job continues");
            }
            (previous.beat, previous.changed) = (beat, Some(time));
        } else if silent > HEARTBEAT_TIMEOUT.max(patience() / 2) {
            let host = &self.world.hosts()[before];
            let text = format!("process {before} on {host} has not been heard of for {} s", silent.as_secs());
            if !std::mem::replace(&mut previous.reported, true) {
                warning::warn(
                    &text,
                    "it is stopped, or its host is overloaded or unreachable; the others wait for it in their next collective",
                );
            }
            if silent > timeout() && self.world.store().is_shared() {
                self.world.store().publish(ENDED, text.as_bytes(), &self.all_ranks())?;
            }
        }
        Ok(())
    }

    /// Ends the other processes of a job without a launcher, because this one has failed.
    pub(super) fn end_others(&self, status: i32) {
        let store = self.world.store();
        if store.is_shared() && !matches!(store.try_get(ENDED), Ok(Some(_))) {
            let why = format!(
                "process {} on {} has failed with status {status}",
                self.rank(),
                self.world.hosts()[self.rank()]
            );
            let _ = store.publish(ENDED, why.as_bytes(), &self.all_ranks());
        }
    }

    /// The other processes that have not answered the notice of preemption.
    fn missing(&self) -> Vec<usize> {
        let has_passed = self.other_ranks().map(|p| (p, self.world.store().try_get(&key("passed", p))));
        has_passed.filter(|(_, passed)| !matches!(passed, Ok(Some(_)))).map(|(p, _)| p).collect()
    }

    fn reached(&self) -> Result<bool> {
        let begun = Instant::now();
        let mut warned = false;
        let mut state = self.watch.state();
        // Waits until all processes have agreed on the step to stop at, or until they have left.
        while state.published && state.sync.is_none() && !state.closed {
            let waited = begun.elapsed();
            if waited > timeout() {
                let missing = self.missing();
                return Err(err!(
                    DeadlineExceeded,
                    "processes {missing:?} have not answered a notice of preemption within {:?}",
                    timeout()
                )
                .help("check these processes and their hosts"));
            }
            if waited > patience() && !std::mem::replace(&mut warned, true) {
                let missing = self.missing();
                warning::warn(
                    &format!(
                        "processes {missing:?} have not answered a notice of preemption for {} s",
                        waited.as_secs()
                    ),
                    "they are stopped, or their hosts are overloaded or unreachable",
                );
            }
            state = self.watch.agreed.wait_timeout(state, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        let reached = state.sync.is_some_and(|sync| state.passed + 1 >= sync);
        if !reached {
            state.passed += 1;
        }
        Ok(reached)
    }

    /// Stops the thread, so that nothing is sent or received any more. The other processes expect no further heartbeat
    /// from this one.
    pub(super) fn close_watch(&self) {
        let mut state = self.watch.state();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        let (rank, size) = (self.rank(), self.world.size());
        let store = self.world.store();
        if !state.published {
            let _ = store.publish(&key("passed", rank), LEFT.as_bytes(), &self.all_ranks());
        }
        let _ = store.publish(&key("beat", rank), LEFT.as_bytes(), &[(rank + 1) % size]);
        self.watch.agreed.notify_all();
    }
}
