//! The gamma distribution of shape `a`, from `loc` on, scaled by `scale`.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::gamma;
//! // With shape 1 it is exponential.
//! let x = array([0.5f32, 2.0]);
//! assert!(allclose(gamma::logpdf(&x, 1.0, 0.0, 1.0), -&x, 1e-6, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::core::array::Array;
use crate::ops::lax;
use crate::ops::numpy::where_;
use crate::ops::primitive::special::distributions::{GAMMA_DENSITY, LOG_GAMMA_DENSITY};
use crate::ops::primitive::special::{LOG_IGAMMA, LOG_IGAMMAC};
use crate::scipy::special::{gammainc, gammaincc};
use crate::scipy::stats::{standardized, where_or};

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, a, loc, scale) {
        let above = x.greater_equal(loc);
        let y = where_(&above, standardized(x, loc, scale), 1);
        where_or(above, LOG_GAMMA_DENSITY.apply(&[y, a.clone()]) - scale.log(), f64::NEG_INFINITY)
    };
    /// The probability density.
    pdf(x, a, loc, scale) {
        let above = x.greater_equal(loc);
        let y = where_(&above, standardized(x, loc, scale), 1);
        where_or(above, GAMMA_DENSITY.apply(&[y, a.clone()]) / scale, 0.0)
    };
    /// The cumulative distribution function.
    cdf(x, a, loc, scale) gammainc(a, above(x, loc, scale));
    /// The logarithm of [`cdf`].
    logcdf(x, a, loc, scale) LOG_IGAMMA.apply(&[a.clone(), above(x, loc, scale)]);
    /// The survival function, `1 - cdf`.
    sf(x, a, loc, scale) {
        let y = standardized(x, loc, scale);
        where_(y.less(0), 1, gammaincc(a, &y))
    };
    /// The logarithm of [`sf`].
    logsf(x, a, loc, scale) LOG_IGAMMAC.apply(&[a.clone(), above(x, loc, scale)]);
}

/// The standardized variable, at least 0.
fn above(x: &Array, loc: &Array, scale: &Array) -> Array {
    lax::clamp(0.0, &standardized(x, loc, scale), f64::INFINITY)
}
