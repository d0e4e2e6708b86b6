//! The beta-binomial distribution: a [binomial distribution](super::binom) of `n` trials whose probability is drawn from a
//! [beta distribution](mod@super::beta) with parameters `a` and `b`.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::betabinom;
//! // With both parameters 1, all counts are equally likely.
//! assert!(allclose(betabinom::pmf(array([0, 1, 2, 3]), 3, 1.0, 1.0, 0), full(4, 0.25), 1e-5, 1e-5)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::ops::numpy::where_;
use crate::scipy::special::betaln;
use crate::scipy::stats::where_or;

distribution! {
    /// The logarithm of the probability of `k`, shifted by `loc`.
    logpmf(k, n, a, b, loc) {
        let y = k.floor() - loc;
        let choices = -(n.log1p() + betaln(n - &y + 1, &y + 1));
        let log = choices + betaln(&y + a, n - &y + b) - betaln(a, b);
        let log = where_(y.equal(0) & n.equal(0), 0, log);
        let outside = y.less(-loc) | y.greater(n) | (&y + a).less_equal(0);
        let log = where_(outside, f64::NEG_INFINITY, log);
        where_or(n.greater_equal(0) & a.greater(0) & b.greater(0), log, f64::NAN)
    };
    /// The probability of `k`, shifted by `loc`.
    pmf(k, n, a, b, loc) logpmf(k, n, a, b, loc).exp();
}
