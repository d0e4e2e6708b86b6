//! Matmuls of bf16 and of int8 by the processor's instructions for sums of two or four products (AMX, AVX512-BF16,
//! AVX-512 VNNI, and AVX2 for int8), or by ordinary multiplications if the processor lacks these; and matmuls of int32.
//!
//! Products of bf16 are summed in f32 and rounded once. Sums of integers wrap around in 32 bits. The processor's
//! instructions read subnormal bf16 as zero, as XLA's threads do.
//!
//! XLA (xla-cpu-pjrt 0.0.1) widens both operands in memory first, which takes twice as long for bf16 and 30 times as
//! long for int8. Its loop for int32 takes four times as long.

mod amx;
mod int32;
mod pack;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(test)]
mod tests;
mod tile;
#[cfg_attr(not(all(target_arch = "x86_64", target_os = "linux")), path = "no_tile_registers.rs")]
pub(crate) mod tile_registers;

use half::bf16;
use ndarray::{ArrayViewMut2, ArrayViewMut3, Axis, s};
use pulp::{Simd, WithSimd};

use crate::per_type::per_type;
use crate::prefetch::prefetch;
use crate::rounded::Rounded;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{Result, View};
use int32::Int32;
use pack::{Buffers, Matrix, pack};
use tile::{Bf16Pairs, Int8Pairs};

/// The columns of a tile: two vectors of AVX-512.
const COLUMNS: usize = 32;

/// The maximum number of rows of a tile. The sums of a tile of 12 rows take 24 of 32 registers.
const MAX_TILE_ROWS: usize = 12;

/// The number of words whose products are summed up in registers. Shorter chains of additions have smaller errors.
const DEPTH: usize = 256;

/// The number of words of each column that are packed at a time if there are few rows.
const FEW_DEPTH: usize = if cfg!(test) { 8 } else { 64 };

/// The number of panels of columns that are requested together if rows of the matrix are read in place.
const PANELS_AHEAD: usize = 4;

/// The maximum number of words of a packed block of the left and of the right operand. A block has one tile's rows or columns at
/// least. Tests have several blocks of small operands.
const LEFT_BLOCK: usize = if cfg!(test) { 1 << 12 } else { 1 << 20 };
const RIGHT_BLOCK: usize = if cfg!(test) { 1 << 13 } else { 1 << 19 };

/// The words of a line of the cache, at which operands of tile registers begin.
const LINE: usize = 16;

/// The minimum number of multiply-adds of a thread.
const MIN_MULTIPLY_ADDS_PER_THREAD: usize = if cfg!(test) { 1 << 12 } else { 1 << 23 };

/// The approximate number of tasks per thread.
const TASKS_PER_THREAD: usize = 2;

/// The minimum number of rows or columns of a task.
const MIN_SIDE: usize = 48;

/// Elements packed into words of 32 bits, and the multiplication of such words.
trait Unit: Copy + Send + Sync {
    type Element: Copy + Send + Sync;
    type Sum: Sum;
    /// The vectors of the processors that the unit is for. Packing uses them.
    type Vectors: Simd;
    /// The number of elements in a word.
    const GROUP: usize;
    /// The bits of the left operand's words that are inverted.
    const LEFT_MASK: u32 = 0;

    fn vectors(self) -> Self::Vectors;

    /// The bits of the element at this position in a word.
    fn bits(element: Self::Element, position: usize) -> u32;

    /// Writes the words of a row of a tile register.
    #[inline(always)]
    fn row_words(elements: &[Self::Element], words: &mut [u32; amx::WORDS]) {
        words.iter_mut().zip(elements.chunks(Self::GROUP)).for_each(|(word, group)| *word = pack::word::<Self>(group));
    }

    /// Multiplies words of `H` rows with words of [`COLUMNS`] columns.
    fn tile<const H: usize>(self, left: &[u32], right: &[u32], sums: &mut Tile<Self::Sum, H>);

