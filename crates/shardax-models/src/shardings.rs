//! Shardings of activations over mesh axes of type `Explicit`.

use shardax::sharding::{DimSpec, Typed};
use shardax_nn::prelude::*;

/// Gathers the positions of `x`, `[..., length, features]`, for layers that compute them sequentially.
pub(crate) fn gather_positions(x: Array) -> Array {
    gather_dim(x, 2)
}

/// Gathers the positions of a mask, `[batch, length]`.
pub(crate) fn gather_mask(mask: Array) -> Array {
    gather_dim(mask, 1)
}

/// Gathers the last dimension, for functions of all heads.
pub(crate) fn gather_last(x: Array) -> Array {
    gather_dim(x, 1)
}

/// Returns the features of the first token, `[batch, features]`, of `x`, `[batch, length, features]`.
pub(crate) fn first_token(x: Array) -> Array {
    gather_positions(x).get((.., 0))
}

/// Returns the products of all rows of `a` and `b`, `[rows of a, rows of b]`. A mesh axis cannot split both dimensions of the result, so
/// that the rows of `b` are gathered if the rows of `a` are split.
pub(crate) fn products_of_rows(a: &Array, b: Array) -> Array {
    let aval = a.aval();
    let is_split = aval.sharding().is_some_and(|typed| !matches!(typed.dims().first(), None | Some(DimSpec::None)));
    let b = if is_split { gather_dim(b, 2) } else { b };
    einsum("af,bf->ab", &[a, &b])
}

/// Returns the number of parts into which devices split the last dimension.
pub(crate) fn parts_of_last(x: &Array) -> usize {
    let aval = x.aval();
    let Some(typed) = aval.sharding().filter(|_| x.check().is_ok()) else { return 1 };
    let axes = typed.dims().last().map_or(&[][..], DimSpec::axes);
    axes.iter().filter_map(|axis| typed.mesh().axis_size(*axis)).product::<usize>().max(1)
}

/// Gathers the dimension `from_end`, counted from the last one, which is 1. Arrays without a typed sharding are
/// returned unchanged.
fn gather_dim(x: Array, from_end: usize) -> Array {
    let aval = x.aval();
    let Some(typed) = aval.sharding().filter(|typed| x.check().is_ok() && typed.rank() >= from_end) else { return x };
    let mut dims = typed.dims().to_vec();
    dims[typed.rank() - from_end] = DimSpec::None;
    reshard(x, Typed::from_spec(typed.mesh(), &PartitionSpec::new(dims), typed.rank()))
}

/// Shards `x` like `like`, which must have the same dimensions. Dimensions of size 1 stay replicated, because they
/// cannot be split.
pub(crate) fn reshard_like(x: Array, like: &Array) -> Array {
    let aval = like.aval();
    let Some(typed) = aval.sharding().filter(|typed| typed.rank() == x.ndim() && x.check().is_ok()) else { return x };
    let dims = typed.dims().iter().zip(x.shape());
    let dims: Vec<DimSpec> = dims.map(|(dim, size)| if *size == 1 { DimSpec::None } else { dim.clone() }).collect();
    reshard(x, Typed::from_spec(typed.mesh(), &PartitionSpec::new(dims), typed.rank()))
}

/// Looks up rows of a replicated table. The result is sharded like the indices.
pub(crate) fn rows_at(table: &Array, indices: &Array) -> Array {
    let aval = indices.aval();
    match aval.sharding().filter(|typed| indices.check().is_ok() && !typed.is_replicated()) {
        Some(typed) => table.at(indices).out_sharding(PartitionSpec::new(typed.dims().to_vec())).get(),
        None => table.take(indices, 0),
    }
}
