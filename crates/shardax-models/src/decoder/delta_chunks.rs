//! The gated delta rule over chunks of positions.
//!
//! At each position `t` the state is multiplied by `keep_rate[t]`, and the value that it returns for the key is corrected:
//!
//! ```text
//! change[t] = write_rate[t] * (value[t] - keep_rate[t] * state[t - 1]^T key[t])
//! state[t]  = keep_rate[t] * state[t - 1] + key[t] change[t]^T
//! y[t]      = state[t]^T query[t]
//! ```
//!
//! Within a chunk, `state[t]` is a sum over the changes before `t`. Therefore the changes solve a triangular system whose
//! matrix does not depend on the state. All systems are solved at once, before a loop over chunks that only has matmuls
//! ([Yang et al. 2024](https://arxiv.org/abs/2406.06484)).
//!
//! `keep_rate[t]` is a number, or a number for each feature of a key. In the second case the decay between two positions
//! differs between features, so it is a part of each product of a query and a key, or of two keys.

use shardax_nn::prelude::*;

/// The number of positions in a chunk. In larger chunks the triangular systems take more time, and the loop over chunks less.
pub(super) const CHUNK: usize = 32;

/// The number of positions in a chunk if each feature has a rate of keeping. Then the products within a chunk need an exponential
/// for each pair of positions and each feature.
const CHANNEL_CHUNK: usize = 16;

/// Returns the state after all positions, and the results `[batch, length, heads, features of values]`. Queries, keys and values
/// are `[batch, length, heads, features]`; the rates of writing are `[batch, length, heads]`, and the logarithms of the rates of
/// keeping too, or `[batch, length, heads, features of keys]`.
pub(super) fn scan_chunks(state: Array, inputs: [Array; 5]) -> Result<(Array, Array)> {
    let length = inputs[0].shape()[1];
    if length == 1 {
        let (state, y) = update_state(state, inputs.map(|x| x.squeeze(1)));
        return Ok((state, y.expand_dims(1)));
    }
    let has_channels = inputs[4].ndim() == 4;
    let chunk = length.next_power_of_two().min(if has_channels { CHANNEL_CHUNK } else { CHUNK });
    let count = length.div_ceil(chunk);
    // Padding does not change the state, because its rates of writing and its logarithms are zeros.
    let [query, key, value, write_rate, log_keep_rate] = inputs.map(|x| split(&x, count, chunk));

    let [products, scores, log_decay] = if has_channels {
        let log_decay = log_keep_rate.cumsum(-2);
        let (scores, products) = decayed_products(&query, &key, &log_decay)?;
        [products, scores, log_decay]
    } else {
        let log_decay = log_keep_rate.cumsum(-1);
        let between = decay_between(&log_decay, chunk);
        let [products, scores] = [&key, &query].map(|x| einsum("nbhtk,nbhsk->nbhts", &[x, &key]) * &between);
        [products, scores, log_decay.expand_dims(-1)]
    };
    let decay = log_decay.exp();

    // Solve for the changes: `values - keys state`, where `state` is the state before the chunk.
    let write_rate = write_rate.expand_dims(-1);
    let solution = unit_lower_inverse(&(products * &write_rate), chunk);
    let values = einsum("nbhts,nbhsv->nbhtv", &[&solution, &(&value * &write_rate)]);
    let keys = einsum("nbhts,nbhsk->nbhtk", &[&solution, &(&key * &write_rate * &decay)]);

    // The results read the changes of earlier positions in the chunk by `scores`, and the state before the chunk.
    let queries = query * &decay;
    // At the end of the chunk, changes have decayed since their position, and the state since the start.
    let log_chunk_decay = log_decay.get((Ellipsis, chunk - 1.., ..));
    let remaining_keys = key * (&log_chunk_decay - &log_decay).exp();
    let chunk_decay = log_chunk_decay.exp().swapaxes(-1, -2);
    let (state, y) = scan(chunk_step, state, [values, keys, scores, queries, remaining_keys, chunk_decay])?;
    Ok((state, join(&y, length)))
}

