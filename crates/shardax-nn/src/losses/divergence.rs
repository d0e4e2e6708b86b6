//! Kullback-Leibler divergences of distributions.

use shardax::prelude::*;

use crate::check::{floating, require};

/// Replaces minus infinity by 0 where the logarithm has the weight 0, because 0 · ∞ would be NaN instead of 0.
pub(super) fn finite_where(has_no_weight: &Array, logs: &Array) -> Array {
    where_(has_no_weight & logs.equal(f64::NEG_INFINITY), 0, logs)
}

/// Returns the Kullback-Leibler divergence between the probabilities `targets` and predictions, which are logarithms of
/// probabilities, over the last axis.
///
/// Both are `[..., classes]` with a floating-point dtype, and the result is `[...]`. Classes of probability 0 in `targets`
/// add 0, even if they are impossible in `log_predictions` too.
///
/// ```
/// use shardax_nn::prelude::*;
/// let p = array([0.5f32, 0.5]);
/// assert_eq!(kl_divergence(p.log(), &p).item::<f32>()?, 0.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn kl_divergence(log_predictions: impl ArrayLike, targets: impl ArrayLike) -> Array {
    let (name, logs, targets) = ("kl_divergence", log_predictions.into_array(), targets.into_array());
    require!(&logs, floating(name, "log_predictions", &logs), floating(name, "targets", &targets));
    let zero = targets.equal(0);
    // The logarithm of 0 is never computed, because its gradient would be NaN.
    let log_targets = where_(&zero, 0, where_(&zero, 1, &targets).log());
    (targets * (log_targets - finite_where(&zero, &logs))).sum(-1)
}

/// Computes [`kl_divergence`] for targets that are logarithms too.
///
/// ```
/// use shardax_nn::prelude::*;
/// let logs = array([0.5f32, 0.5]).log();
/// assert_eq!(kl_divergence_with_log_targets(&logs, &logs).item::<f32>()?, 0.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn kl_divergence_with_log_targets(log_predictions: impl ArrayLike, log_targets: impl ArrayLike) -> Array {
    let (logs, targets) = (log_predictions.into_array(), log_targets.into_array());
    let name = "kl_divergence_with_log_targets";
    require!(&logs, floating(name, "log_predictions", &logs), floating(name, "log_targets", &targets));
    let is_impossible = targets.equal(f64::NEG_INFINITY);
    (targets.exp() * where_(is_impossible, 0, &targets - logs)).sum(-1)
}

/// Computes [`kl_divergence`] plus `sum(exp(log_predictions) - targets)`, for measures that do not sum to 1.
///
/// ```
/// use shardax_nn::prelude::*;
/// let p = array([0.5f32, 1.5]);
/// assert!(generalized_kl_divergence(p.log(), &p).item::<f32>()?.abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn generalized_kl_divergence(log_predictions: impl ArrayLike, targets: impl ArrayLike) -> Array {
    let (logs, targets) = (log_predictions.into_array(), targets.into_array());
    kl_divergence(&logs, &targets) + (logs.exp() - targets).sum(-1)
}
