//! The Cauchy distribution, whose tails are so heavy that it has no mean.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::cauchy;
//! assert!(allclose(cauchy::cdf(array([-1.0f32, 0.0, 1.0]), 0.0, 1.0), array([0.25f32, 0.5, 0.75]), 1e-6, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use std::f64::consts::{FRAC_PI_2, PI};

use crate::scipy::stats::standardized;

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, loc, scale) -((scale * PI).log() + standardized(x, loc, scale).square().log1p());
    /// The probability density.
    pdf(x, loc, scale) logpdf(x, loc, scale).exp();
    /// The cumulative distribution function.
    cdf(x, loc, scale) standardized(x, loc, scale).arctan() * (1.0 / PI) + 0.5;
    /// The logarithm of [`cdf`].
    logcdf(x, loc, scale) cdf(x, loc, scale).log();
    /// The survival function, `1 - cdf`.
    sf(x, loc, scale) cdf(-x, -loc, scale);
    /// The logarithm of [`sf`].
    logsf(x, loc, scale) logcdf(-x, -loc, scale);
    /// The quantile function, inverse of [`cdf`].
    ppf(q, loc, scale) (q * PI - FRAC_PI_2).tan() * scale + loc;
    /// The inverse of [`sf`].
    isf(q, loc, scale) (FRAC_PI_2 - q * PI).tan() * scale + loc;
}
