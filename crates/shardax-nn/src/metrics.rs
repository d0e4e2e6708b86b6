//! Metrics.

use shardax::prelude::*;

/// The share of rows whose largest logit is the label's: `mean(argmax(logits, -1) == labels)`.
///
/// ```
/// use shardax_nn::prelude::*;
/// let logits = array([[1.0f32, 2.0], [3.0, 0.0]]);
/// assert_eq!(accuracy(&logits, array([1, 1])).item::<f32>()?, 0.5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn accuracy(logits: impl Operand, labels: impl Operand) -> Array {
    logits.into_array().argmax(-1).equal(labels).mean(..)
}
