//! Detection of processes that run different computations, by comparing the order of shared computations.
//!
//! Two processes that wait for each other in different computations should fail immediately, not at the deadline.
//! Therefore each pair of processes numbers its shared computations, and a waiting process publishes its latest ones
//! with their numbers. If another process waits at one of these numbers, but in another computation, neither can
//! continue.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use shardax_mpi::{Error, Kind, World, deadline};

use crate::channel::different_position;
use crate::{Exchange, lock};

/// The number of shared computations that are remembered for late processes.
const MAX_REMEMBERED: usize = 16;
/// The time after which a waiting process compares.
pub(crate) const COMPARE_AFTER: Duration = Duration::from_secs(1);
/// The interval between comparisons.
pub(crate) const COMPARE_INTERVAL: Duration = Duration::from_millis(250);

/// A computation of several processes, or an agreement before one.
#[derive(Debug)]
pub struct Shared {
    /// The number of its program, as for [`Exchange::name_program`]; 0 for an agreement.
    pub program: u64,
    /// The processes that take part.
    pub processes: Vec<usize>,
    /// A description for errors.
    pub what: String,
}

/// A shared computation that this process has reached.
#[derive(Clone, Debug)]
pub struct Step {
    shared: Arc<Shared>,
    /// For each process that takes part, the number of this computation among all that are shared with that process.
    numbers: Arc<[u64]>,
}

#[derive(Default)]
pub(crate) struct Order(Mutex<State>);

#[derive(Default)]
struct State {
    counts: HashMap<usize, u64>,
    recent: VecDeque<Step>,
    /// Launches in which no device has made a call yet.
    starting: VecDeque<Step>,
    /// The launch whose devices are making calls, with the plugin's launch id.
    running: Option<(i64, Step)>,
    /// The number of computations so far, and the number when they were last published.
    steps: u64,
    published: u64,
    received: Option<Instant>,
}

impl Order {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    fn step(&self, shared: &Arc<Shared>) -> Step {
        let mut state = self.state();
        let numbers = shared.processes.iter().map(|process| {
            let count = state.counts.entry(*process).or_default();
            *count += 1;
            *count
        });
        let step = Step { shared: shared.clone(), numbers: numbers.collect() };
        if state.recent.len() == MAX_REMEMBERED {
            state.recent.pop_front();
        }
        state.recent.push_back(step.clone());
        state.steps += 1;
        step
    }

    /// Removes the last step, which has not started.
    fn undo(&self, step: &Step) {
        let mut state = self.state();
        if state.recent.back().is_some_and(|last| Arc::ptr_eq(&last.numbers, &step.numbers)) {
            state.recent.pop_back();
            for process in &step.shared.processes {
                state.counts.entry(*process).and_modify(|count| *count -= 1);
            }
        }
        state.starting.retain(|other| !Arc::ptr_eq(&other.numbers, &step.numbers));
    }

    /// Adds a launch, which starts after the previous one has ended.
    fn starts(&self, step: Step) {
        let mut state = self.state();
        while state.starting.len() > 1 {
            state.starting.pop_front();
        }
        state.starting.push_back(step);
    }

    /// The step of a launch, or `None` if it runs only in this process. The calls of the launch's devices look it up.
    pub(crate) fn step_of_launch(&self, launch: i64, program: u64) -> Option<Step> {
        let mut state = self.state();
        if let Some((running, step)) = &state.running
            && *running == launch
        {
            return Some(step.clone());
        }
        // Earlier launches made no calls and have ended, because only one is in flight at a time.
        let index = state.starting.iter().position(|step| step.shared.program >> 1 == program)?;
        let step = state.starting.drain(..=index).next_back()?;
        state.running = Some((launch, step.clone()));
        Some(step)
    }
}

impl Exchange {
    /// Records that this process reaches an agreement.
    pub fn reach(&self, shared: &Arc<Shared>) -> Step {
        self.receive();
        self.order.step(shared)
    }

    /// Records that this process launches a program that communicates with other processes, and calls `launch`.
    ///
    /// # Errors
    /// Returns the error of `launch`. In this case `launch` must not have started anything, because the record is
    /// removed.
    pub fn launch<T, E>(&self, shared: &Arc<Shared>, launch: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.receive();
        let step = self.order.step(shared);
        self.order.starts(step.clone());
        launch().inspect_err(|_| self.order.undo(&step))
    }

