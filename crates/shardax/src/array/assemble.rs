//! Making arrays that are spread over devices: from parts, from a callback, from this process's data; and copies for
//! every device.

use std::sync::Arc;

use super::{Array, Buffers, Concrete, device_put};
use crate::dtype::DType;
use crate::error::{Result, bail, err};
use crate::numpy::stack;
use crate::program::Aval;
use crate::runtime::{Device, client};
use crate::shape::Shape;
use crate::sharding::{Index, Mesh, NamedSharding, PartitionSpec, Sharding};
use crate::tree::{Flat, Tree, same_structure};

/// An array of which `part` gives each device's part, from the ranges of the whole that the device holds.
///
/// `part` is called once for each distinct part; devices that hold the same part share its values. Fails when a part
/// has another shape or dtype than its ranges and `dtype` say.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let sharding = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
/// let x = make_array_from_callback([16], DType::I32, &sharding, |index| {
///     Ok(arange(index[0].start as i32..index[0].end as i32))
/// })?;
/// assert_eq!(x.to_vec::<i32>()?, (0..16).collect::<Vec<_>>());
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn make_array_from_callback(
    shape: impl AsRef<[usize]>,
    dtype: DType,
    sharding: impl Into<Sharding>,
    mut part: impl FnMut(&Index) -> Result<Array>,
) -> Result<Array> {
    let (shape, sharding) = (shape.as_ref(), sharding.into());
    let want = sharding.shard_shape(shape)?;
    let mut made: Vec<(Index, Vec<u8>)> = Vec::new();
    let mut buffers = Buffers::new();
    let dims: Vec<i64> = want.iter().map(|&d| d as i64).collect();
    for (i, device) in sharding.devices().iter().enumerate() {
        let index = sharding.index_at(i, shape);
        let at = match made.iter().position(|(known, _)| *known == index) {
            Some(at) => at,
            None => {
                let data = part(&index)?;
                data.check()?;
                if data.shape() != want.as_slice() || data.dtype() != dtype {
                    bail!(
                        Value,
                        "make_array_from_callback needs parts of type {}, but got {} for {index:?}",
                        Aval::new(dtype, want.clone()),
                        data.type_name()
                    );
                }
                made.push((index, data.to_bytes()?));
                made.len() - 1
            }
        };
        let buffer = client()?.pjrt.buffer_from_host(&made[at].1, dtype.element_type(), &dims, &device.0)?;
        buffers.push(Arc::new(buffer));
    }
    Ok(Array::from_concrete(Concrete::new(Aval::new(dtype, shape), sharding, true, buffers)))
}

/// An array made of the parts that single devices hold, in any order, without a copy.
///
/// Fails when there is not exactly one part for each device of the sharding, or when parts differ in dtype or shape
/// from what the sharding of `shape` gives.
pub fn make_array_from_single_device_arrays(
    shape: impl AsRef<[usize]>,
    sharding: impl Into<Sharding>,
    parts: &[Array],
) -> Result<Array> {
    let (shape, sharding) = (shape.as_ref(), sharding.into());
    let want = sharding.shard_shape(shape)?;
    let devices = sharding.devices();
    if parts.len() != devices.len() {
        bail!(
            Value,
            "make_array_from_single_device_arrays got {} arrays for the {} devices of {sharding}",
            parts.len(),
            devices.len()
        );
    }
    let parts: Vec<Arc<Concrete>> = parts.iter().map(Array::concrete).collect::<Result<_>>()?;
    let dtype = parts[0].aval.dtype;
    let buffers = devices
        .iter()
        .map(|device| {
            let found = parts.iter().find(|p| p.sharding.devices() == std::slice::from_ref(device));
            let part = found.ok_or_else(|| err!(Value, "no array was given for device {device} of {sharding}"))?;
            if part.aval.shape != want || part.aval.dtype != dtype {
                bail!(
                    Value,
                    "the array for device {device} has type {}, but an array of shape {shape:?} with {sharding} needs {}",
                    part.aval,
                    Aval::new(dtype, want.clone())
                );
            }
            Ok(part.buffers[0].clone())
        })
        .collect::<Result<Buffers>>()?;
    Ok(Array::from_concrete(Concrete::new(Aval::new(dtype, shape), sharding, true, buffers)))
}

