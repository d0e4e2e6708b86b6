//! Schedule-free optimizers: an average of the iterates in place of a learning rate that decays.

use shardax::prelude::*;

use super::{
    AddDecayedWeights, GradientTransformation, ScaleByLearningRate, ScaleByRms, Schedule, WeightDecayOptions,
    add_decayed_weights, apply_updates, in_wide_dtypes, safe_increment, scalar_dtype, scale_by_learning_rate,
    scale_by_rms, tree_utils, wide_dtype, widened,
};
use crate::Filter;
use crate::check::{NOT_NEGATIVE, within};

/// The gradient transformation that [`schedule_free`] returns.
#[derive(Tree, Clone, Debug)]
pub struct ScheduleFree<T> {
    /// The optimizer, without momentum.
    pub base_optimizer: T,
    /// Its learning rate.
    pub learning_rate: Schedule,
    /// The weight of the average in the point at which gradients are computed. Default 0.9.
    pub b1: f64,
    /// The exponent of an iterate's weight, a power of the largest learning rate so far. Default 2.
    pub weight_lr_power: f64,
    /// The dtype of the iterates. Default: the dtype of the parameters, float32 at least.
    #[tree(static)]
    pub state_dtype: Option<DType>,
}

impl<T: WeightDecayOptions> WeightDecayOptions for ScheduleFree<T> {
    type Masked = ScheduleFree<T::Masked>;

    fn weight_decay(self, weight_decay: impl Into<Schedule>) -> Self {
        self.with_base(|base| base.weight_decay(weight_decay))
    }

    fn mask(self, mask: impl Into<Filter>) -> Self::Masked {
        self.with_base(|base| base.mask(mask))
    }
}

impl<T> ScheduleFree<T> {
    /// Replaces the optimizer.
    fn with_base<U>(self, change: impl FnOnce(T) -> U) -> ScheduleFree<U> {
        let ScheduleFree { base_optimizer, learning_rate, b1, weight_lr_power, state_dtype } = self;
        ScheduleFree { base_optimizer: change(base_optimizer), learning_rate, b1, weight_lr_power, state_dtype }
    }
}

/// The state of [`ScheduleFree`].
#[derive(Tree, Clone, Debug)]
pub struct ScheduleFreeState<P, S> {
    /// The share of the average.
    pub b1: Array,
    /// The sum of the weights of all iterates.
    pub weight_sum: Array,
    /// The number of the next step, which counts from 1, int32.
    pub step_count: Array,
    /// The largest learning rate so far.
    pub max_lr: Array,
    /// The state of the optimizer.
    pub base_optimizer_state: S,
    /// The iterates.
    pub z: P,
}

/// Trains without a schedule: the parameters, at which you compute gradients, are between the iterates of `base_optimizer` and
/// their average. You must evaluate the model with the average, which [`schedule_free_eval_params`] returns.
///
/// Source: [Defazio et al. 2024](https://arxiv.org/abs/2405.15682).
pub fn schedule_free<T>(base_optimizer: T, learning_rate: impl Into<Schedule>) -> ScheduleFree<T> {
    ScheduleFree {
        base_optimizer,
        learning_rate: learning_rate.into(),
        b1: 0.9,
        weight_lr_power: 2.0,
        state_dtype: None,
    }
}

/// Returns the parameters for evaluation, the average of all iterates, from the state and the parameters of [`schedule_free`].
///
/// ```
/// use shardax_nn::optim::{schedule_free_eval_params, schedule_free_sgd};
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([1.0f32]), schedule_free_sgd(0.5))?;
/// for gradient in [1.0f32, 1.0] {
///     state = state.apply_gradients(array([gradient]))?;
/// }
/// let average = schedule_free_eval_params(&state.opt_state, &state.params)?;
/// assert!(allclose(average, array([0.25f32]), 1e-6, 0.0)?); // the iterates are 0.5 and 0
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `params` does not have the structure of the parameters from which the state was created.
#[track_caller]
pub fn schedule_free_eval_params<P: Tree, S>(state: &ScheduleFreeState<P, S>, params: &P) -> Result<P> {
    tree::map2(
        |y: Array, z: Array| {
            let (dtype, z) = (y.dtype(), z.astype(wide_dtype(z.dtype())));
            let b1 = state.b1.astype(z.dtype());
            ((y.astype(z.dtype()) - (1.0 - &b1) * z) / b1).astype(dtype)
        },
        params.clone(),
        state.z.clone(),
    )
}

