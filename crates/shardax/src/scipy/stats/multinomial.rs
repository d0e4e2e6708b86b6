//! The multinomial distribution: how often each of several outcomes occurs in `n` trials.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::multinomial;
//! let p = multinomial::pmf(array([1, 1]), 2, array([0.5f32, 0.5]));
//! assert!((p.item::<f32>()? - 0.5).abs() < 1e-5);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::error::err;
use crate::ops::numpy::{broadcast_args, promote_dtypes, to_inexact, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::scipy::special::{check_real, gammaln, xlogy};
use crate::scipy::stats::check_vector;

/// Returns the logarithm of the probability of the counts `x` in `n` trials, where the outcomes have the probabilities
/// `p`. Outcomes are along the last axis. The result is `-∞` where the counts do not sum to `n`.
///
/// # Errors
/// The result carries an error for `x` or `n` that are not integers, complex numbers, and shapes that do not fit.
#[track_caller]
pub fn logpmf(x: impl ArrayLike, n: impl ArrayLike, p: impl ArrayLike) -> Array {
    let (x, n, p) = (x.into_array(), n.into_array(), p.into_array());
    or_failed(&x, || {
        let name = "stats::multinomial::logpmf";
        check_real(name, &[x.clone(), n.clone(), p.clone()])?;
        if let Some(counts) = [&x, &n].into_iter().find(|a| !a.dtype().is_integer()) {
            return Err(err!(Type, "{name}: x and n must be of integer type; got {}", counts.type_name())
                .help("convert counts with `astype(DType::I32)`"));
        }
        let p = promote_dtypes(&[&p], to_inexact)?.swap_remove(0);
        let counts = broadcast_args(name, &[x.astype(p.dtype()), p.clone()])?;
        check_vector(name, "x", &counts[0])?;
        check_vector(name, "p", &counts[1])?;
        composite1(name, (), &[counts[0].clone(), n.astype(p.dtype()), counts[1].clone()], |(), args| {
            let (x, n, p) = (&args[0], &args[1], &args[2]);
            let log = gammaln(n + 1) + (xlogy(x, p) - gammaln(x + 1)).sum(-1);
            Ok(vec![where_(x.sum(-1).equal(n), log, f64::NEG_INFINITY)])
        })
    })
}

/// Returns the probability of the counts `x`; see [`logpmf`].
///
/// ```
/// # use shardax::prelude::*;
/// let p = shardax::scipy::stats::multinomial::pmf(array([1, 1]), 2, array([0.5f32, 0.5]));
/// assert!((p.item::<f32>()? - 0.5).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn pmf(x: impl ArrayLike, n: impl ArrayLike, p: impl ArrayLike) -> Array {
    logpmf(x, n, p).exp()
}
