//! Sources of examples with random access, and streams of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Value, json};
use shardax::error::{Error, ErrorKind, Result};

use super::file::room_for;
use super::stream::{ROUND, Stream, number, round_of, round_seed};
use super::{Example, HostArray, Windows, shuffled};

/// Random access to examples.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a source of examples",
    label = "no random access to examples",
    note = "`InMemory`, a `Vec` of records, or `(count, |index| …)` with a closure that returns an example; for types of your own implement `Source`, with `len` and `get`"
)]
pub trait Source: Send {
    /// An example.
    type Item;

    /// The number of examples.
    fn len(&self) -> usize;

    /// True if there are no examples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns example `i`, which is below [`len`](Source::len).
    fn get(&self, i: usize) -> Result<Self::Item>;

    /// Restricts the source to a range, such as a training set or a test set. Numbers beyond the end are ignored.
    fn range(self, range: Range<usize>) -> Part<Self>
    where
        Self: Sized,
    {
        let end = range.end.min(self.len());
        Part { range: range.start.min(end)..end, source: self }
    }

    /// Returns windows of `length` consecutive examples. Each begins `stride` examples after the previous one. The
    /// values of each name get a leading axis. Remaining examples at the end are dropped, and there are no windows if
    /// the length or the stride is 0.
    ///
    /// ```
    /// use shardax_train::data::{HostArray, InMemory, Source};
    /// let series = InMemory::new([("load", HostArray::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0], &[5])?)])?;
    /// let windows = series.windows(3, 2);
    /// assert_eq!(windows.len(), 2);
    /// assert_eq!(windows.get(1)?["load"].to_vec::<f32>()?, [3.0, 4.0, 5.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    fn windows(self, length: usize, stride: usize) -> Windows<Self>
    where
        Self: Sized + Source<Item = Example>,
    {
        Windows { source: self, length, stride }
    }

    /// Streams all examples, epoch after epoch without end, each in order or in a random order
    /// ([`SourceStream::shuffled`]).
    fn stream(self) -> SourceStream<Self>
    where
        Self: Sized,
    {
        SourceStream {
            source: self,
            seed: None,
            epochs: None,
            multiple: 1,
            round: 0,
            epoch: 0,
            next: 0,
            order: Vec::new(),
        }
    }
}

/// The error of a number beyond the last example.
pub(super) fn no_example(i: usize, len: usize) -> Error {
    Error::new(ErrorKind::Index, format!("example {i} of {len} was requested"))
        .help("use an index below that number; the first is 0")
}

/// The source of [`Source::range`].
#[derive(Clone, Debug)]
pub struct Part<S> {
    source: S,
    range: Range<usize>,
}

impl<S: Source> Source for Part<S> {
    type Item = S::Item;
    fn len(&self) -> usize {
        self.range.len()
    }
    fn get(&self, i: usize) -> Result<S::Item> {
        if i < self.len() { self.source.get(self.range.start + i) } else { Err(no_example(i, self.len())) }
    }
}

/// A source that several streams share.
impl<S: Source + Sync + ?Sized> Source for Arc<S> {
    type Item = S::Item;
    fn len(&self) -> usize {
        (**self).len()
    }
    fn get(&self, i: usize) -> Result<S::Item> {
        (**self).get(i)
    }
}

/// A source of a number of examples and a function that creates each one.
impl<T, F: Fn(usize) -> Result<T> + Send> Source for (usize, F) {
    type Item = T;
    fn len(&self) -> usize {
        self.0
    }
    fn get(&self, i: usize) -> Result<T> {
        if i < self.0 { (self.1)(i) } else { Err(no_example(i, self.0)) }
    }
}

/// Examples in memory: the rows of named arrays.
///
/// ```
/// use shardax_train::data::{HostArray, InMemory, Source};
/// let x = HostArray::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let data = InMemory::new([("x", x), ("label", HostArray::from_slice(&[0u8, 1], &[2])?)])?;
/// assert_eq!(data.get(1)?["x"].to_vec::<f32>()?, [3.0, 4.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct InMemory {
    fields: Example,
    len: usize,
    /// The texts of the columns of texts, by name.
    categories: BTreeMap<String, Vec<String>>,
}

impl InMemory {
    /// Creates a source of the rows of these arrays.
    ///
    /// # Errors
    /// Returns an error if there are no arrays, or if they do not have the same number of rows.
    #[track_caller]
    pub fn new<N: Into<String>>(fields: impl IntoIterator<Item = (N, HostArray)>) -> Result<Self> {
        let fields: Example = fields.into_iter().map(|(name, x)| (name.into(), x)).collect();
        let rows: Vec<Option<usize>> = fields.values().map(|x| x.shape().first().copied()).collect();
        let len = rows.first().copied().flatten();
        match len.filter(|len| rows.iter().all(|rows| *rows == Some(*len))) {
            Some(len) => Ok(InMemory { fields, len, categories: BTreeMap::new() }),
            None => {
                let have: Vec<String> =
                    fields.iter().map(|(name, x)| format!("{name}: {}{:?}", x.dtype(), x.shape())).collect();
                Err(Error::new(ErrorKind::Value, format!("the arrays must have the same number of rows, got {have:?}"))
                    .help("pass arrays whose first dimension is the number of examples")
                    .at(std::panic::Location::caller()))
            }
        }
    }

