//! Projections of parameters onto constraint sets: each function returns the nearest point of the set, by Euclidean distance.
//! All leaves of a tree form one vector.
//!
//! ```
//! use shardax_nn::optim::projections::projection_simplex;
//! use shardax_nn::prelude::*;
//! let shares = projection_simplex(&array([0.5f32, 1.0, -1.0]), 1.0)?;
//! assert_eq!(shares.to_vec::<f32>()?, [0.25, 0.75, 0.0]);
//! # Ok::<(), shardax::Error>(())
//! ```

use shardax::nn::relu;
use shardax::prelude::*;

use super::accumulators::{wide_dtype, widened};
use super::tree_utils::{self, add_scale, scale, total, vdot};
use crate::check::within;
use crate::shardings::replicated;

/// Returns the nearest tree without negative elements.
///
/// ```
/// use shardax_nn::optim::projections::projection_non_negative;
/// use shardax_nn::prelude::*;
/// let nearest = projection_non_negative(&array([1.0f32, -2.0]))?;
/// assert_eq!(nearest.to_vec::<f32>()?, [1.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed.
pub fn projection_non_negative<P: Tree>(tree: &P) -> Result<P> {
    tree::map(|x| relu(x), tree.clone())
}

/// Returns the nearest tree whose elements are between `lower` and `upper`.
///
/// ```
/// use shardax_nn::optim::projections::projection_box;
/// use shardax_nn::prelude::*;
/// let nearest = projection_box(&array([-2.0f32, 0.5, 3.0]), -1.0, 1.0)?;
/// assert_eq!(nearest.to_vec::<f32>()?, [-1.0, 0.5, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed.
pub fn projection_box<P: Tree>(tree: &P, lower: f64, upper: f64) -> Result<P> {
    tree_utils::clip(tree, lower, upper)
}

/// Returns the nearest tree whose elements are between 0 and `size`.
///
/// ```
/// use shardax_nn::optim::projections::projection_hypercube;
/// use shardax_nn::prelude::*;
/// let nearest = projection_hypercube(&array([-2.0f32, 0.5, 3.0]), 1.0)?;
/// assert_eq!(nearest.to_vec::<f32>()?, [0.0, 0.5, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed.
pub fn projection_hypercube<P: Tree>(tree: &P, size: f64) -> Result<P> {
    projection_box(tree, 0.0, size)
}

/// Returns the nearest tree without negative elements whose sum is `size`, above 0.
///
/// ```
/// use shardax_nn::optim::projections::projection_simplex;
/// use shardax_nn::prelude::*;
/// let nearest = projection_simplex(&array([0.5f32, 1.0, -1.0]), 1.0)?;
/// assert_eq!(nearest.to_vec::<f32>()?, [0.25, 0.75, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed, or if `size` is out of its range.
#[track_caller]
pub fn projection_simplex<P: Tree>(tree: &P, size: f64) -> Result<P> {
    within("projection_simplex", "size", size, f64::MIN_POSITIVE..f64::INFINITY)?;
    let leaves = tree::leaves(tree);
    if leaves.is_empty() {
        return Ok(tree.clone());
    }
    let leaves: Vec<Array> = leaves.iter().map(|x| replicated(&x.astype(wide_dtype(x.dtype()))).ravel()).collect();
    let values = concatenate(&leaves, 0);
    if values.size() == 0 {
        return Ok(tree.clone());
    }
    // The same number added to all elements changes nothing, so that sums need not have the digits of large elements.
    let values = &values - stop_gradient(values.max(..));
    // The largest elements stay above zero. An element stays if it is above the amount by which all elements would be lowered,
    // and is less than `size` below the largest.
    let sorted = values.maximum(-size).sort_descending(0);
    let ranks = arange(1..values.size() as i32 + 1).astype(values.dtype());
    let lowered = (sorted.cumsum(0) - size) / &ranks;
    let count = sorted.greater(&lowered).astype(DType::I32).sum(..);
    let level = lowered.get(count - 1);
    // A small change of the values does not change which of them are positive, so the gradient depends only on their mean.
    let stays = stop_gradient(values.greater(level));
    let excess = where_(&stays, &values, 0).sum(..) - size;
    let projected = where_(&stays, &values - excess / stays.sum(..), 0);
    split_like(&projected, tree)
}

/// Returns the nearest tree whose absolute values sum to `size`, above 0.
///
/// ```
/// use shardax_nn::optim::projections::projection_l1_sphere;
/// use shardax_nn::prelude::*;
/// let nearest = projection_l1_sphere(&array([0.5f32, -1.0]), 1.0)?;
/// assert_eq!(nearest.to_vec::<f32>()?, [0.25, -0.75]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed, or if `size` is out of its range.
#[track_caller]
pub fn projection_l1_sphere<P: Tree>(tree: &P, size: f64) -> Result<P> {
    let projected = projection_simplex(&tree::map(|x| x.abs(), tree.clone())?, size)?;
    tree::map2(|x, p| x.sign() * p, tree.clone(), projected)
}

