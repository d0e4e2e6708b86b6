//! The Cauchy distribution, whose tails are so heavy that it has no mean.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::cauchy;
//! assert!(allclose(cauchy::cdf(array([-1.0f32, 0.0, 1.0]), 0.0, 1.0), array([0.25f32, 0.5, 0.75]), 1e-6, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use std::f64::consts::PI;

use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::numpy::{arctan2, where_};
use crate::ops::primitive::special::products::LOG1P_SQUARE;
use crate::ops::primitive::special::turns::{COS_PI, SIN_PI};
use crate::scipy::stats::standardized;

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, loc, scale) -((scale * PI).log() + LOG1P_SQUARE.apply(&[standardized(x, loc, scale)]));
    /// The probability density.
    pdf(x, loc, scale) logpdf(x, loc, scale).exp();
    /// The cumulative distribution function.
    // The angle keeps its digits in the tail, unlike 1/2 + atan(z) / π.
    cdf(x, loc, scale) arctan2(1, -standardized(x, loc, scale)) * (1.0 / PI);
    /// The logarithm of [`cdf`].
    logcdf(x, loc, scale) {
        let below = standardized(x, loc, scale).less(0);
        let tail = cdf(where_(&below, x, -x), where_(&below, loc, -loc), scale);
        // Far below, the probability may be too small for the dtype; there it is `1 / (π |z|)`.
        let far = if x.dtype() == DType::F64 { 1e8 } else { 1e4 };
        let distance = standardized(loc, x, scale);
        let is_far = distance.greater(far);
        // The branches that are not selected must have finite derivatives too.
        let near = where_(&(&is_far | !&below), 1, &tail).log();
        let log = where_(&is_far, -where_(&is_far, distance, 1).log() - PI.ln(), near);
        where_(below, log, (-&tail).log1p())
    };
    /// The survival function, `1 - cdf`.
    sf(x, loc, scale) cdf(-x, -loc, scale);
    /// The logarithm of [`sf`].
    logsf(x, loc, scale) logcdf(-x, -loc, scale);
    /// The quantile function, inverse of [`cdf`].
    ppf(q, loc, scale) cotangent(q) * -scale + loc;
    /// The inverse of [`sf`].
    isf(q, loc, scale) cotangent(q) * scale + loc;
}

/// `1 / tan(π q)`: infinite at 0 and at 1.
fn cotangent(q: &Array) -> Array {
    let q = std::slice::from_ref(q);
    where_(q[0].equal(1), f64::NEG_INFINITY, COS_PI.apply(q) / SIN_PI.apply(q))
}
