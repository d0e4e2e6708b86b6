//! Movement of data between the host and devices, and between shardings.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use shardax_pjrt as pjrt;
use smallvec::SmallVec;

use super::{Array, Buffers, Concrete};
use crate::core::program::Aval;
use crate::error::{Result, err};
use crate::shape::size;
use crate::sharding::device::client;
use crate::sharding::distributed::processes;
use crate::sharding::memory::MemoryKind;
use crate::sharding::{Device, Index, Sharding, SingleDeviceSharding};
use crate::timeline;

/// The positions of this process's devices in the sharding. There is one buffer for each.
fn parts(sharding: &Sharding) -> impl Iterator<Item = usize> + '_ {
    let devices = sharding.devices().iter().enumerate();
    devices.filter(|(_, device)| device.is_addressable()).map(|(i, _)| i)
}

/// Returns `true` if this process holds all values of the array.
pub(crate) fn is_here(array: &Concrete) -> bool {
    let sharding = &array.sharding;
    if sharding.is_fully_addressable() {
        return true;
    }
    if sharding.is_fully_replicated() {
        return !array.buffers.is_empty();
    }
    let shape = &array.aval.shape;
    let local: HashSet<Index> = parts(sharding).map(|i| sharding.index_at(i, shape)).collect();
    (0..sharding.devices().len()).all(|i| local.contains(&sharding.index_at(i, shape)))
}

/// The buffers on this process's devices for a host array that is split by `sharding`.
pub(crate) fn buffers_from_host(bytes: &[u8], aval: &Aval, sharding: &Sharding) -> Result<Buffers> {
    let _span = timeline::span(|| format!("{aval} from the host").into());
    sharding.check_attached()?;
    let client = client()?;
    let shard_shape = sharding.shard_shape(&aval.shape)?;
    let dims: SmallVec<[i64; 4]> = shard_shape.iter().map(|&d| d as i64).collect();
    let is_replicated = shard_shape == aval.shape;
    // Of several addends, the first receives the values and the others are zeros.
    let zeros = vec![0; if sharding.unreduced().is_some() { size(&shard_shape) * aval.dtype.byte_size() } else { 0 }];
    let ty = aval.dtype.element_type();
    sharding
        .devices()
        .iter()
        .enumerate()
        .filter(|(_, device)| device.is_addressable())
        .map(|(i, device)| {
            let shard: Cow<'_, [u8]> = match sharding.addend_at(i) {
                0 if is_replicated => bytes.into(),
                0 => {
                    let index = sharding.index_at(i, &aval.shape);
                    extract(bytes, &aval.shape, &index, aval.dtype.byte_size()).into()
                }
                _ => (&zeros[..]).into(),
            };
            Ok(Arc::new(match sharding.kind() {
                None => client.pjrt.buffer_from_host(&shard, ty, &dims, device.attached()?)?,
                kind => client.pjrt.buffer_from_host_in(&shard, ty, &dims, &device.pjrt_memory(kind)?)?,
            }))
        })
        .collect()
}

/// Replaces the buffers of an array without elements by buffers of the shards' shapes, because XLA returns them
/// unsplit.
pub(crate) fn split_empty(buffers: &mut Buffers, aval: &Aval, sharding: &Sharding) -> Result<()> {
    let shard_shape = sharding.shard_shape(&aval.shape)?;
    if buffers.iter().all(|buffer| buffer.dims().iter().map(|d| *d as usize).eq(shard_shape.iter().copied())) {
        return Ok(());
    }
    *buffers = buffers_from_host(&[], aval, sharding)?;
    Ok(())
}

/// Fails on all processes if a host value for devices of several processes is not equal on each of them.
pub(crate) fn check_same(function: &str, bytes: &[u8], aval: &Aval, want: &Sharding) -> Result<()> {
    let Some(processes) = processes().filter(|_| !want.is_fully_addressable()) else { return Ok(()) };
    let ranks = processes.of(want.devices());
    if !ranks.contains(&processes.rank()) {
        return Ok(());
    }
    processes.agree(&ranks, &format!("{function} of {aval} to {want}"), &[bytes], &|rank, _| {
        err!(
            Value,
            "{aval} passed to {function} is not the same on each process: process {rank} has another value"
        )
        .help("pass the same value on each process, such as one made from the same seed; for each process's own part there is `make_array_from_process_local_data`")
    })
}

