//! Distributions of event counts: Poisson, geometric, binomial.

use super::continuous::{Float, check_broadcast, parameter, unit_uniform};
use super::keys::{RandomKey, key_at};
use super::{or_failed, sample, split_traced, split_two, zero_of};
use crate::core::array::Array;
use crate::default_dtype;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::constants::float;
use crate::ops::control_flow::while_loop;
use crate::ops::lax;
use crate::ops::numpy::{IntoShape, convert, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::unary::{ABS, CEIL, FLOOR, LGAMMA, LOG, LOG1P, SQRT};

/// Bound of the rejection loops. They end much earlier, because each round accepts most of the remaining samples.
const MAX_ROUNDS: i32 = 10_000;

/// Rejection sampling: draws until each element has an accepted sample. `draw` returns a sample for every element, from
/// two keys, and marks the elements whose sample is accepted.
fn sample_until_accepted(
    key: &Array,
    like: &Array,
    draw: impl Fn(&Array, &Array) -> Result<(Array, Array)>,
) -> Result<Array> {
    let zero = zero_of(key, like);
    // A later round may replace a sample that an earlier round accepted. JAX does the same, and the values must be equal.
    let samples = while_loop(
        |(n, open, ..): (Array, Array, Array, Array)| open.any(..) & n.less(MAX_ROUNDS),
        |(n, open, samples, key): (Array, Array, Array, Array)| -> Result<(Array, Array, Array, Array)> {
            let keys = split_traced(&key, &[3]);
            let (drawn, accept) = draw(&key_at(&keys, 1), &key_at(&keys, 2))?;
            Ok((n + 1, &open & !&accept, where_(&accept, drawn, samples), key_at(&keys, 0)))
        },
        (Array::from(0), zero.equal(0), zero - 1, key.clone()),
    )?
    .2;
    Ok(samples)
}

/// For small means: counts the uniform samples multiplied until their product is below `exp(-λ)`
/// ([Knuth, The art of computer programming, 3.4.1](https://www-cs-faculty.stanford.edu/~knuth/taocp.html)).
fn poisson_by_product(key: &Array, lam: &Array) -> Result<Array> {
    let shape = lam.shape().to_vec();
    let zero = zero_of(key, lam);
    let (_, count, ..) = while_loop(
        |(n, _, log, _): (Array, Array, Array, Array)| log.greater(-lam).any(..) & n.less(MAX_ROUNDS),
        |(n, count, log, key): (Array, Array, Array, Array)| -> Result<(Array, Array, Array, Array)> {
            let [key, round_key] = split_two(&key);
            let count = where_(log.greater(-lam), &count + 1, &count);
            let log = log + LOG.apply(&unit_uniform(&round_key, &shape, DType::F32)?);
            Ok((n + 1, count, log, key))
        },
        (Array::from(0), zero.astype(DType::I32), zero, key.clone()),
    )?;
    Ok(count - 1)
}

/// For large means: rejection sampling from a distribution that is easily inverted
/// ([Hörmann, The transformed rejection method for generating Poisson random
/// variables](https://doi.org/10.1016/0167-6687(93)90997-4)).
fn poisson_by_rejection(key: &Array, lam: &Array) -> Result<Array> {
    let (shape, log_lam) = (lam.shape().to_vec(), LOG.apply(lam));
    let b = 2.53 * SQRT.apply(lam) + 0.931;
    let a = 0.02483 * &b + -0.059;
    let inverse_alpha = 1.1328 / (&b - 3.4) + 1.1239;
    let certain = 0.9277 - 3.6224 / (&b - 2.0);
    sample_until_accepted(key, lam, |key_u, key_v| {
        let u = unit_uniform(key_u, &shape, DType::F32)? - 0.5;
        let v = unit_uniform(key_v, &shape, DType::F32)?;
        let edge: Array = 0.5 - ABS.apply(&u);
        let spread: Array = 2.0 * &a / &edge + &b;
        let k = FLOOR.apply(&(spread * &u + lam + 0.43));
        let s = LOG.apply(&(&v * &inverse_alpha / (&a / (&edge * &edge) + &b)));
        let t = -lam + &k * &log_lam - LGAMMA.apply(&(&k + 1));
        let at_once = edge.greater_equal(0.07) & v.less_equal(&certain);
        let reject = k.less(0) | (edge.less(0.013) & v.greater(&edge));
        Ok((k, at_once | (!reject & s.less_equal(t))))
    })
}

/// Draws from a Poisson distribution with mean `lam`, which broadcasts to the shape. int32.
///
/// ```
/// # use shardax::prelude::*;
/// let x = random::poisson(random::key(0), 4.0, [1000]);
/// assert!((x.mean(..).item::<f32>()? - 4.0).abs() < 0.3);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn poisson(key: impl RandomKey, lam: impl ArrayLike, shape: impl IntoShape) -> Array {
    poisson_dtype(key, lam, shape, DType::I32)
}

