//! `pmap` over several processes. Each process passes the slices of its devices, and receives the results of its devices.

use std::sync::atomic::{AtomicBool, Ordering};

use super::multihost::{View, to_global, to_local};
use crate::core::array::{Array, Concrete};
use crate::core::program::Aval;
use crate::core::tree::Flat;
use crate::error::{Result, err};
use crate::shape::AxisName;
use crate::sharding::distributed::processes;
use crate::sharding::{Device, Mesh, PartitionSpec, devices};
use crate::warning;

/// The devices of a `pmap` over several processes.
pub(crate) struct Hosts {
    /// All devices.
    mesh: Mesh,
    /// The devices of this process.
    local: Mesh,
    /// `true` after the warning about a moved donated argument was issued, which is issued once.
    warned: AtomicBool,
}

impl Hosts {
    /// Returns the processes, or `None` if only this process takes part. `requested` are the devices that the user set, and
    /// `mesh` creates a mesh of a number of devices.
    pub fn of(requested: Option<&[Device]>, mesh: &dyn Fn(usize) -> Result<Mesh>) -> Result<Option<Hosts>> {
        if processes().is_none() {
            return Ok(None);
        }
        let candidates = match requested {
            Some(devices) => devices.to_vec(),
            None => devices()?,
        };
        if candidates.iter().all(Device::is_addressable) {
            return Ok(None);
        }
        let mut counts = std::collections::BTreeMap::<usize, usize>::new();
        candidates.iter().for_each(|device| *counts.entry(device.process_index()).or_default() += 1);
        if counts.values().any(|count| Some(count) != counts.values().next()) {
            return Err(err!(
                Value,
                "pmap requires the same number of devices on every process, but they have {:?}",
                counts.values().collect::<Vec<_>>()
            )
            .help("choose the same number of devices of each process with `devices`, or use shard_map over a mesh of all devices"));
        }
        let mesh = mesh(candidates.len())?;
        let local = mesh.local_mesh()?;
        Ok(Some(Hosts { mesh, local, warned: AtomicBool::new(false) }))
    }

    /// Checks that no other transformation encloses the call.
    ///
    /// # Errors
    /// Returns an error inside another transformation, because this process's values cannot be mapped there.
    pub fn check_outermost(&self) -> Result<()> {
        Err(err!(
            NotImplemented,
            "pmap over the devices of {} processes cannot be called inside jit, grad or vmap, because it takes each process's own arrays",
            self.mesh.size() / self.local.size().max(1)
        )
        .help("call the pmap outermost, with the transformation inside: `pmap(grad(f))`; or use shard_map over a mesh of all devices, on global arrays"))
    }

    fn view(&self, axis: AxisName, dim: Option<usize>) -> Result<View> {
        let spec = dim.map_or_else(PartitionSpec::default, |d| PartitionSpec::default().insert(d, &[axis]));
        View::of(&self.mesh, &self.local, spec)
    }

    /// Makes the arguments parts of global arrays. Arguments that are global already are unchanged.
    pub fn enter(&self, axis: AxisName, flat: &Flat, avals: &[Aval], dims: &[Option<usize>]) -> Result<Flat> {
        let mut out = flat.clone();
        for (i, leaf) in out.leaves.iter_mut().enumerate() {
            if leaf.is_number() || !leaf.is_fully_addressable() {
                continue;
            }
            if let Some(d) = dims[i]
                && avals[i].shape[d] != self.local.size()
            {
                return Err(err!(
                    Value,
                    "pmap maps axis {d} of argument{} of type {}, of size {}, over this process's {} devices",
                    flat.def.paths()[i],
                    avals[i],
                    avals[i].shape[d],
                    self.local.size()
                )
                .help("each process must pass one slice for each of its devices, or all processes a global array of all slices"));
            }
            *leaf = to_global(leaf, &self.view(axis, dims[i])?)
                .map_err(|e| e.context(format!("argument{}", flat.def.paths()[i])))?;
        }
        Ok(out)
    }

    /// Marks donated arguments as consumed. If `enter` copied an argument, the program reuses the copy, so the memory of the
    /// argument is freed here.
    pub fn donate(&self, name: &str, donated: &[bool], args: &Flat, entered: &Flat) -> Result<()> {
        let pairs = args.leaves.iter().zip(&entered.leaves).zip(donated).filter(|(_, donated)| **donated);
        for ((arg, entered), _) in pairs {
            let (Some(arg), Some(entered)) = (arg.concrete_ref(), entered.concrete_ref()) else { continue };
            arg.mark_taken(name);
            if !shares_buffers(arg, entered) {
                arg.free_own_memory()?;
                if self.warned.swap(true, Ordering::Relaxed) {
                    continue;
                }
                warning::warn(
                    &format!(
                        "Donated pmap argument required resharding. This causes a brief 2x memory spike before the original is freed. An argument of {name}, of type {}, was at {}.",
                        arg.aval, arg.sharding
                    ),
                    "pass results of a pmap, or arrays made by `device_put_sharded`, which are already in place",
                );
            }
        }
        Ok(())
    }

    /// Returns this process's part of a result.
    pub fn leave(&self, array: &Array) -> Result<Array> {
        let spec = array.sharding()?.as_named().map(|s| s.spec().clone()).unwrap_or_default();
        to_local(array, &View::of(&self.mesh, &self.local, spec)?)
    }
}

/// Returns `true` if every buffer of `array` is also a buffer of `other`.
fn shares_buffers(array: &Concrete, other: &Concrete) -> bool {
    array.buffers.iter().all(|a| other.buffers.iter().any(|b| std::sync::Arc::ptr_eq(a, b)))
}
