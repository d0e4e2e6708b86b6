//! The CPU attention kernel, in blocks of queries: their scores stay in the processor's caches,
//! and keys that none of a block's queries attends to are skipped (`docs/plugin.md`).

use std::ops::Range;
use std::result::Result;

use ndarray::linalg::general_mat_mul;
use ndarray::{
    Array2, ArrayView1, ArrayView2, ArrayView3, ArrayView4, ArrayViewD, ArrayViewMut, ArrayViewMut2, ArrayViewMut4,
    Axis, IxDyn, RemoveAxis, Slice,
};
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};

use super::{numbers, numbers_mut, sizes};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::ops::primitive::attention::{HIDDEN, Window};

pub(super) const TARGET: &str = "shardax_attention";
pub(super) const GRADIENT: &str = "shardax_attention_gradient";

/// The number of queries in a block.
const BLOCK: usize = 64;

/// The minimum number of queries for the kernel: with fewer, keys and values are only read once or twice.
const MIN_QUERIES: usize = 8;

impl Window {
    /// The positions of the keys that the query at a position attends to, of `keys`.
    fn seen_from(self, query: usize, keys: usize) -> Range<usize> {
        let end = query.saturating_add(self.after).saturating_add(1).min(keys);
        query.saturating_sub(self.before).min(end)..end
    }
}

/// Returns `true` if the kernel may be called, and is worthwhile, for these queries, keys and values.
pub(in super::super) fn is_worthwhile(cx: &Lowering, args: &[Value]) -> bool {
    let (q, k) = (cx.aval(args[0]), cx.aval(args[1]));
    let queries = q.shape[q.rank() - 3];
    let work = k.shape[k.rank() - 3].saturating_mul(q.size());
    // Each thread takes whole key heads.
    let heads = k.size() / (k.shape[k.rank() - 3] * k.shape[k.rank() - 1]).max(1);
    let is_large = queries >= MIN_QUERIES && work >= super::limits::ATTENTION && heads >= super::threads(cx);
    let is_empty = work == 0 || cx.aval(args[2]).size() == 0;
    !is_empty && (is_large || super::is_always_used()) && super::is_enabled(cx)
}

/// Lowers attention to the kernel.
pub(in super::super) fn lower(of: Window, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Vec<Value> {
    call(TARGET, of, cx, args, outs)
}

/// Lowers the gradient of attention to the kernel.
pub(in super::super) fn lower_gradient(of: Window, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Vec<Value> {
    call(GRADIENT, of, cx, args, outs)
}

fn call(target: &str, of: Window, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Vec<Value> {
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    super::call(cx, target, args, &[("before", count(of.before)), ("after", count(of.after))], outs)
}

fn read(frame: &CallFrame<'_>) -> Result<(Window, usize), String> {
    let [before, after] = [super::number(frame, "before")?, super::number(frame, "after")?];
    Ok((Window { before, after }, super::number(frame, "threads")?))
}

/// Merges the batch dimensions.
fn flat<const N: usize>(dims: &[i64]) -> Result<[usize; N], String> {
    let sizes = sizes(dims);
    let at = (sizes.len() + 1).checked_sub(N).ok_or_else(|| format!("too few dimensions: {dims:?}"))?;
    let mut flat = [sizes[..at].iter().product(); N];
    flat[1..].copy_from_slice(&sizes[at..]);
    Ok(flat)
}

/// Views an argument as `[batch, positions, heads, depth]`.
fn heads<'a>(arg: &Arg<'a>) -> Result<ArrayView4<'a, f32>, String> {
    ArrayView4::from_shape(flat::<4>(arg.dims)?, numbers(arg)?).map_err(|e| e.to_string())
}

fn heads_mut<'a>(ret: &'a mut Ret<'_>) -> Result<ArrayViewMut4<'a, f32>, String> {
    ArrayViewMut4::from_shape(flat::<4>(ret.dims)?, numbers_mut(ret)?).map_err(|e| e.to_string())
}

/// Views an argument as `[batch, heads, queries]`.
fn of_queries<'a>(arg: &Arg<'a>) -> Result<ArrayView3<'a, f32>, String> {
    ArrayView3::from_shape(flat::<3>(arg.dims)?, numbers(arg)?).map_err(|e| e.to_string())
}

