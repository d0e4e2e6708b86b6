//! Adam and its relatives, which divide a mean of the gradients by the root of a mean of their squares.

use shardax::prelude::*;

use super::tree_utils::{
    abs_sq, bias_correction, cast, cast_like, larger_moment, sub, update_infinity_moment, update_moment,
    update_moment_per_elem_norm,
};
use super::{
    GradientTransformation, count, full_in, in_wide_dtypes, one_minus_power, safe_increment, scalar_dtype, wide_dtype,
    zeros_in,
};
use crate::check::{DECAY, FINITE, NOT_NEGATIVE, within};

/// Checks that the decay rates and epsilons that these transformations share are in their ranges.
#[track_caller]
fn check(owner: &str, [b1, b2]: [f64; 2], [eps, eps_root]: [f64; 2]) -> Result<()> {
    within(owner, "b1", b1, DECAY)?;
    within(owner, "b2", b2, DECAY)?;
    within(owner, "eps", eps, NOT_NEGATIVE)?;
    within(owner, "eps_root", eps_root, NOT_NEGATIVE)
}

/// Returns the bias-corrected mean of the gradients, optionally with Nesterov's momentum.
fn unbiased<P: Tree>(mu: &P, grads: &P, b1: f64, count: &Array, nesterov: bool) -> Result<P> {
    if !nesterov {
        return bias_correction(mu, b1, count);
    }
    let ahead = bias_correction(mu, b1, &safe_increment(count))?;
    tree::map2(|m, g| b1 * m + (1.0 - b1) * g, ahead, bias_correction(grads, b1, count)?)
}

/// Returns `m / (sqrt(v + eps_root) + eps)`, leaf by leaf.
fn ratio<P: Tree>(mu: P, nu: P, eps: f64, eps_root: f64) -> Result<P> {
    tree::map2(|m, v| m / ((if eps_root == 0.0 { v } else { v + eps_root }).sqrt() + eps), mu, nu)
}

/// The gradient transformation that [`scale_by_adam`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByAdam {
    /// The decay rate of the mean of the gradients. Default 0.9.
    pub b1: f64,
    /// The decay rate of the mean of their squares. Default 0.999.
    pub b2: f64,
    /// Added outside of the square root. Default 1e-8.
    pub eps: f64,
    /// Added inside of the square root. Default 0.
    pub eps_root: f64,
    /// True for Nesterov's momentum.
    pub nesterov: bool,
    /// The dtype of the mean of the gradients. Default: the dtype of the parameters.
    #[tree(static)]
    pub mu_dtype: Option<DType>,
}

/// Sets the numbers of [`adam`](super::adam), [`adamw`](super::adamw), [`lamb`](super::lamb) and other chains that
/// begin with a [`ScaleByAdam`]. You can call these methods on the chain.
///
/// ```
/// use shardax_nn::prelude::*;
/// let state = TrainState::create(ones([2]), (clip_by_global_norm(1.0), adamw(1e-3, 1e-4).b2(0.95).eps(1e-5)))?;
/// assert_eq!(state.tx.1.0.eps, 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an optimizer of Adam's family",
    label = "has no `b1`, `b2` and `eps`",
    note = "`adam`, `adamw` and `lamb` have these options; in a chain: `(clip_by_global_norm(1.0), adamw(1e-3, 1e-4).b2(0.95))`"
)]
pub trait AdamOptions: Sized {
    /// Returns the transformation that the other methods change.
    fn scale_by_adam(&mut self) -> &mut ScaleByAdam;

    /// Sets the decay rate of the mean of the gradients. Default 0.9.
    fn b1(mut self, b1: f64) -> Self {
        self.scale_by_adam().b1 = b1;
        self
    }

    /// Sets the decay rate of the mean of their squares. Default 0.999.
    fn b2(mut self, b2: f64) -> Self {
        self.scale_by_adam().b2 = b2;
        self
    }

    /// Sets the number that is added outside of the square root. Default 1e-8.
    fn eps(mut self, eps: f64) -> Self {
        self.scale_by_adam().eps = eps;
        self
    }

