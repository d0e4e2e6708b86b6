//! Multiplies a few rows by a matrix whose elements have fewer bits than f32. Every element is read from memory once and
//! widened in registers, so that a decoder that computes one token at a time needs little more time than reading its
//! weights takes.
//!
//! XLA (xla-cpu-pjrt 0.0.1) first widens the entire matrix in memory, so it writes and reads four or eight times as much.

use std::ops::Range;

use half::{bf16, f16};
use ndarray::{ArrayViewMut1, ArrayViewMut2, Axis, s};
use pulp::{Arch, Simd, WithSimd};

use crate::per_type::per_type;
use crate::prefetch::{AHEAD, prefetch};
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, ShapeError, View};

/// The maximum number of rows of [`few_rows`]. For more rows, you should call [`matmul`](crate::matmul) instead.
pub const MAX_ROWS: usize = 8;

/// The number of contracted elements that are added up before their sum is added to the result, because short chains of
/// additions have smaller rounding errors.
const CHUNK_DEPTH: usize = 512;

/// The number of sums that are computed together; they fit in the second-level cache. With fewer sums, the processor would
/// read rows of the matrix in parts that are too short to be fetched ahead.
const SUMS_PER_BLOCK: usize = 16384;

/// The number of rows of the matrix, or of vectors of a sum, that are added at once.
const UNROLL: usize = 4;

/// The number of sums of each row and column that are computed at once, so that an addition need not wait for the one before.
const CHAINS: usize = 4;

/// The number of rows that a column of contiguous elements is multiplied with at once.
const ROWS_OF_COLUMN: usize = 4;

/// The number of columns whose elements stay in registers while all rows are multiplied with them: a vector of AVX-512, or two of AVX2.
const LANES: usize = 16;

/// The minimum number of elements of the matrix for each thread.
const MIN_ELEMENTS_PER_THREAD: usize = 1 << 18;

per_type!(FewRows for [i8, u8, bf16, f16] {
    fn few_rows(
        lhs: View<'_, f32>,
        rhs: View<'_, Self>,
        contracted: usize,
        out: &mut [f32],
        threads: usize
    ) = few_rows_of;
});

/// An element of the matrix of [`few_rows`].
pub trait Weight: FewRows + Copy + Send + Sync {
    /// This number in f32, without rounding.
    fn widened(self) -> f32;
}

impl Weight for i8 {
    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from(self)
    }
}

impl Weight for u8 {
    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from(self)
    }
}

