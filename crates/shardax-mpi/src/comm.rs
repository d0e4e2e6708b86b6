//! Communicators: exchanging bytes between the processes of a group, with requests and deadlines.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::abi::{Handle, Table};
use crate::error::{Error, Kind, Result};

/// The size at which messages are split: MPI counts bytes in a C `int`.
const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// Checks of a request before the waiting thread sleeps between checks.
const EAGER_TRIES: u32 = 2000;
const CHECK_INTERVAL: Duration = Duration::from_micros(20);

/// A group of processes that exchange data with each other. Cloning increments a reference count.
///
/// All of them must start the same operations in the same order. Ranks are indices in the group.
#[derive(Clone)]
pub struct Communicator {
    inner: Arc<Inner>,
    piece: usize,
}

struct Inner {
    table: Arc<Table>,
    handle: Handle,
    rank: usize,
    size: usize,
}

impl Communicator {
    /// # Safety
    /// `handle` is a live communicator of this library, whose ownership is passed. It is never freed, because freeing
    /// is an operation of the whole group.
    pub(crate) unsafe fn from_handle(table: &Arc<Table>, handle: Handle) -> Result<Communicator> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: promised by the caller.
        unsafe {
            table.return_errors(handle)?;
            table.check("MPI_Comm_rank", (table.comm_rank)(handle, &raw mut rank))?;
            table.check("MPI_Comm_size", (table.comm_size)(handle, &raw mut size))?;
        }
        let (rank, size) = (usize::try_from(rank).unwrap_or(0), usize::try_from(size).unwrap_or(1));
        Ok(Communicator {
            inner: Arc::new(Inner { table: table.clone(), handle, rank, size }),
            piece: MAX_MESSAGE_BYTES,
        })
    }

    /// The rank of this process in the group.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// The number of processes in the group.
    pub fn size(&self) -> usize {
        self.inner.size
    }

    /// Returns the communicator with another size at which messages are split, between 1 byte and 1 GiB. All processes
    /// of the group must use the same size.
    pub fn with_piece_size(&self, bytes: usize) -> Communicator {
        Communicator { inner: self.inner.clone(), piece: bytes.clamp(1, MAX_MESSAGE_BYTES) }
    }

    /// Makes another communicator of the same processes. All of them must call it, and it has no deadline.
    ///
    /// # Errors
    /// Returns an error of MPI.
    pub fn duplicate(&self) -> Result<Communicator> {
        let (table, mut handle) = (&self.inner.table, 0);
        // SAFETY: the communicator is live.
        unsafe {
            table.check("MPI_Comm_dup", (table.comm_dup)(self.inner.handle, &raw mut handle))?;
            Communicator::from_handle(table, handle)
        }
    }

    /// Creates a communicator of some processes, in ascending order and including this one. All of them must call it,
    /// and it has no deadline. If threads of a process call it concurrently, their tags must differ.
    ///
    /// # Errors
    /// Returns an error if the list is invalid, or the error of MPI.
    pub fn group(&self, ranks: &[usize], tag: u16) -> Result<Communicator> {
        let ascending = ranks.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || ranks.iter().any(|&rank| rank >= self.size()) || !ranks.contains(&self.rank()) {
            return Err(Error::invalid_argument(format!(
                "a group is an ascending list of ranks below {} that contains this process's rank {}, not {ranks:?}",
                self.size(),
                self.rank()
            )));
        }
        let ranks: Vec<c_int> = ranks.iter().map(|&rank| rank as c_int).collect();
        let table = &self.inner.table;
        let (mut all, mut subset, mut handle) = (0, 0, 0);
        // MPI guarantees tags of at least 15 bits.
        let tag = c_int::from(tag & 0x7fff);
        // SAFETY: the communicator is live, the ranks belong to it, and the groups are freed once.
        unsafe {
            table.check("MPI_Comm_group", (table.comm_group)(self.inner.handle, &raw mut all))?;
            let code = (table.group_incl)(all, ranks.len() as c_int, ranks.as_ptr(), &raw mut subset);
            let created = table.check("MPI_Group_incl", code).and_then(|()| {
                let code = (table.comm_create_group)(self.inner.handle, subset, tag, &raw mut handle);
                (table.group_free)(&raw mut subset);
                table.check("MPI_Comm_create_group", code)
            });
            // Freed before an error is returned.
            (table.group_free)(&raw mut all);
            created?;
            Communicator::from_handle(table, handle)
        }
    }

    /// Gathers the data of all processes on every process, concatenated by rank. `counts` are the numbers of bytes of
    /// each process, and are the same everywhere.
    ///
    /// # Errors
    /// Returns an error if the counts do not match the data, or the error of MPI.
    pub fn all_gather(&self, data: Vec<u8>, counts: &[usize]) -> Result<Request> {
        if counts.len() != self.size() || counts[self.rank()] != data.len() {
            return Err(self.wrong_counts("all_gather", &data, counts));
        }
        let parts = ranges(counts);
        let mut result = vec![0u8; parts.last().map_or(0, |last| last.end)];
        // Displacements are C `int`s as well.
        if result.len() <= self.piece {
            let (sizes, starts) = (as_ints(counts), starts(&parts));
            let mut request = Request::new(self, vec![data], vec![result]);
            let Request { sent, received, lists, .. } = &mut request;
            let (data, result) = (&sent[0], &mut received[0]);
            lists.extend([sizes, starts]);
            let (inner, table) = (&self.inner, &self.inner.table);
            let mut handle = 0;
            // SAFETY: the memory and the lists belong to the request, which outlives the operation.
            let code = unsafe {
                (table.iallgatherv)(
                    data.as_ptr().cast(),
                    data.len() as c_int,
                    table.constants.byte,
                    result.as_mut_ptr().cast(),
                    lists[0].as_ptr(),
                    lists[1].as_ptr(),
                    table.constants.byte,
                    inner.handle,
                    &raw mut handle,
                )
            };
            request.started("MPI_Iallgatherv", code, handle)?;
            return Ok(request);
        }
        result[parts[self.rank()].clone()].copy_from_slice(&data);
        let range = 0..data.len();
        let mut request = Request::new(self, vec![data], vec![result]);
        for peer in self.peers() {
            request.receive(peer, 0, parts[peer].clone())?;
            request.send(peer, 0, range.clone())?;
        }
        Ok(request)
    }

    /// Gathers data of arbitrary lengths from all processes on every process, by rank.
    ///
    /// # Errors
    /// Returns [`Kind::DeadlineExceeded`], or an error of MPI.
    pub fn all_gather_any(&self, data: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let lengths = self.all_gather((data.len() as u64).to_ne_bytes().to_vec(), &vec![8; self.size()])?;
        let lengths = lengths.wait(deadline)?;
        let lengths: Vec<usize> =
            lengths.chunks_exact(8).map(|b| u64::from_ne_bytes(b.try_into().unwrap_or_default()) as usize).collect();
        let gathered = self.all_gather(data.to_vec(), &lengths)?.wait(deadline)?;
        Ok(ranges(&lengths).into_iter().map(|part| gathered[part].to_vec()).collect())
    }

    /// Exchanges the messages that [`Messages`] lists. The receiver of a message must receive the same number of bytes
    /// with the same tag and in the same order. Tags, below 32,000, separate streams of messages.
    /// # Errors
    /// Returns an error if a rank or buffer does not exist, or the error of MPI.
    pub fn exchange(&self, tag: u16, messages: Messages) -> Result<Request> {
        let Messages { sent, sends, receives } = messages;
        for &(peer, buffer) in &sends {
            self.check_rank(peer)?;
            if buffer >= sent.len() {
                return Err(Error::invalid_argument(format!(
                    "buffer {buffer} does not exist; there are {}",
                    sent.len()
                )));
            }
        }
        let (sources, received): (Vec<usize>, Vec<Vec<u8>>) = receives.into_iter().unzip();
        sources.iter().try_for_each(|&peer| self.check_rank(peer))?;
        let mut request = Request::new(self, sent, received);
        request.tag = c_int::from(tag & 0x7fff);
        for (buffer, peer) in sources.into_iter().enumerate() {
            request.receive(peer, buffer, 0..request.received[buffer].len())?;
        }
        for (peer, buffer) in sends {
            request.send(peer, buffer, 0..request.sent[buffer].len())?;
        }
        Ok(request)
    }

    /// Sends the data of `root` to every process. The others pass data of the same length, which is overwritten.
    ///
    /// # Errors
    /// Returns an error if the rank does not exist, or the error of MPI.
    pub fn broadcast(&self, root: usize, data: Vec<u8>) -> Result<Request> {
        self.check_rank(root)?;
        let len = data.len();
        let mut request = Request::new(self, Vec::new(), vec![data]);
        let (inner, table) = (&self.inner, &self.inner.table);
        for start in (0..len).step_by(self.piece) {
            let size = self.piece.min(len - start);
            let mut handle = 0;
            // SAFETY: the memory belongs to the request, which outlives the operation.
            let code = unsafe {
                let piece = request.received[0].as_mut_ptr().add(start).cast::<c_void>();
                (table.ibcast)(piece, size as c_int, table.constants.byte, root as c_int, inner.handle, &raw mut handle)
            };
            request.started("MPI_Ibcast", code, handle)?;
        }
        Ok(request)
    }

    /// Sends bytes to one process, which must [`receive`](Communicator::receive) the same number. The result is empty.
    ///
    /// # Errors
    /// Returns an error if the rank does not exist, or the error of MPI.
    pub fn send(&self, to: usize, data: Vec<u8>) -> Result<Request> {
        self.check_rank(to)?;
        let range = 0..data.len();
        let mut request = Request::new(self, vec![data], Vec::new());
        request.send(to, 0, range)?;
        Ok(request)
    }

    /// Receives `bytes` bytes from one process.
    ///
    /// # Errors
    /// Returns an error if the rank does not exist, or the error of MPI.
    pub fn receive(&self, from: usize, bytes: usize) -> Result<Request> {
        self.check_rank(from)?;
        let mut request = Request::new(self, Vec::new(), vec![vec![0; bytes]]);
        request.receive(from, 0, 0..bytes)?;
        Ok(request)
    }

    /// The other processes, starting with the next, so that not all send to the same one first.
    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, size) = (self.rank(), self.size());
        (1..size).map(move |step| (rank + step) % size)
    }

    fn check_rank(&self, rank: usize) -> Result<()> {
        if rank < self.size() {
            return Ok(());
        }
        Err(Error::invalid_argument(format!("process {rank} does not exist; there are {}", self.size())))
    }

    #[cold]
    fn wrong_counts(&self, what: &str, data: &[u8], counts: &[usize]) -> Error {
        Error::invalid_argument(format!(
            "{what} of {} bytes by process {} of {} does not match the counts {counts:?}",
            data.len(),
            self.rank(),
            self.size()
        ))
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator").field("rank", &self.rank()).field("size", &self.size()).finish()
    }
}

