//! What is to be written: where a thread writes it, copied from the devices, so that the arrays may be donated.

use std::sync::{Arc, Mutex, PoisonError};

use shardax::dtype::Scalar;
use shardax::error::Result;
use shardax::prelude::*;
use shardax::process_count;

use super::format::number_text;

/// A tree as it was.
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
    /// Whether it is this process's own, of which every process has one: they must be alike.
    pub host_local: bool,
    pub parts: Vec<PartCopy>,
}

/// A part that no other process and no other device writes.
pub(super) struct PartCopy {
    /// The device's number among those of all processes.
    pub device: usize,
    pub start: Vec<usize>,
    pub shape: Vec<usize>,
    pub data: Data,
}

/// The values of a part.
pub(super) enum Data {
    /// Those of now.
    Copied(Copied),
    /// Those on the device, of an array that nobody gives away in the meantime.
    There(Array),
}

impl Data {
    /// What `f` makes of the bytes.
    pub fn with<R>(&self, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        match self {
            Data::There(array) => array.with_bytes(f),
            Data::Copied(copy) => Ok(f(&copy.bytes)),
        }
    }
}

/// A copy, whose memory is used again.
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

/// Memory for copies, which is used again at the next save: fresh memory takes as long as the copy.
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

impl Snapshot {
    /// What this process writes, copied where there is memory for copies. Waits for the values.
    pub fn of<T: Tree>(tree: &T, copies: Option<&Memory>) -> Result<Snapshot> {
        let numbers: Vec<(String, Scalar)> = tree::structure(tree).numbers();
        let arrays = tree::leaves_with_path(tree).into_iter().map(|(path, array)| {
            ArrayCopy::of(&path, &array, copies)
                .map_err(|error| error.context(format!("a checkpoint's array `{path}`")))
        });
        let arrays = arrays.collect::<Result<_>>()?;
        if let Some(memory) = copies {
            // What is left of another tree's.
            memory.free().clear();
        }
        Ok(Snapshot {
            arrays,
            numbers: numbers.into_iter().map(|(path, number)| (path, number_text(&number))).collect(),
        })
    }
}

impl ArrayCopy {
    fn of(path: &str, array: &Array, copies: Option<&Memory>) -> Result<ArrayCopy> {
        array.check()?;
        let sharding = array.sharding()?;
        let mut parts = Vec::new();
        // The first copy of each part, wherever it lies, is the one that is written.
        for shard in array.global_shards()?.into_iter().filter(|shard| shard.replica_id == 0) {
            let Some(data) = shard.data else { continue };
            parts.push(PartCopy {
                device: shard.device.id(),
                start: shard.index.iter().map(|range| range.start).collect(),
                shape: shard.index.iter().map(|range| range.len()).collect(),
                data: match copies {
                    Some(memory) => {
                        let mut copy = memory.take(data.nbytes());
                        data.with_bytes(|bytes| copy.extend_from_slice(bytes))?;
                        Data::Copied(Copied { bytes: copy, memory: memory.clone() })
                    }
                    None => {
                        data.block_until_ready()?;
                        Data::There(data)
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
