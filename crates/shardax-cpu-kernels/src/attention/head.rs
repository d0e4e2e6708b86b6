//! Attention of one head.

use std::ops::Range;

use ndarray::{Array2, ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2, Axis, Slice};
use pulp::{Arch, Simd, WithSimd};

use super::exp::{exp, exponentials, largest};
use super::{MASKED_SCORE, Window};
use crate::few_rows::{add_scaled, sum_of_products};
use crate::product::{Before, product};

/// The minimum number of queries in a block.
const MIN_BLOCK: usize = 64;

/// The maximum number of queries in a block, and of its scores, which stay in the second cache.
const MAX_BLOCK: usize = 256;
const MAX_SCORES: usize = 1 << 17;

/// The number of queries in a block. Each block packs the keys and the values for its products, so that blocks of many queries take less
/// time. Blocks of few queries skip more of the keys that a window hides.
pub(super) fn block_len(queries: usize, keys: usize, window: Window) -> usize {
    let sees_all_keys = window.before.saturating_add(1) >= queries && window.after.saturating_add(1) >= keys;
    let block = if sees_all_keys { (MAX_SCORES / keys.max(1)).clamp(MIN_BLOCK, MAX_BLOCK) } else { MIN_BLOCK };
    block.min(queries)
}

/// The maximum number of queries that are computed one by one, for example in a decoder that generates one token at a
/// time. A matmul would pack keys and values first, although each is read only once.
pub const FEW_QUERIES: usize = 4;

impl Window {
    /// The positions of the keys that the query at a position attends to, of `keys`.
    fn seen_from(self, query: usize, keys: usize) -> Range<usize> {
        let end = query.saturating_add(self.after).saturating_add(1).min(keys);
        query.saturating_sub(self.before).min(end)..end
    }
}

/// One query head with its key head, and the mask.
pub(super) struct Head<'a> {
    pub of: Window,
    pub q: ArrayView2<'a, f32>,
    pub k: ArrayView2<'a, f32>,
    pub v: ArrayView2<'a, f32>,
    pub mask: Option<ArrayView2<'a, u8>>,
}

impl Head<'_> {
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let queries = self.q.nrows();
        let block = block_len(queries, self.k.nrows(), self.of).max(1);
        (0..queries).step_by(block).map(move |i| i..(i + block).min(queries))
    }

    /// The keys in the window of the query's position.
    fn near(&self, query: usize) -> Range<usize> {
        self.of.seen_from(query, self.k.nrows())
    }

    fn mask_of(&self, query: usize) -> Option<ArrayView1<'_, u8>> {
        self.mask.as_ref().map(|mask| mask.row(query))
    }

    /// The keys that the queries of a block attend to. If one of them is masked from every key, the result is all keys,
    /// because such a query must attend to all equally.
    fn keys(&self, block: &Range<usize>) -> Range<usize> {
        match block.clone().all(|query| self.sees_any_key(query)) {
            true => self.near(block.start).start..self.near(block.end - 1).end,
            false => 0..self.k.nrows(),
        }
    }

    /// Returns `true` if the window and the mask leave the query at least one key.
    fn sees_any_key(&self, query: usize) -> bool {
        let near = self.near(query);
        self.mask_of(query).map_or(!near.is_empty(), |mask| {
            mask.slice_axis(Axis(0), Slice::from(near)).iter().any(|entry| *entry != 0)
        })
    }

    /// Sets the entries of masked keys to `value`; `row` starts with key `first`.
    fn hide(&self, query: usize, first: usize, row: &mut [f32], value: f32) {
        let near = self.near(query);
        let [start, end] = [near.start, near.end].map(|key| key.saturating_sub(first).min(row.len()));
        row[..start].fill(value);
        row[end..].fill(value);
        if let Some(mask) = self.mask_of(query) {
            let entries = mask.slice_axis_move(Axis(0), Slice::from(first + start..first + end));
            row[start..end].iter_mut().zip(entries).filter(|(_, entry)| **entry == 0).for_each(|(x, _)| *x = value);
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
        product(&q, &k.t(), Before::Ignored, &mut scores);
        for (query, row) in block.clone().zip(each(&mut scores)) {
            self.hide(query, keys.start, row, MASKED_SCORE);
        }
        scores
    }

    /// Computes the output, and each query's largest score and sum.
    pub fn forward(&self, room: &mut Array2<f32>, mut y: ArrayViewMut2<'_, f32>, max: &mut [f32], sum: &mut [f32]) {
        if self.q.nrows() <= FEW_QUERIES {
            for (query, y) in y.outer_iter_mut().enumerate() {
                let row = room.row_mut(0).into_slice().unwrap_or_default();
                (max[query], sum[query]) = Arch::new().dispatch(Query { head: self, query, scores: row, y });
            }
            return;
        }
        for block in self.blocks() {
            let keys = self.keys(&block);
            let mut scores = self.scores(&block, &keys, room);
            for (query, row) in block.clone().zip(each(&mut scores)) {
                (max[query], sum[query]) = Arch::new().dispatch(WeightsOfScores(row));
            }
            product(&scores.view(), &rows(&self.v, &keys), Before::Ignored, &mut rows_mut(&mut y, &block));
        }
    }

    /// Computes the gradient of the queries, and adds to the gradients of the keys and values.
    pub fn backward(
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
            product(&ct, &v.t(), Before::Ignored, &mut slopes);
            // The weights are computed again from the scores, because storing them would need memory for all pairs of
            // queries and keys.
            for ((query, weights), slopes) in block.clone().zip(each(&mut weights)).zip(each(&mut slopes)) {
                let (max, sum, mean) = (of.max[query], of.sum[query], of.mean[query]);
                Arch::new().dispatch(Slopes { weights, slopes, max, sum, mean });
                self.hide(query, keys.start, slopes, 0.0);
            }
            product(&slopes.view(), &k, Before::Ignored, &mut rows_mut(&mut dq, &block));
            product(&slopes.t(), &q, Before::Added, &mut rows_mut(&mut dk, &keys));
            product(&weights.t(), &ct, Before::Added, &mut rows_mut(&mut dv, &keys));
        }
    }
}

