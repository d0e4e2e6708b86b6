//! Losses of classes: cross entropies, and margins.

use shardax::nn::{log_sigmoid, log_softmax, softmax};
use shardax::prelude::*;

use super::divergence::finite_where;
use crate::check::{FINITE, NOT_NEGATIVE, floating, integer, require, same_shape, within};
use crate::ranks::allow_any_ranks;

/// Returns the cross entropy between the softmax of `logits` and `labels`. The labels must be probabilities, for
/// example one-hot labels.
///
/// Both are `[..., classes]`, and `labels` can be broadcast; the result is `[...]`. Logits must have a floating-point
/// dtype.
///
/// ```
/// use shardax_nn::prelude::*;
/// let loss = softmax_cross_entropy(zeros([1, 4]), one_hot(array([2]), 4));
/// assert!((loss.item::<f32>()? - 4.0f32.ln()).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn softmax_cross_entropy(logits: impl ArrayLike, labels: impl ArrayLike) -> Array {
    let (logits, labels) = (logits.into_array(), labels.into_array());
    require!(&logits, floating("softmax_cross_entropy", "logits", &logits), not_indices(&logits, &labels));
    -(log_softmax(logits, -1) * labels).sum(-1)
}

/// Labels must not be class indices, because as many indices as there are classes would otherwise be broadcast as
/// probabilities.
fn not_indices(logits: &Array, labels: &Array) -> Result<()> {
    labels.check()?;
    let Some((_, batch)) = logits.shape().split_last() else { return Ok(()) };
    if batch.is_empty() || labels.shape() != batch || !labels.dtype().is_integer() {
        return Ok(());
    }
    let message = format!(
        "softmax_cross_entropy: labels must be probabilities of the classes, [..., classes], got {} for logits {}",
        labels.type_name(),
        logits.type_name()
    );
    Err(Error::new(ErrorKind::Value, message).help(
        "pass class indices to `softmax_cross_entropy_with_integer_labels`, or convert them with `one_hot(labels, classes)`",
    ))
}

/// Labels must be class indices. If you pass one-hot labels, the result is an error.
fn not_one_hot(name: &str, logits: &Array, labels: &Array) -> Result<()> {
    labels.check()?;
    if labels.shape() != logits.shape() {
        return Ok(());
    }
    let message = format!(
        "{name}: labels must be class indices, one for each row of logits, got {} for logits {}",
        labels.type_name(),
        logits.type_name()
    );
    Err(Error::new(ErrorKind::Value, message).help(
        "labels of this shape are one-hot or probabilities: use `softmax_cross_entropy(logits, labels)`, or `labels.argmax(-1)`",
    ))
}

/// Returns the cross entropy between the softmax of `logits` and integer labels.
///
/// `logits` are `[..., classes]` with a floating-point dtype, `labels` are integers `[...]`, and the result is `[...]`;
/// anything else is an error.
///
/// The loss of a label that is not a class, such as -100 or -1, is NaN, so you must mask such labels. (In Optax,
/// negative labels count from the last class.)
///
/// ```
/// use shardax_nn::prelude::*;
/// let loss = softmax_cross_entropy_with_integer_labels(array([[1000.0f32, 0.0]]), array([0]));
/// assert_eq!(loss.item::<f32>()?, 0.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn softmax_cross_entropy_with_integer_labels(logits: impl ArrayLike, labels: impl ArrayLike) -> Array {
    let (logits, labels) = (logits.into_array(), labels.into_array());
    let name = "softmax_cross_entropy_with_integer_labels";
    let [batch @ .., classes] = logits.shape() else {
        // The checks below reject everything else; a scalar has no classes.
        require!(&logits, floating(name, "logits", &logits));
        return logits.logsumexp(-1);
    };
    require!(
        &logits.max(-1),
        floating(name, "logits", &logits),
        not_one_hot(name, &logits, &labels),
        integer(name, "labels", &labels),
        same_shape(name, ("logits without the classes", batch), ("labels", labels.shape())),
    );
    let _ranks = allow_any_ranks();
    let classes = *classes as i64;
    // The dtype of narrow labels may not represent the number of classes.
    let labels = if labels.dtype().byte_size() < 4 { labels.astype(DType::I32) } else { labels };
    let is_class = labels.greater_equal(0) & labels.less(classes);
    // A selection instead of a gather, because its gradient is elementwise, and needs no scatter.
    let chosen = labels.expand_dims(-1).equal(arange(0..classes as i32).astype(labels.dtype()));
    // The largest logit is subtracted, so that logits with a large mean do not cancel in the difference below.
    let shifted = match classes {
        0 => logits,
        _ => {
            let largest = logits.max_keepdims(-1);
            logits - stop_gradient(where_(largest.isfinite(), &largest, zeros_like(&largest)))
        }
    };
    let label_logits = where_(chosen, &shifted, 0).sum(-1);
    // As for a gather with fill mode, the gradient for a label that is not a class is only the gradient of the normalizer, the
    // softmax.
    // The sum over more than 65,504 classes may exceed the range of float16.
    let dtype = shifted.dtype();
    let sum_dtype = if dtype == DType::F16 { DType::F32 } else { dtype };
    let normalizer = shifted.astype(sum_dtype).exp().sum(-1).log().astype(dtype);
    normalizer - where_(is_class, label_logits, f64::NAN)
}

