//! The kernels: one computes the output and the logsumexp of each query, one the gradient of the queries, one the
//! gradients of keys and values.
//!
//! The axes of the grid are the batch, the heads, and blocks of queries and of keys. A kernel sums over the last axes
//! in scratch memory. Blocks without a visible key are neither computed nor loaded: their index map repeats the index
//! of the nearest block with one.
//!
//! Per-query values are rows, `[1, queries]`, because a column would need the memory of 128 columns. Therefore the
//! kernels of the gradient compute transposed scores, `[keys, queries]`.

use crate::core::array::Array;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::lax::{self, DotOptions, iota};
use crate::ops::pallas::{BlockDim, BlockSpec, CostEstimate, PallasCall, Ref, SQUEEZED, program_id, when};
use crate::ops::primitive::attention::HIDDEN;
use crate::ops::select::where_;
use crate::ops::state::number;
use crate::precision::Precision;

/// The running maximum before the first block. Masked scores are so far below it that their weights are zero.
const START: f64 = 0.5 * HIDDEN;

/// The parameters of a call: the sizes, with the batch in one dimension, and the variant that the kernels compute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub batch: usize,
    pub heads: usize,
    pub key_heads: usize,
    /// The depths of keys and of values.
    pub depths: [usize; 2],
    /// The numbers of queries and keys, which are multiples of the block sizes.
    pub sizes: [usize; 2],
    pub blocks: [usize; 2],
    /// The number of keys without padding, if there is padding.
    pub end: Option<usize>,
    /// The largest numbers of positions that a key can be before and after a query.
    pub window: [Option<i32>; 2],
    pub scale: f64,
    pub cap: Option<f64>,
    pub precision: Precision,
    pub dtype: DType,
    /// Marks whether the numbers of valid queries and of valid keys are operands.
    pub lengths: [bool; 2],
    pub segments: bool,
}