    /// Multiplies words of `H` rows with [`COLUMNS`] columns of a matrix in row order, whose rows have this distance, without packing it,
    /// and writes the products of the columns with [`Self::LEFT_MASK`] if it is not 0. Returns `false` if the unit has no such function;
    /// then nothing is written.
    fn tile_of_rows<const H: usize>(
        self,
        _left: &[u32],
        _right: &[Self::Element],
        _stride: usize,
        _sums: &mut Tile<Self::Sum, H>,
        _excess: &mut [Self::Sum; COLUMNS],
    ) -> bool {
        false
    }

    /// The unit has [`Self::dots`].
    const HAS_DOTS: bool = false;

    /// The processor has 16 registers for vectors instead of 32, so that fewer sums are computed together.
    const HAS_FEW_REGISTERS: bool = false;

    /// The sums of the products of `C` columns whose elements are contiguous and `H` rows. [`LINE`] words of a row are contiguous.
    /// Also writes the products of the columns with [`Self::LEFT_MASK`] if it is not 0.
    fn dots<const H: usize, const C: usize>(
        self,
        _rows: &[[[u32; LINE]; H]],
        _columns: [&[Self::Element]; C],
        _excess: &mut [Self::Sum; C],
    ) -> [[Self::Sum; C]; H] {
        [[Self::Sum::default(); C]; H]
    }

    /// The product of tile registers, if the processor has them.
    fn tile_registers(self) -> Option<impl amx::TileProduct<Self::Sum>> {
        None::<amx::Missing>
    }
}

/// A sum of products.
trait Sum: Copy + Default + Send + Sync {
    fn add(self, other: Self) -> Self;
    fn subtract(self, other: Self) -> Self;
}

impl Sum for f32 {
    #[inline(always)]
    fn add(self, other: f32) -> f32 {
        self + other
    }

    #[inline(always)]
    fn subtract(self, other: f32) -> f32 {
        self - other
    }
}

