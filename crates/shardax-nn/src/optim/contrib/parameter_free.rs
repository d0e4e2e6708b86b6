//! Optimizers that estimate their learning rate.

use shardax::prelude::*;

use super::super::tree_utils::{NormOptions, abs_sq, scale, sub, sum, vdot};
use super::{
    AddDecayedWeights, GradientTransformation, ScaleByLearningRate, Schedule, add_decayed_weights, count, estimate,
    in_wide_dtypes, one_minus_power, safe_increment, scalar_dtype, scale_by_learning_rate, zeros_in,
};
use crate::check::{DECAY, FINITE, real_parameters, within};

fn squared_norm<P: Tree>(tree: &P) -> Array {
    NormOptions::new().squared(true).norm(tree)
}

/// Returns `sqrt(1 - b2^step) / (1 - b1^step)`, the correction of Adam's two means.
fn corrections([b1, b2]: [f64; 2], step: &Array, dtype: DType) -> Array {
    one_minus_power(b2, step, dtype).sqrt() / one_minus_power(b1, step, dtype)
}

/// Returns `numerator / denominator`, or 0 before the first gradient that is not zero.
fn ratio(numerator: impl ArrayLike, denominator: Array) -> Array {
    let none = denominator.equal(0);
    where_(&none, 0, numerator.into_array() / where_(&none, 1, &denominator))
}

/// Returns `decay * old + (1 - decay) * new`.
fn mean(old: Array, new: Array, decay: f64) -> Array {
    decay * old + (1.0 - decay) * new
}

transformation! {
    /// Bets on the sign of each gradient: updates follow a gambler's wealth.
    ///
    /// Source: [Orabona and Tommasi 2017](https://arxiv.org/abs/1705.07795).
    scale_by_cocob -> ScaleByCocob {
        /// The bet is divided by at least this multiple of the largest gradient. Default 100.
        alpha: f64 = 100.0,
        /// The first largest gradient. Default 1e-8.
        eps: f64 = 1e-8,
    }
    CocobState {
        /// The first parameters.
        init_particles: P,
        /// The negative sum of the gradients.
        cumulative_gradients: P,
        /// The largest absolute gradient.
        scale: P,
        /// The sum of absolute gradients.
        subgradients: P,
        /// The reward.
        reward: P,
    }
    init |this, params| {
        within("scale_by_cocob", "alpha", this.alpha, FINITE)?;
        real_parameters("scale_by_cocob", params)?;
        Ok(CocobState {
            init_particles: tree::map(|x| x, params.clone())?,
            cumulative_gradients: zeros_in(params, None)?,
            scale: tree::map(|x| x + this.eps, zeros_in(params, None)?)?,
            subgradients: zeros_in(params, None)?,
            reward: zeros_in(params, None)?,
        })
    };
    update |this, grads, state, params| {
        let scale = tree::map2(|l, c| maximum(l, c.abs()), state.scale, grads.clone())?;
        let subgradients = tree::map2(|g, c| g + c.abs(), state.subgradients, grads.clone())?;
        let moved = sub(params, &state.init_particles)?;
        let reward = tree::map3(|r, c, d| (r - c * d).maximum(0), state.reward, grads.clone(), moved.clone())?;
        let cumulative_gradients = sub(&state.cumulative_gradients, &grads)?;
        let stake = tree::map3(|l: Array, g: Array, r: Array| (&l + r) / (&l * maximum(g + &l, this.alpha * &l)), scale.clone(), subgradients.clone(), reward.clone())?;
        let updates = tree::map3(|c, s, d| c * s - d, cumulative_gradients.clone(), stake, moved)?;
        let init_particles = state.init_particles;
        Ok((updates, CocobState { init_particles, cumulative_gradients, scale, subgradients, reward }))
    };
}

/// The optimizer that [`cocob`] returns.
pub type Cocob = (AddDecayedWeights, ScaleByLearningRate, ScaleByCocob);

/// COCOB: descent without a learning rate, by coin betting. Optax's default `learning_rate` is 1.
///
/// ```
/// use shardax_nn::optim::contrib::cocob;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array([3.0f32, 4.0]), cocob(1.0))?;
/// for _ in 0..2 {
///     state = state.apply_gradients(array([1.0f32, -2.0]))?;
/// }
/// assert!(allclose(&state.params, array([2.9798f32, 4.0201998]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn cocob(learning_rate: impl Into<Schedule>) -> Cocob {
    let rate = ScaleByLearningRate { flip_sign: false, ..scale_by_learning_rate(learning_rate) };
    (add_decayed_weights(0.0), rate, scale_by_cocob())
}

