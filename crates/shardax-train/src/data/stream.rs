//! Streams of examples, with a position that can be saved and restored.

use serde_json::{Value, json};
use shardax::error::{Error, ErrorKind, Result};

use super::example::stack;
use super::file::room_for;
use super::mix::Mix;
use super::pack::Pack;
use super::parallel::{Enumerate, ParallelMap};
use super::prefetch::Prefetch;
use super::shuffle::ShuffleBuffer;
use super::{Example, HostArray, Pad};

/// A sequence of examples.
///
/// To resume a run with the same examples, save the [`position`](Stream::position) with the model
/// ([`SaveArgs::metadata`](crate::checkpoint::SaveArgs::metadata)), construct the stream in the same way, and
/// [`seek`](Stream::seek) to the position.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stream of examples",
    label = "not a stream",
    note = "`source.shuffled(0).epochs(3)` makes a stream of a source; an iterator has no position to resume from"
)]
pub trait Stream {
    /// An example, or a batch.
    type Item;

    /// Returns the next item; `None` at the end. After an error the stream continues with the item after it.
    fn next_item(&mut self) -> Option<Result<Self::Item>>;

    /// The position, as JSON for [`seek`](Stream::seek).
    fn position(&self) -> Value;

    /// Moves the stream to a position of a stream of the same construction.
    ///
    /// Fails for a position in other data.
    fn seek(&mut self, position: &Value) -> Result<()>;

    /// Applies a function to each item.
    fn map<T, F: FnMut(Self::Item) -> Result<T>>(self, f: F) -> Map<Self, F>
    where
        Self: Sized,
    {
        Map { inner: self, f }
    }

    /// Applies a function to each item on `threads` threads (at most 1,024), in order. If the function needs random
    /// numbers, derive them from the item's number ([`enumerate`](Stream::enumerate)): they do not depend on the
    /// threads.
    fn parallel_map<T, F>(self, threads: usize, f: F) -> ParallelMap<Self, T, F>
    where
        Self: Sized,
        F: Fn(Self::Item) -> Result<T> + Send + Sync + 'static,
    {
        ParallelMap::new(self, threads, f)
    }

    /// Numbers the items from 0, over all epochs. A [`repeat`](Self::repeat) after it begins again at 0 in each round;
    /// before it, all rounds are numbered.
    fn enumerate(self) -> Enumerate<Self>
    where
        Self: Sized,
    {
        Enumerate::new(self)
    }

    /// Shuffles in an order that follows from `seed`: reads `size` items, returns them in a random order, and reads the
    /// next `size`. Returns errors if `size` items do not fit in memory.
    fn shuffle(self, size: usize, seed: u64) -> ShuffleBuffer<Self>
    where
        Self: Sized,
    {
        ShuffleBuffer::new(self, size, seed)
    }

    /// Returns every `count`th item, beginning with number `index`, so that each of several processes reads other
    /// items. A remainder of fewer than `count` items is dropped. `count` can be at most 1,048,576.
    fn shard(self, index: usize, count: usize) -> Shard<Self>
    where
        Self: Sized,
    {
        Shard { inner: self, index, count: count.max(1) }
    }

    /// Repeats the stream without end. Shuffled streams have another order each time.
    ///
    /// ```
    /// use shardax_train::data::{Source, Stream};
    /// let mut numbers = (100usize, Ok).stream().shuffled(3).epochs(1).repeat();
    /// let mut epoch = || numbers.items().take(100).collect::<Result<Vec<usize>, _>>();
    /// assert_ne!(epoch()?, epoch()?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    fn repeat(self) -> Repeat<Self>
    where
        Self: Sized,
    {
        let begin = self.position();
        Repeat { inner: self, begin, round: 0, any: false }
    }

    /// Batches `size` examples: the values of each name get a leading axis. A short last batch is dropped. An example's
    /// error is returned at once; the examples before it are in the next batch.
    ///
    /// A stream without end continues with the next epoch within a batch:
    /// Use [`whole_batches`](super::SourceStream::whole_batches) to end each epoch with a complete batch.
    fn batch(self, size: usize) -> Batched<Self>
    where
        Self: Sized + Stream<Item = Example>,
    {
        Batched::new(self, size, false)
    }

