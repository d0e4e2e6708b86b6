//! Transformations that divide by a root of squares: RMSProp, AdaGrad, AdaDelta, Adafactor, SM3.

use shardax::prelude::*;

use super::tree_utils::{abs_sq, bias_correction, mul, update_moment, update_moment_per_elem_norm};
use super::{
    GradientTransformation, count, full_in, in_wide_dtypes, safe_increment, scalar_dtype, wide_dtype, zeros_in,
};
use crate::check::{DECAY, FINITE, NOT_NEGATIVE, real_parameters, within};

/// `1 / sqrt(n + eps)`, or `1 / (sqrt(n) + eps)`.
fn inverse_root(n: Array, eps: f64, eps_in_sqrt: bool) -> Array {
    if eps_in_sqrt { (n + eps).rsqrt() } else { 1 / (n.sqrt() + eps) }
}

/// The gradient transformation that [`scale_by_rms`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByRms {
    /// The decay rate of the mean of squares.
    pub decay: f64,
    /// Added to prevent a division by zero.
    pub eps: f64,
    /// The initial mean of squares. Default 0.
    pub initial_scale: f64,
    /// Adds `eps` inside of the square root. Default true.
    pub eps_in_sqrt: bool,
    /// Corrects the bias of the initial value. Default false.
    pub bias_correction: bool,
}

/// The state of [`ScaleByRms`].
#[derive(Tree, Clone, Debug)]
pub struct RmsState<P> {
    /// The steps taken, int32, if the mean is bias-corrected.
    pub count: Option<Array>,
    /// The mean of the squared gradients.
    pub nu: P,
}

/// Divides gradients by the root of an average of their squares with this decay, plus `eps`.
///
/// ```
/// use shardax_nn::optim::scale_by_rms;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_rms(0.75, 1e-8));
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([2.0f32, -2.0]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_rms(decay: f64, eps: f64) -> ScaleByRms {
    ScaleByRms { decay, eps, initial_scale: 0.0, eps_in_sqrt: true, bias_correction: false }
}

impl<P: Tree> GradientTransformation<P> for ScaleByRms {
    type State = RmsState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        within("scale_by_rms", "decay", self.decay, DECAY)?;
        within("scale_by_rms", "eps", self.eps, NOT_NEGATIVE)?;
        within("scale_by_rms", "initial_scale", self.initial_scale, NOT_NEGATIVE)?;
        Ok(RmsState { count: self.bias_correction.then(count), nu: full_in(params, self.initial_scale)? })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let nu = update_moment_per_elem_norm(&grads, &state.nu, self.decay, 2)?;
            let count = state.count.map(safe_increment);
            let mean = match &count {
                Some(count) => bias_correction(&nu, self.decay, count)?,
                None => nu.clone(),
            };
            let updates = tree::map2(|n, g| inverse_root(n, self.eps, self.eps_in_sqrt) * g, mean, grads)?;
            Ok((updates, RmsState { count, nu }))
        })
    }
}

/// The gradient transformation that [`scale_by_stddev`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByStddev {
    /// The decay rate of both means. Default 0.9.
    pub decay: f64,
    /// Added to prevent a division by zero. Default 1e-8.
    pub eps: f64,
    /// The initial mean of squares. Default 0.
    pub initial_scale: f64,
    /// Adds `eps` inside of the square root. Default true.
    pub eps_in_sqrt: bool,
}

/// The state of [`ScaleByStddev`].
#[derive(Tree, Clone, Debug)]
pub struct StddevState<P> {
    /// The mean of the gradients.
    pub mu: P,
    /// The mean of the squared deviations from the mean.
    pub variance: P,
}

/// Divides gradients by their standard deviation, which it estimates from averages (centered RMSProp).
///
/// ```
/// use shardax_nn::optim::scale_by_stddev;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_stddev());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([3.3333f32, -3.3333]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_stddev() -> ScaleByStddev {
    ScaleByStddev { decay: 0.9, eps: 1e-8, initial_scale: 0.0, eps_in_sqrt: true }
}

impl<P: Tree> GradientTransformation<P> for ScaleByStddev {
    type State = StddevState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        within("scale_by_stddev", "decay", self.decay, DECAY)?;
        within("scale_by_stddev", "eps", self.eps, NOT_NEGATIVE)?;
        within("scale_by_stddev", "initial_scale", self.initial_scale, NOT_NEGATIVE)?;
        Ok(StddevState { mu: zeros_in(params, None)?, variance: full_in(params, self.initial_scale)? })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            // The mean of squares less the square of the mean would lose the digits of a variance next to a large mean.
            let squares = tree::map2(|g, m| abs_sq(&(g - m)) * (1.0 - self.decay), grads.clone(), state.mu.clone())?;
            let variance = tree::map2(|v, square| (v + square) * self.decay, state.variance, squares)?;
            let mu = update_moment(&grads, &state.mu, self.decay, 1)?;
            let updates = tree::map2(|v, g| inverse_root(v, self.eps, self.eps_in_sqrt) * g, variance.clone(), grads)?;
            Ok((updates, StddevState { mu, variance }))
        })
    }
}

