//! Arithmetic on trees of arrays, like `optax.tree`. Two trees must have one structure, or the result is an error that
//! names the difference.
//!
//! ```
//! use shardax_nn::optim::tree_utils;
//! use shardax_nn::prelude::*;
//! let (a, b) = ((array([1.0f32]), array([2.0f32])), (array([3.0f32]), array([4.0f32])));
//! let sum = tree_utils::add_scale(&a, 0.5, &b)?;
//! assert_eq!(sum.1.to_vec::<f32>()?, [4.0]);
//! assert_eq!(tree_utils::vdot(&a, &b)?.item::<f32>()?, 11.0);
//! # Ok::<(), shardax::Error>(())
//! ```

use shardax::dtype::promote;
use shardax::prelude::*;

use crate::layers::common_dtype;

pub use super::clipping::global_norm as norm;
pub use super::tree_keys::{get, get_all_with_path, set};

/// `x + y`, leaf by leaf.
pub fn add<P: Tree>(x: &P, y: &P) -> Result<P> {
    tree::map2(|x, y| x + y, x.clone(), y.clone())
}

/// `x - y`, leaf by leaf.
pub fn sub<P: Tree>(x: &P, y: &P) -> Result<P> {
    tree::map2(|x, y| x - y, x.clone(), y.clone())
}

/// `x * y`, leaf by leaf.
pub fn mul<P: Tree>(x: &P, y: &P) -> Result<P> {
    tree::map2(|x, y| x * y, x.clone(), y.clone())
}

/// `x / y`, leaf by leaf.
pub fn div<P: Tree>(x: &P, y: &P) -> Result<P> {
    tree::map2(|x, y| x / y, x.clone(), y.clone())
}

/// `scalar * x`, leaf by leaf.
pub fn scale<P: Tree>(scalar: impl ArrayLike, x: &P) -> Result<P> {
    let scalar = scalar.into_array();
    tree::map(|x| &scalar * x, x.clone())
}

/// `x + scalar * y`, leaf by leaf.
pub fn add_scale<P: Tree>(x: &P, scalar: impl ArrayLike, y: &P) -> Result<P> {
    let scalar = scalar.into_array();
    tree::map2(|x, y| x + &scalar * y, x.clone(), y.clone())
}

/// Returns the dot product of two trees, with the conjugate of `x` if it is complex: a scalar.
pub fn vdot<P: Tree>(x: &P, y: &P) -> Result<Array> {
    let conjugate = |x: Array| if x.dtype().is_complex() { x.conj() } else { x };
    let dot = |x: Array, y: Array| match x.aval().sharding() {
        // Along dimensions that are split, the elements have no order that a vector could keep.
        Some(_) => (conjugate(x) * y).sum(..),
        None => conjugate(x).ravel().dot(y.ravel()),
    };
    Ok(total(tree::leaves(&tree::map2(dot, x.clone(), y.clone())?)))
}

/// The sum of all elements of all leaves: a scalar.
#[track_caller]
pub fn sum<P: Tree>(tree: &P) -> Array {
    total(tree::leaves(tree).into_iter().map(|x| x.sum(..)))
}

/// Returns the sum of scalars; 0 if there are none.
pub(super) fn total(scalars: impl IntoIterator<Item = Array>) -> Array {
    scalars.into_iter().reduce(|a, b| a + b).unwrap_or_else(|| zeros(()))
}

/// The number of elements of all leaves.
pub fn size<P: Tree>(tree: &P) -> usize {
    tree::leaves(tree).iter().map(Array::size).sum()
}

/// The complex conjugates.
pub fn conj<P: Tree>(tree: &P) -> Result<P> {
    tree::map(|x| x.conj(), tree.clone())
}

/// The real parts.
pub fn real<P: Tree>(tree: &P) -> Result<P> {
    tree::map(|x| x.real(), tree.clone())
}

