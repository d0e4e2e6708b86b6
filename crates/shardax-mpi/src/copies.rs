//! A key-value store by MPI messages, in which each process has copies of the values.
//!
//! A process sends the values that it sets to the others, so that reading is local. There is no background thread;
//! instead, a process receives values whenever it reads or sets one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::comm::{Communicator, Request};
use crate::error::Result;
use crate::key_value::KeyValue;

/// The copies of one process, and the messages under way.
pub(crate) struct Copies {
    comm: Communicator,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    values: HashMap<String, Vec<u8>>,
    /// The receive in progress from each other process.
    incoming: Vec<(usize, Incoming)>,
    /// Sent messages that may not have been received.
    outgoing: Vec<Request>,
}

/// A message is a header with the lengths of key and value, followed by both.
enum Incoming {
    Head(Request),
    Body { request: Request, key_len: usize },
}

const HEAD: usize = 16;

impl Copies {
    pub fn new(comm: Communicator) -> Copies {
        Copies { comm, state: Mutex::default() }
    }

    /// Cancels the receives from the other processes, because all of them have left.
    pub fn close(&self) -> Result<()> {
        let incoming = std::mem::take(&mut self.state().incoming);
        incoming.into_iter().try_for_each(|(_, expected)| match expected {
            Incoming::Head(request) | Incoming::Body { request, .. } => request.cancel(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, with the messages that have arrived.
    fn advanced(&self) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        self.advance(&mut state)?;
        Ok(state)
    }

    fn send(&self, state: &mut State, key: &str, value: &[u8], ranks: &[usize]) -> Result<()> {
        let mut head = (key.len() as u64).to_ne_bytes().to_vec();
        head.extend((value.len() as u64).to_ne_bytes());
        let body = [key.as_bytes(), value].concat();
        for &peer in ranks.iter().filter(|&&rank| rank != self.comm.rank()) {
            state.outgoing.push(self.comm.send(peer, head.clone())?);
            state.outgoing.push(self.comm.send(peer, body.clone())?);
        }
        state.values.insert(key.to_owned(), value.to_vec());
        Ok(())
    }

    /// Receives the messages that have arrived.
    fn advance(&self, state: &mut State) -> Result<()> {
        if state.incoming.is_empty() {
            for peer in (0..self.comm.size()).filter(|&rank| rank != self.comm.rank()) {
                state.incoming.push((peer, Incoming::Head(self.comm.receive(peer, HEAD)?)));
            }
        }
        // A message is a head with two lengths, and then a body of that size: the next receive depends on the last one.
        let State { values, incoming, outgoing } = state;
        for (peer, expected) in incoming {
            loop {
                let request = match expected {
                    Incoming::Head(request) | Incoming::Body { request, .. } => request,
                };
                if !request.is_done()? {
                    break;
                }
                let following = match expected {
                    Incoming::Head(request) => {
                        let head = request.take_result();
                        let [key_len, value_len] = [&head[..8], &head[8..16]]
                            .map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap_or_default()) as usize);
                        Incoming::Body { request: self.comm.receive(*peer, key_len + value_len)?, key_len }
                    }
                    Incoming::Body { request, key_len } => {
                        let mut key = request.take_result();
                        let value = key.split_off(*key_len);
                        values.insert(String::from_utf8_lossy(&key).into_owned(), value);
                        Incoming::Head(self.comm.receive(*peer, HEAD)?)
                    }
                };
                *expected = following;
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

impl KeyValue for Copies {
    fn set(&self, key: &str, value: &[u8], readers: &[usize]) -> Result<()> {
        let mut state = self.advanced()?;
        self.send(&mut state, key, value, readers)
    }

    /// As far as this process knows: another may set the key at the same time.
    fn set_new(&self, key: &str, value: &[u8], readers: &[usize]) -> Result<bool> {
        let mut state = self.advanced()?;
        let is_new = !state.values.contains_key(key);
        if is_new {
            self.send(&mut state, key, value, readers)?;
        }
        Ok(is_new)
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.advanced()?.values.get(key).cloned())
    }

    fn remove(&self, key: &str) -> Result<()> {
        self.state().values.remove(key);
        Ok(())
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn interval(&self) -> Duration {
        Duration::from_micros(50)
    }
}
