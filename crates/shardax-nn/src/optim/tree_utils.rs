//! Arithmetic on trees of arrays, like `optax.tree`. Two trees must have the same structure; otherwise, the result is an
//! error that names the difference.
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

/// Returns `x + y`, leaf by leaf.
///
/// ```
/// use shardax_nn::optim::tree_utils::add;
/// use shardax_nn::prelude::*;
/// let (x, y) = ((array([6.0f32]), array([8.0f32])), (array([2.0f32]), array([4.0f32])));
/// let (a, b) = add(&x, &y)?;
/// assert_eq!([a.to_vec::<f32>()?, b.to_vec::<f32>()?], [[8.0], [12.0]]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if the shapes of two arrays do not broadcast together.
pub fn add<P: Tree>(x: &P, y: &P) -> Result<P> {
    tree::map2(|x, y| x + y, x.clone(), y.clone())
}

/// Returns `x - y`, leaf by leaf.
///
/// ```
/// use shardax_nn::optim::tree_utils::sub;
/// use shardax_nn::prelude::*;
/// let (x, y) = ((array([6.0f32]), array([8.0f32])), (array([2.0f32]), array([4.0f32])));
/// let (a, b) = sub(&x, &y)?;
/// assert_eq!([a.to_vec::<f32>()?, b.to_vec::<f32>()?], [[4.0], [4.0]]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if the shapes of two arrays do not broadcast together.
pub fn sub<P: Tree>(x: &P, y: &P) -> Result<P> {
    tree::map2(|x, y| x - y, x.clone(), y.clone())
}

/// Returns `x * y`, leaf by leaf.
///
/// ```
/// use shardax_nn::optim::tree_utils::mul;
/// use shardax_nn::prelude::*;
/// let (x, y) = ((array([6.0f32]), array([8.0f32])), (array([2.0f32]), array([4.0f32])));
/// let (a, b) = mul(&x, &y)?;
/// assert_eq!([a.to_vec::<f32>()?, b.to_vec::<f32>()?], [[12.0], [32.0]]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if the shapes of two arrays do not broadcast together.
pub fn mul<P: Tree>(x: &P, y: &P) -> Result<P> {
    tree::map2(|x, y| x * y, x.clone(), y.clone())
}

/// Returns `x / y`, leaf by leaf.
///
/// ```
/// use shardax_nn::optim::tree_utils::div;
/// use shardax_nn::prelude::*;
/// let (x, y) = ((array([6.0f32]), array([8.0f32])), (array([2.0f32]), array([4.0f32])));
/// let (a, b) = div(&x, &y)?;
/// assert_eq!([a.to_vec::<f32>()?, b.to_vec::<f32>()?], [[3.0], [2.0]]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if the shapes of two arrays do not broadcast together.
pub fn div<P: Tree>(x: &P, y: &P) -> Result<P> {
    tree::map2(|x, y| x / y, x.clone(), y.clone())
}

/// Returns `scalar * x`, leaf by leaf.
///
/// ```
/// use shardax_nn::optim::tree_utils::scale;
/// use shardax_nn::prelude::*;
/// let tree = (array([1.0f32]), array([2.0f32, 3.0]));
/// let (a, b) = scale(2, &tree)?;
/// assert_eq!([a.to_vec::<f32>()?, b.to_vec::<f32>()?].concat(), [2.0, 4.0, 6.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed.
pub fn scale<P: Tree>(scalar: impl ArrayLike, x: &P) -> Result<P> {
    let scalar = scalar.into_array();
    tree::map(|x| &scalar * x, x.clone())
}

/// Returns `x + scalar * y`, leaf by leaf.
///
/// ```
/// use shardax_nn::optim::tree_utils::add_scale;
/// use shardax_nn::prelude::*;
/// let tree = (array([1.0f32]), array([2.0f32, 3.0]));
/// let (a, b) = add_scale(&tree, 0.5, &tree)?;
/// assert_eq!([a.to_vec::<f32>()?, b.to_vec::<f32>()?].concat(), [1.5, 3.0, 4.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if the shapes of two arrays do not broadcast together.
pub fn add_scale<P: Tree>(x: &P, scalar: impl ArrayLike, y: &P) -> Result<P> {
    let scalar = scalar.into_array();
    tree::map2(|x, y| x + &scalar * y, x.clone(), y.clone())
}

/// Returns the dot product of two trees, a scalar. If `x` is complex, its conjugate is used.
///
/// ```
/// use shardax_nn::optim::tree_utils::vdot;
/// use shardax_nn::prelude::*;
/// let tree = (array([1.0f32]), array([2.0f32, 3.0]));
/// assert_eq!(vdot(&tree, &tree)?.item::<f32>()?, 14.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if the shapes of two arrays do not broadcast together.
pub fn vdot<P: Tree>(x: &P, y: &P) -> Result<Array> {
    Ok(total(tree::leaves(&tree::map2(
        |x: Array, y: Array| match x.aval().sharding() {
            // An array with split dimensions cannot be flattened to a vector.
            Some(_) => (conjugate(x) * y).sum(..),
            None => conjugate(x).ravel().dot(y.ravel()),
        },
        x.clone(),
        y.clone(),
    )?)))
}

