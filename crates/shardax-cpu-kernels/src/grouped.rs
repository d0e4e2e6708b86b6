//! Products of few rows and a matrix of integers of 4 or 8 bits in groups, each with a scale and possibly a minimum. The matrix is read
//! once from memory for eight rows, and widened in registers.
//!
//! XLA (xla-cpu-pjrt 0.0.1) writes the matrix in f32 first, and reads elements of 4 bits one at a time.

use std::ops::Range;

use gemm_common::pulp::{Arch, Simd, WithSimd};
use half::f16;
use ndarray::{ArrayViewMut2, Axis};

use crate::few_rows::sum_of_products;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, ShapeError, View, Weight};

/// The maximum number of rows. With more, widening the matrix once for all rows is faster.
pub const MAX_GROUPED_ROWS: usize = 32;

/// The number of integers that are widened at once: a vector of AVX-512.
const LANES: usize = 16;

/// The number of rows for which the matrix is widened once.
const ROWS: usize = 8;

/// The number of columns of the result for each task.
const COLUMNS: usize = 64;

/// The minimum number of elements of the matrix for each thread.
const THREAD: usize = 1 << 16;

/// The integers of a [`GroupedMatrix`].
#[derive(Clone, Copy, Debug)]
pub enum GroupedIntegers<'a> {
    /// From -8 to 7, two in a byte, the first one in the lower bits.
    Signed4(&'a [u8]),
    /// From 0 to 15, two in a byte, the first one in the lower bits.
    Unsigned4(&'a [u8]),
    /// From -128 to 127.
    Signed8(&'a [i8]),
}

/// Numbers of groups: their scales or their minima.
#[derive(Clone, Copy, Debug)]
pub enum GroupNumbers<'a> {
    /// In half precision.
    F16(&'a [f16]),
    /// In single precision.
    F32(&'a [f32]),
}

/// A matrix of integers in groups. An element is `scale * integer - minimum`, with the scale and the minimum of its group.
#[derive(Clone, Copy, Debug)]
pub struct GroupedMatrix<'a> {
    /// The number of rows, of groups in a row, and of elements in a group. A group has a multiple of 16 integers of 8 bits or of 32
    /// integers of 4 bits.
    pub shape: [usize; 3],
    /// The integers of all groups.
    pub integers: GroupedIntegers<'a>,
    /// One scale for each group.
    pub scales: GroupNumbers<'a>,
    /// One minimum for each group, unless all are zero.
    pub minima: Option<GroupNumbers<'a>>,
}

impl GroupedIntegers<'_> {
    /// Returns `true` if groups of this size can be multiplied.
    pub fn accepts_groups_of(&self, size: usize) -> bool {
        size > 0 && size.is_multiple_of(self.group_multiple())
    }

    fn group_multiple(&self) -> usize {
        if self.is_packed() { 2 * LANES } else { LANES }
    }

    fn is_packed(&self) -> bool {
        !matches!(self, GroupedIntegers::Signed8(_))
    }

    /// The number of integers.
    fn len(&self) -> usize {
        match self {
            GroupedIntegers::Signed4(bytes) | GroupedIntegers::Unsigned4(bytes) => 2 * bytes.len(),
            GroupedIntegers::Signed8(values) => values.len(),
        }
    }
}

impl GroupNumbers<'_> {
    fn len(&self) -> usize {
        match self {
            GroupNumbers::F16(numbers) => numbers.len(),
            GroupNumbers::F32(numbers) => numbers.len(),
        }
    }

    /// Widens the numbers of one row of the matrix.
    #[inline(always)]
    fn widen_row(&self, range: Range<usize>, wide: &mut [f32]) {
        match self {
            GroupNumbers::F16(numbers) => wide.iter_mut().zip(&numbers[range]).for_each(|(to, x)| *to = x.widened()),
            GroupNumbers::F32(numbers) => wide.copy_from_slice(&numbers[range]),
        }
    }
}

