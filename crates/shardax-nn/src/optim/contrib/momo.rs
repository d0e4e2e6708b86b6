//! SGD and Adam whose learning rate follows from the loss and a lower bound of it.
//!
//! Source: [Schaipp et al. 2023](https://arxiv.org/abs/2305.07583).

use shardax::prelude::*;

use super::super::tree_utils::{NormOptions, bias_correction, update_moment, update_moment_per_elem_norm, vdot};
use super::{Schedule, count, estimate, in_wide_dtypes, one_minus_power, safe_increment, scalar_dtype, zeros_in};
use crate::check::{DECAY, FINITE, NOT_NEGATIVE, within};

/// The optimizer that [`momo`] returns.
#[derive(Tree, Clone, Debug)]
pub struct Momo {
    /// The largest learning rate, or its schedule. Default 1.
    pub learning_rate: Schedule,
    /// The decay rate of the means. Default 0.9.
    pub beta: f64,
    /// The lower bound of the loss. Default 0.
    pub lower_bound: f64,
    /// The weight decay. Default 0.
    pub weight_decay: f64,
    /// Raises the lower bound if the losses show a higher one. Default false.
    pub adapt_lower_bound: bool,
}

/// The optimizer that [`momo_adam`] returns.
#[derive(Tree, Clone, Debug)]
pub struct MomoAdam {
    /// The largest learning rate, or its schedule. Default 0.01.
    pub learning_rate: Schedule,
    /// The decay rate of the mean of gradients, and of the means of losses. Default 0.9.
    pub b1: f64,
    /// The decay rate of the mean of squares. Default 0.999.
    pub b2: f64,
    /// Added to roots. Default 1e-8.
    pub eps: f64,
    /// The lower bound of the loss. Default 0.
    pub lower_bound: f64,
    /// The weight decay. Default 0.
    pub weight_decay: f64,
    /// Raises the lower bound if the losses show a higher one. Default false.
    pub adapt_lower_bound: bool,
}

/// The means of losses and of linear models of the loss, from which the learning rate follows.
#[derive(Tree, Clone, Debug)]
pub struct LossModel {
    /// The mean of the losses.
    pub loss: Array,
    /// The mean of the products of gradients with parameters.
    pub product: Array,
    /// The lower bound of the loss.
    pub lower_bound: Array,
    /// The steps taken, int32.
    pub count: Array,
}

/// The state of [`Momo`].
#[derive(Tree, Clone, Debug)]
pub struct MomoState<P> {
    /// The mean of gradients.
    pub exp_avg: P,
    /// The model of the loss.
    pub model: LossModel,
}

/// The state of [`MomoAdam`].
#[derive(Tree, Clone, Debug)]
pub struct MomoAdamState<P> {
    /// The mean of gradients.
    pub exp_avg: P,
    /// The mean of squares.
    pub exp_avg_sq: P,
    /// The model of the loss.
    pub model: LossModel,
}

/// SGD with momentum whose learning rate is the smaller of `learning_rate`, a number or a [`Schedule`], and the step that
/// reaches the lower bound of the loss in a model of the loss. You must pass the loss to
/// [`update_with_value`](Momo::update_with_value). Optax's default `learning_rate` is 1.
///
/// ```
/// use shardax_nn::optim::contrib::momo;
/// use shardax_nn::prelude::*;
/// let (optimizer, params) = (momo(1.0), array([1.0f32, 2.0, 3.0]));
/// let (value, grads) = value_and_grad(|x: Array| x.square().sum(..)).call(&params)?;
/// let (updates, _) = optimizer.update_with_value(grads, optimizer.init(&params)?, &params, value)?;
/// assert!(allclose(apply_updates(params, updates)?, array([0.5f32, 1.0, 1.5]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn momo(learning_rate: impl Into<Schedule>) -> Momo {
    let learning_rate = learning_rate.into();
    Momo { learning_rate, beta: 0.9, lower_bound: 0.0, weight_decay: 0.0, adapt_lower_bound: false }
}