/// Sums of integers wrap around.
impl Sum for i32 {
    #[inline(always)]
    fn add(self, other: i32) -> i32 {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn subtract(self, other: i32) -> i32 {
        self.wrapping_sub(other)
    }
}

/// The sums of a tile.
type Tile<T, const H: usize> = [[T; COLUMNS]; H];

per_type!(LowPrecision for [f32, bf16] {
    fn matmul_bf16(
        lhs: View<'_, bf16>,
        rhs: View<'_, bf16>,
        contracted: [usize; 2],
        out: &mut [Self],
        threads: usize
    ) = matmul_bf16_of;
});

mod sealed {
    pub trait Sealed: super::LowPrecision + Copy + Send + Sync {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
}

/// The results of [`matmul_bf16`]: f32, or bf16.
pub trait Bf16Sum: sealed::Sealed + Rounded<f32> {}
impl Bf16Sum for f32 {}
impl Bf16Sum for bf16 {}

/// Returns `true` if the processor has instructions for sums of products of bf16. Without them [`matmul_bf16`] is slower than
/// [`matmul`](crate::matmul) of widened operands.
pub fn has_bf16_instructions() -> bool {
    tile::bf16_instructions().is_some()
}

/// Multiplies batches of matrices of bf16, with sums in f32.
///
/// Operands and `contracted` are as in [`matmul`](crate::matmul). A result in bf16 is rounded once. Allocates blocks of less than 8 MiB for
/// each thread, which keeps them for the next call.
///
/// # Errors
/// Returns an error if the batches, the contracted dimensions and the size of the result do not fit each other.
pub fn matmul_bf16<R: Bf16Sum>(
    lhs: View<'_, bf16>,
    rhs: View<'_, bf16>,
    contracted: [usize; 2],
    out: &mut [R],
    threads: usize,
) -> Result<()> {
    R::matmul_bf16(lhs, rhs, contracted, out, threads)
}

fn matmul_bf16_of<R: Bf16Sum>(
    lhs: View<'_, bf16>,
    rhs: View<'_, bf16>,
    contracted: [usize; 2],
    out: &mut [R],
    threads: usize,
) -> Result<()> {
    match tile::bf16_instructions() {
        Some(unit) => multiply(unit, lhs, rhs, contracted, out, threads),
        None => multiply(Bf16Pairs, lhs, rhs, contracted, out, threads),
    }
}

/// Multiplies batches of matrices of int8, with sums in int32 that wrap around.
///
/// Operands and `contracted` are as in [`matmul`](crate::matmul). Allocates blocks of less than 8 MiB for each thread, which keeps
/// them for the next call.
///
/// # Errors
/// Returns an error if the batches, the contracted dimensions and the size of the result do not fit each other.
pub fn matmul_i8(
    lhs: View<'_, i8>,
    rhs: View<'_, i8>,
    contracted: [usize; 2],
    out: &mut [i32],
    threads: usize,
) -> Result<()> {
    match (tile::int8_instructions(), tile::int8_pair_instructions()) {
        (Some(unit), _) => multiply(unit, lhs, rhs, contracted, out, threads),
        (None, Some(unit)) => multiply(unit, lhs, rhs, contracted, out, threads),
        (None, None) => multiply(Int8Pairs, lhs, rhs, contracted, out, threads),
    }
}

/// Multiplies batches of matrices of int32. Products and sums wrap around in 32 bits, so the bits are also the products of uint32.
///
/// Operands and `contracted` are as in [`matmul`](crate::matmul). Allocates blocks of less than 8 MiB for each thread, which keeps
/// them for the next call.
///
/// # Errors
/// Returns an error if the batches, the contracted dimensions and the size of the result do not fit each other.
pub fn matmul_i32(
    lhs: View<'_, i32>,
    rhs: View<'_, i32>,
    contracted: [usize; 2],
    out: &mut [i32],
    threads: usize,
) -> Result<()> {
    #[cfg(target_arch = "x86_64")]
    if let Some(unit) = int32::Int32Vectors::detect() {
        return multiply(unit, lhs, rhs, contracted, out, threads);
    }
    multiply(Int32, lhs, rhs, contracted, out, threads)
}

/// Checks shapes, divides the result into tasks, and runs them.
fn multiply<U: Unit, R: Rounded<U::Sum>>(
    unit: U,
    lhs: View<'_, U::Element>,
    rhs: View<'_, U::Element>,
    contracted: [usize; 2],
    out: &mut [R],
    threads: usize,
) -> Result<()> {
    let (batch, left) = Matrix::batch(lhs, "the left operand", contracted[0])?;
    let (rhs_batch, right) = Matrix::batch(rhs, "the right operand", contracted[1])?;
    check("the batch of the right operand", rhs_batch, batch)?;
    check("the contracted dimension of the right operand", right.depth, left.depth)?;
    let (rows, columns, depth) = (left.sides, right.sides, left.depth);
    let size = [batch, rows, columns].into_iter().fold(1, usize::saturating_mul);
    check("the elements of the result", out.len(), size)?;
    if out.is_empty() || depth == 0 {
        out.fill(R::rounded(U::Sum::default()));
        return Ok(());
    }
    let threads = threads.min(size.saturating_mul(depth) / MIN_MULTIPLY_ADDS_PER_THREAD).max(1);
    // Each task packs its operands: dividing the longer side repeats less of that.
    let axis = if rows >= columns { 0 } else { 1 };
    let side = [rows, columns][axis];
    let parts = if threads == 1 { 1 } else { (TASKS_PER_THREAD * threads).div_ceil(batch).min(side / MIN_SIDE).max(1) };
    let by_registers = unit.tile_registers().is_some() && amx::is_worth::<U>(left, right);
    let rows_of_tile = if by_registers { amx::ROWS } else { MAX_TILE_ROWS };
    let part = side.div_ceil(parts).next_multiple_of([rows_of_tile, COLUMNS][axis]);
    let mut tasks = Vec::with_capacity(batch * parts);
    let mut out = ArrayViewMut3::from_shape((batch, rows, columns), out)?;
    for (index, mut rest) in out.outer_iter_mut().enumerate() {
        let (left, right) = (left.at(index), right.at(index));
        for start in (0..side).step_by(part) {
            let (out, others) = rest.split_at(Axis(axis), part.min(side - start));
            rest = others;
            let (left, right) = match axis {
                0 => (left.slice(start, out.nrows()), right),
                _ => (left, right.slice(start, out.ncols())),
            };
            tasks.push(Task { unit, by_registers, left, right, out });
        }
    }
    // Every unit is compiled only for the vectors that it uses. Otherwise the compiler would need twice as long for the
    // entire crate.
    run_tasks(tasks, threads, Buffers::take, |buffers, task| unit.vectors().vectorize(Run { task, buffers }));
    Ok(())
}

/// A part of a product: operands of one batch and a part of the result.
struct Task<'a, U: Unit, R> {
    unit: U,
    /// Use tile registers. The entire product decides, because sums have other bits in registers.
    by_registers: bool,
    left: Matrix<'a, U::Element>,
    right: Matrix<'a, U::Element>,
    out: ArrayViewMut2<'a, R>,
}

/// A task and the memory that it packs operands into.
struct Run<'a, 'b, U: Unit, R> {
    task: Task<'a, U, R>,
    buffers: &'b mut Buffers,
}

impl<U: Unit, R: Rounded<U::Sum>> WithSimd for Run<'_, '_, U, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Run { task: Task { unit, by_registers, left, right, mut out }, buffers } = self;
        if let (Some(registers), true) = (unit.tile_registers(), by_registers) {
            return amx::multiply::<U, R, _>(registers, [left, right], out, buffers);
        }
        let words = left.depth.div_ceil(U::GROUP);
        if left.sides <= MAX_TILE_ROWS && U::HAS_DOTS && right.columns().is_some() {
            return match left.sides {
                1 => multiply_columns::<U, R, 1, 4>(unit, left, right, out, buffers),
                3..=4 if U::HAS_FEW_REGISTERS => multiply_columns::<U, R, 4, 2>(unit, left, right, out, buffers),
                5..=8 if U::HAS_FEW_REGISTERS => multiply_columns::<U, R, 8, 1>(unit, left, right, out, buffers),
                9.. if U::HAS_FEW_REGISTERS => {
                    multiply_columns::<U, R, MAX_TILE_ROWS, 1>(unit, left, right, out, buffers)
                }
                2 => multiply_columns::<U, R, 2, 4>(unit, left, right, out, buffers),
                3..=4 => multiply_columns::<U, R, 4, 4>(unit, left, right, out, buffers),
                5..=8 => multiply_columns::<U, R, 8, 3>(unit, left, right, out, buffers),
                _ => multiply_columns::<U, R, MAX_TILE_ROWS, 2>(unit, left, right, out, buffers),
            };
        }
        if left.sides <= MAX_TILE_ROWS {
            return match left.sides {
                1 => multiply_few::<U, R, 1>(unit, left, right, out, buffers),
                2 => multiply_few::<U, R, 2>(unit, left, right, out, buffers),
                ..=4 => multiply_few::<U, R, 4>(unit, left, right, out, buffers),
                5..=8 => multiply_few::<U, R, 8>(unit, left, right, out, buffers),
                _ => multiply_few::<U, R, MAX_TILE_ROWS>(unit, left, right, out, buffers),
            };
        }
        let rows = (LEFT_BLOCK / words / MAX_TILE_ROWS * MAX_TILE_ROWS).max(MAX_TILE_ROWS);
        let columns = (RIGHT_BLOCK / words / COLUMNS * COLUMNS).max(COLUMNS);
        for row in (0..left.sides).step_by(rows) {
            let left_rows = left.slice(row, rows.min(left.sides - row));
            let left_block = LeftBlock::pack::<U>(left_rows, words, &mut buffers.left);
            for column in (0..right.sides).step_by(columns) {
                let right = right.slice(column, columns.min(right.sides - column));
                let right = RightBlock::pack(unit, right, words, &mut buffers.right);
                let place = s![row..row + left_block.rows, column..column + right.columns];
                multiply_blocks(unit, &left_block, &right, &mut out.slice_mut(place));
            }
        }
    }
}

