//! Losses of numbers and vectors.

use shardax::prelude::*;

use super::in_float32;
use crate::check::{NOT_NEGATIVE, floating, require, same_shape, within};

/// Returns the squared error `(predictions - targets)²`, elementwise. Predictions must have a floating-point dtype, and
/// both must have the same shape.
///
/// ```
/// use shardax_nn::prelude::*;
/// assert_eq!(squared_error(array([1.0f32]), array([3.0f32])).to_vec::<f32>()?, [4.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn squared_error(predictions: impl ArrayLike, targets: impl ArrayLike) -> Array {
    let (name, predictions, targets) = ("squared_error", predictions.into_array(), targets.into_array());
    require!(
        &predictions,
        floating(name, "predictions", &predictions),
        targets.check(),
        same_shape(name, ("predictions", predictions.shape()), ("targets", targets.shape())),
    );
    (predictions - targets).square()
}

/// Returns half of the [`squared_error`], elementwise, whose gradient is the error.
///
/// ```
/// use shardax_nn::prelude::*;
/// let loss = l2_loss(array([1.0f32, 3.0]), array([1.0f32, 1.0]));
/// assert_eq!(loss.to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn l2_loss(predictions: impl ArrayLike, targets: impl ArrayLike) -> Array {
    squared_error(predictions, targets) * 0.5
}

/// Returns the mean of the [`squared_error`] over all elements, a scalar.
///
/// ```
/// use shardax_nn::prelude::*;
/// assert_eq!(mse(array([1.0f32, 2.0]), array([1.0f32, 4.0])).item::<f32>()?, 2.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn mse(predictions: impl ArrayLike, targets: impl ArrayLike) -> Array {
    squared_error(predictions, targets).mean(..)
}

/// Returns the Huber loss, elementwise: quadratic for errors below `delta`, and linear for larger errors. Predictions
/// must have a floating-point dtype. Optax's default `delta` is 1.
///
/// ```
/// use shardax_nn::prelude::*;
/// let loss = huber_loss(array([0.5f32, 3.0]), array([0.0f32, 0.0]), 1.0);
/// assert_eq!(loss.to_vec::<f32>()?, [0.125, 2.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn huber_loss(predictions: impl ArrayLike, targets: impl ArrayLike, delta: f64) -> Array {
    let predictions = predictions.into_array();
    require!(
        &predictions,
        floating("huber_loss", "predictions", &predictions),
        within("huber_loss", "delta", delta, NOT_NEGATIVE),
    );
    let error = predictions - targets;
    let size = error.abs();
    let is_small = size.less_equal(delta);
    // Each branch has the slope of its part alone: a difference of both would lose the digits of small errors.
    let quadratic = where_(&is_small, error, 0).square() * 0.5;
    let linear = (where_(&is_small, 0, size) - delta / 2.0) * delta;
    where_(is_small, quadratic, linear)
}

/// Returns the loss `log(cosh(predictions - targets))`, elementwise and without overflow. Predictions must have a
/// floating-point dtype.
///
/// ```
/// use shardax_nn::prelude::*;
/// let loss = log_cosh(array([0.0f32, 1000.0]), array([0.0f32, 0.0]));
/// assert!(allclose(loss, array([0.0f32, 1000.0 - 2.0f32.ln()]), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn log_cosh(predictions: impl ArrayLike, targets: impl ArrayLike) -> Array {
    let predictions = predictions.into_array();
    require!(&predictions, floating("log_cosh", "predictions", &predictions));
    let error = predictions - targets;
    // log((exp(e) + exp(-e)) / 2), with the larger exponential factored out. Next to 0 the logarithm of 2 would cancel all
    // digits, therefore cosh(e) - 1 is computed as 2 sinh(e / 2)².
    let size = error.abs();
    let is_small = size.less(1);
    let small = (2 * (where_(&is_small, error, 0) / 2).sinh().square()).log1p();
    where_(is_small, small, &size + (&size * -2).exp().log1p() - std::f64::consts::LN_2)
}

/// Returns the cosine of the angle between vectors along the last axis. Both arrays must have a floating-point dtype.
///
/// The squared length of a vector counts as at least `epsilon`. You should set it above 0 if vectors can be zero,
/// because their cosine is NaN with Optax's default of 0.
///
/// ```
/// use shardax_nn::prelude::*;
/// let cosine = cosine_similarity(array([[3.0f32, 0.0], [0.0, 0.0]]), array([4.0f32, 0.0]), 0.0);
/// assert_eq!(cosine.get(0).item::<f32>()?, 1.0);
/// assert!(cosine.get(1).item::<f32>()?.is_nan());
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn cosine_similarity(predictions: impl ArrayLike, targets: impl ArrayLike, epsilon: f64) -> Array {
    let (name, a, b) = ("cosine_similarity", predictions.into_array(), targets.into_array());
    require!(
        &a,
        floating(name, "predictions", &a),
        floating(name, "targets", &b),
        within(name, "epsilon", epsilon, NOT_NEGATIVE),
    );
    let [a, b] = [a, b].map(|x| {
        let wide = in_float32(&x);
        (&wide / maximum(wide.square().sum_keepdims(-1), epsilon).sqrt()).astype(x.dtype())
    });
    (a * b).sum(-1)
}

/// Returns the cosine distance `1 - cosine_similarity` of vectors along the last axis; see [`cosine_similarity`].
///
/// ```
/// use shardax_nn::prelude::*;
/// let distance = cosine_distance(array([[1.0f32, 0.0], [1.0, 0.0]]), array([[0.0f32, 2.0], [3.0, 0.0]]), 0.0);
/// assert_eq!(distance.to_vec::<f32>()?, [1.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn cosine_distance(predictions: impl ArrayLike, targets: impl ArrayLike, epsilon: f64) -> Array {
    1 - cosine_similarity(predictions, targets, epsilon)
}