/// Multiplies at most [`MAX_GROUPED_ROWS`] rows, `[rows, depth]`, with the transpose of a matrix of integers in groups, `[columns, depth]`.
/// The result is `[rows, columns]`. Allocates as much memory as the rows have.
///
/// ```
/// use shardax_cpu_kernels::{GroupNumbers, GroupedIntegers, GroupedMatrix, View, grouped_rows};
///
/// let matrix = GroupedMatrix {
///     shape: [1, 2, 16],
///     integers: GroupedIntegers::Signed8(&[3; 32]),
///     scales: GroupNumbers::F32(&[0.5, 2.0]),
///     minima: Some(GroupNumbers::F32(&[1.0, 0.0])),
/// };
/// let mut product = [0.0];
/// grouped_rows(View::new(&[1, 32], &[1.0; 32])?, matrix, &mut product, 1)?;
/// assert_eq!(product, [16.0 * (0.5 * 3.0 - 1.0) + 16.0 * (2.0 * 3.0)]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// The shapes must agree with this description, and there must be no more rows.
pub fn grouped_rows(lhs: View<'_, f32>, matrix: GroupedMatrix<'_>, out: &mut [f32], threads: usize) -> Result<()> {
    let ([rows, depth], [columns, groups, size]) = (lhs.dims("the rows")?, matrix.shape);
    if rows > MAX_GROUPED_ROWS || !matrix.integers.accepts_groups_of(size) {
        let multiple = matrix.integers.group_multiple();
        let expected = format!("at most {MAX_GROUPED_ROWS} rows, and groups of a multiple of {multiple} expected");
        return Err(ShapeError(format!("{rows} rows, and groups of {size}: {expected}")));
    }
    let elements = matrix.shape.into_iter().fold(1, usize::saturating_mul);
    check("the contracted dimension of the rows", depth, groups.saturating_mul(size))?;
    check("the integers of the matrix", matrix.integers.len(), elements)?;
    check("the scales of the matrix", matrix.scales.len(), columns.saturating_mul(groups))?;
    if let Some(minima) = matrix.minima {
        check("the minima of the matrix", minima.len(), columns.saturating_mul(groups))?;
    }
    check("the elements of the result", out.len(), rows * columns)?;
    if out.is_empty() || depth == 0 {
        out.fill(0.0);
        return Ok(());
    }
    let threads = threads.min(elements / THREAD).max(1);
    let operand = Rows::new(lhs.data(), matrix, depth);
    let mut tasks = Vec::with_capacity(columns.div_ceil(COLUMNS));
    let mut unassigned = ArrayViewMut2::from_shape((rows, columns), out)?;
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
        || [vec![0.0; groups], vec![0.0; groups]],
        |[scales, minima], (start, out)| {
            Arch::new().dispatch(Part { operand: &operand, matrix, start, scales, minima, out });
        },
    );
    Ok(())
}

/// The rows of the left operand.
struct Rows {
    /// The elements of each row. With integers of 4 bits, the even ones of each 32 elements come first and then the odd ones, because
    /// a byte holds an even integer in its lower bits and an odd one in its upper bits.
    elements: Vec<f32>,
    /// The sums of each row's groups, if the matrix has minima.
    sums: Vec<f32>,
    depth: usize,
}

impl Rows {
    fn new(rows: &[f32], matrix: GroupedMatrix<'_>, depth: usize) -> Rows {
        let mut elements = rows.to_vec();
        if matrix.integers.is_packed() {
            let blocks =
                elements.as_chunks_mut::<{ 2 * LANES }>().0.iter_mut().zip(rows.as_chunks::<{ 2 * LANES }>().0);
            for (block, row) in blocks {
                for i in 0..LANES {
                    (block[i], block[LANES + i]) = (row[2 * i], row[2 * i + 1]);
                }
            }
        }
        let sums = matrix.minima.map_or(Vec::new(), |_| rows.chunks(matrix.shape[2]).map(|x| x.iter().sum()).collect());
        Rows { elements, sums, depth }
    }
}

/// A task: some columns of the result.
struct Part<'a, 'b> {
    operand: &'a Rows,
    matrix: GroupedMatrix<'a>,
    start: usize,
    scales: &'b mut Vec<f32>,
    minima: &'b mut Vec<f32>,
    out: ArrayViewMut2<'a, f32>,
}

impl WithSimd for Part<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.matrix.integers {
            GroupedIntegers::Signed4(bytes) => self.columns(simd, bytes, Signed4),
            GroupedIntegers::Unsigned4(bytes) => self.columns(simd, bytes, Unsigned4),
            GroupedIntegers::Signed8(values) => self.columns(simd, values, Signed8),
        }
    }
}

impl Part<'_, '_> {
    #[inline(always)]
    fn columns<S: Simd, U: Unit>(mut self, simd: S, stored: &[U::Stored], _: U) {
        let [_, groups, size] = self.matrix.shape;
        let (stored, _) = stored.as_chunks::<LANES>();
        let per_row = groups * size / LANES / U::VECTORS;
        for column in 0..self.out.ncols() {
            let index = self.start + column;
            self.matrix.scales.widen_row(index * groups..(index + 1) * groups, self.scales);
            if let Some(minima) = self.matrix.minima {
                minima.widen_row(index * groups..(index + 1) * groups, self.minima);
            }
            let row = &stored[index * per_row..(index + 1) * per_row];
            for first in (0..self.out.nrows()).step_by(ROWS) {
                match self.out.nrows() - first {
                    1 => self.products::<S, U, 1>(simd, row, first, column),
                    2..=4 => self.products::<S, U, 4>(simd, row, first, column),
                    _ => self.products::<S, U, ROWS>(simd, row, first, column),
                }
            }
        }
    }

