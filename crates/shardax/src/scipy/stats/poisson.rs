//! The Poisson distribution: counts of independent events, `mu` of them on average.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::poisson;
//! let p = poisson::pmf(array([0, 1, 2]), 1.0, 0);
//! assert!(allclose(p.cumsum(0), poisson::cdf(array([0, 1, 2]), 1.0, 0), 1e-5, 1e-5)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use std::f64::consts::{E, PI};

use crate::core::array::Array;
use crate::ops::lax;
use crate::ops::numpy::where_;
use crate::ops::primitive::special::distributions::{GAMMA_DENSITY, LOG_GAMMA_DENSITY};
use crate::scipy::special::{entr, gammaincc};

distribution! {
    /// The logarithm of the probability of `k`, shifted by `loc`.
    logpmf(k, mu, loc) {
        let x = k - loc;
        let log = LOG_GAMMA_DENSITY.apply(&[mu.clone(), &x + 1]);
        where_(x.less(0) | k.round().not_equal(k), f64::NEG_INFINITY, log)
    };
    /// The probability of `k`, shifted by `loc`.
    pmf(k, mu, loc) {
        let x = k - loc;
        where_(x.less(0) | k.round().not_equal(k), 0, GAMMA_DENSITY.apply(&[mu.clone(), &x + 1]))
    };
    /// The probability of at most `k`.
    cdf(k, mu, loc) {
        let x = k - loc;
        where_(x.less(0), 0, gammaincc((&x + 1).floor(), mu))
    };
    /// The entropy: the sum over all likely counts or, for means of at least 100, the first terms of the asymptotic series. It does not
    /// depend on `loc`, which only broadcasts.
    entropy(mu, loc) {
        let zero = mu.equal(0);
        // Any other number will do where the mean is 0, because the entropy and its derivative are 0 there.
        let mu = &where_(&zero, 1, mu);
        let large = (mu * (2.0 * PI * E)).log() * 0.5 - 1 / (mu * 12);
        let sum = where_(mu.less(10), summed(mu, 35, &(mu + 20).ceil()), summed(mu, 250, &(mu + mu.sqrt() * 10 + 20).ceil()));
        where_(zero, 0, where_(mu.less(100), sum, large)) + loc * 0
    };
}

/// The entropy of the counts below `count`, and below `limit`.
fn summed(mu: &Array, count: usize, limit: &Array) -> Array {
    let shape = [&[count][..], mu.shape()].concat();
    let k = lax::iota(mu.dtype(), &shape, 0);
    let p = pmf(&k, mu, 0);
    // A probability of 1 adds nothing either, but has a slope. The slope at 0 is infinite.
    entr(where_(k.less(limit) & p.greater(0), p, 1)).sum(0)
}
