//! A wrapper that learns the scale of an optimizer's updates.

use shardax::prelude::*;

use super::super::tree_utils::{norm, sub, vdot};
use super::{GradientTransformation, count, estimate, safe_increment};
use crate::check::{NOT_NEGATIVE, positive, within};

/// The gradient transformation that [`mechanize`] returns.
#[derive(Tree, Clone, Debug)]
pub struct Mechanize<T> {
    /// The optimizer whose updates are scaled.
    pub base_optimizer: T,
    /// The weight decay, as a multiple of the learned scale. Default 0.01.
    pub weight_decay: f64,
    /// Added to denominators. Default 1e-8.
    pub eps: f64,
    /// The first scale. Default 1e-6.
    pub s_init: f64,
    /// The number of decay rates: 0.9, 0.99, … Default 6.
    pub num_betas: usize,
}

/// The state of [`Mechanize`].
#[derive(Tree, Clone, Debug)]
pub struct MechanicState<S, P> {
    /// The state of the optimizer.
    pub base_optimizer_state: S,
    /// The steps taken, int32.
    pub count: Array,
    /// The reward for each decay rate.
    pub r: Array,
    /// The largest gradients.
    pub m: Array,
    /// The sums of squares.
    pub v: Array,
    /// The scale for each decay rate. Their sum is the scale of the updates.
    pub s: Array,
    /// The first parameters.
    pub x0: P,
}

/// Learns the scale of an optimizer's updates. You should set the learning rate of the optimizer to 1, or to a schedule
/// whose largest value is 1.
///
/// Source: [Cutkosky et al. 2023](https://arxiv.org/abs/2306.00144).
pub fn mechanize<T>(base_optimizer: T) -> Mechanize<T> {
    Mechanize { base_optimizer, weight_decay: 1e-2, eps: 1e-8, s_init: 1e-6, num_betas: 6 }
}

impl<P: Tree, T: GradientTransformation<P>> GradientTransformation<P> for Mechanize<T> {
    type State = MechanicState<T::State, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        positive("mechanize", "num_betas", self.num_betas)?;
        within("mechanize", "s_init", self.s_init, NOT_NEGATIVE)?;
        let for_each_beta =
            |value: f64| -> Result<Array> { Ok(estimate(params, value)?.broadcast_to([self.num_betas])) };
        Ok(MechanicState {
            base_optimizer_state: self.base_optimizer.init(params)?,
            count: count(),
            r: for_each_beta(0.0)?,
            m: for_each_beta(0.0)?,
            v: for_each_beta(0.0)?,
            s: for_each_beta(self.s_init)?,
            x0: tree::map(|x| x, params.clone())?,
        })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        let (updates, base_optimizer_state) =
            self.base_optimizer.update(grads.clone(), state.base_optimizer_state, params)?;
        let total = state.s.sum(..);
        let decay = self.weight_decay * &total * norm(&grads) / (norm(params) + self.eps);
        let grads = tree::map2(|g, p| g + &decay * p, grads, params.clone())?;
        let before = tree::map2(|p, p0| (p0 - p) / (&total + self.eps), params.clone(), state.x0.clone())?;
        let delta = sub(&before, &updates)?;
        let h = vdot(&grads, &before)?;
        let clipped = maximum(minimum(&h, &state.m), -&state.m);
        // Each beta has a learner with its own step size; the sizes are added up.
        let betas: Vec<f64> = (1..=self.num_betas).map(|i| 1.0 - 0.1f64.powi(i as i32)).collect();
        let betas = array(betas).astype(state.s.dtype());
        let m = maximum(&betas * state.m, h.abs() + self.eps);
        let v = betas.square() * state.v + h.square();
        let r = &betas * state.r + clipped * &state.s;
        let wealth = &m * (self.s_init / self.num_betas as f64) + r.maximum(0);
        let s = wealth / (v.sqrt() + self.eps);
        let scale = s.sum(..);
        let updates = tree::map3(|x0, d, p| x0 - &scale * d - p, state.x0.clone(), delta, params.clone())?;
        let count = safe_increment(state.count);
        Ok((updates, MechanicState { base_optimizer_state, count, r, m, v, s, x0: state.x0 }))
    }
}
