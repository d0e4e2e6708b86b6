//! Keys and their words.
//!
//! A sampler requires a typed key, or the words of a key, as JAX's older functions create it (a raw key). Keys that are
//! derived from a key have the same kind. A key is one Threefry key (two words) or, for `rbg`, two of them, which are equal in
//! typed keys.

use std::borrow::Borrow;

use smallvec::{SmallVec, smallvec};

use super::prng::PrngImpl;
use super::{like, or_failed};
use crate::core::array::{Array, Repr};
use crate::dtype::DType;
use crate::error::{AtCaller, Result, err};
use crate::ops::lax;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::random_key::{RandomUnwrap, RandomWrap};

/// A key of random numbers, or an array of keys, as a value or a reference.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key of random numbers",
    label = "not a key",
    note = "random functions take a key first: `random::normal(&key, [2, 3])`",
    note = "a key is created from a seed by `random::key(0)`, and further keys by `random::split(&key, 2)`"
)]
pub trait RandomKey: Borrow<Array> {}

impl RandomKey for Array {}
impl RandomKey for &Array {}

/// Returns the words of keys: a uint32 array with the keys' shape and a last dimension of 2, or of 4 for keys of `rbg`.
///
/// You can print, store and compute with the words, and turn them into keys again with [`wrap_key_data`]. The words of
/// a raw key ([`PRNGKey`](super::PRNGKey)) are the key itself.
///
/// ```
/// # use shardax::prelude::*;
/// let keys = random::split(random::key(42), 2);
/// let words = random::key_data(&keys);
/// assert_eq!((words.shape(), words.dtype()), (&[2, 2][..], DType::U32));
/// assert!(random::wrap_key_data(&words).equal(&keys).all(..).item::<bool>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if `keys` is not an array of keys.
#[track_caller]
pub fn key_data(keys: impl RandomKey) -> Array {
    let keys = keys.borrow();
    or_failed(
        || keys.clone(),
        || {
            check_keys("key_data", keys)?;
            if !keys.dtype().is_key() {
                return Ok(keys.clone());
            }
            composite1("key_data", (), std::slice::from_ref(keys), |(), args| {
                let kind = Kind::of(&args[0]);
                Ok(vec![join_pairs(Kind::Raw(kind.prng()), &pairs(&args[0]))])
            })
        },
    )
}

/// Creates Threefry keys with these words, which are uint32 of shape `[..., 2]`. The result has the leading dimensions.
/// It is the inverse of [`key_data`]; for another algorithm, use
/// [`PrngImpl::wrap_key_data`](super::PrngImpl::wrap_key_data).
///
/// ```
/// # use shardax::prelude::*;
/// let key = random::wrap_key_data(array([0u32, 42]));
/// assert!(key.equal(random::key(42)).item::<bool>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for words of another dtype or shape.
#[track_caller]
pub fn wrap_key_data(data: impl Borrow<Array>) -> Array {
    PrngImpl::Threefry2x32.wrap_key_data(data)
}

/// Checks that `data` has the words of keys of this algorithm, and that typed keys can represent them.
pub(super) fn check_data(prng: PrngImpl, data: &Array) -> Result<()> {
    data.check()?;
    let n = prng.words();
    if data.dtype() != DType::U32 || data.shape().last() != Some(&n) {
        return Err(err!(Type, "wrap_key_data: invalid PRNG key data of type {}", data.type_name()).help(format!(
            "the words of keys of {prng} are a uint32 array of shape [..., {n}], as `random::key_data` returns them"
        )));
    }
    if prng == PrngImpl::Threefry2x32 {
        return Ok(());
    }
    let raw = "the functions of `random` also accept the words themselves, as raw keys";
    if matches!(data.0, Repr::Traced(_)) {
        return Err(
            err!(NotImplemented, "wrap_key_data cannot check the words of {prng} while a function is traced").help(raw)
        );
    }
    match data.to_vec::<u32>()?.chunks_exact(n).find(|words| words[..2] != words[2..]) {
        Some(words) => {
            Err(err!(NotImplemented, "wrap_key_data: the words {words:?} of {prng} are not twice the same two")
                .help(raw))
        }
        None => Ok(()),
    }
}

/// The typed keys of words that passed [`check_data`].
pub(super) fn wrapped(prng: PrngImpl, data: &Array) -> Result<Array> {
    composite1("wrap_key_data", prng, std::slice::from_ref(data), |prng, args| {
        Ok(vec![join_pairs(Kind::Typed(*prng), &pairs(&args[0]))])
    })
}

