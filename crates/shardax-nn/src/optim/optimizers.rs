//! The usual optimizers: chains of transformations with Optax's defaults.
//!
//! An optimizer is a tuple. Methods change its numbers (`options.rs`): `rmsprop(1e-2).decay(0.95)`. For other changes, write the
//! tuple: `(ScaleByAdam { b1: 0.8, ..scale_by_adam() }, scale_by_learning_rate(1e-3))`.

use shardax::prelude::{Array, ArrayLike, random};

use super::*;

/// The optimizer that [`sgd`] returns.
pub type Sgd = (Option<Trace>, ScaleByLearningRate);
/// The optimizer that [`adam`] returns.
pub type Adam = (ScaleByAdam, ScaleByLearningRate);
/// The optimizer that [`adamw`] returns.
pub type AdamW = (ScaleByAdam, AddDecayedWeights, ScaleByLearningRate);
/// The optimizer that [`rmsprop`] returns.
pub type RmsProp = (ScaleByRms, ScaleByLearningRate);
/// The optimizer that [`adagrad`] returns.
pub type AdaGrad = (ScaleByRss, ScaleByLearningRate);
/// The optimizer that [`lion`] returns.
pub type Lion = (ScaleByLion, AddDecayedWeights, ScaleByLearningRate);
/// The optimizer that [`adafactor`] returns.
pub type Adafactor = (
    ScaleByFactoredRms,
    Option<ClipByBlockRms>,
    Option<ScaleByLearningRate>,
    Option<ScaleByParamBlockRms>,
    Option<Ema>,
    Option<AddDecayedWeights>,
    Scale,
);
/// The optimizer that [`adabelief`] returns.
pub type AdaBelief = (ScaleByBelief, ScaleByLearningRate);
/// The optimizer that [`adadelta`] returns.
pub type AdaDelta = (AddDecayedWeights, ScaleByAdadelta, ScaleByLearningRate);
/// The optimizer that [`adamax`] returns.
pub type Adamax = (ScaleByAdamax, ScaleByLearningRate);
/// The optimizer that [`adamaxw`] returns.
pub type AdamaxW = (ScaleByAdamax, AddDecayedWeights, ScaleByLearningRate);
/// The optimizer that [`adan`] returns.
pub type Adan = (ScaleByAdan, AddDecayedWeights, ScaleByLearningRate);
/// The optimizer that [`amsgrad`] returns.
pub type Amsgrad = (ScaleByAmsgrad, ScaleByLearningRate);
/// The optimizer that [`dpsgd`] returns.
pub type DpSgd = (DifferentiallyPrivateAggregate, Option<Trace>, ScaleByLearningRate);
/// The optimizer that [`fromage`] returns.
pub type Fromage = (ScaleByTrustRatio, ScaleByLearningRate, AddDecayedWeights);
/// The optimizer that [`lars`] returns.
pub type Lars = (AddDecayedWeights, ScaleByTrustRatio, ScaleByLearningRate, Trace);
/// The optimizer that [`noisy_sgd`] returns.
pub type NoisySgd = (AddNoise, ScaleByLearningRate);
/// The optimizer that [`novograd`] returns.
pub type Novograd = (ScaleByNovograd, ScaleByLearningRate);
/// The optimizer that [`optimistic_gradient_descent`] returns.
pub type OptimisticGradientDescent = (ScaleByOptimisticGradient, ScaleByLearningRate);
/// The optimizer that [`rprop`] returns.
pub type Rprop = (ScaleByRprop, Scale);
/// The optimizer that [`radam`] returns.
pub type Radam = (ScaleByRadam, ScaleByLearningRate);
/// The optimizer that [`rmsprop_centered`] returns.
pub type RmsPropCentered = (ScaleByStddev, ScaleByLearningRate, Option<Trace>);
/// The optimizer that [`rmsprop_momentum`] returns.
pub type RmsPropMomentum = (ScaleByRms, ScaleByLearningRate, Trace);
/// The optimizer that [`sign_sgd`] returns.
pub type SignSgd = (ScaleBySign, ScaleByLearningRate);
/// The optimizer that [`signum`] returns.
pub type Signum = (Ema, ScaleBySign, ScaleByLearningRate);
/// The optimizer that [`sm3`] returns.
pub type Sm3 = (ScaleBySm3, ScaleByLearningRate);
/// The optimizer that [`yogi`] returns.
pub type Yogi = (ScaleByYogi, ScaleByLearningRate);
/// The optimizer that [`lamb`] returns.
pub type Lamb = (ScaleByAdam, AddDecayedWeights, ScaleByTrustRatio, ScaleByLearningRate);

