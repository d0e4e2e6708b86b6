//! The error function and the standard normal distribution.

use super::real_elementwise;
use crate::core::array::Array;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::special::{ERFC_INV, LOG_NDTR, NDTRI, cumulative};
use crate::ops::primitive::unary::{ERF, ERF_INV, ERFC};

/// Returns the error function.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::erf(1.0).item::<f32>()? - 0.842701).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn erf(x: impl ArrayLike) -> Array {
    real_elementwise("erf", &[x.into_array()], |x| ERF.apply(&x[0]))
}

/// Computes `1 - erf(x)`, accurate for large `x`.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::erfc(1.0).item::<f32>()? - 0.157299).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn erfc(x: impl ArrayLike) -> Array {
    real_elementwise("erfc", &[x.into_array()], |x| ERFC.apply(&x[0]))
}

/// Returns the inverse of [`erf`].
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::erfinv(0.5).item::<f32>()? - 0.476936).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn erfinv(x: impl ArrayLike) -> Array {
    real_elementwise("erfinv", &[x.into_array()], |x| ERF_INV.apply(&x[0]))
}

/// Returns the inverse of [`erfc`]: accurate where `y` is small, and NaN outside of 0 to 2.
///
/// ```
/// # use shardax::prelude::*;
/// let x = shardax::scipy::special::erfcinv(array([1e-30f32, 1.0, 1.5])).to_vec::<f32>()?;
/// assert!((x[0] - 8.148616).abs() < 1e-5 && x[1] == 0.0 && (x[2] + 0.476936).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn erfcinv(y: impl ArrayLike) -> Array {
    real_elementwise("erfcinv", &[y.into_array()], |y| ERFC_INV.apply(y))
}

/// Returns the cumulative distribution function of the standard normal distribution.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::special::{ndtr, ndtri};
/// assert!((ndtr(1.0).item::<f32>()? - 0.841345).abs() < 1e-6);
/// assert!((ndtri(0.841345).item::<f32>()? - 1.0).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ndtr(x: impl ArrayLike) -> Array {
    real_elementwise("ndtr", &[x.into_array()], |x| cumulative(&x[0]))
}

/// Returns the logarithm of [`ndtr`], accurate where `ndtr` underflows to 0.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::log_ndtr(-20.0).item::<f32>()? + 203.917).abs() < 1e-2);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn log_ndtr(x: impl ArrayLike) -> Array {
    real_elementwise("log_ndtr", &[x.into_array()], |x| LOG_NDTR.apply(x))
}

/// Returns the inverse of [`ndtr`]: the quantile `p` of the standard normal distribution; NaN where `p` is not a
/// probability.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::special::ndtri(0.975).item::<f32>()? - 1.959964).abs() < 1e-4);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ndtri(p: impl ArrayLike) -> Array {
    real_elementwise("ndtri", &[p.into_array()], |p| NDTRI.apply(p))
}
