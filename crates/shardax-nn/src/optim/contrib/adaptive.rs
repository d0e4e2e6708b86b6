//! Optimizers that scale by moments of the gradients.

use shardax::numpy::full_dtype;
use shardax::prelude::*;

use super::super::tree_utils::{add_scale, bias_correction, mul, sub, update_moment, update_moment_per_elem_norm};
use super::{
    AddDecayedWeights, GradientTransformation, ScaleByLearningRate, Schedule, add_decayed_weights, count,
    in_wide_dtypes, safe_increment, scalar_dtype, scale_by_learning_rate, zeros_in,
};
use crate::check::{DECAY, NOT_NEGATIVE, real_parameters, within};

transformation! {
    /// Scales by the distance of the gradients from their mean in the step before.
    ///
    /// Source: [Zhuang et al. 2021](https://arxiv.org/abs/2110.05454).
    scale_by_acprop -> ScaleByAcprop {
        /// The decay rate of the mean of gradients. Default 0.9.
        b1: f64 = 0.9,
        /// The decay rate of the mean of squared deviations. Default 0.999.
        b2: f64 = 0.999,
        /// Added to the root. Default 1e-16.
        eps: f64 = 1e-16,
        /// Added to squared deviations. Default 1e-16.
        eps_root: f64 = 1e-16,
    }
    AcpropState {
        /// The steps taken, int32.
        count: Array,
        /// The mean of the gradients.
        mu: P,
        /// The mean of the squared deviations.
        nu: P,
    }
    init |this, params| {
        within("scale_by_acprop", "b1", this.b1, DECAY)?;
        within("scale_by_acprop", "b2", this.b2, DECAY)?;
        Ok(AcpropState { count: count(), mu: zeros_in(params, None)?, nu: zeros_in(params, None)? })
    };
    update |this, grads, state, _params| {
        let error = sub(&grads, &state.mu)?;
        let mu = update_moment(&grads, &state.mu, this.b1, 1)?;
        let nu = update_moment_per_elem_norm(&error, &state.nu, this.b2, 2)?;
        let nu = tree::map(|v| v + this.eps_root, nu)?;
        let initial = state.count.equal(0);
        let step = where_(&initial, 1, &state.count);
        let before = bias_correction(&state.nu, this.b2, &step)?;
        let updates = tree::map2(|g: Array, v: Array| g / (where_(&initial, 1, v).sqrt() + this.eps), grads, before)?;
        Ok((updates, AcpropState { count: safe_increment(state.count), mu, nu }))
    };
}

/// The optimizer that [`acprop`] returns.
pub type Acprop = (ScaleByAcprop, AddDecayedWeights, ScaleByLearningRate);

/// ACProp, without weight decay: gradients divided by their deviation from the mean, which it estimates from earlier steps.
///
/// ```
/// use shardax_nn::optim::contrib::acprop;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), acprop(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.8f32, 4.3]), 1e-3, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn acprop(learning_rate: impl Into<Schedule>) -> Acprop {
    (scale_by_acprop(), add_decayed_weights(0.0), scale_by_learning_rate(learning_rate))
}

transformation! {
    /// Adam with a second, slow mean of the gradients.
    ///
    /// Source: [Pagliardini et al. 2024](https://arxiv.org/abs/2409.03137).
    scale_by_ademamix -> ScaleByAdemamix {
        /// The decay rate of the fast mean. Default 0.9.
        b1: f64 = 0.9,
        /// The decay rate of the mean of squares. Default 0.999.
        b2: f64 = 0.999,
        /// The decay rate of the slow mean. Default 0.9999.
        b3: Schedule = 0.9999.into(),
        /// The weight of the slow mean. Default 6; [`ademamix`] uses 5.
        alpha: Schedule = 6.0.into(),
        /// Added to the root. Default 1e-8.
        eps: f64 = 1e-8,
        /// Added inside of the root. Default 0.
        eps_root: f64 = 0.0,
    }
    AdemamixState {
        /// The steps taken, int32.
        count: Array,
        /// The fast mean.
        m1: P,
        /// The slow mean.
        m2: P,
        /// The mean of squares.
        nu: P,
    }
    init |this, params| {
        within("scale_by_ademamix", "b1", this.b1, DECAY)?;
        within("scale_by_ademamix", "b2", this.b2, DECAY)?;
        let [m1, m2, nu] = [zeros_in(params, None)?, zeros_in(params, None)?, zeros_in(params, None)?];
        Ok(AdemamixState { count: count(), m1, m2, nu })
    };
    update |this, grads, state, _params| {
        let dtype = scalar_dtype(&grads);
        let (b3, alpha) = (this.b3.at_in(&state.count, dtype), this.alpha.at_in(&state.count, dtype));
        let m1 = update_moment(&grads, &state.m1, this.b1, 1)?;
        // Not computed as 1 - b3, because only three of its digits are exact in float32.
        let new_share = match this.b3 {
            Schedule::Constant { value } => full_dtype((), 1.0 - value, dtype),
            _ => 1 - &b3,
        };
        let m2 = tree::map2(|g, m| (&new_share * &g + &b3 * m).astype(g.dtype()), grads.clone(), state.m2)?;
        let nu = update_moment_per_elem_norm(&grads, &state.nu, this.b2, 2)?;
        let count = safe_increment(state.count);
        let (fast, squares) = (bias_correction(&m1, this.b1, &count)?, bias_correction(&nu, this.b2, &count)?);
        let updates = tree::map3(|m1: Array, m2: Array, v: Array| (m1 + &alpha * m2) / ((v + this.eps_root).sqrt() + this.eps), fast, m2.clone(), squares)?;
        Ok((updates, AdemamixState { count, m1, m2, nu }))
    };
}

