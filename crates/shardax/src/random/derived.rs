//! Distributions whose samples are functions of uniform, exponential or normal samples.

use super::continuous::{Float, check_broadcast_shape, normal_traced, standard_exponential, unit_uniform};
use super::keys::RandomKey;
use super::parameters::parameter_samplers;
use super::{check_key, like, or_failed, rademacher_dtype, sample, shape_of, split_two};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::numpy::{IntoShape, convert, einsum, promote_dtypes, to_inexact, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::unary::{EXP, LOG, LOG1P, SQRT};

fn maxwell_traced(key: &Array, shape: &[usize], dtype: DType) -> Result<Array> {
    let x = normal_traced(key, &[shape, &[3]].concat(), dtype)?;
    Ok(SQRT.apply(&(&x * &x).sum(-1)))
}

parameter_samplers! {
    /// Lognormal: the exponential of a normal sample with standard deviation `sigma`.
    lognormal lognormal_dtype (sigma) "lognormal" => |key, p, shape, dtype| {
        Ok(EXP.apply(&(normal_traced(key, shape, dtype)? * &p[0])))
    };
    /// Pareto: the density is `b / xᵇ⁺¹` for `x >= 1`.
    pareto pareto_dtype (b) "pareto" => |key, p, shape, dtype| {
        Ok(EXP.apply(&(standard_exponential(key, shape, dtype)? / &p[0])))
    };
    /// Rayleigh: the length of a vector of two normal samples with standard deviation `scale`.
    rayleigh rayleigh_dtype (scale) "rayleigh" => |key, p, shape, dtype| {
        let u = unit_uniform(key, shape, dtype)?;
        Ok(&p[0] * SQRT.apply(&(LOG.apply(&u) * -2)))
    };
    /// Weibull: the density is proportional to `xᶜ⁻¹ exp(-xᶜ)`, with the `concentration` as `c`, times `scale`.
    weibull_min weibull_min_dtype (scale, concentration) "weibull_min" => |key, p, shape, dtype| {
        let u = unit_uniform(key, shape, dtype)?;
        Ok((-LOG1P.apply(&-u)).pow(1 / &p[1]) * &p[0])
    };
    /// Triangular: the density rises from `left` to `mode` and falls to `right`.
    triangular triangular_dtype (left, mode, right) "triangular" => |key, p, shape, dtype| {
        let (left, mode, right) = (&p[0], &p[1], &p[2]);
        let u = unit_uniform(key, shape, dtype)?;
        let rising = left + SQRT.apply(&(&u * (right - left) * (mode - left)));
        let falling = right - SQRT.apply(&((1 - &u) * (right - left) * (right - mode)));
        Ok(where_(u.less((mode - left) / (right - left)), rising, falling))
    };
    /// Inverse Gaussian with the given mean and scale 1
    /// ([Michael et al., Generating random variates using transformations with multiple
    /// roots](https://doi.org/10.1080/00031305.1976.10479147)).
    wald wald_dtype (mean) "wald" => |key, p, shape, dtype| {
        let ([normal_key, choice_key], mean) = (split_two(key), &p[0]);
        let v = normal_traced(&normal_key, shape, dtype)?;
        let z = unit_uniform(&choice_key, shape, dtype)?;
        let y = &v * &v;
        let squared = mean * mean;
        let root = SQRT.apply(&(4 * mean * &y + &squared * (&y * &y)));
        let x = mean + &squared * &y / 2 - mean / 2 * root;
        Ok(where_(z.less_equal(mean / (mean + &x)), &x, squared / &x))
    };
    /// Maxwell, with a random sign, times `scale`, plus `loc`.
    double_sided_maxwell double_sided_maxwell_dtype (loc, scale) "double_sided_maxwell" => |key, p, shape, dtype| {
        let [maxwell_key, sign_key] = split_two(key);
        let sign = rademacher_dtype(&sign_key, shape, dtype);
        Ok(sign * maxwell_traced(&maxwell_key, shape, dtype)? * &p[1] + &p[0])
    };
}

/// Draws from a Maxwell distribution with scale 1: the length of a vector of three normal samples. Float32.
#[track_caller]
pub fn maxwell(key: impl RandomKey, shape: impl IntoShape) -> Array {
    maxwell_dtype(key, shape, crate::default_dtype::float())
}

/// Like [`maxwell`], of a floating point dtype; fails for any other.
#[track_caller]
pub fn maxwell_dtype(key: impl RandomKey, shape: impl IntoShape, dtype: DType) -> Array {
    let key = key.borrow();
    sample("maxwell", key, shape, dtype, |shape| {
        Float::of("maxwell", dtype)?;
        composite1("maxwell", (shape, dtype), std::slice::from_ref(key), |(shape, dtype), args| {
            Ok(vec![maxwell_traced(&args[0], shape, *dtype)?])
        })
    })
}

/// Draws normal vectors with mean `[..., n]` and covariance `[..., n, n]`, computed with the Cholesky factor of the
/// covariance. Mean and covariance broadcast to the batch shape `shape`; the result has shape `[..shape, n]` and the
/// common dtype of both.
///
/// The result is NaN if the covariance is not positive definite.
///
/// ```
/// # use shardax::prelude::*;
/// let cov = array([[2.0f32, 1.0], [1.0, 2.0]]);
/// let x = random::multivariate_normal(random::key(0), array([1.0f32, -1.0]), &cov, [500]);
/// assert_eq!(x.shape(), [500, 2]);
/// assert!(allclose(cov_of(&x), cov, 0.2, 0.3)?);
/// # fn cov_of(x: &Array) -> Array { shardax::numpy::cov(&x.t()) }
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for shapes that do not fit.
#[track_caller]
pub fn multivariate_normal(
    key: impl RandomKey,
    mean: impl ArrayLike,
    cov: impl ArrayLike,
    shape: impl IntoShape,
) -> Array {
    let (key, mean, cov) = (key.borrow(), mean.into_array(), cov.into_array());
    or_failed(
        || like([], DType::F32),
        || {
            let shape = shape_of("multivariate_normal", shape)?;
            check_key("multivariate_normal", key)?;
            let args = promote_dtypes(&[&mean, &cov], to_inexact)?;
            let dims = match (mean.shape(), cov.shape()) {
                ([mean_batch @ .., n], [cov_batch @ .., a, b]) if n == a && a == b => Some((*n, mean_batch, cov_batch)),
                _ => None,
            };
            let Some((n, mean_batch, cov_batch)) = dims else {
                return Err(err!(
                    Value,
                    "multivariate_normal requires a mean of [..., n] and a covariance of [..., n, n], got {} and {}",
                    mean.type_name(),
                    cov.type_name()
                )
                .help("for a single dimension, multiply samples of `random::normal` by the standard deviation"));
            };
            check_broadcast_shape("multivariate_normal", &shape, mean_batch)?;
            check_broadcast_shape("multivariate_normal", &shape, cov_batch)?;
            Float::of("multivariate_normal", args[0].dtype())?;
            // The samples are normal vectors times the Cholesky factor of the covariance.
            let args = [key.clone(), args[0].clone(), args[1].clone()];
            let full_shape = [shape.as_slice(), &[n]].concat();
            composite1("multivariate_normal", full_shape, &args, |full_shape, args| {
                let x = normal_traced(&args[0], full_shape, args[1].dtype())?;
                let factor = lax::cholesky(&args[2]);
                Ok(vec![&args[1] + einsum("...ij,...j->...i", &[&factor, &x])])
            })
        },
    )
}
