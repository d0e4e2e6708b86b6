//! Words of packed integers, and the rows that are multiplied with them in the same order.

use pulp::{Simd, bytemuck};

use crate::scratch::Scratch;

/// The number of words that are widened at once: a vector of AVX-512, or two of AVX2.
pub(super) const LANES: usize = 16;

/// A vector of numbers, one for each word.
pub(super) type Lanes = [f32; LANES];

/// The bits of 2²³ in f32. An integer below 2²³ in their lower bits is added to the number.
const MAGIC: u32 = 0x4b00_0000;

/// The number of integers that are widened after each shift, without moving them to the lowest bits. With more, the
/// masks would not fit in the registers.
const PER_SHIFT: usize = 2;

/// A storage format of integers, in words of 32 bits.
///
/// All integers at one position of [`LANES`] words are widened together, because this needs no instruction that moves
/// numbers between lanes. Therefore the elements of the other operand must be reordered ([`Rows`]), but only once,
/// instead of the integers of each row of the matrix. Every second integer is not even shifted to the lowest bits.
/// Instead it is widened as a multiple of a power of two, and the other operand's element is divided by this power.
pub(super) trait Unit: Copy + Send + Sync {
    /// The number of bits of an integer.
    const BITS: usize;

    /// The bit that is inverted to make signed integers unsigned: the number that is then too much.
    const EXCESS: u32;

    /// The number of integers in a word.
    const PER_WORD: usize = 32 / Self::BITS;

    /// The power of two that `widened` multiplies integers at this position by.
    #[inline(always)]
    fn factor(position: usize) -> f32 {
        (1u32 << (position % PER_SHIFT * Self::BITS)) as f32
    }

    /// The integers at this position of words, times [`factor`](Unit::factor).
    #[inline(always)]
    fn widened<S: Simd>(simd: S, words: S::u32s, position: usize) -> S::f32s {
        let (right, left) = (position / PER_SHIFT * PER_SHIFT * Self::BITS, position % PER_SHIFT * Self::BITS);
        let words = match right {
            0 => words,
            _ => simd.wrapping_dyn_shr_u32s(words, simd.splat_u32s(right as u32)),
        };
        let integers = simd.and_u32s(words, simd.splat_u32s(((1 << Self::BITS) - 1) << left));
        // Subtracting 2²³ and the excess is exact.
        let bits = simd.xor_u32s(integers, simd.splat_u32s(MAGIC | Self::EXCESS << left));
        let excess = f32::from_bits(MAGIC | Self::EXCESS << left);
        simd.sub_f32s(simd.transmute_f32s_u32s(bits), simd.splat_f32s(excess))
    }
}

/// From -8 to 7.
#[derive(Clone, Copy)]
pub(super) struct Signed4;

impl Unit for Signed4 {
    const BITS: usize = 4;
    const EXCESS: u32 = 8;
}

/// From 0 to 15.
#[derive(Clone, Copy)]
pub(super) struct Unsigned4;

impl Unit for Unsigned4 {
    const BITS: usize = 4;
    const EXCESS: u32 = 0;
}

/// From -128 to 127.
#[derive(Clone, Copy)]
pub(super) struct Signed8;

impl Unit for Signed8 {
    const BITS: usize = 8;
    const EXCESS: u32 = 128;
}

/// The number of vectors of the processor for [`LANES`] words.
#[inline(always)]
pub(super) fn vectors<S: Simd>() -> usize {
    LANES / S::F32_LANES
}

/// The words of a row of the matrix, a vector of the processor at a time. Missing words at the end of the row are zero.
#[inline(always)]
pub(super) fn load<S: Simd>(row: &[[u8; 4]], index: usize) -> S::u32s {
    let start = index * S::F32_LANES;
    match row.get(start..start + S::F32_LANES) {
        Some(words) if cfg!(target_endian = "little") => bytemuck::pod_read_unaligned(words.as_flattened()),
        _ => {
            let mut padded = [0; LANES];
            let words = row.iter().skip(start).take(S::F32_LANES);
            padded.iter_mut().zip(words).for_each(|(to, word)| *to = u32::from_le_bytes(*word));
            S::as_simd_u32s(&padded).0[0]
        }
    }
}

/// The rows of the left operand, in the order of the words: a vector for each position of each block of [`LANES`] words. Elements are
/// divided by the powers of two that widened integers are multiplied by.
pub(super) struct Rows {
    elements: Scratch,
    /// The number of elements of a row, with zeros for missing words.
    pub depth: usize,
    /// The sums of each row's groups, if the matrix has minima.
    sums: Vec<f32>,
    groups: usize,
}

impl Rows {
    /// Reorders rows of `groups` groups.
    pub fn new<U: Unit>(rows: &[f32], [groups, size]: [usize; 2], has_minima: bool) -> Rows {
        let (stored, block) = (groups * size, LANES * U::PER_WORD);
        let depth = stored.next_multiple_of(block);
        let mut elements = Scratch::new(rows.len() / stored * depth);
        for (row, ordered) in rows.chunks_exact(stored).zip(elements.chunks_exact_mut(depth)) {
            for (elements, ordered) in row.chunks(block).zip(ordered.chunks_exact_mut(block)) {
                if elements.len() < block {
                    ordered.fill(0.0);
                }
                for (position, ordered) in ordered.chunks_exact_mut(LANES).enumerate() {
                    let factor = 1.0 / U::factor(position);
                    for (element, word) in ordered.iter_mut().zip(elements.chunks_exact(U::PER_WORD)) {
                        *element = word[position] * factor;
                    }
                }
            }
        }
        let sums = if has_minima { rows.chunks(size).map(|group| group.iter().sum()).collect() } else { Vec::new() };
        Rows { elements, depth, sums, groups }
    }

    /// The elements of all rows.
    pub fn elements(&self) -> &[f32] {
        &self.elements
    }

    /// The elements of one row.
    #[inline(always)]
    pub fn row(&self, row: usize) -> &[f32] {
        &self.elements[row * self.depth..(row + 1) * self.depth]
    }

    /// The sums of a row's groups.
    pub fn sums(&self, row: usize) -> Option<&[f32]> {
        self.sums.get(row * self.groups..(row + 1) * self.groups).filter(|sums| !sums.is_empty())
    }
}
