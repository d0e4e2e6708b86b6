//! Products by the tile registers of AMX, which multiply 16 rows of 16 words with 16 words of 16 columns in one instruction: four times
//! as many products in the same time as AVX512-BF16 and VNNI.
//!
//! A step multiplies 16 words of 32 rows and 32 columns, by two registers for each operand and four for sums. Sums of [`DEPTH`] words
//! are added up outside of the registers, as in the other kernels.

use ndarray::{ArrayViewMut2, s};

use super::pack::{Buffers, Matrix, pack, pack_rows};
use super::tile_registers::Configured;
use super::{COLUMNS, DEPTH, LEFT_BLOCK, LINE, RIGHT_BLOCK, Rounded, Sum, Unit};

/// Rows of a step. There are as many columns.
pub(super) const ROWS: usize = 32;

/// Words of a register's row, and of a step.
pub(super) const WORDS: usize = 16;

/// The words of a step of one operand.
pub(super) const STEP: usize = ROWS * WORDS;

/// The minimum number of rows, and of products of words. Smaller matmuls should use AVX-512, which takes less time for
/// them.
const MIN_ROWS: usize = if cfg!(test) { 1 } else { 16 };
const MIN_PRODUCTS: usize = if cfg!(test) { 1 } else { 1 << 15 };

/// The sums of a step.
#[derive(Clone)]
#[repr(align(64))]
pub(super) struct Sums<T>(pub [[T; COLUMNS]; ROWS]);

/// Products of words in tile registers.
pub(super) trait TileProduct<T>: Copy {
    /// Prepares the registers of the thread until the result is dropped.
    fn configure(self) -> Configured;

    /// Replaces `sums` by the products of these steps: [`ROWS`] rows of [`WORDS`] words, and [`WORDS`] words of [`COLUMNS`] columns.
    /// Does nothing if the numbers of steps differ.
    fn multiply(self, left: &[[u32; STEP]], right: &[[u32; STEP]], sums: &mut Sums<T>);
}

/// Returns `true` if the registers multiply these matrices faster than AVX-512.
pub(super) fn is_worth<U: Unit>(left: Matrix<'_, U::Element>, right: Matrix<'_, U::Element>) -> bool {
    let products = left.sides.saturating_mul(right.sides).saturating_mul(left.depth.div_ceil(U::GROUP));
    left.sides >= MIN_ROWS && products >= MIN_PRODUCTS
}

