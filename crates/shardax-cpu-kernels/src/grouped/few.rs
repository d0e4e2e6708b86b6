//! Products of a few rows: every word of the matrix is read once and widened in registers.

use ndarray::{ArrayViewMut2, Axis};
use pulp::{Arch, Simd, WithSimd};

use super::words::{Lanes, Rows, Unit, load, vectors};
use super::{GroupedMatrix, Packed};
use crate::few_rows::sum_of_products;
use crate::prefetch::{AHEAD, prefetch};
use crate::tasks::run_tasks;

/// The number of columns of the result for each task.
const COLUMNS: usize = 64;

/// Multiplies rows with a matrix.
pub(super) fn multiply<U: Unit>(rows: &Rows, packed: Packed<'_, U>, out: ArrayViewMut2<'_, f32>, threads: usize) {
    let columns = out.ncols();
    let mut tasks = Vec::with_capacity(columns.div_ceil(COLUMNS));
    let mut unassigned = out;
    for start in (0..columns).step_by(COLUMNS) {
        let (out, following) = unassigned.split_at(Axis(1), COLUMNS.min(columns - start));
        tasks.push((start, out));
        unassigned = following;
    }
    // `run_tasks` starts with the last task, and the matrix should be read in order.
    tasks.reverse();
    run_tasks(
        tasks,
        threads,
        || [Numbers::new(packed.matrix), Numbers::new(packed.matrix)],
        |numbers, (start, out)| {
            Arch::new().dispatch(Part { rows, packed, start, numbers, out });
        },
    );
}

/// The numbers of the groups of one column.
struct Numbers {
    scales: Vec<f32>,
    minima: Vec<f32>,
    /// The scale of each word's group.
    of_words: Vec<Lanes>,
}

impl Numbers {
    fn new(matrix: GroupedMatrix<'_>) -> Numbers {
        Numbers { scales: vec![0.0; matrix.shape[1]], minima: vec![0.0; matrix.shape[1]], of_words: Vec::new() }
    }

    /// Reads the numbers of a column.
    #[inline(always)]
    fn read<U: Unit>(&mut self, packed: Packed<'_, U>, column: usize) {
        let [_, groups, size] = packed.matrix.shape;
        let range = column * groups..(column + 1) * groups;
        packed.matrix.scales.widen(range.clone(), &mut self.scales);
        packed.repeat_for_words(&self.scales, size, &mut self.of_words);
        if let Some(minima) = packed.matrix.minima {
            minima.widen(range, &mut self.minima);
        }
    }
}

/// A task: some columns of the result.
struct Part<'a, 'b, U> {
    rows: &'a Rows,
    packed: Packed<'a, U>,
    start: usize,
    numbers: &'b mut [Numbers; 2],
    out: ArrayViewMut2<'a, f32>,
}

impl<U: Unit> WithSimd for Part<'_, '_, U> {
    type Output = ();

    /// Multiplies two columns at a time with one row, since each vector of the row is then loaded once for both, or one column with
    /// several rows, since each word is then widened once for all.
    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (count, columns) = self.out.dim();
        for column in (0..columns).step_by(2) {
            let pair = (columns - column).min(2);
            for (offset, numbers) in self.numbers[..pair].iter_mut().enumerate() {
                numbers.read(self.packed, self.start + column + offset);
            }
            if (count, pair) == (1, 2) {
                self.products::<S, 1, 2>(simd, 0, column, 0);
                continue;
            }
            // A closure with this body would not always be inlined, and then call a function for each vector instruction.
            for offset in 0..pair {
                self.column(simd, column + offset, offset);
            }
        }
    }
}

impl<U: Unit> Part<'_, '_, U> {
    /// Multiplies all rows with one column, whose numbers are at `index`.
    #[inline(always)]
    fn column<S: Simd>(&mut self, simd: S, column: usize, index: usize) {
        let count = self.out.nrows();
        for first in (0..count).step_by(4) {
            match count - first {
                1 => self.products::<S, 1, 1>(simd, first, column, index),
                2 => self.products::<S, 2, 1>(simd, first, column, index),
                3 => self.products::<S, 3, 1>(simd, first, column, index),
                _ => self.products::<S, 4, 1>(simd, first, column, index),
            }
        }
    }

    /// Multiplies `H` rows from `first` on with `C` columns, whose numbers are at `index` and behind it.
    #[inline(always)]
    fn products<S: Simd, const H: usize, const C: usize>(
        &mut self,
        simd: S,
        first: usize,
        column: usize,
        index: usize,
    ) {
        let rows: [_; H] = std::array::from_fn(|i| S::as_simd_f32s(self.rows.row(first + i)).0);
        let words: [_; C] = std::array::from_fn(|i| self.packed.row(self.start + column + i));
        let scales: [_; C] =
            std::array::from_fn(|i| S::as_simd_f32s(self.numbers[index + i].of_words.as_flattened()).0);
        let vectors = vectors::<S>();
        let mut totals = [[simd.splat_f32s(0.0); C]; H];
        for i in 0..self.rows.depth / (S::F32_LANES * U::PER_WORD) {
            words.iter().for_each(|words| prefetch(words, i * S::F32_LANES + AHEAD / size_of::<[u8; 4]>()));
            let words: [_; C] = std::array::from_fn(|column| load::<S>(words[column], i));
            let first = i / vectors * vectors * U::PER_WORD + i % vectors;
            // The integers of a group are summed without their scale, which is then multiplied once for each word.
            let mut sums = [[simd.splat_f32s(0.0); C]; H];
            for position in 0..U::PER_WORD {
                let mut wide = [simd.splat_f32s(0.0); C];
                for (wide, words) in wide.iter_mut().zip(words) {
                    *wide = U::widened(simd, words, position);
                }
                for (row, sums) in rows.iter().zip(&mut sums) {
                    let x = row[first + position * vectors];
                    for (wide, sum) in wide.iter().zip(sums) {
                        *sum = simd.mul_add_e_f32s(*wide, x, *sum);
                    }
                }
            }
            for (totals, sums) in totals.iter_mut().zip(&sums) {
                for ((total, sum), scales) in totals.iter_mut().zip(sums).zip(scales) {
                    *total = simd.mul_add_e_f32s(scales[i], *sum, *total);
                }
            }
        }
        for (row, totals) in totals.iter().enumerate() {
            let sums = self.rows.sums(first + row);
            for (offset, total) in totals.iter().enumerate() {
                let total = simd.reduce_sum_f32s(*total);
                let minima = sums.map_or(0.0, |sums| sum_of_products(simd, sums, &self.numbers[index + offset].minima));
                self.out[[first + row, column + offset]] = total - minima;
            }
        }
    }
}
