//! The left-skewed Gumbel distribution: the limit of minima.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::gumbel_l;
//! let q = array([0.1f32, 0.9]);
//! assert!(allclose(gumbel_l::cdf(gumbel_l::ppf(&q, 1.0, 2.0), 1.0, 2.0), &q, 1e-5, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::scipy::stats::{gumbel_r, where_or};

// The reflection of the right-skewed distribution.
distribution! {
    /// The logarithm of the probability density.
    logpdf(x, loc, scale) gumbel_r::logpdf(-x, -loc, scale);
    /// The probability density.
    pdf(x, loc, scale) gumbel_r::pdf(-x, -loc, scale);
    /// The logarithm of [`cdf`].
    logcdf(x, loc, scale) gumbel_r::logsf(-x, -loc, scale);
    /// The cumulative distribution function.
    cdf(x, loc, scale) gumbel_r::sf(-x, -loc, scale);
    /// The logarithm of [`sf`].
    logsf(x, loc, scale) gumbel_r::logcdf(-x, -loc, scale);
    /// The survival function, `1 - cdf`.
    sf(x, loc, scale) gumbel_r::cdf(-x, -loc, scale);
    /// The quantile function, inverse of [`cdf`]; NaN unless `0 < p < 1`.
    ppf(p, loc, scale) where_or(p.greater(0) & p.less(1), loc + scale * (-(-p).log1p()).log(), f64::NAN);
}
