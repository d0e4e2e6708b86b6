//! Losses of embeddings without classes.

use shardax::prelude::*;

use super::cosine_similarity;
use crate::check::{floating, require, same_shape, within};

/// Returns the normalized temperature-scaled cross entropy, a scalar: for every pair of examples with equal labels,
/// minus the logarithm of the softmax of their similarity among all pairs with different labels. Optax's default
/// `temperature` is 0.07.
///
/// `embeddings` are `[batch, features]` with a floating-point dtype, and `labels` are `[batch]`. The batch must have at
/// least one pair of equal labels, because otherwise the result is NaN.
///
/// Source: [Chen et al. 2020](https://arxiv.org/abs/2002.05709).
///
/// ```
/// use shardax_nn::prelude::*;
/// let embeddings = array([[1.0f32, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]);
/// let (right, wrong) = (array([0, 0, 1, 1]), array([0, 1, 0, 1]));
/// let loss = |labels: Array| ntxent(&embeddings, labels, 0.5).item::<f32>();
/// assert!(loss(right)? < loss(wrong)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ntxent(embeddings: impl ArrayLike, labels: impl ArrayLike, temperature: f64) -> Array {
    let (embeddings, labels) = (embeddings.into_array(), labels.into_array());
    let batch = &embeddings.shape()[..embeddings.ndim().min(1)];
    require!(
        &embeddings,
        floating("ntxent", "embeddings", &embeddings),
        labels.check(),
        same_shape("ntxent", ("the batch of the embeddings", batch), ("labels", labels.shape())),
        within("ntxent", "temperature", temperature, f64::MIN_POSITIVE..f64::INFINITY),
    );
    let epsilon = match embeddings.dtype() {
        DType::Bf16 => 2f64.powi(-7),
        DType::F16 => 2f64.powi(-10),
        DType::F64 => f64::EPSILON,
        _ => f32::EPSILON as f64,
    };
    let rows = embeddings.expand_dims(0);
    let similar = cosine_similarity(rows, embeddings.expand_dims(1), epsilon) / temperature;
    let equal = labels.expand_dims(1).equal(labels.expand_dims(0));
    #[expect(clippy::disallowed_methods, reason = "the comparison does not depend on the dtype")]
    let pairs = &equal & &eye(batch[0]).equal(0);
    let [negatives, positives] = [&!&equal, &pairs].map(|chosen| where_(chosen, &similar, f64::NEG_INFINITY));
    // The largest similarity is subtracted, so that no exponential overflows.
    let largest = stop_gradient(concatenate(&[negatives.clone(), positives.clone()], -1).max_keepdims(1));
    let (negatives, positives) = (negatives - &largest, positives - &largest);
    let normalizer = negatives.exp().sum_keepdims(1) + positives.exp();
    let logs = where_(&pairs, positives - normalizer.log(), 0);
    -logs.sum(..) / pairs.sum(..)
}
