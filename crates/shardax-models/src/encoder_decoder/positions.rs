//! Relative positions (T5) and sinusoidal positions (M2M-100, Marian and Pegasus).

use shardax_nn::prelude::*;

use crate::shardings::rows_at;

/// Returns the group of each distance below `distances`. The first half of the groups contain a single distance each; the
/// others grow exponentially, and the last one contains all distances from `max_distance` on.
///
/// Logarithms are computed in float32 like in T5, because rounding decides the group of a distance at a border.
pub(super) fn groups(distances: usize, count: usize, max_distance: usize) -> Vec<i32> {
    let exact = count / 2;
    let range = (max_distance as f64 / exact as f64).ln() as f32;
    let groups = (0..distances).map(|distance| {
        if distance < exact {
            distance as i32
        } else {
            let grown = (distance as f32 / exact as f32).ln() / range * (count - exact) as f32;
            (exact as i32 + grown as i32).min(count as i32 - 1)
        }
    });
    groups.collect()
}

/// Returns the attention bias, `[heads, queries, keys]`, for queries and keys at these positions. If each text has other positions of
/// queries, `[batch, queries]`, the result is `[batch, heads, queries, keys]`. All distances must be less than `distances`. If attention is bidirectional, each direction has half of the groups.
pub(crate) fn bias(
    table: &Embed,
    queries: &Array,
    keys: &Array,
    (is_bidirectional, max_distance): (bool, usize),
    distances: usize,
) -> Array {
    let count = table.embedding.shape().first().copied().unwrap_or(0);
    let count = if is_bidirectional { count / 2 } else { count };
    let after = keys - queries.expand_dims(-1);
    let groups = array(groups(distances.max(1), count, max_distance));
    let group = if is_bidirectional {
        rows_at(&groups, &after.abs()) + after.greater(0).astype(DType::I32) * count as i32
    } else {
        // Keys after the query are masked, so their group does not matter.
        rows_at(&groups, &(-after).maximum(0))
    };
    table.forward(group).moveaxis(-1, -3)
}

/// Returns sinusoidal positions, `[length, features]`, from the position `first` on. The first half of the features are
/// sines, the second half cosines.
pub(super) fn sines(first: usize, length: usize, features: usize, is_inclusive: bool) -> Vec<f32> {
    let half = features / 2;
    let last = if is_inclusive { half.saturating_sub(1) } else { half };
    let speeds: Vec<f64> = (0..half).map(|pair| 10_000f64.powf(-(pair as f64) / last.max(1) as f64)).collect();
    let mut rows = Vec::with_capacity(length * 2 * half);
    for position in first..first + length {
        rows.extend(speeds.iter().map(|speed| (position as f64 * speed).sin() as f32));
        rows.extend(speeds.iter().map(|speed| (position as f64 * speed).cos() as f32));
    }
    rows
}

#[cfg(test)]
mod tests {
    /// The expected starts are from `T5Attention._relative_position_bucket` of transformers.
    #[test]
    fn groups_start_at_the_distances_of_t5() {
        for (count, expected) in [(16, &BIDIRECTIONAL[..]), (32, &CAUSAL)] {
            let groups = super::groups(200, count, 128);
            let starts = groups.windows(2).enumerate().filter(|(_, pair)| pair[0] != pair[1]);
            assert_eq!(starts.map(|(distance, _)| distance + 1).collect::<Vec<_>>(), expected);
        }
    }

    const BIDIRECTIONAL: [usize; 15] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91];
    const CAUSAL: [usize; 31] = [
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99,
        113,
    ];
}
