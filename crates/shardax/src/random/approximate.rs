//! Samplers without loops, whose distribution is approximate.

use super::continuous::{Float, check_broadcast, normal_traced, standard_exponential};
use super::counts::integers;
use super::keys::RandomKey;
use super::parameters::parameter_samplers;
use super::{sample, split_two};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::constants::{float, integer};
use crate::ops::lax;
use crate::ops::numpy::{IntoShape, arange, convert, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::special::cumulative;
use crate::ops::primitive::unary::{ABS, CEIL, EXP, LOG, RSQRT, SQRT};

/// Coefficients of Goldstein's χ² quantile. The cube root of the quantile divided by `ν` is a polynomial in `z / √ν`, where `z` is
/// the normal quantile; each row is the coefficient of one power, which is itself a polynomial in `1 / ν`
/// ([Goldstein, Chi-square quantiles](https://doi.org/10.1145/355588.365104)).
///
/// The first constant is 1, not the published 1.0000886, because the cube root tends to 1 for large `ν`. JAX has this change too.
const CHI_SQUARE_QUANTILE: [[f64; 3]; 7] = [
    [1.0, -0.2237368, -0.01513904],
    [0.4713941, 0.02607083, -0.008986007],
    [0.0001348028, 0.01128186, 0.02277679],
    [-0.008553069, -0.01153761, -0.01323293],
    [0.00312558, 0.005169654, -0.006950356],
    [-0.0008426812, 0.00253001, 0.001060438],
    [0.00009780499, -0.001450117, 0.001565326],
];

/// Added to the parameter of gamma samples, because the quantiles are only accurate for parameters of at least 4.
const SHAPE_OFFSET: usize = 4;

/// Poisson samples with at least this mean invert a normal approximation; smaller means invert the cumulative probabilities.
const LARGE_MEAN: f64 = 7.0;

/// Number of counts whose probabilities are summed for means below [`LARGE_MEAN`].
const SMALL_COUNTS: i32 = 20;

/// Evaluates a polynomial at `x`. The coefficients start with the constant term.
fn polynomial(x: &Array, coefficients: impl DoubleEndedIterator<Item = Array>) -> Array {
    let zero = integer(0, x.dtype());
    coefficients.rev().fold(zero, |sum, coefficient| sum * x + coefficient)
}

/// The logarithms of gamma samples with parameters of at least [`SHAPE_OFFSET`]: half a χ² sample with twice the parameter.
fn log_gamma_by_quantile(key: &Array, alpha: &Array) -> Result<Array> {
    let dtype = alpha.dtype();
    let degrees: Array = alpha * 2;
    let scaled = normal_traced(key, alpha.shape(), dtype)? * RSQRT.apply(&degrees);
    let inverse = 1 / degrees;
    let coefficients =
        CHI_SQUARE_QUANTILE.map(|row| polynomial(&inverse, row.into_iter().map(|value| float(value, dtype))));
    let cube_root = polynomial(&scaled, coefficients.into_iter());
    let cube_root = cube_root.maximum(float(Float::of("gamma", dtype)?.tiny, dtype));
    Ok(LOG.apply(alpha) + LOG.apply(&cube_root) * 3)
}

/// The logarithms of gamma samples, computed in at least float32. The samples are drawn for a raised parameter, then multiplied by
/// powers of uniform samples to lower it again
/// ([Stuart, Gamma-distributed products](https://doi.org/10.1093/biomet/49.3-4.564)).
fn log_gamma(key: &Array, alpha: &Array) -> Result<Array> {
    let wide = if alpha.dtype().bits() < 32 { DType::F32 } else { alpha.dtype() };
    let alpha = alpha.astype(wide);
    let [base_key, boost_key] = split_two(key);
    let base = log_gamma_by_quantile(&base_key, &(&alpha + SHAPE_OFFSET))?;
    let shape = [&[SHAPE_OFFSET], alpha.shape()].concat();
    let mut ones = vec![1; shape.len()];
    ones[0] = SHAPE_OFFSET;
    let steps = arange(0..SHAPE_OFFSET as i32).astype(wide).reshape(ones);
    let log_uniform = -standard_exponential(&boost_key, &shape, wide)?;
    Ok(base + (log_uniform / (alpha.expand_dims(0) + steps)).sum(0))
}

parameter_samplers! {
    /// [`gamma`](super::gamma) without loops (JAX's `method="approximate"`): much faster on accelerators, with quantiles that
    /// are within 0.05%. It can be differentiated any number of times.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let x = random::gamma_approximate(random::key(0), 3.0, [1000]);
    /// assert!((x.mean(..).item::<f32>()? - 3.0).abs() < 0.3);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    gamma_approximate gamma_approximate_dtype (a) "gamma" =>
        |key, p, _, dtype| Ok(EXP.apply(&log_gamma(key, &p[0])?).astype(dtype));
    /// The logarithm of [`gamma_approximate`], accurate where the sample underflows to 0.
    loggamma_approximate loggamma_approximate_dtype (a) "loggamma" =>
        |key, p, _, dtype| Ok(log_gamma(key, &p[0])?.astype(dtype));
    /// [`beta`](super::beta) without loops; see [`gamma_approximate`].
    beta_approximate beta_approximate_dtype (a, b) "beta" => |key, p, _, dtype| {
        let [key_a, key_b] = split_two(key);
        let (x, y) = (log_gamma(&key_a, &p[0])?.astype(dtype), log_gamma(&key_b, &p[1])?.astype(dtype));
        let larger = x.maximum(&y);
        let (x, y) = (EXP.apply(&(x - &larger)), EXP.apply(&(y - larger)));
        Ok(&x / (&x + y))
    };
    /// [`chisquare`](super::chisquare) without loops; see [`gamma_approximate`].
    chisquare_approximate chisquare_approximate_dtype (df) "chisquare" =>
        |key, p, _, dtype| Ok(EXP.apply(&log_gamma(key, &(&p[0] / 2))?.astype(dtype)) * 2);
}

/// The number of cumulative probabilities below `u`.
fn count_by_probabilities(u: &Array, mean: &Array) -> Array {
    let mut probability = EXP.apply(&-mean);
    let mut sum = probability.clone();
    let mut count = indicator_below(&sum, u);
    for k in 1..SMALL_COUNTS - 1 {
        probability = probability * (mean / k);
        sum = sum + &probability;
        count = count + indicator_below(&sum, u);
    }
    count
}

/// 1 where `sum` is below `u`, 0 elsewhere.
fn indicator_below(sum: &Array, u: &Array) -> Array {
    sum.less(u).astype(u.dtype())
}

/// `(1 - y² + 2 y log y) / (1 - y)²`, by its series next to 1, where numerator and denominator vanish.
fn asymmetry(y: &Array) -> Array {
    let distance: Array = y - 1;
    let near = ABS.apply(&distance).less(0.25);
    let zero = integer(0, y.dtype());
    let series = (1..10).rev().fold(zero, |sum, k| {
        let sign = if k % 2 == 0 { 2.0 } else { -2.0 };
        &distance * (sum + sign / f64::from((k + 1) * (k + 2)))
    });
    // `grad` differentiates both branches, so the direct formula gets an argument for which it is finite where the series applies.
    let far = where_(&near, 2.0, y).astype(y.dtype());
    let far_distance: Array = where_(&near, 1.0, &distance).astype(y.dtype());
    let direct = (1 - &far * &far + &far * 2 * LOG.apply(&far)) / (&far_distance * &far_distance);
    where_(near, series, direct)
}

/// The normal quantile of the probability of at most `x` events
/// ([Peizer and Pratt, A normal approximation for tail probabilities](https://doi.org/10.1080/01621459.1968.10480938)).
fn normal_quantile(x: &Array, mean: &Array) -> Array {
    let y = (x + 0.5) / mean;
    (x - mean + 2.0 / 3.0 + 0.02 / (x + 1)) * SQRT.apply(&((asymmetry(&y) + 1) / mean))
}

/// The smallest count whose [`normal_quantile`] is at least `z`. The approximate root is at most one count away from it, so only
/// three candidates are compared.
fn count_by_quantile(z: &Array, mean: &Array) -> Array {
    let (deviation, square): (Array, Array) = (SQRT.apply(mean), z * z);
    let root: Array = mean + &deviation * z - 2.0 / 3.0 + &square / 6 + z * (1 - &square) / (&deviation * 72);
    let middle = CEIL.apply(&(root + 0.6));
    let count = &middle + 1 - indicator_reaches(middle.clone(), z, mean) - indicator_reaches(&middle - 1, z, mean);
    count.maximum(0)
}

/// 1 where the [`normal_quantile`] of `count` is at least `z`, 0 elsewhere.
fn indicator_reaches(count: Array, z: &Array, mean: &Array) -> Array {
    let quantile = where_(count.less(0), f64::NEG_INFINITY, normal_quantile(&count.maximum(0), mean));
    quantile.greater_equal(z).astype(z.dtype())
}

/// Like [`poisson`](super::poisson), without loops (JAX's `method="approximate"`), for keys of any algorithm: the total
/// variation distance is below 10⁻⁴. int32.
///
/// ```
/// # use shardax::prelude::*;
/// let x = random::poisson_approximate(random::key(0), 4.0, [1000]);
/// assert!((x.astype(DType::F32).mean(..).item::<f32>()? - 4.0).abs() < 0.3);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn poisson_approximate(key: impl RandomKey, lam: impl ArrayLike, shape: impl IntoShape) -> Array {
    poisson_approximate_dtype(key, lam, shape, DType::I32)
}

