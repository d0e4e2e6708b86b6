//! The von Mises distribution of angles, of concentration `kappa` around 0.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::vonmises;
//! // Without concentration all angles would be equally likely.
//! let p = vonmises::pdf(array([0.0f32, 2.0]), 1e-6);
//! assert!(allclose(p, full(2, 0.5 / std::f32::consts::PI), 1e-5, 1e-6)?);
//! # Ok::<(), shardax::Error>(())
//! ```

use std::f64::consts::PI;

use crate::scipy::special::i0e;
use crate::scipy::stats::where_or;

distribution! {
    /// The logarithm of the probability density; NaN unless `kappa` is positive.
    logpdf(x, kappa) {
        let log = kappa * (x.cos() - 1) - (i0e(kappa) * (2.0 * PI)).log();
        where_or(kappa.greater(0), log, f64::NAN)
    };
    /// The probability density.
    pdf(x, kappa) logpdf(x, kappa).exp();
}
