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

use std::f64::consts::PI;

use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::numpy::where_;
use crate::ops::primitive::stop_gradient::stop_gradient;
use crate::scipy::special::{log_ndtr, ndtr};
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
        let total = log_mass(a, b);
        let below = log_mass(a, &z) - &total;
        let above = log_mass(&z, b) - total;
        // A logarithm close to 0 has more digits if it is computed from the other side.
        let is_close = below.greater(-0.1);
        // The derivative of the branch that is not selected must be finite, because it multiplies a cotangent of 0.
        let above = where_(&is_close, above, -1);
        let log = where_(is_close, (-above.exp()).log1p(), &below);
        let log = where_(z.less_equal(a), f64::NEG_INFINITY, where_or(z.greater(a), log, 0.0));
        let log = where_(z.greater_equal(b), 0, log);
        nan_at_nan(&z, where_(a.greater_equal(b), f64::NAN, log))
    };
    /// The cumulative distribution function; NaN unless `a < b`.
    cdf(x, a, b, loc, scale) logcdf(x, a, b, loc, scale).exp();
    /// The logarithm of [`sf`].
    logsf(x, a, b, loc, scale) logcdf(-x, -b, -a, -loc, scale);
    /// The survival function, `1 - cdf`.
    sf(x, a, b, loc, scale) logsf(x, a, b, loc, scale).exp();
}

/// The logarithm of the probability that a standard normal variable is between `a` and `b`. In a tail, it is computed from that tail,
/// because the difference has more digits there; in the center, it is 1 minus both tails.
fn log_mass(a: &Array, b: &Array) -> Array {
    let (width, middle) = (b - a, (a + b) * 0.5);
    let narrow_width = if a.dtype() == DType::F64 { 0.01 } else { 0.1 };
    let is_narrow = width.greater(0) & (&width * (middle.abs() + 1)).less(narrow_width);
    let narrow = log_narrow_mass(&where_(&is_narrow, middle, 0), &where_(&is_narrow, width, 1));
    // The branches that are not selected must have finite derivatives too.
    let (a, b) = (&where_(&is_narrow, -1, a), &where_(&is_narrow, 1, b));
    let (left, right) = (b.less_equal(0), a.greater(0));
    let low = where_(&right, -b, a);
    let high = where_(&right, -a, b);
    let tail = log_difference(&log_ndtr(high), &log_ndtr(low));
    let is_tail = left | right;
    // In a tail, both probabilities may add up to 1, where the derivative of the logarithm is infinite. Any number that is not used
    // avoids that.
    let unless_tail = |probability: Array| where_(&is_tail, 0.25, probability);
    let center = (-unless_tail(ndtr(a)) - unless_tail(ndtr(-b))).log1p();
    where_(is_narrow, narrow, where_(&is_tail, tail, center))
}

/// The logarithm of the mass of a narrow interval, computed with the Taylor series of the density around the middle.
fn log_narrow_mass(middle: &Array, width: &Array) -> Array {
    let (m, w) = (middle.square(), width.square());
    let correction = &w * (&m - 1) / 24 + w.square() * (m.square() - &m * 6 + 3) / 1920;
    width.log() - m / 2 - (2.0 * PI).ln() / 2.0 + correction.log1p()
}

/// `log(exp(x) - exp(y))`.
fn log_difference(x: &Array, y: &Array) -> Array {
    let most = stop_gradient(x.maximum(y));
    let most = where_(most.isfinite(), &most, 0);
    ((x - &most).exp() - (y - &most).exp()).log() + most
}
