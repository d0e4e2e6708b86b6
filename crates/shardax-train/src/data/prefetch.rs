//! Reading ahead.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use serde_json::Value;
use shardax::error::{Error, ErrorKind, Result};

use super::stream::Stream;

/// The stream of [`Stream::prefetch`]: a thread reads while the program works. If you put [`map`](Stream::map) before
/// it, the thread runs that function too. For example, it can move batches to the devices.
///
/// Its position is the position after the last item that you received, so that a resumed run reads items again that
/// were read ahead, and skips none.
pub struct Prefetch<S: Stream> {
    ahead: usize,
    /// The position of the next item to return.
    position: Value,
    /// The stream while no thread reads from it: at the beginning, and after `seek`.
    idle: Option<S>,
    reading: Option<Reading<S>>,
}

struct Reading<S: Stream> {
    items: Receiver<(Option<Result<S::Item>>, Value)>,
    thread: JoinHandle<S>,
}

/// The maximal number of items read ahead, because the channel allocates room for all of them.
const MAX_AHEAD: usize = 1 << 16;

impl<S: Stream> fmt::Debug for Prefetch<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefetch").field("ahead", &self.ahead).field("position", &self.position).finish_non_exhaustive()
    }
}

impl<S: Stream + Send + 'static> Prefetch<S>
where
    S::Item: Send + 'static,
{
    pub(super) fn new(inner: S, ahead: usize) -> Self {
        Prefetch { ahead: ahead.clamp(1, MAX_AHEAD), position: inner.position(), idle: Some(inner), reading: None }
    }

    /// Starts the thread, unless it runs.
    fn start(&mut self) -> Result<()> {
        let Some(stream) = self.idle.take() else { return Ok(()) };
        let (send, items) = sync_channel(self.ahead);
        // If the thread cannot be started, the stream is lost with it.
        let thread = std::thread::Builder::new().name("shardax-data".to_owned()).spawn(move || read(stream, &send));
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::Runtime, format!("no thread could be started to read data: {error}"))
        })?;
        self.reading = Some(Reading { items, thread });
        Ok(())
    }

    /// Ends the thread, which returns the stream.
    fn stop(&mut self) -> Result<()> {
        let Some(Reading { items, thread }) = self.reading.take() else { return Ok(()) };
        // Dropping the receiver unblocks a thread that is sending.
        drop(items);
        match thread.join() {
            Ok(stream) => {
                self.idle = Some(stream);
                Ok(())
            }
            Err(_) => Err(panicked()),
        }
    }
}

pub(super) fn panicked() -> Error {
    Error::new(ErrorKind::Runtime, "the thread that reads data panicked").help(
        "look for the panic's message on standard error: it names the line of the source or of `map` that panicked",
    )
}

/// Reads until the receiver is dropped or the stream ends.
fn read<S: Stream>(mut stream: S, send: &SyncSender<(Option<Result<S::Item>>, Value)>) -> S {
    loop {
        let item = stream.next_item();
        let end = item.is_none();
        if send.send((item, stream.position())).is_err() || end {
            return stream;
        }
    }
}

impl<S: Stream + Send + 'static> Stream for Prefetch<S>
where
    S::Item: Send + 'static,
{
    type Item = S::Item;

    fn next_item(&mut self) -> Option<Result<S::Item>> {
        if let Err(error) = self.start() {
            return Some(Err(error));
        }
        let reading = self.reading.as_ref()?;
        match reading.items.recv() {
            Ok((item, position)) => {
                self.position = position;
                if item.is_none()
                    && let Err(error) = self.stop()
                {
                    return Some(Err(error));
                }
                item
            }
            Err(_) => {
                self.reading = None;
                Some(Err(panicked()))
            }
        }
    }

    fn position(&self) -> Value {
        self.position.clone()
    }

    fn seek(&mut self, position: &Value) -> Result<()> {
        self.stop()?;
        match &mut self.idle {
            Some(stream) => stream.seek(position)?,
            None => return Err(panicked()),
        }
        self.position = position.clone();
        Ok(())
    }
}
