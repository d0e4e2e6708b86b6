//! Attention in blocks of queries and keys, one after another, with a running maximum and sum, so that only one block
//! of scores is in memory ([Rabe and Staats 2021](https://arxiv.org/abs/2112.05682)). Blocks outside of the window are
//! skipped.

use super::derivative::AttentionGradient;
use super::unfused::{Block, reduced};
use super::{Attention, HIDDEN, Implementation, Operands};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::constants::{full_dtype, zeros_dtype};
use crate::ops::control_flow::{fori_loop, scan};
use crate::ops::elementwise::{floor_divide, maximum, minimum};
use crate::ops::lax::{self, dynamic_slice_in_dim, dynamic_update_slice_in_dim, iota};
use crate::ops::operators::ArrayLike;
use crate::ops::select::where_;

/// The number of queries in a block, and the number of keys.
const BLOCK: usize = 512;

/// The size of all float32 scores on a device, in bytes, above which they are not stored. A gradient needs several
/// tensors of this size at once.
const MAX_BYTES_OF_SCORES: f64 = (4u64 << 30) as f64;

/// Returns `true` if attention of these operands is computed in blocks.
pub(crate) fn applies(of: &Attention, cx: &Lowering, args: &[Value]) -> bool {
    let (q, k) = (cx.shape(args[0]), cx.shape(args[1]));
    let rank = q.len();
    let rows: f64 = q[..rank - 1].iter().map(|&n| n as f64).product();
    let bytes = 4.0 * rows * k[rank - 3] as f64 / cx.split_size() as f64;
    match of.implementation {
        Some(Implementation::Blockwise) => rows > 0.0,
        Some(Implementation::Xla) => false,
        Some(Implementation::Cudnn | Implementation::Flash) | None => bytes > MAX_BYTES_OF_SCORES,
    }
}

/// Splits operands into blocks.
struct Blocks<'a> {
    of: &'a Attention,
    /// The operands, with queries and keys padded to a multiple of the block.
    x: Operands,
    /// The numbers of queries and keys without padding.
    sizes: [usize; 2],
    /// The numbers of queries and keys in a block.
    block: [usize; 2],
}

/// Appends `value` to dimension `axis` of `x` to enlarge it to `to`, if its size is `size`.
pub(crate) fn padded(x: &Array, axis: i32, value: f64, [size, to]: [usize; 2]) -> Array {
    let dim = (x.ndim() as i32 + axis) as usize;
    if x.shape()[dim] != size || size == to {
        return x.clone();
    }
    let mut config = vec![(0, 0, 0); x.ndim()];
    config[dim].1 = (to - size) as i64;
    lax::pad(x, &full_dtype((), value, x.dtype()), &config)
}

impl<'a> Blocks<'a> {
    fn new(of: &'a Attention, x: Operands) -> Self {
        let sizes = [x.queries(), x.keys()];
        let block = sizes.map(|n| n.clamp(1, BLOCK));
        let [queries, keys] = [0, 1].map(|i| sizes[i].div_ceil(block[i]) * block[i]);
        let (rows, columns) = ([sizes[0], queries], [sizes[1], keys]);
        let x = Operands {
            q: padded(&x.q, -3, 0.0, rows),
            k: padded(&x.k, -3, 0.0, columns),
            v: padded(&x.v, -3, 0.0, columns),
            bias: x.bias.as_ref().map(|bias| padded(&padded(bias, -2, 0.0, rows), -1, 0.0, columns)),
            mask: x.mask.as_ref().map(|mask| padded(&padded(mask, -2, 0.0, rows), -1, 0.0, columns)),
            segments: x
                .segments
                .as_ref()
                .map(|[queries, keys]| [padded(queries, -1, 0.0, rows), padded(keys, -1, 0.0, columns)]),
            ..x
        };
        Blocks { of, x, sizes, block }
    }

    /// Pads a per-query array, with `value` for the queries that are padding.
    fn rows(&self, x: &Array, axis: i32, value: f64) -> Array {
        padded(x, axis, value, [self.sizes[0], self.x.queries()])
    }

    /// Returns the slice of a padded per-query array for a block of queries.
    fn row_block(&self, x: &Array, at: &Array, axis: i32) -> Array {
        dynamic_slice_in_dim(x, at * self.block[0] as i32, self.block[0], axis)
    }

