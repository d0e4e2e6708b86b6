//! Gradient accumulation as a transformation.

use shardax::prelude::*;

use super::{GradientTransformation, count, safe_increment, tree_utils, zeros_in};
use crate::check::positive;

/// The gradient transformation that [`multi_steps`] returns.
#[derive(Tree, Clone, Debug)]
pub struct MultiSteps<T> {
    /// The optimizer.
    pub inner: T,
    /// The number of gradients per update.
    pub every: usize,
    /// Passes the mean of the gradients to the optimizer if true, otherwise their sum. Default true.
    pub use_grad_mean: bool,
    /// The dtype in which gradients are added up. Wider gradients keep their dtype. Default float32.
    #[tree(static)]
    pub accumulator_dtype: DType,
    /// The condition under which gradients are skipped. Default none.
    pub should_skip: Option<SkipUpdate>,
}

/// The condition under which [`MultiSteps`] skips gradients, as if the step had not happened.
#[derive(Tree, Clone, Copy, Debug, PartialEq)]
pub enum SkipUpdate {
    /// Gradients with a NaN or an infinity.
    NotFinite,
    /// Gradients whose sum of squares is at least this.
    Large {
        /// The bound.
        max_squared_norm: f64,
    },
}

/// The last decision of [`MultiSteps`] to skip gradients.
#[derive(Tree, Clone, Debug)]
pub struct SkipState {
    /// The number of elements that were not finite, int32, or the sum of squares.
    pub measure: Array,
    /// True if the gradients were skipped.
    pub should_skip: Array,
}

/// Skips gradients with a NaN or an infinity.
///
/// ```
/// use shardax_nn::optim::{MultiSteps, skip_not_finite};
/// use shardax_nn::prelude::*;
/// let optimizer = MultiSteps { should_skip: Some(skip_not_finite()), ..multi_steps(sgd(0.1), 2) };
/// let state = TrainState::create(ones([1]), optimizer)?;
/// let state = state.apply_gradients(array([f32::NAN]))?;
/// assert_eq!(state.opt_state.mini_step.item::<i32>()?, 0);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn skip_not_finite() -> SkipUpdate {
    SkipUpdate::NotFinite
}

/// Skips gradients whose sum of squares is at least `max_squared_norm`.
pub fn skip_large_updates(max_squared_norm: f64) -> SkipUpdate {
    SkipUpdate::Large { max_squared_norm }
}

impl SkipUpdate {
    fn of<P: Tree>(self, grads: &P) -> SkipState {
        let leaves = tree::leaves(grads);
        match self {
            SkipUpdate::NotFinite => {
                let bad = leaves.iter().map(|g| (!g.isfinite()).astype(DType::I32).sum(..));
                let measure = bad.reduce(|a, b| a + b).unwrap_or_else(count);
                SkipState { should_skip: measure.greater(0), measure }
            }
            SkipUpdate::Large { max_squared_norm } => {
                let measure = tree_utils::total(leaves.iter().map(|g| tree_utils::abs_sq(g).sum(..)));
                // True for NaN too.
                SkipState { should_skip: !measure.less(max_squared_norm), measure }
            }
        }
    }
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
    /// The last decision to skip gradients; `None` if none are ever skipped.
    pub skip_state: Option<SkipState>,
}

/// Applies the inner optimizer once in `every` calls, to the mean of their gradients. The updates of the other calls are
/// zero.
///
/// Call it for every micro-batch, because [`apply_updates`](super::apply_updates) of zeros changes nothing. `every` must be at
/// least 1.
///
/// ```
/// use shardax_nn::optim::multi_steps;
/// use shardax_nn::prelude::*;
/// let state = TrainState::create(array([1.0f32]), multi_steps(sgd(0.5), 2))?;
/// let state = state.apply_gradients(array([1.0f32]))?;
/// assert_eq!(state.params.to_vec::<f32>()?, [1.0]); // the first of two
/// let state = state.apply_gradients(array([3.0f32]))?;
/// assert_eq!(state.params.to_vec::<f32>()?, [0.0]); // 1 - 0.5 * (1 + 3) / 2
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn multi_steps<T>(inner: T, every: usize) -> MultiSteps<T> {
    MultiSteps { inner, every, use_grad_mean: true, accumulator_dtype: DType::F32, should_skip: None }
}

