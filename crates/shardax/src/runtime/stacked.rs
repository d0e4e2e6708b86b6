//! Arrays with a leading axis of one entry per device, over which `pmap` maps.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::core::array::{Array, Buffers, Concrete};
use crate::core::tree::{Flat, Tree, same_structure};
use crate::error::{AtCaller, Result, err};
use crate::shape::AxisName;
use crate::sharding::device::{Device, client, local_devices};
use crate::sharding::{Mesh, NamedSharding, PartitionSpec};

/// Stacks one tree per device on a new leading axis that is split over the devices.
///
/// Each entry moves to its device. No device ever holds the entire stack, and the total memory is `devices.len()` times
/// the memory of one tree. Data on other devices is copied through the host.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let rows: Vec<Array> = (0..8).map(|i| arange(i..i + 3)).collect();
/// let x = device_put_sharded(&rows, &devices()?)?;
/// assert_eq!((x.shape(), x.addressable_data(5)?.to_vec::<i32>()?), (&[8, 3][..], vec![5, 6, 7]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees have different structures, shapes or dtypes, and unless there are as many trees as
/// devices.
#[track_caller]
pub fn device_put_sharded<T: Tree>(shards: &[T], devices: &[Device]) -> Result<T> {
    put_sharded(shards, devices).at_caller()
}

fn put_sharded<T: Tree>(shards: &[T], devices: &[Device]) -> Result<T> {
    if shards.len() != devices.len() || shards.is_empty() {
        return Err(err!(
            Value,
            "device_put_sharded needs one value for each device, got {} values for {} devices",
            shards.len(),
            devices.len()
        )
        .help("pass as many values as there are devices"));
    }
    // The shards must be equal trees of equal types, because they become one array per leaf.
    let flats: Vec<Flat> = shards.iter().map(Flat::of).collect();
    flats[1..].iter().try_for_each(|f| same_structure(&flats[0].def, &f.def))?;
    stack(flats[0].clone(), devices, &|device, leaf| flats[device].leaves[leaf].to_bytes(), &|leaf| {
        let expected = flats[0].leaves[leaf].aval();
        for (device, flat) in flats.iter().enumerate() {
            let aval = flat.leaves[leaf].aval();
            if (aval.dtype, &aval.shape) != (expected.dtype, &expected.shape) {
                return Err(err!(
                    Value,
                    "the shards passed to device_put_sharded must have consistent shape and dtype, but{} is {expected} for device 0 and {aval} for device {device}",
                    match flat.def.paths().swap_remove(leaf) {
                        path if path.is_empty() => " it".to_owned(),
                        path => format!(" value{path}"),
                    }
                )
                .help("pass arrays of equal shape and dtype for all devices"));
            }
        }
        Ok(())
    })
}

/// Copies the tree to each device, stacked on a new leading axis that is split over the devices. The total memory is
/// `devices.len()` times the memory of one tree, one copy on each device.
///
/// The result is *sharded*, not replicated: nothing knows that the entries are equal, so `x.get(0)` communicates. If
/// you want replicated arrays without such an axis, use `device_put(x, &NamedSharding::new(&mesh, P![]))`.
///
/// # Errors
/// Returns an error if no device is given.
#[track_caller]
pub fn device_put_replicated<T: Tree>(tree: &T, devices: &[Device]) -> Result<T> {
    put_replicated(tree, devices).at_caller()
}

fn put_replicated<T: Tree>(tree: &T, devices: &[Device]) -> Result<T> {
    if devices.is_empty() {
        return Err(err!(Value, "`devices` argument to device_put_replicated must be a non-empty sequence")
            .help("pass the devices that should receive a copy, such as `local_devices()?`"));
    }
    let flat = Flat::of(tree);
    let bytes = flat.leaves.iter().map(Array::to_bytes).collect::<Result<Vec<_>>>()?;
    stack(flat.clone(), devices, &|_, leaf| Ok(&bytes[leaf]), &|_| Ok(()))
}

/// Stacks the tree on a leading axis over `devices`; `bytes` returns a device's entry of a leaf.
fn stack<T: Tree, B: AsRef<[u8]>>(
    mut flat: Flat,
    devices: &[Device],
    bytes: &dyn Fn(usize, usize) -> Result<B>,
    check: &dyn Fn(usize) -> Result<()>,
) -> Result<T> {
    let sharding = leading(devices)?;
    for (i, leaf) in flat.leaves.iter_mut().enumerate() {
        leaf.check()?;
        check(i)?;
        // Each device holds one entry of a new leading dimension.
        let entry = leaf.aval();
        let dims: SmallVec<[i64; 4]> = std::iter::once(1).chain(entry.shape.iter().map(|&d| d as i64)).collect();
        let buffers = devices
            .iter()
            .enumerate()
            .map(|(n, device)| {
                let ty = entry.dtype.element_type();
                Ok(Arc::new(client()?.pjrt.buffer_from_host(bytes(n, i)?.as_ref(), ty, &dims, device.attached()?)?))
            })
            .collect::<Result<Buffers>>()?;
        let mut shape = entry.shape.clone();
        shape.insert(0, devices.len());
        let aval = entry.with_shape(shape).strip_weak_type();
        *leaf = Array::from_concrete(Concrete::new(aval, sharding.clone().into(), true, buffers));
    }
    flat.build()
}

/// Copies the tree to each local device, stacked on a new leading axis, over which `pmap` maps:
/// [`device_put_replicated`] to the local devices. [`unreplicate`] has an example.
///
/// # Errors
/// Returns an error if an array was deleted or carries an error, or if a device has no memory for its copy.
#[track_caller]
pub fn replicate<T: Tree>(tree: &T) -> Result<T> {
    local_devices().and_then(|devices| put_replicated(tree, &devices)).at_caller()
}

/// Returns the first entry along the leading axis of each array: the inverse of [`replicate`].
///
/// Nothing is communicated if the first device's shard is this entry, because the shard is used directly. In contrast,
/// `x.get(0)` takes a slice of the logical array for all devices, so it must send the entry to them.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let params = replicate(&(arange(0..5), array(7)))?;
/// assert_eq!(params.0.shape(), [8, 5]);
/// let (w, b) = unreplicate(&params)?;
/// assert_eq!((w.shape(), b.item::<i32>()?, w.devices()?.len()), (&[5][..], 7, 1));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for an array without a leading axis.
#[track_caller]
pub fn unreplicate<T: Tree>(tree: &T) -> Result<T> {
    let mut flat = Flat::of(tree);
    for leaf in &mut flat.leaves {
        *leaf = first(leaf).at_caller()?;
    }
    flat.build().at_caller()
}

fn first(array: &Array) -> Result<Array> {
    let part = array.addressable_data(0)?;
    let entry = match part.shape().first() {
        Some(1) => part.squeeze(0),
        _ => array.get(0),
    };
    entry.check()?;
    Ok(entry)
}

/// The sharding over `devices` along the leading axis.
fn leading(devices: &[Device]) -> Result<NamedSharding> {
    let name = AxisName::new("devices");
    let mesh: Mesh = Mesh::new(devices.to_vec(), [(name, devices.len())])?;
    Ok(NamedSharding::new(&mesh, PartitionSpec::default().insert(0, &[name])))
}