/// Stochastic gradient descent: the update is the negative learning rate times the gradient. [`SgdOptions`] adds momentum.
///
/// ```
/// use shardax_nn::prelude::*;
/// let state = TrainState::create(array([1.0f32, 1.0]), sgd(0.5))?;
/// let state = state.apply_gradients(array([1.0f32, -3.0]))?;
/// assert_eq!(state.params.to_vec::<f32>()?, [0.5, 2.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn sgd(learning_rate: impl Into<Schedule>) -> Sgd {
    (None, scale_by_learning_rate(learning_rate))
}

/// Sets the numbers of [`sgd`].
///
/// ```
/// use shardax_nn::prelude::*;
/// let state = TrainState::create(ones([2]), sgd(0.1).momentum(0.9))?;
/// assert_eq!(state.tx.0.map(|trace| trace.decay), Some(0.9));
/// let nesterov = sgd(0.1).momentum(0.9).nesterov(true);
/// assert_eq!(nesterov.0, sgd(0.1).nesterov(true).momentum(0.9).0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not `sgd`, so it has no momentum to set",
    label = "not `sgd`",
    note = "`sgd(0.1).momentum(0.9)`; in a chain: `(clip_by_global_norm(1.0), sgd(0.1).momentum(0.9))`"
)]
pub trait SgdOptions {
    /// Sets the decay rate of the accumulated updates. Default: none are accumulated.
    fn momentum(self, momentum: f64) -> Self;

    /// Sets whether momentum is Nesterov's. Without [`momentum`](SgdOptions::momentum) it does not change the updates.
    /// Default false.
    fn nesterov(self, nesterov: bool) -> Self;
}

impl SgdOptions for Sgd {
    fn momentum(self, momentum: f64) -> Self {
        let nesterov = self.0.is_some_and(|trace| trace.nesterov);
        (Some(trace(momentum, nesterov)), self.1)
    }

    fn nesterov(self, nesterov: bool) -> Self {
        let momentum = self.0.map(|trace| trace.decay);
        // A decay of 0 leaves updates as they are, and remembers the choice for a later `momentum`.
        let has_trace = momentum.is_some() || nesterov;
        (has_trace.then(|| trace(momentum.unwrap_or(0.0), nesterov)), self.1)
    }
}

/// Stochastic gradient descent with momentum, plain or Nesterov's: updates accumulate, and earlier updates decay by the factor
/// `momentum` in each step.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), sgd_momentum(0.1, 0.9, false))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// // The second step adds 0.9 times the first.
/// assert!(allclose(&state.params, array([2.71f32, 4.58]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn sgd_momentum(learning_rate: impl Into<Schedule>, momentum: f64, nesterov: bool) -> Sgd {
    (Some(trace(momentum, nesterov)), scale_by_learning_rate(learning_rate))
}

/// Adam, with decay rates 0.9 and 0.999 and epsilon 1e-8. [`AdamOptions`] sets other values.
///
/// Source: [Kingma and Ba 2014](https://arxiv.org/abs/1412.6980).
///
/// ```
/// use shardax_nn::prelude::*;
/// let params = array([1.0f32, 1.0]);
/// let state = TrainState::create(params, adam(0.5))?;
/// let state = state.apply_gradients(array([1.0f32, -3.0]))?;
/// assert!(allclose(&state.params, array([0.5f32, 1.5]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn adam(learning_rate: impl Into<Schedule>) -> Adam {
    (scale_by_adam(), scale_by_learning_rate(learning_rate))
}