    /// Sets the number that is added inside of the square root. You need it if you differentiate through the updates,
    /// because the slope of the root is infinite at 0. Default 0.
    fn eps_root(mut self, eps_root: f64) -> Self {
        self.scale_by_adam().eps_root = eps_root;
        self
    }

    /// Sets the dtype of the mean of the gradients. You can save memory with bfloat16. Default: the dtype of the
    /// parameters.
    fn mu_dtype(mut self, mu_dtype: DType) -> Self {
        self.scale_by_adam().mu_dtype = Some(mu_dtype);
        self
    }

    /// Sets whether Nesterov's momentum is used. Default false.
    fn nesterov(mut self, nesterov: bool) -> Self {
        self.scale_by_adam().nesterov = nesterov;
        self
    }
}

impl AdamOptions for ScaleByAdam {
    fn scale_by_adam(&mut self) -> &mut ScaleByAdam {
        self
    }
}

macro_rules! chains_that_begin_with_adam {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<$($t),+> AdamOptions for (ScaleByAdam, $($t),+) {
            fn scale_by_adam(&mut self) -> &mut ScaleByAdam {
                &mut self.0
            }
        }
    )*};
}

shardax::__each_tuple!(chains_that_begin_with_adam);

/// The state of [`ScaleByAdam`] and its relatives.
#[derive(Tree, Clone, Debug)]
pub struct AdamState<P> {
    /// The steps taken, int32.
    pub count: Array,
    /// The mean of the gradients.
    pub mu: P,
    /// The mean of their squares.
    pub nu: P,
}

impl<P: Tree> AdamState<P> {
    fn new(params: &P) -> Result<Self> {
        Ok(AdamState { count: count(), mu: zeros_in(params, None)?, nu: zeros_in(params, None)? })
    }
}

/// Divides the mean of the gradients by the square root of the mean of their squares, with Adam's defaults. The means decay
/// exponentially, and their bias towards 0 is corrected.
///
/// Source: [Kingma and Ba 2014](https://arxiv.org/abs/1412.6980).
///
/// ```
/// use shardax_nn::optim::scale_by_adam;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_adam());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([1.0f32, -1.0]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_adam() -> ScaleByAdam {
    ScaleByAdam { b1: 0.9, b2: 0.999, eps: 1e-8, eps_root: 0.0, nesterov: false, mu_dtype: None }
}

impl<P: Tree> GradientTransformation<P> for ScaleByAdam {
    type State = AdamState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        check("scale_by_adam", [self.b1, self.b2], [self.eps, self.eps_root])?;
        Ok(AdamState { mu: zeros_in(params, self.mu_dtype)?, ..AdamState::new(params)? })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let count = safe_increment(&state.count);
            let mu = update_moment(&grads, &state.mu, self.b1, 1)?;
            let nu = update_moment_per_elem_norm(&grads, &state.nu, self.b2, 2)?;
            let mean = unbiased(&mu, &grads, self.b1, &count, self.nesterov)?;
            let updates = ratio(mean, bias_correction(&nu, self.b2, &count)?, self.eps, self.eps_root)?;
            let nu = cast_like(&nu, &state.nu)?;
            Ok((updates, AdamState { count, mu: cast(&mu, self.mu_dtype)?, nu }))
        })
    }
}

/// The gradient transformation that [`scale_by_amsgrad`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByAmsgrad {
    /// Like the field of [`ScaleByAdam`].
    pub b1: f64,
    /// Like the field of [`ScaleByAdam`].
    pub b2: f64,
    /// Like the field of [`ScaleByAdam`].
    pub eps: f64,
    /// Like the field of [`ScaleByAdam`].
    pub eps_root: f64,
}

/// The state of [`ScaleByAmsgrad`].
#[derive(Tree, Clone, Debug)]
pub struct AmsgradState<P> {
    /// The steps taken, int32.
    pub count: Array,
    /// The mean of the gradients.
    pub mu: P,
    /// The mean of their squares.
    pub nu: P,
    /// The elementwise maximum of the mean of squares so far.
    pub nu_max: P,
}

/// Scales like [`scale_by_adam`], but divides by the root of the largest mean of squares so far.
///
/// Source: [Reddi et al. 2018](https://openreview.net/forum?id=ryQu7f-RZ).
///
/// ```
/// use shardax_nn::optim::scale_by_amsgrad;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_amsgrad());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([1.0f32, -1.0]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_amsgrad() -> ScaleByAmsgrad {
    ScaleByAmsgrad { b1: 0.9, b2: 0.999, eps: 1e-8, eps_root: 0.0 }
}

