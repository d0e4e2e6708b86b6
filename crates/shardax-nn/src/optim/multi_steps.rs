//! Gradient accumulation as a transformation.

use shardax::prelude::*;

use super::{GradientTransformation, count, zeros_of};

/// See [`multi_steps`].
#[derive(Tree, Clone, Debug)]
pub struct MultiSteps<T> {
    pub inner: T,
    pub every: usize,
}

/// The state of [`MultiSteps`].
#[derive(Tree, Clone, Debug)]
pub struct MultiStepsState<P, S> {
    /// Gradients since the last update, int32.
    pub mini_step: Array,
    /// Updates made, int32.
    pub gradient_step: Array,
    pub inner_state: S,
    /// The mean of the gradients since the last update.
    pub acc_grads: P,
}

/// The inner optimizer, applied once in `every` calls to the mean of their gradients; in between updates are zero.
///
/// Call it on every micro-batch; [`apply_updates`](super::apply_updates) of zeros changes nothing.
pub fn multi_steps<T>(inner: T, every: usize) -> MultiSteps<T> {
    MultiSteps { inner, every: every.max(1) }
}

impl<P: Tree, T: GradientTransformation<P>> GradientTransformation<P> for MultiSteps<T> {
    type State = MultiStepsState<P, T::State>;

    fn init(&self, params: &P) -> Result<Self::State> {
        Ok(MultiStepsState {
            mini_step: count(),
            gradient_step: count(),
            inner_state: self.inner.init(params)?,
            acc_grads: zeros_of(params)?,
        })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let MultiStepsState { mini_step, gradient_step, inner_state, acc_grads } = state;
        let seen = &mini_step + 1;
        let mean = tree::map2(|g, acc| &acc + (g - &acc) / seen.astype(acc.dtype()), grads, acc_grads)?;
        let emit = seen.equal(self.every);
        // The inner update is small beside a gradient: computing it every time is simpler than branching.
        let (updates, next) = self.inner.update(mean.clone(), inner_state.clone(), params)?;
        Ok((
            tree::map(|u| where_(&emit, &u, 0).astype(u.dtype()), updates)?,
            MultiStepsState {
                mini_step: where_(&emit, 0, &seen),
                gradient_step: where_(&emit, &gradient_step + 1, &gradient_step),
                inner_state: tree::map2(|new, old| where_(&emit, new, old), next, inner_state)?,
                acc_grads: tree::map(|acc| where_(&emit, 0, &acc).astype(acc.dtype()), mean)?,
            },
        ))
    }
}
