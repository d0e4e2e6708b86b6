//! Transformations that use the loss together with its gradient: [`update_with_value`](ReduceOnPlateau::update_with_value).

use shardax::prelude::*;

use super::super::tree_utils::{NormOptions, cast_like, scale};
use super::{estimate, safe_increment, wide_dtype};
use crate::check::{NOT_NEGATIVE, positive, within};
use crate::optim::count;
use crate::optim::tree_utils::MixedDtype;

/// The gradient transformation that [`reduce_on_plateau`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ReduceOnPlateau {
    /// The factor of the scale after a plateau. Default 0.1.
    pub factor: f64,
    /// The number of values without improvement that make a plateau. Default 10.
    pub patience: usize,
    /// The relative decrease that counts as an improvement. Default 1e-4.
    pub rtol: f64,
    /// The absolute decrease that is required in addition. Default 0.
    pub atol: f64,
    /// The number of values after a reduction that are ignored. Default 0.
    pub cooldown: usize,
    /// The number of values that are averaged to one. Default 1.
    pub accumulation_size: usize,
    /// The minimum of the scale. Default 0.
    pub min_scale: f64,
}

/// Writes methods that set fields.
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)*) => {
        impl ReduceOnPlateau {
            $(
                $(#[$doc])*
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}

setters! {
    /// Sets the factor of the scale after a plateau. Default 0.1.
    factor: f64,
    /// Sets the number of values without improvement that make a plateau. Default 10.
    patience: usize,
    /// Sets the relative decrease that counts as an improvement. Default 1e-4.
    rtol: f64,
    /// Sets the absolute decrease that is required in addition. Default 0.
    atol: f64,
    /// Sets the number of values after a reduction that are ignored. Default 0.
    cooldown: usize,
    /// Sets the number of values that are averaged to one. Default 1.
    accumulation_size: usize,
    /// Sets the minimum of the scale. Default 0.
    min_scale: f64,
}

/// The state of [`ReduceOnPlateau`].
#[derive(Tree, Clone, Debug)]
pub struct ReduceOnPlateauState {
    /// The factor of updates.
    pub scale: Array,
    /// The best value.
    pub best_value: Array,
    /// The number of values without improvement, int32.
    pub plateau_count: Array,
    /// The number of values that are still ignored, int32.
    pub cooldown_count: Array,
    /// The number of values in the mean, int32.
    pub count: Array,
    /// The mean of these values.
    pub avg_value: Array,
}

/// Scales updates by a factor, and reduces the factor when the loss stagnates. You must pass the loss to
/// [`update_with_value`](ReduceOnPlateau::update_with_value).
///
/// ```
/// use shardax_nn::optim::contrib::reduce_on_plateau;
/// use shardax_nn::prelude::*;
/// let plateau = reduce_on_plateau().patience(1);
/// let mut state = plateau.init(&ones([2]))?;
/// let mut updates = ones([2]);
/// for loss in [1.0f32, 1.0] {
///     (updates, state) = plateau.update_with_value(ones([2]), state, loss)?;
/// }
/// assert!(allclose(updates, full([2], 0.1f32), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn reduce_on_plateau() -> ReduceOnPlateau {
    ReduceOnPlateau {
        factor: 0.1,
        patience: 10,
        rtol: 1e-4,
        atol: 0.0,
        cooldown: 0,
        accumulation_size: 1,
        min_scale: 0.0,
    }
}

impl ReduceOnPlateau {
    /// Returns the state before the first value.
    ///
    /// # Errors
    /// Returns an error if an option is out of its range, or if the dtypes of the parameters have no order.
    #[track_caller]
    pub fn init<P: Tree>(&self, params: &P) -> Result<ReduceOnPlateauState> {
        let owner = "reduce_on_plateau";
        within(owner, "factor", self.factor, f64::MIN_POSITIVE..1.0)?;
        within(owner, "rtol", self.rtol, 0.0..=1.0)?;
        within(owner, "atol", self.atol, NOT_NEGATIVE)?;
        within(owner, "rtol + atol", self.rtol + self.atol, f64::MIN_POSITIVE..f64::INFINITY)?;
        positive(owner, "accumulation_size", self.accumulation_size)?;
        let highest = wide_dtype(MixedDtype::Highest.dtype(params)?);
        Ok(ReduceOnPlateauState {
            scale: estimate(params, 1.0)?,
            best_value: shardax::numpy::full_dtype((), f64::INFINITY, highest),
            plateau_count: count(),
            cooldown_count: count(),
            count: count(),
            avg_value: shardax::numpy::full_dtype((), 0.0, highest),
        })
    }

    /// Returns the scaled updates and the next state for this value of the loss.
    ///
    /// # Errors
    /// Returns an error if an array of the updates failed, or if `value` is not a scalar.
    #[track_caller]
    pub fn update_with_value<P: Tree>(
        &self,
        updates: P,
        state: ReduceOnPlateauState,
        value: impl ArrayLike,
    ) -> Result<(P, ReduceOnPlateauState)> {
        let count = safe_increment(&state.count);
        let value = value.into_array().astype(state.avg_value.dtype());
        let mean = ((&state.count * &state.avg_value + value) / &count).astype(state.avg_value.dtype());
        let is_full = count.equal(self.accumulation_size);
        let is_better = mean.less((1.0 - self.rtol) * &state.best_value - self.atol);
        let plateau = where_(&is_better, 0, safe_increment(&state.plateau_count));
        let is_ignored = state.cooldown_count.greater(0);
        let reached = plateau.equal(self.patience) & !&is_ignored;
        let reduced = where_(&reached, &state.scale * self.factor, &state.scale).maximum(self.min_scale);
        let reduced = where_(&is_ignored, &state.scale, reduced);
        let cooldown = where_(&is_ignored, &state.cooldown_count - 1, where_(&reached, self.cooldown as i32, 0));
        let plateau = where_(&is_ignored | &reached, 0, plateau);
        // Between two means, the state does not change.
        let state = ReduceOnPlateauState {
            scale: choose(&is_full, reduced, &state.scale),
            best_value: choose(&is_full, where_(is_better, &mean, &state.best_value), &state.best_value),
            plateau_count: choose(&is_full, plateau, &state.plateau_count),
            cooldown_count: choose(&is_full, cooldown, &state.cooldown_count),
            count: where_(&is_full, 0, &count).astype(DType::I32),
            avg_value: where_(&is_full, 0, &mean).astype(mean.dtype()),
        };
        Ok((cast_like(&scale(&state.scale, &updates)?, &updates)?, state))
    }
}

/// The gradient transformation that [`scale_by_polyak`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByPolyak {
    /// The minimum of the loss, if you know it. Default 0.
    pub f_min: f64,
    /// The largest learning rate. Default 1.
    pub max_learning_rate: f64,
    /// Added to the squared norm. Default 0.
    pub eps: f64,
    /// Treats values below `f_min` as `f_min`: Optax's variant `sps+`. Default false.
    pub clamp: bool,
}

/// Scales by Polyak's step: the difference between the loss and its least value, divided by the squared norm of the gradient.
///
/// Source: [Loizou et al. 2020](https://arxiv.org/abs/2002.10542).
pub fn scale_by_polyak() -> ScaleByPolyak {
    ScaleByPolyak { f_min: 0.0, max_learning_rate: 1.0, eps: 0.0, clamp: false }
}

impl ScaleByPolyak {
    /// Returns the scaled updates for this value of the loss. Their signs do not change.
    ///
    /// # Errors
    /// Returns an error if an array of the updates failed, or if `value` is not a scalar.
    #[track_caller]
    pub fn update_with_value<P: Tree>(&self, updates: P, value: impl ArrayLike) -> Result<P> {
        let square = NormOptions::new().squared(true).norm(&updates);
        let gap = (value.into_array() - self.f_min).astype(square.dtype());
        let gap = if self.clamp { gap.maximum(0) } else { gap };
        let below = &square + self.eps;
        let is_zero = below.less_equal(f64::from(f32::EPSILON));
        let step = where_(&is_zero, 0, minimum(gap / where_(&is_zero, 1, below), self.max_learning_rate));
        cast_like(&scale(step.astype(square.dtype()), &updates)?, &updates)
    }
}

/// Returns the updates of stochastic gradient descent with Polyak's step, for these gradients at this value of the loss, with
/// the defaults of [`scale_by_polyak`].
///
/// ```
/// use shardax_nn::optim::contrib::polyak_sgd;
/// use shardax_nn::prelude::*;
/// let params = array([1.0f32, 2.0]);
/// // The loss is the sum of squares.
/// let updates = polyak_sgd(2.0 * &params, params.square().sum(..))?;
/// assert_eq!(apply_updates(params, updates)?.to_vec::<f32>()?, [0.5, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the gradients failed, or if `value` is not a scalar.
#[track_caller]
pub fn polyak_sgd<P: Tree>(grads: P, value: impl ArrayLike) -> Result<P> {
    scale_by_polyak().update_with_value(scale(-1.0, &grads)?, value)
}

fn choose(is_new: &Array, new: Array, old: &Array) -> Array {
    where_(is_new, new, old).astype(old.dtype())
}