/// The optimizer that [`ademamix`] returns.
pub type Ademamix = (ScaleByAdemamix, AddDecayedWeights, ScaleByLearningRate);

/// AdEMAMix: [`adamw`](super::super::adamw) with a second, slow mean of the gradients, and without weight decay.
///
/// ```
/// use shardax_nn::optim::contrib::ademamix;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), ademamix(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.7998517f32, 4.2001483]), 1e-3, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn ademamix(learning_rate: impl Into<Schedule>) -> Ademamix {
    let scaled = ScaleByAdemamix { alpha: 5.0.into(), ..scale_by_ademamix() };
    (scaled, add_decayed_weights(0.0), scale_by_learning_rate(learning_rate))
}

transformation! {
    /// Scales like [`scale_by_ademamix`], with the gradient as the fast mean and a sum as the slow mean.
    ///
    /// Source: [Morwani et al. 2025](https://arxiv.org/abs/2502.02431).
    scale_by_simplified_ademamix -> ScaleBySimplifiedAdemamix {
        /// The decay rate of the sum. Default 0.99.
        b1: f64 = 0.99,
        /// The decay rate of the mean of squares. Default 0.95.
        b2: f64 = 0.95,
        /// The weight of the gradient. Default 0.
        alpha: Schedule = 0.0.into(),
        /// Added to the root. Default 1e-8.
        eps: f64 = 1e-8,
        /// Added inside of the root. Default 0.
        eps_root: f64 = 0.0,
    }
    SimplifiedAdemamixState {
        /// The steps taken, int32.
        count: Array,
        /// The sum of gradients.
        m: P,
        /// The mean of squares.
        n: P,
    }
    init |this, params| {
        within("scale_by_simplified_ademamix", "b1", this.b1, DECAY)?;
        within("scale_by_simplified_ademamix", "b2", this.b2, DECAY)?;
        Ok(SimplifiedAdemamixState { count: count(), m: zeros_in(params, None)?, n: zeros_in(params, None)? })
    };
    update |this, grads, state, _params| {
        let alpha = this.alpha.at_in(&state.count, scalar_dtype(&grads));
        let m = add_scale(&grads, this.b1, &state.m)?;
        let squares = mul(&grads, &grads)?;
        let n = add_scale(&squares, this.b2, &sub(&state.n, &squares)?)?;
        let count = safe_increment(state.count);
        let corrected = bias_correction(&n, this.b2, &count)?;
        let updates = tree::map3(|m: Array, g: Array, n: Array| (m + &alpha * g) / ((n + this.eps_root).sqrt() + this.eps), m.clone(), grads, corrected)?;
        Ok((updates, SimplifiedAdemamixState { count, m, n }))
    };
}

/// The optimizer that [`simplified_ademamix`] returns.
pub type SimplifiedAdemamix = (ScaleBySimplifiedAdemamix, AddDecayedWeights, ScaleByLearningRate);

/// Simplified AdEMAMix, without weight decay: [`ademamix`] with the gradient as the fast mean and a sum as the slow mean.
///
/// ```
/// use shardax_nn::optim::contrib::simplified_ademamix;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), simplified_ademamix(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.701f32, 4.299]), 1e-3, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn simplified_ademamix(learning_rate: impl Into<Schedule>) -> SimplifiedAdemamix {
    (scale_by_simplified_ademamix(), add_decayed_weights(0.0), scale_by_learning_rate(learning_rate))
}

