//! Transformations that are applied only at some steps.

use std::sync::Arc;

use shardax::prelude::*;

use super::{GradientTransformation, count, safe_increment};
use crate::shared::Shared;

/// The gradient transformation that [`apply_if_finite`] returns.
#[derive(Tree, Clone, Debug)]
pub struct ApplyIfFinite<T> {
    /// The optimizer.
    pub inner: T,
    /// The number of consecutive gradients with a NaN or an infinity that are skipped at most.
    pub max_consecutive_errors: usize,
}

/// The state of [`ApplyIfFinite`].
#[derive(Tree, Clone, Debug)]
pub struct ApplyIfFiniteState<S> {
    /// The number of consecutive gradients that were not finite, int32.
    pub notfinite_count: Array,
    /// True if the last gradients were finite.
    pub last_finite: Array,
    /// The number of all gradients that were not finite, int32.
    pub total_notfinite: Array,
    /// The state of the optimizer.
    pub inner_state: S,
}

/// Skips the steps whose gradients have a NaN or an infinity: updates are zero, and the optimizer's state does not
/// change.
///
/// After more than `max_consecutive_errors` such steps in a row, it no longer skips them, as in Optax. The parameters
/// and the state are NaN from then on, so you should stop the run.
///
/// ```
/// use shardax_nn::optim::apply_if_finite;
/// use shardax_nn::prelude::*;
/// let state = TrainState::create(ones([1]), apply_if_finite(adam(0.1), 5))?;
/// let state = state.apply_gradients(array([f32::NAN]))?;
/// assert_eq!(state.params.to_vec::<f32>()?, [1.0]);
/// assert_eq!(state.opt_state.total_notfinite.item::<i32>()?, 1);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn apply_if_finite<T>(inner: T, max_consecutive_errors: usize) -> ApplyIfFinite<T> {
    ApplyIfFinite { inner, max_consecutive_errors }
}

impl<P: Tree, T: GradientTransformation<P>> GradientTransformation<P> for ApplyIfFinite<T> {
    type State = ApplyIfFiniteState<T::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        Ok(ApplyIfFiniteState {
            notfinite_count: count(),
            last_finite: array(true),
            total_notfinite: count(),
            inner_state: self.inner.init(params)?,
        })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let finite = tree::leaves(&grads).iter().map(|g| g.isfinite().all(..)).reduce(|a, b| a & b);
        let last_finite = finite.unwrap_or_else(|| array(true));
        let notfinite_count = where_(&last_finite, 0, safe_increment(&state.notfinite_count));
        let total = &state.total_notfinite;
        let total_notfinite = where_(&last_finite, total, safe_increment(total));
        let (updates, next_state) = self.inner.update(grads, state.inner_state.clone(), params)?;
        let limit = i32::try_from(self.max_consecutive_errors).unwrap_or(i32::MAX);
        let apply = &last_finite | notfinite_count.greater(limit);
        let updates = tree::map(|u| where_(&apply, &u, zeros_like(&u)), updates)?;
        let inner_state = tree::map2(|new, old| where_(&apply, new, old), next_state, state.inner_state)?;
        Ok((updates, ApplyIfFiniteState { notfinite_count, last_finite, total_notfinite, inner_state }))
    }
}

/// A predicate of the step, an int32 scalar.
type Condition = Shared<dyn Fn(&Array) -> Array + Send + Sync>;

/// See [`conditionally_transform`] and [`conditionally_mask`].
#[derive(Tree, Clone, Debug)]
pub struct Conditionally<T> {
    /// The transformation that is applied at some steps.
    pub inner: T,
    #[tree(static)]
    condition: Condition,
    otherwise_zero: bool,
}

/// The state of [`Conditionally`].
#[derive(Tree, Clone, Debug)]
pub struct ConditionallyState<S> {
    /// The state of the transformation. It changes only at the steps at which the transformation is applied.
    pub inner_state: S,
    /// The steps taken, int32.
    pub step: Array,
}

/// Applies `inner` at the steps for which `should_transform` returns true. At other steps, the updates do not change.
///
/// You should create it once, because programs are compiled again for every transformation that is created this way.
///
/// ```
/// use shardax_nn::optim::conditionally_transform;
/// use shardax_nn::prelude::*;
/// // Weight decay at every second step.
/// let decay = conditionally_transform(add_decayed_weights(0.1), |step| remainder(step, 2).equal(0));
/// let state = TrainState::create(ones([1]), (decay, sgd(1.0)))?;
/// let state = state.apply_gradients(zeros([1]))?.apply_gradients(zeros([1]))?;
/// assert_eq!(state.params.to_vec::<f32>()?, [0.9]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn conditionally_transform<T>(
    inner: T,
    should_transform: impl Fn(&Array) -> Array + Send + Sync + 'static,
) -> Conditionally<T> {
    Conditionally { inner, condition: Shared(Arc::new(should_transform)), otherwise_zero: false }
}

/// Applies `inner` at the steps for which `should_transform` returns true. At other steps, the updates are zero.
pub fn conditionally_mask<T>(
    inner: T,
    should_transform: impl Fn(&Array) -> Array + Send + Sync + 'static,
) -> Conditionally<T> {
    Conditionally { otherwise_zero: true, ..conditionally_transform(inner, should_transform) }
}

impl<P: Tree, T: GradientTransformation<P>> GradientTransformation<P> for Conditionally<T> {
    type State = ConditionallyState<T::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        Ok(ConditionallyState { inner_state: self.inner.init(params)?, step: count() })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let apply = (self.condition.0)(&state.step);
        let (updates, next_state) = self.inner.update(grads.clone(), state.inner_state.clone(), params)?;
        let skipped = if self.otherwise_zero { tree::map(|g| zeros_like(&g), grads)? } else { grads };
        let updates = tree::map2(|new, old| where_(&apply, new, old), updates, skipped)?;
        let inner_state = tree::map2(|new, old| where_(&apply, new, old), next_state, state.inner_state)?;
        Ok((updates, ConditionallyState { inner_state, step: safe_increment(state.step) }))
    }
}
