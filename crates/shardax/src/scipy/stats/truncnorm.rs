//! The truncated normal distribution: the standardized variable is between `a` and `b`.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::{norm, truncnorm};
//! let (x, infinity) = (array([-1.0f32, 0.5]), f32::INFINITY);
//! let untruncated = truncnorm::logpdf(&x, -infinity, infinity, 0.0, 1.0);
//! assert!(allclose(untruncated, norm::logpdf(&x, 0.0, 1.0), 1e-6, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::ops::lax;
use crate::ops::numpy::where_;
use crate::ops::primitive::special::truncated::{TRUNCATED_BELOW, log_below, log_mass};
use crate::scipy::stats::{nan_at_nan, norm, standardized, where_or};

distribution! {
    /// The logarithm of the probability density; NaN unless `a < b`.
    logpdf(x, a, b, loc, scale) {
        let z = standardized(x, loc, scale);
        let log = norm::logpdf(x, loc, scale) - log_mass(a, b);
        let log = where_(z.less(a) | z.greater(b), f64::NEG_INFINITY, log);
        where_(a.greater_equal(b), f64::NAN, log)
    };
    /// The probability density.
    pdf(x, a, b, loc, scale) logpdf(x, a, b, loc, scale).exp();
    /// The logarithm of [`cdf`].
    logcdf(x, a, b, loc, scale) {
        let z = standardized(x, loc, scale);
        let log = log_below(&z, a, b);
        let log = where_(z.less_equal(a), f64::NEG_INFINITY, where_or(z.greater(a), log, 0.0));
        let log = where_(z.greater_equal(b), 0, log);
        nan_at_nan(&z, where_(a.greater_equal(b), f64::NAN, log))
    };
    /// The cumulative distribution function; NaN unless `a < b`.
    cdf(x, a, b, loc, scale) {
        let z = standardized(x, loc, scale);
        let below = TRUNCATED_BELOW.apply(&[lax::clamp(a, &z, b), a.clone(), b.clone()]);
        nan_at_nan(&z, where_(a.greater_equal(b), f64::NAN, below))
    };
    /// The logarithm of [`sf`].
    logsf(x, a, b, loc, scale) logcdf(-x, -b, -a, -loc, scale);
    /// The survival function, `1 - cdf`.
    sf(x, a, b, loc, scale) cdf(-x, -b, -a, -loc, scale);
}
