//! Random numbers that are equal to JAX's bit for bit. A key is split, never advanced.
//!
//! A key is a scalar of dtype `key<fry>`; `split` makes an array of `n` keys. Every function is a pure function of its key:
//! use each key once, and split it for more. Values do not depend on how arrays are sharded. [`PrngImpl`] names the
//! algorithms of keys.
//!
//! You can index, stack, shard, map over and select arrays of keys, and compare them for equality. Keys are not numbers, so
//! arithmetic on them is an error. [`key_data`] returns the words of keys (two uint32 per key) and [`wrap_key_data`] converts words
//! to keys. Every function also accepts words as a key, because JAX's older programs use them ([`PRNGKey`]).
//!
//! Functions named `_dtype` have all parameters of JAX's function of that name; the others use its defaults.
//!
//! ```
//! # use shardax::prelude::*;
//! let key = random::key(42);
//! let x = random::normal(&key, [2]);
//! assert!((x.to_vec::<f32>()?[1] - 0.46713185).abs() < 1e-6);
//! # Ok::<(), shardax::Error>(())
//! ```

mod approximate;
mod bits;
mod continuous;
mod counts;
mod derived;
mod discrete;
mod gamma;
mod keys;
mod parameters;
mod prng;

pub use approximate::*;
pub use continuous::*;
pub use counts::*;
pub use derived::*;
pub use discrete::*;
pub use gamma::*;
pub use keys::{RandomKey, clone, key_data, key_impl, wrap_key_data};
pub use prng::PrngImpl;

use keys::{Kind, check_key, join_pairs, key_at, pairs};

use crate::core::array::{Array, Repr};
use crate::core::primitive::Outputs;
use crate::core::program::trace::at_caller;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, bail, err};
use crate::ops::numpy::{IntoShape, where_};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::threefry::Threefry2x32;
use crate::shape::Shape;

/// Creates a key from the low 32 bits of a seed (negative seeds wrap).
///
/// A function draws the same numbers each time you pass it the same key. Therefore you must use each key only once, and
/// derive new keys with [`split`] or [`fold_in`].
///
/// ```
/// # use shardax::prelude::*;
/// let key = random::key(42);
/// assert_eq!(key.type_name(), "key<fry>[]");
/// assert_eq!(random::key_data(&key).to_vec::<u32>()?, [0, 42]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for a seed that is not an integer scalar.
#[track_caller]
pub fn key(seed: impl ArrayLike) -> Array {
    PrngImpl::default_of_process().key(seed)
}

/// Returns the words of a [`key`], uint32 of shape `[2]`: a raw key, as JAX's older programs use it. Every function
/// accepts a raw key like a typed key, and derives raw keys from it. You should prefer [`key`], because nothing
/// distinguishes a raw key from numbers.
///
/// ```
/// # use shardax::prelude::*;
/// let raw = random::PRNGKey(42);
/// assert_eq!(raw.to_vec::<u32>()?, [0, 42]);
/// assert_eq!(random::split(&raw, 3).type_name(), "uint32[3,2]");
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries the errors of [`key`].
#[allow(non_snake_case)]
#[track_caller]
pub fn PRNGKey(seed: impl ArrayLike) -> Array {
    PrngImpl::default_of_process().raw_key(seed)
}

/// The key of a seed, typed or raw.
fn seeded(seed: &Array, kind: Kind) -> Result<Array> {
    seed.check()?;
    if seed.ndim() != 0 || !seed.dtype().is_integer() {
        return Err(err!(Type, "PRNG key seed must be an integer scalar; got {}", seed.type_name())
            .help("convert it with `as i32`, or `astype(DType::I32)`"));
    }
    if let Repr::Literal(l) = &seed.0 {
        let seed = l.value.to_i128() as u32;
        return match kind {
            Kind::Typed(prng) => Array::from_bytes(&(u64::from(seed) << 32).to_ne_bytes(), prng.dtype(), &[]),
            Kind::Raw(prng) => Array::from_slice(&[0, seed].repeat(prng.words() / 2), &[prng.words()]),
        };
    }
    composite1("key", kind, std::slice::from_ref(seed), |kind, args| {
        Ok(vec![join_pairs(*kind, &[[word(0), args[0].astype(DType::U32)]])])
    })
}

/// Splits a key into an array of `num` new keys (or of a shape). [`split_n`] returns them one by one:
/// `let [a, b] = random::split_n(&key);`.
///
/// ```
/// # use shardax::prelude::*;
/// let keys = random::split(&random::key(42), 2);
/// assert_eq!(keys.shape(), [2]);
/// assert_eq!(random::key_data(&keys).to_vec::<u32>()?, [1832780943, 270669613, 64467757, 2916123636]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn split(key: impl RandomKey, num: impl IntoShape) -> Array {
    let key = key.borrow();
    or_failed(
        || key.clone(),
        || {
            let shape = shape_of("split", num)?;
            check_key("split", key)?;
            composite1("split", shape, std::slice::from_ref(key), |shape, args| Ok(vec![split_traced(&args[0], shape)]))
        },
    )
}

/// Splits a key into `N` new keys, as separate arrays: the rows of [`split`].
///
/// ```
/// # use shardax::prelude::*;
/// let [params, dropout] = random::split_n(random::key(42));
/// assert_eq!(random::key_data(params).to_vec::<u32>()?, [1832780943, 270669613]);
/// assert_eq!(random::split_n::<5>(&dropout).len(), 5);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn split_n<const N: usize>(key: impl RandomKey) -> [Array; N] {
    let keys = split(key, N);
    std::array::from_fn(|i| keys.get(i))
}