    /// Returns the range of key blocks that a block of queries can attend to.
    fn range(&self, at: &Array) -> (Array, Array) {
        let [queries, keys] = self.block.map(|n| n as i32);
        let count = (self.x.keys() as i32) / keys;
        let [before, after] = self.of.window.limits();
        let first_query = at * queries;
        let start = before.map_or(0.into_array(), |n| floor_divide(maximum(&first_query - n, 0), keys));
        let end = after
            .map_or(count.into_array(), |n| minimum(floor_divide(&first_query + (queries - 1 + n), keys) + 1, count));
        (start, end)
    }

    /// Returns a block of queries with a block of keys.
    fn block(&self, rows: &Operands, at: &Array, key: &Array) -> Block<'a> {
        let [queries, keys] = self.block;
        let first_key = key * keys as i32;
        let query = at * queries as i32 + iota(DType::I32, &[queries, 1], 0);
        let keys_at = &first_key + iota(DType::I32, &[1, keys], 1);
        let end = (self.sizes[1] != self.x.keys()).then_some(self.sizes[1]);
        Block::new(self.of, rows.slice_keys(&first_key, keys), [query, keys_at], end)
    }

    /// Returns the queries of a block, with all keys.
    fn queries(&self, at: &Array) -> Operands {
        self.x.slice_queries(&(at * self.block[0] as i32), self.block[0])
    }

    /// Returns the indices of all blocks of queries.
    fn each(&self) -> Array {
        iota(DType::I32, &[self.x.queries() / self.block[0]], 0)
    }

    /// Joins the stacked results of the blocks to one array with the queries in dimension `axis`.
    fn joined(&self, stacked: &Array, axis: i32) -> Array {
        let dim = stacked.ndim() as i32 + axis;
        let moved = stacked.moveaxis(0, dim - 1);
        let mut shape = moved.shape().to_vec();
        let blocks = shape.remove(dim as usize - 1);
        shape[dim as usize - 1] *= blocks;
        lax::slice_in_dim(&moved.reshape(shape), 0, self.sizes[0], axis)
    }
}

/// Rearranges `[..., heads, queries]` to `[..., queries, heads, 1]`.
pub(crate) fn to_output_layout(x: &Array) -> Array {
    x.swapaxes(-1, -2).expand_dims(-1)
}

/// Returns the output, a reference score for each query, and the sum of exponentials relative to the reference score.
pub(crate) fn forward(of: &Attention, x: &Operands) -> Result<Vec<Array>> {
    let blocks = Blocks::new(of, x.clone());
    let mean = x.v.astype(DType::F32).mean_keepdims(-3);
    let step = |(): (), at: Array| -> Result<((), (Array, Array, Array))> {
        let rows = blocks.queries(&at);
        let q = rows.q.shape();
        let per_query = [&q[..q.len() - 3], &[q[q.len() - 2], q[q.len() - 3]]].concat();
        let mut output = q.to_vec();
        output[q.len() - 1] = x.v.shape()[x.v.ndim() - 1];
        let start = (
            full_dtype(per_query.as_slice(), HIDDEN, DType::F32),
            zeros_dtype(per_query.as_slice(), DType::F32),
            zeros_dtype(output.as_slice(), DType::F32),
        );
        let (first_block, end) = blocks.range(&at);
        let (max, sum, y) = fori_loop(
            first_block,
            end,
            |key: Array, (max, sum, y): (Array, Array, Array)| {
                let block = blocks.block(&rows, &at, &key);
                let (scores, _) = block.scores(f64::NEG_INFINITY);
                let new_max = maximum(&max, scores.max(-1));
                let weights = (scores - new_max.expand_dims(-1)).exp();
                let scaled_sum = sum * (max - &new_max).exp();
                let sum = &scaled_sum + weights.sum(-1);
                // The running output is normalized, because sums of weights times values may be too large.
                let part = 1.0 / where_(sum.greater(0.0), &sum, 1.0);
                let y = y * to_output_layout(&(scaled_sum * &part))
                    + block.sum_over_keys(&(weights * part.expand_dims(-1)), &block.x.v);
                (new_max, sum, y)
            },
            start,
        )?;
        Ok(((), (max, sum, y)))
    };
    let ((), (max, sum, y)) = scan(step, (), blocks.each())?;
    let (max, sum, y) = (blocks.joined(&max, -1), blocks.joined(&sum, -1), blocks.joined(&y, -3));
    // A query without visible keys attends to all keys equally.
    let blind = sum.equal(0.0);
    let sum = where_(&blind, blocks.sizes[1] as f64, sum);
    let y = where_(to_output_layout(&blind), repeated(&mean, &y), y);
    Ok(vec![y.astype(x.q.dtype()), max, sum])
}

