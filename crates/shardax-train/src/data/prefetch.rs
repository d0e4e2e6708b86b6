//! Reading ahead.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use serde_json::Value;
use shardax::error::{Error, ErrorKind, Result};

use super::stream::Stream;

/// Of [`Stream::prefetch`]: a thread reads while the program works. Put [`map`](Stream::map) before it, and the thread
/// does that too, such as moving batches to devices.
///
/// Its position is that after the last item that was taken: what was read ahead is read again.
pub struct Prefetch<S: Stream> {
    ahead: usize,
    /// Where the next item is that the program takes.
    position: Value,
    /// Not read from by a thread: at the beginning, and after `seek`.
    idle: Option<S>,
    reading: Option<Reading<S>>,
}

struct Reading<S: Stream> {
    items: Receiver<(Option<Result<S::Item>>, Value)>,
    thread: JoinHandle<S>,
}

/// As many items are read ahead at most: the channel has room for all from the beginning.
const MOST: usize = 1 << 16;

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
        Prefetch { ahead: ahead.clamp(1, MOST), position: inner.position(), idle: Some(inner), reading: None }
    }

    /// Starts a thread, unless one reads.
    fn start(&mut self) -> Result<()> {
        let Some(stream) = self.idle.take() else { return Ok(()) };
        let (send, items) = sync_channel(self.ahead);
        // A thread that cannot be started takes the stream with it.
        let thread = std::thread::Builder::new().name("shardax-data".to_owned()).spawn(move || read(stream, &send));
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::Runtime, format!("no thread could be started to read data: {error}"))
        })?;
        self.reading = Some(Reading { items, thread });
        Ok(())
    }

    /// Ends the thread, and gives the stream back.
    fn stop(&mut self) -> Result<()> {
        let Some(Reading { items, thread }) = self.reading.take() else { return Ok(()) };
        // A thread that has an item to give away hears that nobody takes it.
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
    Error::new(ErrorKind::Runtime, "the thread that reads data panicked").help("its message is on standard error")
}

/// Reads until nobody takes what was read, or there is nothing more.
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
