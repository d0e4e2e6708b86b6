//! Transformations that clip or sanitize gradients: bounds, NaNs, signs of parameters.

use shardax::prelude::*;

use super::tree_utils::{abs_sq, dtype, total};
use super::{GradientTransformation, in_wide_dtypes};
use crate::check::{NOT_NEGATIVE, real_parameters, within};

/// The range of a bound: every number that is not negative, and infinity, which is no bound.
const BOUND: std::ops::RangeFrom<f64> = 0.0..;

/// Returns the length of a tree taken as one vector: `sqrt(sum of squares)`, a scalar of the leaves' dtype, computed in float32
/// at least.
///
/// ```
/// use shardax_nn::prelude::*;
/// let norm = global_norm(&(array([3.0f32]), array([[4.0f32]])));
/// assert_eq!(norm.item::<f32>()?, 5.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn global_norm<P: Tree>(tree: &P) -> Array {
    let (norm, dtype) = (wide_global_norm(tree), dtype(tree));
    if dtype.is_inexact() && dtype.byte_size() < 4 { norm.astype(dtype) } else { norm }
}

/// Returns the length of a tree in float32 at least, because the length of half-precision gradients could overflow.
#[track_caller]
pub(super) fn wide_global_norm<P: Tree>(tree: &P) -> Array {
    total(tree::leaves(tree).iter().map(|x| abs_sq(x).sum(..))).sqrt()
}

/// The gradient transformation that [`clip`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct Clip {
    /// The bound, not negative.
    pub max_delta: f64,
}

/// Clips each element to between `-max_delta` and `max_delta`.
///
/// ```
/// use shardax_nn::optim::clip;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), clip(1.5));
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [1.0, -1.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn clip(max_delta: f64) -> Clip {
    Clip { max_delta }
}

stateless!(
    Clip,
    |this, params| {
        within("clip", "max_delta", this.max_delta, BOUND)?;
        real_parameters("clip", params)
    },
    |this, updates, _params| tree::map(|u| u.clip(-this.max_delta, this.max_delta), updates)
);

/// The gradient transformation that [`clip_by_block_rms`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ClipByBlockRms {
    /// The bound, above 0.
    pub threshold: f64,
}

/// Scales each array so that its root mean square is at most `threshold`.
///
/// ```
/// use shardax_nn::optim::clip_by_block_rms;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), clip_by_block_rms(1.0));
/// let (updates, _) = tx.update(array([3.0f32, -3.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([1.0f32, -1.0]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn clip_by_block_rms(threshold: f64) -> ClipByBlockRms {
    ClipByBlockRms { threshold }
}

stateless!(
    ClipByBlockRms,
    |this| within("clip_by_block_rms", "threshold", this.threshold, f64::MIN_POSITIVE..),
    |this, updates, _params| tree::map(|u| &u / maximum(1.0, abs_sq(&u).mean(..).sqrt() / this.threshold), updates)
);

/// The gradient transformation that [`clip_by_global_norm`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ClipByGlobalNorm {
    /// The bound, not negative.
    pub max_norm: f64,
}

/// Scales all gradients together so that their [`global_norm`] is at most `max_norm`. The direction of the update does
/// not change, so you should prefer it to [`clip`] for large models.
///
/// Source: [Pascanu et al. 2012](https://arxiv.org/abs/1211.5063).
///
/// ```
/// use shardax_nn::prelude::*;
/// let gradients = vec![array([3.0f32]), array([4.0f32])]; // of length 5
/// let (clipped, _) = clip_by_global_norm(1.0).update(gradients.clone(), (), &gradients)?;
/// assert!(allclose(&clipped[1], array([0.8f32]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn clip_by_global_norm(max_norm: f64) -> ClipByGlobalNorm {
    ClipByGlobalNorm { max_norm }
}

stateless!(
    ClipByGlobalNorm,
    |this| within("clip_by_global_norm", "max_norm", this.max_norm, BOUND),
    |this, updates, _params| {
        let norm = wide_global_norm(&updates);
        // `where_` keeps the updates if the norm is 0, so that the division by 0 has no effect.
        let small = norm.less_equal(this.max_norm);
        tree::map(
            |u| {
                let clipped = &u / norm.astype(u.dtype()) * this.max_norm;
                where_(&small, u, clipped)
            },
            updates,
        )
    }
);

/// The gradient transformation that [`adaptive_grad_clip`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct AdaptiveGradClip {
    /// The largest ratio of a unit's gradient to its parameters, not negative.
    pub clipping: f64,
    /// The minimum length of parameters. Default 1e-3.
    pub eps: f64,
}

/// Scales the gradient of each unit (the weights into one output) so that its length is at most `clipping` times the length
/// of the unit's parameters.
///
/// The arrays can have at most five dimensions. The last dimension is the index of the unit.
///
/// Source: [Brock et al. 2021](https://arxiv.org/abs/2102.06171).
///
/// ```
/// use shardax_nn::optim::adaptive_grad_clip;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (array([3.0f32, 4.0]), adaptive_grad_clip(0.1));
/// let (updates, _) = tx.update(array([1.0f32, -2.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([0.2236068f32, -0.4472136]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn adaptive_grad_clip(clipping: f64) -> AdaptiveGradClip {
    AdaptiveGradClip { clipping, eps: 1e-3 }
}

fn axes(range: std::ops::Range<usize>) -> Vec<i32> {
    range.map(|axis| axis as i32).collect()
}

