//! Batches of a data set, with a mask for the last one, and batches split over devices.

use std::panic::Location;

use shardax::error::{Error, ErrorKind, Result};
use shardax::prelude::*;

use crate::data::{Dataset, shuffled};

/// A batch of labelled images.
#[derive(Clone, Debug, Tree)]
pub struct Batch {
    /// float32 `[B, …]`
    pub images: Array,
    /// int32 `[B]`
    pub labels: Array,
    /// bool `[B]`: false for the blank examples that fill up the last batch.
    pub mask: Array,
}

/// The batches of a data set; see [`Dataset::batches`].
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    data: &'a Dataset,
    order: Vec<usize>,
    size: usize,
    drop_last: bool,
    at: usize,
    /// The caller of [`Dataset::batches`], for error messages.
    location: &'static Location<'static>,
}

impl Dataset {
    /// Returns batches of `size` examples, in order. All have one shape, so that a compiled step is compiled once: a
    /// short last batch is padded with blank examples, which [`Batch::mask`] marks. Your loss and metrics must exclude
    /// them.
    ///
    /// If the size is 0, or a batch would be larger than the host's memory, the first item is an error.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let (_, test) = shardax_train::digits()?.split(1500);
    /// let batches: Vec<_> = test.batches(64).collect::<Result<_>>()?;
    /// assert_eq!(batches.len(), 5);
    /// assert_eq!(batches[4].images.shape(), [64, 8, 8, 1]);
    /// assert_eq!(batches[4].mask.sum(..).item::<i32>()?, 297 - 4 * 64);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn batches(&self, size: usize) -> Batches<'_> {
        let location = Location::caller();
        Batches { data: self, order: (0..self.len()).collect(), size, drop_last: false, at: 0, location }
    }
}

impl Batches<'_> {
    /// Shuffles the examples in an order that follows from `seed`. You should pass another seed in each epoch, because
    /// every epoch has the same order otherwise.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.order = shuffled(self.data.len(), seed);
        self
    }

    /// Drops the last batch if it is short, so that you can ignore [`Batch::mask`].
    pub fn drop_last(mut self) -> Self {
        self.drop_last = true;
        self
    }

    /// The number of remaining batches.
    fn remaining(&self) -> usize {
        let examples = self.order.len() - self.at;
        match self.size {
            0 => 0,
            size if self.drop_last => examples / size,
            size => examples.div_ceil(size),
        }
    }

    /// The error for an iterator without batches, if it has none.
    fn no_batches_error(&self) -> Option<Error> {
        if self.at > 0 || self.order.is_empty() || self.remaining() > 0 {
            return None;
        }
        let (size, len) = (self.size, self.order.len());
        Some(match size {
            0 => Error::new(ErrorKind::Value, "a batch needs at least one example, got batch size 0"),
            _ => {
                Error::new(ErrorKind::Value, format!("batch size {size} is larger than the data set ({len} examples)"))
                    .help("use smaller batches, or keep the short one, which is masked, by leaving out `drop_last`")
            }
        })
    }

    fn too_large(&self) -> Error {
        let shape = self.data.image_shape();
        Error::new(ErrorKind::Value, format!("{} images of shape {shape:?} do not fit in memory", self.size))
    }

    /// Copies these examples to arrays, padded to the size of a batch.
    fn batch(&self, examples: &[usize]) -> Result<Batch> {
        let pixels = self.size.checked_mul(self.data.pixels()).ok_or_else(|| self.too_large())?;
        let (mut images, mut labels) = (Vec::new(), Vec::new());
        images.try_reserve_exact(pixels).map_err(|_| self.too_large())?;
        labels.try_reserve_exact(self.size).map_err(|_| self.too_large())?;
        for &i in examples {
            images.extend_from_slice(self.data.image(i).unwrap_or_default());
            labels.extend(self.data.labels().get(i));
        }
        images.resize(pixels, 0.0);
        labels.resize(self.size, 0);
        let mask: Vec<bool> = (0..self.size).map(|i| i < examples.len()).collect();
        let shape = [&[self.size], self.data.image_shape()].concat();
        Ok(Batch {
            images: Array::from_vec(images, &shape)?,
            labels: Array::from_vec(labels, &[self.size])?,
            mask: Array::from_vec(mask, &[self.size])?,
        })
    }
}

impl Iterator for Batches<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        if let Some(error) = self.no_batches_error() {
            self.at = self.order.len();
            return Some(Err(error.at(self.location)));
        }
        if self.remaining() == 0 {
            return None;
        }
        let end = self.order.len().min(self.at.saturating_add(self.size));
        let batch = self.batch(&self.order[self.at..end]).map_err(|error| error.at(self.location));
        self.at = end;
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let remaining = self.remaining() + usize::from(self.no_batches_error().is_some());
        (remaining, Some(remaining))
    }
}

impl ExactSizeIterator for Batches<'_> {}

/// Splits the leading dimension of every array of a tree over `num_devices`: `[B, …]` becomes `[n, B / n, …]`, as
/// [`pmap`](pmap()) expects.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax_train::shard_batch;
///
/// let (images, labels) = shard_batch(&(zeros([128, 32, 32, 3]), zeros([128])), 8)?;
/// assert_eq!(images.shape(), [8, 16, 32, 32, 3]);
/// assert_eq!(labels.shape(), [8, 16]);
///
/// let error = shard_batch(&zeros([100]), 8).unwrap_err();
/// assert_eq!(error.message(), "Batch size 100 must be divisible by num_devices (8)");
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `num_devices` does not divide the size of the batch.
#[track_caller]
pub fn shard_batch<T: Tree>(tree: &T, num_devices: usize) -> Result<T> {
    let location = Location::caller();
    for (path, leaf) in tree::leaves_with_path(tree) {
        leaf.check()?;
        match leaf.shape() {
            [batch, ..] if num_devices > 0 && batch.is_multiple_of(num_devices) => {}
            [batch, ..] => return Err(indivisible(*batch, num_devices).at(location)),
            [] => {
                let message = format!("shard_batch splits the first dimension, but the array `{path}` is a scalar");
                let error = Error::new(ErrorKind::Value, message);
                return Err(error.help("pass values that all examples share to pmap with `in_axes` None").at(location));
            }
        }
    }
    tree::map(
        |leaf| {
            let (batch, example) = (leaf.shape()[0], &leaf.shape()[1..]);
            leaf.reshape([&[num_devices, batch / num_devices], example].concat())
        },
        tree.clone(),
    )
}

fn indivisible(batch: usize, n: usize) -> Error {
    let error =
        Error::new(ErrorKind::Indivisible, format!("Batch size {batch} must be divisible by num_devices ({n})"));
    if n == 0 {
        return error.help("num_devices must be at least 1; `device_count()` returns the number of devices");
    }
    let (below, above) = (batch / n * n, batch.next_multiple_of(n));
    let near = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
    error.help(format!("use batches of {near}; drop a short last batch, or pad and mask it"))
}