/// Like [`poisson`], of an integer dtype; fails for any other.
#[track_caller]
pub fn poisson_dtype(key: impl RandomKey, lam: impl ArrayLike, shape: impl IntoShape, dtype: DType) -> Array {
    let (key, lam) = (key.borrow(), lam.into_array());
    sample("poisson", key, shape, dtype, |shape| {
        integers("poisson", dtype)?;
        check_broadcast("poisson", &shape, &[&lam])?;
        let args = [key.clone(), convert(&lam, DType::F32, false)];
        composite1("poisson", (shape, dtype), &args, |(shape, dtype), args| {
            let (key, lam) = (&args[0], args[1].broadcast_to(shape.as_slice()));
            let small = lam.not_equal(&lam) | lam.less(10);
            // Both branches run for every element, so the unused branch gets parameters for which its loop ends early.
            let by_product = poisson_by_product(key, &where_(&small, &lam, 0.0).astype(DType::F32))?;
            let by_rejection = poisson_by_rejection(key, &where_(&small, 1e5, &lam).astype(DType::F32))?;
            let y = where_(small, by_product.astype(*dtype), by_rejection.astype(*dtype));
            Ok(vec![where_(lam.equal(0), 0, y).astype(*dtype)])
        })
    })
}

pub(super) fn integers(name: &str, dtype: DType) -> Result<()> {
    if dtype.is_integer() {
        return Ok(());
    }
    Err(err!(Type, "dtype argument to `{name}` must be an integer dtype, got {dtype}")
        .help("use DType::I32, and convert the result with `astype`"))
}

/// Draws from a geometric distribution: the number of trials up to the first success. The probability `p` of a success
/// broadcasts to the shape. int32.
#[track_caller]
pub fn geometric(key: impl RandomKey, p: impl ArrayLike, shape: impl IntoShape) -> Array {
    geometric_dtype(key, p, shape, DType::I32)
}

/// Like [`geometric`], of an integer dtype; fails for any other.
#[track_caller]
pub fn geometric_dtype(key: impl RandomKey, p: impl ArrayLike, shape: impl IntoShape, dtype: DType) -> Array {
    let (key, p) = (key.borrow(), p.into_array());
    sample("geometric", key, shape, dtype, |shape| {
        integers("geometric", dtype)?;
        check_broadcast("geometric", &shape, &[&p])?;
        let float = if p.dtype().is_float() && !p.weak_type() { p.dtype() } else { DType::F32 };
        let args = [key.clone(), convert(&p, float, false)];
        composite1("geometric", (shape, dtype), &args, |(shape, dtype), args| {
            let u = unit_uniform(&args[0], shape, args[1].dtype())?;
            let u = where_(u.equal(0), 1.0, &u).astype(u.dtype());
            let p = args[1].broadcast_to(shape.as_slice());
            let failures = FLOOR.apply(&(LOG.apply(&u) / LOG1P.apply(&-p)));
            Ok(vec![(failures + 1).astype(*dtype)])
        })
    })
}

/// For few successes: counts the geometric samples that fit into the number of trials.
fn binomial_by_waiting(key: &Array, n: &Array, p: &Array) -> Result<Array> {
    let (shape, dtype, log) = (p.shape().to_vec(), p.dtype(), LOG1P.apply(&-p));
    let zero = zero_of(key, p);
    let (_, count, ..) = while_loop(
        |(i, _, sum, _): (Array, Array, Array, Array)| sum.less_equal(n).any(..) & i.less(MAX_ROUNDS),
        |(i, count, sum, key): (Array, Array, Array, Array)| -> Result<(Array, Array, Array, Array)> {
            let [round_key, key] = split_two(&key);
            let count = where_(sum.less_equal(n), &count + 1, &count);
            let u = unit_uniform(&round_key, &shape, dtype)?;
            Ok((i + 1, count, sum + CEIL.apply(&(LOG.apply(&u) / &log)), key))
        },
        (Array::from(0), zero.clone(), zero, key.clone()),
    )?;
    Ok(count - 1)
}

