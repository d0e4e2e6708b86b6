//! Packing of texts of different lengths into rows of one length.

use serde_json::{Value, json};
use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

use super::file::room;
use super::stream::{Stream, number};
use super::{Example, HostArray};

/// The stream of [`Stream::pack`] and [`Stream::concat_then_split`].
///
/// Its position is the stream's position before the text that continues in the next row, with the number of tokens of
/// that text that are already packed.
#[derive(Debug)]
pub struct Pack<S> {
    inner: S,
    length: usize,
    /// True if a text can continue in the next row; otherwise each row begins with a new text.
    split: bool,
    /// The text that is not completely packed yet, and the number of its places that are.
    text: Option<(Vec<i32>, usize)>,
    /// The position of the stream before that text.
    before: Value,
    /// The error to return after the row that it ended.
    failed: Option<Error>,
}

/// The maximal number of consecutive texts without a target, because an endless stream of them must not block forever.
const MAX_EMPTY_TEXTS: usize = 1_000_000;

/// A row being filled.
#[derive(Default)]
struct Row {
    tokens: Vec<i32>,
    targets: Vec<i32>,
    segment_ids: Vec<i32>,
    positions: Vec<i32>,
}

impl Row {
    /// Creates a row of `length` places.
    fn new(length: usize) -> Result<Row> {
        let mut row = Row::default();
        // Counts the row's vectors and the arrays made of them.
        let bytes = (length as u64).saturating_mul(2 * 4 * size_of::<i32>() as u64);
        let fields = [&mut row.tokens, &mut row.targets, &mut row.segment_ids, &mut row.positions];
        let checked = room(bytes).map_err(|error| error.to_string());
        checked
            .and_then(|()| {
                fields
                    .into_iter()
                    .try_for_each(|field| field.try_reserve_exact(length))
                    .map_err(|error| error.to_string())
            })
            .map_err(|error| {
                Error::new(ErrorKind::Value, format!("a row of {length} tokens: {error}"))
                    .help("pass a smaller length, so that a row fits in memory")
            })?;
        Ok(row)
    }
}

impl<S: Stream<Item = Example>> Pack<S> {
    pub(super) fn new(inner: S, length: usize, split: bool) -> Self {
        let before = inner.position();
        Pack { inner, length, split, text: None, before, failed: None }
    }

    /// Ensures that there is a text with places left.
    fn text(&mut self) -> Option<Result<()>> {
        let mut empty = 0;
        while self.text.as_ref().is_none_or(|(tokens, done)| done + 1 >= tokens.len()) {
            if empty > MAX_EMPTY_TEXTS {
                let message = format!("{MAX_EMPTY_TEXTS} consecutive texts have fewer than two tokens");
                return Some(Err(Error::new(ErrorKind::Value, message).help("use texts of two tokens or more")));
            }
            empty += 1;
            self.text = None;
            self.before = self.inner.position();
            match self.inner.next_item()?.and_then(|example| tokens_of(&example)) {
                Ok(tokens) => self.text = Some((tokens, 0)),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(()))
    }

    /// Fills a row with the next texts; `None` at the end.
    fn fill(&mut self) -> Option<Result<Row>> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        let mut row = match Row::new(self.length) {
            Ok(row) => row,
            Err(error) => return Some(Err(error)),
        };
        let mut segment = 0;
        while row.tokens.len() < self.length {
            match self.text() {
                Some(Ok(())) => {}
                Some(Err(error)) if row.tokens.is_empty() => return Some(Err(error)),
                Some(Err(error)) => {
                    // The texts before the error are returned first.
                    self.failed = Some(error);
                    break;
                }
                None if row.tokens.is_empty() => return None,
                None => break,
            }
            let Some((tokens, done)) = &mut self.text else { break };
            let (remaining, room) = (tokens.len() - 1 - *done, self.length - row.tokens.len());
            // A text longer than a row is cut anyway.
            if remaining > room && !self.split && segment > 0 {
                break;
            }
            let count = remaining.min(room);
            segment += 1;
            row.tokens.extend(&tokens[*done..*done + count]);
            row.targets.extend(&tokens[*done + 1..*done + 1 + count]);
            row.segment_ids.extend(std::iter::repeat_n(segment, count));
            row.positions.extend((*done..*done + count).map(|at| at as i32));
            *done += count;
        }
        Some(Ok(row))
    }
}

fn tokens_of(example: &Example) -> Result<Vec<i32>> {
    match example.get("tokens") {
        Some(tokens) if tokens.dtype() == DType::I32 && tokens.shape().len() == 1 => tokens.to_vec(),
        tokens => {
            let actual = tokens.map_or("none".to_owned(), |x| format!("{}{:?}", x.dtype(), x.shape()));
            let message = format!("a text to pack must have `tokens`, int32 [length], but has {actual}");
            Err(Error::new(ErrorKind::Value, message).help("`map` examples to tokens first"))
        }
    }
}

impl<S: Stream<Item = Example>> Stream for Pack<S> {
    type Item = Example;

    fn next_item(&mut self) -> Option<Result<Example>> {
        if self.length == 0 {
            let error = Error::new(ErrorKind::Value, "a row needs room for at least one token, got a length of 0");
            return Some(Err(error.help("pass a length of 1 or more")));
        }
        let row = match self.fill()? {
            Ok(row) => row,
            Err(error) => return Some(Err(error)),
        };
        let length = self.length;
        let fields = [
            ("tokens", row.tokens),
            ("targets", row.targets),
            ("segment_ids", row.segment_ids),
            ("positions", row.positions),
        ];
        let filled = fields.into_iter().map(|(name, mut values)| {
            values.resize(length, 0);
            Ok((name.to_owned(), HostArray::from_slice(&values, &[length])?))
        });
        Some(filled.collect())
    }

    fn position(&self) -> Value {
        match &self.text {
            // A stream that resumes here meets the error again.
            _ if self.failed.is_some() => json!({ "before": self.before, "done": 0 }),
            Some((tokens, done)) if done + 1 < tokens.len() => json!({ "before": self.before, "done": done }),
            _ => json!({ "before": self.inner.position(), "done": 0 }),
        }
    }

    fn seek(&mut self, position: &Value) -> Result<()> {
        let done = number(position, "done")? as usize;
        self.inner.seek(&position["before"])?;
        (self.text, self.failed) = (None, None);
        self.before = self.inner.position();
        if done == 0 {
            return Ok(());
        }
        self.text().transpose()?;
        match &mut self.text {
            Some((tokens, at)) if done < tokens.len() => *at = done,
            _ => {
                let message = format!("the position {position} belongs to other texts");
                return Err(
                    Error::new(ErrorKind::Value, message).help("use the same data as when the position was saved")
                );
            }
        }
        Ok(())
    }
}
