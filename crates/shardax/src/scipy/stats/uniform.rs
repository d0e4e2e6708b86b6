//! The uniform distribution on the interval of length `scale` from `loc`.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::uniform;
//! assert_eq!(uniform::cdf(array([-1.0f32, 0.5, 3.0]), 0.0, 2.0).to_vec::<f32>()?, [0.0, 0.25, 1.0]);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::ops::numpy::where_;
use crate::scipy::stats::{nan_at_nan, quantile, standardized, where_or};

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, loc, scale) nan_at_nan(x, where_(x.greater(loc + scale) | x.less(loc), f64::NEG_INFINITY, -scale.log()));
    /// The probability density.
    pdf(x, loc, scale) logpdf(x, loc, scale).exp();
    /// The cumulative distribution function.
    cdf(x, loc, scale) {
        let end = loc + scale;
        let inside = x.greater_equal(loc) & x.less_equal(&end);
        let y = where_(x.greater(end), 1, where_or(inside, standardized(x, loc, scale), 0.0));
        nan_at_nan(x, where_(x.less(loc), 0, y))
    };
    /// The quantile function, inverse of [`cdf`]; NaN where `q` is not a probability.
    ppf(q, loc, scale) quantile(q, loc + scale * q);
}
