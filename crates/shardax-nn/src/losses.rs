//! Losses, each for every example: reduce them with `.mean(..)`.

use shardax::nn::{log_sigmoid, log_softmax, softplus};
use shardax::prelude::*;

/// The cross entropy between the softmax of `logits` and `labels`, which are probabilities: one-hot, or soft.
///
/// Both are `[..., classes]`; the result is `[...]`.
///
/// ```
/// use shardax_nn::prelude::*;
/// let loss = softmax_cross_entropy(zeros([1, 4]), one_hot(array([2]), 4));
/// assert!((loss.item::<f32>()? - 4.0f32.ln()).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn softmax_cross_entropy(logits: impl Operand, labels: impl Operand) -> Array {
    -(log_softmax(logits, -1) * labels).sum(-1)
}

/// The cross entropy between the softmax of `logits` and integer labels.
///
/// `logits` are `[..., classes]`, `labels` and the result `[...]`. Negative labels count from the last class; a label
/// beyond the classes gives NaN.
///
/// ```
/// use shardax_nn::prelude::*;
/// let loss = softmax_cross_entropy_with_integer_labels(array([[1000.0f32, 0.0]]), array([0]));
/// assert_eq!(loss.item::<f32>()?, 0.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn softmax_cross_entropy_with_integer_labels(logits: impl Operand, labels: impl Operand) -> Array {
    let (logits, labels) = (logits.into_array(), labels.into_array());
    let classes = logits.shape().last().copied().unwrap_or(0) as i64;
    let labels = where_(labels.less(0), &labels + classes, &labels);
    let known = labels.greater_equal(0) & labels.less(classes);
    // A selection instead of a gather: its gradient is elementwise, and needs no scatter.
    let chosen = labels.expand_dims(-1).equal(arange(0..classes as i32));
    let label_logits = where_(chosen, &logits, 0).sum(-1);
    where_(known, logits.logsumexp(-1) - label_logits, f64::NAN)
}

/// The binary cross entropy between the sigmoid of `logits` and `labels` between 0 and 1, elementwise.
#[track_caller]
pub fn sigmoid_binary_cross_entropy(logits: impl Operand, labels: impl Operand) -> Array {
    let (logits, labels) = (logits.into_array(), labels.into_array());
    -(&labels * log_sigmoid(&logits) + (1 - &labels) * log_sigmoid(-logits))
}

/// `(predictions - targets)²`, elementwise.
#[track_caller]
pub fn squared_error(predictions: impl Operand, targets: impl Operand) -> Array {
    (predictions.into_array() - targets).square()
}

/// `(predictions - targets)² / 2`, elementwise.
#[track_caller]
pub fn l2_loss(predictions: impl Operand, targets: impl Operand) -> Array {
    squared_error(predictions, targets) * 0.5
}

/// The mean over everything of `(predictions - targets)²`: a scalar.
#[track_caller]
pub fn mse(predictions: impl Operand, targets: impl Operand) -> Array {
    squared_error(predictions, targets).mean(..)
}

/// Squared error below `delta`, linear beyond, elementwise. Optax's default `delta` is 1.
#[track_caller]
pub fn huber_loss(predictions: impl Operand, targets: impl Operand, delta: f64) -> Array {
    let error = (predictions.into_array() - targets).abs();
    let quadratic = minimum(&error, delta);
    quadratic.square() * 0.5 + (error - quadratic) * delta
}

/// `log(cosh(predictions - targets))`, elementwise, without overflow.
#[track_caller]
pub fn log_cosh(predictions: impl Operand, targets: impl Operand) -> Array {
    let error = predictions.into_array() - targets;
    // log((exp(e) + exp(-e)) / 2), with the larger exponential taken out.
    &error + softplus(&error * -2) - std::f64::consts::LN_2
}

/// `labels` mixed with the uniform distribution: `(1 - alpha) * labels + alpha / classes`.
#[track_caller]
pub fn smooth_labels(labels: impl Operand, alpha: f64) -> Array {
    let labels = labels.into_array();
    let classes = labels.shape().last().copied().unwrap_or(1).max(1);
    labels * (1.0 - alpha) + alpha / classes as f64
}

/// The cosine of the angle between vectors along the last axis.
#[track_caller]
pub fn cosine_similarity(predictions: impl Operand, targets: impl Operand) -> Array {
    let unit = |x: Array| {
        let square = (&x * &x).sum_keepdims(-1);
        // The gradient of the length of the zero vector is taken as 0.
        let zero = square.equal(0);
        let length = where_(&zero, 0, where_(&zero, 1, &square).sqrt());
        &x / maximum(length, 1e-8)
    };
    (unit(predictions.into_array()) * unit(targets.into_array())).sum(-1)
}

/// The Kullback-Leibler divergence of `targets`, probabilities, from predictions given as logarithms, over the last axis.
#[track_caller]
pub fn kl_divergence(log_predictions: impl Operand, targets: impl Operand) -> Array {
    let targets = targets.into_array();
    let positive = targets.greater(0);
    let log_targets = where_(&positive, where_(&positive, &targets, 1).log(), 0);
    (targets * (log_targets - log_predictions)).sum(-1)
}
