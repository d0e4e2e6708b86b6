//! Transformations that need little or no memory: scaling, momentum, learning rates, weight decay.

use shardax::prelude::*;

use super::clipping::wide_global_norm;
use super::tree_utils::{abs_sq, bias_correction, cast, update_moment};
use super::{GradientTransformation, Schedule, count, full_in, in_wide_dtypes, safe_increment, scalar_dtype, zeros_in};
use crate::check::{DECAY, FINITE, NOT_NEGATIVE, real_parameters, within};

/// The gradient transformation that [`scale`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct Scale {
    /// The factor of updates.
    pub factor: f64,
}

/// Multiplies updates by a constant.
///
/// ```
/// use shardax_nn::optim::scale;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale(0.5));
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [0.5, -1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale(factor: f64) -> Scale {
    Scale { factor }
}

stateless!(Scale, |this| within("scale", "factor", this.factor, FINITE), |this, updates, _params| tree::map(
    |u| u * this.factor,
    updates
));

/// The gradient transformation that [`set_to_zero`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct SetToZero {}

/// Sets updates to zero, so that the parameters do not change.
///
/// ```
/// use shardax_nn::optim::set_to_zero;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), set_to_zero());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [0.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn set_to_zero() -> SetToZero {
    SetToZero {}
}

stateless!(SetToZero, |_this| Ok(()), |_this, updates, _params| tree::map(|u| zeros_like(&u), updates));

/// The gradient transformation that [`scale_by_sign`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleBySign {}

/// Replaces updates by their signs.
///
/// ```
/// use shardax_nn::optim::scale_by_sign;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_sign());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [1.0, -1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_sign() -> ScaleBySign {
    ScaleBySign {}
}

stateless!(ScaleBySign, |_this| Ok(()), |_this, updates, _params| tree::map(|u| u.sign(), updates));

/// The gradient transformation that [`add_decayed_weights`] returns.
#[derive(Tree, Clone, Debug)]
pub struct AddDecayedWeights {
    /// The factor of the parameters that are added.
    pub weight_decay: Schedule,
}

/// Adds the parameters times `weight_decay`, a number or a [`Schedule`], to the updates.
///
/// You can wrap it in [`masked`](super::masked) to leave out some parameters, such as biases.
///
/// ```
/// use shardax_nn::optim::add_decayed_weights;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (array([3.0f32, 4.0]), add_decayed_weights(0.5));
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [2.5, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn add_decayed_weights(weight_decay: impl Into<Schedule>) -> AddDecayedWeights {
    AddDecayedWeights { weight_decay: weight_decay.into() }
}

impl<P: Tree> GradientTransformation<P> for AddDecayedWeights {
    type State = ScheduleState;

    #[track_caller]
    fn init(&self, _params: &P) -> Result<ScheduleState> {
        self.weight_decay.start("add_decayed_weights: weight_decay")
    }

    fn update(&self, grads: P, state: ScheduleState, params: &P) -> Result<(P, ScheduleState)> {
        if let Schedule::Constant { value: 0.0 } = self.weight_decay {
            return Ok((grads, state));
        }
        in_wide_dtypes(grads, params, |grads, params| {
            let (decay, state) = self.weight_decay.step(state, scalar_dtype(params));
            Ok((tree::map2(|u, p| u + rate_in(&decay, p.dtype()) * p, grads, params.clone())?, state))
        })
    }
}

/// Returns the Euclidean norm of all elements, or `min_norm` if the norm is less. The gradient of a short array is 0, whereas
/// the gradient of a norm has no value at 0.
///
/// ```
/// use shardax_nn::optim::safe_norm;
/// use shardax_nn::prelude::*;
/// assert_eq!(safe_norm(array([3.0f32, 4.0]), 1e-6).item::<f32>()?, 5.0);
/// let gradient = grad(|x: Array| safe_norm(x, 1e-6)).call(zeros([2]))?;
/// assert_eq!(gradient.to_vec::<f32>()?, [0.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn safe_norm(x: impl ArrayLike, min_norm: f64) -> Array {
    let square = abs_sq(&x.into_array()).sum(..);
    let is_short = square.sqrt().less_equal(min_norm);
    // The root has no derivative at 0, so it is computed at 1 instead.
    where_(&is_short, full_like(&square, min_norm), where_(&is_short, 1, square).sqrt())
}

