//! Slow parameters that follow fast ones.

use shardax::prelude::*;

use super::{GradientTransformation, count};
use crate::check::{FINITE, positive, within};

/// The gradient transformation that [`lookahead`] returns.
#[derive(Tree, Clone, Debug)]
pub struct Lookahead<T> {
    /// The optimizer of the fast parameters.
    pub fast_optimizer: T,
    /// The number of steps after which the slow parameters are updated, and the fast parameters are set to them.
    pub sync_period: usize,
    /// The fraction of the distance to the fast parameters that the slow parameters are moved.
    pub slow_step_size: f64,
    /// Resets the optimizer's state at each synchronization. Default false.
    pub reset_state: bool,
}

/// The parameters of [`lookahead`]. The loss is a function of `fast`; evaluate the model with `slow`. The gradients of
/// `slow` are zero.
#[derive(Tree, Clone, Debug)]
pub struct LookaheadParams<P> {
    /// The parameters that each step changes.
    pub fast: P,
    /// The parameters that each synchronization changes.
    pub slow: P,
}

impl<P: Clone> LookaheadParams<P> {
    /// Sets both to `params`.
    pub fn init_synced(params: P) -> Self {
        LookaheadParams { fast: params.clone(), slow: params }
    }
}

/// The state of [`Lookahead`].
#[derive(Tree, Clone, Debug)]
pub struct LookaheadState<S> {
    /// The state of the fast optimizer.
    pub fast_state: S,
    /// Steps since the last synchronization, int32.
    pub steps_since_sync: Array,
}

/// Updates fast parameters with an optimizer. Every `sync_period` steps, the slow parameters are moved part of the way to
/// the fast ones, and the fast parameters continue at the slow ones.
///
/// Source: [Zhang et al. 2019](https://arxiv.org/abs/1907.08610).
///
/// ```
/// use shardax_nn::optim::{LookaheadParams, lookahead};
/// use shardax_nn::prelude::*;
/// let params = LookaheadParams::init_synced(array([1.0f32]));
/// let mut state = TrainState::create(params, lookahead(sgd(0.1), 2, 0.5))?;
/// for _ in 0..2 {
///     let grads = grad(|params: LookaheadParams<Array>| params.fast.sum(..)).call(state.params.clone())?;
///     state = state.apply_gradients(grads)?;
/// }
/// assert!(allclose(&state.params.slow, array([0.9f32]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn lookahead<T>(fast_optimizer: T, sync_period: usize, slow_step_size: f64) -> Lookahead<T> {
    Lookahead { fast_optimizer, sync_period, slow_step_size, reset_state: false }
}

impl<P: Tree, T: GradientTransformation<P>> GradientTransformation<LookaheadParams<P>> for Lookahead<T> {
    type State = LookaheadState<T::State>;

    #[track_caller]
    fn init(&self, params: &LookaheadParams<P>) -> Result<Self::State> {
        positive("lookahead", "sync_period", self.sync_period)?;
        within("lookahead", "slow_step_size", self.slow_step_size, FINITE)?;
        Ok(LookaheadState { fast_state: self.fast_optimizer.init(&params.fast)?, steps_since_sync: count() })
    }

    fn update(
        &self,
        grads: LookaheadParams<P>,
        state: Self::State,
        params: &LookaheadParams<P>,
    ) -> Result<(LookaheadParams<P>, Self::State)> {
        let (updates, fast_state) = self.fast_optimizer.update(grads.fast, state.fast_state, &params.fast)?;
        let sync = state.steps_since_sync.equal(self.sync_period as i32 - 1);
        // The slow parameters follow the fast ones by a part of the distance, and the fast ones return to them.
        let distance = tree::map3(|f, u, s| f + u - s, params.fast.clone(), updates.clone(), params.slow.clone())?;
        let (part, rest) = (self.slow_step_size, 1.0 - self.slow_step_size);
        let slow = tree::map(|distance| where_(&sync, &distance * part, zeros_like(&distance)), distance.clone())?;
        let fast = tree::map2(|u, distance| where_(&sync, &u - distance * rest, &u), updates, distance)?;
        let fast_state = if self.reset_state {
            let initial = self.fast_optimizer.init(&params.fast)?;
            tree::map2(|state, initial| where_(&sync, initial, state), fast_state, initial)?
        } else {
            fast_state
        };
        let steps_since_sync = remainder(state.steps_since_sync + 1, self.sync_period);
        Ok((LookaheadParams { fast, slow }, LookaheadState { fast_state, steps_since_sync }))
    }
}