impl<P: Tree> GradientTransformation<P> for ScaleByAmsgrad {
    type State = AmsgradState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        check("scale_by_amsgrad", [self.b1, self.b2], [self.eps, self.eps_root])?;
        let zeros = zeros_in(params, None)?;
        Ok(AmsgradState { count: count(), mu: zeros.clone(), nu: zeros.clone(), nu_max: zeros })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let count = safe_increment(&state.count);
            let mu = update_moment(&grads, &state.mu, self.b1, 1)?;
            let nu = update_moment_per_elem_norm(&grads, &state.nu, self.b2, 2)?;
            let nu_max = tree::map2(larger_moment, state.nu_max, bias_correction(&nu, self.b2, &count)?)?;
            let updates = ratio(bias_correction(&mu, self.b1, &count)?, nu_max.clone(), self.eps, self.eps_root)?;
            Ok((updates, AmsgradState { count, mu, nu, nu_max }))
        })
    }
}

/// The gradient transformation that [`scale_by_adamax`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByAdamax {
    /// Like the field of [`ScaleByAdam`].
    pub b1: f64,
    /// The decay rate of the largest absolute value. Default 0.999.
    pub b2: f64,
    /// Added to absolute values. Default 1e-8.
    pub eps: f64,
}

/// Scales like [`scale_by_adam`], but divides by a decaying maximum of the absolute gradients.
///
/// Source: [Kingma and Ba 2014](https://arxiv.org/abs/1412.6980).
///
/// ```
/// use shardax_nn::optim::scale_by_adamax;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_adamax());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([1.0f32, -1.0]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_adamax() -> ScaleByAdamax {
    ScaleByAdamax { b1: 0.9, b2: 0.999, eps: 1e-8 }
}

impl<P: Tree> GradientTransformation<P> for ScaleByAdamax {
    type State = AdamState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        check("scale_by_adamax", [self.b1, self.b2], [self.eps, 0.0])?;
        AdamState::new(params)
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let count = safe_increment(&state.count);
            let mu = update_moment(&grads, &state.mu, self.b1, 1)?;
            let nu = update_infinity_moment(&grads, &state.nu, self.b2, self.eps)?;
            let updates = tree::map2(|m, v| m / v, bias_correction(&mu, self.b1, &count)?, nu.clone())?;
            Ok((updates, AdamState { count, mu, nu }))
        })
    }
}

/// The gradient transformation that [`scale_by_belief`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByBelief {
    /// Like the field of [`ScaleByAdam`].
    pub b1: f64,
    /// Like the field of [`ScaleByAdam`].
    pub b2: f64,
    /// Added outside of the square root. Default 1e-16.
    pub eps: f64,
    /// Added to the mean of squares in each step. Default 1e-16.
    pub eps_root: f64,
    /// Uses Nesterov's momentum.
    pub nesterov: bool,
}

/// Scales like [`scale_by_adam`], but computes the mean of squares from the gradients' deviations from their mean.
///
/// Source: [Zhuang et al. 2020](https://arxiv.org/abs/2010.07468).
///
/// ```
/// use shardax_nn::optim::scale_by_belief;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_belief());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([1.1111f32, -1.1111]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_belief() -> ScaleByBelief {
    ScaleByBelief { b1: 0.9, b2: 0.999, eps: 1e-16, eps_root: 1e-16, nesterov: false }
}

impl<P: Tree> GradientTransformation<P> for ScaleByBelief {
    type State = AdamState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        check("scale_by_belief", [self.b1, self.b2], [self.eps, self.eps_root])?;
        AdamState::new(params)
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let count = safe_increment(&state.count);
            let mu = update_moment(&grads, &state.mu, self.b1, 1)?;
            let nu = update_moment_per_elem_norm(&sub(&grads, &mu)?, &state.nu, self.b2, 2)?;
            let nu = tree::map(|v| v + self.eps_root, nu)?;
            let mean = unbiased(&mu, &grads, self.b1, &count, self.nesterov)?;
            let updates = ratio(mean, bias_correction(&nu, self.b2, &count)?, self.eps, 0.0)?;
            Ok((updates, AdamState { count, mu, nu }))
        })
    }
}