/// The gradient transformation that [`scale_by_trust_ratio`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByTrustRatio {
    /// The minimum length of a parameter or an update. Default 0.
    pub min_norm: f64,
    /// The factor of the ratio. Default 1.
    pub trust_coefficient: f64,
    /// Added to the length of the update. Default 0.
    pub eps: f64,
}

/// Scales each array by the ratio of the parameter's length to the length of the array.
///
/// ```
/// use shardax_nn::optim::scale_by_trust_ratio;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (array([3.0f32, 4.0]), scale_by_trust_ratio());
/// let (updates, _) = tx.update(array([0.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([0.0f32, -5.0]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_trust_ratio() -> ScaleByTrustRatio {
    ScaleByTrustRatio { min_norm: 0.0, trust_coefficient: 1.0, eps: 0.0 }
}

stateless!(
    ScaleByTrustRatio,
    |this| within("scale_by_trust_ratio", "min_norm", this.min_norm, NOT_NEGATIVE)
        .and_then(|()| within("scale_by_trust_ratio", "trust_coefficient", this.trust_coefficient, NOT_NEGATIVE))
        .and_then(|()| within("scale_by_trust_ratio", "eps", this.eps, NOT_NEGATIVE)),
    |this, updates, params| tree::map2(
        |u, p| {
            let (param_norm, update_norm) = (safe_norm(&p, this.min_norm), safe_norm(&u, this.min_norm));
            let none = param_norm.equal(0) | update_norm.equal(0);
            let length = where_(&none, 1, &update_norm) + this.eps;
            u * where_(&none, 1, param_norm * this.trust_coefficient / length)
        },
        updates,
        params.clone(),
    )
);

/// The gradient transformation that [`scale_by_param_block_norm`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByParamBlockNorm {
    /// The minimum length of a parameter. Default 1e-3.
    pub min_scale: f64,
}

/// Scales each array by the length of its parameter.
///
/// ```
/// use shardax_nn::optim::scale_by_param_block_norm;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (array([3.0f32, 4.0]), scale_by_param_block_norm());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([5.0f32, -10.0]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_param_block_norm() -> ScaleByParamBlockNorm {
    ScaleByParamBlockNorm { min_scale: 1e-3 }
}

stateless!(
    ScaleByParamBlockNorm,
    |this| within("scale_by_param_block_norm", "min_scale", this.min_scale, NOT_NEGATIVE),
    |this, updates, params| tree::map2(|u, p| u * safe_norm(&p, this.min_scale), updates, params.clone())
);

/// The gradient transformation that [`scale_by_param_block_rms`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByParamBlockRms {
    /// The minimum root mean square of a parameter. Default 1e-3.
    pub min_scale: f64,
}

/// Scales each array by the root mean square of its parameter.
///
/// ```
/// use shardax_nn::optim::scale_by_param_block_rms;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (array([3.0f32, -3.0]), scale_by_param_block_rms());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([3.0f32, -6.0]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_param_block_rms() -> ScaleByParamBlockRms {
    ScaleByParamBlockRms { min_scale: 1e-3 }
}

stateless!(
    ScaleByParamBlockRms,
    |this| within("scale_by_param_block_rms", "min_scale", this.min_scale, NOT_NEGATIVE),
    |this, updates, params| tree::map2(
        |u, p| u * maximum(abs_sq(&p).mean(..).sqrt(), this.min_scale),
        updates,
        params.clone()
    )
);

/// The gradient transformation that [`trace`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct Trace {
    /// The decay rate of the accumulated updates, between 0 and 1.
    pub decay: f64,
    /// Uses Nesterov's momentum.
    pub nesterov: bool,
    /// The dtype of the accumulator. Default: the dtype of the parameters.
    #[tree(static)]
    pub accumulator_dtype: Option<DType>,
}

/// The state of a [`Trace`].
#[derive(Tree, Clone, Debug)]
pub struct TraceState<P> {
    /// The accumulated updates.
    pub trace: P,
}

