//! The chi-squared distribution: the sum of the squares of `df` standard normal variables.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::chi2;
//! // With two degrees of freedom it is exponential.
//! let x = array([1.0f32, 2.0]);
//! assert!(allclose(chi2::sf(&x, 2.0, 0.0, 1.0), (-&x / 2).exp(), 1e-5, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::core::array::Array;
use crate::ops::lax;
use crate::ops::numpy::where_;
use crate::ops::primitive::special::distributions::LOG_GAMMA_DENSITY;
use crate::ops::primitive::special::{LOG_IGAMMA, LOG_IGAMMAC};
use crate::scipy::special::{gammainc, gammaincc};
use crate::scipy::stats::standardized;

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, df, loc, scale) {
        let log = LOG_GAMMA_DENSITY.apply(&[standardized(x, loc, scale) / 2, df / 2]) - 2f64.ln() - scale.log();
        where_(x.less(loc), f64::NEG_INFINITY, log)
    };
    /// The probability density.
    pdf(x, df, loc, scale) logpdf(x, df, loc, scale).exp();
    /// The cumulative distribution function.
    cdf(x, df, loc, scale) gammainc(df / 2, half(x, loc, scale));
    /// The logarithm of [`cdf`].
    logcdf(x, df, loc, scale) LOG_IGAMMA.apply(&[df / 2, half(x, loc, scale)]);
    /// The survival function, `1 - cdf`.
    sf(x, df, loc, scale) gammaincc(df / 2, half(x, loc, scale));
    /// The logarithm of [`sf`].
    logsf(x, df, loc, scale) LOG_IGAMMAC.apply(&[df / 2, half(x, loc, scale)]);
}

/// Half of the standardized variable, at least 0.
fn half(x: &Array, loc: &Array, scale: &Array) -> Array {
    lax::clamp(0.0, &((x - loc) / (scale * 2)), f64::INFINITY)
}
