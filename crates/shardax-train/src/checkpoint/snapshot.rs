//! What is to be written, copied from the devices: after this the arrays may be donated.

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
    pub bytes: Vec<u8>,
}

impl Snapshot {
    /// Copies what this process writes, and waits for the values.
    pub fn of<T: Tree>(tree: &T) -> Result<Snapshot> {
        let numbers: Vec<(String, Scalar)> = tree::structure(tree).numbers();
        let arrays = tree::leaves_with_path(tree).into_iter().map(|(path, array)| {
            ArrayCopy::of(&path, &array).map_err(|error| error.context(format!("a checkpoint's array `{path}`")))
        });
        Ok(Snapshot {
            arrays: arrays.collect::<Result<_>>()?,
            numbers: numbers.into_iter().map(|(path, number)| (path, number_text(&number))).collect(),
        })
    }
}

impl ArrayCopy {
    fn of(path: &str, array: &Array) -> Result<ArrayCopy> {
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
                bytes: data.to_bytes()?,
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