/// Multiplies at most `H` rows. Packed words are used once, so that they are packed into few words that stay in the first cache, a part of
/// the sums at a time.
#[inline(always)]
fn multiply_few<U: Unit, R: Rounded<U::Sum>, const H: usize>(
    unit: U,
    left: Matrix<'_, U::Element>,
    right: Matrix<'_, U::Element>,
    mut out: ArrayViewMut2<'_, R>,
    buffers: &mut Buffers,
) {
    // All rows are packed once, because every panel of columns is multiplied with them.
    let words = left.depth.div_ceil(U::GROUP);
    let rows = sized(&mut buffers.left, words * H);
    pack::<U, H>(left, U::LEFT_MASK, rows);
    let panels = right.sides.div_ceil(COLUMNS);
    let mut sums = vec![[[U::Sum::default(); COLUMNS]; H]; panels];
    // The mask makes signed integers of the left side unsigned. Its products with the columns are subtracted at the end.
    let mut excess = vec![[U::Sum::default(); COLUMNS]; if U::LEFT_MASK == 0 { 0 } else { panels }];
    let mask = [U::LEFT_MASK; FEW_DEPTH];
    let mut packed = [0; FEW_DEPTH * COLUMNS];
    for (part, rows) in rows.chunks(FEW_DEPTH * H).enumerate() {
        let depth = rows.len() / H;
        let packed = &mut packed[..depth * COLUMNS];
        for (panel, sums) in sums.iter_mut().enumerate() {
            let start = panel * COLUMNS;
            let columns = right.slice(start, COLUMNS.min(right.sides - start));
            let columns = columns.part(part * FEW_DEPTH * U::GROUP, depth * U::GROUP);
            let mut part_sums = [[U::Sum::default(); COLUMNS]; H];
            let mut part_excess = [[U::Sum::default(); COLUMNS]];
            // A matrix in row order needs no packing if the unit can join its rows in registers.
            let is_multiplied = match columns.full_rows(COLUMNS, depth * U::GROUP) {
                Some((right, stride)) => {
                    prefetch_panels(right, [depth * U::GROUP, stride], panel % PANELS_AHEAD);
                    unit.tile_of_rows(rows, right, stride, &mut part_sums, &mut part_excess[0])
                }
                None => false,
            };
            if !is_multiplied {
                pack::<U, COLUMNS>(columns, 0, packed);
                unit.tile(rows, packed, &mut part_sums);
                if U::LEFT_MASK != 0 {
                    unit.tile::<1>(&mask[..depth], packed, &mut part_excess);
                }
            }
            add_sums(sums.as_flattened_mut(), part_sums.as_flattened());
            if let Some(excess) = excess.get_mut(panel) {
                add_sums(excess, &part_excess[0]);
            }
        }
    }
    let no_excess = [U::Sum::default(); COLUMNS];
    for (panel, sums) in sums.iter().enumerate() {
        let excess = excess.get(panel).unwrap_or(&no_excess);
        let start = panel * COLUMNS;
        let end = (start + COLUMNS).min(right.sides);
        for (mut out, sums) in out.rows_mut().into_iter().zip(sums) {
            let Some(out) = out.as_slice_mut() else { continue };
            write::<U, R>(&mut out[start..end], sums, excess);
        }
    }
}

