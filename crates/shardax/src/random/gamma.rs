//! The gamma distribution and distributions derived from it.

use super::continuous::{Float, check_broadcast_shape, normal_traced, standard_exponential, unit_uniform};
use super::keys::{Kind, RandomKey, join_pairs, key_at, pairs};
use super::parameters::parameter_samplers;
use super::{PrngImpl, check_key, like, or_failed, rademacher_dtype, shape_of, split_traced, split_two, zero_of};
use crate::core::array::Array;
use crate::core::function::Function as _;
use crate::core::program::Aval;
use crate::default_dtype;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::constants::float;
use crate::ops::control_flow::{custom_jvp, while_loop};
use crate::ops::lax;
use crate::ops::numpy::{IntoShape, convert, finfo, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::random_gamma::RandomGammaFactor;
use crate::ops::primitive::special::RANDOM_GAMMA_GRAD;
use crate::ops::primitive::unary::{ABS, DIGAMMA, EXP, LOG, SQRT};
use crate::shape::size;
use crate::sharding::Typed;
use crate::transform::vmap;

/// A scalar sample, or its logarithm, by rejection
/// ([Marsaglia and Tsang, A simple method for generating gamma variables](https://doi.org/10.1145/358407.358414)).
/// The method requires a parameter of at least 1. A smaller parameter is raised by 1, and the sample is multiplied by a power of a
/// uniform sample.
fn scalar_sample(key: &Array, alpha: &Array, log_space: bool) -> Result<Array> {
    let dtype = alpha.dtype();
    let large = alpha.greater_equal(1);
    let d = where_(&large, alpha, alpha + 1) - float(1.0 / 3.0, dtype);
    let [loop_key, boost_key] = split_two(key);
    let v = if Kind::of(key).prng() == PrngImpl::Threefry2x32 {
        let [k0, k1] = pairs(&loop_key).remove(0);
        RandomGammaFactor { body: factors }.apply(&k0, &k1, &d)
    } else {
        accepted_factor(&loop_key, &d)?
    };
    if log_space {
        let log_u = -standard_exponential(&boost_key, &[], dtype)?;
        let boost = where_(large | log_u.equal(0), 0.0, &log_u * (1 / alpha)).astype(dtype);
        return Ok(LOG.apply(&d) + LOG.apply(&v) + boost);
    }
    let u: Array = 1 - unit_uniform(&boost_key, &[], dtype)?;
    let boost = where_(large, 1.0, u.pow(1 / alpha)).astype(dtype);
    Ok(d * v * boost)
}

/// The first accepted factor `v`, for which `d * v` is a sample.
fn accepted_factor(key: &Array, d: &Array) -> Result<Array> {
    let dtype = d.dtype();
    let c = float(1.0 / 3.0, dtype) / SQRT.apply(d);
    let zero = zero_of(key, d);
    let rejected = |(_, x, v, u): (Array, Array, Array, Array)| {
        let squeezed = u.greater_equal(float(1.0, dtype) - float(0.0331, dtype) * (&x * &x));
        let bound = &x * float(0.5, dtype) + d * (float(1.0, dtype) - &v + LOG.apply(&v));
        squeezed & LOG.apply(&u).greater_equal(bound)
    };
    // The initial state counts as rejected, so that the loop draws at least once.
    let (_, _, v, _) = while_loop(
        rejected,
        |(key, ..): (Array, Array, Array, Array)| -> Result<(Array, Array, Array, Array)> {
            let keys = split_traced(&key, &[3]);
            let start = (key_at(&keys, 1), zero.clone(), &zero - 1);
            let (_, x, v) = while_loop(
                |(_, _, v): (Array, Array, Array)| v.less_equal(0),
                |(key, ..): (Array, Array, Array)| -> Result<(Array, Array, Array)> {
                    let [key, normal_key] = split_two(&key);
                    let x = normal_traced(&normal_key, &[], dtype)?;
                    let v = float(1.0, dtype) + &x * &c;
                    Ok((key, x, v))
                },
                start,
            )?;
            let u = unit_uniform(&key_at(&keys, 2), &[], dtype)?;
            Ok((key_at(&keys, 0), &x * &x, &v * &v * &v, u))
        },
        (key.clone(), zero.clone(), &zero + 1, &zero + 2),
    )?;
    Ok(v)
}

/// The body of [`RandomGammaFactor`]: the accepted factors for keys with these words.
fn factors(args: &[Array]) -> Result<Array> {
    let shape = args.iter().map(Array::shape).max_by_key(|shape| shape.len()).unwrap_or_default();
    let n = size(shape);
    if n == 0 {
        return Ok(args[2].broadcast_to(shape));
    }
    let [k0, k1, d] = [0, 1, 2].map(|i| lax::reshape(&args[i].broadcast_to(shape), &[n]));
    let keys = join_pairs(Kind::Typed(PrngImpl::Threefry2x32), &[[k0, k1]]);
    let v = vmap(|key: Array, d: Array| accepted_factor(&key, &d)).call((keys, d))?;
    Ok(lax::reshape(&v, shape))
}

/// A sample, or its logarithm, for each parameter. Each element has a key of its own. The derivative moves a sample such that the
/// cumulative probability below the sample is constant.
fn samples(key: &Array, alpha: &Array, log_space: bool) -> Result<Array> {
    let draw = move |key: Array, alpha: Array| -> Result<Array> {
        let n = size(alpha.shape());
        if n == 0 {
            return Ok(alpha);
        }
        // The samples are not a sum over mesh axes, even if the gradient of the parameters is one, so the "reduced" mark is removed.
        let plain = match alpha.aval_ref().and_then(Aval::sharding).filter(|typed| is_reduced(typed)) {
            Some(typed) => alpha.sharded(&typed.clone().without_partial()),
            None => alpha.clone(),
        };
        let flat = lax::reshape(&plain, &[n]);
        let keys = split_traced(&key, &[n]).sharded_as(&flat.aval());
        let sampler = vmap(|key: Array, alpha: Array| scalar_sample(&key, &alpha, log_space));
        Ok(lax::reshape(&sampler.call((keys, flat))?, alpha.shape()).sharded_as(&alpha.aval()))
    };
    custom_jvp(draw)
        .defjvp(move |(key, alpha): (Array, Array), (_, dalpha): (Array, Array)| -> Result<(Array, Array)> {
            let y = draw(key, alpha.clone())?;
            let slope = if !log_space { RANDOM_GAMMA_GRAD.apply(&[alpha, y.clone()]) } else { log_slope(&alpha, &y)? };
            Ok((y, dalpha * slope))
        })
        .apply((key.clone(), alpha.clone()))
}

/// Returns `true` for a type with explicit sharding that is marked as reduced, and not as unreduced.
fn is_reduced(typed: &Typed) -> bool {
    typed.mesh().has_explicit() && !typed.reduced().is_empty() && typed.unreduced().is_empty()
}

/// The derivative of the logarithm `y` of a sample with respect to `alpha`. Where the sample underflows, the derivative keeps
/// `exp(alpha y) / Γ(alpha + 1)` constant, which is the limit of the distribution function.
fn log_slope(alpha: &Array, y: &Array) -> Result<Array> {
    let limits = finfo(y.dtype())?;
    let is_small = y.less(limits.eps.ln());
    let sample = where_(&is_small, 1, EXP.apply(&where_(&is_small, 0, y)));
    let near = RANDOM_GAMMA_GRAD.apply(&[alpha.clone(), sample.clone()]) / sample;
    let small = (DIGAMMA.apply(&(alpha + 1)) - y) / alpha;
    // Infinite slopes would be NaN in a product with a density of 0, or in a difference.
    Ok(where_(is_small, small.minimum(limits.max / 8.0), near))
}

fn rademacher(key: &Array, shape: &[usize], dtype: DType) -> Array {
    rademacher_dtype(key, shape, dtype)
}

/// Up to this order, powers of gamma samples are computed. The samples of larger orders may underflow to 0.
const MAX_ORDER_OF_POWER: f64 = 8.0;

fn generalized(key: &Array, p: f64, shape: &[usize], dtype: DType) -> Result<Array> {
    let [gamma_key, sign_key] = split_two(key);
    let signs = rademacher(&sign_key, shape, dtype);
    if p <= MAX_ORDER_OF_POWER {
        let inverse = float(1.0 / p, dtype);
        let g = samples(&gamma_key, &inverse.broadcast_to(shape), false)?;
        return Ok(signs * g.pow(1.0 / p));
    }
    // Samples of so small a parameter underflow, but their logarithms do not. For larger orders than the limit, for which these would
    // overflow, the distribution is the uniform distribution up to rounding.
    let inverse = 1.0 / p.min(finfo(dtype)?.max / 64.0);
    let logarithms = samples(&gamma_key, &float(inverse, dtype).broadcast_to(shape), true)?;
    Ok(signs * EXP.apply(&(logarithms * inverse)))
}

parameter_samplers! {
    /// Gamma with shape parameter `a` and scale 1: the density is proportional to `xᵃ⁻¹ exp(-x)`.
    ///
    /// It can be differentiated with respect to `a`, once
    /// ([Figurnov et al., Implicit reparameterization gradients](https://arxiv.org/abs/1805.08498)).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let key = random::key(0);
    /// let x = random::gamma(&key, 3.0, [1000]);
    /// assert!((x.mean(..).item::<f32>()? - 3.0).abs() < 0.3);
    /// let slope = grad(move |a: Array| random::gamma(&key, a, [1000]).mean(..)).call(array(3.0f32))?;
    /// assert!((slope.item::<f32>()? - 1.0).abs() < 0.2);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    gamma gamma_dtype (a) "gamma" => |key, p, _, _| samples(key, &p[0], false);
    /// The logarithm of [`gamma`], accurate where the sample underflows to 0.
    loggamma loggamma_dtype (a) "loggamma" => |key, p, _, _| samples(key, &p[0], true);
    /// Beta: the density is proportional to `xᵃ⁻¹ (1 - x)ᵇ⁻¹` between 0 and 1.
    beta beta_dtype (a, b) "beta" => |key, p, _, _| {
        let [key_a, key_b] = split_two(key);
        let (x, y) = (samples(&key_a, &p[0], true)?, samples(&key_b, &p[1], true)?);
        let larger = x.maximum(&y);
        let (x, y) = (EXP.apply(&(x - &larger)), EXP.apply(&(y - larger)));
        Ok(&x / (&x + y))
    };
    /// χ² with `df` degrees of freedom: the sum of the squares of `df` normal samples.
    chisquare chisquare_dtype (df) "chisquare" => |key, p, _, _| Ok(EXP.apply(&samples(key, &(&p[0] / 2), true)?) * 2);
    /// Student's t with `df` degrees of freedom.
    t t_dtype (df) "t" => |key, p, shape, dtype| {
        let [normal_key, gamma_key] = split_two(key);
        let half = &p[0] / 2;
        let g = samples(&gamma_key, &half, false)?;
        Ok(normal_traced(&normal_key, shape, dtype)? * SQRT.apply(&(half / g)))
    };
    /// F with `dfnum` and `dfden` degrees of freedom: the ratio of two χ² samples, each divided by its degrees of
    /// freedom.
    f f_dtype (dfnum, dfden) "f" => |key, p, _, _| {
        let [key_den, key_num] = split_two(key);
        Ok(scaled_chisquare(&key_num, &p[0])? / scaled_chisquare(&key_den, &p[1])?)
    };
}

/// A χ² sample divided by its degrees of freedom.
fn scaled_chisquare(key: &Array, df: &Array) -> Result<Array> {
    Ok(EXP.apply(&samples(key, &(df / 2), true)?) * 2 / df)
}

/// Draws from a Dirichlet distribution: vectors of probabilities, with one for each element along the last axis of
/// `alpha`. `shape` is the shape of the other axes; `alpha` must broadcast to it. Float32.
///
/// ```
/// # use shardax::prelude::*;
/// let x = random::dirichlet(random::key(0), array([1.0f32, 2.0, 3.0]), [5]);
/// assert_eq!(x.shape(), [5, 3]);
/// assert!(allclose(x.sum(-1), ones(5), 1e-5, 1e-5)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for a scalar.
#[track_caller]
pub fn dirichlet(key: impl RandomKey, alpha: impl ArrayLike, shape: impl IntoShape) -> Array {
    dirichlet_dtype(key, alpha, shape, default_dtype::float())
}

/// Like [`dirichlet`], of a floating point dtype; fails for any other.
#[track_caller]
pub fn dirichlet_dtype(key: impl RandomKey, alpha: impl ArrayLike, shape: impl IntoShape, dtype: DType) -> Array {
    let (key, alpha) = (key.borrow(), alpha.into_array());
    or_failed(
        || like([], dtype),
        || {
            let shape = shape_of("dirichlet", shape)?;
            check_key("dirichlet", key)?;
            Float::of("dirichlet", dtype)?;
            alpha.check()?;
            let Some((&n, batch)) = alpha.shape().split_last() else {
                return Err(err!(Value, "dirichlet requires alpha.ndim >= 1, got {}", alpha.type_name())
                    .help("pass an array with one element for each probability"));
            };
            check_broadcast_shape("dirichlet", &shape, batch)?;
            let full_shape = [shape.as_slice(), &[n]].concat();
            let args = [key.clone(), convert(&alpha, dtype, false)];
            composite1("dirichlet", full_shape, &args, |full_shape, args| {
                let logs = samples(&args[0], &args[1].broadcast_to(full_shape.as_slice()), true)?;
                Ok(vec![crate::nn::softmax(&logs, -1)])
            })
        },
    )
}

/// Draws from a generalized normal distribution: the density is proportional to `exp(-|x|ᵖ)`. With an infinite `p` it is uniform between
/// -1 and 1. Float32.
///
/// # Errors
/// The result carries an error if `p` is not positive.
#[track_caller]
pub fn generalized_normal(key: impl RandomKey, p: f64, shape: impl IntoShape) -> Array {
    generalized_normal_dtype(key, p, shape, default_dtype::float())
}

/// Like [`generalized_normal`], of a floating point dtype; fails for any other.
#[track_caller]
pub fn generalized_normal_dtype(key: impl RandomKey, p: f64, shape: impl IntoShape, dtype: DType) -> Array {
    let key = key.borrow();
    super::sample("generalized_normal", key, shape, dtype, |shape| {
        Float::of("generalized_normal", dtype)?;
        positive("generalized_normal", p)?;
        composite1(
            "generalized_normal",
            (p.to_bits(), shape, dtype),
            std::slice::from_ref(key),
            |(p, shape, dtype), args| Ok(vec![generalized(&args[0], f64::from_bits(*p), shape, *dtype)?]),
        )
    })
}

/// Draws uniformly from the unit ball of the `p`-norm in `d` dimensions. The last axis has the `d` coordinates. With an infinite `p` the
/// ball is a cube. Float32.
///
/// Source: [Barthe et al., A probabilistic approach to the geometry of the lₚ
/// ball](https://arxiv.org/abs/math/0503650).
///
/// ```
/// # use shardax::prelude::*;
/// let x = random::ball(random::key(0), 3, 2.0, [100]);
/// assert_eq!(x.shape(), [100, 3]);
/// assert!(x.square().sum(-1).max(..).item::<f32>()? <= 1.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if `p` is not positive.
#[track_caller]
pub fn ball(key: impl RandomKey, d: usize, p: f64, shape: impl IntoShape) -> Array {
    ball_dtype(key, d, p, shape, default_dtype::float())
}

/// Like [`ball`], of a floating point dtype; fails for any other.
#[track_caller]
pub fn ball_dtype(key: impl RandomKey, d: usize, p: f64, shape: impl IntoShape, dtype: DType) -> Array {
    let key = key.borrow();
    super::sample("ball", key, shape, dtype, |shape| {
        Float::of("ball", dtype)?;
        positive("ball", p)?;
        let params = (d, p.to_bits(), shape, dtype);
        composite1("ball", params, std::slice::from_ref(key), |(d, p, shape, dtype), args| {
            let p = f64::from_bits(*p);
            let [inside, outside] = split_two(&args[0]);
            let g = generalized(&inside, p, &[shape.as_slice(), &[*d]].concat(), *dtype)?;
            let exponential = standard_exponential(&outside, shape, *dtype)?;
            let norm = (ABS.apply(&g).pow(p).sum(-1) + exponential).pow(1.0 / p);
            Ok(vec![g / norm.expand_dims(-1)])
        })
    })
}

fn positive(name: &str, p: f64) -> Result<()> {
    if p > 0.0 {
        return Ok(());
    }
    Err(err!(Value, "{name} needs a positive order `p`, got {p}")
        .help("pass a positive order, such as 2 for the Euclidean norm, or infinity for the largest coordinate"))
}
