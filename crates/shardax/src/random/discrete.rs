//! Samples of discrete distributions, permutations and choices.

use std::borrow::Borrow;

use super::bits::random_bits;
use super::continuous::{
    broadcast_array, check_broadcast, check_broadcast_shape, gumbel_traced, parameter, unit_uniform,
};
use super::keys::RandomKey;
use super::{check_key, like, or_failed, sample, shape_of, split_two};
use crate::core::array::Array;
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Result, bail, err};
use crate::ops::constants::{float, integer};
use crate::ops::lax;
use crate::ops::numpy::{IntoShape, convert};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::binary::{ADD, AND, Compare, MAX, MIN, MUL, REM, SUB, Select};
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::reduce::{highest, lowest};
use crate::ops::primitive::sort::Sort;
use crate::ops::promotion::convert_clamped;
use crate::shape::{AxisNumber, Shape, normalize_axis, size};

/// Draws uniform integers in `[minval, maxval)`, int32.
///
/// ```
/// # use shardax::prelude::*;
/// let x = random::randint(&random::key(42), [4], 3, 17);
/// assert_eq!(x.to_vec::<i32>()?, [11, 15, 14, 14]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn randint(key: impl RandomKey, shape: impl IntoShape, minval: impl ArrayLike, maxval: impl ArrayLike) -> Array {
    let key = key.borrow();
    randint_dtype(key, shape, minval, maxval, DType::I32)
}

/// Draws uniform integers in `[minval, maxval)`; the bounds broadcast to the shape. Bounds outside of the dtype's range
/// are clamped to it, and a `maxval` just beyond the largest number includes that number. An empty range returns
/// `minval`.
///
/// ```
/// # use shardax::prelude::*;
/// let x = random::randint_dtype(random::key(0), [100], 0, 6, DType::U8);
/// assert_eq!(x.type_name(), "uint8[100]");
/// assert!(x.less(6).all(..).item::<bool>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for dtypes or bounds that are not integers.
#[track_caller]
pub fn randint_dtype(
    key: impl RandomKey,
    shape: impl IntoShape,
    minval: impl ArrayLike,
    maxval: impl ArrayLike,
    dtype: DType,
) -> Array {
    let key = key.borrow();
    let (min, max) = (minval.into_array(), maxval.into_array());
    sample("randint", key, shape, dtype, |shape| {
        if !dtype.is_integer() {
            bail!(Type, "randint only accepts integer dtypes, got {dtype}");
        }
        check_broadcast("randint", &shape, &[&min, &max])?;
        if let Some(odd) = [&min, &max].into_iter().find(|b| !b.dtype().is_integer()) {
            return Err(err!(Type, "randint bounds must be integers, got {}", odd.type_name())
                .help("convert them with `astype(DType::I32)`"));
        }
        let args = [key.clone(), bound(&min), bound(&max)];
        composite1("randint", (shape, dtype), &args, |(shape, dtype), args| {
            Ok(vec![randint_traced(&args[0], shape, *dtype, &args[1], &args[2])])
        })
    })
}

/// Converts a plain number to an array wide enough for it.
fn bound(b: &Array) -> Array {
    match &b.0 {
        crate::core::array::Repr::Literal(l) => {
            let v = l.value.to_i128();
            let dtype = match v {
                _ if i32::try_from(v).is_ok() => DType::I32,
                _ if i64::try_from(v).is_ok() => DType::I64,
                _ => DType::U64,
            };
            integer(v.clamp(i64::MIN as i128, u64::MAX as i128), dtype)
        }
        _ => convert(b, b.dtype(), false),
    }
}