/// Adam whose learning rate is the smaller of `learning_rate`, a number or a [`Schedule`], and the step that reaches the lower
/// bound of the loss in a model of the loss. You must pass the loss to [`update_with_value`](MomoAdam::update_with_value).
/// Optax's default `learning_rate` is 0.01.
///
/// ```
/// use shardax_nn::optim::contrib::momo_adam;
/// use shardax_nn::prelude::*;
/// let (optimizer, params) = (momo_adam(1e-2), array([1.0f32, 2.0, 3.0]));
/// let (value, grads) = value_and_grad(|x: Array| x.square().sum(..)).call(&params)?;
/// let (updates, _) = optimizer.update_with_value(grads, optimizer.init(&params)?, &params, value)?;
/// assert!(allclose(updates, full([3], -0.01f32), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn momo_adam(learning_rate: impl Into<Schedule>) -> MomoAdam {
    MomoAdam {
        learning_rate: learning_rate.into(),
        b1: 0.9,
        b2: 0.999,
        eps: 1e-8,
        lower_bound: 0.0,
        weight_decay: 0.0,
        adapt_lower_bound: false,
    }
}

impl Momo {
    /// Returns the state before the first step.
    ///
    /// # Errors
    /// Returns an error if an option is out of its range, or if the dtypes of the parameters have no order.
    #[track_caller]
    pub fn init<P: Tree>(&self, params: &P) -> Result<MomoState<P>> {
        within("momo", "beta", self.beta, DECAY)?;
        within("momo", "weight_decay", self.weight_decay, NOT_NEGATIVE)?;
        Ok(MomoState { exp_avg: zeros_in(params, None)?, model: LossModel::new("momo", params, self.lower_bound)? })
    }

    /// Returns the updates and the next state for gradients at this value of the loss.
    ///
    /// # Errors
    /// Returns an error if the trees differ in structure, or if `value` is not a scalar.
    #[track_caller]
    pub fn update_with_value<P: Tree>(
        &self,
        grads: P,
        state: MomoState<P>,
        params: &P,
        value: impl ArrayLike,
    ) -> Result<(P, MomoState<P>)> {
        let value = value.into_array();
        in_wide_dtypes(grads, params, |grads, params| {
            let rate = self.learning_rate.at_in(&state.model.count, scalar_dtype(&grads));
            let growth = 1 + &rate * self.weight_decay;
            // The means begin with the first loss and the first gradient.
            let decay = where_(state.model.count.equal(0), 0.0, self.beta).astype(state.model.loss.dtype());
            let model = state.model.observe(&value, vdot(&grads, params)?, &decay);
            let exp_avg = tree::map2(|m: Array, g: Array| mean(m, g, &decay), state.exp_avg, grads)?;
            let line = Line {
                along: vdot(&exp_avg, params)?.real(),
                norm: NormOptions::new().squared(true).norm(&exp_avg),
                correction: ones_dtype((), model.loss.dtype()),
                growth,
            };
            let bound = self.adapt_lower_bound.then_some(self.lower_bound);
            let (step, model) = model.step(&line, &rate, bound);
            let updates = line.updates(&(rate * self.weight_decay), &step, exp_avg.clone(), params)?;
            Ok((updates, MomoState { exp_avg, model }))
        })
    }
}

impl MomoAdam {
    /// Returns the state before the first step.
    ///
    /// # Errors
    /// Returns an error if an option is out of its range, or if the dtypes of the parameters have no order.
    #[track_caller]
    pub fn init<P: Tree>(&self, params: &P) -> Result<MomoAdamState<P>> {
        within("momo_adam", "b1", self.b1, DECAY)?;
        within("momo_adam", "b2", self.b2, DECAY)?;
        within("momo_adam", "weight_decay", self.weight_decay, NOT_NEGATIVE)?;
        Ok(MomoAdamState {
            exp_avg: zeros_in(params, None)?,
            exp_avg_sq: zeros_in(params, None)?,
            model: LossModel::new("momo_adam", params, self.lower_bound)?,
        })
    }