/// Repeats an array over key heads, `[..., n, key heads, depth]`, for the query heads of `like`.
pub(crate) fn repeated(x: &Array, like: &Array) -> Array {
    let heads = like.shape()[like.ndim() - 2] / x.shape()[x.ndim() - 2].max(1);
    if heads == 1 { x.clone() } else { lax::repeat_each(x, heads, x.ndim() - 2) }
}

/// Returns 1 for queries without visible keys, and 0 for others.
pub(crate) fn blind(max: &Array) -> Array {
    max.less_equal(HIDDEN).astype(DType::F32)
}

/// Returns the weights of a block, which are zero for masked keys, and the slope of the scores.
fn weights(block: &Block<'_>, max: &Array, sum: &Array) -> (Array, Option<Array>) {
    let (scores, slope) = block.scores(f64::NEG_INFINITY);
    ((scores - max.expand_dims(-1)).exp() / sum.expand_dims(-1), slope)
}

/// Returns the tangents of the output and of the sums, from the operands of
/// [`AttentionTangent`](super::derivative::AttentionTangent).
pub(crate) fn tangent(of: &Attention, args: &[Array]) -> Result<Vec<Array>> {
    let n = of.present.count();
    let x = Operands::of(of.present, args);
    let [y, max, sum, dq, dk, dv] = [0, 1, 2, 3, 4, 5].map(|i| &args[n + i]);
    let blocks = Blocks::new(of, x.clone());
    // The tangents are sliced like their operands.
    let moving = Operands { q: dq.clone(), k: dk.clone(), v: dv.clone(), bias: args.get(n + 6).cloned(), ..x.clone() };
    let moving = Blocks::new(of, moving).x;
    let softmax = [blocks.rows(max, -1, 0.0), blocks.rows(sum, -1, 1.0)];
    let step = |(): (), at: Array| -> Result<((), (Array, Array))> {
        let rows = blocks.queries(&at);
        let moved = moving.slice_queries(&(&at * blocks.block[0] as i32), blocks.block[0]);
        let [max, sum] = [&softmax[0], &softmax[1]].map(|x| blocks.row_block(x, &at, -1));
        let mut output = rows.q.shape().to_vec();
        let depth = output.len() - 1;
        output[depth] = x.v.shape()[x.v.ndim() - 1];
        // Sums over the blocks of keys the tangent of the output, and the weighted mean of the scores' tangents.
        let start = (zeros_dtype(output.as_slice(), DType::F32), zeros_dtype(max.shape(), DType::F32));
        let (first_block, end) = blocks.range(&at);
        Ok((
            (),
            fori_loop(
                first_block,
                end,
                |key: Array, (dy, mean): (Array, Array)| {
                    let block = blocks.block(&rows, &at, &key);
                    let tangents = moved.slice_keys(&(&key * blocks.block[1] as i32), blocks.block[1]);
                    let (weights, slope) = weights(&block, &max, &sum);
                    let scores = block.scores_tangent([&tangents.q, &tangents.k], tangents.bias.as_ref(), &slope);
                    let moved = &weights * scores;
                    let dy = dy + block.sum_over_keys(&moved, &block.x.v) + block.sum_over_keys(&weights, &tangents.v);
                    (dy, mean + moved.sum(-1))
                },
                start,
            )?,
        ))
    };
    let ((), (dy, mean)) = scan(step, (), blocks.each())?;
    let (dy, mean) = (blocks.joined(&dy, -3), blocks.joined(&mean, -1));
    let of_blind = to_output_layout(&blind(max)) * repeated(&dv.astype(DType::F32).mean_keepdims(-3), y);
    let dy = dy - to_output_layout(&mean) * y.astype(DType::F32) + of_blind;
    Ok(vec![dy.astype(y.dtype()), sum * mean])
}

/// Adds `part` to the slice of `total` that starts at these indices of these dimensions.
fn add_at(total: &Array, part: Array, starts: &[(i32, Array)]) -> Array {
    // Slices one dimension after the other, and writes the sum back in the opposite order.
    let (mut slice, mut outer) = (total.clone(), Vec::new());
    for (axis, start) in starts {
        let n = part.shape()[(part.ndim() as i32 + axis) as usize];
        outer.push((slice.clone(), start, *axis));
        slice = dynamic_slice_in_dim(&slice, start, n, *axis);
    }
    let outer = outer.into_iter().rev();
    outer.fold(slice + part, |part, (outer, start, axis)| dynamic_update_slice_in_dim(&outer, &part, start, axis))
}