/// Accumulates updates (momentum): the result is the update plus `decay` times the previous result. With `nesterov`, the result
/// is one accumulation ahead.
///
/// ```
/// use shardax_nn::optim::trace;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), trace(0.5, false));
/// let (_, state) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), state, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [1.5, -3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn trace(decay: f64, nesterov: bool) -> Trace {
    Trace { decay, nesterov, accumulator_dtype: None }
}

impl Trace {
    fn add_decayed<P: Tree>(&self, grads: P, trace: P) -> Result<P> {
        // Nothing is kept, not even an infinite update, whose product with 0 would be NaN in every later step.
        if self.decay == 0.0 {
            return Ok(grads);
        }
        tree::map2(|g, t| g + t * self.decay, grads, trace)
    }
}

impl<P: Tree> GradientTransformation<P> for Trace {
    type State = TraceState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        within("trace", "decay", self.decay, 0.0..=1.0)?;
        Ok(TraceState { trace: zeros_in(params, self.accumulator_dtype)? })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let trace = self.add_decayed(grads.clone(), state.trace)?;
            let updates = if self.nesterov { self.add_decayed(grads, trace.clone())? } else { trace.clone() };
            Ok((updates, TraceState { trace: cast(&trace, self.accumulator_dtype)? }))
        })
    }
}

/// The gradient transformation that [`ema`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct Ema {
    /// The share of the average that each step keeps.
    pub decay: f64,
    /// Corrects the bias of the initial value.
    pub debias: bool,
    /// The dtype of the average. Default: the dtype of the parameters.
    #[tree(static)]
    pub accumulator_dtype: Option<DType>,
}

/// The state of an [`Ema`].
#[derive(Tree, Clone, Debug)]
pub struct EmaState<P> {
    /// The steps taken, int32.
    pub count: Array,
    /// The average.
    pub ema: P,
}

/// An exponential moving average. In a chain, it averages gradients. Outside of a chain, it averages parameters: call
/// `update(params, state, &params)` in each step; the first result is the average.
///
/// ```
/// use shardax_nn::optim::ema;
/// use shardax_nn::prelude::*;
/// let average = ema(0.9, true);
/// let state = average.init(&zeros([1]))?;
/// let (mean, state) = average.update(array([1.0f32]), state, &zeros([1]))?;
/// assert!(allclose(mean, array([1.0f32]), 1e-6, 0.0)?);
/// # let _ = state;
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn ema(decay: f64, debias: bool) -> Ema {
    Ema { decay, debias, accumulator_dtype: None }
}

impl<P: Tree> GradientTransformation<P> for Ema {
    type State = EmaState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        within("ema", "decay", self.decay, DECAY)?;
        Ok(EmaState { count: count(), ema: zeros_in(params, self.accumulator_dtype)? })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let ema = update_moment(&grads, &state.ema, self.decay, 1)?;
            let count = safe_increment(state.count);
            let updates = if self.debias { bias_correction(&ema, self.decay, &count)? } else { ema.clone() };
            Ok((updates, EmaState { count, ema: cast(&ema, self.accumulator_dtype)? }))
        })
    }
}

/// The gradient transformation that [`scale_by_learning_rate`] returns.
#[derive(Tree, Clone, Debug)]
pub struct ScaleByLearningRate {
    /// The factor of updates. Their sign is flipped, too, if `flip_sign` is true.
    pub learning_rate: Schedule,
    /// Flips the sign. Default true.
    pub flip_sign: bool,
}

/// The state of a [`ScaleByLearningRate`] or [`AddDecayedWeights`]: the count of steps, if the number depends on it.
#[derive(Tree, Clone, Debug)]
pub struct ScheduleState {
    /// The steps taken, int32.
    pub count: Option<Array>,
}

/// Multiplies updates by the negative learning rate, a number or a [`Schedule`]. It is usually the last part of a chain.
///
/// ```
/// use shardax_nn::optim::scale_by_learning_rate;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_learning_rate(0.5));
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [-0.5, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_learning_rate(learning_rate: impl Into<Schedule>) -> ScaleByLearningRate {
    ScaleByLearningRate { learning_rate: learning_rate.into(), flip_sign: true }
}

impl<P: Tree> GradientTransformation<P> for ScaleByLearningRate {
    type State = ScheduleState;

    #[track_caller]
    fn init(&self, _params: &P) -> Result<ScheduleState> {
        self.learning_rate.start("learning_rate")
    }

    fn update(&self, grads: P, state: ScheduleState, params: &P) -> Result<(P, ScheduleState)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let (rate, state) = self.learning_rate.step(state, scalar_dtype(&grads));
            let rate = if self.flip_sign { -rate } else { rate };
            Ok((tree::map(|u| rate_in(&rate, u.dtype()) * u, grads)?, state))
        })
    }
}

