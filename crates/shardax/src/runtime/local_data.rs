//! Global arrays from process-local data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::device_put::device_put;
use crate::core::array::transfer;
use crate::core::array::{Array, Buffers, Concrete};
use crate::core::program::Aval;
use crate::error::{AtCaller, Result, err};
use crate::shape::Shape;
use crate::sharding::device::client;
use crate::sharding::{Index, Sharding};

/// Creates a global array from `local`, the part of this process, and infers the global shape: each size of `local`,
/// times the number of processes that split this dimension. With one process, `local` is the entire array.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let sharding = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
/// let batch = make_array_from_process_local_data(&sharding, &ones([32, 10]))?;
/// assert_eq!((batch.shape(), batch.addressable_data(0)?.shape()), (&[32, 10][..], &[4, 10][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Nothing is communicated, so a mistake is an error only on the process that makes it.
///
/// # Errors
/// Returns an error if the sharding does not divide the shape, and if processes hold parts of a dimension that overlap
/// without being equal.
#[track_caller]
pub fn make_array_from_process_local_data(sharding: impl Into<Sharding>, local: &Array) -> Result<Array> {
    from_local(&sharding.into(), local, &vec![None; local.ndim()]).at_caller()
}

/// Like [`make_array_from_process_local_data`], with the global shape; a size of `None` is inferred.
///
/// A size can also be equal to the size of `local`; then every process has all of this dimension.
///
/// # Errors
/// Also returns an error if a size equals neither the size of `local` nor the inferred size.
#[track_caller]
pub fn make_array_from_process_local_data_of_shape(
    sharding: impl Into<Sharding>,
    local: &Array,
    global_shape: impl AsRef<[Option<usize>]>,
) -> Result<Array> {
    from_local(&sharding.into(), local, global_shape.as_ref()).at_caller()
}

fn from_local(sharding: &Sharding, local: &Array, requested: &[Option<usize>]) -> Result<Array> {
    local.check()?;
    if sharding.is_fully_addressable() {
        return from_only_process(sharding, local, requested);
    }
    sharding.check_constrained("make_array_from_process_local_data")?;
    let global = complete_shape(sharding, local, requested)?;
    let part = sharding.shard_shape(&global)?;
    let held_shards: Vec<(usize, Index)> = (0..sharding.devices().len())
        .filter(|&i| sharding.devices()[i].is_addressable())
        .map(|i| (i, sharding.index_at(i, &global)))
        .collect();
    if held_shards.is_empty() {
        return Err(err!(Value, "none of the devices of {sharding} belong to this process")
            .help("call it on the processes whose devices are in the mesh"));
    }
    // The start of each shard that this process holds, for each dimension.
    let starts: Vec<Vec<usize>> = (0..global.len())
        .map(|dim| held_shards.iter().map(|(_, index)| index[dim].start).collect::<BTreeSet<_>>().into_iter().collect())
        .collect();
    let have = local.shape();
    check_host_sizes(have, &global, &starts, &part)?;
    let (bytes, dtype) = (local.to_bytes()?, local.dtype());
    let dims: SmallVec<[i64; 4]> = part.iter().map(|&d| d as i64).collect();
    let mut buffers = Buffers::new();
    for (position, index) in &held_shards {
        let within: Index = index
            .iter()
            .enumerate()
            .map(|(dim, range)| {
                if have[dim] == global[dim] {
                    range.clone()
                } else {
                    let rank = starts[dim].iter().position(|start| *start == range.start).unwrap_or(0);
                    rank * part[dim]..(rank + 1) * part[dim]
                }
            })
            .collect();
        let mut data = transfer::extract(&bytes, have, &within, dtype.byte_size());
        // Only the first addend has the values; the others are zeros.
        if sharding.addend_at(*position) > 0 {
            data.fill(0);
        }
        let device = &sharding.devices()[*position];
        buffers.push(Arc::new(client()?.pjrt.buffer_from_host(
            &data,
            dtype.element_type(),
            &dims,
            device.attached()?,
        )?));
    }
    Ok(Array::from_concrete(Concrete::new(Aval::new(dtype, global), sharding.clone(), true, buffers)))
}

