//! Snapshots of trees for a save. For a background save the arrays' buffers are retained first, which takes no time.
//! The thread then copies them before anything else, so that only a step that donates them waits, and only for the
//! copy.

use std::sync::{Arc, Mutex, PoisonError};

use shardax::array::Retained;
use shardax::dtype::Scalar;
use shardax::error::{Error, Result};
use shardax::prelude::*;
use shardax::process_count;

use super::format::number_text;
use super::parallel::map_parallel;

/// A snapshot of a tree.
pub(super) struct Snapshot {
    pub arrays: Vec<ArrayCopy>,
    /// Key path and text.
    pub numbers: Vec<(String, String)>,
}

pub(super) struct ArrayCopy {
    pub path: String,
    pub dtype: DType,
    pub weak: bool,
    pub shape: Vec<usize>,
    pub sharding: String,
    /// True for an array that every process has a copy of: the copies must be equal.
    pub host_local: bool,
    pub parts: Vec<PartCopy>,
}

/// A slice that no other process and no other device writes.
pub(super) struct PartCopy {
    /// The global id of the device.
    pub device: usize,
    pub start: Vec<usize>,
    pub shape: Vec<usize>,
    /// The size of an element.
    pub bytes_each: usize,
    pub data: Data,
}

/// The values of a slice.
pub(super) enum Data {
    /// A copy on the host.
    Copied(Copied),
    /// A buffer on the device, which cannot be donated until it is copied.
    Retained(Retained),
    /// A buffer on the device, which the waiting caller does not donate.
    InPlace(Array),
}

impl Data {
    /// Calls `f` with the bytes.
    pub fn with<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        match self {
            Data::InPlace(array) => array.with_bytes(f),
            Data::Retained(held) => {
                let mut bytes = Vec::new();
                held.copy_to(&mut bytes)?;
                Ok(f(&bytes))
            }
            Data::Copied(copy) => Ok(f(&copy.bytes)),
        }
    }
}

/// A copy, whose memory is reused.
pub(super) struct Copied {
    bytes: Vec<u8>,
    memory: Memory,
}

impl Drop for Copied {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        self.memory.free().push(bytes);
    }
}

/// Memory for copies, reused by the next save: allocating and faulting in fresh memory takes as long as the copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory(Arc<Mutex<Vec<Vec<u8>>>>);

impl Memory {
    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, len: usize) -> Vec<u8> {
        let mut free = self.free();
        match free.iter().position(|bytes| bytes.capacity() == len) {
            Some(at) => free.swap_remove(at),
            None => Vec::with_capacity(len),
        }
    }
}

/// Treatment of the arrays until they are written.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Keep {
    /// The caller waits for the save and donates nothing. Waits for the values.
    InPlace,
    /// The buffers are retained until [`Snapshot::copied`].
    Retained,
}

impl Snapshot {
    /// Takes a snapshot of this process's part of a tree.
    pub fn of<T: Tree>(tree: &T, keep: Keep) -> Result<Snapshot> {
        let numbers: Vec<(String, Scalar)> = tree::structure(tree).numbers();
        let arrays = tree::leaves_with_path(tree)
            .into_iter()
            .map(|(path, array)| ArrayCopy::of(&path, &array, keep).map_err(|error| about(&path, error)));
        Ok(Snapshot {
            arrays: arrays.collect::<Result<_>>()?,
            numbers: numbers.into_iter().map(|(path, number)| (path, number_text(&number))).collect(),
        })
    }

    /// Copies the retained buffers, which may then be donated. Waits for the values.
    pub fn copied(mut self, memory: &Memory) -> Result<Snapshot> {
        let parts = self.arrays.iter_mut().flat_map(|ArrayCopy { path, parts, .. }| {
            let path = &*path;
            parts.iter_mut().map(move |part| (path, part))
        });
        map_parallel(
            parts.collect(),
            || (),
            |(), (path, part)| {
                let Data::Retained(held) = &part.data else { return Ok::<(), Error>(()) };
                let bytes = part.shape.iter().product::<usize>() * part.bytes_each;
                let mut copy = memory.take(bytes);
                held.copy_to(&mut copy).map_err(|error| about(path, error))?;
                // Replacing the data releases the array's buffer.
                part.data = Data::Copied(Copied { bytes: copy, memory: memory.clone() });
                Ok(())
            },
        )?;
        // Frees memory that an earlier, different tree needed.
        memory.free().clear();
        Ok(self)
    }
}

fn about(path: &str, error: Error) -> Error {
    error.context(format!("a checkpoint's array `{path}`"))
}

impl ArrayCopy {
    fn of(path: &str, array: &Array, keep: Keep) -> Result<ArrayCopy> {
        // Addends, whose shards are not parts of a value, cannot be retained.
        array.retain()?;
        let sharding = array.sharding()?;
        let mut parts = Vec::new();
        // Of a replicated slice only the first replica is written.
        for shard in array.global_shards()?.into_iter().filter(|shard| shard.replica_id == 0) {
            let Some(data) = shard.data else { continue };
            parts.push(PartCopy {
                device: shard.device.id(),
                start: shard.index.iter().map(|range| range.start).collect(),
                shape: shard.index.iter().map(|range| range.len()).collect(),
                bytes_each: array.dtype().byte_size(),
                data: match keep {
                    Keep::Retained => Data::Retained(data.retain()?),
                    Keep::InPlace => {
                        data.block_until_ready()?;
                        Data::InPlace(data)
                    }
                },
            });
        }
        Ok(ArrayCopy {
            path: path.to_owned(),
            dtype: array.dtype(),
            weak: array.weak_type(),
            shape: array.shape().to_vec(),
            sharding: sharding.to_string(),
            host_local: process_count() > 1 && sharding.is_fully_addressable(),
            parts,
        })
    }
}