/// The error of Stirling's formula for `log k!`.
fn stirling_rest(k: &Array) -> Array {
    let successor = k + 1;
    let square = &successor * &successor;
    let series = (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / 1260.0 / &square) / &square) / &successor;
    // The series is not accurate enough for k < 10, so these terms are exact.
    let mut log_factorial = 0.0;
    (0..10).fold(series, |series, i| {
        let n = f64::from(i) + 1.0;
        let exact = log_factorial - (n - 0.5) * n.ln() + n - 0.5 * (2.0 * std::f64::consts::PI).ln();
        log_factorial += n.ln();
        where_(FLOOR.apply(k).equal(i), exact, series).astype(k.dtype())
    })
}

/// For many successes: rejection sampling from a distribution that is easily inverted
/// ([Hörmann, The generation of binomial random variates](https://doi.org/10.1080/00949659308811496)).
fn binomial_by_rejection(key: &Array, n: &Array, p: &Array) -> Result<Array> {
    let (shape, dtype) = (p.shape().to_vec(), p.dtype());
    let deviation = SQRT.apply(&(n * p * (1 - p)));
    let b = 1.15 + 2.53 * &deviation;
    let a = -0.0873 + 0.0248 * &b + 0.01 * p;
    let (c, certain, r) = (n * p + 0.5, 0.92 - 4.2 / &b, p / (1 - p));
    let alpha = (2.83 + 5.1 / &b) * &deviation;
    let mode = FLOOR.apply(&((n + 1) * p));
    // The names of the paper's algorithm BTRS.
    sample_until_accepted(key, p, |key_u, key_v| {
        let u = unit_uniform(key_u, &shape, dtype)? - 0.5;
        let v = unit_uniform(key_v, &shape, dtype)?;
        let edge: Array = 0.5 - ABS.apply(&u);
        let accept_directly = edge.greater_equal(0.07) & v.less_equal(&certain);
        let spread: Array = 2 * &a / &edge + &b;
        let k = FLOOR.apply(&(spread * &u + &c));
        let reject = k.less(0) | k.greater(n);
        let v = LOG.apply(&(v * &alpha / (&a / (&edge * &edge) + &b)));
        let bound = (&mode + 0.5) * LOG.apply(&((&mode + 1) / (&r * (n - &mode + 1))))
            + (n + 1) * LOG.apply(&((n - &mode + 1) / (n - &k + 1)))
            + (&k + 0.5) * LOG.apply(&(&r * (n - &k + 1) / (&k + 1)))
            + stirling_rest(&mode)
            + stirling_rest(&(n - &mode))
            - stirling_rest(&k)
            - stirling_rest(&(n - &k));
        Ok((k, accept_directly | (!reject & v.less_equal(bound))))
    })
}

fn is_nan(x: &Array) -> Array {
    x.not_equal(x)
}

/// Draws in the dtype of `p`, and returns `dtype`.
fn binomial_traced(key: &Array, n: &Array, p: &Array, dtype: DType) -> Result<Array> {
    // The samplers require a probability of at most 1/2. For a larger one they count the failures.
    let low = p.less(0.5);
    let q = where_(&low, p, 1 - p);
    let (no_count, infinite, no_chance) = (is_nan(n) | n.less(0), ABS.apply(n).equal(f64::INFINITY), is_nan(&q));
    let invalid = q.less(0) | &no_chance | &no_count;
    let q = where_(is_nan(&q) | q.less(0), float(0.01, q.dtype()), q);
    let few = &no_count | (n * &q).less_equal(10);
    let n = FLOOR.apply(n);
    // Both samplers run for every element, so the unused one gets parameters for which its loop ends early.
    let waiting = binomial_by_waiting(key, &where_(&few, &n, float(0.0, n.dtype())), &q)?;
    let (many, even) = (where_(&few, float(1e4, n.dtype()), &n), where_(&few, float(0.5, q.dtype()), &q));
    let y = where_(few, waiting, binomial_by_rejection(key, &many, &even)?).astype(dtype);
    let y = where_(&invalid, float(f64::NAN, dtype), y);
    let y = where_(&infinite & !&invalid, float(f64::INFINITY, dtype), y);
    Ok(where_(low | no_count | no_chance | infinite, &y, n.astype(dtype) - &y))
}

