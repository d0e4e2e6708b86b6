//! The binomial distribution: the number of successes of probability `p` in `n` trials.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::binom;
//! assert!(allclose(binom::pmf(array([0, 1, 2]), 2, 0.5, 0), array([0.25f32, 0.5, 0.25]), 1e-5, 1e-5)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::ops::numpy::where_;
use crate::scipy::special::{betaln, xlog1py, xlogy};
use crate::scipy::stats::where_or;

distribution! {
    /// The logarithm of the probability of `k`, shifted by `loc`.
    logpmf(k, n, p, loc) {
        let y = k - loc;
        // The logarithms of gamma functions are large, and their sum is not. One outcome alone has one choice.
        let is_all = y.equal(0) | y.equal(n);
        let choices = where_(is_all, 0, -betaln(&y + 1, n - &y + 1) - (n + 1).log());
        let log = xlogy(&y, p) + xlog1py(n - &y, -p);
        let certain = (y.equal(0) & n.equal(0)) | log.equal(0);
        let log = where_(certain, 0, choices + log);
        where_or(k.greater_equal(loc) & k.less(loc + n + 1), log, f64::NEG_INFINITY)
    };
    /// The probability of `k`, shifted by `loc`.
    pmf(k, n, p, loc) logpmf(k, n, p, loc).exp();
}