/// Multiplies at most `H` rows with a matrix whose columns are contiguous, `C` columns at a time, without packing them.
#[inline(always)]
fn multiply_columns<U: Unit, R: Rounded<U::Sum>, const H: usize, const C: usize>(
    unit: U,
    left: Matrix<'_, U::Element>,
    right: Matrix<'_, U::Element>,
    mut out: ArrayViewMut2<'_, R>,
    buffers: &mut Buffers,
) {
    let Some((matrix, stride)) = right.columns() else { return };
    // A vector of each row before the next vectors. Missing rows are zero, and missing columns are others once more: their sums are not
    // written.
    let words = left.depth.div_ceil(U::GROUP).next_multiple_of(LINE);
    let (row_words, rows) = sized(&mut buffers.left, words * (H + 1)).split_at_mut(words);
    let rows = rows.as_chunks_mut::<LINE>().0.as_chunks_mut::<H>().0;
    rows.as_flattened_mut().as_flattened_mut().fill(0);
    for row in 0..left.sides {
        pack::<U, 1>(left.slice(row, 1), U::LEFT_MASK, row_words);
        for (vectors, words) in rows.iter_mut().zip(row_words.as_chunks::<LINE>().0) {
            vectors[row] = *words;
        }
    }
    for start in (0..right.sides).step_by(C) {
        let columns = std::array::from_fn(|i| &matrix[(start + i).min(right.sides - 1) * stride..][..right.depth]);
        let mut excess = [U::Sum::default(); C];
        let sums = unit.dots::<H, C>(&*rows, columns, &mut excess);
        for (mut out, sums) in out.rows_mut().into_iter().zip(sums) {
            for ((out, sum), excess) in out.iter_mut().skip(start).zip(sums).zip(excess) {
                *out = R::rounded(sum.subtract(excess));
            }
        }
    }
}

