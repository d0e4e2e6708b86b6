//! Where an array lies: its sharding, its shards, and moving it.

use std::sync::Arc;

use super::{Array, Buffers, Concrete, Repr};
use crate::error::{AtCaller, Result, err};
use crate::program::Aval;
use crate::program::trace::check_usable;
use crate::runtime::{Device, transfer};
use crate::sharding::{Index, Sharding, SingleDeviceSharding};
use crate::tree::{Flat, Tree};

/// One device's part of an array.
#[derive(Clone, Debug)]
pub struct Shard {
    pub device: Device,
    /// The part of the whole array: a range for each dimension.
    pub index: Index,
    /// Which copy of this part it is, counted from 0.
    pub replica_id: usize,
    /// The part, as an array on its device.
    pub data: Array,
}

impl Array {
    /// Where its parts lie.
    ///
    /// Fails for a traced array, whose place is decided when it is compiled.
    #[track_caller]
    pub fn sharding(&self) -> Result<Sharding> {
        Ok(self.concrete().at_caller()?.sharding.clone())
    }

    /// The devices that hold a part.
    #[track_caller]
    pub fn devices(&self) -> Result<Vec<Device>> {
        Ok(self.concrete().at_caller()?.sharding.devices().to_vec())
    }

    /// Whether it stays on its devices when it meets arrays on others.
    pub fn committed(&self) -> bool {
        matches!(&self.0, Repr::Concrete(c) if c.committed)
    }

    /// Whether every device has the whole array.
    pub fn is_fully_replicated(&self) -> bool {
        match &self.0 {
            Repr::Concrete(c) => c.sharding.is_fully_replicated(),
            _ => true,
        }
    }

    /// Whether this process drives every device that holds a part.
    pub fn is_fully_addressable(&self) -> bool {
        let here = crate::runtime::process_index();
        match &self.0 {
            Repr::Concrete(c) => c.sharding.devices().iter().all(|d| d.process_index() == here),
            _ => true,
        }
    }

    /// The parts on this process's devices, in the order of the sharding's devices.
    #[track_caller]
    pub fn addressable_shards(&self) -> Result<Vec<Shard>> {
        let c = self.concrete().at_caller()?;
        let shape = &c.aval.shape;
        let part = c.sharding.shard_shape(shape).at_caller()?;
        let indices: Vec<Index> = (0..c.buffers.len()).map(|i| c.sharding.index_at(i, shape)).collect();
        Ok(c.sharding
            .devices()
            .iter()
            .enumerate()
            .map(|(i, device)| {
                let sharding = Sharding::Single(SingleDeviceSharding(device.clone()));
                let aval = Aval::new(c.aval.dtype, part.clone());
                let buffers: Buffers = smallvec::smallvec![c.buffers[i].clone()];
                Shard {
                    device: device.clone(),
                    index: indices[i].clone(),
                    replica_id: indices[..i].iter().filter(|x| **x == indices[i]).count(),
                    data: Array::from_concrete(Concrete::new(aval, sharding, true, buffers)),
                }
            })
            .collect())
    }

    /// The data of shard `i`.
    #[track_caller]
    pub fn addressable_data(&self, i: usize) -> Result<Array> {
        let mut shards = self.addressable_shards()?;
        if i >= shards.len() {
            let wrong = err!(Index, "shard {i} is out of range: the array has {} addressable shards", shards.len());
            return Err(wrong.help("shards are counted from 0, on this process's devices alone")).at_caller();
        }
        Ok(shards.swap_remove(i).data)
    }

    /// Waits until the values are there. Errors of the computation surface here.
    #[track_caller]
    pub fn block_until_ready(&self) -> Result<()> {
        match &self.0 {
            Repr::Literal(_) => Ok(()),
            _ => {
                let ready = |c: Arc<Concrete>| c.buffers.iter().try_for_each(|b| Ok(b.block_until_ready()?));
                self.concrete().and_then(ready).at_caller()
            }
        }
    }

    /// Frees the memory at once; later use of the array is an error. Deleting twice does nothing.
    pub fn delete(&self) -> Result<()> {
        if let Repr::Concrete(c) = &self.0 {
            c.mark_taken("delete");
            for b in &c.buffers {
                b.delete()?;
            }
        }
        Ok(())
    }

    /// Whether it was deleted or donated.
    pub fn is_deleted(&self) -> bool {
        matches!(&self.0, Repr::Concrete(c) if c.check_alive().is_err())
    }
}

/// Waits until every array of a tree has its values; returns the tree.
#[track_caller]
pub fn block_until_ready<T: Tree>(tree: T) -> Result<T> {
    Flat::of(&tree).leaves.iter().try_for_each(Array::block_until_ready).at_caller()?;
    Ok(tree)
}

/// Moves every array of a tree to a device or a sharding. The results are committed: they stay there.
///
/// Arrays that lie right already are returned as they are. Fails when a sharding does not fit a shape.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 8)])?;
/// let x = device_put(&arange(0..16), &NamedSharding::new(&mesh, P!["x"]))?;
/// assert_eq!(x.addressable_shards()?[3].data.to_vec::<i32>()?, [6, 7]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn device_put<T: Tree>(tree: &T, to: impl Into<Sharding>) -> Result<T> {
    let to = to.into();
    let mut flat = Flat::of(tree);
    for leaf in &mut flat.leaves {
        *leaf = put(leaf, &to).at_caller()?;
    }
    flat.build().at_caller()
}

fn put(array: &Array, to: &Sharding) -> Result<Array> {
    if array.is_traced() {
        check_usable(array)?;
        // Placement inside a traced function is the compiler's.
        return Ok(array.clone());
    }
    let c = array.concrete()?;
    if c.committed && c.sharding == *to {
        return Ok(array.clone());
    }
    let buffers = transfer::reshard(&c, to)?;
    Ok(Array(Repr::Concrete(Arc::new(Concrete::new(c.aval.clone(), to.clone(), true, buffers)))))
}

/// Copies every array of a tree to the default device, whole: the host's view of it.
#[track_caller]
pub fn device_get<T: Tree>(tree: &T) -> Result<T> {
    let mut flat = Flat::of(tree);
    for leaf in &mut flat.leaves {
        let aval = leaf.aval();
        *leaf = Array::from_bytes(&leaf.to_bytes()?, aval.dtype, &aval.shape)?;
    }
    flat.build().at_caller()
}