/// Returns the nearest tree whose absolute values sum to at most `size`, above 0.
///
/// ```
/// use shardax_nn::optim::projections::projection_l1_ball;
/// use shardax_nn::prelude::*;
/// let nearest = projection_l1_ball(&array([0.25f32, -0.5]), 1.0)?;
/// assert_eq!(nearest.to_vec::<f32>()?, [0.25, -0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed, or if `size` is out of its range.
#[track_caller]
pub fn projection_l1_ball<P: Tree>(tree: &P, size: f64) -> Result<P> {
    let inside = total(tree::leaves(&widened(tree.clone())?).iter().map(|x| x.abs().sum(..))).less_equal(size);
    let outside = projection_l1_sphere(tree, size)?;
    tree_utils::where_(inside, tree, &outside)
}

/// Returns the nearest tree of length `size`.
///
/// ```
/// use shardax_nn::optim::projections::projection_l2_sphere;
/// use shardax_nn::prelude::*;
/// let nearest = projection_l2_sphere(&array([3.0f32, 4.0]), 1.0)?;
/// assert!(allclose(nearest, array([0.6f32, 0.8]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed, or if `size` is out of its range.
pub fn projection_l2_sphere<P: Tree>(tree: &P, size: f64) -> Result<P> {
    scaled_like(size / tree_utils::norm(tree), tree)
}

/// Returns the nearest tree of length at most `size`.
///
/// ```
/// use shardax_nn::optim::projections::projection_l2_ball;
/// use shardax_nn::prelude::*;
/// let nearest = projection_l2_ball(&array([3.0f32, 4.0]), 10.0)?;
/// assert!(allclose(nearest, array([3.0f32, 4.0]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed, or if `size` is out of its range.
pub fn projection_l2_ball<P: Tree>(tree: &P, size: f64) -> Result<P> {
    let square = total(tree::leaves(&widened(tree.clone())?).iter().map(|x| tree_utils::abs_sq(x).sum(..)));
    scaled_like(size / maximum(square, size * size).sqrt(), tree)
}

/// Returns a tree times a scalar, in the dtypes of the tree.
fn scaled_like<P: Tree>(factor: Array, tree: &P) -> Result<P> {
    tree_utils::cast_like(&scale(factor, tree)?, tree)
}

/// Returns the nearest tree whose elements are between `-size` and `size`.
///
/// ```
/// use shardax_nn::optim::projections::projection_linf_ball;
/// use shardax_nn::prelude::*;
/// let nearest = projection_linf_ball(&array([-3.0f32, 0.5]), 1.0)?;
/// assert_eq!(nearest.to_vec::<f32>()?, [-1.0, 0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed, or if `size` is out of its range.
pub fn projection_linf_ball<P: Tree>(tree: &P, size: f64) -> Result<P> {
    projection_box(tree, -size, size)
}

/// Returns the nearest multiple of `a`.
///
/// ```
/// use shardax_nn::optim::projections::projection_vector;
/// use shardax_nn::prelude::*;
/// let nearest = projection_vector(&array([3.0f32, 5.0]), &array([2.0f32, 0.0]))?;
/// assert_eq!(nearest.to_vec::<f32>()?, [3.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if an array failed.
pub fn projection_vector<P: Tree>(x: &P, a: &P) -> Result<P> {
    computed_in_float32(x, a, |x, a| scale(vdot(x, a)? / vdot(a, a)?, a))
}

/// Returns the nearest tree whose dot product with `a` is `b`.
///
/// ```
/// use shardax_nn::optim::projections::projection_hyperplane;
/// use shardax_nn::prelude::*;
/// let nearest = projection_hyperplane(&array([3.0f32, 5.0]), &array([1.0f32, 1.0]), 4.0)?;
/// assert_eq!(nearest.to_vec::<f32>()?, [1.0, 3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if an array failed.
pub fn projection_hyperplane<P: Tree>(x: &P, a: &P, b: f64) -> Result<P> {
    computed_in_float32(x, a, |x, a| add_scale(x, (b - vdot(x, a)?) / vdot(a, a)?, a))
}

/// Returns the nearest tree whose dot product with `a` is at most `b`.
///
/// ```
/// use shardax_nn::optim::projections::projection_halfspace;
/// use shardax_nn::prelude::*;
/// let nearest = projection_halfspace(&array([1.0f32, 2.0]), &array([1.0f32, 1.0]), 4.0)?;
/// assert_eq!(nearest.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if an array failed.
pub fn projection_halfspace<P: Tree>(x: &P, a: &P, b: f64) -> Result<P> {
    computed_in_float32(x, a, |x, a| add_scale(x, minimum((b - vdot(x, a)?) / vdot(a, a)?, 0), a))
}

/// Splits the elements of a vector into the shapes and dtypes of a tree.
pub(super) fn split_like<P: Tree>(vector: &Array, tree: &P) -> Result<P> {
    let mut start = 0;
    tree::map(
        |x: Array| {
            let end = start + x.size();
            let part = vector.get(start..end).reshape(x.shape()).astype(x.dtype());
            start = end;
            part
        },
        tree.clone(),
    )
}

/// Computes a projection of `x` in float32 where arrays have half precision, in which squares of vectors overflow. A result
/// has the dtype of `x` if `a` has it too.
fn computed_in_float32<P: Tree>(x: &P, a: &P, projection: impl FnOnce(&P, &P) -> Result<P>) -> Result<P> {
    let projected = projection(&widened(x.clone())?, &widened(a.clone())?)?;
    tree::map3(
        |projected: Array, x: Array, a: Array| {
            if x.dtype() == a.dtype() { projected.astype(x.dtype()) } else { projected }
        },
        projected,
        x.clone(),
        a.clone(),
    )
}
