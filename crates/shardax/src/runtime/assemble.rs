//! Creation of sharded arrays: from a callback, from shards, from this process's data.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::core::array::transfer;
use crate::core::array::{Array, Buffers, Concrete};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{AtCaller, Error, Result, err};
use crate::runtime::layouts;
use crate::shape::IntoSizes;
use crate::sharding::device::{Device, client};
use crate::sharding::{Index, Sharding};

/// Creates an array by calling `part` for each device's shard; `part` receives the index of the shard.
///
/// `part` is called once for each distinct shard of this process's devices; devices with the same shard get the same
/// values. Along unreduced axes the first device gets them, and the others zeros.
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
///
/// # Errors
/// Returns an error if the sharding does not divide the shape, if `part` fails, and if the shape or dtype of a shard
/// differs from its index or from `dtype`.
#[track_caller]
pub fn make_array_from_callback(
    shape: impl IntoSizes,
    dtype: DType,
    sharding: impl Into<Sharding>,
    mut part: impl FnMut(&Index) -> Result<Array>,
) -> Result<Array> {
    from_callback(Aval::new(dtype, shape.into_sizes()), sharding.into(), &mut part).at_caller()
}

fn from_callback(aval: Aval, sharding: Sharding, part: &mut dyn FnMut(&Index) -> Result<Array>) -> Result<Array> {
    sharding.check_constrained("make_array_from_callback")?;
    sharding.check_attached()?;
    let want = sharding.shard_shape(&aval.shape)?;
    let dims: SmallVec<[i64; 4]> = want.iter().map(|&d| d as i64).collect();
    // Devices with the same part share one call of the callback.
    let mut shards: Vec<(Index, Vec<u8>)> = Vec::new();
    let mut buffers = Buffers::new();
    for (i, device) in sharding.devices().iter().enumerate().filter(|(_, d)| d.is_addressable()) {
        let index = sharding.index_at(i, &aval.shape);
        let shard = match shards.iter().position(|(known, _)| *known == index) {
            Some(shard) => shard,
            None => {
                let data = part(&index)?;
                data.check()?;
                if data.shape() != want.as_slice() {
                    return Err(wrong_shape(&want, data.shape(), &aval, &sharding)
                        .help(format!("return the part at the index that the callback receives, here {index:?}")));
                }
                if data.dtype() != aval.dtype {
                    return Err(err!(
                        Type,
                        "the dtype given to make_array_from_callback must match the dtype of the addressable shards. Got dtype={} and shard dtype={} for {index:?}",
                        aval.dtype,
                        data.dtype()
                    )
                    .help("pass the dtype that the callback returns, or convert the returned array with `astype`"));
                }
                shards.push((index, data.to_bytes()?));
                shards.len() - 1
            }
        };
        let zeros = (sharding.addend_at(i) > 0).then(|| vec![0; shards[shard].1.len()]);
        let bytes = zeros.as_ref().unwrap_or(&shards[shard].1);
        let buffer = client()?.pjrt.buffer_from_host(bytes, aval.dtype.element_type(), &dims, device.attached()?)?;
        buffers.push(Arc::new(buffer));
    }
    Ok(Array::from_concrete(Concrete::new(aval, sharding, true, buffers)))
}

/// Creates an array from the shards on single devices, in any order, without a copy: it shares their memory.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let sharding = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
/// let parts = devices()?.iter().map(|d| device_put(&array([d.id() as i32]), d)).collect::<Result<Vec<_>>>()?;
/// let x = make_array_from_single_device_arrays([8], &sharding, &parts)?;
/// assert_eq!(x.to_vec::<i32>()?, [0, 1, 2, 3, 4, 5, 6, 7]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error unless there is exactly one array on each of this process's devices of the sharding. Also returns
/// an error if an array does not have the shape that the sharding requires for `shape`, or if the dtypes differ.
#[track_caller]
pub fn make_array_from_single_device_arrays(
    shape: impl IntoSizes,
    sharding: impl Into<Sharding>,
    parts: &[Array],
) -> Result<Array> {
    from_parts(&shape.into_sizes(), sharding.into(), parts).at_caller()
}