/// Zeros of every leaf's shape and dtype.
pub fn zeros_like<P: Tree>(tree: &P) -> Result<P> {
    tree::map(|x| shardax::numpy::zeros_like(&x), tree.clone())
}

/// Ones of every leaf's shape and dtype.
pub fn ones_like<P: Tree>(tree: &P) -> Result<P> {
    tree::map(|x| shardax::numpy::ones_like(&x), tree.clone())
}

/// `value` in every leaf's shape and dtype.
pub fn full_like<P: Tree>(tree: &P, value: impl ArrayLike) -> Result<P> {
    let value = value.into_array();
    tree::map(|x| shardax::numpy::full_like(&x, &value), tree.clone())
}

/// Every element between `min` and `max`.
pub fn clip<P: Tree>(tree: &P, min: f64, max: f64) -> Result<P> {
    tree::map(|x| x.clip(min, max), tree.clone())
}

/// The leaves as `dtype`; as they are for `None`.
pub fn cast<P: Tree>(tree: &P, dtype: Option<DType>) -> Result<P> {
    match dtype {
        Some(dtype) => tree::map(|x| x.astype(dtype), tree.clone()),
        None => Ok(tree.clone()),
    }
}

/// The leaves in the dtypes of those of `other`.
pub fn cast_like<P: Tree>(tree: &P, other: &P) -> Result<P> {
    tree::map2(|x, o| x.astype(o.dtype()), tree.clone(), other.clone())
}

/// Returns the promoted dtype of all leaves; float32 without leaves. [`MixedDtype`] has the lowest and the highest.
pub fn dtype<P: Tree>(tree: &P) -> DType {
    common_dtype(&tree::leaves(tree))
}

/// The dtype of a tree whose leaves have several: Optax's `mixed_dtype_handler`.
///
/// ```
/// use shardax_nn::optim::tree_utils::MixedDtype;
/// use shardax_nn::prelude::*;
/// let params = (ones([2]), ones([2]).astype(DType::Bf16));
/// assert_eq!(MixedDtype::Lowest.dtype(&params)?, DType::Bf16);
/// assert_eq!(MixedDtype::Highest.dtype(&params)?, DType::F32);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixedDtype {
    /// The one to which all are promoted.
    Promote,
    /// The lowest in the order of promotion.
    Lowest,
    /// The highest in the order of promotion.
    Highest,
}

impl MixedDtype {
    /// Returns the dtype of the leaves; float32 without leaves.
    ///
    /// Fails for the lowest and the highest of dtypes that have no order, such as float16 and bfloat16.
    pub fn dtype<P: Tree>(self, tree: &P) -> Result<DType> {
        let types: Vec<DType> = tree::leaves(tree).iter().map(Array::dtype).collect();
        let promoted = |a: DType, b: DType| promote((a, false), (b, false)).map(|(dtype, _)| dtype);
        let mut rest = types.iter().copied();
        let all = rest.next().map_or(Ok(DType::F32), |first| rest.try_fold(first, promoted))?;
        let found = match self {
            MixedDtype::Promote => Some(all),
            MixedDtype::Highest => types.iter().copied().find(|of| *of == all),
            MixedDtype::Lowest => types
                .iter()
                .copied()
                .find(|of| types.iter().all(|other| promoted(*of, *other).is_ok_and(|found| found == *other))),
        };
        match found {
            Some(dtype) => Ok(dtype),
            None if types.is_empty() => Ok(all),
            None => Err(shardax::Error::new(
                shardax::ErrorKind::Value,
                format!("the dtypes of the leaves have no order: {types:?}"),
            )),
        }
    }
}

/// Options of the [`norm`] of a tree.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "options do nothing until `norm` is called"]
pub struct NormOptions {
    squared: bool,
}

impl NormOptions {
    /// The defaults: the Euclidean norm.
    pub fn new() -> Self {
        NormOptions::default()
    }

    /// If true, the norm is squared. Default `false`.
    pub fn squared(mut self, squared: bool) -> Self {
        self.squared = squared;
        self
    }