/// Returns the length of each unit's weights, in the shape of `x`.
fn unitwise_norm(x: &Array) -> Array {
    let squares = abs_sq(x);
    let sizes = x.shape().iter().filter(|&&n| n != 1).count();
    let norm = match x.ndim() {
        n if sizes <= 1 => squares.sum_keepdims(&axes(0..n)[..]),
        2 | 3 => squares.sum_keepdims(0),
        n => squares.sum_keepdims(&axes(0..n - 1)[..]),
    };
    norm.sqrt().broadcast_to(x.shape())
}

stateless!(
    AdaptiveGradClip,
    |this| within("adaptive_grad_clip", "clipping", this.clipping, NOT_NEGATIVE).and_then(|()| within(
        "adaptive_grad_clip",
        "eps",
        this.eps,
        NOT_NEGATIVE
    )),
    |this, updates, params| tree::map2(
        |u, p| {
            let (norm, longest) = (unitwise_norm(&u), maximum(unitwise_norm(&p), this.eps) * this.clipping);
            let clipped = &u * (&longest / maximum(&norm, 1e-6));
            where_(norm.less(longest), u, clipped)
        },
        updates,
        params.clone(),
    )
);

/// The gradient transformation that [`normalize_by_update_norm`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct NormalizeByUpdateNorm {
    /// The length that updates have. Default 1.
    pub scale_factor: f64,
    /// Added to the length. Default 1e-6.
    pub eps: f64,
}

/// Divides all gradients together by their [`global_norm`].
///
/// ```
/// use shardax_nn::optim::normalize_by_update_norm;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), normalize_by_update_norm());
/// let (updates, _) = tx.update(array([3.0f32, -4.0]), tx.init(&params)?, &params)?;
/// assert!(allclose(updates, array([0.6f32, -0.8]), 1e-5, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn normalize_by_update_norm() -> NormalizeByUpdateNorm {
    NormalizeByUpdateNorm { scale_factor: 1.0, eps: 1e-6 }
}

stateless!(
    NormalizeByUpdateNorm,
    |this| within("normalize_by_update_norm", "scale_factor", this.scale_factor, f64::MIN_POSITIVE..)
        .and_then(|()| within("normalize_by_update_norm", "eps", this.eps, NOT_NEGATIVE)),
    |this, updates, _params| {
        let norm = (wide_global_norm(&updates) + this.eps) / this.scale_factor;
        tree::map(|u| &u / norm.astype(u.dtype()), updates)
    }
);

/// The gradient transformation that [`centralize`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct Centralize {}

/// Subtracts the mean over all dimensions but the first from each array that has two dimensions or more.
///
/// Source: [Yong et al. 2020](https://arxiv.org/abs/2004.01461).
///
/// ```
/// use shardax_nn::optim::centralize;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2, 2]), centralize());
/// let (updates, _) = tx.update(array([[1.0f32, 2.0], [3.0, 6.0]]), tx.init(&params)?, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [-0.5, 0.5, -1.5, 1.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn centralize() -> Centralize {
    Centralize {}
}

stateless!(Centralize, |_this| Ok(()), |_this, updates, _params| tree::map(
    |u| match u.ndim() {
        0 | 1 => u,
        n => &u - u.mean_keepdims(&axes(1..n)[..]),
    },
    updates
));

/// The gradient transformation that [`keep_params_nonnegative`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct KeepParamsNonnegative {}

/// Changes updates that would make a parameter negative, so that the parameter becomes 0. You must put it last in a
/// chain, because later transformations would change the updates again.
///
/// ```
/// use shardax_nn::optim::keep_params_nonnegative;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (array([3.0f32, 4.0]), keep_params_nonnegative());
/// let (updates, _) = tx.update(array([-5.0f32, 1.0]), tx.init(&params)?, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [-3.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn keep_params_nonnegative() -> KeepParamsNonnegative {
    KeepParamsNonnegative {}
}

stateless!(
    KeepParamsNonnegative,
    |_this, params| real_parameters("keep_params_nonnegative", params),
    |_this, updates, params| tree::map2(|u, p| where_((&p + &u).less(0), -p, u), updates, params.clone())
);

/// The gradient transformation that [`zero_nans`] returns.
#[derive(Tree, Clone, Debug, PartialEq)]
pub struct ZeroNans {}

/// The state of [`ZeroNans`].
#[derive(Tree, Clone, Debug)]
pub struct ZeroNansState<P> {
    /// True for each array of the last gradients that had a NaN.
    pub found_nan: P,
}

/// Replaces NaNs in the updates by 0. The state says which arrays had one.
///
/// ```
/// use shardax_nn::optim::zero_nans;
/// use shardax_nn::prelude::*;
/// let (params, tx) = (zeros([2]), zero_nans());
/// let (updates, _) = tx.update(array([f32::NAN, 1.0]), tx.init(&params)?, &params)?;
/// assert_eq!(updates.to_vec::<f32>()?, [0.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn zero_nans() -> ZeroNans {
    ZeroNans {}
}

impl<P: Tree> GradientTransformation<P> for ZeroNans {
    type State = ZeroNansState<P>;

    fn init(&self, params: &P) -> Result<Self::State> {
        Ok(ZeroNansState { found_nan: tree::map(|_| zeros_dtype((), DType::Bool), params.clone())? })
    }

    fn update(&self, grads: P, _state: Self::State, _params: &P) -> Result<(P, Self::State)> {
        let found_nan = tree::map(|g| g.isnan().any(..), grads.clone())?;
        Ok((tree::map(|g| where_(g.isnan(), zeros_like(&g), g), grads)?, ZeroNansState { found_nan }))
    }
}