    /// Returns the updates and the next state for gradients at this value of the loss.
    ///
    /// # Errors
    /// Returns an error if the trees differ in structure, or if `value` is not a scalar.
    #[track_caller]
    pub fn update_with_value<P: Tree>(
        &self,
        grads: P,
        state: MomoAdamState<P>,
        params: &P,
        value: impl ArrayLike,
    ) -> Result<(P, MomoAdamState<P>)> {
        let value = value.into_array();
        in_wide_dtypes(grads, params, |grads, params| {
            let dtype = scalar_dtype(&grads);
            let rate = self.learning_rate.at_in(&state.model.count, dtype);
            let growth = 1 + &rate * self.weight_decay;
            let decay = shardax::numpy::full_dtype((), self.b1, state.model.loss.dtype());
            let model = state.model.observe(&value, vdot(&grads, params)?, &decay);
            let exp_avg = update_moment(&grads, &state.exp_avg, self.b1, 1)?;
            let exp_avg_sq = update_moment_per_elem_norm(&grads, &state.exp_avg_sq, self.b2, 2)?;
            let squares = bias_correction(&exp_avg_sq, self.b2, &model.count)?;
            let direction = tree::map2(|m: Array, v: Array| m / (self.eps + v.sqrt()), exp_avg.clone(), squares)?;
            let line = Line {
                along: vdot(&exp_avg, params)?.real(),
                norm: vdot(&exp_avg, &direction)?.real(),
                correction: one_minus_power(self.b1, &model.count, dtype).astype(model.loss.dtype()),
                growth,
            };
            let bound = self.adapt_lower_bound.then_some(self.lower_bound);
            let (step, model) = model.step(&line, &rate, bound);
            let updates = line.updates(&(rate * self.weight_decay), &step, direction, params)?;
            Ok((updates, MomoAdamState { exp_avg, exp_avg_sq, model }))
        })
    }
}

/// The model of the loss along the mean of the gradients.
struct Line {
    /// The product of the mean of the gradients with the parameters.
    along: Array,
    /// The squared norm of the mean of the gradients, in the metric of the optimizer.
    norm: Array,
    /// The correction of the bias of the means, 1 if they have none.
    correction: Array,
    /// One plus the learning rate times the weight decay.
    growth: Array,
}

impl Line {
    /// Returns the updates for a step along `direction`, with the weight decay times the learning rate, in the dtypes of
    /// `direction`.
    fn updates<P: Tree>(&self, decay: &Array, step: &Array, direction: P, params: &P) -> Result<P> {
        let shrink = decay / &self.growth;
        tree::map2(
            |d: Array, p: Array| {
                let dtype = d.dtype();
                (-(&shrink * p) - step * d).astype(dtype)
            },
            direction,
            params.clone(),
        )
    }
}

impl LossModel {
    #[track_caller]
    fn new<P: Tree>(owner: &str, params: &P, lower_bound: f64) -> Result<LossModel> {
        within(owner, "lower_bound", lower_bound, FINITE)?;
        Ok(LossModel {
            loss: estimate(params, 0.0)?,
            product: estimate(params, 0.0)?,
            lower_bound: estimate(params, lower_bound)?,
            count: count(),
        })
    }

    /// Adds a loss, and the product of its gradient with the parameters, to the means.
    fn observe(self, value: &Array, product: Array, decay: &Array) -> LossModel {
        let dtype = self.loss.dtype();
        LossModel {
            loss: mean(self.loss, value.astype(dtype), decay),
            product: mean(self.product, product.real().astype(dtype), decay),
            lower_bound: self.lower_bound,
            count: safe_increment(self.count),
        }
    }

    /// Returns the learning rate, and the model with the next lower bound, which only an `adaptive` bound changes.
    fn step(self, line: &Line, largest: &Array, adaptive: Option<f64>) -> (Array, LossModel) {
        let dtype = self.loss.dtype();
        let Line { along, norm, correction, growth } = line;
        let gap = &self.loss - &self.product;
        let lower_bound = match adaptive {
            None => self.lower_bound.clone(),
            Some(least) => {
                // The model cannot fall below the bound. If it does, the bound was too high.
                let cap = growth * &gap + along;
                let scale = growth * correction;
                let lowered = (&cap / (2 * &scale)).maximum(least);
                where_(cap.less(scale * &self.lower_bound), lowered, &self.lower_bound)
            }
        };
        let distance = (growth * (&gap - correction * &lower_bound) + along).maximum(0);
        // Without a gradient there is no step.
        let none = norm.less_equal(f64::EPSILON);
        let step = where_(&none, 0, distance / where_(&none, 1, norm));
        let step = minimum(largest / correction, step).astype(dtype);
        let next = match adaptive {
            None => self.lower_bound,
            Some(least) => ((&gap + along - 0.5 * &step * norm) / correction).maximum(least).astype(dtype),
        };
        (step, LossModel { loss: self.loss, product: self.product, lower_bound: next, count: self.count })
    }
}

/// Returns `decay * old + (1 - decay) * new`.
fn mean(old: Array, new: Array, decay: &Array) -> Array {
    let dtype = old.dtype();
    (decay * old + (1 - decay) * new).astype(dtype)
}