impl<P: Tree, T: GradientTransformation<P>> GradientTransformation<P> for ScheduleFree<T> {
    type State = ScheduleFreeState<P, T::State>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        within("schedule_free", "b1", self.b1, f64::MIN_POSITIVE..=1.0)?;
        within("schedule_free", "weight_lr_power", self.weight_lr_power, NOT_NEGATIVE)?;
        self.learning_rate.check("schedule_free: learning_rate")?;
        let dtype = scalar_dtype(params);
        Ok(ScheduleFreeState {
            b1: zeros_dtype((), dtype) + self.b1,
            weight_sum: zeros_dtype((), dtype),
            step_count: ones_dtype((), DType::I32),
            max_lr: zeros_dtype((), dtype),
            base_optimizer_state: self.base_optimizer.init(params)?,
            z: match self.state_dtype {
                Some(dtype) => tree_utils::cast(params, Some(dtype))?,
                None => widened(params.clone())?,
            },
        })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let rate = match &self.learning_rate {
            Schedule::Constant { value } => value.into_array(),
            schedule => schedule.at_in(&state.step_count, state.max_lr.dtype()).astype(state.max_lr.dtype()),
        };
        let max_lr = maximum(&state.max_lr, rate);
        let weight = power(&max_lr, self.weight_lr_power);
        let weight_sum = &state.weight_sum + &weight;
        let share = &weight / &weight_sum;
        // The share is 0 / 0 while the learning rate is 0.
        let share = where_(share.isnan() & !(weight.isnan() | weight_sum.isnan()), 0, share);
        in_wide_dtypes(grads, params, |grads, params| {
            let (updates, base_optimizer_state) =
                self.base_optimizer.update(grads, state.base_optimizer_state, params)?;
            let z = apply_updates(state.z.clone(), updates)?;
            let old_mean = tree::map2(|y, z| (y - (1.0 - self.b1) * z) / self.b1, params.clone(), state.z)?;
            let mean = tree::map2(
                |x: Array, z: Array| {
                    let share = share.astype(z.dtype());
                    (1 - &share) * x + share * z
                },
                old_mean,
                z.clone(),
            )?;
            let new_params = tree::map2(|x, z| self.b1 * x + (1.0 - self.b1) * z, mean, z.clone())?;
            let updates = tree_utils::sub(&new_params, params)?;
            let step_count = safe_increment(state.step_count);
            Ok((updates, ScheduleFreeState { b1: state.b1, weight_sum, step_count, max_lr, base_optimizer_state, z }))
        })
    }
}

/// The optimizer that [`schedule_free_sgd`] returns.
pub type ScheduleFreeSgd = ScheduleFree<(Option<AddDecayedWeights>, ScaleByLearningRate)>;
/// The optimizer that [`schedule_free_adamw`] returns.
pub type ScheduleFreeAdamW = ScheduleFree<(ScaleByRms, AddDecayedWeights, ScaleByLearningRate)>;

/// Stochastic gradient descent without a schedule: [`schedule_free`] with [`sgd`](super::sgd). For a warmup, use a
/// [`warmup_constant_schedule`](super::warmup_constant_schedule).
///
/// ```
/// use shardax_nn::optim::schedule_free_sgd;
/// use shardax_nn::prelude::*;
/// let state = TrainState::create(array([1.0f32]), schedule_free_sgd(0.5))?;
/// let state = state.apply_gradients(array([1.0f32]))?;
/// assert_eq!(state.params.to_vec::<f32>()?, [0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn schedule_free_sgd(learning_rate: impl Into<Schedule>) -> ScheduleFreeSgd {
    let learning_rate = learning_rate.into();
    schedule_free((None, scale_by_learning_rate(learning_rate.clone())), learning_rate)
}

/// AdamW without a schedule: [`schedule_free`] with AdamW that has no momentum. Optax's default learning rate is 0.0025. The
/// weights do not decay by default: set [`weight_decay`](WeightDecayOptions::weight_decay). For a warmup, use a
/// [`warmup_constant_schedule`](super::warmup_constant_schedule).
///
/// ```
/// use shardax_nn::optim::schedule_free_adamw;
/// use shardax_nn::prelude::*;
/// let optimizer = schedule_free_adamw(warmup_constant_schedule(0.0, 0.0025, 100)).weight_decay(0.1);
/// let state = TrainState::create(array([1.0f32]), optimizer)?;
/// assert_eq!(state.apply_gradients(array([1.0f32]))?.params.shape(), [1]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn schedule_free_adamw(learning_rate: impl Into<Schedule>) -> ScheduleFreeAdamW {
    let learning_rate = learning_rate.into();
    let rms = ScaleByRms { eps_in_sqrt: false, bias_correction: true, ..scale_by_rms(0.999, 1e-8) };
    let decay = add_decayed_weights(0.0);
    schedule_free((rms, decay, scale_by_learning_rate(learning_rate.clone())), learning_rate)
}
