//! The GPipe schedule: all micro-batches forward, one after the other. The backward pass is the gradient of this program.

use shardax::prelude::*;

use super::Run;
use super::model::{Model, Params, at};
use crate::rules::{axes_of, varying};

impl Run {
    /// Returns the mean loss of the micro-batches.
    pub(super) fn gpipe<M: Model>(&self, model: &M, params: Params<M>, batch: (M::Input, M::Target)) -> Result<Array> {
        let axes = axes_of(&(params.clone(), batch.clone()), self.axis);
        let (params, batch) = varying((params, batch), &axes)?;
        let (hidden, zero) = varying(model.zeros(params.clone(), &batch)?, &axes)?;
        let ((first, stage, last), (inputs, targets)) = (params, batch);
        let (device, count) = (axis_index(self.axis), self.micro_batches as i32);

        // In each tick, stage `s` computes micro-batch `tick - s`, and sends the result to the next stage.
        let tick = |(loss, arrived): (Array, M::Hidden), tick: Array| -> Result<_> {
            let micro = tick - &device;
            // The stage idles before the first micro-batch has arrived and after the last one has left.
            let has_work = micro.greater_equal(0) & micro.less(count);
            let (loss, y) = cond(
                has_work,
                |(loss, arrived): (Array, M::Hidden)| -> Result<(Array, M::Hidden)> {
                    let x: M::Hidden = cond(
                        self.is_first(),
                        |_: M::Hidden| varying(model.first(first.clone(), at(&inputs, &micro)?)?, &axes),
                        |x: M::Hidden| x,
                        arrived,
                    )?;
                    let y = varying(model.stage(stage.clone(), x)?, &axes)?;
                    let micro_loss: Array = cond(
                        self.is_last(),
                        |y: M::Hidden| varying(model.last(last.clone(), y, at(&targets, &micro)?)?, &axes),
                        |_: M::Hidden| zero.clone(),
                        y.clone(),
                    )?;
                    Ok((loss + micro_loss, y))
                },
                |state: (Array, M::Hidden)| state,
                (loss, arrived),
            )?;
            Ok(((loss, self.onward(y)), ()))
        };
        let ticks = arange(0..count + self.stages as i32 - 1);
        let ((loss, _), ()) = scan(tick, (zero.clone(), hidden), ticks)?;
        Ok(psum(loss, self.axis) / count)
    }
}