fn randint_traced(key: &Array, shape: &[usize], dtype: DType, min: &Array, max: &Array) -> Array {
    if dtype.bits() < 32 {
        // Narrow integers are sampled with 32 bits, where remainders are less biased.
        let (low, high) = (integer(lowest(dtype).to_i128(), DType::I32), highest(dtype).to_i128());
        let [min, max] = [(min, high), (max, high + 1)].map(|(bound, high)| {
            MIN.apply(&MAX.apply(&convert_clamped(bound, DType::I32), &low), &integer(high, DType::I32))
        });
        return randint_traced(key, shape, DType::I32, &min, &max).astype(dtype);
    }
    // If the end is beyond the dtype, its largest number is included.
    let beyond = match highest(dtype).to_i128() {
        high if high >= highest(max.dtype()).to_i128() => None,
        high => Some(Compare::Gt.apply(max, &integer(high, max.dtype()))),
    };
    let [min, max] = [min, max].map(|bound| broadcast_array(&convert_clamped(bound, dtype), shape));

    let [high, low] = split_two(key).map(|key| random_bits(&key, shape, dtype.bits()));
    let uint = high.dtype();
    let unit = integer(1, uint);
    let empty = Compare::Le.apply(&max, &min);
    let mut span = Select.apply(&empty, &SUB.apply(&max, &min).astype(uint), &unit);
    if let Some(beyond) = beyond {
        // A span of all numbers wraps to 0, and a remainder by 0 leaves the bits unchanged.
        let wider = AND.apply(&broadcast_array(&beyond, shape), &Compare::Gt.apply(&max, &min));
        span = Select.apply(&wider, &span, &ADD.apply(&span, &unit));
    }
    // Computes (high · 2ⁿ + low) mod span. 2ⁿ mod span is the square of 2^(n/2) mod span, so that nothing overflows.
    let half = REM.apply(&integer(1 << (dtype.bits() / 2), uint), &span);
    let factor = REM.apply(&MUL.apply(&half, &half), &span);
    let sum = ADD.apply(&MUL.apply(&REM.apply(&high, &span), &factor), &REM.apply(&low, &span));
    ADD.apply(&min, &REM.apply(&sum, &span).astype(dtype))
}

/// Draws booleans that are true with probability `p`, a floating point number or array that broadcasts to the shape.
///
/// ```
/// # use shardax::prelude::*;
/// let coin = random::bernoulli(&random::key(0), 0.5, [10]);
/// assert_eq!(coin.dtype(), DType::Bool);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn bernoulli(key: impl RandomKey, p: impl ArrayLike, shape: impl IntoShape) -> Array {
    let key = key.borrow();
    let p = p.into_array();
    sample("bernoulli", key, shape, DType::Bool, |shape| {
        check_broadcast("bernoulli", &shape, &[&p])?;
        if !p.dtype().is_float() {
            return Err(err!(Type, "bernoulli probability `p` must have a floating dtype, got {}.", p.dtype())
                .help("pass the probability as a float, such as `0.5`"));
        }
        let p = parameter(&p);
        composite1("bernoulli", shape, &[key.clone(), p], |shape, args| {
            let (key, p) = (&args[0], &args[1]);
            let u = unit_uniform(key, shape, p.dtype())?;
            Ok(vec![Compare::Lt.apply(&u, &broadcast_array(p, shape))])
        })
    })
}

/// Draws -1 or 1 with equal probability, int32; see [`rademacher_dtype`].
///
/// ```
/// # use shardax::prelude::*;
/// let x = random::rademacher(random::key(0), [100]);
/// assert!((&x * &x).equal(1).all(..).item::<bool>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn rademacher(key: impl RandomKey, shape: impl IntoShape) -> Array {
    let key = key.borrow();
    rademacher_dtype(key, shape, DType::I32)
}

/// Draws -1 or 1 with equal probability. As in JAX, -1 wraps to the largest number of an unsigned dtype, and both
/// values are true as booleans.
#[track_caller]
pub fn rademacher_dtype(key: impl RandomKey, shape: impl IntoShape, dtype: DType) -> Array {
    let key = key.borrow();
    let heads = bernoulli(key, 0.5, shape);
    if heads.error().is_some() {
        return heads;
    }
    (heads.astype(dtype) * 2 - 1).astype(dtype)
}

/// Draws an index along `axis` for each entry of the other dimensions. The probability of an index is proportional to the
/// exponential of its logit. int32.
///
/// ```
/// # use shardax::prelude::*;
/// let logits = array([[0.0f32, -1e9], [-1e9, 0.0]]);
/// assert_eq!(random::categorical(&random::key(0), &logits, -1).to_vec::<i32>()?, [0, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn categorical(key: impl RandomKey, logits: impl ArrayLike, axis: impl AxisNumber) -> Array {
    let axis = axis.axis_number();
    let key = key.borrow();
    categorical_shape(key, logits, axis, None)
}

