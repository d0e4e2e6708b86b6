//! The computations that this process shares with others, in order: compared with theirs when a wait is long, so that
//! processes that wait for each other at different computations fail at once and not at their deadline.
//!
//! Each pair of processes counts its shared computations alike. A process that waits publishes its last ones with their
//! numbers; another that waits at one of these numbers, at another computation, knows that neither will go on.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use shardax_mpi::{Error, Kind, World, deadline};

use crate::{Exchange, lock};

/// Shared computations that are remembered, for others that are late.
const REMEMBERED: usize = 16;
/// A wait of this length is worth a comparison.
pub(crate) const LONG: Duration = Duration::from_secs(1);
/// Time between comparisons.
pub(crate) const LOOK: Duration = Duration::from_millis(250);

/// A computation of several processes, or what they agree on before one.
#[derive(Debug)]
pub struct Shared {
    /// The number of its program, as for [`Exchange::name_program`]; 0 for an agreement.
    pub program: u64,
    /// The processes that take part.
    pub processes: Vec<usize>,
    /// A description of it for errors.
    pub what: String,
}

/// A shared computation that this process has come to.
#[derive(Clone, Debug)]
pub struct Step {
    shared: Arc<Shared>,
    /// Its number among the computations shared with each of its processes.
    numbers: Arc<[u64]>,
}

#[derive(Default)]
pub(crate) struct Order(Mutex<State>);

#[derive(Default)]
struct State {
    counts: HashMap<usize, u64>,
    recent: VecDeque<Step>,
    /// Launches of which no device has made a call yet.
    starting: VecDeque<Step>,
    /// The launch whose devices make calls, by its number in the plugin.
    running: Option<(i64, Step)>,
    /// How many computations there were in all, and when this was published last.
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
        let mut count = |process: &usize| {
            let count = state.counts.entry(*process).or_default();
            *count += 1;
            *count
        };
        let step = Step { shared: shared.clone(), numbers: shared.processes.iter().map(&mut count).collect() };
        if state.recent.len() == REMEMBERED {
            state.recent.pop_front();
        }
        state.recent.push_back(step.clone());
        state.steps += 1;
        step
    }

    /// Takes back the last step, which has not begun.
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

    /// A launch begins when the one before the last has ended.
    fn starts(&self, step: Step) {
        let mut state = self.state();
        while state.starting.len() > 1 {
            state.starting.pop_front();
        }
        state.starting.push_back(step);
    }

    /// The step of the launch in which a device makes a call; asked for at its first exchange, and as often as wanted.
    pub(crate) fn of_launch(&self, launch: i64, program: u64) -> Option<Step> {
        let mut state = self.state();
        if let Some((running, step)) = &state.running
            && *running == launch
        {
            return Some(step.clone());
        }
        // Launches before it have made no calls, and have ended: one is under way at a time.
        let at = state.starting.iter().position(|step| step.shared.program >> 1 == program)?;
        let step = state.starting.drain(..=at).next_back()?;
        state.running = Some((launch, step.clone()));
        Some(step)
    }
}

impl Exchange {
    /// Notes that this process comes to an agreement.
    pub fn comes_to(&self, shared: &Arc<Shared>) -> Step {
        self.receive();
        self.order.step(shared)
    }

    /// Notes that this process launches a program in which processes meet; `launch` starts it.
    ///
    /// # Errors
    /// Those of `launch`: then nothing was started.
    pub fn launches<T, E>(&self, shared: &Arc<Shared>, launch: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.receive();
        let step = self.order.step(shared);
        self.order.starts(step.clone());
        launch().inspect_err(|_| self.order.undo(&step))
    }

    /// What others published is taken in now and then, so that it does not pile up.
    fn receive(&self) {
        let Some(world) = &self.world else { return };
        let now = Instant::now();
        let due = |received: &mut Option<Instant>| {
            let due = received.is_none_or(|last| now.duration_since(last) > LONG);
            if due {
                *received = Some(now);
            }
            due
        };
        if due(&mut self.order.state().received) {
            let _ = world.store().try_get("");
        }
    }

    /// Exchanges values with other processes over their store, and fails at once where one of them waits elsewhere.
    ///
    /// # Errors
    /// As for [`shardax_mpi::Store::exchange`]; [`Kind::FailedPrecondition`] naming the process that is at another
    /// computation.
    pub fn exchange_at(
        &self,
        step: Option<&Step>,
        (name, processes): (&str, &[usize]),
        value: &[u8],
        timeout: Duration,
    ) -> shardax_mpi::Result<Vec<Vec<u8>>> {
        let world = self.world.as_ref().ok_or_else(|| Error::new(Kind::InvalidArgument, "this process is alone"))?;
        let end = deadline(timeout);
        let mut wait = LONG;
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            match world.store().exchange(name, processes, value, wait.min(rest)) {
                Err(error) if error.kind == Kind::DeadlineExceeded => {
                    if let Some(apart) = step.and_then(|step| self.apart(step)) {
                        return Err(Error::new(Kind::FailedPrecondition, apart));
                    }
                    if rest <= wait {
                        return Err(error);
                    }
                }
                other => return other,
            }
            wait = LOOK;
        }
    }

    /// Publishes where this process is, and compares: an error where another one waits at another computation.
    pub(crate) fn apart(&self, step: &Step) -> Option<String> {
        let world = self.world.as_ref()?;
        self.publish(world);
        let own = step.describe(self);
        for (process, number) in step.with_numbers().filter(|(process, _)| *process != self.rank) {
            let Ok(Some(theirs)) = world.store().try_get(&key(process)) else { continue };
            let theirs = String::from_utf8_lossy(&theirs).into_owned();
            let at = theirs.lines().find_map(|line| {
                {
                    let mut parts = line.splitn(3, '\t');
                    let mut number = || parts.next()?.parse::<u64>().ok();
                    Some((number()?, number()?, parts.next()?))
                }
                .filter(|(theirs, _, _)| *theirs == number)
            });
            if let Some((_, program, what)) = at
                && (program, what) != (step.shared.program, own.as_str())
            {
                let another = if what == own { " (another program of that name)" } else { "" };
                return Some(format!(
                    "process {process} is at {what}{another} where this one is at {own}: all processes must run the same \
                     computations in the same order"
                ));
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
        let mut to: HashMap<usize, String> = HashMap::new();
        for step in &state.recent {
            let what = step.describe(self);
            for (process, number) in step.with_numbers().filter(|(process, _)| *process != self.rank) {
                to.entry(process).or_default().push_str(&format!("{number}\t{}\t{what}\n", step.shared.program));
            }
        }
        drop(state);
        for (process, text) in to {
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
        let what = match name.filter(|_| self.shared.program != 0) {
            Some(name) => format!("`{name}`"),
            None => self.shared.what.clone(),
        };
        // One line each.
        what.replace('\n', " ")
    }
}

fn key(process: usize) -> String {
    format!("shardax.order/{process}")
}