impl<T> MultiSteps<T> {
    /// The name of Optax's class, for [`multi_steps`].
    pub fn new(inner: T, every: usize) -> Self {
        multi_steps(inner, every)
    }

    /// Returns true, as an array, if the last call applied the inner optimizer.
    ///
    /// ```
    /// use shardax_nn::optim::MultiSteps;
    /// use shardax_nn::prelude::*;
    /// let (params, optimizer) = (ones([1]), MultiSteps::new(sgd(0.5), 2));
    /// let (_, state) = optimizer.update(ones([1]), optimizer.init(&params)?, &params)?;
    /// assert!(!optimizer.has_updated(&state).item::<bool>()?);
    /// let (_, state) = optimizer.update(ones([1]), state, &params)?;
    /// assert!(optimizer.has_updated(&state).item::<bool>()?);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn has_updated<P, S>(&self, state: &MultiStepsState<P, S>) -> Array {
        state.mini_step.equal(0) & state.gradient_step.greater(0)
    }

    /// Converts an accumulator to the dtype in which gradients of this dtype are added up.
    fn wide(&self, accumulator: &Array, dtype: DType) -> Array {
        let wide = shardax::dtype::promote((self.accumulator_dtype, false), (dtype, false));
        accumulator.astype(wide.map_or(self.accumulator_dtype, |(dtype, _)| dtype))
    }
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
            acc_grads: tree::map2(|acc, p| self.wide(&acc, p.dtype()), zeros_in(params, None)?, params.clone())?,
            skip_state: self.should_skip.map(|skip| tree_utils::zeros_like(params).map(|g| skip.of(&g))).transpose()?,
        })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let MultiStepsState { mini_step, gradient_step, inner_state, acc_grads, .. } = state;
        let mini_steps = safe_increment(&mini_step);
        let mean = tree::map2(
            |g: Array, acc: Array| {
                if self.use_grad_mean {
                    &acc + (g.astype(acc.dtype()) - &acc) / mini_steps.astype(acc.dtype())
                } else {
                    g.astype(acc.dtype()) + acc
                }
            },
            grads.clone(),
            acc_grads.clone(),
        )?;
        let skip_state = self.should_skip.map(|skip| skip.of(&grads));
        let mut emit = mini_steps.equal(self.every);
        if let Some(skip) = &skip_state {
            emit = emit & !&skip.should_skip;
        }
        // The inner update is computed every time, because it is cheap compared with a gradient, and a branch would be more
        // complex.
        let (updates, next) = self.inner.update(tree_utils::cast_like(&mean, &grads)?, inner_state.clone(), params)?;
        let acc_next = tree::map(|acc| where_(&emit, 0, &acc).astype(acc.dtype()), mean)?;
        let mini_next = where_(&emit, 0, &mini_steps);
        let (mini_step, acc_grads) = match &skip_state {
            Some(SkipState { should_skip, .. }) => (
                where_(should_skip, mini_step, mini_next),
                tree::map2(|old, new| where_(should_skip, old, new), acc_grads, acc_next)?,
            ),
            None => (mini_next, acc_next),
        };
        Ok((
            tree::map(|u| where_(&emit, &u, 0).astype(u.dtype()), updates)?,
            MultiStepsState {
                mini_step,
                gradient_step: where_(&emit, safe_increment(&gradient_step), &gradient_step),
                inner_state: tree::map2(|new, old| where_(&emit, new, &old).astype(old.dtype()), next, inner_state)?,
                acc_grads,
                skip_state,
            },
        ))
    }
}