/// Like [`categorical`], with the shape of the result. The other dimensions of the logits must broadcast to it; `None` is their
/// shape.
#[track_caller]
pub fn categorical_shape(
    key: impl RandomKey,
    logits: impl ArrayLike,
    axis: impl AxisNumber,
    shape: Option<&[usize]>,
) -> Array {
    let axis = axis.axis_number();
    let (key, logits) = (key.borrow(), logits.into_array());
    or_failed(
        || like([], DType::I32),
        || {
            check_key("categorical", key)?;
            logits.check()?;
            if !logits.dtype().is_float() {
                return Err(err!(Type, "categorical logits must have a floating dtype, got {}", logits.type_name())
                    .help("convert them with `astype(DType::F32)`"));
            }
            let axis = normalize_axis(axis as isize, logits.ndim())?;
            let mut batch = logits.shape_owned();
            let n = batch.remove(axis);
            if n == 0 {
                return Err(err!(
                    Value,
                    "categorical needs at least one category, got logits of shape {:?} with axis {axis}",
                    logits.shape()
                )
                .help("the axis of the logits must have an entry for each category"));
            }
            let shape: Shape = shape.map(Shape::from_slice).unwrap_or_else(|| batch.clone());
            check_broadcast_shape("categorical", &shape, &batch)?;
            // The requested shape may have leading dimensions that the logits do not have; the category axis comes after them.
            let full_axis = shape.len() - batch.len() + axis;
            let mut full = shape.clone();
            full.insert(full_axis, n);
            composite1("categorical", (full, full_axis), &[key.clone(), parameter(&logits)], |(full, axis), args| {
                let noise = gumbel_traced(&args[0], full, args[1].dtype())?;
                let logits_full = args[1].broadcast_to(full.as_slice());
                Ok(vec![ADD.apply(&noise, &logits_full).argmax(*axis as i32)])
            })
        },
    )
}

/// Returns a random permutation of the numbers from 0 to `a`, int32, or of the entries of an array `a` along its first
/// dimension.
///
/// ```
/// # use shardax::prelude::*;
/// let order = random::permutation(&random::key(42), 8);
/// assert_eq!(order.to_vec::<i32>()?, [7, 4, 2, 5, 3, 6, 0, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn permutation(key: impl RandomKey, a: impl Population) -> Array {
    PermutationOptions::new().permutation(key, a)
}

/// Options of [`permutation`](permutation()).
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::random::PermutationOptions;
/// let rows = array([[1, 2, 3], [4, 5, 6]]);
/// let mixed = PermutationOptions::new().axis(1).independent(true).permutation(random::key(0), &rows);
/// assert_eq!(mixed.sum(1).to_vec::<i32>()?, [6, 15]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermutationOptions {
    axis: i32,
    independent: bool,
}

impl PermutationOptions {
    /// Returns a permutation that moves entire entries of the first axis.
    pub fn new() -> Self {
        PermutationOptions::default()
    }

    /// Sets the axis whose entries are permuted; negative axes count from the last. Default 0.
    pub fn axis(mut self, axis: impl AxisNumber) -> Self {
        self.axis = axis.axis_number();
        self
    }

    /// Sets whether each line along the axis is permuted independently. Otherwise entire entries are moved. Default false.
    pub fn independent(mut self, independent: bool) -> Self {
        self.independent = independent;
        self
    }

    /// See [`permutation`](permutation()).
    ///
    /// # Errors
    /// The result carries an error for a scalar, and for an axis that is out of bounds.
    #[track_caller]
    pub fn permutation(self, key: impl RandomKey, a: impl Population) -> Array {
        let key = key.borrow();
        // A number stands for the integers below it.
        let Some(x) = a.array() else {
            let n = a.population(self.axis);
            return or_failed(
                || like([], DType::I32),
                || {
                    check_key("permutation", key)?;
                    let n = n?;
                    composite1("permutation", n, std::slice::from_ref(key), |n, args| {
                        Ok(vec![permutation_traced(&args[0], *n)])
                    })
                },
            );
        };
        or_failed(
            || x.clone(),
            || {
                check_key("permutation", key)?;
                x.check()?;
                let axis = normalize_axis(self.axis as isize, x.ndim())?;
                let args = [key.clone(), x.clone()];
                composite1("permutation_axis", (axis, self.independent), &args, |(axis, independent), args| {
                    let (key, x) = (&args[0], &args[1]);
                    Ok(vec![if *independent || x.ndim() == 1 {
                        sort_randomly(key, x, *axis)
                    } else {
                        x.take(permutation_traced(key, x.shape()[*axis]), *axis as i32)
                    }])
                })
            },
        )
    }
}