transformation! {
    /// AdamW whose learning rate is an estimate of the distance to the solution, times `learning_rate`.
    ///
    /// Source: [Defazio and Mishchenko 2023](https://arxiv.org/abs/2301.07733).
    scale_by_dadapt_adamw -> DAdaptAdamW {
        /// The factor of the estimate, or its schedule. Default 1.
        learning_rate: Schedule = 1.0.into(),
        /// The decay rates of both means. Default 0.9 and 0.999.
        betas: [f64; 2] = [0.9, 0.999],
        /// Added to roots. Default 1e-8.
        eps: f64 = 1e-8,
        /// The initial estimate. You should rather choose it too small than too large, because the estimate never
        /// decreases. Default 1e-6.
        estim_lr0: f64 = 1e-6,
        /// The weight decay. Default 0.
        weight_decay: f64 = 0.0,
    }
    DAdaptAdamWState {
        /// The mean of scaled gradients.
        exp_avg: P,
        /// The mean of squares.
        exp_avg_sq: P,
        /// The mean of gradients from which the estimate is computed.
        grad_sum: P,
        /// The estimate.
        estim_lr: Array,
        /// The numerator of the estimate.
        numerator_weighted: Array,
        /// The steps taken, int32.
        count: Array,
    }
    init |this, params| {
        within("dadapt_adamw", "beta1", this.betas[0], DECAY)?;
        within("dadapt_adamw", "beta2", this.betas[1], DECAY)?;
        Ok(DAdaptAdamWState {
            exp_avg: zeros_in(params, None)?,
            exp_avg_sq: zeros_in(params, None)?,
            grad_sum: zeros_in(params, None)?,
            estim_lr: estimate(params, this.estim_lr0)?,
            numerator_weighted: estimate(params, 0.0)?,
            count: count(),
        })
    };
    update |this, grads, state, params| {
        let [b1, b2] = this.betas;
        let root = b2.sqrt();
        let count = safe_increment(&state.count);
        let dtype = scalar_dtype(&grads);
        let factor = this.learning_rate.at_in(&state.count, dtype) * corrections(this.betas, &count, dtype);
        let rate = &state.estim_lr * factor;
        let rate = rate.astype(state.estim_lr.dtype());
        let weighted = tree::map2(|s, v| s / (v.sqrt() + this.eps), state.grad_sum.clone(), state.exp_avg_sq.clone())?;
        let along = vdot(&grads, &weighted)?.real();
        let exp_avg = tree::map2(|m, g| mean(m, &rate * g, b1), state.exp_avg, grads.clone())?;
        let exp_avg_sq = tree::map2(|v, g| mean(v, abs_sq(&g), b2), state.exp_avg_sq, grads.clone())?;
        let grad_sum = tree::map2(|s, g| mean(s, &rate * g, root), state.grad_sum, grads)?;
        let size = sum(&tree::map(|s| s.abs(), grad_sum.clone())?);
        let numerator_weighted = mean(state.numerator_weighted, &rate * along, root);
        let estim_lr = maximum(state.estim_lr, ratio(&numerator_weighted, (1.0 - root) * size));
        let updates = tree::map3(|m: Array, v: Array, p: Array| -this.weight_decay * &rate * p - m / (v.sqrt() + this.eps), exp_avg.clone(), exp_avg_sq.clone(), params.clone())?;
        Ok((updates, DAdaptAdamWState { exp_avg, exp_avg_sq, grad_sum, estim_lr, numerator_weighted, count }))
    };
}

/// AdamW with a learning rate that D-Adaptation estimates: [`scale_by_dadapt_adamw`] times `learning_rate`, a factor or a
/// schedule. Optax's default is 1.
pub fn dadapt_adamw(learning_rate: impl Into<Schedule>) -> DAdaptAdamW {
    DAdaptAdamW { learning_rate: learning_rate.into(), ..scale_by_dadapt_adamw() }
}