/// The gradient transformation that [`scale_by_rss`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByRss {
    /// The initial sum of squares.
    pub initial_accumulator_value: f64,
    /// Added inside of the square root.
    pub eps: f64,
}

/// The state of [`ScaleByRss`].
#[derive(Tree, Clone, Debug)]
pub struct RssState<P> {
    /// The sum of all squared gradients.
    pub sum_of_squares: P,
}

/// Divides gradients by the root of the sum of their squares in all steps so far.
///
/// ```
/// use shardax_nn::optim::scale_by_rss;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_rss(3.0, 0.0));
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([0.5f32, -0.7559289]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_rss(initial_accumulator_value: f64, eps: f64) -> ScaleByRss {
    ScaleByRss { initial_accumulator_value, eps }
}

impl<P: Tree> GradientTransformation<P> for ScaleByRss {
    type State = RssState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        within("scale_by_rss", "initial_accumulator_value", self.initial_accumulator_value, NOT_NEGATIVE)?;
        within("scale_by_rss", "eps", self.eps, NOT_NEGATIVE)?;
        Ok(RssState { sum_of_squares: full_in(params, self.initial_accumulator_value)? })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let sum_of_squares = tree::map2(|g, s| abs_sq(&g) + s, grads.clone(), state.sum_of_squares)?;
            let inverse =
                tree::map(|s| where_(s.real().greater(0), (&s + self.eps).rsqrt(), 0), sum_of_squares.clone())?;
            Ok((mul(&inverse, &grads)?, RssState { sum_of_squares }))
        })
    }
}

/// The gradient transformation that [`scale_by_adadelta`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByAdadelta {
    /// The decay rate of both means. Default 0.9.
    pub rho: f64,
    /// Added inside of the square roots. Default 1e-6.
    pub eps: f64,
}

/// The state of [`ScaleByAdadelta`].
#[derive(Tree, Clone, Debug)]
pub struct AdadeltaState<P> {
    /// The mean of the squared gradients.
    pub e_g: P,
    /// The mean of the squared updates.
    pub e_x: P,
}

/// Multiplies gradients by the root mean square of earlier updates, and divides them by the root mean square of the gradients.
///
/// Source: [Zeiler 2012](https://arxiv.org/abs/1212.5701).
///
/// ```
/// use shardax_nn::optim::scale_by_adadelta;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_adadelta());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([0.0031623f32, -0.0031623]), 1e-3, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_adadelta() -> ScaleByAdadelta {
    ScaleByAdadelta { rho: 0.9, eps: 1e-6 }
}

impl<P: Tree> GradientTransformation<P> for ScaleByAdadelta {
    type State = AdadeltaState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        within("scale_by_adadelta", "rho", self.rho, DECAY)?;
        within("scale_by_adadelta", "eps", self.eps, NOT_NEGATIVE)?;
        Ok(AdadeltaState { e_g: zeros_in(params, None)?, e_x: zeros_in(params, None)? })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let e_g = update_moment(&grads, &state.e_g, self.rho, 2)?;
            let updates = tree::map3(
                |g: Array, e_g: Array, e_x: Array| (e_x + self.eps).sqrt() / (e_g + self.eps).sqrt() * g,
                grads,
                e_g.clone(),
                state.e_x.clone(),
            )?;
            let e_x = update_moment(&updates, &state.e_x, self.rho, 2)?;
            Ok((updates, AdadeltaState { e_g, e_x }))
        })
    }
}

/// The gradient transformation that [`scale_by_factored_rms`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByFactoredRms {
    /// True if only the means of rows and columns are stored for large matrices. Default true.
    pub factored: bool,
    /// The step `t` keeps `1 - (t + 1)^-decay_rate` of the means. Default 0.8.
    pub decay_rate: f64,
    /// Subtracted from the number of steps, for a state that continues an earlier training. It must not exceed that
    /// number, because otherwise the decay is NaN, as in Optax. Default 0.
    pub step_offset: usize,
    /// The minimum size of the second largest dimension of a factored array. You can lower it to save memory for
    /// smaller matrices. Default 128.
    pub min_dim_size_to_factor: usize,
    /// Added to the squares. Default 1e-30.
    pub epsilon: f64,
}