    /// Multiplies `H` rows from `first` on, or as many as there are, with a row of the matrix.
    #[inline(always)]
    fn products<S: Simd, U: Unit, const H: usize>(
        &mut self,
        simd: S,
        stored: &[[U::Stored; LANES]],
        first: usize,
        column: usize,
    ) {
        let ([_, groups, size], last) = (self.matrix.shape, self.out.nrows() - 1);
        let Rows { elements, sums: group_sums, depth } = self.operand;
        let rows: [&[[f32; LANES]]; H] = std::array::from_fn(|i| {
            let row = (first + i).min(last);
            elements[row * depth..(row + 1) * depth].as_chunks().0
        });
        // The integers of a group are summed without their scale, which is then multiplied once per group.
        let mut totals = [[0.0; LANES]; H];
        for (group, (stored, scale)) in stored.chunks_exact(size / LANES / U::VECTORS).zip(&*self.scales).enumerate() {
            let xs = rows.map(|row| &row[group * size / LANES..(group + 1) * size / LANES]);
            let mut sums = [[0.0; LANES]; H];
            for (i, stored) in stored.iter().enumerate() {
                let wide = U::widened(stored);
                for (j, wide) in wide.as_ref().iter().enumerate() {
                    for (sum, x) in sums.iter_mut().zip(xs) {
                        add_products(simd, wide, &x[i * U::VECTORS + j], sum);
                    }
                }
            }
            for (total, sum) in totals.iter_mut().zip(&sums) {
                add_products(simd, &[*scale; LANES], sum, total);
            }
        }
        for (row, total) in (first..=last).zip(totals) {
            let total = S::as_simd_f32s(&total).0.iter().fold(simd.splat_f32s(0.0), |sum, x| simd.add_f32s(sum, *x));
            let total = simd.reduce_sum_f32s(total);
            let minima = match group_sums.get(row * groups..(row + 1) * groups) {
                Some(sums) => sum_of_products(simd, sums, self.minima),
                None => 0.0,
            };
            self.out[[row, column]] = total - minima;
        }
    }
}

/// A storage format of integers.
trait Unit: Copy {
    type Stored: Copy;
    type Wide: AsRef<[[f32; LANES]]>;
    /// The number of vectors that [`LANES`] stored values contain.
    const VECTORS: usize;

    fn widened(stored: &[Self::Stored; LANES]) -> Self::Wide;
}

#[derive(Clone, Copy)]
struct Signed4;

impl Unit for Signed4 {
    type Stored = u8;
    type Wide = [[f32; LANES]; 2];
    const VECTORS: usize = 2;

    #[inline(always)]
    fn widened(stored: &[u8; LANES]) -> Self::Wide {
        // The shift to the highest bits and back extends the sign.
        [
            stored.map(|byte| (i32::from(byte) << 28 >> 28) as f32),
            stored.map(|byte| (i32::from(byte) << 24 >> 28) as f32),
        ]
    }
}

#[derive(Clone, Copy)]
struct Unsigned4;

impl Unit for Unsigned4 {
    type Stored = u8;
    type Wide = [[f32; LANES]; 2];
    const VECTORS: usize = 2;

    #[inline(always)]
    fn widened(stored: &[u8; LANES]) -> Self::Wide {
        [stored.map(|byte| f32::from(byte & 15)), stored.map(|byte| f32::from(byte >> 4))]
    }
}

#[derive(Clone, Copy)]
struct Signed8;

impl Unit for Signed8 {
    type Stored = i8;
    type Wide = [[f32; LANES]; 1];
    const VECTORS: usize = 1;

    #[inline(always)]
    fn widened(stored: &[i8; LANES]) -> Self::Wide {
        [stored.map(f32::from)]
    }
}

/// Adds the products of two vectors' elements to a third.
#[inline(always)]
fn add_products<S: Simd>(simd: S, x: &[f32; LANES], y: &[f32; LANES], sums: &mut [f32; LANES]) {
    let (x, y, sums) = (S::as_simd_f32s(x).0, S::as_simd_f32s(y).0, S::as_mut_simd_f32s(sums).0);
    for ((x, y), sum) in x.iter().zip(y).zip(sums) {
        *sum = simd.mul_add_e_f32s(*x, *y, *sum);
    }
}
