//! Transformations that draw random numbers, and private gradients.

use shardax::prelude::*;

use super::tree_utils::{abs_sq, random_like, total};
use super::{GradientTransformation, count, safe_increment, scalar_dtype, wide_dtype};
use crate::check::{FINITE, NOT_NEGATIVE, value_error, within};

/// The gradient transformation that [`add_noise`] returns.
#[derive(Tree, Clone, Debug)]
pub struct AddNoise {
    /// The variance of the first step.
    pub eta: f64,
    /// The decay exponent: the variance of step `t`, from 1, is `eta / t^gamma`.
    pub gamma: f64,
    /// The random key to begin with.
    pub key: Array,
}

/// The state of [`AddNoise`].
#[derive(Tree, Clone, Debug)]
pub struct AddNoiseState {
    /// The steps taken, int32.
    pub count: Array,
    /// The key of the next step.
    pub rng_key: Array,
}

/// Adds normal noise, whose variance decreases from step to step.
///
/// Source: [Neelakantan et al. 2014](https://arxiv.org/abs/1511.06807).
pub fn add_noise(eta: f64, gamma: f64, key: &Array) -> AddNoise {
    AddNoise { eta, gamma, key: key.clone() }
}

impl<P: Tree> GradientTransformation<P> for AddNoise {
    type State = AddNoiseState;

    #[track_caller]
    fn init(&self, _params: &P) -> Result<Self::State> {
        within("add_noise", "eta", self.eta, NOT_NEGATIVE)?;
        within("add_noise", "gamma", self.gamma, FINITE)?;
        Ok(AddNoiseState { count: count(), rng_key: self.key.clone() })
    }

    fn update(&self, grads: P, state: Self::State, _params: &P) -> Result<(P, Self::State)> {
        let count = safe_increment(&state.count);
        let deviation = (self.eta / power(count.astype(scalar_dtype(&grads)), self.gamma)).sqrt();
        let [rng_key, key] = random::split(&state.rng_key, 2).unstack()?;
        let noise = random_like(&key, &grads)?;
        // Converted, because an array of the deviation's dtype would promote the updates.
        let updates = tree::map2(|u, n| &u + deviation.astype(u.dtype()) * n, grads, noise)?;
        Ok((updates, AddNoiseState { count, rng_key }))
    }
}

/// Clips the gradients of every example to a length of at most `l2_norm_clip`. Each array must be `[batch, …]`. Returns the
/// sum over the batch, and the number of clipped examples, int32.
///
/// ```
/// use shardax_nn::optim::per_example_global_norm_clip;
/// use shardax_nn::prelude::*;
/// let grads = array([[3.0f32, 4.0], [0.3, 0.4]]);
/// let (sum, clipped) = per_example_global_norm_clip(&grads, 1.0)?;
/// assert!(allclose(sum, array([0.9f32, 1.2]), 1e-6, 0.0)?);
/// assert_eq!(clipped.item::<i32>()?, 1);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `l2_norm_clip` is negative or not finite, or if the arrays do not have the same batch size.
#[track_caller]
pub fn per_example_global_norm_clip<P: Tree>(grads: &P, l2_norm_clip: f64) -> Result<(P, Array)> {
    let name = "per_example_global_norm_clip";
    within(name, "l2_norm_clip", l2_norm_clip, NOT_NEGATIVE)?;
    let leaves = tree::leaves(grads);
    let batch = leaves.first().and_then(|g| g.shape().first().copied());
    if let Some(g) = leaves.iter().find(|g| g.shape().first().copied() != batch || batch.is_none()) {
        return value_error(format!("{name} expects a batch dimension in the 0th axis of all, got {}", g.type_name()));
    }
    let squares = leaves.iter().map(|g| abs_sq(&g.reshape([batch.unwrap_or(0) as i64, -1])).sum(1));
    let ratio = l2_norm_clip / total(squares).sqrt();
    // A gradient of zeros with a limit of 0 is 0 / 0, which must not reach the sum.
    let ratio = where_(ratio.isnan(), 1, minimum(ratio, 1));
    let clipped = ratio.less(1).sum(..);
    Ok((
        tree::map(|g: Array| tensordot(&ratio, g.astype(wide_dtype(g.dtype())), 1).astype(g.dtype()), grads.clone())?,
        clipped,
    ))
}

/// The gradient transformation that [`differentially_private_aggregate`] returns.
#[derive(Tree, Clone, Debug)]
pub struct DifferentiallyPrivateAggregate {
    /// The maximum length of the gradients of one example.
    pub l2_norm_clip: f64,
    /// The deviation of the noise, as a multiple of `l2_norm_clip`.
    pub noise_multiplier: f64,
    /// The random key to begin with.
    pub key: Array,
}

/// The state of [`DifferentiallyPrivateAggregate`].
#[derive(Tree, Clone, Debug)]
pub struct DifferentiallyPrivateAggregateState {
    /// The key of the next step.
    pub rng_key: Array,
}

/// Clips the gradients of every example, computes their mean over the batch, and adds noise, for [`dpsgd`](super::dpsgd).
/// Each gradient must be `[batch, …]`.
///
/// Put it first in a chain. The parameters and the updates after it have no batch dimension.
///
/// Source: [Abadi et al. 2016](https://arxiv.org/abs/1607.00133).
pub fn differentially_private_aggregate(
    l2_norm_clip: f64,
    noise_multiplier: f64,
    key: &Array,
) -> DifferentiallyPrivateAggregate {
    DifferentiallyPrivateAggregate { l2_norm_clip, noise_multiplier, key: key.clone() }
}

impl<P: Tree> GradientTransformation<P> for DifferentiallyPrivateAggregate {
    type State = DifferentiallyPrivateAggregateState;

    #[track_caller]
    fn init(&self, _params: &P) -> Result<Self::State> {
        let name = "differentially_private_aggregate";
        within(name, "l2_norm_clip", self.l2_norm_clip, NOT_NEGATIVE)?;
        within(name, "noise_multiplier", self.noise_multiplier, NOT_NEGATIVE)?;
        Ok(DifferentiallyPrivateAggregateState { rng_key: self.key.clone() })
    }

    fn update(&self, grads: P, state: Self::State, _params: &P) -> Result<(P, Self::State)> {
        let leaves = tree::leaves(&grads);
        let batch = leaves.first().and_then(|g| g.shape().first().copied()).unwrap_or(0);
        let (clipped, _) = per_example_global_norm_clip(&grads, self.l2_norm_clip)?;
        let keys = random::split(&state.rng_key, leaves.len() + 1);
        let (mut at, deviation) = (0, self.l2_norm_clip * self.noise_multiplier);
        let noised = tree::map(
            |g| {
                at += 1;
                let noise = random::normal_dtype(&keys.get(at), g.shape(), g.dtype());
                (g + deviation * noise) / batch
            },
            clipped,
        )?;
        Ok((noised, DifferentiallyPrivateAggregateState { rng_key: keys.get(0) }))
    }
}
