//! The model interface of a pipeline.

use std::marker::PhantomData;

use shardax::prelude::*;

use crate::check::value_error;
use crate::shardings::reshard_like;

/// The parameters of the three functions of a model.
pub(super) type Params<M> = (<M as Model>::First, <M as Model>::Stage, <M as Model>::Last);

/// A model in stages.
pub(super) trait Model: Send + Sync + 'static {
    type First: Tree + 'static;
    type Stage: Tree + 'static;
    type Last: Tree + 'static;
    type Input: Tree + 'static;
    type Target: Tree + 'static;
    /// The value that is passed from stage to stage.
    type Hidden: Tree + 'static;

    fn first(&self, params: Self::First, input: Self::Input) -> Result<Self::Hidden>;
    fn stage(&self, params: Self::Stage, hidden: Self::Hidden) -> Result<Self::Hidden>;
    fn last(&self, params: Self::Last, hidden: Self::Hidden, target: Self::Target) -> Result<Array>;

    /// Returns the loss of an entire batch, if all stages are on one device.
    fn loss_on_one_device(
        &self,
        (first, stage, last): Params<Self>,
        (input, target): (Self::Input, Self::Target),
    ) -> Result<Array>
    where
        Self: Sized,
    {
        self.last(last, self.stage(stage, self.first(first, input)?)?, target)
    }

    /// Returns zeros like the value passed between stages, and like the loss.
    fn zeros(
        &self,
        (first, stage, last): Params<Self>,
        batch: &(Self::Input, Self::Target),
    ) -> Result<(Self::Hidden, Array)>
    where
        Self: Sized,
    {
        // Only the types of these traced values are used, so the program does not compute them.
        let (input, target) = at(batch, &array(0))?;
        let hidden = self.first(first, input)?;
        let next = self.stage(stage, hidden.clone())?;
        let (in_types, out_types) = (leaf_types(&hidden), leaf_types(&next));
        if in_types != out_types {
            return value_error(format!(
                "Pipeline: a stage must return the type of its argument, got {} for {}",
                out_types.join(", "),
                in_types.join(", ")
            ));
        }
        let loss = self.last(last, next, target)?;
        loss.check()?;
        if loss.ndim() != 0 {
            return value_error(format!("Pipeline: the loss must be a scalar, got {}", loss.type_name()));
        }
        Ok((tree::map(|x| zeros_like(&x), hidden)?, zeros_like(&loss)))
    }
}

/// Three functions as a model.
pub(super) struct Functions<A, B, C, Types> {
    first: A,
    stage: B,
    last: C,
    types: PhantomData<fn() -> Types>,
}

impl<A, B, C, Types> Functions<A, B, C, Types> {
    pub fn new((first, stage, last): (A, B, C)) -> Self {
        Functions { first, stage, last, types: PhantomData }
    }
}

impl<A, B, C, F, S, L, X, T, H> Model for Functions<A, B, C, (F, S, L, X, T, H)>
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
    type First = F;
    type Stage = S;
    type Last = L;
    type Input = X;
    type Target = T;
    type Hidden = H;

    fn first(&self, params: F, input: X) -> Result<H> {
        self.first.apply((params, input))
    }

    fn stage(&self, params: S, hidden: H) -> Result<H> {
        let next = self.stage.apply((params, hidden.clone()))?;
        // All stages must pass the same type on, but the layers of a stage may change its sharding.
        tree::map2(|next, hidden| reshard_like(next, &hidden), next, hidden)
    }

    fn last(&self, params: L, hidden: H, target: T) -> Result<Array> {
        self.last.apply((params, hidden, target))
    }
}

/// Returns the dtypes and shapes of all leaves.
fn leaf_types<T: Tree>(tree: &T) -> Vec<String> {
    tree::leaves(tree).iter().map(|x| format!("{}{:?}", x.dtype(), x.shape())).collect()
}

/// Returns one entry of each array, along the first dimension.
pub(super) fn at<T: Tree>(tree: &T, index: &Array) -> Result<T> {
    tree::map(|x| lax::dynamic_index_in_dim(&x, index, 0).squeeze(0), tree.clone())
}