/// Requests the next panels of some rows of a matrix. Each of [`PANELS_AHEAD`] panels requests its part of the rows, because memory
/// delivers lines that follow each other faster than lines of other rows.
#[inline(always)]
fn prefetch_panels<T>(matrix: &[T], [rows, stride]: [usize; 2], panel: usize) {
    let part = rows.div_ceil(PANELS_AHEAD);
    for row in panel * part..((panel + 1) * part).min(rows) {
        for next in PANELS_AHEAD - panel..2 * PANELS_AHEAD - panel {
            prefetch(matrix, row * stride + next * COLUMNS);
        }
    }
}

#[inline(always)]
fn add_sums<T: Sum>(sums: &mut [T], others: &[T]) {
    sums.iter_mut().zip(others).for_each(|(sum, other)| *sum = sum.add(*other));
}

/// A packed block of the left operand: panels of [`MAX_TILE_ROWS`] rows. The last panel can have fewer rows.
struct LeftBlock<'a> {
    words: &'a [u32],
    rows: usize,
    depth: usize,
}

impl<'a> LeftBlock<'a> {
    #[inline(always)]
    fn pack<U: Unit>(matrix: Matrix<'_, U::Element>, depth: usize, memory: &'a mut Vec<u32>) -> Self {
        let words = sized(memory, depth * matrix.sides.next_multiple_of(MAX_TILE_ROWS));
        for (index, panel) in words.chunks_exact_mut(depth * MAX_TILE_ROWS).enumerate() {
            let rows = matrix.slice(index * MAX_TILE_ROWS, MAX_TILE_ROWS.min(matrix.sides - index * MAX_TILE_ROWS));
            match rows.sides {
                ..=4 => pack::<U, 4>(rows, U::LEFT_MASK, &mut panel[..depth * 4]),
                5..=8 => pack::<U, 8>(rows, U::LEFT_MASK, &mut panel[..depth * 8]),
                _ => pack::<U, MAX_TILE_ROWS>(rows, U::LEFT_MASK, panel),
            }
        }
        LeftBlock { words, rows: matrix.sides, depth }
    }
}

/// A packed block of the right operand: panels of [`COLUMNS`] columns, and the sums that each column adds because bits of the left
/// operand are inverted.
struct RightBlock<'a, T> {
    words: &'a [u32],
    columns: usize,
    excess: Vec<[T; COLUMNS]>,
}

impl<'a, T: Copy + Default> RightBlock<'a, T> {
    #[inline(always)]
    fn pack<U: Unit<Sum = T>>(unit: U, matrix: Matrix<'_, U::Element>, depth: usize, memory: &'a mut Vec<u32>) -> Self {
        let words = sized(memory, depth * matrix.sides.next_multiple_of(COLUMNS));
        let mut excess = vec![[T::default(); COLUMNS]; matrix.sides.div_ceil(COLUMNS)];
        let zeros = vec![U::LEFT_MASK; if U::LEFT_MASK == 0 { 0 } else { depth }];
        for (index, panel) in words.chunks_exact_mut(depth * COLUMNS).enumerate() {
            let columns = matrix.slice(index * COLUMNS, COLUMNS.min(matrix.sides - index * COLUMNS));
            pack::<U, COLUMNS>(columns, 0, panel);
            if U::LEFT_MASK != 0 {
                let mut sums = [[T::default(); COLUMNS]];
                unit.tile::<1>(&zeros, panel, &mut sums);
                [excess[index]] = sums;
            }
        }
        RightBlock { words, columns: matrix.sides, excess }
    }
}