/// Returns the sum of all elements of all leaves, a scalar.
///
/// ```
/// use shardax_nn::optim::tree_utils::sum;
/// use shardax_nn::prelude::*;
/// assert_eq!(sum(&(array([1.0f32]), array([2.0f32, 3.0]))).item::<f32>()?, 6.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn sum<P: Tree>(tree: &P) -> Array {
    total(tree::leaves(tree).into_iter().map(|x| x.sum(..)))
}

/// Returns the sum of scalars, or 0 if there are none.
pub(super) fn total(scalars: impl IntoIterator<Item = Array>) -> Array {
    scalars.into_iter().reduce(|a, b| a + b).unwrap_or_else(|| zeros_dtype((), DType::F32))
}

/// Returns the number of elements of all leaves.
///
/// ```
/// use shardax_nn::optim::tree_utils::size;
/// use shardax_nn::prelude::*;
/// assert_eq!(size(&(zeros([2, 3]), zeros([4]))), 10);
/// ```
pub fn size<P: Tree>(tree: &P) -> usize {
    tree::leaves(tree).iter().map(Array::size).sum()
}

/// Returns the complex conjugates of the leaves.
///
/// # Errors
/// Returns an error if an array of the tree failed.
pub fn conj<P: Tree>(tree: &P) -> Result<P> {
    tree::map(|x| x.conj(), tree.clone())
}

/// Returns the real parts of the leaves.
///
/// # Errors
/// Returns an error if an array of the tree failed.
pub fn real<P: Tree>(tree: &P) -> Result<P> {
    tree::map(|x| x.real(), tree.clone())
}

/// Returns zeros in the shape and dtype of every leaf.
///
/// ```
/// use shardax_nn::optim::tree_utils::zeros_like;
/// use shardax_nn::prelude::*;
/// let tree = (array([1.0f32]), array([2.0f32, 3.0]));
/// let (a, b) = zeros_like(&tree)?;
/// assert_eq!([a.to_vec::<f32>()?, b.to_vec::<f32>()?].concat(), [0.0, 0.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed.
pub fn zeros_like<P: Tree>(tree: &P) -> Result<P> {
    tree::map(|x| shardax::numpy::zeros_like(&x), tree.clone())
}

/// Returns ones in the shape and dtype of every leaf.
///
/// ```
/// use shardax_nn::optim::tree_utils::ones_like;
/// use shardax_nn::prelude::*;
/// let tree = (array([1.0f32]), array([2.0f32, 3.0]));
/// let (a, b) = ones_like(&tree)?;
/// assert_eq!([a.to_vec::<f32>()?, b.to_vec::<f32>()?].concat(), [1.0, 1.0, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed.
pub fn ones_like<P: Tree>(tree: &P) -> Result<P> {
    tree::map(|x| shardax::numpy::ones_like(&x), tree.clone())
}

/// Returns `value` in the shape and dtype of every leaf.
///
/// ```
/// use shardax_nn::optim::tree_utils::full_like;
/// use shardax_nn::prelude::*;
/// let tree = (array([1.0f32]), array([2.0f32, 3.0]));
/// let (a, b) = full_like(&tree, 5)?;
/// assert_eq!([a.to_vec::<f32>()?, b.to_vec::<f32>()?].concat(), [5.0, 5.0, 5.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed.
pub fn full_like<P: Tree>(tree: &P, value: impl ArrayLike) -> Result<P> {
    let value = value.into_array();
    tree::map(|x| shardax::numpy::full_like(&x, &value), tree.clone())
}

/// Clips every element to between `min` and `max`.
///
/// ```
/// use shardax_nn::optim::tree_utils::clip;
/// use shardax_nn::prelude::*;
/// let tree = (array([1.0f32]), array([2.0f32, 3.0]));
/// let (a, b) = clip(&tree, 1.5, 2.5)?;
/// assert_eq!([a.to_vec::<f32>()?, b.to_vec::<f32>()?].concat(), [1.5, 2.0, 2.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed.
pub fn clip<P: Tree>(tree: &P, min: f64, max: f64) -> Result<P> {
    tree::map(|x| x.clip(min, max), tree.clone())
}

