//! The Laplace distribution: exponential on both sides of `loc`.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::laplace;
//! assert_eq!(laplace::pdf(0.0, 0.0, 2.0).item::<f32>()?, 0.25);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::ops::numpy::where_;
use crate::scipy::stats::standardized;

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, loc, scale) -((x - loc).abs() / scale + (scale * 2).log());
    /// The probability density.
    pdf(x, loc, scale) logpdf(x, loc, scale).exp();
    /// The cumulative distribution function.
    cdf(x, loc, scale) {
        let z = standardized(x, loc, scale);
        let below = z.less_equal(0);
        // The exponential of the other side would overflow, and its derivative would be NaN.
        let tail = where_(&below, &z, -&z).exp() * 0.5;
        where_(below, &tail, 1 - &tail)
    };
}