/// The first elements of memory that grows if necessary.
fn sized(memory: &mut Vec<u32>, len: usize) -> &mut [u32] {
    if memory.len() < len {
        memory.resize(len, 0);
    }
    &mut memory[..len]
}

/// Computes a block of the result, a tile at a time.
#[inline(always)]
fn multiply_blocks<U: Unit, R: Rounded<U::Sum>>(
    unit: U,
    left: &LeftBlock<'_>,
    right: &RightBlock<'_, U::Sum>,
    out: &mut ArrayViewMut2<'_, R>,
) {
    let depth = left.depth;
    for (index, rows) in left.words.chunks_exact(depth * MAX_TILE_ROWS).enumerate() {
        let mut out =
            out.slice_mut(s![index * MAX_TILE_ROWS..(index * MAX_TILE_ROWS + MAX_TILE_ROWS).min(left.rows), ..]);
        let panels = right.words.chunks_exact(depth * COLUMNS).zip(&right.excess);
        for (index, (columns, excess)) in panels.enumerate() {
            let end = (index * COLUMNS + COLUMNS).min(right.columns);
            let out = out.slice_mut(s![.., index * COLUMNS..end]);
            match out.nrows() {
                ..=4 => multiply_panels::<U, R, 4>(unit, &rows[..depth * 4], columns, excess, out),
                5..=8 => multiply_panels::<U, R, 8>(unit, &rows[..depth * 8], columns, excess, out),
                _ => multiply_panels::<U, R, MAX_TILE_ROWS>(unit, rows, columns, excess, out),
            }
        }
    }
}

/// Computes a tile of the result. Its sums are divided into equal parts of at most [`DEPTH`] words.
#[inline(always)]
fn multiply_panels<U: Unit, R: Rounded<U::Sum>, const H: usize>(
    unit: U,
    rows: &[u32],
    columns: &[u32],
    excess: &[U::Sum; COLUMNS],
    mut out: ArrayViewMut2<'_, R>,
) {
    let depth = rows.len() / H;
    let part = depth.div_ceil(depth.div_ceil(DEPTH));
    let mut parts = rows.chunks(part * H).zip(columns.chunks(part * COLUMNS));
    let mut sums = [[U::Sum::default(); COLUMNS]; H];
    if let Some((rows, columns)) = parts.next() {
        unit.tile(rows, columns, &mut sums);
    }
    for (rows, columns) in parts {
        let mut part_sums = [[U::Sum::default(); COLUMNS]; H];
        unit.tile(rows, columns, &mut part_sums);
        for (sum, part_sum) in sums.as_flattened_mut().iter_mut().zip(part_sums.as_flattened()) {
            *sum = sum.add(*part_sum);
        }
    }
    for (out, sums) in out.rows_mut().into_iter().zip(&sums) {
        let Some(out) = out.into_slice() else { continue };
        match <&mut [R; COLUMNS]>::try_from(&mut *out) {
            // A known length has no loop for the rest.
            Ok(out) => write::<U, R>(out, sums, excess),
            Err(_) => write::<U, R>(out, sums, excess),
        }
    }
}

/// Writes a row of a tile.
#[inline(always)]
fn write<U: Unit, R: Rounded<U::Sum>>(out: &mut [R], sums: &[U::Sum; COLUMNS], excess: &[U::Sum; COLUMNS]) {
    for ((out, sum), excess) in out.iter_mut().zip(sums).zip(excess) {
        *out = R::rounded(sum.subtract(*excess));
    }
}
