//! Shardings of arrays.

use shardax_nn::prelude::*;

/// True if devices have parts of an array.
pub fn is_split(array: &Array) -> bool {
    array.sharding().is_ok_and(|sharding| !sharding.is_fully_replicated())
}