fn permutation_traced(key: &Array, n: usize) -> Array {
    sort_randomly(key, &lax::iota(DType::for_indices(&[n]), &[n], 0), 0)
}

/// Sorts by random 32-bit numbers, in enough rounds that ties are unlikely to matter.
fn sort_randomly(key: &Array, x: &Array, axis: usize) -> Array {
    let count = size(x.shape()).max(1) as f64;
    let rounds = (3.0 * count.ln() / (u32::MAX as f64).ln()).ceil() as usize;
    let (mut key, mut x) = (key.clone(), x.clone());
    for _ in 0..rounds {
        let [next, sub] = split_two(&key);
        key = next;
        let keys = random_bits(&sub, x.shape(), 32);
        let sort = Sort { operands: 2, dimension: axis, num_keys: 1, is_stable: true };
        x = sort.apply(&[keys, x]).swap_remove(1);
    }
    x
}

/// A population to draw from: the numbers from 0 to `n`, or the entries of an array along an axis.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nothing to choose from",
    label = "neither a number nor an array",
    note = "a number `n`, for the numbers from 0 to `n`, or an array, for its entries: `choice(&key, 10, [3])`, `choice(&key, &x, [3])`"
)]
pub trait Population {
    /// The array, if it is one.
    fn array(&self) -> Option<&Array>;

    /// The number of entries along this axis.
    fn population(&self, axis: i32) -> Result<usize>;
}

impl Population for usize {
    fn array(&self) -> Option<&Array> {
        None
    }

    fn population(&self, _axis: i32) -> Result<usize> {
        Ok(*self)
    }
}

impl Population for i32 {
    fn array(&self) -> Option<&Array> {
        None
    }

    fn population(&self, _axis: i32) -> Result<usize> {
        Ok((*self).max(0) as usize)
    }
}

impl Population for Array {
    fn array(&self) -> Option<&Array> {
        Some(self)
    }

    fn population(&self, axis: i32) -> Result<usize> {
        (&self).population(axis)
    }
}

impl Population for &Array {
    fn array(&self) -> Option<&Array> {
        Some(self)
    }

    fn population(&self, axis: i32) -> Result<usize> {
        self.check()?;
        if self.ndim() == 0 {
            return Err(err!(
                Type,
                "choice draws from an array of one dimension or more, or from a number, got {}",
                self.type_name()
            )
            .help("pass the number itself as an integer, or an array with at least one dimension"));
        }
        Ok(self.shape()[normalize_axis(axis as isize, self.ndim())?])
    }
}

/// Draws entries from a population with equal probability, with replacement; see [`ChoiceOptions`].
///
/// `a` is a number (draws from 0 up to it, int32) or an array (draws entries along axis 0).
///
/// ```
/// # use shardax::prelude::*;
/// let dice = random::choice(&random::key(1), 6, [100]);
/// assert_eq!(dice.min(..).item::<i32>()?, 0);
/// assert_eq!(dice.max(..).item::<i32>()?, 5);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for an empty population.
#[track_caller]
pub fn choice(key: impl RandomKey, a: impl Population, shape: impl IntoShape) -> Array {
    ChoiceOptions::new().choice(key, a, shape)
}

/// Options of [`choice`](choice()).
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::random::ChoiceOptions;
/// let hand = ChoiceOptions::new().replace(false).choice(random::key(1), 52, [5]).to_vec::<i32>()?;
/// assert!(hand.iter().all(|card| (0..52).contains(card)));
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChoiceOptions {
    replace: bool,
    p: Option<Array>,
    axis: i32,
}

impl Default for ChoiceOptions {
    fn default() -> Self {
        ChoiceOptions { replace: true, p: None, axis: 0 }
    }
}

