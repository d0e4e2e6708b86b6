//! Ordered parallel map over streams.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use shardax::error::{Error, ErrorKind, Result};

use super::prefetch::panicked;
use super::stream::{Stream, number};

/// The stream of [`Stream::enumerate`].
#[derive(Clone, Debug)]
pub struct Enumerate<S> {
    inner: S,
    next: u64,
}

impl<S: Stream> Enumerate<S> {
    pub(super) fn new(inner: S) -> Self {
        Enumerate { inner, next: 0 }
    }
}

impl<S: Stream> Stream for Enumerate<S> {
    type Item = (u64, S::Item);

    fn next_item(&mut self) -> Option<Result<Self::Item>> {
        let item = self.inner.next_item()?;
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        Some(item.map(|item| (number, item)))
    }

    fn position(&self) -> Value {
        json!({ "number": self.next, "inner": self.inner.position() })
    }

    fn seek(&mut self, position: &Value) -> Result<()> {
        let next_number = number(position, "number")?;
        self.inner.seek(&position["inner"])?;
        self.next = next_number;
        Ok(())
    }
}

/// The stream of [`Stream::parallel_map`]: [`map`](Stream::map) on several threads. Items stay in order.
///
/// Its position is the position after the last item that you received, so that a resumed run repeats the work done
/// ahead and skips no item.
pub struct ParallelMap<S: Stream, T, F> {
    inner: S,
    f: Arc<F>,
    threads: usize,
    /// The queue of the threads, once they run.
    jobs: Option<Sender<Job<S::Item, T>>>,
    /// The items in progress, each with the position after it.
    pending: VecDeque<(Pending<T>, Value)>,
    position: Value,
    ended: bool,
}

/// An item, and the channel for its result.
type Job<I, T> = (I, SyncSender<Result<T>>);

enum Pending<T> {
    /// An error of the inner stream.
    Done(Result<T>),
    Working(Receiver<Result<T>>),
}

/// The maximal number of threads. All start at once, and more threads than cores do not help.
const MAX_THREADS: usize = 1024;

/// The number of items queued per thread, so that no thread waits for its next item.
const ITEMS_PER_THREAD: usize = 4;

impl<S: Stream, T, F> fmt::Debug for ParallelMap<S, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("ParallelMap");
        text.field("threads", &self.threads).field("position", &self.position).finish_non_exhaustive()
    }
}

impl<S: Stream, T, F> ParallelMap<S, T, F> {
    pub(super) fn new(inner: S, threads: usize, f: F) -> Self {
        let (position, threads) = (inner.position(), threads.clamp(1, MAX_THREADS));
        ParallelMap { inner, f: Arc::new(f), threads, jobs: None, pending: VecDeque::new(), position, ended: false }
    }
}

impl<S: Stream, T, F> ParallelMap<S, T, F>
where
    S::Item: Send + 'static,
    T: Send + 'static,
    F: Fn(S::Item) -> Result<T> + Send + Sync + 'static,
{
    /// The queue of the threads, which end when it is dropped.
    fn jobs(&mut self) -> Result<&Sender<Job<S::Item, T>>> {
        let jobs = match self.jobs.take() {
            Some(jobs) => jobs,
            None => {
                let (jobs, receiver) = channel();
                // The lock is held while a thread waits for an item, so that one thread receives it.
                let receiver = Arc::new(Mutex::new(receiver));
                for _ in 0..self.threads {
                    let (receiver, f) = (receiver.clone(), self.f.clone());
                    let thread = std::thread::Builder::new().name("shardax-map".to_owned());
                    thread.spawn(move || work(&receiver, &*f)).map_err(|error| {
                        Error::new(ErrorKind::Runtime, format!("no thread could be started to map data: {error}"))
                    })?;
                }
                jobs
            }
        };
        Ok(self.jobs.insert(jobs))
    }

    /// Fills the queue.
    fn fill(&mut self) -> Result<()> {
        while !self.ended && self.pending.len() < self.threads * ITEMS_PER_THREAD {
            let item = self.inner.next_item();
            let position = self.inner.position();
            let pending = match item {
                None => {
                    self.ended = true;
                    break;
                }
                Some(Err(error)) => Pending::Done(Err(error)),
                Some(Ok(item)) => {
                    let (send, receive) = sync_channel(1);
                    match self.jobs()?.send((item, send)) {
                        Ok(()) => Pending::Working(receive),
                        Err(_) => Pending::Done(Err(panicked())),
                    }
                }
            };
            self.pending.push_back((pending, position));
        }
        Ok(())
    }
}

/// The loop of each thread, until the queue is closed.
fn work<I, T>(jobs: &Mutex<Receiver<Job<I, T>>>, f: impl Fn(I) -> Result<T>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((item, result)) = job else { return };
        // A panic becomes this item's error, and the thread continues. The receiver of the result may be gone.
        let done = catch_unwind(AssertUnwindSafe(|| f(item))).unwrap_or_else(|_| Err(panicked()));
        result.send(done).ok();
    }
}

impl<S: Stream, T, F> Stream for ParallelMap<S, T, F>
where
    S::Item: Send + 'static,
    T: Send + 'static,
    F: Fn(S::Item) -> Result<T> + Send + Sync + 'static,
{
    type Item = T;

    fn next_item(&mut self) -> Option<Result<T>> {
        if let Err(error) = self.fill() {
            return Some(Err(error));
        }
        let Some((pending, position)) = self.pending.pop_front() else {
            self.position = self.inner.position();
            return None;
        };
        self.position = position;
        Some(match pending {
            Pending::Done(result) => result,
            Pending::Working(result) => result.recv().unwrap_or_else(|_| Err(panicked())),
        })
    }

    fn position(&self) -> Value {
        self.position.clone()
    }

    fn seek(&mut self, position: &Value) -> Result<()> {
        self.pending.clear();
        self.inner.seek(position)?;
        (self.position, self.ended) = (position.clone(), false);
        Ok(())
    }
}