/// Places the data, which is complete, because all devices belong to this process.
fn from_only_process(sharding: &Sharding, local: &Array, requested: &[Option<usize>]) -> Result<Array> {
    let fits =
        requested.len() == local.ndim() && requested.iter().zip(local.shape()).all(|(a, d)| a.is_none_or(|a| a == *d));
    if !fits {
        return Err(err!(
            Value,
            "When calling `make_array_from_process_local_data` on a single process, the global shape must be unset or equal to the shape of the local data. Got the global shape {} and local data of type {}",
            show(requested),
            local.type_name()
        )
        .help("omit the shape, or pass `None` for sizes that follow from the local data"));
    }
    device_put(local, sharding.clone())
}

/// Each dimension of the local data has either all elements, or the elements of this process's shards.
fn check_host_sizes(have: &[usize], global: &[usize], starts: &[Vec<usize>], part: &[usize]) -> Result<()> {
    for (dim, (&size, &global_size)) in have.iter().zip(global).enumerate() {
        let process_size = starts[dim].len() * part[dim];
        if size != global_size && size != process_size {
            return Err(err!(
                Value,
                "Invalid host data, each dimension should match either global or process shape. In dimension {dim}, the process data has {size} elements. Process addresses {process_size} elements and global_shape={global:?}"
            )
            .help("pass the part of this process, which has the shards of its devices along each dimension"));
        }
    }
    Ok(())
}

/// Completes the requested shape by the sizes that follow from the local data and the sharding.
fn complete_shape(sharding: &Sharding, local: &Array, requested: &[Option<usize>]) -> Result<Shape> {
    let have = local.shape();
    if requested.len() != have.len() {
        return Err(err!(
            Value,
            "global_shape={} has another rank than the local data of type {}",
            show(requested),
            local.type_name()
        )
        .help("pass one size, or `None`, for each dimension"));
    }
    let inferred = global_shape(sharding, have)?;
    let known_sizes: Vec<Option<usize>> =
        requested.iter().zip(&inferred).map(|(requested, found)| requested.or(*found)).collect();
    known_sizes.iter().copied().collect::<Option<Shape>>().ok_or_else(|| {
        let dim = known_sizes.iter().position(Option::is_none).unwrap_or(0);
        err!(
            Value,
            "Unable to compute global_shape due to non-uniform sharding: {sharding} is not uniform over processes in dimension {dim}. Partially computed global_shape={}",
            show(&known_sizes)
        )
        .help("Specify global shape directly, with `make_array_from_process_local_data_of_shape`")
    })
}

/// Computes the shape of an array if every process has a part of this shape. `None` for a dimension in which the parts
/// of processes overlap without being equal.
fn global_shape(sharding: &Sharding, local: &[usize]) -> Result<Vec<Option<usize>>> {
    let devices = sharding.devices();
    // A shape that every product of axis sizes divides, so that every sharding over the mesh is possible.
    let shape = vec![devices.len(); local.len()];
    sharding.shard_shape(&shape)?;
    let counts = (0..local.len()).map(|dim| {
        let mut starts_of_process: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (i, device) in devices.iter().enumerate() {
            starts_of_process
                .entry(device.process_index())
                .or_default()
                .insert(sharding.index_at(i, &shape)[dim].start);
        }
        let distinct: BTreeSet<&BTreeSet<usize>> = starts_of_process.values().collect();
        let starts: BTreeSet<usize> = starts_of_process.values().flatten().copied().collect();
        let sizes: BTreeSet<usize> = starts_of_process.values().map(BTreeSet::len).collect();
        let are_disjoint = distinct.iter().map(|set| set.len()).sum::<usize>() == starts.len();
        (sizes.len() == 1 && are_disjoint).then_some(distinct.len())
    });
    Ok(counts.zip(local).map(|(count, size)| count.map(|n| n * size)).collect())
}

fn show(shape: &[Option<usize>]) -> String {
    let sizes: Vec<String> = shape.iter().map(|a| a.map_or("None".to_owned(), |a| a.to_string())).collect();
    format!("[{}]", sizes.join(", "))
}
