//! Windows of a series, and padding of examples of different lengths.

use serde_json::Value;
use shardax::error::{Error, ErrorKind, Result};

use super::example::stack;
use super::file::room_for;
use super::source::{Source, no_example};
use super::stream::{Stream, with_mask};
use super::{Example, HostArray};

/// The source of [`Source::windows`].
#[derive(Clone, Debug)]
pub struct Windows<S> {
    pub(super) source: S,
    pub(super) length: usize,
    pub(super) stride: usize,
}

impl<S: Source<Item = Example>> Source for Windows<S> {
    type Item = Example;

    fn len(&self) -> usize {
        if self.length == 0 || self.stride == 0 {
            return 0;
        }
        self.source.len().checked_sub(self.length).map_or(0, |rest| rest / self.stride + 1)
    }

    fn get(&self, i: usize) -> Result<Example> {
        if i >= self.len() {
            return Err(no_example(i, self.len()));
        }
        let begin = i * self.stride;
        stack(&(begin..begin + self.length).map(|row| self.source.get(row)).collect::<Result<Vec<_>>>()?)
    }
}

/// The stream of [`Stream::pad`].
#[derive(Clone, Debug)]
pub struct Pad<S> {
    pub(super) inner: S,
    pub(super) length: usize,
}

impl<S: Stream<Item = Example>> Pad<S> {
    /// Pads the arrays of an example along their first dimension, which they share.
    fn padded(&self, example: Example) -> Result<Example> {
        let mut lengths = example.iter().filter_map(|(name, x)| Some((name, *x.shape().first()?)));
        let Some((first, length)) = lengths.next() else { return Ok(example) };
        if let Some((name, other)) = lengths.find(|(_, other)| *other != length) {
            let message = format!("pad: {first:?} has {length} entries, but {name:?} has {other}");
            return Err(Error::new(ErrorKind::Value, message)
                .help("the arrays of an example must have the same length, or be scalars"));
        }
        if length > self.length {
            let message = format!("pad: an example has {length} entries, more than the length {}", self.length);
            return Err(Error::new(ErrorKind::Value, message)
                .help("pad to the largest length, or cut examples with `map` first"));
        }
        room_for(self.length, 1, "a padded example", "pad to a smaller length")?;
        let mut padded = Example::new();
        for (name, x) in example {
            padded.insert(name, self.pad_array(x)?);
        }
        let mask: Vec<bool> = (0..self.length).map(|i| i < length).collect();
        with_mask("pad", padded, HostArray::from_slice(&mask, &[self.length])?)
    }

    /// Pads an array along its first dimension. Scalars are unchanged.
    fn pad_array(&self, x: HostArray) -> Result<HostArray> {
        match x.shape() {
            [] => Ok(x),
            // `filled` derives the size of an entry from the data, and an empty array has none.
            [0, entry_shape @ ..] => {
                let entry: usize = entry_shape.iter().product::<usize>() * x.dtype().byte_size();
                room_for(self.length, entry, "a padded example", "pad to a smaller length")?;
                let shape = [&[self.length], entry_shape].concat();
                HostArray::from_bytes(vec![0; self.length * entry], x.dtype(), &shape)
            }
            _ => x.filled(self.length),
        }
    }
}

impl<S: Stream<Item = Example>> Stream for Pad<S> {
    type Item = Example;
    fn next_item(&mut self) -> Option<Result<Example>> {
        let item = self.inner.next_item()?;
        Some(item.and_then(|example| self.padded(example)))
    }
    fn position(&self) -> Value {
        self.inner.position()
    }
    fn seek(&mut self, position: &Value) -> Result<()> {
        self.inner.seek(position)
    }
}