/// An array of which `local` is the part of this process. With one process that is the whole array.
///
/// Fails when the shape is not divided by the sharding.
pub fn make_array_from_process_local_data(sharding: impl Into<Sharding>, local: &Array) -> Result<Array> {
    device_put(local, sharding)
}

/// One tree for each device, stacked on a new leading axis that is split over them.
///
/// Fails for trees of different structures or shapes, or another number of trees than devices.
pub fn device_put_sharded<T: Tree>(shards: &[T], devices: &[Device]) -> Result<T> {
    if shards.len() != devices.len() || shards.is_empty() {
        bail!(
            Value,
            "device_put_sharded needs one value for each device, got {} values for {} devices",
            shards.len(),
            devices.len()
        );
    }
    let flats: Vec<Flat> = shards.iter().map(Flat::of).collect();
    flats[1..].iter().try_for_each(|f| same_structure(&flats[0].def, &f.def))?;
    let mut out = flats[0].clone();
    for (i, leaf) in out.leaves.iter_mut().enumerate() {
        // Parts may be committed to their devices: they are gathered on the host, and sent out once.
        let parts: Vec<Array> = flats.iter().map(|f| super::device_get(&f.leaves[i])).collect::<Result<_>>()?;
        *leaf = stack(&parts, 0);
        leaf.check()?;
    }
    device_put(&out.build::<T>()?, &leading(devices)?)
}

/// A copy of the tree for each device, stacked on a new leading axis that is split over them. For arrays that are
/// replicated without such an axis, use `device_put(x, &NamedSharding::new(&mesh, P![]))`.
pub fn device_put_replicated<T: Tree>(tree: &T, devices: &[Device]) -> Result<T> {
    device_put_sharded(&vec![tree.clone(); devices.len()], devices)
}

/// A copy of the tree for each local device, on a new leading axis: what `pmap` maps over.
pub fn replicate<T: Tree>(tree: &T) -> Result<T> {
    device_put_replicated(tree, &crate::runtime::local_devices()?)
}

/// The first entry along the leading axis of each array: undoes [`replicate`]. No communication: the first device's
/// part is taken as it is, where it is that entry.
pub fn unreplicate<T: Tree>(tree: &T) -> Result<T> {
    let mut flat = Flat::of(tree);
    for leaf in &mut flat.leaves {
        let first = leaf.addressable_data(0)?;
        *leaf = match first.shape().first() {
            Some(1) => first.squeeze(0),
            _ => leaf.get(0),
        };
        leaf.check()?;
    }
    flat.build()
}

/// Split over `devices` along the leading axis.
fn leading(devices: &[Device]) -> Result<NamedSharding> {
    let name = crate::shape::AxisName::new("devices");
    let mesh: Mesh = Mesh::new(devices.to_vec(), [(name, devices.len())])?;
    Ok(NamedSharding::new(&mesh, PartitionSpec::default().insert(0, &[name])))
}

impl Array {
    /// Another array with the same values and sharding in memory of its own.
    pub fn copy(&self) -> Result<Array> {
        let c = self.concrete()?;
        let sharding = c.sharding.clone();
        let dims: Shape = sharding.shard_shape(&c.aval.shape)?;
        let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        let buffers = c
            .buffers
            .iter()
            .zip(sharding.devices())
            .map(|(b, device)| {
                let mut bytes = vec![0; b.byte_size()];
                b.to_host(&mut bytes)?;
                let buffer = client()?.pjrt.buffer_from_host(&bytes, c.aval.dtype.element_type(), &dims, &device.0)?;
                Ok(Arc::new(buffer))
            })
            .collect::<Result<Buffers>>()?;
        Ok(Array::from_concrete(Concrete::new(c.aval.clone(), sharding, c.committed, buffers)))
    }
}
