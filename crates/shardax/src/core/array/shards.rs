//! Placement of arrays: their sharding, their shards, waiting for them and freeing them.

use shardax_pjrt as pjrt;

use super::{Array, Concrete, Repr};
use crate::core::program::Aval;
use crate::core::tree::{Flat, Node, Tree};
use crate::error::{AtCaller, Result, err};
use crate::sharding::device::Device;
use crate::sharding::{Format, Index, Layout, LayoutOptions, Sharding, SingleDeviceSharding, visualize};

/// One device's shard of an array, on this process.
#[derive(Clone, Debug)]
pub struct Shard {
    /// The device that holds it.
    pub device: Device,
    /// The part of the entire array: a range for each dimension.
    pub index: Index,
    /// The index of this replica, counted from 0.
    pub replica_id: usize,
    /// The shard, as an array on its device.
    pub data: Array,
}

/// One device's shard of an array, on any process.
#[derive(Clone, Debug)]
pub struct GlobalShard {
    /// The device that holds it.
    pub device: Device,
    /// The part of the entire array: a range for each dimension.
    pub index: Index,
    /// The index of this replica, counted from 0 over all processes.
    pub replica_id: usize,
    /// The shard, as an array on its device; `None` if another process has it.
    pub data: Option<Array>,
}

impl Concrete {
    /// Returns the layout of the elements in memory; `None` if the platform does not report it, or this process has no
    /// shard.
    ///
    /// # Errors
    /// Returns an error if the plugin cannot report the layout of an array, for example because the array was
    /// deleted.
    pub fn layout(&self) -> Result<Option<Layout>> {
        if let Some(known) = self.sharding.layout() {
            return Ok(Some(known.get().clone()));
        }
        let Some(buffer) = self.buffers.first() else { return Ok(None) };
        if buffer.device().platform_name() == "cpu" {
            return Ok(Some(Layout::row_major(self.aval.rank())));
        }
        match buffer.memory_layout() {
            Ok(layout) => Ok(Some(Layout::from_pjrt(&layout))),
            Err(error) if error.code == pjrt::Code::Unimplemented => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Array {
    /// Returns the sharding of the array.
    ///
    /// # Errors
    /// Returns an error for a traced array, because its sharding is decided during compilation.
    #[track_caller]
    pub fn sharding(&self) -> Result<Sharding> {
        Ok(self.concrete().at_caller()?.sharding.in_layout(None))
    }

    /// Returns the sharding, and the [`Layout`] of the elements in memory, which is `None` if the platform does not
    /// report it.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::Layout;
    /// let x = ones([2, 3]);
    /// assert_eq!(x.format()?.layout(), Some(&Layout::new([0, 1])));
    /// assert_eq!(x.format()?.sharding(), Some(&x.sharding()?));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error for a traced array, because its sharding is decided during compilation.
    #[track_caller]
    pub fn format(&self) -> Result<Format> {
        let c = self.concrete().at_caller()?;
        Ok(Format::new(LayoutOptions::from(c.layout().at_caller()?), c.sharding.in_layout(None)))
    }

    /// Returns the devices that hold a shard, including devices of other processes, in the order of the sharding.
    ///
    /// # Errors
    /// Returns an error for a deleted or traced array.
    #[track_caller]
    pub fn devices(&self) -> Result<Vec<Device>> {
        Ok(self.concrete().at_caller()?.sharding.devices().to_vec())
    }

    /// Returns `true` if the array stays on its devices when you combine it with arrays on others, because you put it
    /// there or computed it from such arrays. Uncommitted arrays move to the devices where they are needed.
    pub fn committed(&self) -> bool {
        matches!(&self.0, Repr::Concrete(c) if c.committed)
    }

    /// Returns `true` if every device has the entire array.
    pub fn is_fully_replicated(&self) -> bool {
        match &self.0 {
            Repr::Concrete(c) => c.sharding.is_fully_replicated(),
            _ => true,
        }
    }

    /// Returns `true` if this process addresses every device that holds a shard, so that it can read all values. Always
    /// `true` with one process.
    pub fn is_fully_addressable(&self) -> bool {
        match &self.0 {
            Repr::Concrete(c) => c.sharding.is_fully_addressable(),
            _ => true,
        }
    }

    /// Returns the shards on this process's devices, in the order of the sharding's devices.
    ///
    /// Each shard is a separate array that shares this array's memory.
    ///
    /// # Errors
    /// Returns an error for a deleted or traced array.
    #[track_caller]
    pub fn addressable_shards(&self) -> Result<Vec<Shard>> {
        let shards = self.global_shards()?.into_iter();
        Ok(shards
            .filter_map(|GlobalShard { device, index, replica_id, data }| {
                data.map(|data| Shard { device, index, replica_id, data })
            })
            .collect())
    }

    /// Returns the shards on all devices. Shards of other processes have no data. With one process these are the
    /// [`addressable_shards`](Array::addressable_shards).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let x = device_put(&arange(0..16), &NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]))?;
    /// let shards = x.global_shards()?;
    /// assert_eq!((shards.len(), shards[3].index[0].clone()), (8, 6..8));
    /// assert!(shards[3].data.is_some());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the array is traced, was deleted or failed.
    #[track_caller]
    pub fn global_shards(&self) -> Result<Vec<GlobalShard>> {
        let c = self.concrete().at_caller()?;
        let shape = &c.aval.shape;
        let part = Aval::new(c.aval.dtype, c.sharding.shard_shape(shape).at_caller()?);
        let mut buffers = c.buffers.iter();
        let mut shards: Vec<GlobalShard> = Vec::with_capacity(c.sharding.devices().len());
        for (i, device) in c.sharding.devices().iter().enumerate() {
            let index = c.sharding.index_at(i, shape);
            let replica_id = shards.iter().filter(|s| s.index == index).count();
            let buffer = if device.is_addressable() { buffers.next() } else { None };
            let data = buffer.map(|buffer| {
                let sharding = Sharding::from(SingleDeviceSharding::new(device.clone())).in_layout(c.sharding.layout());
                Array::from_concrete(Concrete::new(part.clone(), sharding, true, smallvec::smallvec![buffer.clone()]))
            });
            shards.push(GlobalShard { device: device.clone(), index, replica_id, data });
        }
        Ok(shards)
    }

    /// Returns the data of the shard on the `i`th of this process's devices: `addressable_shards()?[i].data`.
    ///
    /// # Errors
    /// Returns an error if there are fewer shards.
    #[track_caller]
    pub fn addressable_data(&self, i: usize) -> Result<Array> {
        let mut shards = self.addressable_shards()?;
        if i >= shards.len() {
            let wrong = err!(Index, "shard {i} is out of range: the array has {} addressable shards", shards.len());
            return Err(wrong.help(
                "use an index below that number: shards are counted from 0, and only on this process's devices",
            ))
            .at_caller();
        }
        Ok(shards.swap_remove(i).data)
    }

    /// Returns `true` if the values are computed, so that reading them does not wait.
    ///
    /// # Errors
    /// Returns an error if the array is traced, because it then has no values, or if it was deleted or carries an
    /// error.
    #[track_caller]
    pub fn is_ready(&self) -> Result<bool> {
        let c = self.concrete().at_caller()?;
        let is_ready: Result<bool> =
            c.buffers.iter().try_fold(true, |ready, buffer| Ok(ready && buffer.ready()?.is_ready()));
        is_ready.at_caller()
    }

    /// Waits until the values are computed.
    ///
    /// # Errors
    /// Returns an error if the computation failed.
    #[track_caller]
    pub fn block_until_ready(&self) -> Result<()> {
        match &self.0 {
            Repr::Literal(_) => Ok(()),
            _ => self
                .concrete()
                .and_then(|c| c.buffers.iter().try_for_each(|buffer| Ok(buffer.block_until_ready()?)))
                .at_caller(),
        }
    }

    /// Frees the memory immediately. Using the array later is an error; deleting it twice has no effect.
    ///
    /// # Errors
    /// Returns an error for a traced array, because only the traced program computes its values.
    #[track_caller]
    pub fn delete(&self) -> Result<()> {
        if let Repr::Traced(traced) = &self.0 {
            return Err(err!(
                Type,
                "the delete() method was called on a traced array of type {} (ConcretizationTypeError)",
                traced.aval
            )
            .help("a traced array has no memory yet: delete the argument after the call, or donate it with `donate_argnums`"))
            .at_caller();
        }
        if let Repr::Concrete(c) = &self.0 {
            c.mark_taken("delete");
            for b in &c.buffers {
                b.delete()?;
            }
        }
        Ok(())
    }

    /// Returns `true` if the array was deleted or donated.
    pub fn is_deleted(&self) -> bool {
        matches!(&self.0, Repr::Concrete(c) if c.check_alive().is_err())
    }
}

/// A tree, a reference to one, or a tuple of references. `Kind` distinguishes them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no tree of arrays",
    label = "neither an array nor made of arrays",
    note = "pass a tree or a reference to one; a struct of arrays derives `Tree` and `Clone`"
)]
pub trait TreeOrRef<Kind> {
    /// The tree by value.
    type Owned: Tree;
    /// The leaves and the structure.
    fn flat(&self) -> Flat;
}

/// A tree passed by value.
pub enum ByValue {}
/// A tree passed by reference.
pub enum ByRef {}

impl<T: Tree> TreeOrRef<ByValue> for T {
    type Owned = T;
    fn flat(&self) -> Flat {
        Flat::of(self)
    }
}

impl<T: Tree> TreeOrRef<ByRef> for &T {
    type Owned = T;
    fn flat(&self) -> Flat {
        Flat::of(*self)
    }
}

/// A tuple of references to trees.
pub enum ByRefs {}

macro_rules! lent_tuples {
    ($(($($T:ident $i:tt),*) $n:literal;)*) => {$(
        impl<$($T: Tree),*> TreeOrRef<ByRefs> for ($(&$T,)*) {
            type Owned = ($($T,)*);
            fn flat(&self) -> Flat {
                let mut flat = Flat::default();
                flat.node(Node::Tuple($n));
                $(flat.append(&Flat::of(self.$i));)*
                flat
            }
        }

        impl<$($T: Tree),*> TreeOrRef<ByRefs> for &($(&$T,)*) {
            type Owned = ($($T,)*);
            fn flat(&self) -> Flat {
                TreeOrRef::<ByRefs>::flat(*self)
            }
        }
    )*};
}

lent_tuples! {
    (A 0, B 1) 2;
    (A 0, B 1, C 2) 3;
    (A 0, B 1, C 2, D 3) 4;
}

/// Waits until every array of a tree, or of a reference to one, has its values. Returns its argument.
///
/// Calls return before the devices have finished. You need this function to measure times, but not before you read values,
/// because reading waits too.
///
/// ```
/// # use shardax::prelude::*;
/// let model = (ones([2, 2]), vec![zeros(2)]);
/// block_until_ready(&model)?;
/// let sum = block_until_ready(model.0.sum(..))?;
/// assert!(sum.is_ready()?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns the error of an array that failed, that was deleted, or that is traced and therefore has no values.
#[track_caller]
pub fn block_until_ready<T: TreeOrRef<Kind>, Kind>(tree: T) -> Result<T> {
    tree.flat().leaves.iter().try_for_each(Array::block_until_ready).at_caller()?;
    Ok(tree)
}

/// Copies every array of a tree, or of a reference to one, to the default device, which then holds the entire array. It starts all copies to the
/// host before it waits for the first.
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let mesh = make_mesh([("x", 8)])?;
/// let split = device_put(&arange(0..16), &NamedSharding::new(&mesh, P!["x"]))?;
/// let entire = device_get(&split)?;
/// assert_eq!((split.addressable_shards()?.len(), entire.addressable_shards()?.len()), (8, 1));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array is traced, was deleted or failed, or if this process does not have all of its elements.
#[track_caller]
pub fn device_get<T: TreeOrRef<Kind>, Kind>(tree: T) -> Result<T::Owned> {
    let mut flat = tree.flat();
    flat.leaves.iter().try_for_each(|leaf| leaf.begin_copy(true)).at_caller()?;
    for leaf in &mut flat.leaves {
        let aval = leaf.aval();
        *leaf = Array::from_bytes(&leaf.bytes(true).at_caller()?, aval.dtype, &aval.shape)?;
    }
    flat.build().at_caller()
}

/// Prints the placement of an array, as [`visualize_sharding`](crate::visualize_sharding) draws it. The output is
/// coloured if standard output is a terminal and the environment variable `NO_COLOR` is not set.
///
/// # Errors
/// Also returns an error for a deleted array, and for a traced array, which has no placement yet.
#[track_caller]
pub fn visualize_array_sharding(array: &Array) -> Result<()> {
    array.sharding().and_then(|sharding| visualize::print(array.shape(), &sharding)).at_caller()
}
