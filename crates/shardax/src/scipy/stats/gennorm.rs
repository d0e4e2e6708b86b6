//! The generalized normal distribution, of density proportional to `exp(-|x|^β)`.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::{gennorm, laplace};
//! let x = array([-2.0f32, 0.5]);
//! assert!(allclose(gennorm::logpdf(&x, 1.0), laplace::logpdf(&x, 0.0, 1.0), 1e-6, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::scipy::special::{gammainc, gammaln};

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, beta) (beta * 0.5).log() - gammaln(1 / beta) - x.abs().pow(beta);
    /// The probability density.
    pdf(x, beta) logpdf(x, beta).exp();
    /// The cumulative distribution function.
    cdf(x, beta) (1 + x.sign() * gammainc(1 / beta, x.abs().pow(beta))) * 0.5;
}
