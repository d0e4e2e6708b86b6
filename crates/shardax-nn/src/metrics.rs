//! Metrics.

use shardax::prelude::*;

use crate::check::{integer, require, same_shape};

/// Returns the share of rows whose largest logit is the logit of the label: `mean(argmax(logits, -1) == labels)`.
///
/// `logits` are `[..., classes]`, `labels` are integers `[...]`; anything else is an error.
///
/// ```
/// use shardax_nn::prelude::*;
/// let logits = array([[1.0f32, 2.0], [3.0, 0.0]]);
/// assert_eq!(accuracy(&logits, array([1, 1])).item::<f32>()?, 0.5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn accuracy(logits: impl ArrayLike, labels: impl ArrayLike) -> Array {
    let (predictions, labels) = (logits.into_array().argmax(-1), labels.into_array());
    require!(
        &predictions,
        predictions.check(),
        integer("accuracy", "labels", &labels),
        same_shape("accuracy", ("predictions", predictions.shape()), ("labels", labels.shape())),
    );
    predictions.equal(labels).mean(..)
}