impl Weight for bf16 {
    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Weight for f16 {
    /// Has no branches, so that the compiler can vectorize it. No intermediate number is subnormal, because XLA's threads flush
    /// subnormal numbers to zero.
    #[inline(always)]
    fn widened(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let (sign, magnitude) = ((bits & 0x8000) << 16, bits & 0x7fff);
        let normal = (magnitude << 13) + (112 << 23);
        let infinite = normal + (112 << 23);
        // 2⁻¹⁴ + subnormal - 2⁻¹⁴, which is exact.
        let least = f32::from_bits(113 << 23);
        let subnormal = (f32::from_bits((magnitude << 13) + (113 << 23)) - least).to_bits();
        let normal_or_infinite = if magnitude >= 0x7c00 { infinite } else { normal };
        f32::from_bits(sign | if magnitude < 0x400 { subnormal } else { normal_or_infinite })
    }
}

/// Multiplies at most [`MAX_ROWS`] rows, `[rows, depth]`, with a matrix. `contracted` is the dimension of the matrix that is
/// summed over: the matrix must be `[depth, columns]` if `contracted` is 0, and `[columns, depth]` if it is 1. The result is
/// `[rows, columns]`, in f32. For more rows you should widen the matrix once and call [`matmul`](crate::matmul) instead.
///
/// ```
/// use shardax_cpu_kernels::{View, few_rows};
///
/// let mut product = [0.0; 3];
/// let weights = View::new(&[2, 3], &[1i8, -2, 3, 4, 5, -6])?;
/// few_rows(View::new(&[1, 2], &[1.0, 10.0])?, weights, 0, &mut product, 1)?;
/// assert_eq!(product, [41.0, 48.0, -57.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the shapes do not agree with this description, or if there are more rows.
pub fn few_rows<W: Weight>(
    lhs: View<'_, f32>,
    rhs: View<'_, W>,
    contracted: usize,
    out: &mut [f32],
    threads: usize,
) -> Result<()> {
    W::few_rows(lhs, rhs, contracted, out, threads)
}

fn few_rows_of<W: Weight>(
    lhs: View<'_, f32>,
    rhs: View<'_, W>,
    contracted: usize,
    out: &mut [f32],
    threads: usize,
) -> Result<()> {
    let ([rows, depth], dims) = (lhs.dims("the rows")?, rhs.dims::<2>("the matrix")?);
    if contracted > 1 || rows > MAX_ROWS {
        let expected = format!("dimension 0 or 1, and at most {MAX_ROWS} rows");
        return Err(ShapeError(format!("{rows} rows, and dimension {contracted} of a matrix: {expected} expected")));
    }
    let columns = dims[1 - contracted];
    check("the contracted dimension of the matrix", dims[contracted], depth)?;
    check("the elements of the result", out.len(), rows * columns)?;
    out.fill(0.0);
    if out.is_empty() || depth == 0 {
        return Ok(());
    }
    let threads = threads.min(rhs.data().len() / MIN_ELEMENTS_PER_THREAD).max(1);
    let block = (SUMS_PER_BLOCK / rows).min(columns.div_ceil(2 * threads).next_multiple_of(64));
    let mut tasks = Vec::with_capacity(columns.div_ceil(block));
    let mut unassigned = ArrayViewMut2::from_shape((rows, columns), out)?;
    for start in (0..columns).step_by(block) {
        let (part, following) = unassigned.split_at(Axis(1), block.min(columns - start));
        tasks.push((start..start + part.ncols(), part));
        unassigned = following;
    }
    // The last task runs first, so this order reads the matrix from its beginning.
    tasks.reverse();
    run_tasks(tasks, threads, Vec::new, |scratch, (columns, out)| {
        Arch::new().dispatch(Part { lhs: lhs.data(), rhs, columns, contracted, scratch, out });
    });
    Ok(())
}

/// A task: some columns of the matrix and of the result.
struct Part<'a, 'b, W> {
    lhs: &'a [f32],
    rhs: View<'a, W>,
    columns: Range<usize>,
    contracted: usize,
    scratch: &'b mut Vec<f32>,
    out: ArrayViewMut2<'a, f32>,
}

impl<W: Weight> WithSimd for Part<'_, '_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.contracted == 0 { self.by_rows(simd) } else { self.by_columns(simd) }
    }
}

impl<W: Weight> Part<'_, '_, W> {
    /// Adds rows of the matrix, four at once, times elements of each of the operand's rows.
    #[inline(always)]
    fn by_rows<S: Simd>(mut self, simd: S) {
        let ([depth, stride], width) = ([self.rhs.shape()[0], self.rhs.shape()[1]], self.columns.len());
        // Sums of at most `CHUNK_DEPTH` products are added to the result, which rounds less than one long sum.
        let sums = self.scratch;
        sums.resize(self.out.len(), 0.0);
        for start in (0..depth).step_by(CHUNK_DEPTH) {
            let end = (start + CHUNK_DEPTH).min(depth);
            let fours = start + (end - start) / UNROLL * UNROLL;
            sums.fill(0.0);
            for k in (start..fours).step_by(UNROLL) {
                let rows: [_; UNROLL] =
                    std::array::from_fn(|i| &self.rhs.data()[(k + i) * stride..][self.columns.clone()]);
                let chunks = rows.map(|row| row.as_chunks::<LANES>().0);
                // Elements are widened once for all rows of the operand.
                for index in 0..width / LANES {
                    prefetch_rows(self.rhs, &self.columns, k, index * LANES + AHEAD / UNROLL / size_of::<W>());
                    let mut chunk = [[0.0; LANES]; UNROLL];
                    for (wide, chunks) in chunk.iter_mut().zip(chunks) {
                        widen(&chunks[index], wide);
                    }
                    for (x, sums) in self.lhs.chunks_exact(depth).zip(sums.chunks_exact_mut(width)) {
                        let factors = [x[k], x[k + 1], x[k + 2], x[k + 3]];
                        add_rows(simd, factors, &chunk, &mut sums.as_chunks_mut().0[index]);
                    }
                }
                let in_chunks = width / LANES * LANES;
                for (x, sums) in self.lhs.chunks_exact(depth).zip(sums.chunks_exact_mut(width)) {
                    for (j, sum) in sums.iter_mut().enumerate().skip(in_chunks) {
                        let products = rows.iter().zip(&x[k..k + UNROLL]).map(|(row, x)| x * row[j].widened());
                        *sum += products.sum::<f32>();
                    }
                }
            }
            for k in fours..end {
                let row = &self.rhs.data()[k * stride..][self.columns.clone()];
                for (x, sums) in self.lhs.chunks_exact(depth).zip(sums.chunks_exact_mut(width)) {
                    sums.iter_mut().zip(row).for_each(|(sum, w)| *sum += x[k] * w.widened());
                }
            }
            for (mut out, sums) in self.out.rows_mut().into_iter().zip(sums.chunks_exact(width)) {
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
            }
        }
    }