/// Returns the name of the algorithm of a key: `threefry2x32` or `rbg`.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(random::key_impl(random::key(0))?, "threefry2x32");
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `keys` is not an array of keys.
#[track_caller]
pub fn key_impl(keys: impl RandomKey) -> Result<&'static str> {
    let keys = keys.borrow();
    check_keys("key_impl", keys).map(|()| Kind::of(keys).prng().name()).at_caller()
}

/// Returns a key with the same words (JAX's `random.clone`), for programs that use one key twice on purpose.
///
/// ```
/// # use shardax::prelude::*;
/// let key = random::key(7);
/// assert!(random::clone(&key).equal(&key).item::<bool>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if `keys` is not an array of keys.
#[track_caller]
pub fn clone(keys: impl RandomKey) -> Array {
    let keys = keys.borrow();
    or_failed(|| keys.clone(), || check_keys("clone", keys).map(|()| keys.clone()))
}

/// The algorithm and the form of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Keys with a key dtype.
    Typed(PrngImpl),
    /// The words of keys, in a last dimension.
    Raw(PrngImpl),
}

impl Kind {
    /// Returns the kind of `keys`, which must have passed [`check_keys`].
    pub fn of(keys: &Array) -> Kind {
        match PrngImpl::of(keys.dtype()) {
            Some(prng) => Kind::Typed(prng),
            None if keys.shape().last() == Some(&4) => Kind::Raw(PrngImpl::Rbg),
            None => Kind::Raw(PrngImpl::Threefry2x32),
        }
    }

    pub fn prng(self) -> PrngImpl {
        let (Kind::Typed(prng) | Kind::Raw(prng)) = self;
        prng
    }

    /// An array that carries the type of a failed key.
    pub fn failed(self) -> Array {
        match self {
            Kind::Typed(prng) => like([], prng.dtype()),
            Kind::Raw(prng) => like([prng.words()], DType::U32),
        }
    }
}

/// Returns `true` for the words of keys.
fn is_raw(keys: &Array) -> bool {
    keys.dtype() == DType::U32 && matches!(keys.shape().last(), Some(2 | 4))
}

fn check_keys(name: &str, keys: &Array) -> Result<()> {
    keys.check()?;
    if keys.dtype().is_key() || is_raw(keys) {
        return Ok(());
    }
    Err(err!(Type, "{name}: unexpected PRNG key type {}", keys.type_name()).help(
        "create keys with `random::key(seed)` or `random::split`, or from their words (uint32 of shape [..., 2]) with `random::wrap_key_data`",
    ))
}

/// Fails unless `key` is one key.
pub(super) fn check_key(name: &str, key: &Array) -> Result<()> {
    check_keys(name, key)?;
    let shape = if key.dtype().is_key() { key.shape() } else { &key.shape()[..key.ndim() - 1] };
    if shape.is_empty() {
        return Ok(());
    }
    Err(err!(Value, "{name} accepts a single key, but was given a key array of shape {shape:?}")
        .help("use `vmap` for batching, or select one key with `keys.get(i)`"))
}

/// The words of keys, in pairs. Each word is an array with the shape of the keys.
pub(super) fn pairs(keys: &Array) -> SmallVec<[[Array; 2]; 2]> {
    if keys.dtype().is_key() {
        let out = RandomUnwrap.apply(keys);
        return smallvec![[out[0].clone(), out[1].clone()]];
    }
    // Keys that failed have no dimensions, and their error is passed on.
    let Some(last) = keys.ndim().checked_sub(1) else { return smallvec![[keys.clone(), keys.clone()]] };
    let lead = &keys.shape()[..last];
    let words = (0..keys.shape()[last]).map(|i| lax::reshape(&lax::slice_in_dim(keys, i, i + 1, last), lead));
    words.collect::<Vec<_>>().chunks_exact(2).map(|pair| [pair[0].clone(), pair[1].clone()]).collect()
}

/// Keys with these words. Raw keys of `rbg` use a single pair twice.
pub(super) fn join_pairs(kind: Kind, pairs: &[[Array; 2]]) -> Array {
    let [high, low] = &pairs[0];
    let prng = match kind {
        Kind::Typed(prng) => return RandomWrap { dtype: prng.dtype() }.apply(high, low),
        Kind::Raw(prng) => prng,
    };
    let word_axis = high.ndim();
    let words: Vec<Array> =
        pairs.iter().flatten().cycle().take(prng.words()).map(|w| w.expand_dims(word_axis as i32)).collect();
    lax::concatenate(&words, word_axis)
}

/// Key `i` of an array of keys. Keys that failed have no dimensions, and their error is passed on.
pub(super) fn key_at(keys: &Array, i: usize) -> Array {
    lax::reshape(&lax::slice_in_dim(keys, i, i + 1, 0), keys.shape().get(1..).unwrap_or_default())
}