/// The scores of a query, which are replaced by its weights.
struct WeightsOfScores<'a>(&'a mut [f32]);

impl WithSimd for WeightsOfScores<'_> {
    /// The largest score and the sum.
    type Output = (f32, f32);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> (f32, f32) {
        let max = largest(self.0);
        let sum = exponentials(simd, self.0, max);
        let part = 1.0 / sum;
        self.0.iter_mut().for_each(|x| *x *= part);
        (max, sum)
    }
}

/// The scores of a query, which are replaced by its weights, and the cotangents of the weights, which are replaced by the
/// cotangents of the scores.
struct Slopes<'a> {
    weights: &'a mut [f32],
    slopes: &'a mut [f32],
    max: f32,
    sum: f32,
    mean: f32,
}

impl WithSimd for Slopes<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let part = 1.0 / self.sum;
        for (weight, slope) in self.weights.iter_mut().zip(self.slopes) {
            *weight = exp(simd, *weight - self.max) * part;
            *slope = *weight * (*slope - self.mean);
        }
    }
}

/// A query by itself, with space for its scores.
struct Query<'h, 'a, 'y> {
    head: &'h Head<'a>,
    query: usize,
    scores: &'y mut [f32],
    y: ArrayViewMut1<'y, f32>,
}

impl WithSimd for Query<'_, '_, '_> {
    /// The largest score and the sum.
    type Output = (f32, f32);

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) -> (f32, f32) {
        let Head { q, k, v, .. } = self.head;
        let (near, mask) = (self.head.near(self.query), self.head.mask_of(self.query));
        let query = q.row(self.query);
        for (key, (score, k)) in self.scores.iter_mut().zip(k.outer_iter()).enumerate() {
            let is_seen = near.contains(&key) && mask.as_ref().is_none_or(|mask| mask[key] != 0);
            *score = match (is_seen, query.to_slice(), k.to_slice()) {
                (false, ..) => MASKED_SCORE,
                (true, Some(query), Some(k)) => sum_of_products(simd, query, k),
                (true, ..) => query.dot(&k),
            };
        }
        let max = largest(self.scores);
        let sum = exponentials(simd, self.scores, max);
        self.y.fill(0.0);
        for (score, v) in self.scores.iter().zip(v.outer_iter()).filter(|(score, _)| **score != 0.0) {
            let weight = score / sum;
            match (self.y.as_slice_mut(), v.to_slice()) {
                (Some(y), Some(v)) => add_scaled(simd, weight, v, y),
                _ => self.y.scaled_add(weight, &v),
            }
        }
        (max, sum)
    }
}

/// Inputs of the gradient for the queries of a head: largest scores, sums, the output's cotangent, and the softmax's
/// correction.
pub(super) struct Softmax<'a> {
    pub max: ArrayView1<'a, f32>,
    pub sum: ArrayView1<'a, f32>,
    pub ct: ArrayView2<'a, f32>,
    pub mean: ArrayView1<'a, f32>,
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