/// Converts the leaves to `dtype`. `None` does not change them.
///
/// ```
/// use shardax_nn::optim::tree_utils::cast;
/// use shardax_nn::prelude::*;
/// let (w, b) = cast(&(ones([2]), zeros([1])), Some(DType::Bf16))?;
/// assert_eq!([w.dtype(), b.dtype()], [DType::Bf16; 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed.
pub fn cast<P: Tree>(tree: &P, dtype: Option<DType>) -> Result<P> {
    match dtype {
        Some(dtype) => tree::map(|x| x.astype(dtype), tree.clone()),
        None => Ok(tree.clone()),
    }
}

/// Converts the leaves to the dtypes of the leaves of `other`.
///
/// ```
/// use shardax_nn::optim::tree_utils::cast_like;
/// use shardax_nn::prelude::*;
/// let x = cast_like(&ones([2]), &zeros([2]).astype(DType::F16))?;
/// assert_eq!(x.dtype(), DType::F16);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure.
pub fn cast_like<P: Tree>(tree: &P, other: &P) -> Result<P> {
    tree::map2(|x, o| x.astype(o.dtype()), tree.clone(), other.clone())
}

/// Returns the promoted dtype of all leaves, or float32 if there are no leaves. [`MixedDtype`] returns the lowest or the
/// highest.
///
/// ```
/// use shardax_nn::optim::tree_utils::dtype;
/// use shardax_nn::prelude::*;
/// let tree = (ones([2]).astype(DType::Bf16), ones([2]));
/// assert_eq!(dtype(&tree), DType::F32);
/// ```
pub fn dtype<P: Tree>(tree: &P) -> DType {
    common_dtype(&tree::leaves(tree))
}

/// Chooses the dtype of a tree whose leaves have several dtypes, like Optax's `mixed_dtype_handler`.
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
    /// The dtype to which all are promoted.
    Promote,
    /// The lowest in the order of promotion.
    Lowest,
    /// The highest in the order of promotion.
    Highest,
}

/// Returns the promoted dtype of arrays of these dtypes that are not weakly typed.
fn promote_two(a: DType, b: DType) -> Result<DType> {
    promote((a, false), (b, false)).map(|(dtype, _)| dtype)
}