/// Like [`poisson_approximate`], of an integer dtype; fails for any other. With 64 bits, means above 2²⁴ have every digit.
#[track_caller]
pub fn poisson_approximate_dtype(
    key: impl RandomKey,
    lam: impl ArrayLike,
    shape: impl IntoShape,
    dtype: DType,
) -> Array {
    let (key, lam) = (key.borrow(), lam.into_array());
    sample("poisson", key, shape, dtype, |shape| {
        integers("poisson", dtype)?;
        check_broadcast("poisson", &shape, &[&lam])?;
        let wide = (lam.dtype().is_float() && lam.dtype().bits() > 32 && !lam.weak_type()) || dtype.bits() > 32;
        let mean_dtype = if wide { DType::F64 } else { DType::F32 };
        let args = [key.clone(), convert(&lam, mean_dtype, false)];
        composite1("poisson_approximate", (shape, dtype), &args, |(shape, dtype), args| {
            let mean = args[1].broadcast_to(shape.as_slice());
            let z = normal_traced(&args[0], shape, mean.dtype())?;
            let small = count_by_probabilities(&cumulative(&z), &mean);
            let count = where_(mean.less(LARGE_MEAN), small, count_by_quantile(&z, &mean));
            Ok(vec![lax::convert_element_type(&count, *dtype)])
        })
    })
}
