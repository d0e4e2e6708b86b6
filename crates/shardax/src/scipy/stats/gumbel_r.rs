//! The right-skewed Gumbel distribution: the limit of maxima.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::gumbel_r;
//! let q = array([0.1f32, 0.9]);
//! assert!(allclose(gumbel_r::cdf(gumbel_r::ppf(&q, 1.0, 2.0), 1.0, 2.0), &q, 1e-5, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::ops::primitive::special::distributions::{GUMBEL_ABOVE, GUMBEL_BELOW, LOG_GUMBEL, LOG_GUMBEL_ABOVE};
use crate::scipy::special::xlogy;
use crate::scipy::stats::{standardized, where_or};

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, loc, scale) {
        let log = xlogy(-1, scale) + LOG_GUMBEL.apply(&[standardized(x, loc, scale)]);
        where_or(scale.greater(0), log, f64::NAN)
    };
    /// The probability density.
    pdf(x, loc, scale) logpdf(x, loc, scale).exp();
    /// The logarithm of [`cdf`].
    logcdf(x, loc, scale) where_or(scale.greater(0), -(-standardized(x, loc, scale)).exp(), f64::NAN);
    /// The cumulative distribution function.
    cdf(x, loc, scale) where_or(scale.greater(0), GUMBEL_BELOW.apply(&[standardized(x, loc, scale)]), f64::NAN);
    /// The survival function, `1 - cdf`.
    sf(x, loc, scale) where_or(scale.greater(0), GUMBEL_ABOVE.apply(&[standardized(x, loc, scale)]), f64::NAN);
    /// The logarithm of [`sf`].
    logsf(x, loc, scale) where_or(scale.greater(0), LOG_GUMBEL_ABOVE.apply(&[standardized(x, loc, scale)]), f64::NAN);
    /// The quantile function, inverse of [`cdf`]; NaN unless `0 < p < 1`.
    ppf(p, loc, scale) where_or(p.greater(0) & p.less(1), loc - scale * (-p.log()).log(), f64::NAN);
}
