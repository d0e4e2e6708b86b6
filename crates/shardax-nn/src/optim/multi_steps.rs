//! Gradient accumulation as a transformation.

use shardax::prelude::*;

use super::{GradientTransformation, count, safe_increment, tree_utils, zeros_in};
use crate::check::positive;

/// See [`multi_steps`].
#[derive(Tree, Clone, Debug)]
pub struct MultiSteps<T> {
    /// The optimizer.
    pub inner: T,
    /// How many gradients make an update.
    pub every: usize,
    /// Whether the optimizer gets their mean, or their sum. Default true.
    pub use_grad_mean: bool,
    /// The dtype in which they are added up. Default float32.
    #[tree(static)]
    pub accumulator_dtype: DType,
}

/// The state of [`MultiSteps`].
#[derive(Tree, Clone, Debug)]
pub struct MultiStepsState<P, S> {
    /// Gradients since the last update, int32.
    pub mini_step: Array,
    /// Updates made, int32.
    pub gradient_step: Array,
    /// The state of the optimizer.
    pub inner_state: S,
    /// The mean of the gradients since the last update.
    pub acc_grads: P,
}

/// The inner optimizer, applied once in `every` calls to the mean of their gradients; in between updates are zero.
///
/// Call it on every micro-batch; [`apply_updates`](super::apply_updates) of zeros changes nothing. `every` is at least 1.
pub fn multi_steps<T>(inner: T, every: usize) -> MultiSteps<T> {
    MultiSteps { inner, every, use_grad_mean: true, accumulator_dtype: DType::F32 }
}

impl<P: Tree, T: GradientTransformation<P>> GradientTransformation<P> for MultiSteps<T> {
    type State = MultiStepsState<P, T::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        positive("multi_steps", "every", self.every)?;
        Ok(MultiStepsState {
            mini_step: count(),
            gradient_step: count(),
            inner_state: self.inner.init(params)?,
            acc_grads: zeros_in(params, Some(self.accumulator_dtype))?,
        })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let MultiStepsState { mini_step, gradient_step, inner_state, acc_grads } = state;
        let seen = safe_increment(&mini_step);
        let add = |g: Array, acc: Array| match self.use_grad_mean {
            true => &acc + (g - &acc) / &seen,
            false => g + acc,
        };
        let mean = tree::map2(add, grads.clone(), acc_grads)?;
        let emit = seen.equal(self.every);
        // The inner update is small beside a gradient: computing it every time is simpler than branching.
        let (updates, next) = self.inner.update(tree_utils::cast_like(&mean, &grads)?, inner_state.clone(), params)?;
        let acc_grads = tree::map(|acc| where_(&emit, 0, &acc).astype(self.accumulator_dtype), mean)?;
        Ok((
            tree::map(|u| where_(&emit, &u, 0).astype(u.dtype()), updates)?,
            MultiStepsState {
                mini_step: where_(&emit, 0, &seen),
                gradient_step: where_(&emit, safe_increment(&gradient_step), &gradient_step),
                inner_state: tree::map2(|new, old| where_(&emit, new, &old).astype(old.dtype()), next, inner_state)?,
                acc_grads,
            },
        ))
    }
}
