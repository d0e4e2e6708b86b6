//! Products with many rows. Each thread dequantizes one panel of the matrix at a time into scratch memory that fits in
//! the cache, and multiplies it there, so that the entire matrix never exists in 32 bits.

use ndarray::{ArrayView2, ArrayViewMut2, Axis, s};
use pulp::{Arch, Simd, WithSimd};

use super::Packed;
use super::words::{LANES, Lanes, Rows, Unit, load, vectors};
use crate::Result;
use crate::product::{Before, product};
use crate::scratch::Scratch;
use crate::tasks::run_tasks;

/// The maximum number of columns of a panel.
const COLUMNS: usize = 128;

/// The maximum number of contracted elements of a panel.
const DEPTH: usize = 512;

/// The minimum number of columns of a task. Smaller tasks would not pay, because every task packs all rows.
const MIN_COLUMNS: usize = 32;

/// Multiplies rows with a matrix.
pub(super) fn multiply<U: Unit>(
    rows: &Rows,
    packed: Packed<'_, U>,
    out: ArrayViewMut2<'_, f32>,
    threads: usize,
) -> Result<()> {
    let (count, columns) = out.dim();
    let part = columns.div_ceil(2 * threads).next_multiple_of(MIN_COLUMNS).min(COLUMNS);
    let mut tasks = Vec::with_capacity(columns.div_ceil(part));
    let mut unassigned = out;
    for start in (0..columns).step_by(part) {
        let (out, following) = unassigned.split_at(Axis(1), part.min(columns - start));
        tasks.push((start, out));
        unassigned = following;
    }
    tasks.reverse();
    let lhs = ArrayView2::from_shape((count, rows.depth), rows.elements())?;
    // A panel consists of entire blocks of words.
    let block = LANES * U::PER_WORD;
    let blocks = rows.depth / block;
    let per_panel = blocks.div_ceil(rows.depth.div_ceil(DEPTH));
    run_tasks(
        tasks,
        threads,
        || (Scratch::new(part * per_panel * block), Numbers::default()),
        |(memory, numbers), (start, mut out)| {
            let columns = out.ncols();
            for first in (0..blocks).step_by(per_panel) {
                let count = per_panel.min(blocks - first);
                let panel = &mut memory[..columns * count * block];
                Arch::new().dispatch(Widen { packed, start, first, numbers, panel, count });
                // The panel has this many elements, so the conversion to this shape cannot fail.
                let Ok(panel) = ArrayView2::from_shape((columns, count * block), &*panel) else { return };
                let lhs = lhs.slice(s![.., first * block..(first + count) * block]);
                let before = if first == 0 { Before::Ignored } else { Before::Added };
                product(&lhs, &panel.t(), before, &mut out);
            }
        },
    );
    Ok(())
}

/// The scales and minima of a column: one for each group, and repeated for each word.
#[derive(Default)]
struct Numbers {
    scales: Vec<f32>,
    minima: Vec<f32>,
    scales_of_words: Vec<Lanes>,
    minima_of_words: Vec<Lanes>,
}

/// Dequantizes the blocks `first..first + count` of the columns that begin with `start`.
struct Widen<'a, 'b, U> {
    packed: Packed<'a, U>,
    start: usize,
    first: usize,
    count: usize,
    numbers: &'b mut Numbers,
    panel: &'b mut [f32],
}

impl<U: Unit> WithSimd for Widen<'_, '_, U> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Widen { packed, start, first, count, numbers, panel } = self;
        let [_, groups, size] = packed.matrix.shape;
        numbers.scales.resize(groups, 0.0);
        numbers.minima.resize(groups, 0.0);
        let panel = panel.as_chunks_mut::<LANES>().0;
        for (offset, wide) in panel.chunks_exact_mut(count * U::PER_WORD).enumerate() {
            let column = start + offset;
            let range = column * groups..(column + 1) * groups;
            // Each word of integers needs its group's scale and minimum in every lane.
            packed.matrix.scales.widen(range.clone(), &mut numbers.scales);
            packed.repeat_for_words(&numbers.scales, size, &mut numbers.scales_of_words);
            if let Some(minima) = packed.matrix.minima {
                minima.widen(range, &mut numbers.minima);
                packed.repeat_for_words(&numbers.minima, size, &mut numbers.minima_of_words);
            }
            let row = packed.row(column);
            for (block, wide) in (first..first + count).zip(wide.chunks_exact_mut(U::PER_WORD)) {
                let scales = S::as_simd_f32s(&numbers.scales_of_words[block]).0;
                let minima = numbers.minima_of_words.get(block).map(|minima| S::as_simd_f32s(minima).0);
                for vector in 0..vectors::<S>() {
                    let words = load::<S>(row, block * vectors::<S>() + vector);
                    for (position, wide) in wide.iter_mut().enumerate() {
                        let wide = &mut S::as_mut_simd_f32s(wide).0[vector];
                        *wide = simd.mul_f32s(U::widened(simd, words, position), scales[vector]);
                        if let Some(minima) = minima {
                            let minimum = simd.mul_f32s(minima[vector], simd.splat_f32s(U::factor(position)));
                            *wide = simd.sub_f32s(*wide, minimum);
                        }
                    }
                }
            }
        }
    }
}