    /// Multiplies each of the operand's rows with rows of the matrix, element by element, and sums up.
    #[inline(always)]
    fn by_columns<S: Simd>(mut self, simd: S) {
        let depth = self.rhs.shape()[1];
        let matrix = &self.rhs.data()[self.columns.start * depth..self.columns.end * depth];
        for (column, w) in matrix.chunks_exact(depth).enumerate() {
            for (first, x) in (0..).step_by(ROWS_OF_COLUMN).zip(self.lhs.chunks(ROWS_OF_COLUMN * depth)) {
                let mut out = self.out.slice_mut(s![first.., column]);
                match x.len() / depth {
                    1 => write_products::<S, W, 1>(simd, x, w, &mut out),
                    2 => write_products::<S, W, 2>(simd, x, w, &mut out),
                    3 => write_products::<S, W, 3>(simd, x, w, &mut out),
                    _ => write_products::<S, W, ROWS_OF_COLUMN>(simd, x, w, &mut out),
                }
            }
        }
    }
}

/// Writes the products of `H` rows and a column, whose elements are widened once for all rows.
#[inline(always)]
fn write_products<S: Simd, W: Weight, const H: usize>(simd: S, x: &[f32], w: &[W], out: &mut ArrayViewMut1<'_, f32>) {
    let rows: [&[f32]; H] = std::array::from_fn(|i| &x[i * w.len()..(i + 1) * w.len()]);
    let mut sums = [[[0.0; LANES]; CHAINS]; H];
    let blocks = w.as_chunks::<LANES>().0.as_chunks::<CHAINS>().0;
    for (block, w) in blocks.iter().enumerate() {
        for (chain, w) in w.iter().enumerate() {
            let start = (block * CHAINS + chain) * LANES;
            prefetch(w, AHEAD / size_of::<W>());
            let mut wide = [0.0; LANES];
            widen(w, &mut wide);
            for (sums, row) in sums.iter_mut().zip(rows) {
                let (x, _) = row[start..start + LANES].as_chunks::<LANES>();
                add_products(simd, &wide, &x[0], &mut sums[chain]);
            }
        }
    }
    let in_blocks = blocks.len() * CHAINS * LANES;
    for ((out, sums), row) in out.iter_mut().zip(&sums).zip(rows) {
        let remainder: f32 = row[in_blocks..].iter().zip(&w[in_blocks..]).map(|(x, w)| x * w.widened()).sum();
        let vectors = S::as_simd_f32s(sums.as_flattened()).0.iter();
        *out = remainder + simd.reduce_sum_f32s(vectors.fold(simd.splat_f32s(0.0), |sum, x| simd.add_f32s(sum, *x)));
    }
}