    /// Batches examples with `mask`, bool `[size]`: a short last batch is padded with zeros, for which the mask is
    /// false.
    fn batch_masked(self, size: usize) -> Batched<Self>
    where
        Self: Sized + Stream<Item = Example>,
    {
        Batched::new(self, size, true)
    }

    /// Packs texts, examples with `tokens`, int32 `[any length]`, into rows of `length`. A row has as many complete
    /// texts as fit, then zeros. A text that is longer than a row is cut.
    ///
    /// A row has, int32 `[length]`: `tokens`; `targets`, the token that follows each in its text; `segment_ids`, 1 for
    /// the row's first text and so on, 0 for padding; `positions`, counted from 0 in each text. A text of `n` tokens
    /// uses `n - 1` places, because its last token has no target.
    ///
    /// ```
    /// use shardax_train::data::{Example, HostArray, Source, Stream};
    /// let texts = [&[1, 2, 3][..], &[4, 5, 6, 7], &[8, 9]];
    /// let tokens = move |i: usize| HostArray::from_slice(texts[i], &[texts[i].len()]);
    /// let text = move |i: usize| Ok(Example::from([("tokens".to_owned(), tokens(i)?)]));
    /// let mut rows = (3usize, text).stream().epochs(1).pack(4);
    /// let row = rows.next_item().expect("a row")?;
    /// assert_eq!(row["tokens"].to_vec::<i32>()?, [1, 2, 0, 0]);
    /// let row = rows.next_item().expect("a row")?;
    /// assert_eq!(row["tokens"].to_vec::<i32>()?, [4, 5, 6, 8]);
    /// assert_eq!(row["targets"].to_vec::<i32>()?, [5, 6, 7, 9]);
    /// assert_eq!(row["segment_ids"].to_vec::<i32>()?, [1, 1, 1, 2]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    fn pack(self, length: usize) -> Pack<Self>
    where
        Self: Sized + Stream<Item = Example>,
    {
        Pack::new(self, length, false)
    }

    /// Packs texts into rows without gaps: a text that does not fit continues in the next row. Only the last row is
    /// padded.
    fn concat_then_split(self, length: usize) -> Pack<Self>
    where
        Self: Sized + Stream<Item = Example>,
    {
        Pack::new(self, length, true)
    }

    /// Pads the arrays of each example with zeros to `length` entries along their first dimension, and adds `mask`, bool
    /// `[length]`, which is false for the padding: examples of different lengths can be batched. Scalars stay.
    ///
    /// An example that is longer is an error, and so is one whose arrays differ in length.
    ///
    /// ```
    /// use shardax_train::data::{Example, Source, Stream, field};
    /// let ragged = |i: usize| Ok(Example::from([field("x", &vec![1.0f32; i + 1], [i + 1])?]));
    /// let mut batches = (3usize, ragged).stream().epochs(1).pad(4).batch(3);
    /// let batch = batches.next_item().expect("a batch")?;
    /// assert_eq!(batch["x"].shape(), [3, 4]);
    /// assert_eq!(batch["mask"].to_vec::<bool>()?[..4], [true, false, false, false]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    fn pad(self, length: usize) -> Pad<Self>
    where
        Self: Sized + Stream<Item = Example>,
    {
        Pad { inner: self, length }
    }

    /// Mixes this stream with others, each in proportion to its weight.
    fn mix(self, weight: f64, others: Vec<(Self, f64)>, seed: u64) -> Result<Mix<Self>>
    where
        Self: Sized,
    {
        let mut streams = vec![(self, weight)];
        streams.extend(others);
        Mix::new(streams, seed)
    }

    /// Reads up to `ahead` items (at most 65,536) in advance on a thread.
    fn prefetch(self, ahead: usize) -> Prefetch<Self>
    where
        Self: Sized + Send + 'static,
        Self::Item: Send + 'static,
    {
        Prefetch::new(self, ahead)
    }

    /// Returns an iterator over the items.
    fn items(&mut self) -> impl Iterator<Item = Result<Self::Item>>
    where
        Self: Sized,
    {
        std::iter::from_fn(|| self.next_item())
    }
}

/// Reads a number of a position.
pub(super) fn number(position: &Value, name: &str) -> Result<u64> {
    position[name].as_u64().ok_or_else(|| {
        Error::new(ErrorKind::Value, format!("a position in data needs a number {name:?}, but is {position}"))
            .help("pass the result of `position` of a stream that was constructed in the same way")
    })
}