/// Computes a product of two matrices.
#[inline(always)]
pub(super) fn multiply<U: Unit, R: Rounded<U::Sum>, P: TileProduct<U::Sum>>(
    registers: P,
    [left, right]: [Matrix<'_, U::Element>; 2],
    mut out: ArrayViewMut2<'_, R>,
    buffers: &mut Buffers,
) {
    let words = left.depth.div_ceil(U::GROUP).next_multiple_of(WORDS);
    // A block of the right operand stays in the second cache, because each panel of rows reads all of it.
    let rows = (LEFT_BLOCK / words / ROWS * ROWS).max(ROWS);
    let columns = (RIGHT_BLOCK / 2 / words / COLUMNS * COLUMNS).max(COLUMNS);
    let no_sums = Sums([[U::Sum::default(); COLUMNS]; ROWS]);
    let mut sums = vec![no_sums; columns.min(right.sides).div_ceil(COLUMNS)];
    let _configured = registers.configure();
    for row in (0..left.sides).step_by(rows) {
        let left = left.slice(row, rows.min(left.sides - row));
        let left_steps = aligned(&mut buffers.left, words * left.sides.next_multiple_of(ROWS));
        for (index, panel) in left_steps.chunks_exact_mut(words / WORDS).enumerate() {
            pack_rows::<U>(left.slice(index * ROWS, ROWS.min(left.sides - index * ROWS)), panel);
        }
        for column in (0..right.sides).step_by(columns) {
            let right = right.slice(column, columns.min(right.sides - column));
            let right_steps = aligned(&mut buffers.right, words * right.sides.next_multiple_of(COLUMNS));
            for (index, panel) in right_steps.chunks_exact_mut(words / WORDS).enumerate() {
                let columns = right.slice(index * COLUMNS, COLUMNS.min(right.sides - index * COLUMNS));
                pack::<U, COLUMNS>(columns, 0, panel.as_flattened_mut());
            }
            let mut out = out.slice_mut(s![row..row + left.sides, column..column + right.sides]);
            for (index, panel) in left_steps.chunks_exact(words / WORDS).enumerate() {
                let out = out.slice_mut(s![index * ROWS..(index * ROWS + ROWS).min(left.sides), ..]);
                multiply_panel(registers, panel, right_steps, &mut sums, out);
            }
        }
    }
}

/// Multiplies a panel of rows with a block of the right operand.
#[inline(always)]
fn multiply_panel<T: Sum, R: Rounded<T>, P: TileProduct<T>>(
    registers: P,
    left: &[[u32; STEP]],
    right: &[[u32; STEP]],
    sums: &mut [Sums<T>],
    mut out: ArrayViewMut2<'_, R>,
) {
    let part = left.len().div_ceil(left.len().div_ceil(DEPTH / WORDS));
    let mut products = Sums([[T::default(); COLUMNS]; ROWS]);
    let panels = right.chunks_exact(left.len());
    if part == left.len() {
        for (index, panel) in panels.enumerate() {
            registers.multiply(left, panel, &mut products);
            write(std::slice::from_ref(&products), index, &mut out);
        }
        return;
    }
    // A part of the rows stays in the first cache while all columns are multiplied with it.
    for (index, part_of_rows) in left.chunks(part).enumerate() {
        for (panel, sums) in panels.clone().zip(&mut *sums) {
            let part_of_columns = &panel[index * part..][..part_of_rows.len()];
            if index == 0 {
                registers.multiply(part_of_rows, part_of_columns, sums);
                continue;
            }
            registers.multiply(part_of_rows, part_of_columns, &mut products);
            let pairs = sums.0.as_flattened_mut().iter_mut().zip(products.0.as_flattened());
            pairs.for_each(|(sum, product)| *sum = sum.add(*product));
        }
    }
    // All sums exist now. Writing entire rows one after the other takes less time than the rows of a panel.
    write(sums, 0, &mut out);
}

/// Writes the sums of panels of columns, from the panel `first` on.
#[inline(always)]
fn write<T: Sum, R: Rounded<T>>(panels: &[Sums<T>], first: usize, out: &mut ArrayViewMut2<'_, R>) {
    for (row, mut out) in out.rows_mut().into_iter().enumerate() {
        let Some(out) = out.as_slice_mut() else { continue };
        for (out, sums) in out.chunks_mut(COLUMNS).skip(first).zip(panels) {
            // A copy, because the compiler uses no vectors if it must assume that the result overlaps the sums.
            let sums = sums.0[row];
            match <&mut [R; COLUMNS]>::try_from(&mut *out) {
                // A known length has no loop for the rest.
                Ok(out) => out.iter_mut().zip(sums).for_each(|(out, sum)| *out = R::rounded(sum)),
                Err(_) => out.iter_mut().zip(sums).for_each(|(out, sum)| *out = R::rounded(sum)),
            }
        }
    }
}

/// The first steps of memory that grows if necessary, at the start of a line of the cache.
fn aligned(memory: &mut Vec<u32>, len: usize) -> &mut [[u32; STEP]] {
    if memory.len() < len + LINE {
        memory.resize(len + LINE, 0);
    }
    let start = memory.as_ptr().align_offset(4 * LINE).min(LINE);
    memory[start..start + len].as_chunks_mut().0
}

/// The product of processors without tile registers: no value exists.
#[derive(Clone, Copy)]
pub(super) enum Missing {}

impl<T> TileProduct<T> for Missing {
    fn configure(self) -> Configured {
        match self {}
    }

    fn multiply(self, _: &[[u32; STEP]], _: &[[u32; STEP]], _: &mut Sums<T>) {
        match self {}
    }
}