/// An array of host bytes in row-major order.
pub(crate) fn array_from_host(bytes: &[u8], aval: Aval, sharding: Sharding, committed: bool) -> Result<Array> {
    let buffers = buffers_from_host(bytes, &aval, &sharding)?;
    Ok(Array::from_concrete(Concrete::new(aval, sharding, committed, buffers)))
}

/// An array on this device. It uses the memory of the host data in place if the device can.
pub(crate) fn array_of_shared(
    data: Arc<dyn pjrt::HostBytes>,
    aval: Aval,
    device: Device,
    committed: bool,
) -> Result<Array> {
    let _span = timeline::span(|| format!("{aval} from the host").into());
    let dims: SmallVec<[i64; 4]> = aval.shape.iter().map(|&d| d as i64).collect();
    let buffer = client()?.pjrt.buffer_from_host_shared(data, aval.dtype.element_type(), &dims, device.attached()?)?;
    let buffers = Buffers::from_iter([Arc::new(buffer)]);
    let sharding = Sharding::Single(SingleDeviceSharding::new(device));
    Ok(Array::from_concrete(Concrete::new(aval, sharding, committed, buffers)))
}

/// The buffers that together hold the array, with their indices. Of several replicas it returns the first.
fn without_replicas(array: &Concrete) -> SmallVec<[(Index, &Arc<pjrt::Buffer>); 1]> {
    let mut buffers = SmallVec::<[(Index, &Arc<pjrt::Buffer>); 1]>::new();
    let mut indices = HashSet::new();
    for (i, buffer) in parts(&array.sharding).zip(&array.buffers) {
        let index = array.sharding.index_at(i, &array.aval.shape);
        if indices.insert(index.clone()) {
            buffers.push((index, buffer));
        }
        if array.sharding.is_fully_replicated() {
            break;
        }
    }
    buffers
}

/// Starts the copies that [`to_host`] waits for.
pub(crate) fn begin_to_host(array: &Concrete) -> Result<()> {
    without_replicas(array).iter().try_for_each(|(_, buffer)| Ok(buffer.copy_to_host_async()?))
}

/// Fails unless this process can read all values of the array.
fn check_readable(array: &Concrete) -> Result<()> {
    array.check_values()?;
    if !is_here(array) {
        return Err(err!(
            Runtime,
            "Fetching value for `Array` that spans non-addressable (non process local) devices is not possible: this process has {} of the {} parts of an array of type {}",
            array.buffers.len(),
            array.sharding.devices().len(),
            array.aval
        )
        .help("read it with `multihost::process_allgather_tiled` on all processes, or take this process's parts with `addressable_shards`"));
    }
    Ok(())
}

/// The bytes of the entire array in row-major order.
pub(crate) fn to_host(array: &Concrete) -> Result<Vec<u8>> {
    check_readable(array)?;
    let mut out = vec![0u8; size(&array.aval.shape) * array.aval.dtype.byte_size()];
    to_host_into(array, &mut out)?;
    Ok(out)
}

/// Writes the bytes of the entire array in row-major order to `out`, which must have the right length.
pub(crate) fn to_host_into(array: &Concrete, out: &mut [u8]) -> Result<()> {
    let _span = timeline::span(|| format!("{} to the host", array.aval).into());
    check_readable(array)?;
    let shape = &array.aval.shape;
    let element = array.aval.dtype.byte_size();
    if array.sharding.is_fully_replicated() {
        return read(&array.buffers[0], out);
    }
    let mut part = Vec::new();
    for (index, buffer) in without_replicas(array) {
        part.resize(index.iter().map(|r| r.len()).product::<usize>() * element, 0);
        read(buffer, &mut part)?;
        insert(&part, out, shape, &index, element);
    }
    Ok(())
}