/// The stream of [`Stream::map`].
#[derive(Clone, Debug)]
pub struct Map<S, F> {
    inner: S,
    f: F,
}

impl<S: Stream, T, F: FnMut(S::Item) -> Result<T>> Stream for Map<S, F> {
    type Item = T;
    fn next_item(&mut self) -> Option<Result<T>> {
        Some(self.inner.next_item()?.and_then(&mut self.f))
    }
    fn position(&self) -> Value {
        self.inner.position()
    }
    fn seek(&mut self, position: &Value) -> Result<()> {
        self.inner.seek(position)
    }
}

/// The maximal number of parts, because a stream without end must not block forever while it reads an item for each.
const MAX_SHARDS: usize = 1 << 20;

/// The stream of [`Stream::shard`].
#[derive(Clone, Debug)]
pub struct Shard<S> {
    inner: S,
    index: usize,
    count: usize,
}

impl<S: Stream> Stream for Shard<S> {
    type Item = S::Item;
    /// Reads an item for every process, so that all are at one position.
    fn next_item(&mut self) -> Option<Result<S::Item>> {
        if self.count > MAX_SHARDS {
            let message =
                format!("a stream cannot be split into {} parts: at most {MAX_SHARDS} are supported", self.count);
            return Some(Err(
                Error::new(ErrorKind::Value, message).help("pass the number of processes, `process_count()`")
            ));
        }
        let mut item_of_process = None;
        for i in 0..self.count {
            let Some(item) = self.inner.next_item() else {
                // A remainder of items is dropped, but its errors are not.
                return item_of_process.filter(Result::is_err);
            };
            if i == self.index % self.count {
                item_of_process = Some(item);
            }
        }
        item_of_process
    }
    fn position(&self) -> Value {
        self.inner.position()
    }
    fn seek(&mut self, position: &Value) -> Result<()> {
        self.inner.seek(position)
    }
}

/// The stream of [`Stream::repeat`].
#[derive(Clone, Debug)]
pub struct Repeat<S> {
    inner: S,
    begin: Value,
    round: u64,
    /// True if this round had an item.
    any: bool,
}

impl<S: Stream> Stream for Repeat<S> {
    type Item = S::Item;
    fn next_item(&mut self) -> Option<Result<S::Item>> {
        loop {
            if let Some(item) = self.inner.next_item() {
                self.any = true;
                return Some(item);
            }
            // An empty stream ends instead of repeating forever.
            if !std::mem::take(&mut self.any) {
                return None;
            }
            self.round = self.round.wrapping_add(1);
            if let Err(error) = self.inner.seek(&in_round(&self.begin, self.round)) {
                return Some(Err(error));
            }
        }
    }
    fn position(&self) -> Value {
        json!({ "round": self.round, "any": self.any, "inner": self.inner.position() })
    }
    fn seek(&mut self, position: &Value) -> Result<()> {
        self.round = number(position, "round")?;
        self.any = position["any"].as_bool().unwrap_or(false);
        self.inner.seek(&position["inner"])
    }
}

/// The name of the number of a round in the positions of streams in a random order.
pub(super) const ROUND: &str = "order_round";

/// Returns a position with the number of the round replaced in each shuffled stream.
fn in_round(position: &Value, round: u64) -> Value {
    match position {
        Value::Object(entries) => {
            let entries = entries.iter().map(|(name, value)| match name.as_str() {
                ROUND => (name.clone(), json!(round)),
                _ => (name.clone(), in_round(value, round)),
            });
            Value::Object(entries.collect())
        }
        Value::Array(parts) => parts.iter().map(|part| in_round(part, round)).collect(),
        other => other.clone(),
    }
}

/// The number of the round in a position; positions of earlier versions have none.
pub(super) fn round_of(position: &Value) -> u64 {
    position[ROUND].as_u64().unwrap_or(0)
}

/// A number to mix into a seed, so that the orders of rounds are independent. It is 0 for the first round.
pub(super) fn round_seed(round: u64) -> u64 {
    round.wrapping_mul(0xa076_1d64_78bd_642f)
}