/// The messages that a process sends and receives.
#[derive(Debug, Default)]
pub struct Messages {
    /// The buffers to send.
    pub sent: Vec<Vec<u8>>,
    /// Receivers, with the index of the buffer for each.
    pub sends: Vec<(usize, usize)>,
    /// Senders, with a buffer as long as the message of each.
    pub receives: Vec<(usize, Vec<u8>)>,
}

/// An operation in flight, with the memory that it reads and writes.
///
/// If it is dropped before it is done, the memory is leaked to MPI: collectives cannot be cancelled.
#[must_use = "an operation that is not waited for may never happen"]
pub struct Request {
    comm: Communicator,
    sent: Vec<Vec<u8>>,
    received: Vec<Vec<u8>>,
    tag: c_int,
    /// Counts and displacements, which MPI reads until the operation is done.
    lists: Vec<Vec<c_int>>,
    /// The parts that were not done at the last check.
    pending: Vec<Handle>,
}

impl Request {
    fn new(comm: &Communicator, sent: Vec<Vec<u8>>, received: Vec<Vec<u8>>) -> Request {
        Request { comm: comm.clone(), sent, received, tag: 0, lists: Vec::new(), pending: Vec::new() }
    }

    fn started(&mut self, what: &str, code: c_int, handle: Handle) -> Result<()> {
        self.comm.inner.table.check(what, code)?;
        self.pending.push(handle);
        Ok(())
    }

