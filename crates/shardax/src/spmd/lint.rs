//! What compiles and runs and is yet most likely a mistake: said once, while the function is traced.

use std::ops::Range;

use super::vary;
use crate::error::Result;
use crate::program::{Aval, Program};
use crate::shape::{AxisName, AxisSet};
use crate::tree::TreeDef;
use crate::warning;

/// Arguments or results of a mapped function, as the body has them.
pub(super) struct Values<'a> {
    pub def: &'a TreeDef,
    pub avals: &'a [Aval],
}

impl Values<'_> {
    /// The parts at the top, each with the places of its leaves.
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

    fn types(&self, leaves: &Range<usize>) -> Vec<(crate::DType, &[usize])> {
        self.avals[leaves.clone()].iter().map(|a| (a.dtype, a.shape.as_slice())).collect()
    }
}

/// Warns of a training step that lacks its reduction: gradients are taken in the body, and an argument that is equal on
/// all devices comes back different on each. The last inputs of `body` are the arguments.
pub(super) fn unreduced_gradients(axis: AxisName, args: &Values, outs: &Values, body: &Program) -> Result<()> {
    let (mut results, all) = (outs.parts(), 0..outs.avals.len());
    results.push((outs.def.clone(), all));
    let captured = body.inputs.len() - args.avals.len();
    for (i, (def, leaves)) in args.parts().into_iter().enumerate() {
        // A result is the new value of the first argument like it.
        let like = |(d, r): &(TreeDef, Range<usize>)| *d == def && outs.types(r) == args.types(&leaves);
        let Some(at) = results.iter().position(like) else { continue };
        let (_, back) = results.swap_remove(at);
        let varies = |input: usize| input >= captured && !leaves.contains(&(input - captured));
        let inputs: Vec<AxisSet> =
            (0..body.inputs.len()).map(|input| varies(input).then_some(axis).into_iter().collect()).collect();
        let sets = vary::outputs(body, &inputs)?;
        // What is meant to differ, such as statistics of a device's own batches, is among what does not.
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