/// Computes [`softmax_cross_entropy`], but a term is 0 if the label is 0 and the logit minus infinity.
///
/// ```
/// use shardax_nn::prelude::*;
/// let loss = safe_softmax_cross_entropy(array([[0.0f32, f32::NEG_INFINITY]]), array([[1.0f32, 0.0]]));
/// assert_eq!(loss.item::<f32>()?, 0.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries the errors of [`softmax_cross_entropy`].
#[track_caller]
pub fn safe_softmax_cross_entropy(logits: impl ArrayLike, labels: impl ArrayLike) -> Array {
    let (logits, labels) = (logits.into_array(), labels.into_array());
    require!(&logits, floating("safe_softmax_cross_entropy", "logits", &logits));
    // The derivative of the selection would be NaN where a logit is minus infinity, so the rule is written out.
    let logs = custom_jvp(|x: Array, weights: Array| weighted_log_softmax(&x, &weights))
        .defjvp(|(x, weights): (Array, Array), (dx, dw): (Array, Array)| {
            let mean = (&dx * softmax(&x, -1)).sum_keepdims(-1);
            (weighted_log_softmax(&x, &weights), &weights * &dx - &weights * mean + dw * log_softmax(&x, -1))
        })
        .call((&logits, labels));
    match logs {
        Ok(logs) => -logs.sum(-1),
        Err(error) => Array::from_error(error, &logits),
    }
}

/// Returns the weighted logarithms of the softmax, which are 0 where the weight is 0.
fn weighted_log_softmax(x: &Array, weights: &Array) -> Array {
    let logs = log_softmax(x, -1);
    where_(weights.not_equal(0), weights * &logs, zeros_like(&logs))
}

/// PolyLoss: the cross entropy of the softmax of `logits`, plus `epsilon` times the probability of the other classes. Optax's
/// default `epsilon` is 2.
///
/// `logits` and `labels` are `[..., classes]` with a floating-point dtype, and the result is `[...]`.
///
/// Source: [Leng et al. 2022](https://arxiv.org/abs/2204.12511).
///
/// ```
/// use shardax_nn::prelude::*;
/// let loss = poly_loss_cross_entropy(zeros([1, 2]), array([[1.0f32, 0.0]]), 2.0);
/// assert!((loss.item::<f32>()? - (2.0f32.ln() + 1.0)).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn poly_loss_cross_entropy(logits: impl ArrayLike, labels: impl ArrayLike, epsilon: f64) -> Array {
    let (name, logits, labels) = ("poly_loss_cross_entropy", logits.into_array(), labels.into_array());
    require!(
        &logits,
        floating(name, "logits", &logits),
        floating(name, "labels", &labels),
        within(name, "epsilon", epsilon, FINITE),
    );
    let missed = (&labels * (1 - softmax(&logits, -1))).sum(-1);
    softmax_cross_entropy(logits, labels) + missed * epsilon
}

/// Returns the elementwise binary cross entropy between the sigmoid of `logits` and `labels` between 0 and 1. The
/// result has the dtype of `logits`, which must be a floating-point dtype.
///
/// ```
/// use shardax_nn::prelude::*;
/// let loss = sigmoid_binary_cross_entropy(array([0.0f32, 100.0]), array([1, 1]));
/// assert!(allclose(loss, array([2.0f32.ln(), 0.0]), 1e-6, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn sigmoid_binary_cross_entropy(logits: impl ArrayLike, labels: impl ArrayLike) -> Array {
    let (logits, labels) = (logits.into_array(), labels.into_array());
    require!(&logits, floating("sigmoid_binary_cross_entropy", "logits", &logits));
    let labels = labels.astype(logits.dtype());
    let positive = finite_where(&labels.equal(0), &log_sigmoid(&logits));
    let negative = finite_where(&labels.equal(1), &log_sigmoid(-logits));
    -&labels * positive - (1 - &labels) * negative
}