/// Adam with decoupled weight decay: each step also subtracts `learning_rate * weight_decay * parameter`, which Adam does not
/// scale. Optax's default `weight_decay` is 1e-4. [`AdamOptions`] sets other decay rates and epsilons.
///
/// Every parameter decays. To leave out some, such as biases, select the others with
/// [`mask`](WeightDecayOptions::mask).
///
/// Source: [Loshchilov and Hutter 2017](https://arxiv.org/abs/1711.05101).
///
/// ```
/// use shardax_nn::prelude::*;
/// let rate = warmup_cosine_decay_schedule(0.0, 3e-4, 1000, 10_000, 3e-5);
/// let optimizer = (clip_by_global_norm(1.0), adamw(rate, 0.1).b2(0.95));
/// assert_eq!(optimizer.1.0.b2, 0.95);
/// ```
pub fn adamw(learning_rate: impl Into<Schedule>, weight_decay: f64) -> AdamW {
    (scale_by_adam(), add_decayed_weights(weight_decay), scale_by_learning_rate(learning_rate))
}

/// RMSProp: gradients divided by the root of an average of their squares, with decay 0.9 and epsilon 1e-8.
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), rmsprop(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.4543569f32, 4.5456431]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn rmsprop(learning_rate: impl Into<Schedule>) -> RmsProp {
    (scale_by_rms(0.9, 1e-8), scale_by_learning_rate(learning_rate))
}

/// AdaGrad: gradients divided by the root of the sum of all squares so far, which begins at 0.1, with epsilon 1e-7. Steps
/// therefore become smaller.
///
/// Source: [Duchi et al. 2011](https://jmlr.org/papers/v12/duchi11a.html).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), adagrad(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// // The second step is smaller than the first.
/// assert!(allclose(&state.params, array([2.8356473f32, 4.1690457]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn adagrad(learning_rate: impl Into<Schedule>) -> AdaGrad {
    (scale_by_rss(0.1, 1e-7), scale_by_learning_rate(learning_rate))
}

/// Lion: the signs of an average of the gradients, with decay rates 0.9 and 0.99 and weight decay 1e-3. Its state is half as
/// large as Adam's.
///
/// Source: [Chen et al. 2023](https://arxiv.org/abs/2302.06675).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), lion(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.79941f32, 4.19919]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn lion(learning_rate: impl Into<Schedule>) -> Lion {
    (scale_by_lion(0.9, 0.99), add_decayed_weights(1e-3), scale_by_learning_rate(learning_rate))
}

/// LAMB, for large batches: Adam with epsilon 1e-6, whose update of each array is scaled by the ratio of the parameter's norm to
/// the update's norm. Optax's default `weight_decay` is 0.
///
/// Source: [You et al. 2019](https://arxiv.org/abs/1904.00962).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), lamb(0.1, 0.0))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.2861892f32, 4.7138112]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn lamb(learning_rate: impl Into<Schedule>, weight_decay: f64) -> Lamb {
    let adam = ScaleByAdam { eps: 1e-6, ..scale_by_adam() };
    (adam, add_decayed_weights(weight_decay), scale_by_trust_ratio(), scale_by_learning_rate(learning_rate))
}

/// Adafactor: updates are scaled to each parameter's size, and means of squares are stored for rows and columns only. If the
/// learning rate is `None`, Adafactor determines the size of steps.
///
/// Source: [Shazeer and Stern 2018](https://arxiv.org/abs/1804.04235).
///
/// ```
/// use shardax_nn::optim::adafactor;
/// use shardax_nn::prelude::*;
/// let state = TrainState::create(ones([256, 128]), adafactor(Some(0.01)))?;
/// // The state has a row and a column instead of a matrix.
/// let factored = &state.opt_state.0;
/// assert_eq!((factored.v_row.shape(), factored.v_col.shape()), (&[128][..], &[256][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn adafactor<S: Into<Schedule>>(learning_rate: Option<S>) -> Adafactor {
    (
        scale_by_factored_rms(),
        Some(clip_by_block_rms(1.0)),
        learning_rate.map(|rate| ScaleByLearningRate { flip_sign: false, ..scale_by_learning_rate(rate) }),
        Some(scale_by_param_block_rms()),
        None,
        None,
        scale(-1.0),
    )
}

