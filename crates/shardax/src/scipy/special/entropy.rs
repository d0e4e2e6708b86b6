//! Entropy terms and logarithms of probabilities.

use super::{elementwise, real_elementwise};
use crate::core::array::Array;
use crate::ops::numpy::{isnan, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::special::products::RELATIVE_ENTROPY;
use crate::ops::primitive::special::{LOGIT, XLOG1PY, XLOGX, XLOGY};
use crate::ops::primitive::unary::LOGISTIC;

/// Computes `log(p / (1 - p))`, the inverse of [`expit`].
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::logit(0.75).item::<f32>()? - 3f32.ln()).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn logit(p: impl ArrayLike) -> Array {
    elementwise("logit", &[p.into_array()], |p| LOGIT.apply(p))
}

/// Returns the logistic function, `1 / (1 + exp(-x))`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::scipy::special::expit(0.0).item::<f32>()?, 0.5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn expit(x: impl ArrayLike) -> Array {
    elementwise("expit", &[x.into_array()], |x| LOGISTIC.apply(&x[0]))
}

/// Computes `x log(y)`, and 0 where `x` is 0.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::scipy::special::xlogy(0.0, 0.0).item::<f32>()?, 0.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn xlogy(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    elementwise("xlogy", &[x.into_array(), y.into_array()], |a| XLOGY.apply(a))
}

/// Computes `x log(1 + y)`, and 0 where `x` is 0.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(shardax::scipy::special::xlog1py(0.0, -1.0).item::<f32>()?, 0.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn xlog1py(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    elementwise("xlog1py", &[x.into_array(), y.into_array()], |a| XLOG1PY.apply(a))
}

/// Computes `-x log(x)`: the entropy of a probability. `-∞` for negative numbers.
///
/// ```
/// # use shardax::prelude::*;
/// let h = shardax::scipy::special::entr(array([0.5f32, 0.5])).sum(..);
/// assert!((h.item::<f32>()? - 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn entr(x: impl ArrayLike) -> Array {
    real_elementwise("entr", &[x.into_array()], |x| {
        where_(x[0].less(0), f64::NEG_INFINITY, -XLOGX.apply(x)).astype(x[0].dtype())
    })
}

/// Computes `p log(p / q)`: a term of the relative entropy. It is 0 where `p` is 0, and infinite where `p` or `q` is
/// negative or where only `q` is 0.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::rel_entr(0.5, 0.25).item::<f32>()? - 0.5 * 2f32.ln()).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn rel_entr(p: impl ArrayLike, q: impl ArrayLike) -> Array {
    real_elementwise("rel_entr", &[p.into_array(), q.into_array()], |a| relative(&a[0], &a[1]))
}

/// Computes `p log(p / q) - p + q`: [`rel_entr`] for numbers that do not sum to 1.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::kl_div(0.5, 0.25).item::<f32>()? - 0.0965736).abs() < 1e-6);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn kl_div(p: impl ArrayLike, q: impl ArrayLike) -> Array {
    real_elementwise("kl_div", &[p.into_array(), q.into_array()], |a| relative(&a[0], &a[1]) - &a[0] + &a[1])
}

fn relative(p: &Array, q: &Array) -> Array {
    let both_positive = p.greater(0) & q.greater(0);
    let is_zero = p.equal(0) & q.greater_equal(0);
    let (safe_p, safe_q) =
        (where_(&both_positive, p, 1).astype(p.dtype()), where_(&both_positive, q, 1).astype(q.dtype()));
    let sum = RELATIVE_ENTROPY.apply(&[safe_p, safe_q]);
    let invalid = where_(isnan(p) | isnan(q), f64::NAN, f64::INFINITY);
    where_(both_positive, sum, where_(is_zero, 0.0, invalid)).astype(p.dtype())
}
