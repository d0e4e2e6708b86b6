//! Attention from queries to a few places of several images, which the queries choose.

use shardax_nn::prelude::*;

/// Deformable attention ([Zhu et al. 2020](https://arxiv.org/abs/2010.04159)). Queries have boxes, and attend to places near them.
#[derive(Module, Clone, Debug)]
pub(in crate::huggingface) struct DeformableAttention {
    /// Computes the distances of places from the box of a query, `[heads, levels * points * 2]`.
    offsets: LinearGeneral,
    /// Computes the scores of places, `[heads, levels * points]`.
    scores: LinearGeneral,
    value: LinearGeneral,
    out: LinearGeneral,
    scale: f64,
    #[tree(static)]
    levels: usize,
    #[tree(static)]
    points: usize,
}

impl DeformableAttention {
    /// Creates attention to `points` places in each of `levels` images. `scale` is the factor of distances.
    pub fn new(
        [features, heads]: [usize; 2],
        [levels, points]: [usize; 2],
        scale: f64,
        rngs: &mut Rngs,
    ) -> DeformableAttention {
        let by_heads = |outputs: usize, rngs: &mut Rngs| {
            let layer = LinearGeneral::builder([features], [heads, outputs]);
            layer.kernel_axes([Some("embed"), Some("heads"), None]).build(rngs)
        };
        let depth = features / heads;
        let out = LinearGeneral::builder([heads, depth], [features]);
        DeformableAttention {
            offsets: by_heads(levels * points * 2, rngs),
            scores: by_heads(levels * points, rngs),
            value: by_heads(depth, rngs),
            out: out.kernel_axes([Some("heads"), None, Some("embed")]).build(rngs),
            scale,
            levels,
            points,
        }
    }

    /// Attends from queries, `[batch, queries, features]`, with boxes, `[batch, queries, 4]`, to the features of all levels,
    /// `[batch, places, features]`. `grids` are the rows and columns of each level. In place of boxes, queries can have points,
    /// `[batch, queries, 2]` or `[1, queries, 2]`, from which distances count in pixels.
    pub fn forward(&self, query: &Array, boxes: &Array, memory: &Array, grids: &[[usize; 2]]) -> Array {
        let (batch, queries) = (query.shape()[0], query.shape()[1]);
        // `[batch, heads, places, features of a head]`
        let value = self.value.forward(memory).transpose([0, 2, 1, 3]);
        let heads = value.shape()[1];
        let shape = [batch, queries, heads, self.levels, self.points];
        let weights = softmax(self.scores.forward(query), -1).reshape(shape).transpose([0, 2, 1, 3, 4]);
        let offsets = self.offsets.forward(query).reshape([&shape[..], &[2]].concat()).transpose([0, 2, 1, 3, 4, 5]);
        let has_extents = boxes.shape()[2] == 4;
        let offsets = if has_extents { offsets * (self.scale / self.points as f64) } else { offsets };
        let mut start = 0;
        let mut sum: Option<Array> = None;
        for (level, [rows, columns]) in grids.iter().copied().enumerate() {
            let end = start + rows * columns;
            let values = value.get((.., .., start..end));
            let weights = weights.get((.., .., .., level));
            // Places in pixels: columns, then rows.
            let [x, y] = [(0, columns), (1, rows)].map(|(axis, size)| {
                let part = |part: usize| boxes.get((Ellipsis, part)).expand_dims(1).expand_dims(-1);
                let offset = offsets.get((.., .., .., level, .., axis));
                match has_extents {
                    true => (part(axis) + offset * part(axis + 2)) * size as f64 - 0.5,
                    false => part(axis) * size as f64 + offset - 0.5,
                }
            });
            let part = interpolated(&values, [y, x], [rows, columns], &weights);
            sum = Some(sum.map_or_else(|| part.clone(), |sum| sum + &part));
            start = end;
        }
        match sum {
            Some(heads) => self.out.forward(heads.transpose([0, 2, 1, 3])),
            None => query.clone(),
        }
    }
}

/// Returns the weighted sums of interpolated values, `[batch, heads, queries, features]`, of an image, `[batch, heads, places,
/// features]`. Rows, columns and weights are `[batch, heads, queries, points]`. Values outside of the image are zero.
fn interpolated(values: &Array, [y, x]: [Array; 2], [rows, columns]: [usize; 2], weights: &Array) -> Array {
    let &[batch, heads, queries, points] = y.shape() else { return values.clone() };
    let depth = values.shape()[3];
    let corners = [(0, 0), (0, 1), (1, 0), (1, 1)];
    let [first_row, first_column] = [&y, &x].map(|place| place.floor());
    let [down, right] = [&y - &first_row, &x - &first_column];
    let sum = corners.into_iter().map(|(row, column)| {
        let [row_index, column_index] = [&first_row + f64::from(row), &first_column + f64::from(column)];
        let share_down = if row == 0 { 1.0 - &down } else { down.clone() };
        let share_right = if column == 0 { 1.0 - &right } else { right.clone() };
        let is_inside = row_index.greater_equal(0.0)
            & row_index.less(rows as f64)
            & column_index.greater_equal(0.0)
            & column_index.less(columns as f64);
        let share = where_(is_inside, share_down * share_right * weights, 0.0);
        let row_index = row_index.clip(0.0, (rows - 1) as f64).astype(DType::I32);
        let column_index = column_index.clip(0.0, (columns - 1) as f64).astype(DType::I32);
        let place = (row_index * columns as i32 + column_index).reshape([batch, heads, queries * points, 1]);
        let taken = values.take_along_axis(place.broadcast_to([batch, heads, queries * points, depth]), 2);
        let taken = taken.reshape([batch, heads, queries, points, depth]);
        (taken * share.astype(values.dtype()).expand_dims(-1)).sum(3)
    });
    sum.reduce(|sum, part| sum + part).unwrap_or_else(|| values.clone())
}