    fn send(&mut self, to: usize, buffer: usize, range: Range<usize>) -> Result<()> {
        let inner = self.comm.inner.clone();
        let table = &inner.table;
        for start in range.clone().step_by(self.comm.piece) {
            let piece = &self.sent[buffer][start..range.end.min(start + self.comm.piece)];
            let mut handle = 0;
            // SAFETY: the memory belongs to this request, which outlives the operation.
            let code = unsafe {
                let (at, size) = (piece.as_ptr().cast(), piece.len() as c_int);
                (table.isend)(at, size, table.constants.byte, to as c_int, self.tag, inner.handle, &raw mut handle)
            };
            self.started("MPI_Isend", code, handle)?;
        }
        Ok(())
    }

    fn receive(&mut self, from: usize, buffer: usize, range: Range<usize>) -> Result<()> {
        let inner = self.comm.inner.clone();
        let table = &inner.table;
        for start in range.clone().step_by(self.comm.piece) {
            let piece = &mut self.received[buffer][start..range.end.min(start + self.comm.piece)];
            let mut handle = 0;
            // SAFETY: the memory belongs to this request, which outlives the operation; parts do not overlap.
            let code = unsafe {
                let (at, size) = (piece.as_mut_ptr().cast(), piece.len() as c_int);
                (table.irecv)(at, size, table.constants.byte, from as c_int, self.tag, inner.handle, &raw mut handle)
            };
            self.started("MPI_Irecv", code, handle)?;
        }
        Ok(())
    }

