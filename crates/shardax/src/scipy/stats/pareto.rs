//! The Pareto distribution: numbers of at least `loc + scale`, whose density falls like the power `-b - 1`.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::pareto;
//! assert!(allclose(pareto::sf(array([1.0f32, 2.0]), 2.0, 0.0, 1.0), array([1.0f32, 0.25]), 1e-6, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::core::array::Array;
use crate::ops::numpy::where_;
use crate::ops::primitive::special::distributions::{LOG1MEXP, POWER_BELOW};
use crate::scipy::stats::{quantile, standardized};

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, b, loc, scale) {
        // Without the logarithm of the scale alone, whose slope would cancel.
        let log = b.log() - b * standardized(x, loc, scale).log() - (x - loc).log();
        where_(x.less(loc + scale), f64::NEG_INFINITY, log)
    };
    /// The probability density.
    pdf(x, b, loc, scale) logpdf(x, b, loc, scale).exp();
    /// The cumulative distribution function.
    cdf(x, b, loc, scale) where_(x.less(loc + scale), 0, POWER_BELOW.apply(&[inside(x, loc, scale), b.clone()]));
    /// The logarithm of [`cdf`].
    logcdf(x, b, loc, scale) {
        let inside = x.greater(loc + scale);
        let z = where_(&inside, standardized(x, loc, scale), 2);
        where_(inside, LOG1MEXP.apply(&[b * z.log()]), f64::NEG_INFINITY)
    };
    /// The logarithm of [`sf`].
    logsf(x, b, loc, scale) where_(x.less(loc + scale), 0, -(b * standardized(x, loc, scale).log()));
    /// The survival function, `1 - cdf`.
    sf(x, b, loc, scale) where_(x.less(loc + scale), 1, inside(x, loc, scale).pow(-b));
    /// The quantile function, inverse of [`cdf`]; NaN where `q` is not a probability.
    ppf(q, b, loc, scale) quantile(q, loc + scale * (-(-q).log1p() / b).exp());
}

/// The standardized variable, at least 1.
fn inside(x: &Array, loc: &Array, scale: &Array) -> Array {
    where_(x.less(loc + scale), 1, standardized(x, loc, scale))
}
