//! Distributions and statistics of samples, as in
//! [`jax.scipy.stats`](https://docs.jax.dev/en/latest/jax.scipy.html#module-jax.scipy.stats).
//!
//! Each distribution is a module of functions with JAX's names: `logpdf` and `pdf` for densities, `logpmf` and `pmf` for
//! probabilities of integers, `cdf` and `sf` for the probabilities below and above, `ppf` and `isf` for their inverses.
//! Operands are real numbers of shapes that broadcast; integers are converted to floating point.
//!
//! ```
//! # use shardax::prelude::*;
//! use shardax::scipy::stats::{gamma, poisson};
//! let x = array([0.5f32, 1.0, 4.0]);
//! assert!(allclose(gamma::cdf(&x, 2.0, 0.0, 1.0) + gamma::sf(&x, 2.0, 0.0, 1.0), ones(3), 1e-6, 1e-6)?);
//! // The maximum of a likelihood has no slope.
//! let slope = grad(|mu: Array| poisson::logpmf(array([2, 4]), mu, 0).sum(..));
//! assert!(slope.call(array(3.0f32))?.item::<f32>()?.abs() < 1e-6);
//! # Ok::<(), shardax::Error>(())
//! ```

/// Declares functions of real operands. The operands are promoted and broadcast, and each function is compiled as one program.
macro_rules! distribution {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),+) $body:expr;)+) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name($($arg: impl $crate::ops::operators::ArrayLike),+) -> $crate::core::array::Array {
            let path = concat!(module_path!(), "::", stringify!($name));
            crate::scipy::stats::distribution(path, [$($arg.into_array()),+], |[$($arg),+]| $body)
        }
    )+};
}

pub mod bernoulli;
pub mod beta;
pub mod betabinom;
pub mod binom;
pub mod cauchy;
pub mod chi2;
pub mod dirichlet;
pub mod expon;
pub mod gamma;
pub mod gennorm;
pub mod geom;
pub mod gumbel_l;
pub mod gumbel_r;
mod kde;
pub mod laplace;
pub mod logistic;
pub mod multinomial;
pub mod multivariate_normal;
pub mod nbinom;
pub mod norm;
pub mod pareto;
pub mod poisson;
mod ranks;
pub mod t;
pub mod truncnorm;
pub mod uniform;
pub mod vonmises;
pub mod wrapcauchy;

pub use kde::{Bandwidth, GaussianKde, gaussian_kde};
pub use ranks::{ModeResult, RankMethod, mode, rankdata, sem};

use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::error::{Result, err};
use crate::ops::numpy::{broadcast_args, convert, isnan, promote_dtypes, to_inexact, where_};
use crate::ops::primitive::composite::composite1;
use crate::scipy::special::check_real;

/// Applies `f`, which captures nothing, to the operands in their common floating point dtype.
#[track_caller]
fn distribution<const N: usize>(
    path: &'static str,
    args: [Array; N],
    f: impl Fn([&Array; N]) -> Array + Copy + Send + Sync + 'static,
) -> Array {
    or_failed(&args[0], || {
        let name = path.trim_start_matches("shardax::scipy::");
        check_real(name, &args)?;
        let promoted = broadcast_args(name, &promote_dtypes(&args.each_ref(), to_inexact)?)?;
        composite1(name, (), &promoted, move |(), args| {
            let operands: &[Array; N] = args.try_into().map_err(|_| {
                err!(Runtime, "internal error: a distribution got {} operands; please report this", args.len())
            })?;
            let y = f(operands.each_ref());
            // Comparisons with NaN are false, so that a distribution that selects by them would return a number.
            let is_nan = args.iter().map(isnan).reduce(|a, b| a | b);
            let y = is_nan.map_or_else(|| y.clone(), |is_nan| where_(is_nan, f64::NAN, &y));
            Ok(vec![convert(&y, args[0].dtype(), args[0].weak_type())])
        })
    })
}

/// `value` where `condition` is true, and this number elsewhere.
fn where_or(condition: Array, value: Array, otherwise: f64) -> Array {
    where_(condition, value, otherwise)
}

/// NaN where `x` is NaN, and `value` elsewhere. Needed after comparisons, because comparisons with NaN are false.
fn nan_at_nan(x: &Array, value: Array) -> Array {
    where_or(x.equal(x), value, f64::NAN)
}

/// NaN where `q` is not a probability.
fn quantile(q: &Array, value: Array) -> Array {
    where_or(q.greater_equal(0) & q.less_equal(1), value, f64::NAN)
}

/// `(x - loc) / scale`.
fn standardized(x: &Array, loc: &Array, scale: &Array) -> Array {
    (x - loc) / scale
}

/// Fails with advice unless the operand has at least one dimension.
fn check_vector(name: &str, operand: &str, x: &Array) -> Result<()> {
    if x.ndim() > 0 {
        return Ok(());
    }
    Err(err!(Value, "{name} needs `{operand}` of at least one dimension, got {}", x.type_name())
        .help("convert the scalar to a vector with `reshape([1])`"))
}