/// AdaBelief: Adam that divides by the deviations of the gradients from their mean, with epsilons 1e-16.
///
/// Source: [Zhuang et al. 2020](https://arxiv.org/abs/2010.07468).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), adabelief(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.7720903f32, 4.2279097]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn adabelief(learning_rate: impl Into<Schedule>) -> AdaBelief {
    (scale_by_belief(), scale_by_learning_rate(learning_rate))
}

/// AdaDelta: gradients scaled by the ratio of the sizes of earlier updates and gradients, with `rho` 0.9, epsilon 1e-6 and no
/// weight decay.
///
/// Source: [Zeiler 2012](https://arxiv.org/abs/1212.5701).
///
/// ```
/// use shardax_nn::optim::adadelta;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), adadelta(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.9993593f32, 4.0006407]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn adadelta(learning_rate: impl Into<Schedule>) -> AdaDelta {
    (add_decayed_weights(0.0), scale_by_adadelta(), scale_by_learning_rate(learning_rate))
}

/// Adamax: Adam that divides by a decaying maximum of the absolute gradients instead of the root of their mean square.
///
/// Source: [Kingma and Ba 2014](https://arxiv.org/abs/1412.6980).
///
/// ```
/// use shardax_nn::optim::adamax;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), adamax(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.8f32, 4.2]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn adamax(learning_rate: impl Into<Schedule>) -> Adamax {
    (scale_by_adamax(), scale_by_learning_rate(learning_rate))
}

/// Adamax with decoupled weight decay, like [`adamw`]. Optax's default `weight_decay` is 1e-4.
///
/// ```
/// use shardax_nn::optim::adamaxw;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), adamaxw(0.1, 0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// // Each step also subtracts 0.01 times the parameter.
/// assert!(allclose(&state.params, array([2.7413f32, 4.1194]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn adamaxw(learning_rate: impl Into<Schedule>, weight_decay: f64) -> AdamaxW {
    (scale_by_adamax(), add_decayed_weights(weight_decay), scale_by_learning_rate(learning_rate))
}

/// Adan: Adam with Nesterov's momentum, which it estimates from differences of gradients. The decay rates are 0.98, 0.92 and
/// 0.99, and the epsilons 1e-8. Optax's default `weight_decay` is 0.
///
/// Source: [Xie et al. 2022](https://arxiv.org/abs/2208.06677).
///
/// ```
/// use shardax_nn::optim::adan;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), adan(0.1, 0.0))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.8f32, 4.2]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn adan(learning_rate: impl Into<Schedule>, weight_decay: f64) -> Adan {
    let adan = ScaleByAdan { eps_root: 1e-8, ..scale_by_adan() };
    (adan, add_decayed_weights(weight_decay), scale_by_learning_rate(learning_rate))
}

/// AMSGrad: Adam that divides by the root of the largest mean of squares so far instead of the current one.
///
/// Source: [Reddi et al. 2018](https://openreview.net/forum?id=ryQu7f-RZ).
///
/// ```
/// use shardax_nn::optim::amsgrad;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), amsgrad(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.8f32, 4.2]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn amsgrad(learning_rate: impl Into<Schedule>) -> Amsgrad {
    (scale_by_amsgrad(), scale_by_learning_rate(learning_rate))
}

/// Stochastic gradient descent with differential privacy. Each gradient must be `[batch, …]`, the gradients of every example,
/// as `vmap(grad(loss))` returns them. `key` is the key of the noise, or its seed.
///
/// Source: [Abadi et al. 2016](https://arxiv.org/abs/1607.00133).
pub fn dpsgd(
    learning_rate: impl Into<Schedule>,
    l2_norm_clip: f64,
    noise_multiplier: f64,
    key: impl ArrayLike,
    momentum: Option<f64>,
) -> DpSgd {
    let key = key.into_array();
    // Keys without a dtype of keys are vectors of words.
    let is_seed = !key.dtype().is_key() && key.ndim() == 0;
    let key = if is_seed { random::key(key) } else { key };
    let aggregate = differentially_private_aggregate(l2_norm_clip, noise_multiplier, &key);
    (aggregate, momentum.map(|decay| trace(decay, false)), scale_by_learning_rate(learning_rate))
}