/// The state of [`ScaleByFactoredRms`]. For each array, it contains either the means over its largest and over its second
/// largest dimension, or a mean for each element. The unused arrays are zeros of shape `[1]`.
#[derive(Tree, Clone, Debug)]
pub struct FactoredState<P> {
    /// The steps taken, int32.
    pub count: Array,
    /// The means over the largest dimension.
    pub v_row: P,
    /// The means over the second largest dimension.
    pub v_col: P,
    /// The means of parameters that are not factored.
    pub v: P,
}

/// Divides gradients by their root mean square, like Adafactor. Because the means are stored only for rows and columns, the state
/// is much smaller than Adam's.
///
/// Source: [Shazeer and Stern 2018](https://arxiv.org/abs/1804.04235).
///
/// ```
/// use shardax_nn::optim::scale_by_factored_rms;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (array([3.0f32, 4.0]), scale_by_factored_rms());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([1.0f32, -1.0]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_factored_rms() -> ScaleByFactoredRms {
    ScaleByFactoredRms { factored: true, decay_rate: 0.8, step_offset: 0, min_dim_size_to_factor: 128, epsilon: 1e-30 }
}

impl ScaleByFactoredRms {
    /// Returns the second largest and the largest dimension of an array if it is factored.
    fn factored_dims(&self, shape: &[usize]) -> Option<(usize, usize)> {
        if !self.factored || shape.len() < 2 {
            return None;
        }
        let mut dims: Vec<usize> = (0..shape.len()).collect();
        dims.sort_by_key(|&d| shape[d]);
        let (d1, d0) = (dims[dims.len() - 2], dims[dims.len() - 1]);
        (shape[d1] >= self.min_dim_size_to_factor).then_some((d1, d0))
    }
}

/// Returns zeros like `x` without a dimension.
fn zeros_without(x: &Array, dim: usize) -> Array {
    let shape: Vec<usize> = (0..x.ndim()).filter(|&d| d != dim).map(|d| x.shape()[d]).collect();
    zeros_dtype(shape, wide_dtype(x.dtype()))
}

/// Returns the decayed average, in the dtype of the parameter.
fn average(decay: &Array, old: Array, new: Array, p: &Array) -> Array {
    (decay * old + (1 - decay) * new).astype(p.dtype())
}

impl ScaleByFactoredRms {
    /// Creates a tree like `params`; arrays that the factored dimensions make unnecessary have one element.
    fn create<P: Tree>(
        &self,
        params: &P,
        zeros: impl Fn(&Array, Option<(usize, usize)>) -> Option<Array>,
    ) -> Result<P> {
        tree::map(
            |p| {
                let zeros = zeros(&p, self.factored_dims(p.shape()));
                zeros.unwrap_or_else(|| zeros_dtype([1], wide_dtype(p.dtype())))
            },
            params.clone(),
        )
    }

    fn square(&self, g: &Array) -> Array {
        abs_sq(g) + self.epsilon
    }

    /// The new means over one of the two factored dimensions; arrays that are not factored keep their unused zeros.
    fn means_over<P: Tree>(
        &self,
        dim: fn((usize, usize)) -> usize,
        decay: &Array,
        old: P,
        (grads, params): (&P, &P),
    ) -> Result<P> {
        tree::map3(
            |g: Array, old: Array, p: Array| match self.factored_dims(p.shape()) {
                Some(dims) => average(decay, old, self.square(&g).mean(dim(dims) as i32), &p),
                None => old,
            },
            grads.clone(),
            old,
            params.clone(),
        )
    }
}

