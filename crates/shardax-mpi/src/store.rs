//! A key-value store shared by all processes, and barriers that name missing processes.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result};
use crate::key_value::KeyValue;

/// Checks of a process's own copies before it sleeps between checks.
const EAGER_TRIES: u32 = 500;
/// The factor by which the interval between looks grows in a long wait, at most.
const MAX_INTERVAL_FACTOR: u32 = 20;

/// The store of this process's job. Cloning increments a reference count.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    values: Arc<dyn KeyValue>,
    rank: usize,
    size: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of times that this process has passed each barrier.
    passed: HashMap<String, u64>,
    /// Barriers that this process has passed as their first process. Other processes may still read their values.
    passing: VecDeque<Barrier>,
}

/// One round of a barrier between some processes.
#[derive(Clone)]
struct Barrier {
    name: String,
    round: u64,
    ranks: Vec<usize>,
}

impl Barrier {
    /// The key of a process that has arrived.
    fn arrived(&self, rank: usize) -> String {
        format!("shardax.barrier/{}/{}/{rank}", self.name, self.round)
    }

    /// The key of a process that has read the values of all.
    fn passed_key(&self, rank: usize) -> String {
        format!("shardax.passed/{}/{}/{rank}", self.name, self.round)
    }
}

impl Store {
    /// Creates the store of a job with `size` processes, for the process `rank`.
    pub fn new(values: Arc<dyn KeyValue>, rank: usize, size: usize) -> Store {
        Store { inner: Arc::new(Inner { values, rank, size, state: Mutex::default() }) }
    }

    fn values(&self) -> &dyn KeyValue {
        &*self.inner.values
    }

    fn all_ranks(&self) -> Vec<usize> {
        (0..self.inner.size).collect()
    }

    /// Returns true if reading a value may ask another machine, and false if each process has copies.
    pub fn is_shared(&self) -> bool {
        self.values().is_shared()
    }

