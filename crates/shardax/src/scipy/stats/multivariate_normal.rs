//! The normal distribution of vectors, with a vector of means and a covariance matrix.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::multivariate_normal;
//! let log = multivariate_normal::logpdf(array([1.0f32, 0.0]), zeros(2), eye(2));
//! assert!((log.item::<f32>()? + 2.337877).abs() < 1e-5);
//! # Ok::<(), shardax::Error>(())
//! ```

use std::f64::consts::PI;

use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::error::{Result, err};
use crate::ops::lax::{self, Triangular};
use crate::ops::numpy::{promote_dtypes, to_inexact};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::scipy::special::check_real;
use crate::shape::broadcast_shapes;

const NAME: &str = "stats::multivariate_normal::logpdf";

/// Returns the logarithm of the probability density at vectors `x`, `[..., n]`, for means of `[..., n]`. Covariances
/// are matrices `[..., n, n]`, or a number, which is the variance of every element. If the mean is a scalar, every
/// element of `x` is a point.
///
/// ```
/// # use shardax::prelude::*;
/// let density = shardax::scipy::stats::multivariate_normal::logpdf(zeros([2]), zeros([2]), eye(2));
/// assert!((density.item::<f32>()? + 1.837877).abs() < 1e-5);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for complex numbers, and for shapes that do not fit.
#[track_caller]
pub fn logpdf(x: impl ArrayLike, mean: impl ArrayLike, cov: impl ArrayLike) -> Array {
    let (x, mean, cov) = (x.into_array(), mean.into_array(), cov.into_array());
    or_failed(&x, || {
        check_real(NAME, &[x.clone(), mean.clone(), cov.clone()])?;
        let args = promote_dtypes(&[&x, &mean, &cov], to_inexact)?;
        check_shapes(&args)?;
        composite1(NAME, (), &args, |(), args| log_density(&args[0], &args[1], &args[2]).map(|y| vec![y]))
    })
}

/// Returns the probability density; see [`logpdf`].
#[track_caller]
pub fn pdf(x: impl ArrayLike, mean: impl ArrayLike, cov: impl ArrayLike) -> Array {
    logpdf(x, mean, cov).exp()
}

fn check_shapes(args: &[Array]) -> Result<()> {
    let [x, mean, cov] = args else { return Ok(()) };
    let Some(&n) = mean.shape().last() else { return Ok(()) };
    let is_covariance = matches!(cov.shape(), []) || matches!(cov.shape(), [.., a, b] if (*a, *b) == (n, n));
    let lead = &cov.shape()[..cov.ndim().saturating_sub(2)];
    let vectors = broadcast_shapes(&[x.shape(), mean.shape()]);
    let fits = vectors.is_some_and(|shape| {
        shape.last() == Some(&n) && broadcast_shapes(&[&shape[..shape.len() - 1], lead]).is_some()
    });
    if is_covariance && fits {
        return Ok(());
    }
    let types: Vec<String> = args.iter().map(Array::type_name).collect();
    Err(err!(Value, "multivariate_normal.logpdf got incompatible shapes: {}", types.join(" and "))
        .help("pass `x` and `mean` of [..., n], and a covariance that is a scalar or [..., n, n]"))
}

fn log_density(x: &Array, mean: &Array, cov: &Array) -> Result<Array> {
    let y = x - mean;
    let tau = (2.0 * PI).ln();
    let Some(&n) = mean.shape().last() else {
        return Ok(y.square() / cov * -0.5 - (cov.log() + tau) * 0.5);
    };
    let half = n as f64 / 2.0;
    if cov.ndim() == 0 {
        return Ok(y.square().sum(-1) / cov * -0.5 - (cov.log() + tau) * half);
    }
    let factor = lax::cholesky(cov);
    let white = whitened(&factor, &y)?;
    let log_det = factor.diagonal(0, -2, -1).log().sum(-1);
    Ok(white.square().sum(-1) * -0.5 - half * tau - log_det)
}

/// Multiplies the vectors `y` by the inverse of the lower triangular `factor`.
fn whitened(factor: &Array, y: &Array) -> Result<Array> {
    let options = Triangular { lower: true, transpose_a: true, ..Triangular::default() };
    let n = y.shape()[y.ndim() - 1];
    if factor.ndim() == 2 {
        let rows = y.size().checked_div(n).unwrap_or(0);
        let solved = lax::triangular_solve(factor, &lax::reshape(y, &[rows, n]), options);
        return Ok(lax::reshape(&solved, y.shape()));
    }
    let (y_batch, factor_batch) = (&y.shape()[..y.ndim() - 1], &factor.shape()[..factor.ndim() - 2]);
    let lead = broadcast_shapes(&[y_batch, factor_batch]).ok_or_else(|| {
        err!(Value, "{NAME} got the batch shapes {y_batch:?} of x and {factor_batch:?} of cov, which do not broadcast")
            .help("pass batch dimensions that are equal or 1")
    })?;
    let factor = factor.broadcast_to([&lead[..], &[n, n]].concat().as_slice());
    let y = y.broadcast_to([&lead[..], &[n]].concat().as_slice()).expand_dims(-2);
    Ok(lax::triangular_solve(&factor, &y, options).squeeze(-2))
}