/// The operands of a kernel that determine the keys that a query sees.
struct Masks<'a> {
    lengths: [Option<&'a Ref>; 2],
    segments: Option<[&'a Ref; 2]>,
}

/// A block of scores.
struct Scores {
    /// Masked ones are [`HIDDEN`].
    scores: Array,
    /// The derivative with respect to dot products, without the scale, if that is not one.
    slope: Option<Array>,
}

type Grid<const N: usize> = [Array; N];

/// The batch, head and block of queries at a point of the grid.
fn query_block([b, h, i, _]: Grid<4>) -> [Array; 3] {
    [b, h, i]
}

/// The batch, key head and block of keys at a point of the grid of [`Call::key_value_cotangents`].
fn key_block_of_keys([b, h, j, _, _]: Grid<5>) -> [Array; 3] {
    [b, h, j]
}

fn wide(shape: &[usize]) -> Aval {
    Aval::new(DType::F32, shape)
}

impl Call {
    /// The numbers of blocks of queries and keys.
    fn counts(&self) -> [usize; 2] {
        [self.sizes[0] / self.blocks[0], self.sizes[1] / self.blocks[1]]
    }

    /// Query heads for each key head.
    fn group(&self) -> usize {
        self.heads / self.key_heads
    }

    /// Returns `true` if positions are before heads in memory, `[batch, positions, heads * depth]`, so that operands
    /// need no transposition. Only blocks of 128 features can be cut out of such arrays.
    pub fn is_packed(depth: usize) -> bool {
        depth.is_multiple_of(128)
    }

    /// The blocks of an array of positions, heads and depths; `at` maps the grid to batch, head and block.
    fn block<const N: usize>(
        rows: usize,
        depth: usize,
        at: impl Fn(Grid<N>) -> [Array; 3] + Send + Sync + 'static,
    ) -> BlockSpec {
        if Call::is_packed(depth) {
            return BlockSpec::new([SQUEEZED, rows.into(), depth.into()], move |ids| {
                let [batch, head, block] = at(ids);
                [batch, block, head]
            });
        }
        BlockSpec::new([SQUEEZED, SQUEEZED, rows.into(), depth.into()], move |ids| {
            let [batch, head, block] = at(ids);
            [batch, head, block, number(0)]
        })
    }

    /// The blocks of a per-query array, `[batch, heads, 1, queries]`.
    fn row<const N: usize>(rows: usize, at: impl Fn(Grid<N>) -> [Array; 3] + Send + Sync + 'static) -> BlockSpec {
        BlockSpec::new([SQUEEZED, SQUEEZED, BlockDim::Blocked(1), rows.into()], move |ids| {
            let [batch, head, block] = at(ids);
            [batch, head, number(0), block]
        })
    }

    /// The blocks of segments, `[batch, positions, 1]`, or transposed.
    fn ids<const N: usize>(
        rows: usize,
        is_column: bool,
        at: impl Fn(Grid<N>) -> [Array; 3] + Send + Sync + 'static,
    ) -> BlockSpec {
        let sizes = if is_column { [rows, 1] } else { [1, rows] };
        BlockSpec::new([SQUEEZED, sizes[0].into(), sizes[1].into()], move |ids| {
            let [batch, _, block] = at(ids);
            if is_column { [batch, block, number(0)] } else { [batch, number(0), block] }
        })
    }

    /// The first and the last block of keys that a block of queries can see, without regard to lengths. With `of_keys`,
    /// the blocks of queries that can see a block of keys.
    fn range(&self, block: &Array, of_keys: bool) -> [Array; 2] {
        let (side, other) = if of_keys { (1, 0) } else { (0, 1) };
        let [back, forth] = if of_keys { [self.window[1], self.window[0]] } else { self.window };
        let (size, last) = (self.blocks[other], number(self.counts()[other] - 1));
        let start = block * self.blocks[side] as i32;
        // A block that sees nothing uses the last block, because an index beyond the array must not be loaded.
        let low = back.map(|n| lax::div(&(&start - n).maximum(0), &number(size)).minimum(&last));
        let high = forth.map(|n| lax::div(&(start + (self.blocks[side] as i32 - 1 + n)), &number(size)).minimum(&last));
        [low.unwrap_or_else(|| number(0)), high.unwrap_or(last)]
    }

    /// The block, or the nearest block that is at least partly visible from `block` of the other side.
    fn visible(&self, at: &Array, block: &Array, of_keys: bool) -> Array {
        let [low, high] = self.range(block, of_keys);
        at.minimum(high).maximum(low)
    }

    /// Returns `true` in the kernel if a query of a block can see a key of a block.
    fn is_visible(&self, masks: &Masks<'_>, i: &Array, j: &Array) -> Array {
        let [low, high] = self.range(i, false);
        let in_window = j.greater_equal(low) & j.less_equal(high);
        let starts = [(i, self.blocks[0]), (j, self.blocks[1])];
        let of_lengths = masks.lengths.iter().zip(starts).filter_map(|(lengths, (block, size))| {
            Some((block * size as i32).less((*lengths)?.at(program_id(0)).get()))
        });
        of_lengths.fold(in_window, |a, b| a & b)
    }

    /// A mask of the visible scores; queries are dimension `dim`.
    fn seen(&self, masks: &Masks<'_>, i: &Array, j: &Array, dim: usize) -> Option<Array> {
        let mut shape = self.blocks;
        if dim == 1 {
            shape.reverse();
        }
        let uses_positions = self.window != [None; 2] || self.end.is_some() || self.lengths != [false; 2];
        let mut conditions = Vec::new();
        if uses_positions {
            let query = i * self.blocks[0] as i32 + iota(DType::I32, &shape, dim);
            let key = j * self.blocks[1] as i32 + iota(DType::I32, &shape, 1 - dim);
            let [before, after] = self.window;
            conditions.extend(before.map(|n| query.less_equal(&key + n)));
            conditions.extend(after.map(|n| key.less_equal(&query + n)));
            conditions.extend(self.end.map(|end| key.less(end as i32)));
            for (lengths, position) in masks.lengths.iter().zip([&query, &key]) {
                conditions.extend(lengths.map(|lengths| position.less(lengths.at(program_id(0)).get())));
            }
        }
        conditions.extend(masks.segments.map(|[queries, keys]| queries.get().equal(keys.get())));
        conditions.into_iter().reduce(|a, b| a & b)
    }

    /// The product of two matrices in float32: `a b`, or `a bᵀ`.
    fn dot(&self, a: &Array, b: &Array, transposed: bool) -> Array {
        let options = DotOptions::new().precision(self.precision).preferred_element_type(DType::F32);
        options.dot_general(a, b, (&[1], &[usize::from(transposed)]), (&[], &[]))
    }

    /// The scores of a block of queries and a block of keys, as `a bᵀ` of them; queries are dimension `dim`.
    fn scores(&self, [a, b]: [&Array; 2], masks: &Masks<'_>, i: &Array, j: &Array, dim: usize) -> Scores {
        let dots = self.dot(a, b, true) * self.scale;
        let (scores, slope) = match self.cap {
            Some(cap) => {
                let part = (dots / cap).tanh();
                (&part * cap, Some(1.0 - part.square()))
            }
            None => (dots, None),
        };
        let scores = match self.seen(masks, i, j, dim) {
            Some(seen) => where_(seen, scores, HIDDEN),
            None => scores,
        };
        Scores { scores, slope }
    }

    /// The operands of masks among the refs of a kernel, and the others.
    fn masks<'a>(&self, refs: &'a [Ref]) -> (Masks<'a>, &'a [Ref]) {
        let (length_refs, refs) = refs.split_at(self.lengths.iter().filter(|given| **given).count());
        let mut length_refs = length_refs.iter();
        let lengths = self.lengths.map(|given| if given { length_refs.next() } else { None });
        match refs {
            [queries, keys, rest @ ..] if self.segments => (Masks { lengths, segments: Some([queries, keys]) }, rest),
            _ => (Masks { lengths, segments: None }, refs),
        }
    }

    /// The specs of segments, if they are operands. Queries are dimension `dim` of the scores.
    fn mask_specs<const N: usize>(
        self,
        dim: usize,
        queries: impl Fn(Grid<N>) -> [Array; 3] + Send + Sync + 'static,
        keys: impl Fn(Grid<N>) -> [Array; 3] + Send + Sync + 'static,
    ) -> Vec<BlockSpec> {
        if !self.segments {
            return Vec::new();
        }
        vec![Call::ids(self.blocks[0], dim == 0, queries), Call::ids(self.blocks[1], dim == 1, keys)]
    }

    /// Returns the type of an array of positions, heads and depths.
    pub fn positions(&self, size: usize, heads: usize, depth: usize) -> Aval {
        if Call::is_packed(depth) {
            Aval::new(self.dtype, &[self.batch, size, heads * depth][..])
        } else {
            Aval::new(self.dtype, [self.batch, heads, size, depth])
        }
    }

    fn per_query(&self) -> Aval {
        Aval::new(DType::F32, [self.batch, self.heads, 1, self.sizes[0]])
    }

    /// The batch, head and block of keys at a point of the grid of batch, heads, queries and keys.
    fn key_block(&self, [b, h, i, j]: Grid<4>) -> [Array; 3] {
        let head = if self.group() == 1 { h } else { lax::div(&h, &number(self.group())) };
        [b, head, self.visible(&j, &i, false)]
    }

    /// The cost of matmuls with these depths, for each block of queries and each block of keys that it can see.
    fn cost(&self, depths: usize, arrays: usize) -> CostEstimate {
        let [queries, keys] = self.counts();
        let [before, after] = self.window.map(|n| n.map(|n| n as usize));
        let [rows, columns] = self.blocks;
        let visible_blocks = (0..queries).map(|i| {
            let low = before.map_or(0, |n| (i * rows).saturating_sub(n) / columns);
            let high = after.map_or(keys, |n| (((i + 1) * rows - 1 + n) / columns + 1).min(keys));
            high.saturating_sub(low)
        });
        let pairs = visible_blocks.sum::<usize>() * self.batch * self.heads;
        let scores = (pairs * rows * columns) as u64;
        let array = self.batch * self.heads * self.sizes[0] * self.depths[0] * self.dtype.byte_size();
        CostEstimate {
            flops: 2 * scores * depths as u64,
            transcendentals: scores,
            bytes_accessed: (arrays * array) as u64,
        }
    }

    fn call<K: Fn(&[Ref]) -> Result<()>>(&self, name: &str, refs: usize, kernel: K) -> PallasCall<K, ()> {
        let lengths = self.lengths.iter().filter(|given| **given).count();
        let masks = lengths + if self.segments { 2 } else { 0 };
        PallasCall::new(masks + refs, kernel, (), name).num_scalar_prefetch(lengths)
    }

    /// Returns the output, and the logsumexp of each query's scores, which is [`HIDDEN`] for a query that sees no key.
    /// The operands are the masks, queries, keys and values.
    pub fn forward(self, operands: &[Array]) -> Result<[Array; 2]> {
        let ([queries, keys], [depth, value_depth]) = (self.blocks, self.depths);
        let last_block = self.counts()[1] - 1;
        let kernel = |refs: &[Ref]| {
            let (masks, refs) = self.masks(refs);
            let [q, k, v, o, lse, m, l, acc] = refs else { return Ok(()) };
            let (i, j) = (program_id(2), program_id(3));
            when(j.equal(0), || {
                m.set(START)?;
                l.set(0.0)?;
                acc.set(0.0)
            })?;
            when(self.is_visible(&masks, &i, &j), || {
                let Scores { scores, .. } = self.scores([&q.get(), &k.get()], &masks, &i, &j, 0);
                let (old_max, v) = (m.get(), v.get());
                let max = old_max.maximum(scores.max_keepdims(1));
                let weights = (scores - &max).exp();
                let scale = (old_max - &max).exp();
                l.set(l.get() * &scale + weights.sum_keepdims(1))?;
                acc.set(acc.get() * scale + self.dot(&weights.astype(v.dtype()), &v, false))?;
                m.set(max)
            })?;
            when(j.equal(last_block as i32), || {
                let sum = l.get();
                let sees = sum.greater(0.0);
                let sum = where_(&sees, sum, 1.0);
                o.set((acc.get() / &sum).astype(o.dtype()))?;
                let logsumexp = where_(sees, m.get() + sum.log(), HIDDEN);
                // Converts a column to a row.
                lse.set(logsumexp.broadcast_to([queries, 128]).t().max_keepdims(0))
            })
        };
        let key = move |ids: Grid<4>| self.key_block(ids);
        let mut specs = self.mask_specs(0, query_block, key);
        specs.extend([
            Call::block(queries, depth, query_block),
            Call::block(keys, depth, key),
            Call::block(keys, value_depth, key),
        ]);
        let [rows, columns] = self.counts();
        let outs = vec![self.positions(self.sizes[0], self.heads, value_depth), self.per_query()];
        let column = wide(&[queries, 1]);
        let outputs = self
            .call("flash_attention", 8, kernel)
            .grid([self.batch, self.heads, rows, columns])
            .in_specs(specs)
            .out_specs([Call::block(queries, value_depth, query_block), Call::row(queries, query_block)])
            .scratch([column.clone(), column, wide(&[queries, value_depth])])
            .cost_estimate(self.cost(depth + value_depth, 4))
            .bind(operands, outs)?;
        Ok([outputs[0].clone(), outputs[1].clone()])
    }

    /// The weights of a block, transposed, and the cotangents of its scores, with the scale.
    fn transposed(&self, refs: &[Ref], masks: &Masks<'_>, i: &Array, j: &Array) -> [Array; 2] {
        let [q, k, v, ct, lse, mean] = [0, 1, 2, 3, 4, 5].map(|n| refs[n].get());
        let Scores { scores, slope } = self.scores([&k, &q], masks, i, j, 1);
        let weights = (scores - lse).exp();
        let of_scores = &weights * (self.dot(&v, &ct, true) - mean);
        let of_dots = slope.map_or(of_scores.clone(), |slope| of_scores * slope);
        [weights.astype(self.dtype), (of_dots * self.scale).astype(self.dtype)]
    }

    /// Returns the cotangent of the queries. The operands are the masks, queries, keys, values, the output's cotangent,
    /// the logsumexp of each query, and the mean of its weights' cotangents.
    pub fn query_cotangent(self, operands: &[Array]) -> Result<Array> {
        let ([queries, keys], [depth, value_depth]) = (self.blocks, self.depths);
        let last_block = self.counts()[1] - 1;
        let kernel = |refs: &[Ref]| {
            let (masks, refs) = self.masks(refs);
            let [_, k, _, _, _, _, dq, acc] = refs else { return Ok(()) };
            let (i, j) = (program_id(2), program_id(3));
            when(j.equal(0), || acc.set(0.0))?;
            // The grid's last axis is the blocks of keys, so `acc` sums over the keys of one block of queries.
            when(self.is_visible(&masks, &i, &j), || {
                let [_, of_dots] = self.transposed(refs, &masks, &i, &j);
                acc.add(self.dot(&of_dots.t(), &k.get(), false))
            })?;
            when(j.equal(last_block as i32), || dq.set(acc.get().astype(dq.dtype())))
        };
        let key = move |ids: Grid<4>| self.key_block(ids);
        let mut specs = self.mask_specs(1, query_block, key);
        specs.extend([
            Call::block(queries, depth, query_block),
            Call::block(keys, depth, key),
            Call::block(keys, value_depth, key),
            Call::block(queries, value_depth, query_block),
            Call::row(queries, query_block),
            Call::row(queries, query_block),
        ]);
        let [rows, columns] = self.counts();
        let outputs = self
            .call("flash_attention_of_queries", 8, kernel)
            .grid([self.batch, self.heads, rows, columns])
            .in_specs(specs)
            .out_specs([Call::block(queries, depth, query_block)])
            .scratch([wide(&[queries, depth])])
            .cost_estimate(self.cost(2 * depth + value_depth, 5))
            .bind(operands, vec![self.positions(self.sizes[0], self.heads, depth)])?;
        Ok(outputs[0].clone())
    }

    /// Returns the cotangents of keys and values, from the operands of [`query_cotangent`](Self::query_cotangent).
    /// After the blocks of keys, the grid has the heads of queries that share a key head.
    pub fn key_value_cotangents(self, operands: &[Array]) -> Result<[Array; 2]> {
        let ([queries, keys], [depth, value_depth]) = (self.blocks, self.depths);
        let ([rows, columns], group) = (self.counts(), self.group());
        let kernel = |refs: &[Ref]| {
            let (masks, refs) = self.masks(refs);
            let [q, _, _, ct, _, _, dk, dv, dk_sum, dv_sum] = refs else { return Ok(()) };
            let (j, g, i) = (program_id(2), program_id(3), program_id(4));
            when(g.equal(0) & i.equal(0), || {
                dk_sum.set(0.0)?;
                dv_sum.set(0.0)
            })?;
            // The last two axes of the grid are the heads of a group and the blocks of queries, which are summed.
            when(self.is_visible(&masks, &i, &j), || {
                let [weights, of_dots] = self.transposed(refs, &masks, &i, &j);
                dk_sum.add(self.dot(&of_dots, &q.get(), false))?;
                dv_sum.add(self.dot(&weights, &ct.get(), false))
            })?;
            when(g.equal(group as i32 - 1) & i.equal(rows as i32 - 1), || {
                dk.set(dk_sum.get().astype(dk.dtype()))?;
                dv.set(dv_sum.get().astype(dv.dtype()))
            })
        };
        let query = move |[b, h, j, g, i]: Grid<5>| [b, h * group as i32 + g, self.visible(&i, &j, true)];
        let key = key_block_of_keys;
        let mut specs = self.mask_specs(1, query, key);
        specs.extend([
            Call::block(queries, depth, query),
            Call::block(keys, depth, key),
            Call::block(keys, value_depth, key),
            Call::block(queries, value_depth, query),
            Call::row(queries, query),
            Call::row(queries, query),
        ]);
        let sums = [depth, value_depth].map(|depth| wide(&[keys, depth]));
        let outs = self.depths.map(|depth| self.positions(self.sizes[1], self.key_heads, depth));
        let outputs = self
            .call("flash_attention_of_keys", 10, kernel)
            .grid([self.batch, self.key_heads, columns, group, rows])
            .in_specs(specs)
            .out_specs([Call::block(keys, depth, key), Call::block(keys, value_depth, key)])
            .scratch(sums)
            .cost_estimate(self.cost(2 * depth + 2 * value_depth, 6))
            .bind(operands, outs.to_vec())?;
        Ok([outputs[0].clone(), outputs[1].clone()])
    }
}