/// Splits a view along a dimension, which is removed.
fn parts<D: RemoveAxis>(mut view: ArrayViewMut<'_, f32, D>, axis: usize) -> Vec<ArrayViewMut<'_, f32, D::Smaller>> {
    let mut parts = Vec::with_capacity(view.len_of(Axis(axis)));
    while view.len_of(Axis(axis)) > 0 {
        let (first, rest) = view.split_at(Axis(axis), 1);
        parts.push(first.index_axis_move(Axis(axis), 0));
        view = rest;
    }
    parts
}

/// The mask of all heads.
struct Mask<'a> {
    /// The mask, and the shape of all scores, `[..., heads, queries, keys]`, to which it broadcasts.
    view: Option<ArrayViewD<'a, u8>>,
    scores: Vec<usize>,
}

impl<'a> Mask<'a> {
    /// Checks a mask for queries of these dimensions, and `keys` keys.
    fn new(arg: Option<&Arg<'a>>, q: &[i64], keys: usize) -> Result<Self, String> {
        let q = sizes(q);
        let [batch @ .., queries, heads, _] = &q[..] else { return Err(format!("too few dimensions: {q:?}")) };
        let scores = [batch, &[*heads, *queries, keys]].concat();
        let view = arg.map(|arg| ArrayViewD::from_shape(IxDyn(&sizes(arg.dims)), arg.data)).transpose();
        let view = view.map_err(|e| e.to_string())?;
        if let Some(mask) = view.as_ref().filter(|mask| mask.broadcast(&scores[..]).is_none()) {
            return Err(format!("a mask of {:?} for scores of {scores:?}", mask.shape()));
        }
        Ok(Mask { view, scores })
    }

    /// The mask of one head of an example, `[queries, keys]`.
    fn of(&self, example: usize, head: usize) -> Option<ArrayView2<'_, u8>> {
        let mut view = self.view.as_ref()?.broadcast(&self.scores[..])?;
        let batch = &self.scores[..self.scores.len() - 3];
        let (mut place, mut rest) = (vec![0; batch.len()], example);
        for (place, size) in place.iter_mut().zip(batch).rev() {
            (*place, rest) = (rest % size, rest / size);
        }
        for at in place.into_iter().chain([head]) {
            view = view.index_axis_move(Axis(0), at);
        }
        view.into_dimensionality().ok()
    }
}

/// One query head with its key head, and the mask.
struct Head<'a> {
    of: Window,
    q: ArrayView2<'a, f32>,
    k: ArrayView2<'a, f32>,
    v: ArrayView2<'a, f32>,
    mask: Option<ArrayView2<'a, u8>>,
}

