//! Transformations that scale each element by what its gradients were.

use shardax::prelude::*;

use super::{GradientTransformation, count, zeros_of};

/// `decay * moment + (1 - decay) * value`.
fn average(decay: f64) -> impl Fn(Array, Array) -> Array {
    move |value, moment| value * (1.0 - decay) + moment * decay
}

fn square(x: &Array) -> Array {
    if x.dtype().is_complex() { (x * x.conj()).real() } else { x * x }
}

/// What a running average that began at zero must be divided by: `1 - decay^count`.
fn bias(decay: f64, count: &Array) -> Array {
    1 - power(decay, count.astype(DType::F32))
}

/// See [`scale_by_adam`].
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByAdam {
    /// How much of the mean of the gradients each step keeps. Default 0.9.
    pub b1: f64,
    /// How much of the mean of their squares each step keeps. Default 0.999.
    pub b2: f64,
    /// Added outside of the square root. Default 1e-8.
    pub eps: f64,
    /// Added inside of the square root. Default 0.
    pub eps_root: f64,
    /// Whether to look a step ahead.
    pub nesterov: bool,
}

/// The state of [`ScaleByAdam`].
#[derive(Tree, Clone, Debug)]
pub struct AdamState<P> {
    /// The steps taken, int32.
    pub count: Array,
    /// The mean of the gradients.
    pub mu: P,
    /// The mean of their squares.
    pub nu: P,
}

/// Divides the mean of the gradients by the square root of the mean of their squares, with Adam's defaults.
///
/// Source: [Kingma and Ba 2014](https://arxiv.org/abs/1412.6980).
pub fn scale_by_adam() -> ScaleByAdam {
    ScaleByAdam { b1: 0.9, b2: 0.999, eps: 1e-8, eps_root: 0.0, nesterov: false }
}

impl<P: Tree> GradientTransformation<P> for ScaleByAdam {
    type State = AdamState<P>;

    fn init(&self, params: &P) -> Result<Self::State> {
        Ok(AdamState { count: count(), mu: zeros_of(params)?, nu: zeros_of(params)? })
    }

    fn update(&self, grads: P, state: Self::State, _params: &P) -> Result<(P, Self::State)> {
        let count = state.count + 1;
        let mu = tree::map2(average(self.b1), grads.clone(), state.mu)?;
        let nu = tree::map2(|g, v| average(self.b2)(square(&g), v), grads.clone(), state.nu)?;
        let (mu_bias, nu_bias) = (bias(self.b1, &count), bias(self.b2, &count));
        let unbiased = |m: &Array, bias: &Array| m / bias.astype(m.dtype());
        let ahead = if self.nesterov {
            let next_bias = bias(self.b1, &(&count + 1));
            tree::map2(|g, m| average(self.b1)(unbiased(&g, &mu_bias), unbiased(&m, &next_bias)), grads, mu.clone())?
        } else {
            tree::map(|m| unbiased(&m, &mu_bias), mu.clone())?
        };
        let updates = tree::map2(
            |m, v| {
                let v = unbiased(&v, &nu_bias);
                let v = if self.eps_root == 0.0 { v } else { v + self.eps_root };
                m / (v.sqrt() + self.eps)
            },
            ahead,
            nu.clone(),
        )?;
        Ok((updates, AdamState { count, mu, nu }))
    }
}

/// See [`scale_by_rms`].
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByRms {
    pub decay: f64,
    pub eps: f64,
}

/// The state of [`ScaleByRms`].
#[derive(Tree, Clone, Debug)]
pub struct RmsState<P> {
    /// The mean of the squared gradients.
    pub nu: P,
}

/// Divides by the root mean square of the gradients.
pub fn scale_by_rms(decay: f64, eps: f64) -> ScaleByRms {
    ScaleByRms { decay, eps }
}

impl<P: Tree> GradientTransformation<P> for ScaleByRms {
    type State = RmsState<P>;

    fn init(&self, params: &P) -> Result<Self::State> {
        Ok(RmsState { nu: zeros_of(params)? })
    }

    fn update(&self, grads: P, state: Self::State, _params: &P) -> Result<(P, Self::State)> {
        let nu = tree::map2(|g, v| average(self.decay)(square(&g), v), grads.clone(), state.nu)?;
        let updates = tree::map2(|g, v| g * (v + self.eps).rsqrt(), grads, nu.clone())?;
        Ok((updates, RmsState { nu }))
    }
}

/// See [`scale_by_rss`].
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByRss {
    pub initial_accumulator_value: f64,
    pub eps: f64,
}

/// The state of [`ScaleByRss`].
#[derive(Tree, Clone, Debug)]
pub struct RssState<P> {
    pub sum_of_squares: P,
}

/// Divides by the root of the sum of all squared gradients.
pub fn scale_by_rss(initial_accumulator_value: f64, eps: f64) -> ScaleByRss {
    ScaleByRss { initial_accumulator_value, eps }
}

impl<P: Tree> GradientTransformation<P> for ScaleByRss {
    type State = RssState<P>;

    fn init(&self, params: &P) -> Result<Self::State> {
        let sum_of_squares = tree::map(|p| full_like(&p, self.initial_accumulator_value), params.clone())?;
        Ok(RssState { sum_of_squares })
    }

    fn update(&self, grads: P, state: Self::State, _params: &P) -> Result<(P, Self::State)> {
        let sum_of_squares = tree::map2(|g, s| square(&g) + s, grads.clone(), state.sum_of_squares)?;
        let updates =
            tree::map2(|g, s| g * where_(s.greater(0), (&s + self.eps).rsqrt(), 0), grads, sum_of_squares.clone())?;
        Ok((updates, RssState { sum_of_squares }))
    }
}

/// See [`scale_by_lion`].
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByLion {
    pub b1: f64,
    pub b2: f64,
}

/// The state of [`ScaleByLion`].
#[derive(Tree, Clone, Debug)]
pub struct LionState<P> {
    /// The steps taken, int32.
    pub count: Array,
    /// The mean of the gradients.
    pub mu: P,
}

/// The sign of a mean of the gradients.
///
/// Source: [Chen et al. 2023](https://arxiv.org/abs/2302.06675).
pub fn scale_by_lion(b1: f64, b2: f64) -> ScaleByLion {
    ScaleByLion { b1, b2 }
}

impl<P: Tree> GradientTransformation<P> for ScaleByLion {
    type State = LionState<P>;

    fn init(&self, params: &P) -> Result<Self::State> {
        Ok(LionState { count: count(), mu: zeros_of(params)? })
    }

    fn update(&self, grads: P, state: Self::State, _params: &P) -> Result<(P, Self::State)> {
        let updates = tree::map2(|g, m| average(self.b1)(g, m).sign(), grads.clone(), state.mu.clone())?;
        let mu = tree::map2(average(self.b2), grads, state.mu)?;
        Ok((updates, LionState { count: state.count + 1, mu }))
    }
}