fn from_parts(shape: &[usize], sharding: Sharding, parts: &[Array]) -> Result<Array> {
    const ONE_EACH: &str = "pass one array on each device of the sharding, in any order: `device_put(part, device)`";
    sharding.check_constrained("make_array_from_single_device_arrays")?;
    sharding.shard_shape(shape)?;
    let devices: Vec<&Device> = sharding.devices().iter().filter(|d| d.is_addressable()).collect();
    let parts: Vec<Arc<Concrete>> = parts.iter().map(Array::concrete).collect::<Result<_>>()?;
    if parts.len() != devices.len() || parts.is_empty() {
        return Err(err!(
            Value,
            "Expected {} per-device arrays (this is how many devices are addressable by the sharding {sharding}), but got {}",
            devices.len(),
            parts.len()
        )
        .help(ONE_EACH));
    }
    // Checks every part before any is used, so that the error names the part.
    let dtype = parts[0].aval.dtype;
    let aval = Aval::new(dtype, shape);
    parts.iter().try_for_each(|part| check_part(part, &aval, &sharding))?;
    let part_devices: Vec<&Device> = parts.iter().map(|p| &p.sharding.devices()[0]).collect();
    if (1..part_devices.len()).any(|i| part_devices[..i].contains(&part_devices[i])) {
        return Err(err!(
            Value,
            "When making an array from single-device arrays, the input arrays must be from distinct devices, but got device IDs {:?}",
            device_ids(part_devices.iter().copied())
        )
        .help(ONE_EACH));
    }
    let absent = device_ids(devices.iter().filter(|d| !part_devices.contains(d)).copied());
    if !absent.is_empty() {
        let surplus = device_ids(part_devices.iter().filter(|d| !devices.contains(d)).copied());
        return Err(err!(
            Value,
            "Addressable devices and per-device arrays devices do not match. Sharding contains devices {absent:?} that are not present in per-device arrays. Per-device arrays contain devices {surplus:?} that are not present in the sharding {sharding}."
        )
        .help(ONE_EACH));
    }
    let layout = parts[0].sharding.layout();
    if parts.iter().any(|part| part.sharding.layout() != layout) {
        return Err(err!(Value, "the arrays that {aval} is made of must have one layout in memory")
            .help("move all parts to the layout of the first with `device_put(part, Format::new(layout, device))`"));
    }
    let sharding = sharding.in_layout(layout);
    layouts::check(&sharding, shape)?;
    let in_order = devices.iter().filter_map(|device| parts.iter().find(|p| p.sharding.devices()[0] == **device));
    let buffers = in_order.map(|p| p.buffers[0].clone()).collect();
    let weak = parts.iter().all(|part| part.aval.weak);
    Ok(Array::from_concrete(Concrete::new(Aval { weak, ..aval }, sharding, true, buffers)))
}

/// Fails unless the array is a shard of an array of this type: on one device, with the dtype and the shape of a shard.
fn check_part(part: &Concrete, aval: &Aval, sharding: &Sharding) -> Result<()> {
    let want = sharding.shard_shape(&aval.shape)?;
    if part.buffers.len() != 1 {
        return Err(err!(
            Value,
            "When making an array from single-device arrays the input arrays must have one shard each. An argument array of type {} had {} shards",
            part.aval,
            part.buffers.len()
        )
        .help("pass its parts, which `addressable_shards` returns, or move the array with `device_put(x, sharding)`"));
    }
    if part.aval.dtype != aval.dtype {
        return Err(err!(
            Type,
            "the arrays that {aval} is made of must have matching dtypes. Got {}, expected {}",
            part.aval.dtype,
            aval.dtype
        )
        .help("convert the arrays to one dtype with `astype`"));
    }
    if part.aval.shape != want {
        return Err(wrong_shape(&want, &part.aval.shape, aval, sharding)
            .help("pass the shape of the entire array; the sharding determines the part on each device"));
    }
    Ok(())
}

fn device_ids<'a>(devices: impl Iterator<Item = &'a Device>) -> Vec<usize> {
    devices.map(Device::id).collect()
}

fn wrong_shape(want: &[usize], have: &[usize], global: &Aval, sharding: &Sharding) -> Error {
    err!(
        Value,
        "Expected shard shape {want:?} doesn't match the single device array shape {have:?}. Shape of Array is {global} with sharding {sharding}"
    )
    .help("pass one array of the expected shard shape for each device")
}

impl Array {
    /// Returns a copy of the array; the copy shares no memory with it.
    ///
    /// # Errors
    /// Returns an error if the array was deleted or carries an error, or if the device has no memory for the copy.
    #[track_caller]
    pub fn copy(&self) -> Result<Array> {
        self.copied().at_caller()
    }

    fn copied(&self) -> Result<Array> {
        let c = self.concrete()?;
        let buffers = c.buffers.iter().map(|b| transfer::copy(b, c.sharding.kind())).collect::<Result<Buffers>>()?;
        let sharding = c.sharding.in_layout(None);
        Ok(Array::from_concrete(Concrete::new(c.aval.clone(), sharding, c.committed, buffers)))
    }
}
