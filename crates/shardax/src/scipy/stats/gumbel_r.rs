//! The right-skewed Gumbel distribution: the limit of maxima.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::gumbel_r;
//! let q = array([0.1f32, 0.9]);
//! assert!(allclose(gumbel_r::cdf(gumbel_r::ppf(&q, 1.0, 2.0), 1.0, 2.0), &q, 1e-5, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::ops::numpy::where_;
use crate::scipy::special::xlogy;
use crate::scipy::stats::{only_where, standardized};

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, loc, scale) {
        let z = standardized(x, loc, scale);
        // ∞ - ∞ would be NaN.
        let log = only_where(z.not_equal(f64::NEG_INFINITY), -(&z + (-&z).exp()), f64::NEG_INFINITY);
        only_where(scale.greater(0), xlogy(-1, scale) + log, f64::NAN)
    };
    /// The probability density.
    pdf(x, loc, scale) logpdf(x, loc, scale).exp();
    /// The logarithm of [`cdf`].
    logcdf(x, loc, scale) only_where(scale.greater(0), -(-standardized(x, loc, scale)).exp(), f64::NAN);
    /// The cumulative distribution function.
    cdf(x, loc, scale) logcdf(x, loc, scale).exp();
    /// The survival function, `1 - cdf`.
    sf(x, loc, scale) {
        let sf = 1 - (-((loc - x) / scale).exp()).exp();
        only_where(scale.greater(0), sf, f64::NAN)
    };
    /// The logarithm of [`sf`].
    logsf(x, loc, scale) {
        // log(1 - exp(-y)), without cancellation for small and for large y.
        let y = ((loc - x) / scale).exp();
        let small = y.less(2f64.ln());
        // The slope of the second form is infinite at small y, and 0 · ∞ would be NaN.
        let large = where_(&small, 1, &y);
        let log = where_(small, (-(-&y).expm1()).log(), (-(-large).exp()).log1p());
        only_where(scale.greater(0), log, f64::NAN)
    };
    /// The quantile function, inverse of [`cdf`]; NaN unless `0 < p < 1`.
    ppf(p, loc, scale) only_where(p.greater(0) & p.less(1), loc - scale * (-p.log()).log(), f64::NAN);
}