/// Converts a number of a schedule to the dtype of an update, because the product must have this dtype. Plain numbers are
/// weakly typed, so they never change it.
fn rate_in(rate: &Array, dtype: DType) -> Array {
    if rate.weak_type() { rate.clone() } else { rate.astype(dtype) }
}

/// The gradient transformation that [`apply_every`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ApplyEvery {
    /// The number of updates that are accumulated, at least 1.
    pub k: usize,
}

/// The state of [`ApplyEvery`].
#[derive(Tree, Clone, Debug)]
pub struct ApplyEveryState<P> {
    /// The updates since the last sum, int32.
    pub count: Array,
    /// Their sum.
    pub grad_acc: P,
}

/// Accumulates `k` updates, then returns their sum. The updates of the other steps are zero. To average gradients instead, use
/// [`multi_steps`](super::multi_steps).
///
/// ```
/// use shardax_nn::optim::apply_every;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), apply_every(2));
/// let (_, state) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), state, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [2.0, -4.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn apply_every(k: usize) -> ApplyEvery {
    ApplyEvery { k }
}

impl<P: Tree> GradientTransformation<P> for ApplyEvery {
    type State = ApplyEveryState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        crate::check::positive("apply_every", "k", self.k)?;
        Ok(ApplyEveryState { count: count(), grad_acc: zeros_in(params, None)? })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let (first, last) = (state.count.equal(0), state.count.equal(self.k.saturating_sub(1)));
            let grad_acc = tree::map2(|g, sum| where_(&first, &g, sum + &g), grads, state.grad_acc)?;
            let updates = tree::map(|sum| where_(&last, &sum, zeros_like(&sum)), grad_acc.clone())?;
            let count = where_(&last, 0, state.count + 1);
            Ok((updates, ApplyEveryState { count, grad_acc }))
        })
    }
}

/// The gradient transformation that [`normalize`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct Normalize {}

/// Divides all gradients together by their [`global_norm`](super::global_norm). Zeros do not change. [`sam`](super::sam) uses
/// it in its adversarial optimizer.
///
/// ```
/// use shardax_nn::optim::normalize;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), normalize());
/// let (updates, _) = tx.update(array([3.0f32, -4.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([0.6f32, -0.8]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn normalize() -> Normalize {
    Normalize {}
}

stateless!(Normalize, |_this| Ok(()), |_this, updates, _params| {
    let norm = wide_global_norm(&updates);
    // Otherwise, zeros would become NaN.
    let norm = where_(norm.equal(0), 1, norm);
    tree::map(|u| &u / norm.astype(u.dtype()), updates)
});

/// The gradient transformation that [`scale_by_optimistic_gradient`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByOptimisticGradient {
    /// The weight of the gradient. Default 1.
    pub alpha: f64,
    /// The weight of its change. Default 1.
    pub beta: f64,
}

/// The state of [`ScaleByOptimisticGradient`].
#[derive(Tree, Clone, Debug)]
pub struct OptimisticGradientState<P> {
    /// True before the first step.
    pub is_initial_step: Array,
    /// The gradients of the last step.
    pub previous_gradient: P,
}

/// Adds the change of the gradient since the last step. It is for games, in which plain descent runs in circles.
///
/// Source: [Mokhtari et al. 2019](https://arxiv.org/abs/1901.08511).
///
/// ```
/// use shardax_nn::optim::scale_by_optimistic_gradient;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_optimistic_gradient());
/// let (_, state) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// let (updates, _) = tx.update(array([3.0f32, 0.0]), state, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [5.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_optimistic_gradient() -> ScaleByOptimisticGradient {
    ScaleByOptimisticGradient { alpha: 1.0, beta: 1.0 }
}