/// The bytes of the elements at these row-major positions. If host and device share memory, nothing else is copied.
pub(crate) fn elements_to_host(array: &Concrete, positions: &[usize]) -> Result<Vec<u8>> {
    check_readable(array)?;
    let element = array.aval.dtype.byte_size();
    let mut out = vec![0u8; positions.len() * element];
    if out.is_empty() {
        return Ok(out);
    }
    for (index, buffer) in without_replicas(array) {
        let places: Vec<(usize, usize)> = positions
            .iter()
            .enumerate()
            .filter_map(|(k, position)| Some((k, position_in_shard(*position, &array.aval.shape, &index)?)))
            .collect();
        if places.is_empty() {
            continue;
        }
        buffer.with_bytes(|bytes| {
            for (k, place) in places {
                out[k * element..][..element].copy_from_slice(&bytes[place * element..][..element]);
            }
        })?;
    }
    Ok(out)
}

/// The row-major position of an element of the entire array within the shard that `index` selects. `None` if the shard
/// does not contain the element.
fn position_in_shard(position: usize, shape: &[usize], index: &Index) -> Option<usize> {
    let (mut rest, mut stride, mut place) = (position, 1, 0);
    for (&dim, range) in shape.iter().zip(index).rev() {
        let coordinate = rest % dim;
        rest /= dim;
        if !range.contains(&coordinate) {
            return None;
        }
        place += (coordinate - range.start) * stride;
        stride *= range.len();
    }
    Some(place)
}

fn read(buffer: &pjrt::Buffer, out: &mut [u8]) -> Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    buffer.with_bytes(|bytes| out.copy_from_slice(&bytes[..out.len()]))?;
    Ok(())
}

/// For each device of `sharding`, the number of the buffer with its shard. `None` if the shards must be assembled on
/// the host, because no device has the required shard or its client failed.
fn sources(array: &Concrete, sharding: &Sharding) -> Result<Option<SmallVec<[usize; 8]>>> {
    let shape = &array.aval.shape;
    let have: Vec<(Index, usize)> = (0..array.buffers.len()).map(|i| shard_id(&array.sharding, shape, i)).collect();
    // Every addend must be kept, so both shardings need the same number of them.
    if last_addend(&array.sharding) != last_addend(sharding) {
        return Ok(None);
    }
    let stays = array.sharding.is_same_memory(sharding);
    // The first buffer with each shard, and the buffer on each device.
    let mut first_with_shard: HashMap<&(Index, usize), usize> = HashMap::new();
    for (j, index) in have.iter().enumerate() {
        first_with_shard.entry(index).or_insert(j);
    }
    #[allow(clippy::mutable_key_type)] // devices are compared and hashed by what never changes
    let on_device: HashMap<&Device, usize> =
        array.sharding.devices().iter().take(have.len()).enumerate().map(|(j, device)| (device, j)).collect();
    let mut sources = SmallVec::new();
    for (i, device) in sharding.devices().iter().enumerate() {
        let want = shard_id(sharding, shape, i);
        let in_place = on_device.get(device).copied().filter(|&j| have[j] == want);
        let Some(j) = in_place.or_else(|| first_with_shard.get(&want).copied()) else { return Ok(None) };
        let source_device = &array.sharding.devices()[j];
        let is_there = stays && source_device == device;
        if !is_there && !source_device.attached()?.shares_client_with(device.attached()?) {
            return Ok(None);
        }
        sources.push(j);
    }
    Ok(Some(sources))
}

/// Starts the copies to the host that [`reshard`] waits for, if it needs any.
pub(crate) fn begin_reshard(array: &Concrete, sharding: &Sharding) -> Result<()> {
    let shape = &array.aval.shape;
    let is_there = array.sharding.is_equivalent_to(sharding, shape.len());
    // [`reshard`] reports the error.
    if is_there || array.check_alive().is_err() || sharding.shard_shape(shape).is_err() {
        return Ok(());
    }
    if sources(array, sharding)?.is_none() { begin_to_host(array) } else { Ok(()) }
}

