//! Margin losses of classes, losses of rankings and of triplets.

use shardax::nn::{log_softmax, one_hot, sparse_plus};
use shardax::prelude::*;

use super::in_float32;
use crate::check::{floating, require, same_shape};
use crate::optim::projections::projection_simplex;

/// Returns the score of the true class, `[...]`, for integer labels.
fn true_class_score(scores: &Array, labels: &Array) -> Array {
    scores.take_along_axis(labels.expand_dims(-1), -1).squeeze(-1)
}

macro_rules! checked {
    ($name:literal, $scores:ident, $labels:ident) => {
        let ($scores, $labels) = ($scores.into_array(), $labels.into_array());
        require!(
            &$scores,
            floating($name, "scores", &$scores),
            $labels.check(),
            same_shape(
                $name,
                ("the scores without classes", &$scores.shape()[..$scores.ndim().saturating_sub(1)]),
                ("labels", $labels.shape())
            ),
        );
    };
}

/// Returns the multiclass hinge loss: the highest other score plus a margin of 1, minus the score of the true class,
/// and at least 0. The result is `[...]` for scores `[..., classes]` and integer labels `[...]`.
///
/// ```
/// use shardax_nn::losses::multiclass_hinge_loss;
/// use shardax_nn::prelude::*;
/// let loss = multiclass_hinge_loss(array([[3.0f32, 1.0, 2.5]]), array([0]));
/// assert_eq!(loss.to_vec::<f32>()?, [0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn multiclass_hinge_loss(scores: impl ArrayLike, labels: impl ArrayLike) -> Array {
    checked!("multiclass_hinge_loss", scores, labels);
    let classes = scores.shape().last().copied().unwrap_or(0);
    (&scores + 1 - one_hot(&labels, classes)).max(-1) - true_class_score(&scores, &labels)
}

/// Returns the multiclass perceptron loss: the highest score minus the score of the true class. The result is `[...]`
/// for scores `[..., classes]` and integer labels `[...]`.
///
/// ```
/// use shardax_nn::losses::multiclass_perceptron_loss;
/// use shardax_nn::prelude::*;
/// let loss = multiclass_perceptron_loss(array([[3.0f32, 1.0, 4.5]]), array([0]));
/// assert_eq!(loss.to_vec::<f32>()?, [1.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn multiclass_perceptron_loss(scores: impl ArrayLike, labels: impl ArrayLike) -> Array {
    checked!("multiclass_perceptron_loss", scores, labels);
    scores.max(-1) - true_class_score(&scores, &labels)
}

/// Returns the sparsemax loss, whose probabilities can be 0. The result is `[...]` for scores `[..., classes]` and
/// integer labels `[...]`.
///
/// Source: [Martins and Astudillo 2016](https://arxiv.org/abs/1602.02068).
///
/// ```
/// use shardax_nn::prelude::*;
/// let scores = array([[3.0f32, 0.0, 0.0], [0.0, 1.0, 0.0]]);
/// assert_eq!(multiclass_sparsemax_loss(scores, array([0, 0])).to_vec::<f32>()?, [0.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn multiclass_sparsemax_loss(scores: impl ArrayLike, labels: impl ArrayLike) -> Array {
    checked!("multiclass_sparsemax_loss", scores, labels);
    sparsemax_losses(scores.clone(), labels).unwrap_or_else(|error| Array::from_error(error, &scores))
}

/// Maps over the leading dimensions, because the projection takes one vector of scores.
fn sparsemax_losses(scores: Array, labels: Array) -> Result<Array> {
    if scores.ndim() > 1 {
        return vmap(sparsemax_losses).call((scores, labels));
    }
    let classes = scores.shape().last().copied().unwrap_or(0);
    let dtype = scores.dtype();
    let scores = in_float32(&scores);
    let probabilities = projection_simplex(&scores, 1.0)?;
    let gap = where_(arange(0..classes as i32).equal(&labels), 0, &scores - scores.take(&labels, 0));
    let gap = where_(probabilities.not_equal(0), gap, 0);
    Ok(((&probabilities * gap).sum(..) + 0.5 * (1 - probabilities.square().sum(..))).astype(dtype))
}

/// Returns the elementwise binary sparsemax loss of logits and labels of 0 or 1.
///
/// ```
/// use shardax_nn::prelude::*;
/// let loss = sparsemax_loss(array([0.0f32, 2.0, -2.0]), array([1, 1, 1]));
/// assert_eq!(loss.to_vec::<f32>()?, [0.25, 0.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn sparsemax_loss(logits: impl ArrayLike, labels: impl ArrayLike) -> Array {
    let (logits, labels) = (logits.into_array(), labels.into_array());
    require!(&logits, floating("sparsemax_loss", "logits", &logits), labels.check());
    sparse_plus(where_(labels.not_equal(0), -&logits, &logits))
}

/// Returns the cross entropy between the relevance of items and the softmax of their scores, for each list. The result
/// is `[...]` for logits and labels `[..., items]`. If you want the mean over lists, as in Optax, you must call
/// `.mean(..)`.
///
/// `mask` is true for items that exist. Source: [Ai et al. 2019](https://arxiv.org/abs/1811.04415).
#[track_caller]
pub fn ranking_softmax_loss<'a>(
    logits: impl ArrayLike,
    labels: impl ArrayLike,
    mask: impl Into<Option<&'a Array>>,
) -> Array {
    let (logits, labels) = (logits.into_array(), labels.into_array());
    require!(
        &logits,
        floating("ranking_softmax_loss", "logits", &logits),
        labels.check(),
        same_shape("ranking_softmax_loss", ("logits", logits.shape()), ("labels", labels.shape())),
    );
    let labels = labels.astype(logits.dtype());
    match mask.into() {
        None => -(labels * log_softmax(logits, -1)).sum(-1),
        Some(mask) => {
            let labels = where_(mask, labels, 0);
            // Masked logs are -infinity, and their product with a label of 0 would be NaN.
            let logs = log_softmax(where_(mask, &logits, f64::NEG_INFINITY), -1);
            let terms = where_(mask, labels * where_(mask, logs, 0), 0).astype(logits.dtype());
            -terms.sum(-1)
        }
    }
}

/// Returns the triplet margin loss: the distance to the positive plus a margin, minus the distance to the negative, and
/// at least 0. The result is `[...]` for embeddings `[..., features]`. As by default in Optax, distances are Euclidean,
/// with 1e-6 inside of the root.
///
/// Source: [Schroff et al. 2015](https://arxiv.org/abs/1503.03832).
///
/// ```
/// use shardax_nn::losses::triplet_margin_loss;
/// use shardax_nn::prelude::*;
/// let (anchor, near, far) = (zeros([1, 2]), ones([1, 2]), full([1, 2], 9.0));
/// assert_eq!(triplet_margin_loss(anchor, near, far, 1.0).to_vec::<f32>()?, [0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn triplet_margin_loss(
    anchors: impl ArrayLike,
    positives: impl ArrayLike,
    negatives: impl ArrayLike,
    margin: f64,
) -> Array {
    let (anchors, positives, negatives) = (anchors.into_array(), positives.into_array(), negatives.into_array());
    require!(
        &anchors,
        floating("triplet_margin_loss", "anchors", &anchors),
        floating("triplet_margin_loss", "positives", &positives),
        floating("triplet_margin_loss", "negatives", &negatives),
    );
    let [to_positive, to_negative] = [positives, negatives].map(|x| {
        let difference = &anchors - x;
        (in_float32(&difference).square().sum(-1) + 1e-6).sqrt().astype(difference.dtype())
    });
    (to_positive - to_negative + margin).maximum(0)
}