impl<P: Tree> GradientTransformation<P> for ScaleByOptimisticGradient {
    type State = OptimisticGradientState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        within("scale_by_optimistic_gradient", "alpha", self.alpha, FINITE)?;
        within("scale_by_optimistic_gradient", "beta", self.beta, FINITE)?;
        Ok(OptimisticGradientState { is_initial_step: array(true), previous_gradient: zeros_in(params, None)? })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let updates = tree::map2(
                |g: Array, previous: Array| {
                    let previous = where_(&state.is_initial_step, &g, previous);
                    (self.alpha + self.beta) * g - self.beta * previous
                },
                grads.clone(),
                state.previous_gradient,
            )?;
            Ok((updates, OptimisticGradientState { is_initial_step: array(false), previous_gradient: grads }))
        })
    }
}

/// The gradient transformation that [`scale_by_rprop`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByRprop {
    /// The initial step size.
    pub learning_rate: f64,
    /// The factor of a step size when the sign of the gradient changes. Default 0.5.
    pub eta_minus: f64,
    /// The factor of a step size when the sign stays the same. Default 1.2.
    pub eta_plus: f64,
    /// The minimum step size. Default 1e-6.
    pub min_step_size: f64,
    /// The maximum step size. Default 50.
    pub max_step_size: f64,
}

/// The state of [`ScaleByRprop`].
#[derive(Tree, Clone, Debug)]
pub struct RpropState<P> {
    /// The size of each element's step.
    pub step_sizes: P,
    /// The updates of the last step.
    pub prev_updates: P,
}

/// Replaces gradients by their signs times a step size for each element, which grows while the sign stays the same and shrinks
/// when it changes.
///
/// Source: [Riedmiller and Braun 1993](https://ieeexplore.ieee.org/document/298623).
///
/// ```
/// use shardax_nn::optim::scale_by_rprop;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_rprop(0.1));
/// let (_, state) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), state, &params)?;
/// assert!(allclose(updates, array([0.1f32, -0.1]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_rprop(learning_rate: f64) -> ScaleByRprop {
    ScaleByRprop { learning_rate, eta_minus: 0.5, eta_plus: 1.2, min_step_size: 1e-6, max_step_size: 50.0 }
}

impl<P: Tree> GradientTransformation<P> for ScaleByRprop {
    type State = RpropState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        within("scale_by_rprop", "learning_rate", self.learning_rate, NOT_NEGATIVE)?;
        within("scale_by_rprop", "eta_minus", self.eta_minus, 0.0..=1.0)?;
        within("scale_by_rprop", "eta_plus", self.eta_plus, 1.0..f64::INFINITY)?;
        within("scale_by_rprop", "min_step_size", self.min_step_size, NOT_NEGATIVE)?;
        within("scale_by_rprop", "max_step_size", self.max_step_size, self.min_step_size..f64::INFINITY)?;
        real_parameters("scale_by_rprop", params)?;
        let step_sizes = full_in(params, self.learning_rate)?;
        Ok(RpropState { step_sizes, prev_updates: zeros_in(params, None)? })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            // Positive if the sign of the gradient is unchanged.
            let agreement = tree::map2(|g, before| g * before, grads.clone(), state.prev_updates.clone())?;
            let step_sizes = tree::map2(
                |agreement: Array, size: Array| {
                    let factor = where_(agreement.greater(0), self.eta_plus, self.eta_minus);
                    let resized = (&size * factor.astype(size.dtype())).clip(self.min_step_size, self.max_step_size);
                    where_(agreement.equal(0), &size, resized)
                },
                agreement.clone(),
                state.step_sizes,
            )?;
            let steps = tree::map2(|g, size| size * g.sign(), grads, step_sizes.clone())?;
            let prev_updates = tree::map2(zero_if_changed, agreement.clone(), steps)?;
            // As in Optax, each update is applied one call after its gradient.
            let updates = tree::map2(zero_if_changed, agreement, state.prev_updates)?;
            Ok((updates, RpropState { step_sizes, prev_updates }))
        })
    }
}

/// Returns zeros instead of the elements of `x` whose gradient has changed its sign, so that `agreement` is negative.
fn zero_if_changed(agreement: Array, x: Array) -> Array {
    where_(agreement.less(0), zeros_like(&x), x)
}