/// Multiplies queries and keys by keys, all `[chunks, ..., positions, features]`, to two arrays `[chunks, ..., positions,
/// positions]`. Each feature decays between the two positions. `log_decay` has the logarithms of the decay since the start of the
/// chunk.
///
/// The exponentials are not factors of both sides, because they could overflow separately. They have a number for each pair of
/// positions and each feature, so they are computed for one chunk at a time, and again for the gradient.
fn decayed_products(query: &Array, key: &Array, log_decay: &Array) -> Result<(Array, Array)> {
    fn step(_: (), inputs: [Array; 3]) -> Result<((), (Array, Array))> {
        Ok(((), checkpoint(products_of_chunk).call(inputs)?))
    }
    let ((), products) = scan(step, (), [query, key, log_decay].map(Array::clone))?;
    Ok(products)
}

/// Computes [`decayed_products`] of one chunk.
fn products_of_chunk([query, key, log_decay]: [Array; 3]) -> (Array, Array) {
    let from_first = arange(0..key.shape()[key.ndim() - 2] as i32);
    let is_past = from_first.expand_dims(1).greater_equal(&from_first).expand_dims(-1);
    let differences = log_decay.expand_dims(-2) - log_decay.expand_dims(-3);
    // As in `decay_between`, pairs in the other order could overflow.
    let decay = where_(&is_past, where_(&is_past, differences, 0.0).exp(), 0.0);
    let decayed = key.expand_dims(-3) * decay;
    let [scores, products] = [query, key].map(|left| (left.expand_dims(-2) * &decayed).sum(-1));
    (scores, products)
}

/// Returns the decay between all positions of a chunk, `[..., positions, positions]`. `log_decay` has the logarithms of the
/// decay since the start of the chunk, `[..., positions]`.
pub(super) fn decay_between(log_decay: &Array, chunk: usize) -> Array {
    let from_first = arange(0..chunk as i32);
    let is_past = from_first.expand_dims(1).greater_equal(&from_first);
    // The exponentials of pairs in the other order could overflow, and their gradients would be NaN.
    let differences = log_decay.expand_dims(-1) - log_decay.expand_dims(-2);
    where_(&is_past, where_(&is_past, differences, 0.0).exp(), 0.0)
}

/// Computes the state after one chunk, and the results at its positions, from the state before the chunk.
fn chunk_step(
    state: Array,
    [values, keys, scores, queries, remaining_keys, chunk_decay]: [Array; 6],
) -> Result<(Array, Array)> {
    let changes = values - einsum("bhtk,bhkv->bhtv", &[&keys, &state]);
    let y = einsum("bhtk,bhkv->bhtv", &[&queries, &state]) + einsum("bhts,bhsv->bhtv", &[&scores, &changes]);
    let state = state * chunk_decay + einsum("bhtk,bhtv->bhkv", &[&remaining_keys, &changes]);
    Ok((state, y))
}

/// Inverts matrices `[..., size, size]` that have ones on the diagonal and zeros above it; neither are read. The size must be
/// a power of 2.
///
/// Small diagonal blocks are inverted first, and then blocks of twice the size: below two inverted blocks `a` and `d`,
/// the inverse is `-d b a`, where `b` is the part of the matrix at this place. Every intermediate result is a block of
/// the inverse, or the product of such a block and a part of the matrix. A sum of powers of the matrix would have much
/// larger terms, which cancel.
fn unit_lower_inverse(matrix: &Array, size: usize) -> Array {
    let indices = arange(0..size as i32);
    let [rows, columns] = [indices.expand_dims(1), indices.expand_dims(0)];
    let mut inverse = rows.equal(&columns).astype(matrix.dtype()).broadcast_to(matrix.shape());
    let mut block = 1;
    while block < size {
        let [row, column] = [&rows, &columns].map(|indices| floor_divide(indices, block as i32));
        // The odd blocks of rows, below their neighbors on the diagonal.
        let is_below = row.equal(&column + 1) & remainder(&row, 2).equal(1);
        let below = where_(is_below, matrix, 0.0);
        let product = einsum("...ts,...su->...tu", &[&below, &inverse]);
        inverse = &inverse - einsum("...ts,...su->...tu", &[&inverse, &product]);
        block *= 2;
    }
    inverse
}

