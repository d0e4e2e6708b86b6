//! The Dirichlet distribution of probabilities that sum to 1.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::dirichlet;
//! // With all parameters 1, the density is constant: the inverse of the simplex' size.
//! let density = dirichlet::pdf(array([0.2f32, 0.3, 0.5]), ones(3));
//! assert!((density.item::<f32>()? - 2.0).abs() < 1e-5);
//! # Ok::<(), shardax::Error>(())
//! ```

use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::numpy::{promote_dtypes, to_inexact, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::scipy::special::{check_real, gammaln, xlogy};
use crate::scipy::stats::check_vector;

/// Returns the logarithm of the probability density at `x`, for parameters `alpha` of `[k]`. `x` is `[k, ...]`, or
/// `[k - 1, ...]` without the last probability, which follows from the others. The result is `-∞` where `x` is not
/// positive or does not sum to 1.
///
/// # Errors
/// The result carries an error for complex numbers, and for shapes that do not fit.
#[track_caller]
pub fn logpdf(x: impl ArrayLike, alpha: impl ArrayLike) -> Array {
    let (x, alpha) = (x.into_array(), alpha.into_array());
    or_failed(&x, || {
        let args = operands(&x, &alpha)?;
        composite1("stats::dirichlet::logpdf", (), &args, |(), args| Ok(vec![log_density(&args[0], &args[1])]))
    })
}

/// Returns the probability density; see [`logpdf`].
///
/// ```
/// # use shardax::prelude::*;
/// let density = shardax::scipy::stats::dirichlet::pdf(array([0.25f32, 0.75]), array([2.0f32, 1.0]));
/// assert!((density.item::<f32>()? - 0.5).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn pdf(x: impl ArrayLike, alpha: impl ArrayLike) -> Array {
    logpdf(x, alpha).exp()
}

fn operands(x: &Array, alpha: &Array) -> Result<Vec<Array>> {
    check_real("stats::dirichlet::logpdf", &[x.clone(), alpha.clone()])?;
    check_vector("stats::dirichlet::logpdf", "x", x)?;
    let [n] = *alpha.shape() else {
        return Err(err!(Value, "`alpha` must be one-dimensional; got {}", alpha.type_name())
            .help("use `vmap` for several vectors of parameters"));
    };
    if x.shape()[0] != n && x.shape()[0] + 1 != n {
        return Err(err!(
            Value,
            "`x` must have either the same number of entries as `alpha` or one entry fewer; got {} and {}",
            x.type_name(),
            alpha.type_name()
        )
        .help("pass an `x` whose first axis has one probability for each element of `alpha`, or one fewer"));
    }
    promote_dtypes(&[x, alpha], to_inexact)
}

fn log_density(x: &Array, alpha: &Array) -> Array {
    let n = alpha.shape()[0];
    let probabilities =
        if x.shape()[0] == n { x.clone() } else { lax::concatenate(&[x.clone(), (1 - x.sum(0)).expand_dims(0)], 0) };
    let normalizer = gammaln(alpha).sum(..) - gammaln(alpha.sum(..));
    let exponents = lax::reshape(&(alpha - 1), &[vec![n], vec![1; x.ndim() - 1]].concat());
    let log = xlogy(exponents, &probabilities).sum(0) - normalizer;
    let is_simplex = probabilities.greater(0).all(0) & (probabilities.sum(0) - 1).abs().less(1e-6);
    where_(is_simplex, log, f64::NEG_INFINITY)
}