    /// Receives published steps from time to time, so that messages do not accumulate.
    fn receive(&self) {
        let Some(world) = &self.world else { return };
        {
            // The lock is released before the store is read, because reading may wait for another machine.
            let received = &mut self.order.state().received;
            if received.is_some_and(|last| last.elapsed() <= COMPARE_AFTER) {
                return;
            }
            *received = Some(Instant::now());
        }
        let _ = world.store().try_get("");
    }

    /// Exchanges values with other processes over their store, and fails immediately if one of them waits elsewhere.
    ///
    /// # Errors
    /// Returns the errors of [`shardax_mpi::Store::exchange`]; [`Kind::FailedPrecondition`] with the process that is at
    /// another computation; [`Kind::Failed`] with the error of a host function on another process.
    pub fn exchange_at(
        &self,
        step: Option<&Step>,
        (name, processes): (&str, &[usize]),
        value: &[u8],
        timeout: Duration,
    ) -> shardax_mpi::Result<Vec<Vec<u8>>> {
        let world = self.world.as_ref().ok_or_else(|| Error::new(Kind::InvalidArgument, "this process is alone"))?;
        let (start, end) = (Instant::now(), deadline(timeout));
        // Wait for the store in short intervals, so that an error of another process is reported before the timeout.
        let mut wait = COMPARE_AFTER;
        let mut warned = false;
        loop {
            let remaining = end.saturating_duration_since(Instant::now());
            match world.store().exchange(name, processes, value, wait.min(remaining)) {
                Err(error) if error.kind == Kind::DeadlineExceeded => {
                    if let Some(error) = self.reported() {
                        return Err(Error::new(Kind::Failed, error));
                    }
                    if let Some(error) = step.and_then(|step| self.check_position(step)) {
                        return Err(Error::new(Kind::FailedPrecondition, error));
                    }
                    if remaining <= wait {
                        return Err(error);
                    }
                    let waited = start.elapsed();
                    if waited >= self.warn_after() && !std::mem::replace(&mut warned, true) {
                        let missing = error.message.rsplit_once("missing: ").map_or("others", |(_, who)| who);
                        let description = step.map_or_else(|| name.to_owned(), |step| step.describe(self));
                        self.warn(&format!("{missing} have not reached {description} for {} s", waited.as_secs()));
                    }
                }
                outcome => return outcome,
            }
            wait = COMPARE_INTERVAL;
        }
    }

    /// Publishes the position of this process and compares it: returns an error if another process is elsewhere.
    pub(crate) fn check_position(&self, step: &Step) -> Option<String> {
        let world = self.world.as_ref()?;
        self.publish(world);
        let description = step.describe(self);
        for (process, number) in step.with_numbers().filter(|(process, _)| *process != self.rank) {
            let Ok(Some(published)) = world.store().try_get(&key(process)) else { continue };
            let published = String::from_utf8_lossy(&published).into_owned();
            let position = published.lines().filter_map(parse_step).find(|(other, _, _)| *other == number);
            if let Some((_, program, other)) = position
                && (program, other) != (step.shared.program, description.as_str())
            {
                return Some(different_position(process, other, &description));
            }
        }
        None
    }

    fn publish(&self, world: &World) {
        let mut state = self.order.state();
        if state.published == state.steps {
            return;
        }
        state.published = state.steps;
        let mut texts: HashMap<usize, String> = HashMap::new();
        for step in &state.recent {
            let description = step.describe(self);
            for (process, number) in step.with_numbers().filter(|(process, _)| *process != self.rank) {
                let line = format!("{number}\t{}\t{description}\n", step.shared.program);
                texts.entry(process).or_default().push_str(&line);
            }
        }
        drop(state); // publishing may wait for another machine
        for (process, text) in texts {
            let _ = world.store().publish(&key(self.rank), text.as_bytes(), &[process]);
        }
    }
}

impl Step {
    fn with_numbers(&self) -> impl Iterator<Item = (usize, u64)> {
        self.shared.processes.iter().copied().zip(self.numbers.iter().copied())
    }

    fn describe(&self, exchange: &Exchange) -> String {
        let name = lock(&exchange.names).get(&(self.shared.program >> 1)).cloned();
        let description = match name.filter(|_| self.shared.program != 0) {
            Some(name) => format!("`{name}`"),
            None => self.shared.what.clone(),
        };
        // A published position has one line for each step.
        description.replace('\n', " ")
    }
}

fn key(process: usize) -> String {
    format!("shardax.order/{process}")
}

/// A published step: its number, program and description.
fn parse_step(line: &str) -> Option<(u64, u64, &str)> {
    let mut parts = line.splitn(3, '\t');
    let number = parts.next()?.parse().ok()?;
    let program = parts.next()?.parse().ok()?;
    Some((number, program, parts.next()?))
}
