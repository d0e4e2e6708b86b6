//! The logistic distribution, whose cumulative distribution function is the logistic function.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::logistic;
//! let x = array([-1.0f32, 0.0, 3.0]);
//! assert!(allclose(logistic::ppf(logistic::cdf(&x, 1.0, 2.0), 1.0, 2.0), &x, 1e-4, 1e-5)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::ops::primitive::special::products::LOG_LOGISTIC_SLOPE;
use crate::scipy::special::{expit, logit};
use crate::scipy::stats::standardized;

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, loc, scale) {
        LOG_LOGISTIC_SLOPE.apply(&[standardized(x, loc, scale)]) - scale.log()
    };
    /// The probability density.
    pdf(x, loc, scale) logpdf(x, loc, scale).exp();
    /// The cumulative distribution function.
    cdf(x, loc, scale) expit(standardized(x, loc, scale));
    /// The survival function, `1 - cdf`.
    sf(x, loc, scale) expit(-standardized(x, loc, scale));
    /// The quantile function, inverse of [`cdf`].
    ppf(q, loc, scale) logit(q) * scale + loc;
    /// The inverse of [`sf`].
    isf(q, loc, scale) -logit(q) * scale + loc;
}