/// The buffers of `array` split by `sharding`. Buffers that are already in place are shared.
pub(crate) fn reshard(array: &Concrete, sharding: &Sharding) -> Result<Buffers> {
    array.check_alive()?;
    if array.sharding.is_equivalent_to(sharding, array.aval.rank()) {
        return Ok(array.buffers.clone());
    }
    let _span = timeline::span(|| format!("reshard {} to {sharding}", array.aval).into());
    sharding.shard_shape(&array.aval.shape)?;
    let Some(sources) = sources(array, sharding)? else {
        return buffers_from_host(&to_host(array)?, &array.aval, sharding);
    };
    let stays = array.sharding.is_same_memory(sharding);
    sharding
        .devices()
        .iter()
        .zip(sources)
        .map(|(device, source)| {
            let buffer = &array.buffers[source];
            Ok(match stays {
                true if array.sharding.devices()[source] == *device => buffer.clone(),
                true if sharding.kind().is_none() => Arc::new(buffer.copy_to_device(device.attached()?)?),
                _ => Arc::new(buffer.copy_to_memory(&device.pjrt_memory(sharding.kind())?)?),
            })
        })
        .collect()
}

/// Identifies the values of a device: the index of its shard, and which addend of an unreduced array it holds.
fn shard_id(sharding: &Sharding, shape: &[usize], i: usize) -> (Index, usize) {
    (sharding.index_at(i, shape), sharding.addend_at(i))
}

fn last_addend(sharding: &Sharding) -> Option<usize> {
    (0..sharding.devices().len()).map(|i| sharding.addend_at(i)).max()
}

/// Copies a buffer on its device into memory of this kind.
pub(crate) fn copy(buffer: &pjrt::Buffer, kind: Option<MemoryKind>) -> Result<Arc<pjrt::Buffer>> {
    let mut bytes = vec![0; buffer.byte_size()];
    buffer.to_host(&mut bytes)?;
    let (client, ty, dims) = (&client()?.pjrt, buffer.element_type(), buffer.dims());
    Ok(Arc::new(match kind {
        None => client.buffer_from_host(&bytes, ty, dims, buffer.device())?,
        Some(_) => client.buffer_from_host_in(&bytes, ty, dims, &buffer.memory()?)?,
    }))
}

/// Extracts the part of a row-major array that `index` selects.
pub(crate) fn extract(bytes: &[u8], shape: &[usize], index: &Index, element: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(index.iter().map(|r| r.len()).product::<usize>() * element);
    runs(shape, index, element, |start, len| out.extend_from_slice(&bytes[start..start + len]));
    out
}

/// Writes `part` to the position in a row-major array that `index` selects.
fn insert(part: &[u8], out: &mut [u8], shape: &[usize], index: &Index, element: usize) {
    let mut offset = 0;
    runs(shape, index, element, |start, len| {
        out[start..start + len].copy_from_slice(&part[offset..offset + len]);
        offset += len;
    });
}

/// Calls `visit` with the start and length in bytes of each contiguous run of the part, in order.
fn runs(shape: &[usize], index: &Index, element: usize, mut visit: impl FnMut(usize, usize)) {
    if index.iter().any(|r| r.is_empty()) {
        return;
    }
    // Trailing dimensions that are selected completely form one run with the last dimension that is not.
    let mut inner = shape.len();
    let mut run = element;
    while inner > 0 && index[inner - 1].len() == shape[inner - 1] {
        inner -= 1;
        run *= shape[inner];
    }
    let stride = run;
    if inner > 0 {
        inner -= 1;
        run *= index[inner].len();
    }
    let mut position: SmallVec<[usize; 4]> = index[..inner].iter().map(|r| r.start).collect();
    loop {
        let mut start = 0;
        for (d, p) in position.iter().enumerate() {
            start = start * shape[d] + p;
        }
        if inner < shape.len() && !index.is_empty() {
            let inner_start = index.get(inner).map(|r| r.start).unwrap_or(0);
            start = start * shape[inner] + inner_start;
        }
        visit(start * stride, run);
        let mut d = inner;
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            position[d] += 1;
            if position[d] < index[d].end {
                break;
            }
            position[d] = index[d].start;
        }
    }
}
