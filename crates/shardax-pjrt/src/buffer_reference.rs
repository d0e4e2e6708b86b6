//! Who may use a buffer: the state that keeps a launch from meeting a buffer deleted or donated under its feet.
//!
//! The CPU plugin hangs for ever after a launch on several devices that fails its own checks. So a launch first takes
//! every argument, all or none, and the plugin only ever sees arguments that are there and stay there.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::error::{Code, Error, Result};

/// Free at zero; else counts of users, or one of the exclusive states.
pub(crate) struct BufferState(AtomicU32);

const USE: u32 = 1; // launches that read it, in bits 0..15
const VIEW: u32 = 1 << 15; // readers of its memory, in bits 15..30
const VIEWS: u32 = ((1 << 15) - 1) << 15;
const TAKEN: u32 = 1 << 30; // one launch is donating it, or one thread deleting it
const DELETED: u32 = 2 << 30;
const DONATED: u32 = 3 << 30;

/// How an attempt to hold a buffer went.
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
        BufferState(AtomicU32::new(0))
    }

    #[inline]
    fn try_add(&self, unit: u32) -> Attempt {
        let mut state = self.0.load(Ordering::Relaxed);
        loop {
            if state >= TAKEN {
                return describe(state);
            }
            // Half of a count's range is plenty; above it, wait rather than overflow into the next field.
            if (unit == USE && state & (VIEW >> 1) != 0) || (unit == VIEW && state & (TAKEN >> 1) != 0) {
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
        match self.0.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Attempt::Done,
            Err(state) => describe(state),
        }
    }

    /// Counts one more reader.
    ///
    /// # Errors
    /// The buffer was deleted or donated.
    fn read(&self) -> Result<()> {
        let mut wait = Wait::new();
        loop {
            match self.try_add(VIEW) {
                Attempt::Done => return Ok(()),
                attempt @ (Attempt::Deleted | Attempt::Donated) => {
                    return Err(gone(attempt, "the buffer to read"));
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

    /// An error when the buffer was deleted or donated.
    pub(crate) fn check(&self, name: impl Fn() -> String) -> Result<()> {
        match describe(self.0.load(Ordering::Acquire)) {
            attempt @ (Attempt::Deleted | Attempt::Donated) => Err(gone(attempt, &name())),
            _ => Ok(()),
        }
    }

    /// Becomes deleted; false when it is gone already. Waits for launches and readers.
    ///
    /// # Errors
    /// This thread is reading the buffer, or another has been for too long.
    pub(crate) fn delete(&self, owner: *const Buffer) -> Result<bool> {
        let mut wait = Wait::new();
        loop {
            match self.try_take() {
                Attempt::Done => {
                    self.set(DELETED);
                    return Ok(true);
                }
                Attempt::Deleted | Attempt::Donated => return Ok(false),
                Attempt::Viewed => wait.for_reader(owner, || "the buffer to delete".into())?,
                Attempt::Busy => wait.for_launch(),
            }
        }
    }
}

#[cold]
fn describe(state: u32) -> Attempt {
    match state {
        0 => Attempt::Busy, // free by now: try again
        s if s >= DONATED => Attempt::Donated,
        s if s >= DELETED => Attempt::Deleted,
        s if s & VIEWS != 0 && s < TAKEN => Attempt::Viewed,
        _ => Attempt::Busy,
    }
}

fn gone(attempt: Attempt, name: &str) -> Error {
    Error::failed_precondition(match attempt {
        Attempt::Donated => {
            format!("{name} was donated to an earlier execution, which took its memory")
        }
        _ => format!("{name} was deleted"),
    })
}

thread_local! {
    /// Buffers whose memory this thread is reading. Gone while the thread's last locals are dropped, from which others
    /// may still read: then a thread that waits for itself finds out by the time that passes.
    static READING: RefCell<Vec<*const Buffer>> = const { RefCell::new(Vec::new()) };
}

/// Keeps a buffer's memory in place while it is read.
pub(crate) struct ReadGuard<'a>(&'a Buffer);

impl<'a> ReadGuard<'a> {
    pub(crate) fn of(buffer: &'a Buffer) -> Result<ReadGuard<'a>> {
        buffer.hold.read()?;
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
        self.0.hold.sub(VIEW);
    }
}

/// Buffers that were let go, and threads that copy one: where either is on the move, who waits does not wait in vain.
static LET_GO: AtomicU64 = AtomicU64::new(0);
static COPYING: AtomicUsize = AtomicUsize::new(0);

/// Keeps a buffer as it is for work on another thread: until it is dropped the buffer can be used, but what would donate
/// or delete it waits.
#[derive(Debug)]
pub struct BufferReference(Arc<Buffer>);

impl BufferReference {
    /// Holds it. Does not wait for its data.
    ///
    /// # Errors
    /// The buffer was deleted or donated.
    pub fn of(buffer: &Arc<Buffer>) -> Result<BufferReference> {
        buffer.hold.read()?;
        Ok(BufferReference(buffer.clone()))
    }

    /// Runs what copies buffers that are held. While any thread does, those that wait for such buffers have patience;
    /// else they give up after ten seconds, since a hold that nobody lets go of would be waited for for ever.
    pub fn copying<R>(f: impl FnOnce() -> R) -> R {
        struct Ends;
        impl Drop for Ends {
            fn drop(&mut self) {
                LET_GO.fetch_add(1, Ordering::Relaxed);
                COPYING.fetch_sub(1, Ordering::Relaxed);
            }
        }
        COPYING.fetch_add(1, Ordering::Relaxed);
        let _ends = Ends;
        f()
    }
}

impl Drop for BufferReference {
    fn drop(&mut self) {
        LET_GO.fetch_add(1, Ordering::Relaxed);
        self.0.hold.sub(VIEW);
    }
}

/// All arguments of one launch, held.
pub(crate) struct BufferReferences<'a> {
    args: &'a [&'a Buffer],
    donated: &'a [bool],
}

impl<'a> BufferReferences<'a> {
    /// Holds every argument or none. `args` is device-major; `donated` says for each parameter whether it is given
    /// away, and is empty when none is.
    ///
    /// # Errors
    /// An argument was deleted or donated before, appears twice where it is donated, or is being read too long.
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

    #[inline]
    fn try_all(args: &[&Buffer], donated: &[bool]) -> std::result::Result<(), (usize, Attempt)> {
        let mut at = 0;
        while at < args.len() {
            let give = !donated.is_empty() && donated[at % donated.len()];
            let attempt = if give { args[at].hold.try_take() } else { args[at].hold.try_add(USE) };
            if attempt != Attempt::Done {
                Self::release(&args[..at], donated, 0);
                return Err((at, attempt));
            }
            at += 1;
        }
        Ok(())
    }

    #[inline]
    fn release(args: &[&Buffer], donated: &[bool], taken_becomes: u32) {
        if donated.is_empty() {
            for arg in args {
                arg.hold.sub(USE);
            }
            return;
        }
        for (at, arg) in args.iter().enumerate() {
            if donated[at % donated.len()] { arg.hold.set(taken_becomes) } else { arg.hold.sub(USE) }
        }
    }

    /// Decides between an error and another try.
    #[cold]
    fn resolve(args: &[&Buffer], donated: &[bool], at: usize, attempt: Attempt, wait: &mut Wait) -> Result<()> {
        let parameters = if donated.is_empty() { args.len() } else { donated.len() };
        let name = |at: usize| {
            let device = args[at].device();
            format!("argument {} ({}) on {device}", at % parameters, args[at].shape_text())
        };
        if matches!(attempt, Attempt::Deleted | Attempt::Donated) {
            return Err(gone(attempt, &name(at)));
        }
        let gives = |at: usize| !donated.is_empty() && donated[at % donated.len()];
        let twin = (0..args.len())
            .find(|&other| other != at && std::ptr::eq(args[other], args[at]) && (gives(other) || gives(at)));
        if let Some(other) = twin {
            return Err(Error::invalid_argument(format!(
                "{} is passed as argument {} too, and is donated; pass a copy, or do not donate it",
                name(at),
                other % parameters
            )));
        }
        match attempt {
            Attempt::Viewed => wait.for_reader(args[at], || name(at)),
            _ => {
                wait.for_launch();
                Ok(())
            }
        }
    }

    /// Ends the launch: what was donated is gone, or, when the plugin did not take it, free again.
    #[inline]
    pub(crate) fn finish(self, launched: bool) {
        if launched || self.donated.is_empty() {
            Self::release(self.args, self.donated, DONATED);
            return;
        }
        for (at, arg) in self.args.iter().enumerate() {
            if self.donated[at % self.donated.len()] {
                arg.hold.set(if arg.plugin_says_deleted() { DONATED } else { 0 });
            } else {
                arg.hold.sub(USE);
            }
        }
    }
}

/// Waiting without a lock: short at first, then ever less eager.
struct Wait {
    rounds: u32,
    /// Since when nothing was let go, of so many.
    since: Option<(Instant, u64)>,
}

/// How long a donation waits for another thread to finish reading; longer, and two threads likely wait for each other.
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

    fn for_reader(&mut self, buffer: *const Buffer, name: impl Fn() -> String) -> Result<()> {
        if READING.try_with(|reading| reading.borrow().contains(&buffer)).unwrap_or(false) {
            return Err(Error::failed_precondition(format!(
                "{} is being read by this very thread (Buffer::with_bytes), so it can be neither donated nor deleted",
                name()
            )));
        }
        let let_go = LET_GO.load(Ordering::Relaxed);
        let (since, seen) = self.since.get_or_insert_with(|| (Instant::now(), let_go));
        if *seen != let_go || COPYING.load(Ordering::Relaxed) > 0 {
            (*since, *seen) = (Instant::now(), let_go);
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
