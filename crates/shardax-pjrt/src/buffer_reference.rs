//! References that protect the buffers of a launch from being deleted or donated by other threads.
//!
//! The CPU plugin (xla-cpu-pjrt 0.0.1) hangs after a multi-device launch that fails its own argument checks. A launch
//! therefore acquires all of its arguments or none before it calls the plugin. Noticed by
//! `hazards::racing_donation_and_use`.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::error::{Code, Error, Result};

/// The state of a buffer: 0 when unused, otherwise counts of its users, or one of the exclusive states. A deleted buffer
/// may still have readers, if all of them are [`SharedMemory`].
///
/// The second number counts the readers that are [`SharedMemory`].
pub(crate) struct BufferState(AtomicU32, AtomicU32);

const USE: u32 = 1; // a launch that reads it, counted in bits 0..15
const VIEW: u32 = 1 << 15; // a reader of its memory, counted in bits 15..30
const VIEWS: u32 = ((1 << 15) - 1) << 15;
const EXCLUSIVE: u32 = 1 << 30; // a launch is donating it, or a thread is deleting it
const DELETED: u32 = 2 << 30;
const DONATED: u32 = 3 << 30;

/// The result of trying to acquire a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attempt {
    Done,
    Busy,
    Viewed,
    Deleted,
    Donated,
}

impl BufferState {
    pub(crate) fn new() -> BufferState {
        BufferState(AtomicU32::new(0), AtomicU32::new(0))
    }

    #[inline]
    fn try_add(&self, unit: u32) -> Attempt {
        let mut state = self.0.load(Ordering::Relaxed);
        loop {
            if state >= EXCLUSIVE {
                return describe(state);
            }
            // Above half of a counter's range it waits instead of overflowing into the next bit field.
            if (unit == USE && state & (VIEW >> 1) != 0) || (unit == VIEW && state & (EXCLUSIVE >> 1) != 0) {
                return Attempt::Busy;
            }
            match self.0.compare_exchange_weak(state, state + unit, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Attempt::Done,
                Err(now) => state = now,
            }
        }
    }

    #[inline]
    fn try_take(&self) -> Attempt {
        match self.0.compare_exchange(0, EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Attempt::Done,
            Err(state) => describe(state),
        }
    }

    /// Adds a reader.
    ///
    /// # Errors
    /// Returns an error if the buffer was deleted or donated.
    fn read(&self) -> Result<()> {
        let mut wait = Wait::new();
        loop {
            match self.try_add(VIEW) {
                Attempt::Done => return Ok(()),
                attempt @ (Attempt::Deleted | Attempt::Donated) => {
                    return Err(unavailable(attempt, "the buffer to read"));
                }
                Attempt::Busy | Attempt::Viewed => wait.for_launch(),
            }
        }
    }

    #[inline]
    fn sub(&self, unit: u32) {
        self.0.fetch_sub(unit, Ordering::Release);
    }

    #[inline]
    fn set(&self, state: u32) {
        self.0.store(state, Ordering::Release);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.0.load(Ordering::Acquire) >= DELETED
    }

    /// Fails if the buffer was deleted or donated.
    pub(crate) fn check(&self, name: impl Fn() -> String) -> Result<()> {
        match describe(self.0.load(Ordering::Acquire)) {
            attempt @ (Attempt::Deleted | Attempt::Donated) => Err(unavailable(attempt, &name())),
            _ => Ok(()),
        }
    }

    /// Marks the buffer as deleted, after its launches and readers. Returns true if the caller must free its memory:
    /// the buffer was neither deleted nor donated before, and no other library shares the memory.
    ///
    /// # Errors
    /// Returns an error if this thread is reading the buffer, or another thread has been for too long.
    pub(crate) fn delete(&self, owner: *const Buffer) -> Result<bool> {
        let mut wait = Wait::new();
        loop {
            match self.try_take() {
                Attempt::Done => {
                    self.set(DELETED);
                    return Ok(true);
                }
                Attempt::Deleted | Attempt::Donated => return Ok(false),
                Attempt::Viewed if self.try_delete_shared() => return Ok(false),
                Attempt::Viewed => wait.for_reader(self, owner, || "the buffer to delete".into())?,
                Attempt::Busy => wait.for_launch(),
            }
        }
    }

    fn is_shared(&self) -> bool {
        self.1.load(Ordering::Acquire) != 0
    }

