//! Tracing of a function on the local shards of each device, shared by `shard_map` and `pmap`.

use std::rc::Rc;
use std::sync::Arc;

use crate::core::array::Array;
use crate::core::program::trace::{Traced, bind, check_usable};
use crate::core::program::{Aval, Program};
use crate::core::tree::{Flat, TreeDef};
use crate::error::Result;
use crate::interpret::flat::{FlatFn, trace_concrete};
use crate::ops::shard_map::ShardMap;
use crate::runtime::concrete_inputs::LocalShards;
use crate::shape::AxisName;
use crate::sharding::{Mesh, PartitionSpec};

/// Computes the spec of each result from the structure and the ranks of the results.
pub(crate) type OutSpecs<'a> = &'a dyn Fn(&TreeDef, &[usize]) -> Result<Vec<PartitionSpec>>;

/// A function traced on local shards, and the operands to apply it to.
pub(crate) struct Mapped {
    pub map: ShardMap,
    captures: Vec<Array>,
    pub out_def: TreeDef,
}

/// The mesh and its manual axes.
pub(crate) struct Manual<'a> {
    pub mesh: &'a Mesh,
    pub axes: &'a [AxisName],
    /// `true` if types track the axes that values vary over.
    pub checked: bool,
}

/// Traces `f` on local shards of these arguments, split by `in_specs`.
pub(crate) fn trace_local_shards(
    Manual { mesh, axes, checked }: Manual<'_>,
    flat: &Flat,
    blocks: &[Aval],
    in_specs: Vec<PartitionSpec>,
    f: FlatFn<'_>,
    out_specs: OutSpecs<'_>,
) -> Result<Mapped> {
    let mut map = ShardMap {
        mesh: mesh.clone(),
        manual: axes.to_vec(),
        in_specs: in_specs.clone(),
        out_specs: Vec::new(),
        checked,
        body: Program::default(),
    };
    let shards = Rc::new(LocalShards { args: flat.leaves.to_vec(), map: map.clone() });
    let (Traced { program, captures }, out_def) =
        ShardMap::bind_axes(mesh, axes, checked, || trace_concrete(shards, &flat.def, blocks, f))?;
    let ranks: Vec<usize> = program.out_avals().iter().map(Aval::rank).collect();
    map.out_specs = out_specs(&out_def, &ranks)?;
    // Captured values are replicated on every device.
    map.in_specs = std::iter::repeat_n(PartitionSpec::default(), captures.len()).chain(in_specs).collect();
    map.body = program;
    Ok(Mapped { map, captures, out_def })
}

impl Mapped {
    /// Applies the mapped function in the current trace.
    pub fn apply(self, flat: &Flat) -> Result<Flat> {
        let args: Vec<Array> = self.captures.iter().chain(&flat.leaves).cloned().collect();
        let outs = bind(Arc::new(self.map), &args);
        outs.iter().try_for_each(check_usable)?;
        Ok(Flat { leaves: outs.into_iter().collect(), def: self.out_def })
    }
}