/// Pads the positions of `x`, `[batch, length, heads, ...]`, and splits them into chunks: `[chunks, batch, heads, positions,
/// ...]`.
pub(super) fn split(x: &Array, count: usize, chunk: usize) -> Array {
    let shape = x.shape().to_vec();
    let mut widths = vec![(0, 0); shape.len()];
    widths[1] = (0, count * chunk - shape[1]);
    let padded = pad(x, widths, PadMode::Constant(0.0));
    let parts = padded.reshape([&[shape[0], count, chunk], &shape[2..]].concat());
    match shape.len() {
        3 => parts.transpose([1, 0, 3, 2]),
        _ => parts.transpose([1, 0, 3, 2, 4]),
    }
}

/// Joins the results of chunks, `[chunks, batch, heads, positions, features]`, to `[batch, length, heads, features]`. The
/// positions of the padding are removed.
pub(super) fn join(chunks: &Array, length: usize) -> Array {
    let chunks = chunks.transpose([1, 0, 3, 2, 4]);
    let &[batch, count, chunk, heads, features] = chunks.shape() else { return chunks };
    chunks.reshape([batch, count * chunk, heads, features]).get((.., ..length))
}

/// Computes one position: the state decays, its value for the key is corrected, and its value for the query is returned.
fn update_state(state: Array, [query, key, value, write_rate, log_keep_rate]: [Array; 5]) -> (Array, Array) {
    let keep_rate = log_keep_rate.exp().expand_dims(-1);
    let keep_rate = if keep_rate.ndim() == state.ndim() { keep_rate } else { keep_rate.expand_dims(-1) };
    let state = state * keep_rate;
    let old_value = einsum("bhkv,bhk->bhv", &[&state, &key]);
    let change = (value - old_value) * write_rate.expand_dims(-1);
    let state = state + key.expand_dims(-1) * change.expand_dims(-2);
    let y = einsum("bhkv,bhk->bhv", &[&state, &query]);
    (state, y)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns normal numbers for one of the inputs of a case.
    fn normal(seed: usize, input: u32, shape: &[usize]) -> Array {
        random::normal(random::key(10 * seed as u32 + input), shape)
    }

    /// Chunks compute the same as one position after the other, also for nearly equal keys, and for states that forget
    /// immediately or never. Heads or features have a rate.
    #[test]
    fn chunks_equal_single_positions() -> Result<()> {
        config::set_compiler_options(crate::quick::QUICK);
        let [batch, heads, features] = [2, 3, 8];
        let cases = [(9, 1.0, 0.1), (64, 0.01, 0.0), (150, 0.1, 30.0)];
        for (seed, ((length, spread, forgets), has_channels)) in
            cases.into_iter().flat_map(|case| [(case, false), (case, true)]).enumerate()
        {
            let shape = [batch, length, heads, features];
            let key = normal(seed, 0, &shape) * spread + 1.0;
            let key = &key / key.square().sum_keepdims(-1).sqrt();
            let rates = [batch, length, heads];
            let write_rate = sigmoid(normal(seed, 3, &rates) + 2.0);
            let keep_shape = if has_channels { &shape[..] } else { &rates[..] };
            let log_keep_rate = -softplus(normal(seed, 4, keep_shape)) * forgets;
            let inputs = [normal(seed, 1, &shape), key, normal(seed, 2, &shape), write_rate, log_keep_rate];
            let state = normal(seed, 5, &[batch, heads, features, features]);

            let one_by_one = jit(|state: Array, inputs: [Array; 5]| {
                scan(|state, inputs| Ok(update_state(state, inputs)), state, inputs.map(|x| x.moveaxis(1, 0)))
            });
            let (expected_state, expected) = one_by_one.call((&state, &inputs))?;
            let (state, y) = jit(scan_chunks).call((&state, &inputs))?;
            assert!(allclose(&y, expected.moveaxis(0, 1), 1e-4, 1e-4)?, "{length} positions");
            assert!(allclose(&state, &expected_state, 1e-4, 1e-4)?, "the state after {length} positions");
        }
        Ok(())
    }
}