    /// The norm of all leaves as one vector: a scalar.
    ///
    /// ```
    /// use shardax_nn::optim::tree_utils::NormOptions;
    /// use shardax_nn::prelude::*;
    /// let x = (array([3.0f32]), array([4.0f32]));
    /// assert_eq!(NormOptions::new().squared(true).norm(&x).item::<f32>()?, 25.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    #[track_caller]
    pub fn norm<P: Tree>(&self, tree: &P) -> Array {
        match self.squared {
            true => total(tree::leaves(tree).iter().map(|x| abs_sq(x).sum(..))),
            false => norm(tree),
        }
    }
}

/// Leaves of `x` where the condition, a scalar, holds, and of `y` elsewhere.
pub fn where_<P: Tree>(condition: impl ArrayLike, x: &P, y: &P) -> Result<P> {
    let condition = condition.into_array();
    tree::map2(|x, y| shardax::numpy::where_(&condition, x, y), x.clone(), y.clone())
}

/// Standard normal numbers in every leaf's shape and dtype, each from a key of its own.
pub fn random_like<P: Tree>(key: &Array, tree: &P) -> Result<P> {
    let keys = random::split(key, tree::leaves(tree).len());
    let mut keys = keys.iter();
    let next = |x: Array| match keys.next() {
        Some(key) => random::normal_dtype(&key, x.shape(), x.dtype()),
        None => x,
    };
    tree::map(next, tree.clone())
}

/// `(1 - decay) * updates^order + decay * moments`, for an order of 1 or 2.
pub fn update_moment<P: Tree>(updates: &P, moments: &P, decay: f64, order: i32) -> Result<P> {
    let average = |g: Array, t: Array| (1.0 - decay) * integer_pow(&g, order) + decay * t;
    tree::map2(average, updates.clone(), moments.clone())
}

/// Computes [`update_moment`] of absolute values where the updates are complex; `order` is even.
pub fn update_moment_per_elem_norm<P: Tree>(updates: &P, moments: &P, decay: f64, order: i32) -> Result<P> {
    let power = |g: &Array| match g.dtype().is_complex() {
        true => integer_pow(&abs_sq(g), order / 2),
        false => integer_pow(g, order),
    };
    tree::map2(|g, t| (1.0 - decay) * power(&g) + decay * t, updates.clone(), moments.clone())
}

/// `max(|updates| + eps, decay * moments)`.
pub fn update_infinity_moment<P: Tree>(updates: &P, moments: &P, decay: f64, eps: f64) -> Result<P> {
    tree::map2(|g, t| maximum(g.abs() + eps, decay * t), updates.clone(), moments.clone())
}

/// A running average that began at zero, divided by `1 - decay^count`.
pub fn bias_correction<P: Tree>(moment: &P, decay: f64, count: &Array) -> Result<P> {
    let corrected = |t: Array| {
        let dtype = super::wide_dtype(t.dtype());
        let scalar = if dtype.is_complex() { t.real().dtype() } else { dtype };
        (t.astype(dtype) / super::one_minus_power(decay, count, scalar)).astype(t.dtype())
    };
    tree::map(corrected, moment.clone())
}

/// The square of the absolute value, real, in float32 at least: half precision would overflow at 256.
pub(super) fn abs_sq(x: &Array) -> Array {
    let x = x.astype(super::wide_dtype(x.dtype()));
    if x.dtype().is_complex() { x.real().square() + x.imag().square() } else { x.square() }
}

/// `count + 1`, which stays at the largest number of its dtype.
///
/// ```
/// use shardax_nn::optim::safe_increment;
/// use shardax_nn::prelude::*;
/// assert_eq!(safe_increment(array(i32::MAX)).item::<i32>()?, i32::MAX);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn safe_increment(count: impl ArrayLike) -> Array {
    let count = count.into_array();
    // If one more is less, it has wrapped.
    let next = &count + 1;
    shardax::numpy::where_(next.greater(&count), &next, &count)
}