    /// Checks whether it is done, which also lets MPI make progress.
    ///
    /// # Errors
    /// Returns an error of MPI, for example that another process has died.
    pub fn is_done(&mut self) -> Result<bool> {
        let table = &self.comm.inner.table;
        let mut failed = None;
        self.pending.retain_mut(|handle| {
            // SAFETY: the handle belongs to an operation that was started, and its memory belongs to this request.
            match unsafe { table.is_done(handle) } {
                Ok(done) => !done,
                Err(error) => {
                    failed.get_or_insert(error);
                    true
                }
            }
        });
        failed.map_or(Ok(self.pending.is_empty()), Err)
    }

    /// Cancels a receive for which nothing was sent.
    pub(crate) fn cancel(mut self) -> Result<()> {
        for handle in &mut self.pending {
            // SAFETY: the handle belongs to a receive that was started.
            let code = unsafe { (self.comm.inner.table.cancel)(handle) };
            self.comm.inner.table.check("MPI_Cancel", code)?;
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        self.wait(deadline).map(drop)
    }

    /// The received data of a request that is done.
    pub(crate) fn take_result(&mut self) -> Vec<u8> {
        debug_assert!(self.pending.is_empty());
        self.received.pop().unwrap_or_default()
    }

    /// The memory of a request that is done: sent and received buffers. Empty if it is not done.
    pub fn into_buffers(mut self) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        if self.pending.is_empty() {
            (std::mem::take(&mut self.sent), std::mem::take(&mut self.received))
        } else {
            Default::default()
        }
    }

    /// Waits until it is done or until the deadline; returns true if it is done.
    ///
    /// # Errors
    /// Returns an error of MPI, for example that another process has died.
    pub fn wait_until(&mut self, deadline: Instant) -> Result<bool> {
        let mut tries = 0;
        while !self.is_done()? {
            tries += 1;
            if tries < EAGER_TRIES {
                std::thread::yield_now();
                continue;
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        Ok(true)
    }

    /// Waits until it is done and returns the received data.
    ///
    /// # Errors
    /// Returns [`Kind::DeadlineExceeded`] if it is not done in time; an error of MPI, for example that another process
    /// has died.
    pub fn wait(mut self, deadline: Instant) -> Result<Vec<u8>> {
        if self.wait_until(deadline)? {
            return Ok(self.take_result());
        }
        Err(Error::new(
            Kind::DeadlineExceeded,
            format!(
                "process {} of {} timed out waiting for the others in an exchange of {} bytes",
                self.comm.rank(),
                self.comm.size(),
                [&self.sent, &self.received]
                    .map(|all| all.iter().map(Vec::len).sum::<usize>())
                    .into_iter()
                    .max()
                    .unwrap_or(0)
            ),
        ))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.pending.is_empty() {
            std::mem::forget((
                std::mem::take(&mut self.sent),
                std::mem::take(&mut self.received),
                std::mem::take(&mut self.lists),
            ));
        }
    }
}

/// The ranges of concatenated parts of these sizes.
fn ranges(counts: &[usize]) -> Vec<Range<usize>> {
    let mut start = 0;
    let ranges = counts.iter().map(|&count| {
        start += count;
        start - count..start
    });
    ranges.collect()
}

/// Converts counts whose sum fits into a C `int`.
fn as_ints(counts: &[usize]) -> Vec<c_int> {
    counts.iter().map(|&count| count as c_int).collect()
}

fn starts(parts: &[Range<usize>]) -> Vec<c_int> {
    parts.iter().map(|part| part.start as c_int).collect()
}
