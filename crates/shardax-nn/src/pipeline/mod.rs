//! Pipeline parallelism: the layers of a model are split into stages along a mesh axis, and a batch into micro-batches.
//!
//! ```text
//! GPipe, 3 stages, 4 micro-batches: all forward (F), then all backward (B)
//!   stage 0   F0 F1 F2 F3  .  .  .  . B3 B2 B1 B0
//!   stage 1    . F0 F1 F2 F3  .  . B3 B2 B1 B0  .
//!   stage 2    .  . F0 F1 F2 F3 B3 B2 B1 B0  .  .
//!
//! 1F1B: the backward pass of a micro-batch starts as early as possible, so that at most 3 are stored
//!   stage 0   F0  . F1  . F2 B0 F3 B1  . B2  . B3
//!   stage 1    . F0  . F1 B0 F2 B1 F3 B2  . B3  .
//!   stage 2    .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .
//! ```

mod gpipe;
mod model;
mod one_f_one_b;

use std::sync::Arc;

use shardax::prelude::*;
use shardax::shape::AxisName;

use self::model::{Functions, Model, Params};
use crate::Rules;
use crate::check::{positive, value_error};
use crate::rules::Place;
use crate::shardings::enter_shard_map;

/// The schedule of a [`Pipeline`]. Both schedules compute the same loss and gradients, and with both a stage idles for
/// `(stages - 1) / (micro_batches + stages - 1)` of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes. The residuals of every micro-batch are stored until its backward pass; if
    /// the stage is [checkpointed](shardax::checkpoint()), this is only its input.
    ///
    /// Source: [Huang et al. 2018](https://arxiv.org/abs/1811.06965).
    #[default]
    GPipe,
    /// The backward pass of a micro-batch starts as soon as the last stage has computed it, alternating with forward
    /// passes of other micro-batches. A stage stores the inputs of at most as many micro-batches as there are stages, and
    /// recomputes all other residuals.
    ///
    /// Source: [Narayanan et al. 2019](https://arxiv.org/abs/1806.03377), with flushes.
    OneFOneB,
}

/// A model in stages along a mesh axis, with a differentiable loss.
///
/// If a device has the entire model, for example because the rules have no such axis, the loss is computed without a pipeline.
///
/// ```
/// use shardax_nn::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// #[derive(Module, Clone)]
/// struct Mlp { first: Linear, layers: Stack<Sequential<(Linear, Apply)>>, last: Linear, #[tree(static)] rules: Rules }
///
/// impl Mlp {
///     fn new(rngs: &mut Rngs) -> Result<Self> {
///         let first = Linear::new(4, 16, rngs);
///         let layers = Stack::new(8, rngs, |rngs| Sequential((Linear::new(16, 16, rngs), Apply(relu))))?;
///         Ok(Mlp { first, layers: layers.axis_name("layers"), last: Linear::new(16, 1, rngs), rules: rngs.rules() })
///     }
///
///     fn loss(self, x: Array, y: Array) -> Result<Array> {
///         let embed = |layer: Linear, x: Array| layer.forward(x);
///         let stage = |mut layers: Stack<Sequential<(Linear, Apply)>>, x: Array| layers.forward(x);
///         let loss = |layer: Linear, x: Array, y: Array| (layer.forward(x) - y).square().mean(..);
///         Pipeline::of(&self.rules, "layers", 8)
///             .schedule(PipelineSchedule::OneFOneB)
///             .loss((embed, stage, loss), (self.first, self.layers, self.last), x, y)
///     }
/// }
///
/// let rules = Rules::new(&make_mesh([("stage", 4)])?, [("layers", "stage")]);
/// let model = rules.init(|| Mlp::new(&mut Rngs::new(0).with_rules(&rules)))?;
/// let (x, y) = (ones([16, 4]), ones([16, 1]));
/// let (loss, grads) = jit(value_and_grad(Mlp::loss)).call((&model, &x, &y))?;
///
/// let on_one_device = Mlp::new(&mut Rngs::new(0))?;
/// let (expected, _) = jit(value_and_grad(Mlp::loss)).call((on_one_device, x, y))?;
/// assert!(allclose(loss, expected, 1e-5, 1e-6)?);
/// # let _ = grads;
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pipeline {
    along: Along,
    micro_batches: usize,
    schedule: PipelineSchedule,
}