impl MixedDtype {
    /// Returns the dtype of the leaves, or float32 if there are no leaves.
    ///
    /// # Errors
    /// `Lowest` and `Highest` return an error if the dtypes have no order. For example, float16 and bfloat16 have none.
    pub fn dtype<P: Tree>(self, tree: &P) -> Result<DType> {
        let types: Vec<DType> = tree::leaves(tree).iter().map(Array::dtype).collect();
        let mut remaining = types.iter().copied();
        let promoted = remaining.next().map_or(Ok(DType::F32), |first| remaining.try_fold(first, promote_two))?;
        // The promoted type of two leaves can be a third type, so the highest and the lowest type need not exist.
        let chosen = match self {
            MixedDtype::Promote => Some(promoted),
            MixedDtype::Highest => types.iter().copied().find(|dtype| *dtype == promoted),
            MixedDtype::Lowest => types
                .iter()
                .copied()
                .find(|dtype| types.iter().all(|other| promote_two(*dtype, *other).is_ok_and(|both| both == *other))),
        };
        match chosen {
            Some(dtype) => Ok(dtype),
            None if types.is_empty() => Ok(promoted),
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
    /// Returns the defaults: the Euclidean norm.
    pub fn new() -> Self {
        NormOptions::default()
    }

    /// Sets whether the norm is squared. Default false.
    pub fn squared(mut self, squared: bool) -> Self {
        self.squared = squared;
        self
    }

    /// Returns the norm of all leaves as one vector, a scalar.
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
        if self.squared { total(tree::leaves(tree).iter().map(|x| abs_sq(x).sum(..))) } else { norm(tree) }
    }
}

/// Returns the leaves of `x` if the condition, a scalar, is true, otherwise the leaves of `y`.
///
/// ```
/// use shardax_nn::optim::tree_utils;
/// use shardax_nn::prelude::*;
/// let (x, y) = (array([1.0f32, 2.0]), array([3.0f32, 4.0]));
/// assert_eq!(tree_utils::where_(false, &x, &y)?.to_vec::<f32>()?, [3.0, 4.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if the shapes of two arrays do not broadcast together.
pub fn where_<P: Tree>(condition: impl ArrayLike, x: &P, y: &P) -> Result<P> {
    let condition = condition.into_array();
    tree::map2(|x, y| shardax::numpy::where_(&condition, x, y), x.clone(), y.clone())
}

/// Returns standard normal numbers in the shape and dtype of every leaf. Each leaf uses its own key.
///
/// ```
/// use shardax_nn::optim::tree_utils::random_like;
/// use shardax_nn::prelude::*;
/// let tree = (zeros([2]), zeros([3]));
/// let (a, b) = random_like(&random::key(0), &tree)?;
/// assert_eq!((a.shape(), b.shape()), (&[2][..], &[3][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `key` is not a random key, or if an array of the tree is not real or complex.
pub fn random_like<P: Tree>(key: &Array, tree: &P) -> Result<P> {
    let keys = random::split(key, tree::leaves(tree).len());
    let mut keys = keys.iter();
    tree::map(
        |x: Array| match keys.next() {
            Some(key) => random::normal_dtype(&key, x.shape(), x.dtype()),
            None => x,
        },
        tree.clone(),
    )
}

/// Returns `(1 - decay) * updates^order + decay * moments`, for an order of 1 or 2.
///
/// ```
/// use shardax_nn::optim::tree_utils::update_moment;
/// use shardax_nn::prelude::*;
/// let (gradient, mean) = (array([3.0f32]), array([1.0f32]));
/// assert_eq!(update_moment(&gradient, &mean, 0.5, 1)?.to_vec::<f32>()?, [2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if the shapes of two arrays do not broadcast together.
pub fn update_moment<P: Tree>(updates: &P, moments: &P, decay: f64, order: i32) -> Result<P> {
    tree::map2(
        |g: Array, t: Array| (1.0 - decay) * integer_pow(&g, order) + decay * t,
        updates.clone(),
        moments.clone(),
    )
}

/// Computes [`update_moment`], with absolute values if the updates are complex. `order` must be even.
///
/// ```
/// use shardax_nn::optim::tree_utils::update_moment_per_elem_norm;
/// use shardax_nn::prelude::*;
/// let (gradient, mean) = (array([3.0f32]), array([1.0f32]));
/// assert_eq!(update_moment_per_elem_norm(&gradient, &mean, 0.5, 2)?.to_vec::<f32>()?, [5.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if the shapes of two arrays do not broadcast together.
pub fn update_moment_per_elem_norm<P: Tree>(updates: &P, moments: &P, decay: f64, order: i32) -> Result<P> {
    tree::map2(
        |g: Array, t: Array| {
            let power =
                if g.dtype().is_complex() { integer_pow(&abs_sq(&g), order / 2) } else { integer_pow(&g, order) };
            (1.0 - decay) * power + decay * t
        },
        updates.clone(),
        moments.clone(),
    )
}

/// Returns `max(|updates| + eps, decay * moments)`.
///
/// ```
/// use shardax_nn::optim::tree_utils::update_infinity_moment;
/// use shardax_nn::prelude::*;
/// let (gradient, largest) = (array([-3.0f32]), array([4.0f32]));
/// assert_eq!(update_infinity_moment(&gradient, &largest, 0.5, 0.0)?.to_vec::<f32>()?, [3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the trees differ in structure, or if the shapes of two arrays do not broadcast together.
pub fn update_infinity_moment<P: Tree>(updates: &P, moments: &P, decay: f64, eps: f64) -> Result<P> {
    tree::map2(|g, t| larger_moment(g.abs() + eps, decay * t), updates.clone(), moments.clone())
}

/// Divides a running average that began at zero by `1 - decay^count`.
///
/// ```
/// use shardax_nn::optim::tree_utils::bias_correction;
/// use shardax_nn::prelude::*;
/// let mean = array([0.5f32]); // the first mean of ones with a decay of 0.5
/// assert_eq!(bias_correction(&mean, 0.5, &array(1))?.to_vec::<f32>()?, [1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array of the tree failed.
pub fn bias_correction<P: Tree>(moment: &P, decay: f64, count: &Array) -> Result<P> {
    tree::map(
        |t: Array| {
            let dtype = super::wide_dtype(t.dtype());
            let scalar = if dtype.is_complex() { t.real().dtype() } else { dtype };
            (t.astype(dtype) / super::one_minus_power(decay, count, scalar)).astype(t.dtype())
        },
        moment.clone(),
    )
}

/// Returns the larger of two moments, which are real, even if the parameters and therefore their dtype are complex.
pub(super) fn larger_moment(x: Array, y: Array) -> Array {
    if x.dtype().is_complex() || y.dtype().is_complex() {
        let dtype = if x.dtype().is_complex() { x.dtype() } else { y.dtype() };
        return maximum(x.real(), y.real()).astype(dtype);
    }
    maximum(x, y)
}

/// Returns the square of the absolute value, real, in float32 at least, because float16 would overflow at 256.
pub(super) fn abs_sq(x: &Array) -> Array {
    let x = x.astype(super::wide_dtype(x.dtype()));
    if x.dtype().is_complex() { x.real().square() + x.imag().square() } else { x.square() }
}

/// Returns `count + 1`, or `count` if it is the largest number of its dtype.
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
    // If the sum is less than `count`, it has wrapped.
    let incremented = &count + 1;
    shardax::numpy::where_(incremented.greater(&count), &incremented, &count)
}

/// Returns the complex conjugate of an array, and a real array as it is.
pub(super) fn conjugate(x: Array) -> Array {
    if x.dtype().is_complex() { x.conj() } else { x }
}
