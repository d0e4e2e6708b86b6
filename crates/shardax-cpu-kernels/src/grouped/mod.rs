//! Products of rows and a matrix of integers of 4 or 8 bits in groups, each with a scale and possibly a minimum. The
//! matrix is never widened in memory, because reading it takes most of the time. A few rows are multiplied with
//! integers that are widened in registers (`few.rs`, `bytes.rs`), and more rows with panels that are widened into the
//! cache: as bf16 for the tile registers of AMX (`tiles.rs`), or as f32 (`panel.rs`).
//!
//! XLA (xla-cpu-pjrt 0.0.1) writes the entire matrix in f32 first, and reads elements of 4 bits one at a time.

mod bytes;
mod few;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod group_products;
mod panel;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;
mod words;

use std::marker::PhantomData;
use std::ops::Range;

use half::f16;
use ndarray::{ArrayViewMut2, Axis};
use pulp::bytemuck;

use crate::view::check;
use crate::{Result, ShapeError, View, Weight};
use words::{LANES, Lanes, Rows, Signed4, Signed8, Unit, Unsigned4};

/// The maximum number of rows that are multiplied with integers in registers. With more, panels are faster.
const MAX_REGISTER_ROWS: usize = 8;

/// The number of rows that are multiplied together, which bounds the memory of reordered rows.
const ROWS_PER_CHUNK: usize = 1024;

/// The minimum number of elements of the matrix for each thread.
const MIN_ELEMENTS_PER_THREAD: usize = 1 << 16;

/// The number of words that a group has a multiple of.
const GROUP_WORDS: usize = 4;

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
    /// One minimum for each group. You should pass `None` if all are zero, because the kernel is faster without them.
    pub minima: Option<GroupNumbers<'a>>,
}

impl GroupedIntegers<'_> {
    /// Returns `true` if the matrix can have groups of this size. You must regroup or widen matrices of other sizes.
    pub fn accepts_groups_of(&self, size: usize) -> bool {
        size > 0 && size.is_multiple_of(self.group_multiple())
    }

    fn group_multiple(&self) -> usize {
        match self {
            GroupedIntegers::Signed4(_) | GroupedIntegers::Unsigned4(_) => 8 * GROUP_WORDS,
            GroupedIntegers::Signed8(_) => 4 * GROUP_WORDS,
        }
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

    /// Widens some of the numbers.
    #[inline(always)]
    fn widen(&self, range: Range<usize>, wide: &mut [f32]) {
        match self {
            GroupNumbers::F16(numbers) => wide.iter_mut().zip(&numbers[range]).for_each(|(to, x)| *to = x.widened()),
            GroupNumbers::F32(numbers) => wide.copy_from_slice(&numbers[range]),
        }
    }
}

/// Multiplies rows, `[rows, depth]`, with the transpose of a matrix of integers in groups, `[columns, depth]`. The result is
/// `[rows, columns]`.
///
/// Sums are in f32. Up to 8 rows are multiplied with the integers, and the sums of a group with its scale, and so are more rows
/// if the processor has AMX; otherwise more rows are multiplied with elements that are rounded to f32. Elements of the rows
/// below 2⁻¹⁰² can lose digits, and those below 2⁻¹¹⁸ can be treated as zero.
/// Allocates as much memory as 1,024 rows have, or 4 MiB for AMX, and 256 KiB for each thread with 8 KiB for 16 rows.
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
/// Returns an error if the shapes do not agree with this description.
pub fn grouped_rows(lhs: View<'_, f32>, matrix: GroupedMatrix<'_>, out: &mut [f32], threads: usize) -> Result<()> {
    let ([rows, depth], [columns, groups, size]) = (lhs.dims("the rows")?, matrix.shape);
    if !matrix.integers.accepts_groups_of(size) {
        let multiple = matrix.integers.group_multiple();
        return Err(ShapeError(format!("groups of {size}: a multiple of {multiple} expected")));
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
    // Small matrices use fewer threads, because waking a thread takes longer than its part of the product.
    let threads = threads.min(elements / MIN_ELEMENTS_PER_THREAD).max(1);
    let out = ArrayViewMut2::from_shape((rows, columns), out)?;
    match matrix.integers {
        GroupedIntegers::Signed4(bytes) => multiply(lhs.data(), Packed::new(matrix, bytes, Signed4), out, threads),
        GroupedIntegers::Unsigned4(bytes) => multiply(lhs.data(), Packed::new(matrix, bytes, Unsigned4), out, threads),
        GroupedIntegers::Signed8(values) => {
            let packed = Packed::new(matrix, bytemuck::cast_slice(values), Signed8);
            if bytes::accepts(rows, size) {
                bytes::multiply(lhs.data(), packed, out, threads);
                return Ok(());
            }
            multiply(lhs.data(), packed, out, threads)
        }
    }
}

/// Multiplies rows with a matrix, [`ROWS_PER_CHUNK`] at a time.
fn multiply<U: Unit>(
    lhs: &[f32],
    packed: Packed<'_, U>,
    mut out: ArrayViewMut2<'_, f32>,
    threads: usize,
) -> Result<()> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if let Some(registers) = tiles::registers_for(out.nrows()) {
        tiles::multiply(registers, lhs, packed, out, threads);
        return Ok(());
    }
    let [_, groups, size] = packed.matrix.shape;
    for (rows, out) in lhs.chunks(ROWS_PER_CHUNK * groups * size).zip(out.axis_chunks_iter_mut(Axis(0), ROWS_PER_CHUNK))
    {
        let is_few = out.nrows() <= MAX_REGISTER_ROWS;
        let rows = Rows::new::<U>(rows, [groups, size], is_few && packed.matrix.minima.is_some());
        if is_few { few::multiply(&rows, packed, out, threads) } else { panel::multiply(&rows, packed, out, threads)? }
    }
    Ok(())
}

/// A matrix, and its integers as words.
#[derive(Clone, Copy)]
struct Packed<'a, U> {
    matrix: GroupedMatrix<'a>,
    words: &'a [[u8; 4]],
    unit: PhantomData<U>,
}

impl<'a, U: Unit> Packed<'a, U> {
    fn new(matrix: GroupedMatrix<'a>, bytes: &'a [u8], _: U) -> Self {
        Packed { matrix, words: bytes.as_chunks().0, unit: PhantomData }
    }

    /// The words of a row.
    #[inline(always)]
    fn row(&self, row: usize) -> &'a [[u8; 4]] {
        let words = self.matrix.shape[1] * self.matrix.shape[2] / U::PER_WORD;
        &self.words[row * words..(row + 1) * words]
    }

    /// Writes the number of each word's group, and zeros for missing words.
    #[inline(always)]
    fn repeat_for_words(&self, numbers: &[f32], size: usize, of_words: &mut Vec<Lanes>) {
        let per_group = size / U::PER_WORD / GROUP_WORDS;
        of_words.resize((numbers.len() * per_group * GROUP_WORDS).div_ceil(LANES), [0.0; LANES]);
        let parts = of_words.as_flattened_mut().as_chunks_mut::<GROUP_WORDS>().0;
        match per_group {
            // Most formats have groups of 32 integers, for which a loop over one part would take a tenth of the product's time.
            1 => parts.iter_mut().zip(numbers).for_each(|(part, number)| *part = [*number; GROUP_WORDS]),
            _ => (parts.chunks_exact_mut(per_group).zip(numbers))
                .for_each(|(parts, number)| parts.fill([*number; GROUP_WORDS])),
        }
    }
}
