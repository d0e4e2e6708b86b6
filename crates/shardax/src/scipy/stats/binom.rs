//! The binomial distribution: the number of successes of probability `p` in `n` trials.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::binom;
//! assert!(allclose(binom::pmf(array([0, 1, 2]), 2, 0.5, 0), array([0.25f32, 0.5, 0.25]), 1e-5, 1e-5)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::ops::numpy::where_;
use crate::ops::primitive::stop_gradient::stop_gradient;
use crate::scipy::special::{betaln, xlog1py, xlogy};
use crate::scipy::stats::where_or;

distribution! {
    /// The logarithm of the probability of `k`, shifted by `loc`.
    logpmf(k, n, p, loc) {
        let y = k - loc;
        // The logarithms of gamma functions are large, and their sum is not.
        let choices = -betaln(&y + 1, n - &y + 1) - (n + 1).log();
        // One outcome alone has one choice, whose logarithm is exactly 0, but has slopes.
        let is_all = y.equal(0) | y.equal(n);
        let choices = where_(is_all, &choices - stop_gradient(choices.clone()), choices);
        // 0 · log(0) is 0 without a slope, so that a certain outcome has the slope of the other term.
        let (no_success, no_failure) = (y.equal(0) & p.equal(0), y.equal(n) & p.equal(1));
        let log = xlogy(&y, where_(no_success, 1, p)) + xlog1py(n - &y, where_(no_failure, 0, -p));
        let log = where_(y.equal(0) & n.equal(0), 0, choices + log);
        where_or(k.greater_equal(loc) & k.less(loc + n + 1), log, f64::NEG_INFINITY)
    };
    /// The probability of `k`, shifted by `loc`.
    pmf(k, n, p, loc) logpmf(k, n, p, loc).exp();
}