transformation! {
    /// Adam that scales each gradient by the squares of the earlier gradients, clipped to the fourth root of the step.
    ///
    /// Source: [Taniguchi et al. 2024](https://arxiv.org/abs/2411.02853).
    scale_by_adopt -> ScaleByAdopt {
        /// The decay rate of the mean of gradients. Default 0.9.
        b1: f64 = 0.9,
        /// The decay rate of the mean of squares. Default 0.9999.
        b2: f64 = 0.9999,
        /// The least root. Default 1e-6.
        eps: f64 = 1e-6,
        /// Uses Nesterov's momentum. Default false.
        nesterov: bool = false,
        /// Clips the scaled gradients. Default true.
        use_clipping: bool = true,
    }
    AdoptState {
        /// The steps taken, int32.
        count: Array,
        /// The mean of the scaled gradients.
        mu: P,
        /// The mean of squares.
        nu: P,
    }
    init |this, params| {
        within("scale_by_adopt", "b1", this.b1, DECAY)?;
        within("scale_by_adopt", "b2", this.b2, DECAY)?;
        within("scale_by_adopt", "eps", this.eps, NOT_NEGATIVE)?;
        real_parameters("scale_by_adopt", params)?;
        Ok(AdoptState { count: count(), mu: zeros_in(params, None)?, nu: zeros_in(params, None)? })
    };
    update |this, grads, state, _params| {
        let (later, dtype) = (state.count.greater(0), scalar_dtype(&grads));
        let [b1, b2] = [(this.b1, 1.0), (this.b2, 0.0)]
            .map(|(b, first)| where_(&later, full_dtype((), b, dtype), full_dtype((), first, dtype)));
        let nu = tree::map2(|g, v| weighted_mean(g.square(), v, &b2), grads.clone(), state.nu.clone())?;
        let bound = state.count.astype(dtype).pow(0.25);
        let scaled = tree::map2(|g: Array, v: Array| {
            let u = g / v.sqrt().maximum(this.eps);
            if this.use_clipping { maximum(minimum(&u, &bound), -&bound).astype(u.dtype()) } else { u }
        }, grads, state.nu)?;
        let mu = tree::map2(|u, m| weighted_mean(u, m, &b1), scaled.clone(), state.mu)?;
        let updates = if this.nesterov { tree::map2(|u, m| weighted_mean(u, m, &b1), scaled, mu.clone())? } else { mu.clone() };
        Ok((updates, AdoptState { count: safe_increment(state.count), mu, nu }))
    };
}

/// The optimizer that [`adopt`] returns.
pub type Adopt = (ScaleByAdopt, ScaleByLearningRate);

/// ADOPT: Adam that converges for any `b2`.
///
/// ```
/// use shardax_nn::optim::contrib::adopt;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), adopt(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// // The first step only measures the gradient.
/// assert!(allclose(&state.params, array([2.99f32, 4.01]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn adopt(learning_rate: impl Into<Schedule>) -> Adopt {
    (scale_by_adopt(), scale_by_learning_rate(learning_rate))
}

transformation! {
    /// Dual averages of gradients, divided by cube roots of sums of squares. The updates contain the learning rate.
    ///
    /// Source: [Defazio and Jelassi 2021](https://arxiv.org/abs/2101.11075).
    scale_by_madgrad -> ScaleByMadgrad {
        /// The learning rate. Default 0.01; Optax has none.
        learning_rate: Schedule = 0.01.into(),
        /// The share of the old parameters. Default 0.9.
        momentum: f64 = 0.9,
        /// Added to the root, and to the learning rate. Default 1e-6.
        eps: f64 = 1e-6,
    }
    MadgradState {
        /// The steps taken, int32.
        count: Array,
        /// The weighted sum of squares.
        grad_sum_sq: P,
        /// The weighted sum of gradients.
        s: P,
        /// The first parameters.
        x0: P,
    }
    init |this, params| {
        within("scale_by_madgrad", "momentum", this.momentum, DECAY)?;
        real_parameters("scale_by_madgrad", params)?;
        let zeros = zeros_in(params, None)?;
        Ok(MadgradState { count: count(), grad_sum_sq: zeros.clone(), s: zeros, x0: tree::map(|x| x, params.clone())? })
    };
    update |this, grads, state, params| {
        let dtype = scalar_dtype(&grads);
        let rate = this.learning_rate.at_in(&state.count, dtype) + this.eps;
        let weight = rate * (&state.count + 1).astype(dtype).sqrt();
        let grad_sum_sq =
            tree::map2(|sum, g| add_weighted(sum, &g.square(), &weight), state.grad_sum_sq, grads.clone())?;
        let s = tree::map2(|sum, g| add_weighted(sum, &g, &weight), state.s, grads)?;
        let z =
            tree::map3(|x0, s, sum| x0 - s / (sum.cbrt() + this.eps), state.x0.clone(), s.clone(), grad_sum_sq.clone())?;
        let updates = tree::map2(|z, x| (1.0 - this.momentum) * z + this.momentum * &x - x, z, params.clone())?;
        Ok((updates, MadgradState { count: safe_increment(state.count), grad_sum_sq, s, x0: state.x0 }))
    };
}

/// The optimizer that [`madgrad`] returns.
pub type Madgrad = (AddDecayedWeights, ScaleByMadgrad);

/// MADGRAD, without weight decay: momentum, and dual averages of the gradients divided by cube roots of sums of squares.
///
/// ```
/// use shardax_nn::optim::contrib::madgrad;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), madgrad(0.1))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.9418375f32, 4.0732799]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn madgrad(learning_rate: impl Into<Schedule>) -> Madgrad {
    let scaled = ScaleByMadgrad { learning_rate: learning_rate.into(), ..scale_by_madgrad() };
    (add_decayed_weights(0.0), scaled)
}

/// Returns `decay * old + (1 - decay) * new`.
fn weighted_mean(new: Array, old: Array, decay: &Array) -> Array {
    ((1 - decay) * &new + decay * old).astype(new.dtype())
}

fn add_weighted(sum: Array, new: &Array, weight: &Array) -> Array {
    sum + (weight * new).astype(new.dtype())
}
