//! Parts of layers with a state: convolutions over the last positions, and positions before the start of a text.

use shardax_nn::prelude::*;

/// Applies a layer that takes `[batch, length, features]` to `x`, `[..., length, features]`.
#[track_caller]
pub(super) fn in_rows(layer: &str, x: Array, run: impl FnOnce(Array) -> Array) -> Array {
    let [batch @ .., length, features] = x.shape() else { return rank_error(layer, &x) };
    let rows = [batch.iter().product(), *length, *features];
    run(x.reshape(rows)).reshape(x.shape())
}

/// The result of a layer for an array without a dimension of positions.
#[track_caller]
pub(super) fn rank_error(layer: &str, x: &Array) -> Array {
    if x.check().is_err() {
        return x.clone();
    }
    let message = format!("{layer} requires an array of [batch, length, features], got {}", x.type_name());
    let help = "add the missing dimensions with `expand_dims`, or reshape the array";
    Array::from_error(Error::new(ErrorKind::Value, message).help(help), x)
}

/// The sum of the last positions, each multiplied by its factors.
///
/// `inputs` are `[batch, width - 1 + length, ...]`, with the positions before the first one, and `taps` are `[width, ...]`.
pub(super) fn convolve(inputs: &Array, taps: &Array, length: usize) -> Array {
    let width = taps.shape().first().copied().unwrap_or(0);
    let products = (0..width).map(|tap| inputs.get((.., tap..tap + length)) * taps.get(tap));
    products.reduce(|sum, product| sum + product).unwrap_or_else(|| inputs.clone())
}

/// Returns which of the `new` positions belong to their text, `[batch, new]`.
///
/// `index` is the number of positions in the cache, and `mask` the mask of all positions, `[batch, heads, length, length of the
/// cache]`.
pub(super) fn seen_positions(mask: &Array, index: &Array, new: usize) -> Array {
    let places = index + arange(0..new as i32);
    mask.get((.., 0, 0)).take(places, -1).astype(DType::Bool)
}

/// Sets the positions of `x`, `[batch, length, ...]`, that do not belong to their text to zero.
pub(super) fn zero_unseen(x: Array, seen: Option<&Array>) -> Array {
    let Some(seen) = seen else { return x };
    let seen = (2..x.ndim()).fold(seen.clone(), |seen, _| seen.expand_dims(-1));
    where_(seen, &x, 0.0)
}
