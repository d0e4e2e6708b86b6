//! The generalized normal distribution, of density proportional to `exp(-|x|^β)`.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::{gennorm, laplace};
//! let x = array([-2.0f32, 0.5]);
//! assert!(allclose(gennorm::logpdf(&x, 1.0), laplace::logpdf(&x, 0.0, 1.0), 1e-6, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::ops::primitive::special::distributions::{GENNORM_BELOW, LOG_GENNORM_DENSITY};

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, beta) LOG_GENNORM_DENSITY.apply(&[x.clone(), beta.clone()]);
    /// The probability density.
    pdf(x, beta) logpdf(x, beta).exp();
    /// The cumulative distribution function.
    cdf(x, beta) GENNORM_BELOW.apply(&[x.clone(), beta.clone()]);
}
