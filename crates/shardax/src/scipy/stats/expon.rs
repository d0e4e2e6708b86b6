//! The exponential distribution from `loc` on, with mean `scale` above it.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::expon;
//! let q = array([0.1f32, 0.9]);
//! assert!(allclose(expon::cdf(expon::ppf(&q, 1.0, 2.0), 1.0, 2.0), &q, 1e-5, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::ops::numpy::where_;
use crate::ops::primitive::special::distributions::LOG1MEXP;
use crate::scipy::stats::{quantile, standardized};

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, loc, scale) {
        let log = -(standardized(x, loc, scale) + scale.log());
        where_(x.less(loc), f64::NEG_INFINITY, log)
    };
    /// The probability density.
    pdf(x, loc, scale) logpdf(x, loc, scale).exp();
    /// The cumulative distribution function.
    cdf(x, loc, scale) where_(x.less(loc), 0, -((loc - x) / scale).expm1());
    /// The logarithm of [`cdf`].
    logcdf(x, loc, scale) {
        let inside = x.greater(loc);
        let z = where_(&inside, standardized(x, loc, scale), 1);
        where_(inside, LOG1MEXP.apply(&[z]), f64::NEG_INFINITY)
    };
    /// The survival function, `1 - cdf`.
    sf(x, loc, scale) logsf(x, loc, scale).exp();
    /// The logarithm of [`sf`].
    logsf(x, loc, scale) where_(x.less(loc), 0, (loc - x) / scale);
    /// The quantile function, inverse of [`cdf`]; NaN where `q` is not a probability.
    ppf(q, loc, scale) quantile(q, loc - scale * (-q).log1p());
}
