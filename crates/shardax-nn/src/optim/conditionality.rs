//! Transformations that are applied only at some steps.

use shardax::prelude::*;

use super::{GradientTransformation, count, safe_increment};

/// See [`apply_if_finite`].
#[derive(Tree, Clone, Debug)]
pub struct ApplyIfFinite<T> {
    /// The optimizer.
    pub inner: T,
    /// After so many bad gradients in a row they are let through.
    pub max_consecutive_errors: usize,
}

/// The state of [`ApplyIfFinite`].
#[derive(Tree, Clone, Debug)]
pub struct ApplyIfFiniteState<S> {
    /// Gradients in a row that were not finite, int32.
    pub notfinite_count: Array,
    /// Whether the last were finite.
    pub last_finite: Array,
    /// All that were not finite, int32.
    pub total_notfinite: Array,
    /// The state of the optimizer.
    pub inner_state: S,
}

/// Leaves out the steps whose gradients have a NaN or an infinity: updates are zero, and the optimizer's state stays;
/// until there were more than `max_consecutive_errors` in a row.
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
        let (updates, next) = self.inner.update(grads, state.inner_state.clone(), params)?;
        let limit = i32::try_from(self.max_consecutive_errors).unwrap_or(i32::MAX);
        let apply = &last_finite | notfinite_count.greater(limit);
        let updates = tree::map(|u| where_(&apply, &u, zeros_like(&u)), updates)?;
        let inner_state = tree::map2(|new, old| where_(&apply, new, old), next, state.inner_state)?;
        Ok((updates, ApplyIfFiniteState { notfinite_count, last_finite, total_notfinite, inner_state }))
    }
}