/// The gradient transformation that [`scale_by_yogi`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByYogi {
    /// Like the field of [`ScaleByAdam`].
    pub b1: f64,
    /// Like the field of [`ScaleByAdam`].
    pub b2: f64,
    /// Added outside of the square root. Default 1e-3.
    pub eps: f64,
    /// Added inside of the square root. Default 0.
    pub eps_root: f64,
    /// The initial value of both means. Default 1e-6.
    pub initial_accumulator_value: f64,
}

/// Scales like [`scale_by_adam`], but changes the mean of squares by no more than the new square.
///
/// Source: [Zaheer et al. 2018](https://papers.nips.cc/paper/2018/hash/90365351ccc7437a1309dc64e4db32a3-Abstract.html).
///
/// ```
/// use shardax_nn::optim::scale_by_yogi;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_yogi());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([0.9985048f32, -0.9993644]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_yogi() -> ScaleByYogi {
    ScaleByYogi { b1: 0.9, b2: 0.999, eps: 1e-3, eps_root: 0.0, initial_accumulator_value: 1e-6 }
}

impl<P: Tree> GradientTransformation<P> for ScaleByYogi {
    type State = AdamState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        check("scale_by_yogi", [self.b1, self.b2], [self.eps, self.eps_root])?;
        within("scale_by_yogi", "initial_accumulator_value", self.initial_accumulator_value, NOT_NEGATIVE)?;
        let start = full_in(params, self.initial_accumulator_value)?;
        Ok(AdamState { count: count(), mu: start.clone(), nu: start })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let count = safe_increment(&state.count);
            let mu = update_moment(&grads, &state.mu, self.b1, 1)?;
            let nu = tree::map2(
                |g: Array, v: Array| {
                    let square = abs_sq(&g);
                    &v - (1.0 - self.b2) * (&v - &square).sign() * square
                },
                grads,
                state.nu,
            )?;
            let mean = bias_correction(&mu, self.b1, &count)?;
            let updates = ratio(mean, bias_correction(&nu, self.b2, &count)?, self.eps, self.eps_root)?;
            Ok((updates, AdamState { count, mu, nu }))
        })
    }
}

/// The gradient transformation that [`scale_by_radam`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByRadam {
    /// Like the field of [`ScaleByAdam`].
    pub b1: f64,
    /// Like the field of [`ScaleByAdam`].
    pub b2: f64,
    /// Like the field of [`ScaleByAdam`].
    pub eps: f64,
    /// Like the field of [`ScaleByAdam`].
    pub eps_root: f64,
    /// The least length of the average at which the variance is used. Default 5.
    pub threshold: f64,
    /// Uses Nesterov's momentum.
    pub nesterov: bool,
}

/// Scales like [`scale_by_adam`], but early steps use only the mean of the gradients, because the estimate of their variance is
/// not reliable yet.
///
/// Source: [Liu et al. 2019](https://arxiv.org/abs/1908.03265).
///
/// ```
/// use shardax_nn::optim::scale_by_radam;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_radam());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([1.0f32, -2.0]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_radam() -> ScaleByRadam {
    ScaleByRadam { b1: 0.9, b2: 0.999, eps: 1e-8, eps_root: 0.0, threshold: 5.0, nesterov: false }
}