impl ChoiceOptions {
    /// Returns draws with replacement along the first axis, where every entry is equally probable.
    pub fn new() -> Self {
        ChoiceOptions::default()
    }

    /// Sets whether an entry can be drawn more than once. Default true.
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Sets the probability of each entry, floating point of shape `[n]`. Default uniform.
    pub fn p(mut self, p: impl Borrow<Array>) -> Self {
        self.p = Some(p.borrow().clone());
        self
    }

    /// Sets the axis of an array whose entries are drawn; negative axes count from the last. In the result, the drawn
    /// shape replaces this axis. Default 0.
    pub fn axis(mut self, axis: impl AxisNumber) -> Self {
        self.axis = axis.axis_number();
        self
    }

    /// See [`choice`](choice()).
    ///
    /// # Errors
    /// The result also carries an error for more draws than entries without replacement, for an axis that is out of bounds, and
    /// for a wrong number of probabilities.
    #[track_caller]
    pub fn choice(self, key: impl RandomKey, a: impl Population, shape: impl IntoShape) -> Array {
        or_failed(
            || a.array().cloned().unwrap_or_else(|| like([], DType::I32)),
            || self.draw(key.borrow(), &a, shape_of("choice", shape)?),
        )
    }

    fn draw(&self, key: &Array, a: &impl Population, shape: Shape) -> Result<Array> {
        check_key("choice", key)?;
        let n = a.population(self.axis)?;
        let (draws, replace) = (size(&shape), self.replace);
        if n == 0 && draws > 0 {
            return Err(err!(Value, "a must be greater than 0 unless no samples are taken")
                .help("draw from an array with at least one entry"));
        }
        if !replace && draws > n {
            return Err(err!(
                Value,
                "Cannot take a larger sample (size {draws}) than population (size {n}) when `replace` is false"
            )
            .help("draw fewer, or draw with replacement"));
        }
        let mut args = vec![key.clone()];
        if let Some(p) = &self.p {
            p.check()?;
            if p.shape() != [n] || p.dtype().category() != Category::Float {
                bail!(
                    Value,
                    "the probabilities must be a vector of {n} numbers, one for each entry, but got {}",
                    p.type_name()
                );
            }
            args.push(parameter(p));
        }
        let drawn = composite1("choice", (n, shape.clone(), replace), &args, |(n, shape, replace), args| {
            let p = args.get(1);
            Ok(vec![if *replace {
                draw_with_replacement(&args[0], *n, shape, p)?
            } else {
                draw_without_replacement(&args[0], *n, shape, p)?
            }])
        })?;
        let Some(a) = a.array() else { return Ok(drawn) };
        if n > 0 {
            return Ok(a.take(drawn, self.axis));
        }
        // With no draws there is no index to clamp.
        let axis = normalize_axis(self.axis as isize, a.ndim())?;
        let empty_shape = [&a.shape()[..axis], &shape, &a.shape()[axis + 1..]].concat();
        Ok(crate::ops::numpy::filled(&empty_shape, Scalar::Int(0), a.dtype()))
    }
}

fn draw_with_replacement(key: &Array, n: usize, shape: &[usize], p: Option<&Array>) -> Result<Array> {
    let Some(p) = p else {
        let dtype = DType::for_indices(&[n]);
        return Ok(randint_traced(key, shape, dtype, &integer(0, dtype), &integer(n as i128, dtype)));
    };
    let sums = p.cumsum(0);
    let u = unit_uniform(key, shape, p.dtype())?;
    let total = lax::reshape(&lax::slice_in_dim(&sums, n.saturating_sub(1), n, 0), &[]);
    Ok(sums.searchsorted(MUL.apply(&total, &SUB.apply(&float(1.0, p.dtype()), &u))))
}

fn draw_without_replacement(key: &Array, n: usize, shape: &[usize], p: Option<&Array>) -> Result<Array> {
    let draws = size(shape);
    let drawn = match p {
        None => lax::slice_in_dim(&permutation_traced(key, n), 0, draws, 0),
        // The largest log-probabilities with Gumbel noise are a sample without replacement.
        Some(p) => lax::top_k(&ADD.apply(&gumbel_traced(key, &[n], p.dtype())?, &p.log()), draws).1,
    };
    Ok(lax::reshape(&drawn, shape))
}
