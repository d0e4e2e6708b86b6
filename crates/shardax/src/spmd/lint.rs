//! Detection of a missing reduction in the traced body of a `pmap`.

use std::ops::Range;

use super::local_shards::Mapped;
use crate::core::program::{Aval, Program};
use crate::core::tree::TreeDef;
use crate::error::{Result, err};
use crate::interpret::vary;
use crate::shape::{AxisName, AxisSet};
use crate::warning;

/// The arguments or results of a mapped function, with their types in the body.
pub(crate) struct Values<'a> {
    pub def: &'a TreeDef,
    pub avals: &'a [Aval],
}

impl Values<'_> {
    /// The top-level parts, each with the range of its leaves.
    fn parts(&self) -> Vec<(TreeDef, Range<usize>)> {
        let mut start = 0;
        let children = self.def.root_children().unwrap_or_default().into_iter();
        children
            .map(|(_, def)| {
                let leaves = start..start + def.leaf_count();
                start = leaves.end;
                (def, leaves)
            })
            .collect()
    }

    fn types(&self, leaves: &Range<usize>) -> Vec<(crate::dtype::DType, &[usize])> {
        self.avals[leaves.clone()].iter().map(|a| (a.dtype, a.shape.as_slice())).collect()
    }
}

/// Warns if a training step lacks its reduction: the body takes gradients, and an argument that is equal on
/// all devices is returned with a different value on each. The last inputs of `body` are the arguments.
pub(crate) fn unreduced_gradients(axis: AxisName, args: &Values, outs: &Values, body: &Program) -> Result<()> {
    let (mut results, all) = (outs.parts(), 0..outs.avals.len());
    results.push((outs.def.clone(), all));
    let captured = body.inputs.len() - args.avals.len();
    for (i, (def, leaves)) in args.parts().into_iter().enumerate() {
        // A result is the new value of the first argument with the same structure and types.
        let like = |(d, r): &(TreeDef, Range<usize>)| *d == def && outs.types(r) == args.types(&leaves);
        let Some(at) = results.iter().position(like) else { continue };
        let (_, back) = results.swap_remove(at);
        let varies = |input: usize| input >= captured && !leaves.contains(&(input - captured));
        let inputs: Vec<AxisSet> =
            (0..body.inputs.len()).map(|input| varies(input).then_some(axis).into_iter().collect()).collect();
        let sets = vary::outputs(body, &inputs)?;
        // Values that differ on purpose, such as statistics of a device's own batches, come along with values that do
        // not.
        let mut changed = back.filter(|&o| outs.avals[o].dtype.is_inexact()).peekable();
        if changed.peek().is_some() && changed.all(|o| !sets[o].is_empty()) {
            warning::warn(
                &format!(
                    "pmap over {axis:?} takes gradients, and argument[{i}], if it is equal on all devices, comes back different on each: its copies drift apart from the first call on"
                ),
                &format!(
                    "reduce the gradients before they are applied: `let grads = pmean(grads, \"{axis}\")`; where each device is to train a model of its own, say so with `.check_replication(false)`"
                ),
            );
            break;
        }
    }
    Ok(())
}

/// Fails if a result without a mapped axis may differ from device to device.
pub(super) fn unreduced_results(axis: AxisName, mapped: &Mapped, out_dims: &[Option<usize>]) -> Result<()> {
    if out_dims.iter().all(Option::is_some) {
        return Ok(());
    }
    let varying = mapped.map.varying(&mapped.map.body, 0)?;
    for ((dim, set), path) in out_dims.iter().zip(varying).zip(mapped.out_def.paths()) {
        if dim.is_none() && !set.is_empty() {
            return Err(err!(
                Value,
                "pmap out_axes is None for output{path}, but its value may vary over the mapped axis {axis:?}: the devices would hold different values of one array"
            )
            .help(format!(
                "reduce it first (`pmean(x, {axis:?})`; of a training step, the gradients), return one value for each device with out_axes 0, or take the first device's with `.check_replication(false)`"
            )));
        }
    }
    Ok(())
}