impl<P: Tree> GradientTransformation<P> for ScaleByRadam {
    type State = AdamState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        check("scale_by_radam", [self.b1, self.b2], [self.eps, self.eps_root])?;
        within("scale_by_radam", "threshold", self.threshold, FINITE)?;
        AdamState::new(params)
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let count = safe_increment(&state.count);
            let mu = update_moment(&grads, &state.mu, self.b1, 1)?;
            let nu = update_moment_per_elem_norm(&grads, &state.nu, self.b2, 2)?;
            // The variance of the step size is rectified once enough steps make it reliable.
            let ro_inf = 2.0 / (1.0 - self.b2) - 1.0;
            let dtype = scalar_dtype(&grads);
            let one_minus_b2_power = one_minus_power(self.b2, &count, dtype);
            let ro: Array = ro_inf - 2 * count.astype(dtype) * (1 - &one_minus_b2_power) / one_minus_b2_power;
            let r: Array = ((&ro - 4) * (&ro - 2) * ro_inf / ((ro_inf - 4.0) * (ro_inf - 2.0) * &ro)).sqrt();
            let mean = unbiased(&mu, &grads, self.b1, &count, self.nesterov)?;
            let scaled = tree::map(|m| r.astype(m.dtype()) * m, mean.clone())?;
            let scaled = ratio(scaled, bias_correction(&nu, self.b2, &count)?, self.eps, self.eps_root)?;
            // With a low threshold or a low `b2`, the rectification may be the root of a negative number.
            let is_reliable = ro.greater_equal(self.threshold) & r.isfinite();
            let updates = super::tree_utils::where_(is_reliable, &scaled, &mean)?;
            Ok((updates, AdamState { count, mu, nu }))
        })
    }
}

/// The gradient transformation that [`scale_by_adan`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByAdan {
    /// The decay rate of the mean of the gradients. Default 0.98.
    pub b1: f64,
    /// The decay rate of the mean of their differences. Default 0.92.
    pub b2: f64,
    /// The decay rate of the mean of squares. Default 0.99.
    pub b3: f64,
    /// Added outside of the square root. Default 1e-8.
    pub eps: f64,
    /// Added inside of the square root. Default 0.
    pub eps_root: f64,
}

/// The state of [`ScaleByAdan`].
#[derive(Tree, Clone, Debug)]
pub struct AdanState<P> {
    /// The mean of the gradients.
    pub m: P,
    /// The mean of their differences.
    pub v: P,
    /// The mean of squares.
    pub n: P,
    /// The previous gradients.
    pub g: P,
    /// The steps taken, int32.
    pub t: Array,
}

/// Scales like [`scale_by_adam`], with Nesterov's momentum that is estimated from the differences of gradients.
///
/// Source: [Xie et al. 2022](https://arxiv.org/abs/2208.06677).
///
/// ```
/// use shardax_nn::optim::scale_by_adan;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_adan());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([1.0f32, -1.0]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_adan() -> ScaleByAdan {
    ScaleByAdan { b1: 0.98, b2: 0.92, b3: 0.99, eps: 1e-8, eps_root: 0.0 }
}

impl<P: Tree> GradientTransformation<P> for ScaleByAdan {
    type State = AdanState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        check("scale_by_adan", [self.b1, self.b2], [self.eps, self.eps_root])?;
        within("scale_by_adan", "b3", self.b3, DECAY)?;
        let zeros = zeros_in(params, None)?;
        Ok(AdanState { m: zeros.clone(), v: zeros.clone(), n: zeros.clone(), g: zeros, t: count() })
    }

    fn update(&self, g: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(g, params, |g, _params| {
            let is_first_step = state.t.equal(0);
            let change =
                tree::map2(|new, old| where_(&is_first_step, zeros_like(&new), &new - old), g.clone(), state.g)?;
            let m = update_moment(&g, &state.m, self.b1, 1)?;
            let v = update_moment(&change, &state.v, self.b2, 1)?;
            let extrapolated = tree::map2(|m, v| m + (1.0 - self.b2) * v, g.clone(), change)?;
            let n = update_moment_per_elem_norm(&extrapolated, &state.n, self.b3, 2)?;
            let t = safe_increment(&state.t);
            let (m_hat, v_hat) = (bias_correction(&m, self.b1, &t)?, bias_correction(&v, self.b2, &t)?);
            let mean = tree::map2(|m, v| m + (1.0 - self.b2) * v, m_hat, v_hat)?;
            let updates = ratio(mean, bias_correction(&n, self.b3, &t)?, self.eps, self.eps_root)?;
            Ok((updates, AdanState { m, v, n, g, t }))
        })
    }
}

/// The gradient transformation that [`scale_by_lion`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByLion {
    /// The weight of the mean in the interpolation of the mean and the gradient; its sign is the update. Default 0.9.
    pub b1: f64,
    /// The decay rate of the mean. Default 0.99.
    pub b2: f64,
    /// The dtype of the mean. Default: the dtype of the parameters.
    #[tree(static)]
    pub mu_dtype: Option<DType>,
}