impl Head<'_> {
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let queries = self.q.nrows();
        (0..queries).step_by(BLOCK).map(move |i| i..(i + BLOCK).min(queries))
    }

    /// The keys in the window of the query's position.
    fn near(&self, query: usize) -> Range<usize> {
        self.of.seen_from(query, self.k.nrows())
    }

    fn mask_of(&self, query: usize) -> Option<ArrayView1<'_, u8>> {
        self.mask.as_ref().map(|mask| mask.row(query))
    }

    /// The keys that the queries of a block attend to: all if one attends to none, because it then attends to all
    /// equally.
    fn keys(&self, block: &Range<usize>) -> Range<usize> {
        let sees = |query: usize| {
            let near = self.near(query);
            self.mask_of(query).map_or(!near.is_empty(), |mask| {
                mask.slice_axis(Axis(0), Slice::from(near)).iter().any(|seen| *seen != 0)
            })
        };
        match block.clone().all(sees) {
            true => self.near(block.start).start..self.near(block.end - 1).end,
            false => 0..self.k.nrows(),
        }
    }

    /// Sets the entries of masked keys to `value`; `row` starts with key `first`.
    fn hide(&self, query: usize, first: usize, row: &mut [f32], value: f32) {
        let near = self.near(query);
        let [start, end] = [near.start, near.end].map(|key| key.saturating_sub(first).min(row.len()));
        row[..start].fill(value);
        row[end..].fill(value);
        if let Some(mask) = self.mask_of(query) {
            let seen = mask.slice_axis_move(Axis(0), Slice::from(first + start..first + end));
            row[start..end].iter_mut().zip(seen).filter(|(_, seen)| **seen == 0).for_each(|(x, _)| *x = value);
        }
    }

    /// The scores of a block of queries with these keys.
    fn scores<'s>(
        &self,
        block: &Range<usize>,
        keys: &Range<usize>,
        room: &'s mut Array2<f32>,
    ) -> ArrayViewMut2<'s, f32> {
        let mut scores = corner(room, block.len(), keys.len());
        let (q, k) = (rows(&self.q, block), rows(&self.k, keys));
        general_mat_mul(1.0, &q, &k.t(), 0.0, &mut scores);
        for (query, row) in block.clone().zip(each(&mut scores)) {
            self.hide(query, keys.start, row, HIDDEN as f32);
        }
        scores
    }

    /// Computes the output, and each query's largest score and sum.
    fn forward(&self, room: &mut Array2<f32>, mut y: ArrayViewMut2<'_, f32>, max: &mut [f32], sum: &mut [f32]) {
        for block in self.blocks() {
            let keys = self.keys(&block);
            let mut scores = self.scores(&block, &keys, room);
            for (query, row) in block.clone().zip(each(&mut scores)) {
                max[query] = largest(row);
                sum[query] = exponentials(row, max[query]);
                let part = 1.0 / sum[query];
                row.iter_mut().for_each(|x| *x *= part);
            }
            general_mat_mul(1.0, &scores, &rows(&self.v, &keys), 0.0, &mut rows_mut(&mut y, &block));
        }
    }

    /// Computes the gradient of the queries, and adds to those of keys and values.
    fn backward(
        &self,
        room: &mut [Array2<f32>; 2],
        of: &Softmax<'_>,
        [mut dq, mut dk, mut dv]: [ArrayViewMut2<'_, f32>; 3],
    ) {
        let [weights, slopes] = room;
        for block in self.blocks() {
            let keys = self.keys(&block);
            let mut weights = self.scores(&block, &keys, weights);
            let mut slopes = corner(slopes, block.len(), keys.len());
            let (q, ct) = (rows(&self.q, &block), rows(&of.ct, &block));
            let (k, v) = (rows(&self.k, &keys), rows(&self.v, &keys));
            general_mat_mul(1.0, &ct, &v.t(), 0.0, &mut slopes);
            for ((query, weights), slopes) in block.clone().zip(each(&mut weights)).zip(each(&mut slopes)) {
                let (max, part, mean) = (of.max[query], 1.0 / of.sum[query], of.mean[query]);
                for (weight, slope) in weights.iter_mut().zip(slopes.iter_mut()) {
                    *weight = exp(*weight - max) * part;
                    *slope = *weight * (*slope - mean);
                }
                self.hide(query, keys.start, slopes, 0.0);
            }
            general_mat_mul(1.0, &slopes, &k, 0.0, &mut rows_mut(&mut dq, &block));
            general_mat_mul(1.0, &slopes.t(), &q, 1.0, &mut rows_mut(&mut dk, &keys));
            general_mat_mul(1.0, &weights.t(), &ct, 1.0, &mut rows_mut(&mut dv, &keys));
        }
    }
}

