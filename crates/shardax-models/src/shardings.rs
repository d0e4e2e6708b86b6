//! Shardings of activations over mesh axes of type `Explicit`.

use shardax::sharding::{DimSpec, Typed};
use shardax_nn::prelude::*;

/// Gathers the positions of `x`, `[..., length, features]`, for layers that compute them one after the other.
pub(crate) fn gather_positions(x: Array) -> Array {
    gather_dim(x, 2)
}

/// Gathers a mask of texts, `[batch, length]`.
pub(crate) fn gather_mask(mask: Array) -> Array {
    gather_dim(mask, 1)
}

/// The features of the first token, `[batch, features]`, of `[batch, length, features]`.
pub(crate) fn first_token(x: Array) -> Array {
    gather_positions(x).get((.., 0))
}

/// Gathers a dimension, which is counted from the end.
fn gather_dim(x: Array, from_end: usize) -> Array {
    let aval = x.aval();
    let Some(typed) = aval.sharding().filter(|typed| x.check().is_ok() && typed.rank() >= from_end) else { return x };
    let mut dims = typed.dims().to_vec();
    dims[typed.rank() - from_end] = DimSpec::None;
    reshard(x, Typed::from_spec(typed.mesh(), &PartitionSpec::new(dims), typed.rank()))
}

/// Shards `x` like `like`, in whose type the dimensions have the same meaning. A dimension of size 1 is not split.
pub(crate) fn reshard_like(x: Array, like: &Array) -> Array {
    let aval = like.aval();
    let Some(typed) = aval.sharding().filter(|typed| typed.rank() == x.ndim() && x.check().is_ok()) else { return x };
    let split = typed.dims().iter().zip(x.shape());
    let dims: Vec<DimSpec> = split.map(|(dim, size)| if *size == 1 { DimSpec::None } else { dim.clone() }).collect();
    reshard(x, Typed::from_spec(typed.mesh(), &PartitionSpec::new(dims), typed.rank()))
}

/// The rows of a replicated table at these places, which are split like the places.
pub(crate) fn rows_at(table: &Array, places: &Array) -> Array {
    let aval = places.aval();
    match aval.sharding().filter(|typed| places.check().is_ok() && !typed.is_replicated()) {
        Some(typed) => table.at(places).out_sharding(PartitionSpec::new(typed.dims().to_vec())).get(),
        None => table.take(places, 0),
    }
}