/// The stream of [`Stream::batch`] and [`Stream::batch_masked`].
///
/// An example's error is returned at once, and the examples before it are in the next batch. The position is then the
/// one before the batch, with the number of examples that were read.
#[derive(Clone, Debug)]
pub struct Batched<S> {
    inner: S,
    size: usize,
    masked: bool,
    /// The examples of a batch that an error interrupted.
    examples: Vec<Example>,
    /// The position before them, and the number of examples read since.
    begin: Value,
    read: u64,
}

/// The name of a position within a batch.
const BATCH_POSITION: &str = "batch";

impl<S: Stream<Item = Example>> Batched<S> {
    fn new(inner: S, size: usize, masked: bool) -> Self {
        Batched { inner, size, masked, examples: Vec::new(), begin: Value::Null, read: 0 }
    }

    /// Reads the next example of a batch.
    fn read(&mut self) -> Option<Result<()>> {
        let item = self.inner.next_item()?;
        self.read += 1;
        Some(item.map(|example| self.examples.push(example)))
    }

    /// Fails if a batch of examples as large as the first does not fit in memory.
    fn check_room(&self) -> Result<()> {
        let Some(first) = self.examples.first() else { return Ok(()) };
        let bytes = first.values().map(|x| x.bytes().len()).sum::<usize>() + size_of::<Example>();
        room_for(self.size, bytes, &format!("a batch of {} examples", self.size), "use smaller batches")
    }
}

impl<S: Stream<Item = Example>> Stream for Batched<S> {
    type Item = Example;
    fn next_item(&mut self) -> Option<Result<Example>> {
        if self.size == 0 {
            let error = Error::new(ErrorKind::Value, "a batch needs at least one example, got batch size 0");
            return Some(Err(error.help("pass a size of at least 1 to `batch`")));
        }
        // Examples of a batch that an error interrupted are used first.
        if self.examples.is_empty() {
            (self.begin, self.read) = (self.inner.position(), 0);
        }
        while self.examples.len() < self.size {
            if self.examples.len() == 1
                && let Err(error) = self.check_room()
            {
                return Some(Err(error));
            }
            match self.read() {
                Some(Ok(())) => {}
                Some(Err(error)) => return Some(Err(error)),
                None if self.masked && !self.examples.is_empty() => break,
                None => {
                    self.examples.clear();
                    return None;
                }
            }
        }
        let examples = std::mem::take(&mut self.examples);
        Some(
            stack(&examples)
                .and_then(|batch| if self.masked { masked(batch, examples.len(), self.size) } else { Ok(batch) }),
        )
    }
    fn position(&self) -> Value {
        let inner = self.inner.position();
        match self.examples.is_empty() {
            false => json!({ BATCH_POSITION: self.begin, "read": self.read }),
            // The inner stream batches too: its position within a batch must not be taken for this one's.
            true if inner.get(BATCH_POSITION).is_some() => json!({ BATCH_POSITION: inner, "read": 0 }),
            true => inner,
        }
    }
    fn seek(&mut self, position: &Value) -> Result<()> {
        self.examples.clear();
        let Some(begin) = position.get(BATCH_POSITION) else { return self.inner.seek(position) };
        let count = number(position, "read")?;
        self.inner.seek(begin)?;
        (self.begin, self.read) = (self.inner.position(), 0);
        // The errors were already returned in the first run.
        while self.read < count && self.read().is_some() {}
        Ok(())
    }
}

/// Stacks `count` examples, pads them with zeros to `size`, and adds the mask.
fn masked(batch: Example, count: usize, size: usize) -> Result<Example> {
    let out = batch.into_iter().map(|(name, x)| Ok((name, x.filled(size)?))).collect::<Result<Example>>()?;
    let mask: Vec<bool> = (0..size).map(|i| i < count).collect();
    with_mask("batch_masked", out, HostArray::from_slice(&mask, &[size])?)
}

/// Adds the mask of a function to its example.
pub(super) fn with_mask(function: &str, mut example: Example, mask: HostArray) -> Result<Example> {
    match example.insert("mask".to_owned(), mask) {
        None => Ok(example),
        Some(_) => Err(Error::new(ErrorKind::Value, format!("{function}: the examples have a `mask` of their own"))
            .help("rename the array with `map` before this function")),
    }
}