/// Returns the focal loss: [`sigmoid_binary_cross_entropy`] times `(1 - probability of the label)^gamma`, which reduces
/// the loss of confident and correct predictions. `alpha` is the weight of the positive class, and `1 - alpha` of the
/// negative class. Optax's default `gamma` is 2.
///
/// Source: [Lin et al. 2017](https://arxiv.org/abs/1708.02002).
///
/// ```
/// use shardax_nn::prelude::*;
/// let (logits, labels) = (array([3.0f32]), array([1.0f32]));
/// let focal = sigmoid_focal_loss(&logits, &labels, None, 2.0).item::<f32>()?;
/// assert!(focal < 0.01 * sigmoid_binary_cross_entropy(logits, labels).item::<f32>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn sigmoid_focal_loss(logits: impl ArrayLike, labels: impl ArrayLike, alpha: Option<f64>, gamma: f64) -> Array {
    let (name, logits, labels) = ("sigmoid_focal_loss", logits.into_array(), labels.into_array());
    require!(
        &logits,
        floating(name, "logits", &logits),
        within(name, "gamma", gamma, NOT_NEGATIVE),
        within(name, "alpha", alpha.unwrap_or(0.0), FINITE),
    );
    let labels = labels.astype(logits.dtype());
    let entropy = sigmoid_binary_cross_entropy(&logits, &labels);
    // log((1 - labels) p + labels (1 - p)), computed from logarithms, without the terms of weight 0.
    let missed = {
        let weights = stack(&[1 - &labels, labels.clone()], -1);
        let logs = stack(&[log_sigmoid(&logits), log_sigmoid(-&logits)], -1);
        let logs = where_(weights.not_equal(0), logs, f64::NEG_INFINITY);
        let largest = stop_gradient(logs.max_keepdims(-1));
        (weights * (logs - &largest).exp()).sum(-1).log() + largest.squeeze(-1)
    };
    let loss = entropy * (missed * gamma).exp();
    match alpha {
        Some(alpha) => (&labels * alpha + (1 - &labels) * (1.0 - alpha)) * loss,
        None => loss,
    }
}

/// Returns the hinge loss `max(0, 1 - predictor_outputs * targets)`, elementwise, for targets of -1 and 1.
///
/// ```
/// use shardax_nn::prelude::*;
/// let loss = hinge_loss(array([2.0f32, 0.5]), array([1.0f32, -1.0]));
/// assert_eq!(loss.to_vec::<f32>()?, [0.0, 1.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn hinge_loss(predictor_outputs: impl ArrayLike, targets: impl ArrayLike) -> Array {
    maximum(0, 1 - predictor_outputs.into_array() * targets)
}

/// Returns the perceptron loss `max(0, -predictor_outputs * targets)`, elementwise, for targets of -1 and 1. Both must
/// have the same shape.
///
/// ```
/// use shardax_nn::prelude::*;
/// let loss = perceptron_loss(array([2.0f32, 0.5]), array([1.0f32, -1.0]));
/// assert_eq!(loss.to_vec::<f32>()?, [0.0, 0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn perceptron_loss(predictor_outputs: impl ArrayLike, targets: impl ArrayLike) -> Array {
    let (outputs, targets) = (predictor_outputs.into_array(), targets.into_array());
    let shapes = (("predictor_outputs", outputs.shape()), ("targets", targets.shape()));
    require!(&outputs, outputs.check(), targets.check(), same_shape("perceptron_loss", shapes.0, shapes.1));
    maximum(0, -outputs * targets)
}

/// Mixes `labels`, which must have a floating-point dtype, with the uniform distribution over the last axis:
/// `(1 - alpha) * labels + alpha / classes`, for `alpha` from 0 to 1.
///
/// ```
/// use shardax_nn::prelude::*;
/// let smooth = smooth_labels(array([1.0f32, 0.0]), 0.5);
/// assert_eq!(smooth.to_vec::<f32>()?, [0.75, 0.25]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn smooth_labels(labels: impl ArrayLike, alpha: f64) -> Array {
    let labels = labels.into_array();
    require!(&labels, floating("smooth_labels", "labels", &labels), within("smooth_labels", "alpha", alpha, 0.0..=1.0),);
    let classes = labels.shape().last().copied().unwrap_or(1).max(1);
    labels * (1.0 - alpha) + alpha / classes as f64
}