/// Fromage: steps proportional to the length of each parameter, for which it uses at least 1e-6.
///
/// Source: [Bernstein et al. 2020](https://arxiv.org/abs/2002.03432).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), fromage(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.5167642f32, 4.8674617]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn fromage(learning_rate: impl Into<Schedule>) -> Fromage {
    let trust_ratio = ScaleByTrustRatio { min_norm: 1e-6, ..scale_by_trust_ratio() };
    let (rate, decay): (Schedule, Schedule) = match learning_rate.into() {
        Schedule::Constant { value } => {
            let factor = 1.0 / (1.0 + value * value).sqrt();
            ((value * factor).into(), (factor - 1.0).into())
        }
        schedule => {
            // Both functions own the schedule, because they outlive this call.
            let again = schedule.clone();
            (
                Schedule::function(move |step: &Array| {
                    let rate = schedule.at(step);
                    fromage_factor(&rate) * rate
                }),
                Schedule::function(move |step| fromage_factor(&again.at(step)) - 1),
            )
        }
    };
    (trust_ratio, scale_by_learning_rate(rate), add_decayed_weights(decay))
}

/// LARS, for large batches: the gradient of each array is scaled by the ratio of the parameter's norm to its own, then
/// accumulated with momentum 0.9. The trust coefficient is 1e-3. Optax's default `weight_decay` is 0.
///
/// Source: [You et al. 2017](https://arxiv.org/abs/1708.03888).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), lars(0.1, 0.0))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.9993515f32, 4.001297]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn lars(learning_rate: impl Into<Schedule>, weight_decay: f64) -> Lars {
    let trust_ratio = ScaleByTrustRatio { trust_coefficient: 1e-3, ..scale_by_trust_ratio() };
    (add_decayed_weights(weight_decay), trust_ratio, scale_by_learning_rate(learning_rate), trace(0.9, false))
}

/// Stochastic gradient descent with noise of variance `0.01 / step^0.55`.
///
/// Source: [Neelakantan et al. 2014](https://arxiv.org/abs/1511.06807).
pub fn noisy_sgd(learning_rate: impl Into<Schedule>, key: &Array) -> NoisySgd {
    (add_noise(0.01, 0.55, key), scale_by_learning_rate(learning_rate))
}

/// NovoGrad: Adam with one mean of squares for each array, with decay rates 0.9 and 0.25 and epsilon 1e-6.
///
/// Source: [Ginsburg et al. 2019](https://arxiv.org/abs/1905.11286).
///
/// ```
/// use shardax_nn::optim::novograd;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), novograd(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.870308f32, 4.2593838]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn novograd(learning_rate: impl Into<Schedule>) -> Novograd {
    (ScaleByNovograd { eps: 1e-6, ..scale_by_novograd() }, scale_by_learning_rate(learning_rate))
}

/// RAdam, rectified Adam: the first steps use only the mean of the gradients, because the estimate of their variance is not
/// reliable yet. You therefore need no warmup.
///
/// Source: [Liu et al. 2019](https://arxiv.org/abs/1908.03265).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), radam(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// // The first steps are proportional to the gradient.
/// assert!(allclose(&state.params, array([2.8f32, 4.4]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn radam(learning_rate: impl Into<Schedule>) -> Radam {
    (scale_by_radam(), scale_by_learning_rate(learning_rate))
}

/// RMSProp that divides by the standard deviation of the gradients, like Optax's `rmsprop(centered=True)`, with momentum if you
/// pass it.
///
/// ```
/// use shardax_nn::optim::rmsprop_centered;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), rmsprop_centered(0.1, None))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.4117603f32, 4.5882397]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn rmsprop_centered(learning_rate: impl Into<Schedule>, momentum: Option<f64>) -> RmsPropCentered {
    (scale_by_stddev(), scale_by_learning_rate(learning_rate), momentum.map(|decay| trace(decay, false)))
}

/// RMSProp with momentum, plain or Nesterov's, like Optax's `rmsprop(momentum=…)`.
///
/// ```
/// use shardax_nn::optim::rmsprop_momentum;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), rmsprop_momentum(0.1, 0.9, false))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.1697515f32, 4.8302485]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn rmsprop_momentum(learning_rate: impl Into<Schedule>, momentum: f64, nesterov: bool) -> RmsPropMomentum {
    (scale_by_rms(0.9, 1e-8), scale_by_learning_rate(learning_rate), trace(momentum, nesterov))
}

