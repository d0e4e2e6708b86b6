//! The Bernoulli distribution: 1 with probability `p`, else 0.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::bernoulli;
//! assert!(allclose(bernoulli::pmf(array([0, 1]), 0.25, 0), array([0.75f32, 0.25]), 1e-6, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::core::array::Array;
use crate::ops::numpy::where_;
use crate::scipy::special::{xlog1py, xlogy};
use crate::scipy::stats::where_or;

distribution! {
    /// The logarithm of the probability of `k`, shifted by `loc`.
    logpmf(k, p, loc) {
        let x = k - loc;
        let log = xlogy(&x, p) + xlog1py(1 - &x, -p);
        where_(x.less(0) | x.greater(1), f64::NEG_INFINITY, log)
    };
    /// The probability of `k`, shifted by `loc`.
    pmf(k, p, loc) logpmf(k, p, loc).exp();
    /// The probability of at most `k`.
    cdf(k, p) {
        let y = where_(k.less(0), 0, where_(k.less(1), 1 - p, 1));
        where_or(k.equal(k) & is_probability(p), y, f64::NAN)
    };
    /// The quantile function, inverse of [`cdf`].
    ppf(q, p) {
        let y = where_(q.less_equal(1 - p), 0.0, 1.0);
        where_or(is_probability(q) & is_probability(p), y, f64::NAN)
    };
}

fn is_probability(p: &Array) -> Array {
    p.greater_equal(0) & p.less_equal(1)
}