    /// Stores a value for all processes.
    ///
    /// # Errors
    /// Returns an error if the key already has a value, as far as this process knows; or the error of the store.
    pub fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        if self.values().set_new(key, value, &self.all_ranks())? {
            Ok(())
        } else {
            Err(Error::new(Kind::FailedPrecondition, format!("the key {key:?} already has a value")))
        }
    }

    /// Stores a value for some processes, replacing their present value.
    ///
    /// # Errors
    /// Returns an error of the store.
    pub fn publish(&self, key: &str, value: &[u8], ranks: &[usize]) -> Result<()> {
        self.values().set(key, value, ranks)
    }

    /// Waits for the value of a key.
    ///
    /// # Errors
    /// Returns [`Kind::DeadlineExceeded`] if no process puts one in time; or an error of the store.
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.wait_until(crate::deadline(timeout), || self.try_get(key))?.ok_or_else(|| {
            Error::new(Kind::DeadlineExceeded, format!("no process put a value for the key {key:?} within {timeout:?}"))
        })
    }

    /// The value of a key, if it is available.
    ///
    /// # Errors
    /// Returns an error of the store.
    pub fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.values().get(key)
    }

    /// Waits until all processes have reached the barrier of this name as often as this one.
    ///
    /// # Errors
    /// Returns [`Kind::DeadlineExceeded`] with the missing processes; or an error of the store.
    pub fn barrier(&self, name: &str, timeout: Duration) -> Result<()> {
        self.exchange(name, &self.all_ranks(), &[], timeout).map(drop)
    }

    /// Waits at a barrier between some processes. Each passes a value, and receives the values of all in the order of
    /// the list.
    ///
    /// # Errors
    /// Returns the errors of [`Store::barrier`], and an error if this process is not in the list, or a listed one does
    /// not exist.
    pub fn exchange(&self, name: &str, ranks: &[usize], value: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let deadline = crate::deadline(timeout);
        let Inner { rank: own, size, .. } = *self.inner;
        if !ranks.contains(&own) || ranks.iter().any(|&rank| rank >= size) {
            return Err(Error::new(
                Kind::InvalidArgument,
                format!("process {own} of {size} cannot join the barrier {name:?} of processes {ranks:?}"),
            ));
        }
        let round = self.state().passed.get(name).copied().unwrap_or(0);
        let barrier = Barrier { name: name.to_owned(), round, ranks: ranks.to_vec() };
        // This process's entry exists already if an earlier attempt timed out.
        self.values().set_new(&barrier.arrived(own), value, ranks)?;
        let mut values = vec![None; ranks.len()];
        let complete = self.wait_until(deadline, || {
            // In order, up to a missing one, because each read may ask another machine.
            for (&rank, value) in ranks.iter().zip(&mut values).filter(|(_, value)| value.is_none()) {
                *value = self.try_get(&barrier.arrived(rank))?;
                if value.is_none() {
                    return Ok(None);
                }
            }
            Ok(Some(values.iter().map(|value| value.clone().unwrap_or_default()).collect()))
        })?;
        let Some(complete) = complete else {
            let mut missing = ranks.to_vec();
            missing.retain(|rank| !matches!(self.try_get(&barrier.arrived(*rank)), Ok(Some(_))));
            let count = ranks.len();
            return Err(Error::new(
                Kind::DeadlineExceeded,
                format!(
                    "{} of {count} processes reached the barrier {name:?} within {timeout:?}; missing: processes \
                     {missing:?}",
                    count - missing.len()
                ),
            ));
        };
        self.state().passed.insert(name.to_owned(), round + 1);
        self.forget(barrier)?;
        Ok(complete)
    }

    /// Removes the values of a barrier that this process has passed. In a shared store, other processes may not have
    /// read them yet: each process reports that it has, and the first process removes them later.
    fn forget(&self, barrier: Barrier) -> Result<()> {
        let (own, first) = (self.inner.rank, barrier.ranks.first() == Some(&self.inner.rank));
        if !self.is_shared() {
            return barrier.ranks.iter().try_for_each(|&rank| self.values().remove(&barrier.arrived(rank)));
        }
        if !first {
            return self.values().set(&barrier.passed_key(own), &[], &barrier.ranks[..1]);
        }
        let mut passing = std::mem::take(&mut self.state().passing);
        passing.push_back(barrier);
        while let Some(oldest) = passing.pop_front() {
            let peers: Vec<usize> = oldest.ranks.iter().copied().filter(|&rank| rank != own).collect();
            if !peers.iter().all(|&rank| matches!(self.try_get(&oldest.passed_key(rank)), Ok(Some(_)))) {
                passing.push_front(oldest);
                break;
            }
            for rank in peers {
                self.values().remove(&oldest.passed_key(rank))?;
            }
            for &rank in &oldest.ranks {
                self.values().remove(&oldest.arrived(rank))?;
            }
        }
        // Another thread may have passed a barrier meanwhile.
        let mut state = self.state();
        passing.append(&mut state.passing);
        state.passing = passing;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until<R>(&self, deadline: Instant, mut look: impl FnMut() -> Result<Option<R>>) -> Result<Option<R>> {
        let (interval, eager) = (self.values().interval(), if self.is_shared() { 0 } else { EAGER_TRIES });
        for tries in 0u32.. {
            if let Some(found) = look()? {
                return Ok(Some(found));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            match tries.checked_sub(eager) {
                None => std::thread::yield_now(),
                Some(_) if !self.is_shared() => std::thread::sleep(interval),
                Some(looks) => {
                    std::thread::sleep(interval * (1 + looks / MAX_INTERVAL_FACTOR).min(MAX_INTERVAL_FACTOR))
                }
            }
        }
        Ok(None)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("rank", &self.inner.rank).field("size", &self.inner.size).finish_non_exhaustive()
    }
}
