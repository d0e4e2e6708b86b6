//! Sharpness-aware minimization: the gradient at the worst point nearby.

use shardax::prelude::*;

use super::{GradientTransformation, count};
use crate::check::positive;

/// The gradient transformation that [`sam`] returns.
#[derive(Tree, Clone, Debug)]
pub struct Sam<T, A> {
    /// The optimizer of the parameters.
    pub optimizer: T,
    /// The optimizer that finds the worst point. The signs of its updates are flipped.
    pub adv_optimizer: A,
    /// The number of calls per step. Default 2.
    pub sync_period: usize,
    /// Resets the state of `adv_optimizer` at each step. Default true.
    pub reset_state: bool,
}

/// The state of [`Sam`].
#[derive(Tree, Clone, Debug)]
pub struct SamState<P, S, A> {
    /// The calls since the last step, int32.
    pub steps_since_sync: Array,
    /// The state of the optimizer.
    pub opt_state: S,
    /// The state of `adv_optimizer`.
    pub adv_state: A,
    /// The parameters around which the worst point is searched.
    pub cache: P,
}

/// Applies the optimizer to the gradients at the worst point nearby, which `adv_optimizer` finds. The first of two calls
/// moves the parameters to this point. The second call moves them back and makes the step.
///
/// Source: [Foret et al. 2020](https://arxiv.org/abs/2010.01412).
///
/// ```
/// use shardax_nn::optim::{normalize, sam};
/// use shardax_nn::prelude::*;
/// let optimizer = sam(sgd(0.5), (normalize(), sgd(0.25)));
/// let mut state = TrainState::create(array([1.0f32]), optimizer)?;
/// state = state.apply_gradients(array([1.0f32]))?;
/// assert_eq!(state.params.to_vec::<f32>()?, [1.25]);
/// state = state.apply_gradients(array([1.0f32]))?;
/// assert_eq!(state.params.to_vec::<f32>()?, [0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn sam<T, A>(optimizer: T, adv_optimizer: A) -> Sam<T, A> {
    Sam { optimizer, adv_optimizer, sync_period: 2, reset_state: true }
}

/// Returns the tree `yes` if the condition holds, otherwise `no`.
fn pick<P: Tree>(condition: &Array, yes: P, no: P) -> Result<P> {
    tree::map2(|yes, no| where_(condition, &yes, no).astype(yes.dtype()), yes, no)
}

impl<P: Tree, T: GradientTransformation<P>, A: GradientTransformation<P>> GradientTransformation<P> for Sam<T, A> {
    type State = SamState<P, T::State, A::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        positive("sam", "sync_period", self.sync_period)?;
        Ok(SamState {
            steps_since_sync: count(),
            opt_state: self.optimizer.init(params)?,
            adv_state: self.adv_optimizer.init(params)?,
            cache: params.clone(),
        })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let SamState { steps_since_sync, opt_state, adv_state, cache } = state;
        let (first, last) = (steps_since_sync.equal(0), steps_since_sync.equal(self.sync_period.saturating_sub(1)));
        // Both optimizers run at every step, and the counter selects the results.
        let (away, adv_next) = self.adv_optimizer.update(grads.clone(), adv_state.clone(), params)?;
        let away = tree::map(|u| -u, away)?;
        let (step, opt_next) = self.optimizer.update(grads, opt_state.clone(), &cache)?;
        let step = tree::map3(|c, p, u| c - p + u, cache.clone(), params.clone(), step)?;
        let adv_after = if self.reset_state { self.adv_optimizer.init(params)? } else { adv_state };
        let state = SamState {
            steps_since_sync: where_(&last, 0, steps_since_sync + 1),
            opt_state: pick(&last, opt_next, opt_state)?,
            adv_state: pick(&last, adv_after, adv_next)?,
            cache: pick(&first, params.clone(), cache)?,
        };
        Ok((pick(&last, step, away)?, state))
    }
}