/// Draws from a binomial distribution: the number of successes in `n` trials of probability `p`, as floating point numbers; NaN
/// where `n` is negative or `p` is not a probability. Parameters broadcast to the shape. Float32.
///
/// ```
/// # use shardax::prelude::*;
/// let x = random::binomial(random::key(0), 100, 0.3, [1000]);
/// assert!((x.mean(..).item::<f32>()? - 30.0).abs() < 1.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn binomial(key: impl RandomKey, n: impl ArrayLike, p: impl ArrayLike, shape: impl IntoShape) -> Array {
    binomial_dtype(key, n, p, shape, default_dtype::float())
}

/// Like [`binomial`], of a floating point dtype; fails for any other. The numbers are drawn in the dtype of `p`, so that a narrow
/// `dtype` only rounds them.
#[track_caller]
pub fn binomial_dtype(
    key: impl RandomKey,
    n: impl ArrayLike,
    p: impl ArrayLike,
    shape: impl IntoShape,
    dtype: DType,
) -> Array {
    let (key, n, p) = (key.borrow(), n.into_array(), p.into_array());
    sample("binomial", key, shape, dtype, |shape| {
        Float::of("binomial", dtype)?;
        check_broadcast("binomial", &shape, &[&n, &p])?;
        let drawn_in = match p.dtype() {
            own if own.is_float() && !p.weak_type() => own,
            _ if dtype == DType::F64 => dtype,
            _ => default_dtype::float(),
        };
        let args = [key.clone(), convert(&n, drawn_in, false), convert(&p, drawn_in, false)];
        composite1("binomial", (shape, dtype), &args, |(shape, dtype), args| {
            let [n, p] = [1, 2].map(|i| args[i].broadcast_to(shape.as_slice()));
            Ok(vec![binomial_traced(&args[0], &n, &p, *dtype)?])
        })
    })
}

/// Draws from a multinomial distribution: how often each outcome occurs in `n` trials, float32. The last dimension of
/// `p` has a probability for each outcome; the probabilities are divided by their sum. `n` broadcasts with the other
/// dimensions.
///
/// ```
/// # use shardax::prelude::*;
/// let x = random::multinomial(random::key(0), 100, array([0.2f32, 0.3, 0.5]));
/// assert_eq!((x.shape(), x.sum(..).item::<f32>()?), (&[3][..], 100.0));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for a scalar `p`, and for shapes that do not broadcast.
#[track_caller]
pub fn multinomial(key: impl RandomKey, n: impl ArrayLike, p: impl ArrayLike) -> Array {
    let (key, n, p) = (key.borrow(), n.into_array(), p.into_array());
    or_failed(
        || p.clone(),
        || {
            key.check()?;
            let args = crate::ops::numpy::promote_dtypes(&[&n, &p], crate::ops::numpy::to_inexact)?;
            let [n, p] = [&args[0], &args[1]].map(parameter);
            let Some((&outcomes, lead)) = p.shape().split_last() else {
                return Err(err!(
                    Value,
                    "multinomial needs probabilities in the last dimension, got {}",
                    p.type_name()
                )
                .help("pass a probability for each outcome"));
            };
            let n = n.broadcast_to(lead);
            n.check()?;
            if outcomes == 0 {
                return Ok(p.astype(default_dtype::float()));
            }
            // Each outcome is binomial among the trials that are left, with its share of the probability that is left.
            let p = p.moveaxis(-1, 0);
            let remaining = lax::rev(&lax::rev(&p, &[0usize]).cumsum(0), &[0usize]);
            let shares = &p / where_(remaining.equal(0), 1, &remaining);
            let keys = super::split(key, outcomes);
            let (_, counts) = crate::ops::control_flow::scan(draw_outcome, n, (shares, keys))?;
            Ok(counts.moveaxis(0, -1).astype(default_dtype::float()))
        },
    )
}

/// Draws the count of one outcome, which has this share of the remaining probability, and subtracts it from the trials.
fn draw_outcome(trials: Array, (share, key): (Array, Array)) -> Result<(Array, Array)> {
    let count = super::binomial_dtype(&key, &trials, share.clip(0, 1), trials.shape(), trials.dtype());
    Ok((trials - &count, count))
}
