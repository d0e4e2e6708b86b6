//! Losses that a regularized maximum generates.

use shardax::function::IntoOutput;
use shardax::prelude::*;

use crate::check::{floating, same_shape};

/// Returns the Fenchel-Young loss of a maximum function: `max_fun(scores) - targets · scores`, `[...]` for scores and targets
/// `[..., n]`. `max_fun` maps `[n]` to a scalar. With `logsumexp` it is the cross entropy.
///
/// Source: [Blondel et al. 2020](https://arxiv.org/abs/1901.02324).
///
/// ```
/// use shardax_nn::losses::make_fenchel_young_loss;
/// use shardax_nn::prelude::*;
/// let loss = make_fenchel_young_loss(|scores: Array| logsumexp(scores, ..));
/// let (scores, targets) = (array([[0.0f32, 1.0]]), array([[0.0f32, 1.0]]));
/// let want = softmax_cross_entropy(&scores, &targets);
/// assert!(allclose(loss(scores, targets)?, want, 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The loss returns an error if scores and targets differ in shape or are not floating-point, or if `max_fun` fails.
pub fn make_fenchel_young_loss<F, R>(max_fun: F) -> impl Fn(Array, Array) -> Result<Array>
where
    F: Fn(Array) -> R,
    R: IntoOutput<Output = Array>,
{
    move |scores, targets| {
        let name = "make_fenchel_young_loss";
        floating(name, "scores", &scores)?;
        floating(name, "targets", &targets)?;
        same_shape(name, ("scores", scores.shape()), ("targets", targets.shape()))?;
        let (n, rest) = scores.shape().split_last().map_or((1, &[][..]), |(n, rest)| (*n, rest));
        let lists = scores.reshape([rest.iter().product(), n]);
        let largest = vmap(|scores: Array| max_fun(scores).into_output()).call(lists)?;
        Ok(largest.reshape(rest) - (targets * &scores).sum(-1))
    }
}
