//! Keys and their words.
//!
//! A sampler takes a typed key, or the words of one as JAX's older functions make it (a raw key); keys that are made of
//! a key are of its kind.

use std::borrow::Borrow;

use super::{made, word};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::error::{AtCaller, Result, err};
use crate::ops::lax;
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::random_key::{RandomUnwrap, RandomWrap};

/// The words of keys: uint32 of the keys' shape and a last dimension of 2. They can be printed, stored and computed with;
/// [`wrap_key_data`] makes keys of them. The words of a raw key ([`PRNGKey`](super::PRNGKey)) are the key itself.
///
/// Fails unless they are keys.
///
/// ```
/// # use shardax::prelude::*;
/// let keys = random::split(random::key(42), 2);
/// let words = random::key_data(&keys);
/// assert_eq!((words.shape(), words.dtype()), (&[2, 2][..], DType::U32));
/// assert!(random::wrap_key_data(&words).equal(&keys).all(..).item::<bool>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn key_data(keys: impl Borrow<Array>) -> Array {
    let keys = keys.borrow();
    let data = || {
        check_keys("key_data", keys)?;
        if !keys.dtype().is_key() {
            return Ok(keys.clone());
        }
        composite1("key_data", (), std::slice::from_ref(keys), |(), args| {
            let [first, second] = words(&args[0]);
            Ok(vec![pairs(&first, &second)])
        })
    };
    made(data, || keys.clone())
}

/// The keys with these words, uint32 of `[..., 2]`, as an array of the leading dimensions: the inverse of [`key_data`].
///
/// Fails for words of another dtype or shape.
///
/// ```
/// # use shardax::prelude::*;
/// let key = random::wrap_key_data(array([0u32, 42]));
/// assert!(key.equal(random::key(42)).item::<bool>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn wrap_key_data(data: impl Borrow<Array>) -> Array {
    let data = data.borrow();
    let wrapped = || {
        data.check()?;
        if !is_raw(data) {
            return Err(err!(Type, "wrap_key_data: invalid PRNG key data of type {}", data.type_name())
                .help("the words of keys are a uint32 array of shape [..., 2], as `random::key_data` gives them"));
        }
        composite1("wrap_key_data", (), std::slice::from_ref(data), |(), args| {
            let [first, second] = words(&args[0]);
            Ok(vec![RandomWrap.apply(&first, &second)])
        })
    };
    made(wrapped, || data.clone())
}

/// The name of the generator of a key: `threefry2x32`, the only one.
///
/// Fails unless it is a key.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(random::key_impl(random::key(0))?, "threefry2x32");
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn key_impl(keys: impl Borrow<Array>) -> Result<&'static str> {
    let keys = keys.borrow();
    check_keys("key_impl", keys).map(|()| "threefry2x32").at_caller()
}

/// A key with the same words (JAX's `random.clone`), for programs that use one key twice on purpose.
///
/// Fails unless it is a key.
///
/// ```
/// # use shardax::prelude::*;
/// let key = random::key(7);
/// assert!(random::clone(&key).equal(&key).item::<bool>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn clone(keys: impl Borrow<Array>) -> Array {
    let keys = keys.borrow();
    made(|| check_keys("clone", keys).map(|()| keys.clone()), || keys.clone())
}

/// Returns `true` for the words of keys.
fn is_raw(keys: &Array) -> bool {
    keys.dtype() == DType::U32 && keys.shape().last() == Some(&2)
}

fn check_keys(name: &str, keys: &Array) -> Result<()> {
    keys.check()?;
    if keys.dtype().is_key() || is_raw(keys) {
        return Ok(());
    }
    Err(err!(Type, "{name}: unexpected PRNG key type {}", keys.type_name()).help(
        "keys are made by `random::key(seed)` or `random::split`, or of their words, uint32 of shape [..., 2], by `random::wrap_key_data`",
    ))
}

/// Fails unless `key` is one key.
pub(super) fn check_key(name: &str, key: &Array) -> Result<()> {
    check_keys(name, key)?;
    let shape = match key.dtype().is_key() {
        true => key.shape(),
        false => &key.shape()[..key.ndim() - 1],
    };
    if shape.is_empty() {
        return Ok(());
    }
    Err(err!(Value, "{name} accepts a single key, but was given a key array of shape {shape:?}")
        .help("use `vmap` for batching, or take one key with `keys.get(i)`"))
}

/// The words of keys, two arrays of their shape.
pub(super) fn words(keys: &Array) -> [Array; 2] {
    if keys.dtype().is_key() {
        let mut out = RandomUnwrap.apply(keys);
        return match (out.pop(), out.pop()) {
            (Some(second), Some(first)) => [first, second],
            // It has two results.
            _ => [word(0), word(0)],
        };
    }
    let (lead, last) = (&keys.shape()[..keys.ndim() - 1], keys.ndim() - 1);
    [0, 1].map(|i| lax::reshape(&lax::slice_in_dim(keys, i, i + 1, last), lead))
}

/// The keys of these words, typed or raw.
pub(super) fn of_words(kind: DType, first: &Array, second: &Array) -> Array {
    if kind.is_key() { RandomWrap.apply(first, second) } else { pairs(first, second) }
}

/// Key `i` of an array of keys.
pub(super) fn key_at(keys: &Array, i: usize) -> Array {
    lax::reshape(&lax::slice_in_dim(keys, i, i + 1, 0), &keys.shape()[1..])
}

/// Stacks two arrays along a new last dimension.
fn pairs(first: &Array, second: &Array) -> Array {
    let last = first.ndim() as i32;
    lax::concatenate(&[first.expand_dims(last), second.expand_dims(last)], first.ndim())
}
