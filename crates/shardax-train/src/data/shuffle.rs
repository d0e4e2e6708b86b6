//! Shuffling of streams with a buffer.

use serde_json::{Value, json};
use shardax::error::Result;

use super::file::room_for;
use super::shuffled;
use super::stream::{ROUND, Stream, number, round_of, round_seed};

/// The stream of [`Stream::shuffle`]: buffers of items, each in another random order.
///
/// The position is the beginning of the buffer and the number of its items already returned: seeking reads the buffer
/// again.
#[derive(Debug)]
pub struct ShuffleBuffer<S: Stream> {
    inner: S,
    size: usize,
    seed: u64,
    /// The number of times that [`Stream::repeat`] has begun again.
    round: u64,
    block: u64,
    /// The position where the buffer begins.
    begin: Value,
    /// The remaining items of the buffer, the next one last.
    items: Vec<Result<S::Item>>,
    given: usize,
}

impl<S: Stream> ShuffleBuffer<S> {
    pub(super) fn new(inner: S, size: usize, seed: u64) -> Self {
        let begin = inner.position();
        ShuffleBuffer { inner, size: size.max(1), seed, round: 0, block: 0, begin, items: Vec::new(), given: 0 }
    }

    fn fill(&mut self) -> Result<()> {
        // Only the items' size is known before they are read, not the memory that they refer to.
        let message = format!("a shuffle buffer of {} items", self.size);
        let help = "pass a smaller size, or shuffle all examples of a source with `shuffled`";
        room_for(self.size, size_of::<Result<S::Item>>(), &message, help)?;
        self.begin = self.inner.position();
        let read: Vec<Result<S::Item>> = self.inner.items().take(self.size).collect();
        let block = self.block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round_seed(self.round);
        let order = shuffled(read.len(), self.seed ^ block);
        let mut read: Vec<Option<Result<S::Item>>> = read.into_iter().map(Some).collect();
        self.items = order.into_iter().filter_map(|i| read[i].take()).collect();
        self.given = 0;
        Ok(())
    }
}

impl<S: Stream> Stream for ShuffleBuffer<S> {
    type Item = S::Item;

    fn next_item(&mut self) -> Option<Result<S::Item>> {
        if self.items.is_empty()
            && let Err(error) = self.fill()
        {
            return Some(Err(error));
        }
        let item = self.items.pop()?;
        self.given += 1;
        if self.items.is_empty() {
            self.block = self.block.wrapping_add(1);
            self.begin = self.inner.position();
            self.given = 0;
        }
        Some(item)
    }

    fn position(&self) -> Value {
        json!({ "block": self.block, "given": self.given, "begin": self.begin, ROUND: self.round })
    }

    fn seek(&mut self, position: &Value) -> Result<()> {
        let (block, given) = (number(position, "block")?, number(position, "given")? as usize);
        self.inner.seek(&position["begin"])?;
        (self.round, self.block) = (round_of(position), block);
        self.items.clear();
        (self.begin, self.given) = (self.inner.position(), 0);
        if given > 0 {
            self.fill()?;
            self.items.truncate(self.items.len().saturating_sub(given));
            self.given = given;
        }
        Ok(())
    }
}