/// Derives a new key from a key and a 32-bit number.
///
/// Use it to derive the key of each step of a loop from the number of the step, so that you do not have to carry a key.
///
/// ```
/// # use shardax::prelude::*;
/// let key = random::fold_in(&random::key(42), 5);
/// assert_eq!(random::key_data(key).to_vec::<u32>()?, [2765691542, 824333390]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for a negative number, or one that is not an integer scalar.
#[track_caller]
pub fn fold_in(key: impl RandomKey, data: impl ArrayLike) -> Array {
    let key = key.borrow();
    let data = data.into_array();
    or_failed(
        || key.clone(),
        || {
            check_key("fold_in", key)?;
            data.check()?;
            if data.ndim() != 0 || !data.dtype().is_integer() {
                return Err(err!(Type, "fold_in accepts an integer scalar, but was given {}", data.type_name())
                    .help("convert it with `astype(DType::U32)`; use `vmap` for several"));
            }
            if let Repr::Literal(l) = &data.0
                && !(0..1i128 << 32).contains(&l.value.to_i128())
            {
                return Err(err!(
                    Value,
                    "fold_in requires a number of 32 bits, got {} (OverflowError)",
                    l.value.to_i128()
                )
                .help("fold in a number from 0 to 4294967295"));
            }
            // A key of two Threefry keys folds the number into both.
            let data = data.astype(DType::U32);
            composite1("fold_in", (), &[key.clone(), data], |(), args| {
                let (key, data) = (&args[0], &args[1]);
                let folded: Vec<_> = pairs(key)
                    .into_iter()
                    .map(|[k0, k1]| pair(Threefry2x32.apply(&[k0, k1, word(0), data.clone()])))
                    .collect();
                Ok(vec![join_pairs(Kind::of(key), &folded)])
            })
        },
    )
}

/// Draws uniformly random bits, as unsigned integers of 32 bits.
#[track_caller]
pub fn bits(key: impl RandomKey, shape: impl IntoShape) -> Array {
    let key = key.borrow();
    bits_dtype(key, shape, DType::U32)
}

/// Draws uniformly random bits, as unsigned integers of a dtype.
///
/// # Errors
/// The result carries an error for any other dtype.
#[track_caller]
pub fn bits_dtype(key: impl RandomKey, shape: impl IntoShape, dtype: DType) -> Array {
    let key = key.borrow();
    sample("bits", key, shape, dtype, |shape| {
        if !dtype.is_integer() || dtype.is_signed() || dtype.is_narrow() {
            bail!(Type, "dtype argument to `bits` must be an unsigned int dtype of 8 bits or more, got {dtype}");
        }
        composite1("bits", (shape, dtype), std::slice::from_ref(key), |(shape, dtype), args| {
            Ok(vec![bits::random_bits(&args[0], shape, dtype.bits())])
        })
    })
}

/// Converts a shape argument.
fn shape_of(name: &str, shape: impl IntoShape) -> Result<Shape> {
    let dims = shape.into_dims();
    if let Some(d) = dims.iter().find(|d| **d < 0) {
        return Err(err!(
            Value,
            "Shapes must be 1D sequences of sizes that are not negative, got {d} in {:?} for {name}",
            dims.as_slice()
        )
        .help("pass the shape that the result should have"));
    }
    Ok(dims.iter().map(|&d| d as usize).collect())
}

/// An array that carries the type of a failed sampler's result.
fn like(shape: impl AsRef<[usize]>, dtype: DType) -> Array {
    let aval = crate::core::program::Aval::new(dtype, Shape::from_slice(shape.as_ref()));
    Array::failed(err!(Runtime, "the sampler failed"), aval)
}

/// Runs `f` with the caller's source line. An error becomes an array that carries it, of the type of `like`.
#[track_caller]
fn or_failed(like: impl FnOnce() -> Array, f: impl FnOnce() -> Result<Array>) -> Array {
    match at_caller(f) {
        Ok(array) => array,
        Err(e) => Array::from_result(Err(e), &like()),
    }
}

/// Checks a key and a shape, then runs `f`. An error becomes an array of that shape that carries it.
#[track_caller]
fn sample(
    name: &str,
    key: &Array,
    shape: impl IntoShape,
    dtype: DType,
    f: impl FnOnce(Shape) -> Result<Array>,
) -> Array {
    match shape_of(name, shape) {
        Ok(shape) => or_failed(|| like(shape.clone(), dtype), || check_key(name, key).and_then(|()| f(shape.clone()))),
        Err(e) => Array::from_result(Err(e), &like(Shape::new(), dtype)),
    }
}

/// A uint32 literal.
fn word(v: u32) -> Array {
    Array::literal(Scalar::Int(v as i128), DType::U32, false)
}

/// Zeros with the shape and dtype of `like` that vary over the manual mesh axes of `key` and `like`. Loops start with them, because
/// the type of a loop's carry must not change.
fn zero_of(key: &Array, like: &Array) -> Array {
    let [word, _] = &pairs(key)[0];
    let [like_zero, key_zero] = [like, word].map(|x| where_(x.equal(x), 0, 0).astype(like.dtype()));
    like_zero + key_zero
}

fn split_traced(key: &Array, shape: &[usize]) -> Array {
    let words: Vec<_> = pairs(key).into_iter().map(|pair| bits::blocks(pair, shape)).collect();
    join_pairs(Kind::of(key), &words)
}

/// The two results of the cipher.
fn pair(mut out: Outputs) -> [Array; 2] {
    match (out.pop(), out.pop()) {
        (Some(second), Some(first)) => [first, second],
        _ => [word(0), word(0)],
    }
}

/// Splits a key into two.
fn split_two(key: &Array) -> [Array; 2] {
    let keys = split_traced(key, &[2]);
    [0, 1].map(|i| key_at(&keys, i))
}
