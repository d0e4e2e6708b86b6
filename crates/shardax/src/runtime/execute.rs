//! Running a compiled program: place the arguments, execute, wrap the results.

use std::sync::Arc;

use shardax_pjrt as pjrt;
use smallvec::SmallVec;

use super::placement::Place;
use super::transfer;
use crate::array::{Array, Buffers, Concrete};
use crate::error::Result;
use crate::program::Aval;
use crate::sharding::Sharding;

/// A program compiled for its devices.
pub(crate) struct LoadedProgram {
    pub name: String,
    pub executable: pjrt::Executable,
    pub place: Place,
    pub in_shardings: Vec<Sharding>,
    pub out_avals: Vec<Aval>,
    pub out_shardings: Vec<Sharding>,
    pub donated: Vec<bool>,
}

impl LoadedProgram {
    /// Runs on all devices; returns at once, with arrays whose values are still being computed.
    ///
    /// `committed` says whether the results stay where they are when they meet arrays on other devices.
    pub fn run(&self, args: &[Arc<Concrete>], committed: bool) -> Result<SmallVec<[Array; 1]>> {
        let devices = self.place.devices().len();
        let count = args.len();
        let mut placed: SmallVec<[Buffers; 8]> = SmallVec::new();
        for (arg, want) in args.iter().zip(&self.in_shardings) {
            arg.check_alive()?;
            placed.push(if arg.sharding == *want { arg.buffers.clone() } else { transfer::reshard(arg, want)? });
        }
        let mut flat: SmallVec<[&pjrt::Buffer; 32]> = SmallVec::with_capacity(devices * count);
        for d in 0..devices {
            for buffers in &placed {
                flat.push(&buffers[d]);
            }
        }
        let results = self.executable.execute(&flat)?;
        for ((arg, buffers), donated) in args.iter().zip(&placed).zip(&self.donated) {
            if *donated {
                arg.mark_taken(&self.name);
                // A copy was donated: the original goes too, as if it had been.
                if !arg.buffers.iter().zip(buffers).all(|(a, b)| Arc::ptr_eq(a, b)) {
                    for b in &arg.buffers {
                        b.delete()?;
                    }
                }
            }
        }
        let mut outs: SmallVec<[Buffers; 1]> = SmallVec::from_elem(Buffers::new(), self.out_avals.len());
        for per_device in results {
            for (out, buffer) in outs.iter_mut().zip(per_device) {
                out.push(Arc::new(buffer));
            }
        }
        Ok(outs
            .into_iter()
            .zip(&self.out_avals)
            .zip(&self.out_shardings)
            .map(|((buffers, aval), sharding)| {
                Array::from_concrete(Concrete::new(aval.clone(), sharding.clone(), committed, buffers))
            })
            .collect())
    }
}