/// Sign descent: the update is the negative learning rate times the signs of the gradients.
///
/// Source: [Bernstein et al. 2018](https://arxiv.org/abs/1802.04434).
///
/// ```
/// use shardax_nn::optim::sign_sgd;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), sign_sgd(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.8f32, 4.2]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn sign_sgd(learning_rate: impl Into<Schedule>) -> SignSgd {
    (scale_by_sign(), scale_by_learning_rate(learning_rate))
}

/// Signum: [`sign_sgd`] of an average of the gradients with decay `beta`. Optax's default `beta` is 0.9.
///
/// ```
/// use shardax_nn::optim::signum;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), signum(0.1, 0.9))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.8f32, 4.2]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn signum(learning_rate: impl Into<Schedule>, beta: f64) -> Signum {
    (ema(beta, false), scale_by_sign(), scale_by_learning_rate(learning_rate))
}

/// SM3: AdaGrad that stores only the largest squares along each dimension, so that its state is small, with momentum 0.9.
///
/// Source: [Anil et al. 2019](https://arxiv.org/abs/1901.11150).
///
/// ```
/// use shardax_nn::optim::sm3;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), sm3(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.9739289f32, 4.0260711]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn sm3(learning_rate: impl Into<Schedule>) -> Sm3 {
    (scale_by_sm3(), scale_by_learning_rate(learning_rate))
}

/// Yogi: Adam whose mean of squares changes by no more than the new square, with epsilon 1e-3.
///
/// Source: [Zaheer et al. 2018](https://papers.nips.cc/paper/2018/hash/90365351ccc7437a1309dc64e4db32a3-Abstract.html).
///
/// ```
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), yogi(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.8003f32, 4.1998541]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn yogi(learning_rate: impl Into<Schedule>) -> Yogi {
    (scale_by_yogi(), scale_by_learning_rate(learning_rate))
}

/// Optimistic gradient descent: the update is the negative learning rate times the gradient plus its change since the last step.
/// It is for games, in which plain descent may run in circles.
///
/// Source: [Mokhtari et al. 2019](https://arxiv.org/abs/1901.08511).
///
/// ```
/// use shardax_nn::optim::optimistic_gradient_descent;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), optimistic_gradient_descent(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.8f32, 4.4]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn optimistic_gradient_descent(learning_rate: impl Into<Schedule>) -> OptimisticGradientDescent {
    (scale_by_optimistic_gradient(), scale_by_learning_rate(learning_rate))
}

/// The optimizer that [`optimistic_adam`] returns.
pub type OptimisticAdam = (ScaleByAdam, ScaleByOptimisticGradient, ScaleByLearningRate);

/// Optimistic Adam: [`optimistic_gradient_descent`] of the updates of Adam with Nesterov's momentum, like Optax's
/// `optimistic_adam_v2`.
///
/// Source: [Daskalakis et al. 2017](https://arxiv.org/abs/1711.00141).
///
/// ```
/// use shardax_nn::optim::optimistic_adam;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), optimistic_adam(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.76854f32, 4.23146]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn optimistic_adam(learning_rate: impl Into<Schedule>) -> OptimisticAdam {
    let adam = ScaleByAdam { nesterov: true, ..scale_by_adam() };
    (adam, scale_by_optimistic_gradient(), scale_by_learning_rate(learning_rate))
}

/// Rprop: each element has its own step size, which grows while the sign of its gradient stays the same and shrinks when the sign
/// changes. `learning_rate` is the size of the first steps.
///
/// Source: [Riedmiller and Braun 1993](https://ieeexplore.ieee.org/document/298623).
///
/// ```
/// use shardax_nn::optim::rprop;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), rprop(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// // The first gradient only determines the signs.
/// assert!(allclose(&state.params, array([2.9f32, 4.1]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn rprop(learning_rate: f64) -> Rprop {
    (scale_by_rprop(learning_rate), scale(-1.0))
}

fn fromage_factor(rate: &Array) -> Array {
    (rate * rate + 1).rsqrt()
}