/// The state of [`ScaleByLion`].
#[derive(Tree, Clone, Debug)]
pub struct LionState<P> {
    /// The steps taken, int32.
    pub count: Array,
    /// The mean of the gradients.
    pub mu: P,
}

/// Replaces gradients by the signs of an average: `sign(b1 * mean + (1 - b1) * gradient)`, where the mean decays by `b2`.
///
/// Source: [Chen et al. 2023](https://arxiv.org/abs/2302.06675).
///
/// ```
/// use shardax_nn::optim::scale_by_lion;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_lion(0.9, 0.99));
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [1.0, -1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_lion(b1: f64, b2: f64) -> ScaleByLion {
    ScaleByLion { b1, b2, mu_dtype: None }
}

impl<P: Tree> GradientTransformation<P> for ScaleByLion {
    type State = LionState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        check("scale_by_lion", [self.b1, self.b2], [0.0, 0.0])?;
        Ok(LionState { count: count(), mu: zeros_in(params, self.mu_dtype)? })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, _params| {
            let mixed = update_moment(&grads, &state.mu, self.b1, 1)?;
            let mu = cast(&update_moment(&grads, &state.mu, self.b2, 1)?, self.mu_dtype)?;
            Ok((tree::map(|x| x.sign(), mixed)?, LionState { count: safe_increment(state.count), mu }))
        })
    }
}

/// The gradient transformation that [`scale_by_novograd`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ScaleByNovograd {
    /// The decay rate of the mean of the updates. Default 0.9.
    pub b1: f64,
    /// The decay rate of the mean of squared lengths. Default 0.25.
    pub b2: f64,
    /// Added outside of the square root. Default 1e-8.
    pub eps: f64,
    /// Added inside of the square root. Default 0.
    pub eps_root: f64,
    /// The factor of the parameters that are added before the mean. Default 0.
    pub weight_decay: f64,
}

/// Divides the gradient of each array by its average length, then averages the quotients. This is Adam with one mean of squares
/// for each array.
///
/// Source: [Ginsburg et al. 2019](https://arxiv.org/abs/1905.11286).
///
/// ```
/// use shardax_nn::optim::scale_by_novograd;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), scale_by_novograd());
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([0.4472136f32, -0.8944272]), 1e-4, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn scale_by_novograd() -> ScaleByNovograd {
    ScaleByNovograd { b1: 0.9, b2: 0.25, eps: 1e-8, eps_root: 0.0, weight_decay: 0.0 }
}

impl<P: Tree> GradientTransformation<P> for ScaleByNovograd {
    type State = AdamState<P>;

    #[track_caller]
    fn init(&self, params: &P) -> Result<Self::State> {
        check("scale_by_novograd", [self.b1, self.b2], [self.eps, self.eps_root])?;
        within("scale_by_novograd", "weight_decay", self.weight_decay, FINITE)?;
        let nu = tree::map(|p| zeros_dtype((), wide_dtype(p.dtype())), params.clone())?;
        Ok(AdamState { count: count(), mu: zeros_in(params, None)?, nu })
    }

    fn update(&self, grads: P, state: Self::State, params: &P) -> Result<(P, Self::State)> {
        in_wide_dtypes(grads, params, |grads, params| {
            let count = safe_increment(&state.count);
            let is_first_step = count.equal(1);
            let nu = tree::map2(
                |g: Array, v: Array| {
                    // As in Optax, the square of a rounded root, so that the numbers are equal.
                    let new = abs_sq(&g).sum(..).sqrt().square();
                    where_(&is_first_step, &new, (1.0 - self.b2) * &new + self.b2 * v)
                },
                grads.clone(),
                state.nu,
            )?;
            let scaled = tree::map3(
                |g, v, p| g / ((v + self.eps_root).sqrt() + self.eps) + self.weight_decay * p,
                grads,
                nu.clone(),
                params.clone(),
            )?;
            let mu = tree::map2(|u, m| where_(&is_first_step, &u, self.b1 * m + &u), scaled, state.mu)?;
            Ok((mu.clone(), AdamState { count, mu, nu }))
        })
    }
}