/// Adds the products of two vectors' elements to a third.
#[inline(always)]
pub(crate) fn add_products<S: Simd>(simd: S, x: &[f32; LANES], y: &[f32; LANES], sums: &mut [f32; LANES]) {
    let (x, y, sums) = (S::as_simd_f32s(x).0, S::as_simd_f32s(y).0, S::as_mut_simd_f32s(sums).0);
    for ((x, y), sum) in x.iter().zip(y).zip(sums) {
        *sum = simd.mul_add_e_f32s(*x, *y, *sum);
    }
}

/// Requests elements of the four rows from `k` on, or of the next four if the rows have fewer columns.
#[inline(always)]
fn prefetch_rows<W>(matrix: View<'_, W>, columns: &Range<usize>, k: usize, column: usize) {
    let width = columns.len();
    let (k, column) = if column < width { (k, column) } else { (k + UNROLL, (column - width).min(width)) };
    (k..k + UNROLL).for_each(|k| prefetch(matrix.data(), k * matrix.shape()[1] + columns.start + column));
}

/// Adds the elements of rows times their factors.
#[inline(always)]
fn add_rows<S: Simd>(simd: S, factors: [f32; UNROLL], rows: &[[f32; LANES]; UNROLL], sums: &mut [f32; LANES]) {
    let [a, b, c, d] = factors;
    // `array::map` would not always be inlined, and then call a function for each vector instruction.
    let factors = [simd.splat_f32s(a), simd.splat_f32s(b), simd.splat_f32s(c), simd.splat_f32s(d)];
    let [a, b, c, d] = rows;
    let rows = [S::as_simd_f32s(a).0, S::as_simd_f32s(b).0, S::as_simd_f32s(c).0, S::as_simd_f32s(d).0];
    for (i, sum) in S::as_mut_simd_f32s(sums).0.iter_mut().enumerate() {
        // Two short chains of additions.
        let low = simd.mul_add_e_f32s(factors[1], rows[1][i], simd.mul_f32s(factors[0], rows[0][i]));
        let high = simd.mul_add_e_f32s(factors[3], rows[3][i], simd.mul_f32s(factors[2], rows[2][i]));
        *sum = simd.add_f32s(*sum, simd.add_f32s(low, high));
    }
}

/// Widens elements, in a loop because `array::map` would not always be inlined.
#[inline(always)]
fn widen<W: Weight>(from: &[W; LANES], to: &mut [f32; LANES]) {
    for i in 0..LANES {
        to[i] = from[i].widened();
    }
}

/// The sum of the products of the elements of two slices.
#[inline(always)]
pub(crate) fn sum_of_products<S: Simd>(simd: S, x: &[f32], y: &[f32]) -> f32 {
    let ((x, x_rest), (y, y_rest)) = (S::as_simd_f32s(x), S::as_simd_f32s(y));
    let ((x, x_last), (y, y_last)) = (x.as_chunks::<UNROLL>(), y.as_chunks::<UNROLL>());
    let mut sums = [simd.splat_f32s(0.0); UNROLL];
    for (x, y) in x.iter().zip(y) {
        for i in 0..UNROLL {
            sums[i] = simd.mul_add_e_f32s(x[i], y[i], sums[i]);
        }
    }
    let [a, b, c, d] = sums;
    let mut sum = simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d));
    for (x, y) in x_last.iter().zip(y_last) {
        sum = simd.mul_add_e_f32s(*x, *y, sum);
    }
    let scalar_sum: f32 = x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum();
    simd.reduce_sum_f32s(sum) + scalar_sum
}

/// Adds the elements of a slice times a factor.
#[inline(always)]
pub(crate) fn add_scaled<S: Simd>(simd: S, factor: f32, x: &[f32], y: &mut [f32]) {
    let ((x, x_rest), (y, y_rest)) = (S::as_simd_f32s(x), S::as_mut_simd_f32s(y));
    let factors = simd.splat_f32s(factor);
    y.iter_mut().zip(x).for_each(|(y, x)| *y = simd.mul_add_e_f32s(factors, *x, *y));
    y_rest.iter_mut().zip(x_rest).for_each(|(y, x)| *y += factor * x);
}
