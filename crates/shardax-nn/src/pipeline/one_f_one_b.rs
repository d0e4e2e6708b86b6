//! The 1F1B schedule, with a hand-written backward pass.

use shardax::prelude::*;
use shardax::shape::AxisSet;

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

/// The state of a stage after a pass, and the values that the pass sends to the next and to the previous stage.
type Passed<M> = (State<M>, (<M as Model>::Hidden, <M as Model>::Hidden));

type State<M> = Slot<Params<M>, <M as Model>::Hidden>;

/// The values that all slots of a stage use.
struct Stage<'a, M: Model> {
    run: &'a Run,
    model: &'a M,
    /// The index of the stage.
    device: Array,
    params: Params<M>,
    inputs: M::Input,
    targets: M::Target,
    /// Zeros like the value that is passed between stages, for a slot that sends nothing.
    hidden: M::Hidden,
    /// Zero like the loss.
    zero: Array,
    /// The axes over which all values of the loop vary.
    axes: AxisSet,
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
        let (inputs, targets) = batch;
        let stage =
            Stage { run: self, model, device: axis_index(self.axis), params, inputs, targets, hidden, zero, axes };

        let slots = 2 * (self.micro_batches + self.stages - 1) as i32;
        let step = |state: State<M>, slot: Array| -> Result<_> { Ok((stage.run_slot(state, slot)?, ())) };
        let (end, ()) = scan(step, stage.start()?, arange(0..slots))?;
        let count = self.micro_batches as i32;
        let grads = tree::map(|g| (&g / count).astype(g.dtype()), end.grads)?;
        Ok((psum(end.loss, self.axis) / count, grads))
    }
}

impl<M: Model> Stage<'_, M> {
    /// Returns the state before the first slot.
    fn start(&self) -> Result<State<M>> {
        let stages = self.run.stages;
        let start = Slot {
            arrived: self.hidden.clone(),
            gradient: self.hidden.clone(),
            inputs: tree::map(|x: Array| x.broadcast_to([&[stages], x.shape()].concat()), self.hidden.clone())?,
            grads: tree::map(|x| zeros_like(&x), self.params.clone())?,
            loss: self.zero.clone(),
        };
        varying(start, &self.axes)
    }

    /// Runs the pass that is due in this slot, if any, and exchanges values with the neighbouring stages.
    fn run_slot(&self, state: State<M>, slot: Array) -> Result<State<M>> {
        let (device, stages) = (&self.device, self.run.stages as i32);
        // The formulas of the slots, solved for `2 j`. A pass is due if the result is even and in range.
        let (forward_time, backward_time) = (&slot - device, slot + device - (2 * stages - 1));
        let end_time = 2 * self.run.micro_batches as i32;
        let [forward, backward] = [&forward_time, &backward_time]
            .map(|time| time.greater_equal(0) & time.less(end_time) & remainder(time, 2).equal(0));
        let micro = floor_divide(where_(&forward, forward_time, backward_time), 2);

        let branch = where_(forward, 1, where_(backward, 2, 0)).astype(DType::I32);
        let idle = |state: State<M>| -> Result<Passed<M>> { Ok((state, (self.hidden.clone(), self.hidden.clone()))) };
        let forward_pass = |state: State<M>| self.forward_pass(state, &micro);
        let backward_pass = |state: State<M>| self.backward_pass(state, &micro);
        let (mut state, (y, dx)) = switch(branch, (idle, forward_pass, backward_pass), state)?;
        (state.arrived, state.gradient) = (self.run.onward(y), self.run.back(dx));
        Ok(state)
    }

    /// Returns the input of the stage for a micro-batch. The first stage computes it from the batch.
    fn enter(&self, first: M::First, micro: &Array, arrived: M::Hidden) -> Result<M::Hidden> {
        cond(
            self.run.is_first(),
            |(first, _): (M::First, M::Hidden)| varying(self.model.first(first, at(&self.inputs, micro)?)?, &self.axes),
            |(_, x): (M::First, M::Hidden)| x,
            (first, arrived),
        )
    }

    /// Returns the position of a micro-batch among the stored inputs.
    fn place(&self, micro: &Array) -> Array {
        remainder(micro, self.run.stages as i32)
    }

    /// Stores the input of the stage, and computes the output. The last stage runs backward in the next slot, and computes its
    /// output there.
    fn forward_pass(&self, mut state: State<M>, micro: &Array) -> Result<Passed<M>> {
        let (first, stage, _) = &self.params;
        let x = self.enter(first.clone(), micro, state.arrived.clone())?;
        let place = self.place(micro);
        state.inputs = tree::map2(
            |all: Array, x: Array| lax::dynamic_update_index_in_dim(&all, &x, &place, 0),
            state.inputs,
            x.clone(),
        )?;
        let y = cond(
            self.run.is_last(),
            |_: M::Hidden| self.hidden.clone(),
            |x: M::Hidden| varying(self.model.stage(stage.clone(), x)?, &self.axes),
            x,
        )?;
        Ok((state, (y, self.hidden.clone())))
    }

    /// Recomputes the output of the stage from the stored input, and adds its gradients and, in the last stage, its loss.
    fn backward_pass(&self, mut state: State<M>, micro: &Array) -> Result<Passed<M>> {
        let x = at(&state.inputs, &self.place(micro))?;
        let loss = |(params, x): (Params<M>, M::Hidden)| self.stage_loss(params, x, micro, &state.gradient);
        let (value, (grads, dx)) = value_and_grad(loss).call((self.params.clone(), x))?;
        state.loss = state.loss + where_(self.run.is_last(), value, 0.0);
        state.grads = tree::map2(|sum, g| sum + g, state.grads, grads)?;
        Ok((state, (self.hidden.clone(), dx)))
    }

    /// Returns a scalar whose gradient is the gradient of the pipeline's loss with respect to the input and the parameters of the
    /// stage. In the last stage the scalar is the loss itself.
    fn stage_loss(
        &self,
        (first, stage, last): Params<M>,
        x: M::Hidden,
        micro: &Array,
        gradient: &M::Hidden,
    ) -> Result<Array> {
        let y = self.model.stage(stage, self.enter(first, micro, x)?)?;
        cond(
            self.run.is_last(),
            |(last, y): (M::Last, M::Hidden)| varying(self.model.last(last, y, at(&self.targets, micro)?)?, &self.axes),
            // The gradient of this dot product with respect to `y` is the gradient from the next stage.
            |(_, y): (M::Last, M::Hidden)| self.dot(y, gradient),
            (last, y),
        )
    }

    /// Returns the dot product of two values of the type that is passed between stages, in the dtype of the loss.
    fn dot(&self, y: M::Hidden, gradient: &M::Hidden) -> Array {
        let dtype = self.zero.dtype();
        let pairs = tree::leaves(&y).into_iter().zip(tree::leaves(gradient));
        pairs.fold(self.zero.clone(), |sum, (y, g)| sum + (y.astype(dtype) * g.astype(dtype)).sum(..))
    }
}
