//! The recurrence of state-space layers over chunks of positions.
//!
//! At each position `t` the state is multiplied by `kept[t]`, and the product of a value and a key is added:
//!
//! ```text
//! state[t] = kept[t] * state[t - 1] + value[t] key[t]^T
//! y[t]     = state[t] query[t]
//! ```
//!
//! Within a chunk, `y` is a sum over the earlier positions of the chunk, which is a matmul like attention. Only the state before
//! each chunk is computed in a loop.

use shardax_nn::prelude::*;

use super::delta_chunks::{CHUNK, decay_between, join, split};

/// Returns the state after all positions, and the results `[batch, length, heads, features of values]`.
///
/// Queries and keys are `[batch, length, groups, features of keys]`, values `[batch, length, heads, features of values]`, and the
/// logarithms of what is kept `[batch, length, heads]`. Neighboring heads share the queries and keys of a group.
pub(super) fn scan_chunks(state: Array, inputs: [Array; 4]) -> Result<(Array, Array)> {
    let length = inputs[0].shape()[1];
    let shared = inputs[2].shape()[2] / inputs[0].shape()[2];
    if length == 1 {
        let (state, y) = update_state(state, inputs.map(|x| x.squeeze(1)));
        return Ok((state, y.expand_dims(1)));
    }
    let chunk = length.next_power_of_two().min(CHUNK);
    let count = length.div_ceil(chunk);
    // Padding writes nothing and keeps the state, because its values and its logarithms are zeros.
    let [query, key, value, log_kept] = inputs.map(|x| split(&x, count, chunk));

    let log_decay = log_kept.cumsum(-1);
    let between = decay_between(&log_decay, chunk);
    let scores = repeat_groups(&einsum("nbgtk,nbgsk->nbgts", &[&query, &key]), 2, shared) * between;
    let within = einsum("nbhts,nbhsv->nbhtv", &[&scores, &value]);

    let queries = repeat_groups(&query, 2, shared) * log_decay.exp().expand_dims(-1);
    let last = log_decay.get((Ellipsis, chunk - 1..));
    let keys = repeat_groups(&key, 2, shared) * (&last - &log_decay).exp().expand_dims(-1);
    let written = einsum("nbhsv,nbhsk->nbhvk", &[&value, &keys]);
    let (state, before) = scan(chunk_step, state, [queries, written, last.exp().expand_dims(-1)])?;
    Ok((state, join(&(within + before), length)))
}

/// The state after one chunk, and what the outputs at its positions have of the state before it.
fn chunk_step(state: Array, [queries, written, last]: [Array; 3]) -> Result<(Array, Array)> {
    let y = einsum("bhvk,bhtk->bhtv", &[&state, &queries]);
    Ok((state * last + written, y))
}

/// Repeats each group for its heads. `axis` is the dimension of the groups.
fn repeat_groups(x: &Array, axis: usize, shared: usize) -> Array {
    let mut shape = x.shape().to_vec();
    let groups = shape[axis];
    shape.insert(axis + 1, shared);
    let repeated = x.expand_dims(axis as i32 + 1).broadcast_to(shape.as_slice());
    shape.splice(axis..axis + 2, [groups * shared]);
    repeated.reshape(shape)
}

/// The state after one position, and the result at this position.
fn update_state(state: Array, [query, key, value, log_kept]: [Array; 4]) -> (Array, Array) {
    let shared = value.shape()[1] / query.shape()[1];
    let [query, key] = [query, key].map(|x| repeat_groups(&x, 1, shared));
    let decay = log_kept.exp().expand_dims(-1).expand_dims(-1);
    let state = state * decay + value.expand_dims(-1) * key.expand_dims(-2);
    let y = einsum("bhvk,bhk->bhv", &[&state, &query]);
    (state, y)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns normal numbers for one of the inputs of a case.
    fn normal(seed: usize, input: u32, shape: &[usize]) -> Array {
        random::normal(random::key(10 * seed as u32 + input), shape)
    }

    /// Chunks compute what one position after the other does, also for states that forget at once or never.
    #[test]
    fn chunks_of_states_equal_single_positions() -> Result<()> {
        config::set_compiler_options(crate::quick::QUICK);
        let [batch, heads, groups, features] = [2, 4, 2, 8];
        for (seed, (length, forgets)) in [(9, 0.0), (70, 30.0)].into_iter().enumerate() {
            let by_groups = [batch, length, groups, features];
            let log_kept = -softplus(normal(seed, 3, &[batch, length, heads])) * forgets;
            let value = normal(seed, 2, &[batch, length, heads, features]);
            let inputs = [normal(seed, 0, &by_groups), normal(seed, 1, &by_groups), value, log_kept];
            let state = normal(seed, 4, &[batch, heads, features, features]);

            let one_by_one = jit(|state: Array, inputs: [Array; 4]| {
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