    /// Marks a buffer as deleted whose only users are other libraries, and keeps their count.
    fn try_delete_shared(&self) -> bool {
        let shared = self.1.load(Ordering::Acquire) * VIEW;
        shared != 0 && self.0.compare_exchange(shared, DELETED | shared, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cold]
fn describe(state: u32) -> Attempt {
    match state {
        0 => Attempt::Busy, // released meanwhile: retry
        s if s >= DONATED => Attempt::Donated,
        s if s >= DELETED => Attempt::Deleted,
        s if s & VIEWS != 0 && s < EXCLUSIVE => Attempt::Viewed,
        _ => Attempt::Busy,
    }
}

fn unavailable(attempt: Attempt, name: &str) -> Error {
    Error::failed_precondition(match attempt {
        Attempt::Donated => {
            format!("{name} was donated to an earlier execution, which reused its memory")
        }
        _ => format!("{name} was deleted"),
    })
}

thread_local! {
    /// Buffers whose memory this thread is reading. Destructors of other thread locals may still read after this one is
    /// dropped; a thread that then waits for itself is detected by the time limit.
    static READING: RefCell<Vec<*const Buffer>> = const { RefCell::new(Vec::new()) };
}

/// Keeps a buffer's memory in place during a read.
pub(crate) struct ReadGuard<'a>(&'a Buffer);

impl<'a> ReadGuard<'a> {
    pub(crate) fn acquire(buffer: &'a Buffer) -> Result<ReadGuard<'a>> {
        buffer.state.read()?;
        let _ = READING.try_with(|reading| reading.borrow_mut().push(buffer));
        Ok(ReadGuard(buffer))
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        let _ = READING.try_with(|reading| {
            let mut reading = reading.borrow_mut();
            if let Some(at) = reading.iter().rposition(|&b| std::ptr::eq(b, self.0)) {
                reading.swap_remove(at);
            }
        });
        self.0.state.sub(VIEW);
    }
}

/// The numbers of references dropped and of threads that are copying one. A waiting thread resets its time limit as
/// long as either shows progress.
static DROPPED: AtomicU64 = AtomicU64::new(0);
static ACTIVE_COPIES: AtomicUsize = AtomicUsize::new(0);

/// A reference to a buffer for work on another thread. Until it is dropped the buffer can be used, but donating or
/// deleting it waits.
#[derive(Debug)]
pub struct BufferReference(Arc<Buffer>);

impl BufferReference {
    /// Acquires a reference. Does not wait for the data.
    ///
    /// # Errors
    /// Returns an error if the buffer was deleted or donated.
    pub fn acquire(buffer: &Arc<Buffer>) -> Result<BufferReference> {
        buffer.state.read()?;
        Ok(BufferReference(buffer.clone()))
    }

    /// Runs `f`, which copies referenced buffers. While any thread runs such a copy, threads that wait for referenced
    /// buffers keep waiting. Otherwise they give up after ten seconds, because a leaked reference would block them
    /// forever.
    pub fn while_copying<R>(f: impl FnOnce() -> R) -> R {
        struct Ends;
        impl Drop for Ends {
            fn drop(&mut self) {
                DROPPED.fetch_add(1, Ordering::Relaxed);
                ACTIVE_COPIES.fetch_sub(1, Ordering::Relaxed);
            }
        }
        ACTIVE_COPIES.fetch_add(1, Ordering::Relaxed);
        let _ends = Ends;
        f()
    }
}

impl Drop for BufferReference {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
        self.0.state.sub(VIEW);
    }
}

/// The memory of a buffer that another library shares for as long as it likes. The buffer can be deleted meanwhile: its
/// memory is then freed with the last of these.
pub(crate) struct SharedMemory(Arc<Buffer>);

impl SharedMemory {
    /// # Errors
    /// Returns an error if the buffer was deleted or donated.
    pub(crate) fn acquire(buffer: &Arc<Buffer>) -> Result<SharedMemory> {
        buffer.state.read()?;
        buffer.state.1.fetch_add(1, Ordering::AcqRel);
        Ok(SharedMemory(buffer.clone()))
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let BufferState(users, shared) = &self.0.state;
        // In this order, because a thread that deletes the buffer compares both: it must not see more libraries than readers.
        shared.fetch_sub(1, Ordering::AcqRel);
        DROPPED.fetch_add(1, Ordering::Relaxed);
        if users.fetch_sub(VIEW, Ordering::AcqRel) == DELETED | VIEW {
            // It fails if the process is ending, which frees the memory too.
            let _ = self.0.free();
        }
    }
}

/// References to all arguments of one launch.
pub(crate) struct BufferReferences<'a> {
    args: &'a [&'a Buffer],
    donated: &'a [bool],
}

impl<'a> BufferReferences<'a> {
    /// Acquires all arguments or none. `args` is device-major; `donated` has a flag for each parameter, or is empty if
    /// no parameter is donated.
    ///
    /// # Errors
    /// Returns an error if an argument was deleted or donated, appears twice and is donated, or is being read for too
    /// long.
    #[inline]
    pub(crate) fn take(args: &'a [&'a Buffer], donated: &'a [bool]) -> Result<BufferReferences<'a>> {
        let mut wait = Wait::new();
        loop {
            match Self::try_all(args, donated) {
                Ok(()) => return Ok(BufferReferences { args, donated }),
                Err((at, attempt)) => Self::resolve(args, donated, at, attempt, &mut wait)?,
            }
        }
    }

