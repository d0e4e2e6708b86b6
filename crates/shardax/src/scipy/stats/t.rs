//! Student's t distribution of `df` degrees of freedom.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::{cauchy, t};
//! // With one degree of freedom it is Cauchy's.
//! let x = array([-2.0f32, 0.5]);
//! assert!(allclose(t::logpdf(&x, 1.0, 0.0, 1.0), cauchy::logpdf(&x, 0.0, 1.0), 1e-5, 1e-5)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use std::f64::consts::PI;

use crate::scipy::special::gammaln;
use crate::scipy::stats::standardized;

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, df, loc, scale) {
        let z = standardized(x, loc, scale);
        let half = df / 2;
        let upper = &half + 0.5;
        let normalizer = gammaln(half) + (scale * scale * PI * df).log() / 2 - gammaln(&upper);
        -(normalizer + upper * (z.square() / df).log1p())
    };
    /// The probability density.
    pdf(x, df, loc, scale) logpdf(x, df, loc, scale).exp();
}