/// The source of the stages' axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Along {
    Axis(AxisName),
    Rules(Rules, &'static str),
}

impl Pipeline {
    /// Creates a pipeline along a manual axis, for use in a `shard_map` over this axis, with this number of micro-batches.
    pub fn new(axis_name: impl Into<AxisName>, micro_batches: usize) -> Self {
        Pipeline { along: Along::Axis(axis_name.into()), micro_batches, schedule: PipelineSchedule::default() }
    }

    /// Creates a pipeline along the mesh axis that the rules assign to `name`, the dimension of layers. The pipeline's
    /// `shard_map` is over this axis and the axes that only split rows (`batch`); over all other axes, a stage is split as the
    /// rules say.
    pub fn of(rules: &Rules, name: &'static str, micro_batches: usize) -> Self {
        let along = Along::Rules(rules.clone(), name);
        Pipeline { along, micro_batches, schedule: PipelineSchedule::default() }
    }

    /// Sets the schedule. Default GPipe.
    pub fn schedule(mut self, schedule: PipelineSchedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Computes the loss of a batch, the mean over its micro-batches, on all stages.
    ///
    /// The first function maps its parameters and the inputs to the hidden value. The second function maps the
    /// parameters of a stage and the hidden value to the next hidden value, with equal shapes and dtypes. The third
    /// function maps its parameters, the hidden value and the targets to a scalar, the mean over rows. The arrays of
    /// the second function's parameters are split over the stages along their first dimension, like the arrays of a
    /// [`Stack`](crate::Stack). Only the first stage computes the first function, and only the last stage the third,
    /// but all stages have their parameters.
    ///
    /// Inputs and targets have rows along their first dimension, and no gradient. Micro-batch `i` uses every
    /// `micro_batches`-th row, starting with row `i`, so that rows that are sharded over another axis stay in place.
    ///
    /// The functions must not capture arrays. Pass values that need gradients as parameters.
    ///
    /// # Errors
    /// Returns an error if the number of rows is not divisible by the micro-batches, if a stage returns another type
    /// than its argument's, or if the axis belongs to a `pmap` or to a `shard_map` without `check_vma`. Forward mode
    /// (`jvp`) of 1F1B is an error.
    #[track_caller]
    pub fn loss<A, B, C, F, S, L, X, T, H>(
        &self,
        functions: (A, B, C),
        params: (F, S, L),
        inputs: X,
        targets: T,
    ) -> Result<Array>
    where
        A: Function<(F, X), Output = H> + Send + Sync + 'static,
        B: Function<(S, H), Output = H> + Send + Sync + 'static,
        C: Function<(L, H, T), Output = Array> + Send + Sync + 'static,
        F: Tree + 'static,
        S: Tree + 'static,
        L: Tree + 'static,
        X: Tree + 'static,
        T: Tree + 'static,
        H: Tree + 'static,
    {
        positive("Pipeline", "micro_batches", self.micro_batches)?;
        let model = Arc::new(Functions::<A, B, C, (F, S, L, X, T, H)>::new(functions));
        let batch = tree::map(|x| stop_gradient(x), (inputs, targets))?;
        match self.place()? {
            Place::Whole => model.loss_on_one_device(params, batch),
            Place::Manual(axis) => self.sharded_loss(model, axis, params, self.micro(batch)?),
            Place::Auto(mesh, axis) => {
                // Rows stay split over their axes, so that gradients are summed over these axes only once, at the end.
                let rows = match &self.along {
                    Along::Rules(rules, _) => rules.row_axes(),
                    Along::Axis(_) => Vec::new(),
                };
                let axes: Vec<AxisName> = std::iter::once(axis).chain(rows.iter().copied()).collect();
                let (replicated, by_stage, micro) = (P![], P![axis], P![None, &rows[..]]);
                let params = (
                    tree::map(|x| enter_shard_map(x, &replicated, &axes), params.0)?,
                    tree::map(|x| enter_shard_map(x, &by_stage, &axes), params.1)?,
                    tree::map(|x| enter_shard_map(x, &replicated, &axes), params.2)?,
                );
                let batch = tree::map(|x| enter_shard_map(x, &micro, &axes), self.micro(batch)?)?;
                shard_map(
                    |params: (F, S, L), batch: (X, T)| -> Result<Array> {
                        let loss = self.sharded_loss(model.clone(), axis, params, batch)?;
                        Ok(if rows.is_empty() { loss } else { pmean(loss, &rows[..]) })
                    },
                    &mesh,
                )
                .axis_names(&axes[..])
                .in_specs(((&replicated, &by_stage, &replicated), &micro))
                .out_specs(P![])
                .call((params, batch))
            }
        }
    }

    #[track_caller]
    fn place(&self) -> Result<Place> {
        match &self.along {
            Along::Axis(axis) => Ok(Place::Manual(*axis)),
            Along::Rules(rules, name) => rules.place(name),
        }
    }

    /// Computes the loss inside a `shard_map` over the axis of the stages.
    #[track_caller]
    fn sharded_loss<M: Model>(
        &self,
        model: Arc<M>,
        axis: AxisName,
        params: Params<M>,
        batch: (M::Input, M::Target),
    ) -> Result<Array> {
        let stages = axis_size(axis)?;
        if axis_index(axis).vma().is_empty() {
            return value_error(format!(
                "Pipeline: gradients along {axis:?} need a shard_map that tracks varying axes: leave `check_vma` on, and use \
                 no pmap"
            ));
        }
        let run = Run { axis, stages, micro_batches: self.micro_batches };
        match self.schedule {
            PipelineSchedule::GPipe => run.gpipe(&*model, params, batch),
            PipelineSchedule::OneFOneB => {
                // The schedule computes gradients together with the loss, so the rule stores them as its residuals.
                let forward = model.clone();
                custom_vjp(move |params: Params<M>, batch: (M::Input, M::Target)| run.gpipe(&*model, params, batch))
                    .nondiff_argnums(Arg::<1>)
                    .defvjp(
                        move |params: Params<M>, batch: (M::Input, M::Target)| {
                            run.one_f_one_b(&*forward, params, batch)
                        },
                        |_: (M::Input, M::Target), grads: Params<M>, ct: Array| -> Result<(Params<M>,)> {
                            Ok((tree::map(|g| (&g * &ct).astype(g.dtype()), grads)?,))
                        },
                    )
                    .call((params, batch))
            }
        }
    }

    /// Reshapes `[rows, ...]` to `[micro-batches, rows of each, ...]`.
    #[track_caller]
    fn micro<T: Tree>(&self, batch: T) -> Result<T> {
        let count = self.micro_batches;
        for x in tree::leaves(&batch) {
            x.check()?;
            if !x.shape().first().is_some_and(|rows| rows.is_multiple_of(count)) {
                let x_type = x.type_name();
                return value_error(format!(
                    "Pipeline: the rows of a batch must divide into {count} micro-batches, got {x_type}"
                ));
            }
        }
        tree::map(|x| x.reshape([&[x.shape()[0] / count, count], &x.shape()[1..]].concat()).moveaxis(1, 0), batch)
    }
}

/// The pipeline as one of its devices runs it.
#[derive(Clone, Copy)]
struct Run {
    axis: AxisName,
    stages: usize,
    micro_batches: usize,
}

impl Run {
    fn is_first(&self) -> Array {
        axis_index(self.axis).equal(0)
    }

    fn is_last(&self) -> Array {
        axis_index(self.axis).equal(self.stages as i32 - 1)
    }

    /// Sends the value of each stage to the next one.
    fn onward<T: Tree>(&self, x: T) -> T {
        ppermute(x, self.axis, (1..self.stages).map(|to| (to - 1, to)))
    }

    /// Sends the value of each stage to the previous one.
    fn back<T: Tree>(&self, x: T) -> T {
        ppermute(x, self.axis, (1..self.stages).map(|from| (from, from - 1)))
    }
}
