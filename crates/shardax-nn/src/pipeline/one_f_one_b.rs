//! The 1F1B schedule, with a hand-written backward pass.

use shardax::prelude::*;

use super::Run;
use super::model::{Model, Params, at};
use crate::rules::{axes_of, varying};

/// The state of a stage between slots.
#[derive(Tree, Clone)]
struct Slot<P, H> {
    /// The value from the previous stage.
    arrived: H,
    /// The gradient, from the next stage, with respect to the value that was sent to it.
    gradient: H,
    /// The inputs of micro-batches until their backward pass, with one slot for each stage.
    inputs: H,
    grads: P,
    loss: Array,
}

impl Run {
    /// Returns the mean loss of the micro-batches, and its gradients.
    ///
    /// With `p` stages, the forward pass of micro-batch `j` through stage `s` is in slot `2 j + s`, and its backward
    /// pass in slot `2 j + 2 p - 1 - s`. Each pass is one slot after the pass of the neighbouring stage, and a slot never has
    /// both. Between the two passes are `2 (p - s) - 1` slots, so stage `s` stores at most `p - s` inputs.
    pub(super) fn one_f_one_b<M: Model>(
        &self,
        model: &M,
        params: Params<M>,
        batch: (M::Input, M::Target),
    ) -> Result<(Array, Params<M>)> {
        let axes = axes_of(&(params.clone(), batch.clone()), self.axis);
        let (params, batch) = varying((params, batch), &axes)?;
        let (hidden, zero) = varying(model.zeros(params.clone(), &batch)?, &axes)?;
        let (inputs, targets) = &batch;
        let (first, stage, _) = &params;
        let (device, stages, count) = (axis_index(self.axis), self.stages as i32, self.micro_batches as i32);

        // The input of the stage: the first stage computes it from the batch.
        let enter = |first: M::First, micro: &Array, arrived: M::Hidden| -> Result<M::Hidden> {
            cond(
                self.is_first(),
                |(first, _): (M::First, M::Hidden)| varying(model.first(first, at(inputs, micro)?)?, &axes),
                |(_, x): (M::First, M::Hidden)| x,
                (first, arrived),
            )
        };

        let slot = |state: Slot<Params<M>, M::Hidden>, slot: Array| -> Result<_> {
            // The formulas of the slots, solved for `2 j`. A pass is due if the result is even and in range.
            let (forward_time, backward_time) = (&slot - &device, slot + &device - (2 * stages - 1));
            let [forward, backward] = [&forward_time, &backward_time]
                .map(|time| time.greater_equal(0) & time.less(2 * count) & remainder(time, 2).equal(0));
            let micro = floor_divide(where_(&forward, forward_time, backward_time), 2);
            let place = remainder(&micro, stages);

            let idle = |state: Slot<Params<M>, M::Hidden>| Ok((state, (hidden.clone(), hidden.clone())));
            let forward_pass = |mut state: Slot<Params<M>, M::Hidden>| -> Result<_> {
                let x = enter(first.clone(), &micro, state.arrived.clone())?;
                state.inputs = tree::map2(
                    |all: Array, x: Array| lax::dynamic_update_index_in_dim(&all, &x, &place, 0),
                    state.inputs,
                    x.clone(),
                )?;
                // The last stage runs backward in the next slot, and computes its output there.
                let y = cond(
                    self.is_last(),
                    |_: M::Hidden| hidden.clone(),
                    |x: M::Hidden| varying(model.stage(stage.clone(), x)?, &axes),
                    x,
                )?;
                Ok((state, (y, hidden.clone())))
            };
            let backward_pass = |mut state: Slot<Params<M>, M::Hidden>| -> Result<_> {
                let x = at(&state.inputs, &place)?;
                let (value, (grads, dx)) =
                    value_and_grad(|((first, stage, last), x): (Params<M>, M::Hidden)| -> Result<Array> {
                        let y = model.stage(stage, enter(first, &micro, x)?)?;
                        cond(
                            self.is_last(),
                            |(last, y): (M::Last, M::Hidden)| {
                                varying(model.last(last, y, at(targets, &micro)?)?, &axes)
                            },
                            // The gradient of this dot product with respect to `y` is the gradient from the next stage.
                            |(_, y): (M::Last, M::Hidden)| {
                                let pairs = tree::leaves(&y).into_iter().zip(tree::leaves(&state.gradient));
                                pairs.fold(zero.clone(), |sum, (y, g)| {
                                    sum + (y.astype(zero.dtype()) * g.astype(zero.dtype())).sum(..)
                                })
                            },
                            (last, y),
                        )
                    })
                    .call((params.clone(), x))?;
                state.loss = state.loss + where_(self.is_last(), value, 0.0);
                state.grads = tree::map2(|sum, g| sum + g, state.grads, grads)?;
                Ok((state, (hidden.clone(), dx)))
            };
            let branch = where_(forward, 1, where_(backward, 2, 0)).astype(DType::I32);
            let (mut state, (y, dx)) = switch(branch, (idle, forward_pass, backward_pass), state)?;
            (state.arrived, state.gradient) = (self.onward(y), self.back(dx));
            Ok((state, ()))
        };

        let start = Slot {
            arrived: hidden.clone(),
            gradient: hidden.clone(),
            inputs: tree::map(|x: Array| x.broadcast_to([&[self.stages], x.shape()].concat()), hidden.clone())?,
            grads: tree::map(|x| zeros_like(&x), params.clone())?,
            loss: zero.clone(),
        };
        let start = varying(start, &axes)?;
        let (end, ()) = scan(slot, start, arange(0..2 * (count + stages - 1)))?;
        let grads = tree::map(|g| (&g / count).astype(g.dtype()), end.grads)?;
        Ok((psum(end.loss, self.axis) / count, grads))
    }
}
