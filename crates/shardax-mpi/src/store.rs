//! A key-value store shared by all processes, and barriers that name missing processes.
//!
//! A process sends the values that it puts to all others, so that reading is local. There is no background thread: a
//! process receives values whenever it calls the store.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::comm::{Communicator, Request};
use crate::error::{Error, Kind, Result};

const NAP: Duration = Duration::from_micros(50);
/// Checks before a waiting process sleeps between checks.
const EAGER_TRIES: u32 = 500;

/// The store of this process's job. Cloning increments a reference count.
#[derive(Clone)]
pub struct Store {
    comm: Communicator,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    values: HashMap<String, Vec<u8>>,
    /// The receive in progress from each other process.
    incoming: Vec<(usize, Incoming)>,
    /// Sent messages that may not have been received.
    outgoing: Vec<Request>,
    /// The number of times that this process has passed each barrier.
    passed: HashMap<String, u64>,
}

/// A message is a header with the lengths of key and value, followed by both.
enum Incoming {
    Head(Request),
    Body { request: Request, key_len: usize },
}

const HEAD: usize = 16;

impl Store {
    pub(crate) fn new(comm: Communicator) -> Store {
        Store { comm, state: Arc::default() }
    }

    /// Stores a value for all processes.
    ///
    /// # Errors
    /// The key already has a value, as far as this process knows; or an error of MPI.
    pub fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        let mut state = self.state();
        self.advance(&mut state)?;
        let all: Vec<usize> = (0..self.comm.size()).collect();
        self.put_into(&mut state, key, value, &all)
    }

    /// Stores a value for some processes, replacing their present value.
    ///
    /// # Errors
    /// An error of MPI.
    pub fn publish(&self, key: &str, value: &[u8], ranks: &[usize]) -> Result<()> {
        let mut state = self.state();
        self.advance(&mut state)?;
        self.send(&mut state, key, value, ranks)
    }

    /// Waits for the value of a key.
    ///
    /// # Errors
    /// [`Kind::DeadlineExceeded`] if no process puts one in time; or an error of MPI.
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let deadline = crate::deadline(timeout);
        self.wait_until(deadline, |state| state.values.get(key).cloned())?.ok_or_else(|| {
            Error::new(Kind::DeadlineExceeded, format!("no process put a value for the key {key:?} within {timeout:?}"))
        })
    }

    /// The value of a key, if it is available.
    ///
    /// # Errors
    /// An error of MPI.
    pub fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let mut state = self.state();
        self.advance(&mut state)?;
        Ok(state.values.get(key).cloned())
    }

    /// Waits until all processes have reached the barrier of this name as often as this one.
    ///
    /// # Errors
    /// [`Kind::DeadlineExceeded`] with the missing processes; or an error of MPI.
    pub fn barrier(&self, name: &str, timeout: Duration) -> Result<()> {
        let all: Vec<usize> = (0..self.comm.size()).collect();
        self.exchange(name, &all, &[], timeout).map(drop)
    }

    /// A barrier between some processes, at which each passes a value and receives those of all in the order of the
    /// list.
    ///
    /// # Errors
    /// As for [`Store::barrier`]; also if this process is not in the list, or a listed one does not exist.
    pub fn exchange(&self, name: &str, ranks: &[usize], value: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let deadline = crate::deadline(timeout);
        let (own, size) = (self.comm.rank(), self.comm.size());
        if !ranks.contains(&own) || ranks.iter().any(|&rank| rank >= size) {
            return Err(Error::new(
                Kind::InvalidArgument,
                format!("process {own} of {size} cannot join the barrier {name:?} of processes {ranks:?}"),
            ));
        }
        let round = {
            let mut state = self.state();
            let round = state.passed.get(name).copied().unwrap_or(0);
            let key = barrier_key(name, round, own);
            // Its own entry exists already if an earlier attempt timed out.
            if !state.values.contains_key(&key) {
                self.put_into(&mut state, &key, value, ranks)?;
            }
            round
        };
        let missing = |state: &State| -> Vec<usize> {
            let absent = |rank: &usize| !state.values.contains_key(&barrier_key(name, round, *rank));
            ranks.iter().copied().filter(absent).collect()
        };
        let all = self.wait_until(deadline, |state| missing(state).is_empty().then_some(()))?;
        let mut state = self.state();
        if all.is_none() {
            let (missing, count) = (missing(&state), ranks.len());
            return Err(Error::new(
                Kind::DeadlineExceeded,
                format!(
                    "{} of {count} processes reached the barrier {name:?} within {timeout:?}; missing: processes \
                     {missing:?}",
                    count - missing.len()
                ),
            ));
        }
        state.passed.insert(name.to_owned(), round + 1);
        let take = |rank: &usize| state.values.remove(&barrier_key(name, round, *rank)).unwrap_or_default();
        Ok(ranks.iter().map(take).collect())
    }

    /// Cancels the receives from the other processes, all of which have left.
    pub(crate) fn close(&self) -> Result<()> {
        let incoming = std::mem::take(&mut self.state().incoming);
        incoming.into_iter().try_for_each(|(_, expected)| match expected {
            Incoming::Head(request) | Incoming::Body { request, .. } => request.cancel(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until<R>(&self, deadline: Instant, found: impl Fn(&State) -> Option<R>) -> Result<Option<R>> {
        for tries in 0.. {
            {
                let mut state = self.state();
                self.advance(&mut state)?;
                if let Some(result) = found(&state) {
                    return Ok(Some(result));
                }
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            match tries {
                0..EAGER_TRIES => std::thread::yield_now(),
                _ => std::thread::sleep(NAP),
            }
        }
        Ok(None)
    }

    fn put_into(&self, state: &mut State, key: &str, value: &[u8], ranks: &[usize]) -> Result<()> {
        if state.values.contains_key(key) {
            return Err(Error::new(Kind::FailedPrecondition, format!("the key {key:?} already has a value")));
        }
        self.send(state, key, value, ranks)?;
        state.values.insert(key.to_owned(), value.to_vec());
        Ok(())
    }

    fn send(&self, state: &mut State, key: &str, value: &[u8], ranks: &[usize]) -> Result<()> {
        let mut head = (key.len() as u64).to_ne_bytes().to_vec();
        head.extend((value.len() as u64).to_ne_bytes());
        let body = [key.as_bytes(), value].concat();
        for &peer in ranks.iter().filter(|&&rank| rank != self.comm.rank()) {
            state.outgoing.push(self.comm.send(peer, head.clone())?);
            state.outgoing.push(self.comm.send(peer, body.clone())?);
        }
        Ok(())
    }

    /// Receives the messages that have arrived.
    fn advance(&self, state: &mut State) -> Result<()> {
        if state.incoming.is_empty() {
            for peer in (0..self.comm.size()).filter(|&rank| rank != self.comm.rank()) {
                state.incoming.push((peer, Incoming::Head(self.comm.receive(peer, HEAD)?)));
            }
        }
        let State { values, incoming, outgoing, .. } = state;
        for (peer, expected) in incoming {
            loop {
                let request = match expected {
                    Incoming::Head(request) | Incoming::Body { request, .. } => request,
                };
                if !request.is_done()? {
                    break;
                }
                let next = match expected {
                    Incoming::Head(request) => {
                        let head = request.take_result();
                        let number =
                            |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().unwrap_or_default()) as usize;
                        let (key_len, value_len) = (number(0), number(8));
                        Incoming::Body { request: self.comm.receive(*peer, key_len + value_len)?, key_len }
                    }
                    Incoming::Body { request, key_len } => {
                        let mut key = request.take_result();
                        let value = key.split_off(*key_len);
                        values.insert(String::from_utf8_lossy(&key).into_owned(), value);
                        Incoming::Head(self.comm.receive(*peer, HEAD)?)
                    }
                };
                *expected = next;
            }
        }
        let mut failed = None;
        outgoing.retain_mut(|request| match request.is_done() {
            Ok(done) => !done,
            Err(error) => {
                failed.get_or_insert(error);
                false
            }
        });
        failed.map_or(Ok(()), Err)
    }
}

fn barrier_key(name: &str, round: u64, rank: usize) -> String {
    format!("shardax.barrier/{name}/{round}/{rank}")
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("comm", &self.comm).finish_non_exhaustive()
    }
}
