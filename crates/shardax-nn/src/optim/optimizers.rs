//! The usual optimizers: chains of transformations with Optax's defaults.
//!
//! An optimizer is a tuple. To change one of its numbers, write the chain out:
//! `(ScaleByAdam { b1: 0.8, ..scale_by_adam() }, scale_by_learning_rate(1e-3))`.

use super::*;

/// See [`sgd`].
pub type Sgd = (Option<Trace>, ScaleByLearningRate);
/// See [`adam`].
pub type Adam = (ScaleByAdam, ScaleByLearningRate);
/// See [`adamw`].
pub type AdamW = (ScaleByAdam, AddDecayedWeights, ScaleByLearningRate);
/// See [`rmsprop`].
pub type RmsProp = (ScaleByRms, ScaleByLearningRate);
/// See [`adagrad`].
pub type AdaGrad = (ScaleByRss, ScaleByLearningRate);
/// See [`lion`].
pub type Lion = (ScaleByLion, AddDecayedWeights, ScaleByLearningRate);
/// See [`lamb`].
pub type Lamb = (ScaleByAdam, AddDecayedWeights, ScaleByTrustRatio, ScaleByLearningRate);

/// Stochastic gradient descent: minus the learning rate times the gradient.
pub fn sgd(learning_rate: impl Into<Schedule>) -> Sgd {
    (None, scale_by_learning_rate(learning_rate))
}

/// [`sgd`] with momentum, plain or Nesterov's.
pub fn sgd_momentum(learning_rate: impl Into<Schedule>, momentum: f64, nesterov: bool) -> Sgd {
    (Some(trace(momentum, nesterov)), scale_by_learning_rate(learning_rate))
}

/// Adam, with decay rates 0.9 and 0.999 and epsilon 1e-8.
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

/// Adam with weight decay that does not pass through its scaling. Optax's default `weight_decay` is 1e-4.
///
/// Source: [Loshchilov and Hutter 2017](https://arxiv.org/abs/1711.05101).
pub fn adamw(learning_rate: impl Into<Schedule>, weight_decay: f64) -> AdamW {
    (scale_by_adam(), add_decayed_weights(weight_decay), scale_by_learning_rate(learning_rate))
}

/// RMSProp, with decay 0.9 and epsilon 1e-8.
pub fn rmsprop(learning_rate: impl Into<Schedule>) -> RmsProp {
    (scale_by_rms(0.9, 1e-8), scale_by_learning_rate(learning_rate))
}

/// AdaGrad, with initial accumulator 0.1 and epsilon 1e-7.
///
/// Source: [Duchi et al. 2011](https://jmlr.org/papers/v12/duchi11a.html).
pub fn adagrad(learning_rate: impl Into<Schedule>) -> AdaGrad {
    (scale_by_rss(0.1, 1e-7), scale_by_learning_rate(learning_rate))
}

/// Lion, with decay rates 0.9 and 0.99 and weight decay 1e-3.
///
/// Source: [Chen et al. 2023](https://arxiv.org/abs/2302.06675).
pub fn lion(learning_rate: impl Into<Schedule>) -> Lion {
    (scale_by_lion(0.9, 0.99), add_decayed_weights(1e-3), scale_by_learning_rate(learning_rate))
}

/// LAMB: Adam scaled by each layer's ratio of norms, with epsilon 1e-6.
///
/// Source: [You et al. 2019](https://arxiv.org/abs/1904.00962).
pub fn lamb(learning_rate: impl Into<Schedule>, weight_decay: f64) -> Lamb {
    let adam = ScaleByAdam { eps: 1e-6, ..scale_by_adam() };
    (adam, add_decayed_weights(weight_decay), scale_by_trust_ratio(), scale_by_learning_rate(learning_rate))
}
