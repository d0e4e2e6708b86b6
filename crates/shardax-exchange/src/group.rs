//! Groups of devices from the view of one process.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use shardax_mpi::{Messages, Request};

use crate::call::Call;
use crate::channel::{CallId, Channel};
use crate::{Exchange, Outcome, lock};

/// The number of rounds that are started before the previous one is awaited.
const ROUNDS_AHEAD: usize = 1;

/// The distribution of a group's members over processes.
pub(crate) struct Places {
    /// The devices of the group, in order.
    pub(crate) devices: Vec<usize>,
    /// The processes in ascending order, each with the indices of its devices in the group.
    pub(crate) processes: Vec<(usize, Vec<usize>)>,
    /// The index of this process in `processes`.
    pub(crate) me: usize,
    /// The number of members.
    count: usize,
    channel: OnceLock<Arc<Channel>>,
}

/// A group of devices in one call.
pub(crate) struct Group<'a> {
    exchange: &'a Exchange,
    /// The call that uses the group.
    call: CallId,
    places: Arc<Places>,
}

impl Deref for Group<'_> {
    type Target = Places;

    fn deref(&self) -> &Places {
        &self.places
    }
}

impl Places {
    fn new(exchange: &Exchange, devices: Vec<usize>) -> Outcome<Places> {
        let mut processes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, &device) in devices.iter().enumerate() {
            processes.entry(exchange.owner(device)?).or_default().push(place);
        }
        match processes.keys().position(|&process| process == exchange.rank) {
            Some(me) => Ok(Places {
                count: devices.len(),
                devices,
                processes: processes.into_iter().collect(),
                me,
                channel: OnceLock::new(),
            }),
            None => Err(format!("no device of {devices:?} belongs to this process")),
        }
    }

    /// The indices of this process's devices in the group.
    pub(crate) fn local_places(&self) -> &[usize] {
        &self.processes[self.me].1
    }

    /// The number of devices of a process in the group.
    pub(crate) fn count(&self, process: usize) -> usize {
        self.processes[process].1.len()
    }

    /// The largest number of devices of a process.
    pub(crate) fn max_devices(&self) -> usize {
        self.processes.iter().map(|(_, places)| places.len()).max().unwrap_or(1)
    }

    /// Returns true if all devices belong to this process.
    pub(crate) fn is_local(&self) -> bool {
        self.processes.len() == 1
    }

    /// The other processes.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, count) = (self.me, self.processes.len());
        // Each process starts with the next one, because otherwise all would send to the same one first.
        (1..count).map(move |step| (me + step) % count)
    }
}

/// Message streams: a round, or the result of a round.
#[derive(Clone, Copy)]
pub(crate) enum Stream {
    Rounds = 1,
    Sums = 2,
}