transformation! {
    /// AdamW whose learning rate is an estimate that grows faster than the estimate of [`dadapt_adamw`].
    ///
    /// Source: [Mishchenko and Defazio 2023](https://arxiv.org/abs/2306.06101).
    scale_by_prodigy -> Prodigy {
        /// The factor of the estimate, or its schedule. Default 1.
        learning_rate: Schedule = 1.0.into(),
        /// The decay rates of both means. Default 0.9 and 0.999.
        betas: [f64; 2] = [0.9, 0.999],
        /// The decay rate of the estimate. Default: the root of the second of `betas`.
        beta3: Option<f64> = None,
        /// Added to roots. Default 1e-8.
        eps: f64 = 1e-8,
        /// The initial estimate. You should rather choose it too small than too large, because the estimate never
        /// decreases. Default 1e-6.
        estim_lr0: f64 = 1e-6,
        /// The factor of estimates. Default 1.
        estim_lr_coef: f64 = 1.0,
        /// The weight decay. Default 0.
        weight_decay: f64 = 0.0,
        /// Leaves the learning rate out of the denominator of the estimate. Default false.
        safeguard_warmup: bool = false,
    }
    ProdigyState {
        /// The mean of scaled gradients.
        exp_avg: P,
        /// The mean of the squares of scaled gradients.
        exp_avg_sq: P,
        /// The sum of gradients from which the estimate is computed.
        grad_sum: P,
        /// The first parameters.
        params0: P,
        /// The estimate.
        estim_lr: Array,
        /// The numerator of the estimate.
        numerator_weighted: Array,
        /// The steps taken, int32.
        count: Array,
    }
    init |this, params| {
        within("prodigy", "beta1", this.betas[0], DECAY)?;
        within("prodigy", "beta2", this.betas[1], DECAY)?;
        within("prodigy", "estim_lr0", this.estim_lr0, f64::MIN_POSITIVE..f64::INFINITY)?;
        Ok(ProdigyState {
            exp_avg: zeros_in(params, None)?,
            exp_avg_sq: zeros_in(params, None)?,
            grad_sum: zeros_in(params, None)?,
            params0: tree::map(|x| x, params.clone())?,
            estim_lr: estimate(params, this.estim_lr0)?,
            numerator_weighted: estimate(params, 0.0)?,
            count: count(),
        })
    };
    update |this, grads, state, params| {
        let [b1, b2] = this.betas;
        let b3 = this.beta3.unwrap_or(b2.sqrt());
        let count = safe_increment(&state.count);
        let estim_lr = &state.estim_lr;
        let dtype = scalar_dtype(&grads);
        let factor = this.learning_rate.at_in(&state.count, dtype) * corrections(this.betas, &count, dtype);
        let rate = estim_lr * factor;
        let rate = rate.astype(estim_lr.dtype());
        let scaled = scale(estim_lr, &grads)?;
        let along = vdot(&grads, &sub(&state.params0, params)?)?.real();
        let exp_avg = tree::map2(|m, g| mean(m, g, b1), state.exp_avg, scaled.clone())?;
        let exp_avg_sq = tree::map2(|v, g| mean(v, abs_sq(&g), b2), state.exp_avg_sq, scaled.clone())?;
        let factor = (if this.safeguard_warmup { estim_lr } else { &rate }) / this.estim_lr0;
        let grad_sum = tree::map2(|s, g| b3 * s + &factor * g, state.grad_sum, scaled)?;
        let numerator_weighted = b3 * state.numerator_weighted + estim_lr / this.estim_lr0 * &rate * along;
        let size = sum(&tree::map(|s| s.abs(), grad_sum.clone())?);
        let estim_lr = maximum(estim_lr, ratio(this.estim_lr_coef * &numerator_weighted, size));
        let updates = tree::map3(|m: Array, v: Array, p: Array| {
            -this.weight_decay * &rate * p - &rate * m / (v.sqrt() + &estim_lr * this.eps)
        }, exp_avg.clone(), exp_avg_sq.clone(), params.clone())?;
        let params0 = state.params0;
        let state = ProdigyState { exp_avg, exp_avg_sq, grad_sum, params0, estim_lr, numerator_weighted, count };
        Ok((updates, state))
    };
}

/// Prodigy, AdamW with a learning rate that it estimates: [`scale_by_prodigy`] times `learning_rate`, a factor or a schedule.
/// Optax's default is 1.
pub fn prodigy(learning_rate: impl Into<Schedule>) -> Prodigy {
    Prodigy { learning_rate: learning_rate.into(), ..scale_by_prodigy() }
}

/// The first step of [`ScaleByDog`].
#[derive(Tree, Clone, Copy, Debug, PartialEq)]
pub enum DogStep {
    /// The first step is computed as if the parameters had moved this distance.
    Distance(f64),
    /// The first step has this learning rate.
    LearningRate(f64),
    /// The first step is computed as if the parameters had moved this fraction of `1 + ‖params‖`.
    Heuristic(f64),
}

