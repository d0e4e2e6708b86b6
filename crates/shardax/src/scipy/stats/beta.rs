//! The beta distribution of parameters `a` and `b`, on the interval of length `scale` from `loc`.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::beta;
//! // With both parameters 1 it is uniform.
//! assert!(allclose(beta::pdf(array([0.1f32, 0.9]), 1.0, 1.0, 0.0, 2.0), full(2, 0.5), 1e-6, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::core::array::Array;
use crate::ops::lax;
use crate::ops::numpy::where_;
use crate::ops::primitive::special::{LOG_BETAINC, LOG_BETAINCC};
use crate::scipy::special::{betainc, betaln, xlog1py, xlogy};
use crate::scipy::stats::{standardized, where_or};

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, a, b, loc, scale) {
        let y = standardized(x, loc, scale);
        let log = xlogy(a - 1, &y) + xlog1py(b - 1, -&y) - betaln(a, b) - scale.log();
        let log = where_(x.greater(loc + scale) | x.less(loc), f64::NEG_INFINITY, log);
        where_or(a.greater(0) & b.greater(0) & scale.greater(0), log, f64::NAN)
    };
    /// The probability density.
    pdf(x, a, b, loc, scale) logpdf(x, a, b, loc, scale).exp();
    /// The cumulative distribution function; only differentiable with respect to `x`, `loc` and `scale`.
    cdf(x, a, b, loc, scale) betainc(a, b, inside(x, loc, scale));
    /// The logarithm of [`cdf`].
    logcdf(x, a, b, loc, scale) LOG_BETAINC.apply(&[a.clone(), b.clone(), inside(x, loc, scale)]);
    /// The survival function, `1 - cdf`.
    sf(x, a, b, loc, scale) betainc(b, a, 1 - inside(x, loc, scale));
    /// The logarithm of [`sf`].
    logsf(x, a, b, loc, scale) LOG_BETAINCC.apply(&[a.clone(), b.clone(), inside(x, loc, scale)]);
}

/// The standardized variable, within the interval.
fn inside(x: &Array, loc: &Array, scale: &Array) -> Array {
    lax::clamp(0.0, &standardized(x, loc, scale), 1.0)
}