/// Inputs of the gradient for the queries of a head: largest scores, sums, the output's cotangent, and the softmax's
/// correction.
struct Softmax<'a> {
    max: ArrayView1<'a, f32>,
    sum: ArrayView1<'a, f32>,
    ct: ArrayView2<'a, f32>,
    mean: ArrayView1<'a, f32>,
}

fn corner(room: &mut Array2<f32>, rows: usize, columns: usize) -> ArrayViewMut2<'_, f32> {
    room.slice_axis_mut(Axis(0), Slice::from(..rows)).slice_axis_move(Axis(1), Slice::from(..columns))
}

fn rows<'a>(matrix: &ArrayView2<'a, f32>, range: &Range<usize>) -> ArrayView2<'a, f32> {
    matrix.slice_axis_move(Axis(0), Slice::from(range.clone()))
}

fn rows_mut<'a>(matrix: &'a mut ArrayViewMut2<'_, f32>, range: &Range<usize>) -> ArrayViewMut2<'a, f32> {
    matrix.slice_axis_mut(Axis(0), Slice::from(range.clone()))
}

/// The elements of each row.
fn each<'a>(matrix: &'a mut ArrayViewMut2<'_, f32>) -> impl Iterator<Item = &'a mut [f32]> {
    matrix.outer_iter_mut().filter_map(|row| row.into_slice())
}

/// The number of elements processed together, for vectorization.
const TOGETHER: usize = 16;

/// The maximum, ignoring NaN.
fn largest(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut all = [f32::NEG_INFINITY; TOGETHER];
    let (whole, rest) = row.as_chunks::<TOGETHER>();
    for chunk in whole {
        all.iter_mut().zip(chunk).for_each(|(max, &x)| *max = larger(*max, x));
    }
    all.iter().chain(rest).fold(f32::NEG_INFINITY, |max, &x| larger(max, x))
}

/// Replaces each `x` by `exp(x - max)`, and returns the sum.
fn exponentials(row: &mut [f32], max: f32) -> f32 {
    let mut sums = [0.0; TOGETHER];
    let add = |x: &mut f32, sum: &mut f32| {
        *x = exp(*x - max);
        *sum += *x;
    };
    let (whole, rest) = row.as_chunks_mut::<TOGETHER>();
    for chunk in whole {
        chunk.iter_mut().zip(&mut sums).for_each(|(x, sum)| add(x, sum));
    }
    rest.iter_mut().zip(&mut sums).for_each(|(x, sum)| add(x, sum));
    sums.iter().sum()
}

/// The exponential of a number that is at most 0, to 2 units in the last place, in operations that vectorize:
/// `2ⁿ eʳ`, where `eʳ` is the polynomial of Cephes' `expf`. Below the smallest normal number it is 0.
fn exp(x: f32) -> f32 {
    // Adding and subtracting it rounds to the nearest integer, which meanwhile is in the last bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    const SMALLEST: f32 = -87.336;
    const OF_CUBE: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];
    let rounded = x.clamp(SMALLEST, 0.0) * std::f32::consts::LOG2_E + ROUND;
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    let n = rounded - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let polynomial = OF_CUBE[1..].iter().fold(OF_CUBE[0], |sum, c| sum * r + c);
    let y = (polynomial * r * r + r + 1.0) * power;
    if x < SMALLEST { 0.0 } else { y }
}