    /// Tries to acquire every argument once. If one is unavailable, releases those before it and returns its index.
    #[inline]
    fn try_all(args: &[&Buffer], donated: &[bool]) -> std::result::Result<(), (usize, Attempt)> {
        let mut index = 0;
        while index < args.len() {
            let state = &args[index].state;
            let attempt = if is_donated(donated, index) { state.try_take() } else { state.try_add(USE) };
            if attempt != Attempt::Done {
                Self::release(&args[..index], donated, 0);
                return Err((index, attempt));
            }
            index += 1;
        }
        Ok(())
    }

    #[inline]
    fn release(args: &[&Buffer], donated: &[bool], taken_becomes: u32) {
        if donated.is_empty() {
            for arg in args {
                arg.state.sub(USE);
            }
            return;
        }
        for (index, arg) in args.iter().enumerate() {
            if donated[index % donated.len()] { arg.state.set(taken_becomes) } else { arg.state.sub(USE) }
        }
    }

    /// Returns an error, or waits before the next attempt.
    #[cold]
    fn resolve(args: &[&Buffer], donated: &[bool], index: usize, attempt: Attempt, wait: &mut Wait) -> Result<()> {
        let parameters = if donated.is_empty() { args.len() } else { donated.len() };
        let arg = args[index];
        let name = || format!("argument {} ({}) on {}", index % parameters, arg.shape_text(), arg.device());
        if matches!(attempt, Attempt::Deleted | Attempt::Donated) {
            return Err(unavailable(attempt, &name()));
        }
        // Waiting for a buffer that this launch itself holds would never end.
        let duplicate = (0..args.len()).find(|&other| {
            let is_same_buffer = other != index && std::ptr::eq(args[other], arg);
            is_same_buffer && (is_donated(donated, other) || is_donated(donated, index))
        });
        if let Some(duplicate) = duplicate {
            return Err(Error::invalid_argument(format!(
                "{} is donated and is also passed as argument {}; pass a copy, or do not donate it",
                name(),
                duplicate % parameters
            )));
        }
        match attempt {
            Attempt::Viewed => wait.for_reader(&arg.state, arg, name),
            _ => {
                wait.for_launch();
                Ok(())
            }
        }
    }

    /// Ends the launch. Donated buffers become `DONATED`; if the plugin failed before it took them, they are released.
    #[inline]
    pub(crate) fn finish(self, launched: bool) {
        if launched || self.donated.is_empty() {
            Self::release(self.args, self.donated, DONATED);
            return;
        }
        for (index, arg) in self.args.iter().enumerate() {
            if self.donated[index % self.donated.len()] {
                arg.state.set(if arg.plugin_says_deleted() { DONATED } else { 0 });
            } else {
                arg.state.sub(USE);
            }
        }
    }
}

/// Returns true if the launch donates the argument at this index; `donated` has a flag for each parameter, or is empty.
#[inline]
fn is_donated(donated: &[bool], index: usize) -> bool {
    !donated.is_empty() && donated[index % donated.len()]
}

/// Waiting without a lock: spins, yields, then sleeps.
struct Wait {
    rounds: u32,
    /// The time at which the last reference was dropped, and the number of references dropped by then.
    since: Option<(Instant, u64)>,
}

/// The time that a donation waits for a reader on another thread. After that, the two threads probably wait for each
/// other.
const READER_LIMIT: Duration = Duration::from_secs(10);

impl Wait {
    fn new() -> Wait {
        Wait { rounds: 0, since: None }
    }

    fn for_launch(&mut self) {
        self.rounds += 1;
        match self.rounds {
            0..16 => std::hint::spin_loop(),
            16..64 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(50)),
        }
    }

    fn for_reader(&mut self, state: &BufferState, buffer: *const Buffer, name: impl Fn() -> String) -> Result<()> {
        if READING.try_with(|reading| reading.borrow().contains(&buffer)).unwrap_or(false) {
            return Err(Error::failed_precondition(format!(
                "{} is being read by this thread (Buffer::with_bytes), so it can be neither donated nor deleted",
                name()
            )));
        }
        if state.is_shared() {
            return Err(Error::failed_precondition(format!(
                "another library shares the memory of {} (DLPack), so it cannot be donated. Drop the tensor first, or \
                 pass a copy",
                name()
            )));
        }
        // The limit counts from the last time that any reader ended: a queue of short readers is not a deadlock.
        let dropped = DROPPED.load(Ordering::Relaxed);
        let (since, seen) = self.since.get_or_insert_with(|| (Instant::now(), dropped));
        if *seen != dropped || ACTIVE_COPIES.load(Ordering::Relaxed) > 0 {
            (*since, *seen) = (Instant::now(), dropped);
        }
        if since.elapsed() > READER_LIMIT {
            return Err(Error::new(
                Code::Aborted,
                format!("{} has been read by another thread for {} s", name(), READER_LIMIT.as_secs()),
            ));
        }
        self.for_launch();
        Ok(())
    }
}
