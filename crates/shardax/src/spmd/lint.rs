//! Detection of missing reductions and of equal random numbers in the traced body of a `pmap`.

use std::ops::Range;

use super::local_shards::Mapped;
use crate::core::program::{Atom, Aval, Eqn, Program, Var};
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
    /// Returns the top-level parts with the ranges of their leaves.
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

/// Warns if a training step has no reduction: the body computes gradients, and an argument that is equal on all devices
/// is returned with a different value on each device. The last inputs of `body` are the arguments.
pub(crate) fn unreduced_gradients(
    axis: AxisName,
    is_named: bool,
    args: &Values,
    outs: &Values,
    body: &Program,
) -> Result<()> {
    let (name, name_it) =
        if is_named { (axis.as_str(), "") } else { ("batch", "name the axis, `.axis_name(\"batch\")`, and ") };
    let mut results = outs.parts();
    results.push((outs.def.clone(), 0..outs.avals.len()));
    let captured = body.inputs.len() - args.avals.len();
    for (i, (def, leaves)) in args.parts().into_iter().enumerate() {
        // A result counts as the new value of the first argument with the same structure and types.
        let new_value = results.iter().position(|(d, r)| *d == def && outs.types(r) == args.types(&leaves));
        let Some(new_value) = new_value else { continue };
        let (_, new_leaves) = results.swap_remove(new_value);
        // Assume that this argument is equal on all devices and all others vary. Which results vary?
        let inputs = (0..body.inputs.len()).map(|input| {
            let varies = input >= captured && !leaves.contains(&(input - captured));
            varies.then_some(axis).into_iter().collect()
        });
        let sets = vary::outputs(body, &inputs.collect::<Vec<AxisSet>>())?;
        // Some values differ on purpose, for example statistics of a device's batches. They are returned together with
        // values that do not differ, so only an argument that differs entirely is reported.
        let mut inexact_leaves = new_leaves.clone().filter(|&o| outs.avals[o].dtype.is_inexact()).peekable();
        let drifts = inexact_leaves.peek().is_some() && inexact_leaves.all(|o| !sets[o].is_empty());
        // Without an axis name, the result may be the gradients of each device, which the user may want. A step from the
        // argument is never wanted.
        let inputs = leaves.clone().map(|leaf| body.inputs[captured + leaf]);
        let mut pairs = inputs.zip(new_leaves).map(|(input, output)| (input, &body.outputs[output]));
        if drifts && (is_named || pairs.any(|(input, output)| is_moved(body, input, output))) {
            warning::warn(
                &format!(
                    "pmap over {axis:?} takes gradients, and argument[{i}], if it is equal on all devices, comes back different on each: its copies drift apart from the first call on"
                ),
                &format!(
                    "{name_it}reduce the gradients before they are applied: `let grads = pmean(grads, \"{name}\")`; where each device is to train a model of its own, say so with `.check_replication(false)`"
                ),
            );
            break;
        }
    }
    Ok(())
}

/// Warns if a layer's stream of random keys is used and is equal on all devices, because then all devices draw the same
/// numbers.
pub(super) fn same_draws(args: &TreeDef, is_used_by_all: impl Fn(usize) -> bool) {
    let infos = args.leaf_infos();
    let Some((_, leaf)) =
        infos.iter().enumerate().find(|(i, leaf)| leaf.counts_keys_of_a_layer() && is_used_by_all(*i))
    else {
        return;
    };
    warning::warn(
        &format!(
            "pmap draws random numbers by argument{}, which is the same on all devices: each draws the same numbers for its part of the batch",
            leaf.path
        ),
        "use a different key on each device: make the layer by `Dropout::without_rngs(rate)`, and call `forward_with(x, &key)` with `random::fold_in(&key, axis_index(\"batch\"))`; `.check_replication(false)` if equal numbers are meant",
    );
}

/// Returns `true` if `output` is `input` plus or minus something, apart from changes of shape and dtype.
fn is_moved(body: &Program, input: Var, output: &Atom) -> bool {
    let Some(eqn) = origin(body, output).and_then(|var| producer(body, var)) else { return false };
    matches!(eqn.primitive.name(), "add" | "sub") && eqn.inputs.iter().any(|atom| origin(body, atom) == Some(input))
}

/// Returns the equation that computes a variable, or `None` for an input.
fn producer(body: &Program, var: Var) -> Option<&Eqn> {
    body.eqns.iter().rev().find(|eqn| eqn.outputs.contains(&var))
}

/// Follows equations with one operand back to the variable that they start from.
fn origin(body: &Program, atom: &Atom) -> Option<Var> {
    let Atom::Var(mut var) = *atom else { return None };
    while let Some(eqn) = producer(body, var)
        && let [Atom::Var(operand)] = eqn.inputs.as_slice()
    {
        var = *operand;
    }
    Some(var)
}

/// Fails if a result without a mapped axis can differ between devices.
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
                "reduce it first (`pmean(x, {axis:?})`; in a training step, reduce the gradients), return one value for each device with out_axes 0, or take the first device's with `.check_replication(false)`; an `Optimizer` takes reduced gradients by `optimizer.update(pmean(grads, {axis:?}))` after `value_and_grad`, not by `minimize`"
            )));
        }
    }
    Ok(())
}