/// Adds the cotangents of a block of scores to the bias's, whose dimensions of size 1 are broadcast.
fn add_bias_block(total: &Array, scores: &Array, [query_at, key_at]: [Array; 2]) -> Array {
    let mut shape = total.shape().to_vec();
    let rank = shape.len();
    let starts = [(-2, query_at), (-1, key_at)].into_iter();
    let starts: Vec<_> = starts.filter(|(axis, _)| shape[(rank as i32 + axis) as usize] != 1).collect();
    for (size, block_size) in shape[rank - 2..].iter_mut().zip(&scores.shape()[rank - 2..]) {
        *size = if *size == 1 { 1 } else { *block_size };
    }
    add_at(total, reduced(scores, &shape), &starts)
}

fn zeros_f32(x: &Array) -> Array {
    zeros_dtype(x.shape(), DType::F32)
}

/// Returns the cotangents of queries, keys, values and bias.
pub(crate) fn gradient(primitive: &AttentionGradient, args: &[Array]) -> Result<Vec<Array>> {
    let attention = &primitive.of;
    let n = attention.present.count();
    let x = Operands::of(attention.present, args);
    let (ct, mean) = primitive.cotangent(args);
    let blocks = Blocks::new(attention, x.clone());
    let (max, sum) = (&args[n + 1], &args[n + 2]);
    let per_query = [(max, 0.0), (sum, 1.0), (&mean, 0.0)].map(|(x, value)| blocks.rows(x, -1, value));
    let of_output_rows = blocks.rows(ct, -3, 0.0);
    let bias = primitive.bias.then_some(blocks.x.bias.as_ref()).flatten();
    let step = |carry: (Array, Array, Option<Array>), at: Array| -> Result<((Array, Array, Option<Array>), Array)> {
        let rows = blocks.queries(&at);
        let [max, sum, mean] = [0, 1, 2].map(|i| blocks.row_block(&per_query[i], &at, -1));
        let ct = blocks.row_block(&of_output_rows, &at, -3);
        let (first_block, end) = blocks.range(&at);
        type State = (Array, (Array, Array, Option<Array>));
        let (dq, carry) = fori_loop(
            first_block,
            end,
            |key: Array, (dq, (dk, dv, dbias)): State| {
                let block = blocks.block(&rows, &at, &key);
                let (weights, slope) = weights(&block, &max, &sum);
                let [of_q, of_k, of_v, scores] = block.cotangents(&weights, &slope, &ct, &mean);
                let [query_at, key_at] = [&at * blocks.block[0] as i32, &key * blocks.block[1] as i32];
                let dbias = dbias.map(|total| add_bias_block(&total, &scores, [query_at.clone(), key_at.clone()]));
                let at_keys = [(-3, key_at)];
                (dq + of_q, (add_at(&dk, of_k, &at_keys), add_at(&dv, of_v, &at_keys), dbias))
            },
            (zeros_f32(&rows.q), carry),
        )?;
        Ok((carry, dq))
    };
    let start = (zeros_f32(&blocks.x.k), zeros_f32(&blocks.x.v), bias.map(zeros_f32));
    let ((dk, dv, dbias), dq) = scan(step, start, blocks.each())?;
    // Blind queries attend to all keys equally, so their cotangent reaches the values, but no score.
    let all_keys = Block::all(attention, Operands { bias: None, mask: None, ..x.clone() });
    let [dk, dv] = [&dk, &dv].map(|x| lax::slice_in_dim(x, 0, blocks.sizes[1], -3));
    let dv = dv + all_keys.sum_over_queries(&(blind(max) / blocks.sizes[1] as f64).expand_dims(-1), ct);
    let dtype = x.q.dtype();
    let of_bias = dbias.zip(x.bias.as_ref()).map(|(dbias, bias)| {
        let [rows, columns] = [2, 1].map(|axis| bias.shape()[bias.ndim() - axis]);
        lax::slice_in_dim(&lax::slice_in_dim(&dbias, 0, rows, -2), 0, columns, -1).astype(bias.dtype())
    });
    let dq = blocks.joined(&dq, -3);
    Ok([dq, dk, dv].into_iter().map(|x| x.astype(dtype)).chain(of_bias).collect())
}