impl<P: Tree> GradientTransformation<P> for ScaleByFactoredRms {
    type State = FactoredState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        within("scale_by_factored_rms", "decay_rate", self.decay_rate, NOT_NEGATIVE)?;
        within("scale_by_factored_rms", "epsilon", self.epsilon, NOT_NEGATIVE)?;
        Ok(FactoredState {
            count: count(),
            v_row: self.create(params, |p, dims| dims.map(|(_, d0)| zeros_without(p, d0)))?,
            v_col: self.create(params, |p, dims| dims.map(|(d1, _)| zeros_without(p, d1)))?,
            v: self.create(params, |p, dims| match dims {
                Some(_) => None,
                None => Some(zeros_dtype(p.shape(), wide_dtype(p.dtype()))),
            })?,
        })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, params| {
            let step = (&state.count - self.step_offset + 1).astype(scalar_dtype(&grads));
            let decay = 1 - power(step, -self.decay_rate);
            let v_row = self.means_over(|(_, d0)| d0, &decay, state.v_row, (&grads, params))?;
            let v_col = self.means_over(|(d1, _)| d1, &decay, state.v_col, (&grads, params))?;
            // Matrices have factored second moments, which are means over rows and columns. All other parameters have a
            // second moment for each element.
            let v = tree::map3(
                |g: Array, old: Array, p: Array| match self.factored_dims(p.shape()) {
                    Some(_) => old,
                    None => average(&decay, old, self.square(&g), &p),
                },
                grads.clone(),
                state.v,
                params.clone(),
            )?;

            // The gradients are divided by the factor of the row first, and by the factor of the column, or by the
            // root of the full moment, second.
            let rows = tree::map3(
                |g, row, p| match self.factored_dims(p.shape()) {
                    Some((d1, d0)) => {
                        let reduced = if d1 > d0 { d1 - 1 } else { d1 };
                        let factor = power(&row / row.mean_keepdims(reduced as i32), -0.5);
                        g * factor.expand_dims(d0 as i32)
                    }
                    None => g,
                },
                grads,
                v_row.clone(),
                params.clone(),
            )?;
            let updates = tree::map3(
                |u, col, v| match self.factored_dims(u.shape()) {
                    Some((d1, _)) => u * power(col, -0.5).expand_dims(d1 as i32),
                    None => u * power(v, -0.5),
                },
                rows,
                v_col.clone(),
                v.clone(),
            )?;
            Ok((updates, FactoredState { count: safe_increment(state.count), v_row, v_col, v }))
        })
    }
}

/// The gradient transformation that [`scale_by_sm3`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleBySm3 {
    /// The decay rate of the mean of the updates. Default 0.9.
    pub b1: f64,
    /// The decay rate of the largest squares. With 1, they are summed. Default 1.
    pub b2: f64,
    /// Added inside of the square root. Default 1e-8.
    pub eps: f64,
}

/// The state of [`ScaleBySm3`].
#[derive(Tree, Clone, Debug)]
pub struct Sm3State<P> {
    /// The largest accumulated squares along each dimension of each array, in order.
    pub mu: Vec<Vec<Array>>,
    /// The mean of the updates.
    pub nu: P,
}

/// Divides by the root of accumulated squares. The state is small, because only the largest squares along each
/// dimension are stored.
///
/// Source: [Anil et al. 2019](https://arxiv.org/abs/1901.11150).
///
/// ```
/// use shardax_nn::optim::scale_by_sm3;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_sm3());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([0.1f32, -0.1]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_sm3() -> ScaleBySm3 {
    ScaleBySm3 { b1: 0.9, b2: 1.0, eps: 1e-8 }
}

impl<P: Tree> GradientTransformation<P> for ScaleBySm3 {
    type State = Sm3State<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        within("scale_by_sm3", "b1", self.b1, DECAY)?;
        within("scale_by_sm3", "b2", self.b2, 0.0..=1.0)?;
        within("scale_by_sm3", "eps", self.eps, FINITE)?;
        real_parameters("scale_by_sm3", params)?;
        Ok(Sm3State {
            mu: tree::leaves(params)
                .iter()
                .map(|p| p.shape().iter().map(|&n| zeros_dtype([n], wide_dtype(p.dtype()))).collect())
                .collect(),
            nu: zeros_in(params, None)?,
        })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let new_weight = if self.b2 == 1.0 { 1.0 } else { 1.0 - self.b2 };
            let mut largest = state.mu.into_iter();
            let mut mu = Vec::new();
            let scaled = tree::map(
                |g: Array| {
                    let rank = g.ndim();
                    let spread = largest
                        .next()
                        .unwrap_or_default()
                        .into_iter()
                        .enumerate()
                        .map(|(d, v)| if rank < 2 { v } else { v.expand_dims(&dims_except(rank, d)[..]) });
                    // Every dimension's maximum is an upper bound of an element's sum, so the smallest is the tightest.
                    let before = spread.reduce(minimum).unwrap_or_else(|| zeros_like(&g));
                    let sum = new_weight * g.square() + self.b2 * before;
                    mu.push(
                        (0..rank)
                            .map(|d| if rank < 2 { sum.clone() } else { sum.max(&dims_except(rank, d)[..]) })
                            .collect(),
                    );
                    &g * where_(sum.greater(0), (&sum + self.eps).rsqrt(), 0)
                },
                grads,
            )?;
            let nu = update_moment(&scaled, &state.nu, self.b1, 1)?;
            Ok((nu.clone(), Sm3State { mu, nu }))
        })
    }
}

fn dims_except(rank: usize, dim: usize) -> Vec<i32> {
    (0..rank).filter(|&other| other != dim).map(|other| other as i32).collect()
}
