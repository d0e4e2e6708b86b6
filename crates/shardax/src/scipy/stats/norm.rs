//! The normal distribution of mean `loc` and standard deviation `scale`.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::norm;
//! let x = array([-1.0f32, 0.0, 1.0]);
//! assert!((norm::logpdf(&x, 0.0, 1.0).sum(..).item::<f32>()? + 3.756816).abs() < 1e-5);
//! assert!(allclose(norm::ppf(norm::cdf(&x, 0.5, 2.0), 0.5, 2.0), &x, 1e-4, 1e-5)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::core::array::Array;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::special::{LOG_NDTR, NDTRI, NORMAL_DENSITY, cumulative, log_density};
use crate::scipy::special::real_elementwise;

/// Applies `f` to the standardized `x` and to the standard deviation.
#[track_caller]
fn standard(
    name: &str,
    x: impl ArrayLike,
    loc: impl ArrayLike,
    scale: impl ArrayLike,
    f: impl FnOnce(Array, &Array) -> Array,
) -> Array {
    let args = [x.into_array(), loc.into_array(), scale.into_array()];
    real_elementwise(name, &args, |a| f((&a[0] - &a[1]) / &a[2], &a[2]))
}

/// Returns the logarithm of the probability density.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::stats::norm::logpdf(0.0, 0.0, 1.0).item::<f32>()? + 0.918939).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn logpdf(x: impl ArrayLike, loc: impl ArrayLike, scale: impl ArrayLike) -> Array {
    standard("norm.logpdf", x, loc, scale, |z, scale| log_density(&z) - scale.log())
}

/// Returns the probability density function.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::stats::norm::pdf(0.0, 0.0, 1.0).item::<f32>()? - 0.398942).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn pdf(x: impl ArrayLike, loc: impl ArrayLike, scale: impl ArrayLike) -> Array {
    standard("norm.pdf", x, loc, scale, |z, scale| NORMAL_DENSITY.apply(&[z]) / scale)
}

/// Returns the cumulative distribution function.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::stats::norm::cdf(1.96, 0.0, 1.0).item::<f32>()? - 0.975002).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn cdf(x: impl ArrayLike, loc: impl ArrayLike, scale: impl ArrayLike) -> Array {
    standard("norm.cdf", x, loc, scale, |z, _| cumulative(&z))
}

/// Returns the logarithm of [`cdf`].
#[track_caller]
pub fn logcdf(x: impl ArrayLike, loc: impl ArrayLike, scale: impl ArrayLike) -> Array {
    standard("norm.logcdf", x, loc, scale, |z, _| LOG_NDTR.apply(&[z]))
}

/// Returns the survival function: the probability of more than `x`.
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::stats::norm::sf(1.96, 0.0, 1.0).item::<f32>()? - 0.024998).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn sf(x: impl ArrayLike, loc: impl ArrayLike, scale: impl ArrayLike) -> Array {
    standard("norm.sf", x, loc, scale, |z, _| cumulative(&-z))
}

/// Returns the logarithm of [`sf`].
#[track_caller]
pub fn logsf(x: impl ArrayLike, loc: impl ArrayLike, scale: impl ArrayLike) -> Array {
    standard("norm.logsf", x, loc, scale, |z, _| LOG_NDTR.apply(&[-z]))
}

/// Returns the quantile function, inverse of [`cdf`].
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::stats::norm::ppf(0.975, 0.0, 1.0).item::<f32>()? - 1.959964).abs() < 1e-4);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ppf(q: impl ArrayLike, loc: impl ArrayLike, scale: impl ArrayLike) -> Array {
    let args = [q.into_array(), loc.into_array(), scale.into_array()];
    real_elementwise("norm.ppf", &args, |a| NDTRI.apply(&a[..1]) * &a[2] + &a[1])
}

/// Returns the inverse of [`sf`].
///
/// ```
/// # use shardax::prelude::*;
/// assert!((shardax::scipy::stats::norm::isf(0.025, 0.0, 1.0).item::<f32>()? - 1.959964).abs() < 1e-4);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn isf(q: impl ArrayLike, loc: impl ArrayLike, scale: impl ArrayLike) -> Array {
    let args = [q.into_array(), loc.into_array(), scale.into_array()];
    real_elementwise("norm.isf", &args, |a| NDTRI.apply(&a[..1]) * -&a[2] + &a[1])
}
