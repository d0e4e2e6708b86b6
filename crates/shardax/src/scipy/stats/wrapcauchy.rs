//! The wrapped Cauchy distribution of angles between 0 and 2π, of concentration `c` between 0 and 1.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::wrapcauchy;
//! // The density at 0 is (1 + c) / (1 - c) times the uniform density.
//! let p = wrapcauchy::pdf(0.0, 0.5).item::<f32>()?;
//! assert!((p - 1.5 / std::f32::consts::PI).abs() < 1e-5);
//! # Ok::<(), shardax::Error>(())
//! ```

use std::f64::consts::PI;

use crate::scipy::stats::where_or;

distribution! {
    /// The logarithm of the probability density; NaN unless `0 < c < 1`.
    logpdf(x, c) {
        // 1 + c² - 2 c cos(x), as a sum of squares.
        let (complement, sine) = (1 - c, (x * 0.5).sin());
        let distance = complement.square() + c * 4 * sine.square();
        let log = (&complement * (1 + c)).log() - (2.0 * PI).ln() - distance.log();
        let log = where_or(x.greater_equal(0) & x.less_equal(2.0 * PI), log, f64::NEG_INFINITY);
        where_or(c.greater(0) & c.less(1), log, f64::NAN)
    };
    /// The probability density.
    pdf(x, c) logpdf(x, c).exp();
}
