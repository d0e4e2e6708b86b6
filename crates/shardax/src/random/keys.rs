//! Conversions between keys and their words.

use std::borrow::Borrow;

use crate::core::array::Array;
use crate::dtype::DType;
use crate::error::{AtCaller, Result, err};

/// The words of a key: uint32 of `[..., 2]`. A key is represented by its words, so this only checks it.
///
/// Fails unless it is a key.
///
/// ```
/// # use shardax::prelude::*;
/// let key = random::key(42);
/// let same = random::wrap_key_data(random::key_data(&key));
/// assert_eq!(same.to_vec::<u32>()?, key.to_vec::<u32>()?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn key_data(keys: impl Borrow<Array>) -> Array {
    let keys = keys.borrow();
    Array::from_result(keys.check().and_then(|()| is_key("key_data", keys)).map(|()| keys.clone()), keys)
}

/// The key with these words, uint32 of `[..., 2]`: the inverse of [`key_data`].
#[track_caller]
pub fn wrap_key_data(data: impl Borrow<Array>) -> Array {
    let data = data.borrow();
    Array::from_result(data.check().and_then(|()| is_key("wrap_key_data", data)).map(|()| data.clone()), data)
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
    keys.check().and_then(|()| is_key("key_impl", keys)).map(|()| "threefry2x32").at_caller()
}

fn is_key(name: &str, keys: &Array) -> Result<()> {
    if keys.dtype() == DType::U32 && keys.shape().last() == Some(&2) {
        return Ok(());
    }
    Err(err!(Type, "{name}: unexpected PRNG key type {}", keys.type_name())
        .help("keys are uint32 arrays of shape [..., 2], made by `random::key(seed)` or `random::split`"))
}