    /// Returns the complete arrays, by name.
    pub fn fields(&self) -> &Example {
        &self.fields
    }

    /// Returns the texts that the numbers of this column mean, in alphabetical order: the column is one of
    /// [`CsvOptions::categories`](super::CsvOptions::categories). Other columns have none.
    pub fn categories(&self, column: &str) -> &[String] {
        self.categories.get(column).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn with_categories(self, categories: BTreeMap<String, Vec<String>>) -> Self {
        InMemory { categories, ..self }
    }
}

impl Source for InMemory {
    type Item = Example;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, i: usize) -> Result<Example> {
        let rows = self.fields.iter().map(|(name, x)| Some((name.clone(), x.row(i)?)));
        rows.collect::<Option<_>>().ok_or_else(|| no_example(i, self.len))
    }
}

/// The stream of a [`Source`]'s examples, epoch after epoch.
#[derive(Clone, Debug)]
pub struct SourceStream<S> {
    source: S,
    seed: Option<u64>,
    epochs: Option<u64>,
    /// The number of times that [`Stream::repeat`] has begun again.
    round: u64,
    /// The number of examples of an epoch is a multiple of it.
    multiple: usize,
    epoch: u64,
    next: usize,
    /// The order of this epoch, computed on demand.
    order: Vec<usize>,
}

impl<S: Source> SourceStream<S> {
    /// Shuffles each epoch in a different order, which follows from `seed`, so that you can resume in the middle of an
    /// epoch.
    pub fn shuffled(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Ends after `epochs` epochs. Otherwise the stream never ends, and you must limit the steps instead.
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.epochs = Some(epochs);
        self
    }

    /// Drops the last examples of each epoch if there are fewer than `size` of them, so that batches of `size` never
    /// contain examples of two epochs. In a random order, each epoch drops other examples.
    ///
    /// ```
    /// use shardax_train::data::{Example, Source, Stream, field};
    /// let number = |i: usize| Ok(Example::from([field("x", &[i as f32], [])?]));
    /// let mut batches = (5usize, number).stream().whole_batches(2).batch(2);
    /// batches.next_item().expect("a batch")?;
    /// assert_eq!(batches.next_item().expect("a batch")?["x"].to_vec::<f32>()?, [2.0, 3.0]);
    /// assert_eq!(batches.next_item().expect("a batch")?["x"].to_vec::<f32>()?, [0.0, 1.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn whole_batches(mut self, size: usize) -> Self {
        self.multiple = size.max(1);
        self
    }

    /// The number of examples that an epoch returns.
    fn examples_per_epoch(&self) -> usize {
        let len = self.source.len();
        len - len % self.multiple
    }

    /// Returns the epoch of the next example, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl<S: Source> Stream for SourceStream<S> {
    type Item = S::Item;

    fn next_item(&mut self) -> Option<Result<S::Item>> {
        let len = self.source.len();
        if self.examples_per_epoch() == 0 || self.epochs.is_some_and(|epochs| self.epoch >= epochs) {
            return None;
        }
        let i = match self.seed {
            None => self.next,
            Some(seed) => {
                if self.order.len() != len {
                    let help = "shuffle parts of the examples with `range`, or use `shuffle` with a buffer";
                    let message = format!("the order of {len} examples");
                    if let Err(error) = room_for(len, size_of::<usize>(), &message, help) {
                        return Some(Err(error));
                    }
                    // The multiplication makes neighbouring seeds and epochs independent.
                    let mixed =
                        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.epoch.wrapping_mul(0xd1b5_4a32_d192_ed03);
                    self.order = shuffled(len, mixed ^ round_seed(self.round));
                }
                self.order[self.next]
            }
        };
        self.next += 1;
        if self.next >= self.examples_per_epoch() {
            (self.epoch, self.next) = (self.epoch.saturating_add(1), 0);
            self.order.clear();
        }
        Some(self.source.get(i))
    }

    fn position(&self) -> Value {
        let (epoch, next, of, seed) = (self.epoch, self.next, self.source.len(), self.seed);
        json!({ "epoch": epoch, "next": next, "of": of, "seed": seed, ROUND: self.round })
    }

    fn seek(&mut self, position: &Value) -> Result<()> {
        let (epoch, next) = (number(position, "epoch")?, number(position, "next")? as usize);
        let (of, seed) = (number(position, "of")? as usize, position["seed"].as_u64());
        if of != self.source.len() || seed != self.seed || next >= self.examples_per_epoch().max(1) {
            let message = format!(
                "the position {position} is one in other data: these are {} examples with seed {:?}",
                self.source.len(),
                self.seed
            );
            return Err(Error::new(ErrorKind::Value, message).help("pass the same data and the same seed as before"));
        }
        (self.round, self.epoch, self.next) = (round_of(position), epoch, next);
        self.order.clear();
        Ok(())
    }
}
