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

use crate::ops::primitive::special::distributions::{LOG_STUDENT_RATIO, LOG1P_SQUARE_OVER};
use crate::scipy::stats::standardized;

distribution! {
    /// The logarithm of the probability density.
    logpdf(x, df, loc, scale) {
        let z = standardized(x, loc, scale);
        let normalizer = LOG_STUDENT_RATIO.apply(std::slice::from_ref(df)) + scale.log() + (2.0 * PI).ln() / 2.0;
        -(normalizer + (df / 2 + 0.5) * LOG1P_SQUARE_OVER.apply(&[z, df.clone()]))
    };
    /// The probability density.
    pdf(x, df, loc, scale) logpdf(x, df, loc, scale).exp();
}