/// Handles a call of the forward pass.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let (of, threads) = read(frame)?;
    let (args, results) = frame.split();
    let ([q, k, v, mask @ ..], [y, max, sum]) = (args, results) else { return Err("other operands".into()) };
    let dims = q.dims;
    let (q, k, v) = (heads(q)?, heads(k)?, heads(v)?);
    let (keys, key_heads) = (k.len_of(Axis(1)), k.len_of(Axis(2)));
    let mask = Mask::new(mask.first(), dims, keys)?;
    let groups = q.len_of(Axis(2)) / key_heads;
    let [max, sum] = [numbers_mut(max)?, numbers_mut(sum)?].map(|rows: &mut [f32]| rows.chunks_mut(q.len_of(Axis(1))));
    let y = parts(heads_mut(y)?, 0).into_iter().flat_map(|example| parts(example, 1));
    let tasks: Vec<_> = y.zip(max.zip(sum)).enumerate().collect();
    let room = || Array2::zeros((BLOCK, keys));
    super::run_tasks(tasks, threads, room, |room, (at, (y, (max, sum)))| {
        let (i, h) = (at / q.len_of(Axis(2)), at % q.len_of(Axis(2)));
        let [k, v] = [k, v].map(|x| head(x, i, h / groups));
        Head { of, q: head(q, i, h), k, v, mask: mask.of(i, h) }.forward(room, y, max, sum);
    });
    Ok(())
}

/// One head of an example, `[positions, depth]`.
fn head(x: ArrayView4<'_, f32>, example: usize, head: usize) -> ArrayView2<'_, f32> {
    x.index_axis_move(Axis(0), example).index_axis_move(Axis(1), head)
}

/// Handles a call of the gradient.
pub(super) fn handle_gradient(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let (of, threads) = read(frame)?;
    let (args, results) = frame.split();
    let [q, k, v, max, sum, ct, mean, mask @ ..] = args else { return Err("other operands".into()) };
    let [dq, dk, dv] = results else { return Err("not three results".into()) };
    let dims = q.dims;
    let (q, k, v, ct) = (heads(q)?, heads(k)?, heads(v)?, heads(ct)?);
    let (max, sum, mean) = (of_queries(max)?, of_queries(sum)?, of_queries(mean)?);
    let (keys, key_heads) = (k.len_of(Axis(1)), k.len_of(Axis(2)));
    let mask = Mask::new(mask.first(), dims, keys)?;
    let groups = q.len_of(Axis(2)) / key_heads;
    let each = |ret| parts(ret, 0).into_iter().map(|example| parts(example, 1).into_iter());
    let mut tasks = Vec::new();
    for (i, ((mut dq, dk), dv)) in each(heads_mut(dq)?).zip(each(heads_mut(dk)?)).zip(each(heads_mut(dv)?)).enumerate()
    {
        for (h, (dk, dv)) in dk.zip(dv).enumerate() {
            tasks.push(((i, h), dq.by_ref().take(groups).collect::<Vec<_>>(), dk, dv));
        }
    }
    let room = || [(); 2].map(|()| Array2::zeros((BLOCK, keys)));
    super::run_tasks(tasks, threads, room, |room, ((i, key_head), dq, mut dk, mut dv)| {
        dk.fill(0.0);
        dv.fill(0.0);
        for (group, dq) in dq.into_iter().enumerate() {
            let h = key_head * groups + group;
            let [q, ct] = [q, ct].map(|x| head(x, i, h));
            let [max, sum, mean] = [max, sum, mean].map(|x| x.index_axis_move(Axis(0), i).index_axis_move(Axis(0), h));
            let head = Head { of, q, k: head(k, i, key_head), v: head(v, i, key_head), mask: mask.of(i, h) };
            head.backward(room, &Softmax { max, sum, ct, mean }, [dq, dk.view_mut(), dv.view_mut()]);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exponentials_are_those_of_the_mathematics() {
        for i in 0..200_000 {
            let x = -(i as f32) * 0.0005;
            let (found, want) = (f64::from(exp(x)), f64::from(x).exp());
            let unit = f64::from(f32::EPSILON) * want.max(f64::from(f32::MIN_POSITIVE));
            assert!(
                (found - want).abs() <= 2.0 * unit || want < f64::from(f32::MIN_POSITIVE) * 1.01,
                "{x}: {found} {want}"
            );
        }
        assert_eq!([exp(0.0), exp(f32::NEG_INFINITY), exp(-100.0), exp(f32::MIN)], [1.0, 0.0, 0.0, 0.0]);
        assert!(exp(f32::NAN).is_nan());
    }
}