impl<'a> Group<'a> {
    /// The group of a call. `read` returns its devices. It is called only if the groups differ from the previous
    /// call's, which is rare.
    pub(crate) fn of<'c>(
        exchange: &'a Exchange,
        call: &Call<'c>,
        read: fn(&Call<'c>) -> Outcome<Vec<usize>>,
    ) -> Outcome<Group<'a>> {
        let key = (call.program, call.number, call.device);
        let cached = lock(&exchange.groups).get(&key).cloned();
        // The key alone is not enough, because calls of other programs may have the same number, or none.
        let places = match cached.filter(|(encoded, _)| call.has_groups(encoded)) {
            Some((_, places)) => places,
            None => {
                let places = Arc::new(Places::new(exchange, read(call)?)?);
                lock(&exchange.groups).insert(key, (call.encoded(), places.clone()));
                places
            }
        };
        Ok(Group { exchange, call: CallId::of(call), places })
    }

    /// The group with one member for each process, which contributes for all of its devices.
    pub(crate) fn by_process(&self) -> Group<'a> {
        let places = self.processes.iter().enumerate().map(|(place, (process, _))| (*process, vec![place]));
        let places = Places {
            devices: self.devices.clone(),
            processes: places.collect(),
            me: self.me,
            count: self.processes.len(),
            channel: self.channel.clone(),
        };
        Group { exchange: self.exchange, call: self.call, places: Arc::new(places) }
    }

    fn channel(&self) -> Outcome<Arc<Channel>> {
        if let Some(channel) = self.channel.get() {
            return Ok(channel.clone());
        }
        let ranks: Vec<usize> = self.processes.iter().map(|(process, _)| *process).collect();
        let channel = self.exchange.channel(&self.devices, &ranks, self.call)?;
        Ok(self.channel.get_or_init(|| channel).clone())
    }

    /// Gathers the data of all processes in one exchange.
    pub(crate) fn all_gather(&self, data: Vec<u8>, counts: &[usize]) -> Outcome<Vec<u8>> {
        self.channel()?.all_gather((self.exchange, self.call), data, counts)
    }

    /// A buffer of this length with arbitrary contents.
    pub(crate) fn buffer(&self, len: usize) -> Vec<u8> {
        self.exchange.buffers.take(len)
    }

    /// Starts to send, and to receive the number of bytes that `expect` returns from each peer.
    pub(crate) fn start(
        &self,
        stream: Stream,
        Sends { sent, sends }: Sends,
        expect: impl Fn(usize) -> usize,
    ) -> Outcome<Started> {
        let channel = self.channel()?;
        let receives = self.peers().map(|peer| (peer, self.buffer(expect(peer)))).collect();
        let request = channel.start((self.exchange, self.call), stream as u16, Messages { sent, sends, receives })?;
        Ok(Started { channel, request })
    }

    /// Waits for messages, and passes the received buffers to `take`, by process. The buffer of this process is empty.
    pub(crate) fn finish<T>(&self, started: Started, take: impl FnOnce(&[Vec<u8>]) -> Outcome<T>) -> Outcome<T> {
        let (sent, received) = started.channel.finish((self.exchange, self.call), started.request)?;
        let mut by_process = vec![Vec::new(); self.processes.len()];
        self.peers().zip(received).for_each(|(peer, bytes)| by_process[peer] = bytes);
        let result = take(&by_process);
        self.exchange.buffers.put_back(sent.into_iter().chain(by_process));
        result
    }

    /// Sends and receives in rounds. While the results of a round are processed, the next one can be in flight. `send`
    /// returns the data of a round and its receivers; `expect` returns the number of bytes from a process.
    pub(crate) fn rounds<D>(
        &self,
        state: &mut D,
        count: usize,
        send: impl Fn(&D, usize) -> Outcome<Sends>,
        expect: impl Fn(usize, usize) -> usize,
        mut take: impl FnMut(&mut D, usize, &[Vec<u8>]) -> Outcome<()>,
    ) -> Outcome<()> {
        let mut started = VecDeque::new();
        for round in 0..count + ROUNDS_AHEAD {
            if round < count && !self.is_local() {
                let sends = send(state, round)?;
                started.push_back(self.start(Stream::Rounds, sends, |peer| expect(round, peer))?);
            }
            // The first round has no predecessor, and the last iteration only finishes one.
            let Some(previous) = round.checked_sub(ROUNDS_AHEAD) else { continue };
            match started.pop_front() {
                Some(messages) => self.finish(messages, |received| take(state, previous, received))?,
                None => take(state, previous, &[Vec::new()])?,
            }
        }
        Ok(())
    }

    /// The messages of a round with separate data for each peer.
    pub(crate) fn to_each(&self, fill: impl Fn(usize) -> Outcome<Vec<u8>>) -> Outcome<Sends> {
        let sent = self.peers().map(fill).collect::<Outcome<_>>()?;
        Ok(Sends { sent, sends: self.peers().zip(0..).collect() })
    }

    /// The messages of a round with equal data for all peers.
    pub(crate) fn to_all(&self, data: Vec<u8>) -> Sends {
        Sends { sent: vec![data], sends: self.peers().map(|peer| (peer, 0)).collect() }
    }

    /// Concatenates parts of equal length.
    pub(crate) fn packed(&self, parts: &[Cow<'_, [u8]>]) -> Vec<u8> {
        let len = parts.first().map_or(0, |part| part.len());
        let mut bytes = self.buffer(parts.len() * len);
        bytes.chunks_exact_mut(len.max(1)).zip(parts).for_each(|(to, part)| to.copy_from_slice(part));
        bytes
    }

    /// The parts of all devices, each of `len` bytes, in the group's order. `local` has the parts of this process's
    /// devices, and `received` the parts of the others, sorted by process.
    pub(crate) fn in_order<'b>(
        &self,
        local: &'b [Cow<'_, [u8]>],
        received: &'b [Vec<u8>],
        len: usize,
    ) -> Vec<&'b [u8]> {
        let mut ordered: Vec<&[u8]> = vec![&[]; self.places.count];
        for (process, (_, places)) in self.processes.iter().enumerate() {
            for (k, &place) in places.iter().enumerate() {
                ordered[place] =
                    if process == self.me { &local[k] } else { &received[process][k * len..(k + 1) * len] };
            }
        }
        ordered
    }
}

/// Buffers to send, with the receivers of each.
pub(crate) struct Sends {
    sent: Vec<Vec<u8>>,
    sends: Vec<(usize, usize)>,
}

/// Messages in flight.
pub(crate) struct Started {
    channel: Arc<Channel>,
    request: Request,
}
