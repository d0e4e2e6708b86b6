//! Products of one or two rows and integers of 8 bits in groups of at least 32. The processor can convert neighbouring
//! bytes directly, so the integers are widened in the order of the elements. This is faster than words (`words.rs`),
//! because a group fills entire vectors.

use ndarray::{ArrayViewMut2, Axis};
use pulp::{Arch, Simd, WithSimd, bytemuck};

use super::words::{LANES, Lanes, Signed8};
use super::{GroupedMatrix, Packed};
use crate::few_rows::{add_products, sum_of_products};
use crate::prefetch::{AHEAD, prefetch};
use crate::tasks::run_tasks;

/// The number of columns of the result for each task.
const COLUMNS: usize = 64;

/// The maximum number of rows. More rows should use words, which are twice as fast on AVX2 with four rows.
const MAX_ROWS: usize = 2;

/// Returns `true` for products that this kernel computes.
pub(super) fn accepts(rows: usize, size: usize) -> bool {
    rows <= MAX_ROWS && size.is_multiple_of(2 * LANES)
}

/// Multiplies rows with a matrix.
pub(super) fn multiply(rows: &[f32], packed: Packed<'_, Signed8>, mut out: ArrayViewMut2<'_, f32>, threads: usize) {
    let matrix = packed.matrix;
    let sums = matrix.minima.map_or(Vec::new(), |_| rows.chunks(matrix.shape[2]).map(|x| x.iter().sum()).collect());
    let parts = out.axis_chunks_iter_mut(Axis(1), COLUMNS).enumerate();
    let mut tasks: Vec<_> = parts.map(|(index, out)| (index * COLUMNS, out)).collect();
    // `run_tasks` starts with the last task, and the matrix should be read in order.
    tasks.reverse();
    run_tasks(
        tasks,
        threads,
        || [vec![0.0; matrix.shape[1]], vec![0.0; matrix.shape[1]]],
        |numbers, (start, out)| {
            Arch::new().dispatch(Part { rows, sums: &sums, packed, start, numbers, out });
        },
    );
}

/// A task: some columns of the result.
struct Part<'a, 'b> {
    rows: &'a [f32],
    /// The sums of each row's groups, if the matrix has minima.
    sums: &'a [f32],
    packed: Packed<'a, Signed8>,
    start: usize,
    numbers: &'b mut [Vec<f32>; 2],
    out: ArrayViewMut2<'a, f32>,
}

impl WithSimd for Part<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.out.nrows() {
            1 => self.products::<S, 1>(simd),
            _ => self.products::<S, MAX_ROWS>(simd),
        }
    }
}

impl Part<'_, '_> {
    /// Multiplies `H` rows, each with all columns.
    #[inline(always)]
    fn products<S: Simd, const H: usize>(self, simd: S) {
        let Part { rows, sums: group_sums, packed, start, numbers: [scales, minima], mut out } = self;
        let GroupedMatrix { shape: [_, groups, size], .. } = packed.matrix;
        let rows: [&[Lanes]; H] =
            std::array::from_fn(|i| rows[i * groups * size..(i + 1) * groups * size].as_chunks().0);
        let matrix: &[i8] = bytemuck::cast_slice(packed.words.as_flattened());
        let per_group = size / LANES;
        for (column, mut out) in (start..).zip(out.columns_mut()) {
            let range = column * groups..(column + 1) * groups;
            packed.matrix.scales.widen(range.clone(), scales);
            let first = column * groups * size;
            let integers = &matrix[first..first + groups * size];
            let mut totals = [[0.0; LANES]; H];
            let parts = integers.as_chunks::<LANES>().0.chunks_exact(per_group);
            for (group, (integers, scale)) in parts.zip(&*scales).enumerate() {
                prefetch(matrix, first + group * size + AHEAD);
                let xs = rows.map(|row| &row[group * per_group..(group + 1) * per_group]);
                // The integers of a group are summed without their scale.
                let mut sums = [[0.0; LANES]; H];
                for (i, integers) in integers.iter().enumerate() {
                    let wide = integers.map(f32::from);
                    for (sum, x) in sums.iter_mut().zip(xs) {
                        add_products(simd, &wide, &x[i], sum);
                    }
                }
                for (total, sum) in totals.iter_mut().zip(&sums) {
                    add_products(simd, &[*scale; LANES], sum, total);
                }
            }
            if let Some(numbers) = packed.matrix.minima {
                numbers.widen(range, minima);
            }
            for (row, total) in totals.iter().enumerate() {
                let vectors = S::as_simd_f32s(total).0.iter();
                let total = simd.reduce_sum_f32s(vectors.fold(simd.splat_f32s(0.0), |sum, x| simd.add_f32s(sum, *x)));
                let minima = match group_sums.get(row * groups..(row + 1) * groups) {
                    Some(sums) => sum_of_products(simd, sums, minima),
                    None => 0.0,
                };
                out[row] = total - minima;
            }
        }
    }
}
