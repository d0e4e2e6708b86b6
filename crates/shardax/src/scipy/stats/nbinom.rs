//! The negative binomial distribution: the number of failures before `n` successes of probability `p`.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::nbinom;
//! assert!(allclose(nbinom::pmf(array([0, 1]), 1, 0.25, 0), array([0.25f32, 0.1875]), 1e-5, 1e-5)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::ops::numpy::where_;
use crate::ops::primitive::special::products::LOG_RISE;
use crate::scipy::special::{betaln, gammaln, xlogy};

distribution! {
    /// The logarithm of the probability of `k`, shifted by `loc`.
    logpmf(k, n, p, loc) {
        let y = k - loc;
        // The logarithms of gamma functions are large, and their sum is not.
        let choices = -betaln(n, &y + 1) - (&y + n).log();
        // They are equal for 0.
        let choices = where_(y.less(1), LOG_RISE.apply(&[n.clone(), y.clone()]) - gammaln(&y + 1), choices);
        let log = choices + (xlogy(n, p) + xlogy(&y, 1 - p));
        where_(k.less(loc), f64::NEG_INFINITY, log)
    };
    /// The probability of `k`, shifted by `loc`.
    pmf(k, n, p, loc) logpmf(k, n, p, loc).exp();
}
