//! Descent that is scaled by an estimate of the diagonal of the Hessian matrix.
//!
//! Source: [Liu et al. 2023](https://arxiv.org/abs/2305.14342).

use shardax::function::IntoOutput;
use shardax::prelude::*;

use super::super::tree_utils::{bias_correction, cast_like, update_moment};
use super::{Schedule, count, in_wide_dtypes, safe_increment, scalar_dtype, zeros_in};
use crate::check::{DECAY, FINITE, NOT_NEGATIVE, positive, within};

/// The optimizer that [`sophia`] returns.
#[derive(Tree, Clone, Debug)]
pub struct Sophia {
    /// The learning rate, or its schedule.
    pub learning_rate: Schedule,
    /// The decay rate of the mean of gradients. Default 0.965.
    pub b1: f64,
    /// The decay rate of the mean of estimates. Default 0.99.
    pub b2: f64,
    /// The least divisor. Default 1e-8.
    pub eps: f64,
    /// The weight decay. Default 1e-4.
    pub weight_decay: f64,
    /// The factor of the estimates. Default 0.01.
    pub gamma: f64,
    /// The largest update of an element before the learning rate, if there is one. Default 1.
    pub clip_threshold: Option<f64>,
    /// The number of steps between two estimates. Default 10.
    pub update_interval: usize,
}

/// The state of [`Sophia`].
#[derive(Tree, Clone, Debug)]
pub struct SophiaState<P> {
    /// The steps taken, int32.
    pub count: Array,
    /// The mean of gradients.
    pub mu: P,
    /// The mean of the estimates of the diagonal.
    pub nu: P,
    /// The random key of the next estimate.
    pub key: Array,
}

/// Sophia: the mean of the gradients, divided by an estimate of the diagonal of the Hessian matrix, and clipped. Every tenth
/// step computes a new estimate from the loss itself, with random signs
/// ([Hutchinson's estimator](hutchinson_estimator_diag_hessian)).
///
/// Over devices, the loss must be the mean over all of them; otherwise the estimates of the devices differ.
///
/// ```
/// use shardax_nn::optim::contrib::sophia;
/// use shardax_nn::prelude::*;
/// let loss = |x: Array| (array([1.0f32, 100.0]) * x.square()).sum(..);
/// let (optimizer, mut params) = (sophia(0.02), ones([2]));
/// let mut state = optimizer.init(&params, &random::key(0))?;
/// for _ in 0..20 {
///     let grads = grad(loss).call(&params)?;
///     let (updates, next) = optimizer.update_with(grads, state, &params, loss)?;
///     (params, state) = (apply_updates(params, updates)?, next);
/// }
/// assert!(allclose(params, array([0.6f32, 0.6]), 1e-3, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn sophia(learning_rate: impl Into<Schedule>) -> Sophia {
    Sophia {
        learning_rate: learning_rate.into(),
        b1: 0.965,
        b2: 0.99,
        eps: 1e-8,
        weight_decay: 1e-4,
        gamma: 0.01,
        clip_threshold: Some(1.0),
        update_interval: 10,
    }
}

impl Sophia {
    /// Returns the state before the first step, whose estimates use `key`.
    ///
    /// # Errors
    /// Returns an error if an option is out of its range, or if `key` is not a random key.
    #[track_caller]
    pub fn init<P: Tree>(&self, params: &P, key: &Array) -> Result<SophiaState<P>> {
        within("sophia", "b1", self.b1, DECAY)?;
        within("sophia", "b2", self.b2, DECAY)?;
        within("sophia", "eps", self.eps, NOT_NEGATIVE)?;
        within("sophia", "weight_decay", self.weight_decay, NOT_NEGATIVE)?;
        within("sophia", "gamma", self.gamma, FINITE)?;
        positive("sophia", "update_interval", self.update_interval)?;
        random::split(key, 2).check()?;
        Ok(SophiaState { count: count(), mu: zeros_in(params, None)?, nu: zeros_in(params, None)?, key: key.clone() })
    }

    /// Returns the updates and the next state. `obj_fn` must be a scalar function, the loss of this step, and `grads` its
    /// gradient at `params`.
    ///
    /// # Errors
    /// Returns an error if the trees differ in structure, or if `obj_fn` fails or does not return a real scalar.
    #[track_caller]
    pub fn update_with<P, F, R>(
        &self,
        grads: P,
        state: SophiaState<P>,
        params: &P,
        obj_fn: F,
    ) -> Result<(P, SophiaState<P>)>
    where
        P: Tree,
        F: Fn(P) -> R,
        R: IntoOutput<Output = Array>,
    {
        let original = params;
        in_wide_dtypes(grads, params, |grads, params| {
            let step = safe_increment(&state.count);
            let mu = update_moment(&grads, &state.mu, self.b1, 1)?;
            let directions = tree::map2(
                |m: Array, h: Array| {
                    let direction = m / (self.gamma * h).maximum(self.eps);
                    match self.clip_threshold {
                        Some(limit) => direction.clip(-limit, limit),
                        None => direction,
                    }
                },
                bias_correction(&mu, self.b1, &step)?,
                state.nu.clone(),
            )?;
            let rate = self.learning_rate.at_in(&state.count, scalar_dtype(&grads));
            let updates = tree::map2(
                |d: Array, p: Array| {
                    let dtype = d.dtype();
                    (-&rate * (d + self.weight_decay * p)).astype(dtype)
                },
                directions,
                params.clone(),
            )?;
            type Parts<P> = (P, Array, P);
            let is_due = remainder(&state.count, self.update_interval).equal(0);
            let estimated = |(nu, key, params): Parts<P>| -> Result<(P, Array)> {
                let keys = random::split(&key, 2);
                let diagonal = hutchinson_estimator_diag_hessian(&keys.get(1), &params, &obj_fn)?;
                let nu = cast_like(&update_moment(&diagonal, &nu, self.b2, 1)?, &nu)?;
                Ok((nu, keys.get(0)))
            };
            let kept = |(nu, key, _): Parts<P>| (nu, key);
            let (nu, key) = cond(is_due, estimated, kept, (state.nu, state.key, original.clone()))?;
            Ok((updates, SophiaState { count: step, mu, nu, key }))
        })
    }
}

/// Returns an estimate of the diagonal of the Hessian matrix of a scalar function: the product of the matrix with random signs,
/// times these signs. Its mean over keys is the diagonal.
///
/// ```
/// use shardax_nn::optim::contrib::hutchinson_estimator_diag_hessian;
/// use shardax_nn::prelude::*;
/// let f = |x: Array| (array([1.0f32, 2.0]) * x.square()).sum(..);
/// let diagonal = hutchinson_estimator_diag_hessian(&random::key(0), &ones([2]), f)?;
/// assert_eq!(diagonal.to_vec::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `key` is not a random key, or if `obj_fn` fails or does not return a real scalar.
#[track_caller]
pub fn hutchinson_estimator_diag_hessian<P, F, R>(key: &Array, params: &P, obj_fn: F) -> Result<P>
where
    P: Tree,
    F: Fn(P) -> R,
    R: IntoOutput<Output = Array>,
{
    let keys = random::split(key, tree::leaves(params).len());
    let mut next = 0;
    let signs = tree::map(
        |p: Array| {
            next += 1;
            random::rademacher(keys.get(next - 1), p.shape()).astype(p.dtype())
        },
        params.clone(),
    )?;
    let gradient = grad(|p: P| obj_fn(p).into_output());
    let (_, product) = jvp(|(p,): (P,)| gradient.call(p), (params.clone(),), (signs.clone(),))?;
    tree::map2(|h, s| h * s, product, signs)
}