transformation! {
    /// Scales by the distance from the first parameters, divided by the root of the sum of squared gradients.
    ///
    /// Source: [Ivgi et al. 2023](https://arxiv.org/abs/2302.12022).
    scale_by_dog -> ScaleByDog {
        /// The first step. Default `Heuristic(1e-6)`.
        init_step: DogStep = DogStep::Heuristic(1e-6),
        /// Added to the sum of squares. Default 1e-8.
        eps: f64 = 1e-8,
    }
    DogState {
        /// True before the first step.
        is_init_step: Array,
        /// The first parameters.
        init_params: P,
        /// The largest distance from the first parameters.
        max_dist: Array,
        /// The sum of squared gradients.
        sum_sq_norm_grads: Array,
    }
    init |this, params| {
        let max_dist = match this.init_step {
            DogStep::Distance(distance) => estimate(params, distance)?,
            DogStep::LearningRate(_) => estimate(params, 0.0)?,
            DogStep::Heuristic(share) => {
                let like = estimate(params, 0.0)?;
                ((NormOptions::new().norm(params) + 1) * share).astype(like.dtype())
            }
        };
        Ok(DogState {
            is_init_step: array(true),
            init_params: tree::map(|x| x, params.clone())?,
            max_dist,
            sum_sq_norm_grads: estimate(params, 0.0)?,
        })
    };
    update |this, grads, state, params| {
        let distance = NormOptions::new().norm(&sub(&state.init_params, params)?);
        let max_dist = maximum(state.max_dist, distance);
        let sum_sq_norm_grads = state.sum_sq_norm_grads + squared_norm(&grads);
        let rate = &max_dist / (&sum_sq_norm_grads + this.eps).sqrt();
        let rate = match this.init_step {
            DogStep::LearningRate(first) => where_(&state.is_init_step, first, rate),
            _ => rate,
        };
        let init_params = state.init_params;
        let state = DogState { is_init_step: array(false), init_params, max_dist, sum_sq_norm_grads };
        Ok((scale(rate, &grads)?, state))
    };
}

/// The optimizer that [`dog`] returns.
pub type Dog = (ScaleByDog, ScaleByLearningRate);

/// DoG, distance over gradients: gradient descent whose step size is the largest distance from the start, divided by the root of
/// the sum of squared gradients. Optax's default `learning_rate` is 1.
///
/// ```
/// use shardax_nn::optim::contrib::dog;
/// use shardax_nn::prelude::*;
/// let mut state = TrainState::create(array(4.0f32), dog(1.0))?;
/// for _ in 0..200 {
///     let gradient = &state.params * 2; // of the square
///     state = state.apply_gradients(gradient)?;
/// }
/// assert!(state.params.item::<f32>()?.abs() < 1.0);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn dog(learning_rate: impl Into<Schedule>) -> Dog {
    (scale_by_dog(), scale_by_learning_rate(learning_rate))
}

transformation! {
    /// Scales like [`scale_by_dog`], with sums in which each gradient is weighted by the distance in its step.
    ///
    /// Source: [Khaled et al. 2023](https://arxiv.org/abs/2305.16284).
    scale_by_dowg -> ScaleByDowg {
        /// The first squared distance. Default: `eps`.
        init_estim_sq_dist: Option<f64> = None,
        /// Added to the root. Default 1e-4.
        eps: f64 = 1e-4,
    }
    DowgState {
        /// The first parameters.
        init_params: P,
        /// The weighted sum of squared gradients.
        weighted_sq_norm_grads: Array,
        /// The largest squared distance.
        estim_sq_dist: Array,
    }
    init |this, params| {
        Ok(DowgState {
            init_params: tree::map(|x| x, params.clone())?,
            weighted_sq_norm_grads: estimate(params, 0.0)?,
            estim_sq_dist: estimate(params, this.init_estim_sq_dist.unwrap_or(this.eps))?,
        })
    };
    update |this, grads, state, params| {
        let distance = squared_norm(&sub(&state.init_params, params)?);
        let estim_sq_dist = maximum(state.estim_sq_dist, distance);
        let weighted_sq_norm_grads = &estim_sq_dist * squared_norm(&grads) + state.weighted_sq_norm_grads;
        let rate = &estim_sq_dist / (weighted_sq_norm_grads.sqrt() + this.eps);
        let init_params = state.init_params;
        Ok((scale(rate, &grads)?, DowgState { init_params, weighted_sq_norm_grads, estim_sq_dist }))
    };
}

/// The optimizer that [`dowg`] returns.
pub type Dowg = (ScaleByDowg, ScaleByLearningRate);

/// DoWG, distance over weighted gradients: [`dog`] with gradients that are weighted by the distance in their step. Optax's default
/// `learning_rate` is 1.
pub fn dowg(learning_rate: impl Into<Schedule>) -> Dowg {
    (scale_by_dowg(), scale_by_learning_rate(learning_rate))
}
