//! The geometric distribution: the number of the first trial to succeed, with probability `p` each.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::geom;
//! assert!(allclose(geom::pmf(array([1, 2]), 0.25, 0), array([0.25f32, 0.1875]), 1e-6, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::ops::numpy::where_;
use crate::scipy::special::xlog1py;

distribution! {
    /// The logarithm of the probability of `k`, shifted by `loc`.
    logpmf(k, p, loc) {
        let x = k - loc;
        where_(x.less_equal(0), f64::NEG_INFINITY, xlog1py(&x - 1, -p) + p.log())
    };
    /// The probability of `k`, shifted by `loc`.
    pmf(k, p, loc) logpmf(k, p, loc).exp();
}
