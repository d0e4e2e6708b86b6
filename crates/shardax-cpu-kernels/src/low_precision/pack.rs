//! Packing of operands: words of neighbouring elements of a sum, for all rows or columns of a tile one after the other.

use std::cell::Cell;

use super::Unit;
use super::amx::{ROWS, STEP, WORDS};
use crate::{Result, ShapeError, View};

/// A matrix of one operand: its rows or columns, here both sides, and the elements of each that are summed over.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    data: &'a [T],
    /// The distance of the sides if the elements of a side are contiguous, and of these elements otherwise.
    stride: usize,
    has_contiguous_sides: bool,
    pub sides: usize,
    pub depth: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Views an operand of three dimensions. Returns the size of the batch and the matrix of its first element.
    pub fn batch(view: View<'a, T>, name: &str, contracted: usize) -> Result<(usize, Self)> {
        if !(1..=2).contains(&contracted) {
            return Err(ShapeError(format!("{name} is contracted over dimension {contracted}: 1 or 2 expected")));
        }
        let dims @ [batch, _, stride] = view.dims(name)?;
        let (sides, depth) = (dims[3 - contracted], dims[contracted]);
        Ok((batch, Matrix { data: view.data(), stride, has_contiguous_sides: contracted == 2, sides, depth }))
    }

    /// The matrix of this element of the batch.
    pub fn at(self, index: usize) -> Self {
        Matrix { data: &self.data[index * self.sides * self.depth..], ..self }
    }

    /// Some of the elements of each side, as far as there are some.
    pub fn part(self, start: usize, depth: usize) -> Self {
        let offset = start * if self.has_contiguous_sides { 1 } else { self.stride };
        Matrix { data: &self.data[offset..], depth: depth.min(self.depth - start), ..self }
    }

    /// The elements and the distance of rows, if the matrix is in row order and has this size.
    pub fn full_rows(self, sides: usize, depth: usize) -> Option<(&'a [T], usize)> {
        let is_full = !self.has_contiguous_sides && self.sides == sides && self.depth == depth;
        is_full.then_some((self.data, self.stride))
    }

    /// The elements and the distance of sides, if the elements of a side are contiguous.
    pub fn columns(self) -> Option<(&'a [T], usize)> {
        self.has_contiguous_sides.then_some((self.data, self.stride))
    }

    /// Some of the sides.
    pub fn slice(self, start: usize, sides: usize) -> Self {
        let offset = start * if self.has_contiguous_sides { self.stride } else { 1 };
        Matrix { data: &self.data[offset..], sides, ..self }
    }
}

/// Writes the words of at most `W` sides, `W` for each position in the sum. Missing elements are zero, and bits of `mask` inverted.
#[inline(always)]
pub(super) fn pack<U: Unit, const W: usize>(matrix: Matrix<'_, U::Element>, mask: u32, words: &mut [u32]) {
    let (words, _) = words.as_chunks_mut::<W>();
    if matrix.has_contiguous_sides {
        transpose::<U, W>(matrix, mask, words)
    } else {
        interleave::<U, W>(matrix, mask, words)
    }
}

/// Writes the words of at most `W` sides, [`WORDS`] for each side before the next [`WORDS`]: `W * WORDS` in an element of `steps`.
/// Missing elements are zero.
#[inline(always)]
pub(super) fn pack_rows<U: Unit>(matrix: Matrix<'_, U::Element>, steps: &mut [[u32; STEP]]) {
    let Matrix { data, stride, sides, depth, .. } = matrix;
    for (index, step) in steps.iter_mut().enumerate() {
        let start = index * WORDS * U::GROUP;
        let end = (start + WORDS * U::GROUP).min(depth);
        if sides < ROWS || end - start < WORDS * U::GROUP {
            step.fill(0);
        }
        let words = step.as_chunks_mut::<WORDS>().0;
        if matrix.has_contiguous_sides {
            for (side, words) in words.iter_mut().enumerate().take(sides) {
                let elements = &data[side * stride + start..side * stride + end];
                U::row_words(elements, words);
            }
            continue;
        }
        // Half of the rows at a time, as a square of words that is transposed.
        for (half, words) in words.as_chunks_mut::<WORDS>().0.iter_mut().enumerate() {
            let first = half * WORDS;
            if first < sides {
                let mut square = [[0; WORDS]; WORDS];
                let part = Matrix { data: &data[start * stride..], depth: end - start, ..matrix }
                    .slice(first, WORDS.min(sides - first));
                interleave::<U, WORDS>(part, 0, &mut square);
                for (row, words) in words.iter_mut().enumerate() {
                    *words = std::array::from_fn(|position| square[position][row]);
                }
            }
        }
    }
}

/// The number of sides, and of words of each, that are transposed at once, in registers.
const BLOCK: usize = 4;

/// Packs sides whose elements are contiguous.
#[inline(always)]
fn transpose<U: Unit, const W: usize>(matrix: Matrix<'_, U::Element>, mask: u32, words: &mut [[u32; W]]) {
    let Matrix { data, stride, sides, depth, .. } = matrix;
    if sides < W {
        words.as_flattened_mut().fill(mask);
    }
    // Words beyond the depth, for kernels that multiply several words in a step.
    words[depth.div_ceil(U::GROUP)..].as_flattened_mut().fill(mask);
    let in_blocks = depth / (BLOCK * U::GROUP) * BLOCK;
    let together = sides / BLOCK * BLOCK;
    for first in (0..together).step_by(BLOCK) {
        // Four rows of four words are transposed in registers, because storing single words would take longer than reading.
        let rows: [_; BLOCK] = std::array::from_fn(|i| &data[(first + i) * stride..][..in_blocks * U::GROUP]);
        for start in (0..in_blocks).step_by(BLOCK) {
            let mut block = [[0; BLOCK]; BLOCK];
            for i in 0..BLOCK {
                let elements = &rows[i][start * U::GROUP..(start + BLOCK) * U::GROUP];
                for j in 0..BLOCK {
                    block[i][j] = word::<U>(&elements[j * U::GROUP..(j + 1) * U::GROUP]) ^ mask;
                }
            }
            for (j, words) in words[start..start + BLOCK].iter_mut().enumerate() {
                words[first..first + BLOCK].copy_from_slice(&[block[0][j], block[1][j], block[2][j], block[3][j]]);
            }
        }
    }
    for side in 0..sides {
        let start = if side < together { in_blocks } else { 0 };
        let elements = &data[side * stride..][start * U::GROUP..depth];
        for (words, group) in words[start..].iter_mut().zip(elements.chunks(U::GROUP)) {
            words[side] = word::<U>(group) ^ mask;
        }
    }
}

/// Packs sides whose elements at one position are contiguous.
#[inline(always)]
fn interleave<U: Unit, const W: usize>(matrix: Matrix<'_, U::Element>, mask: u32, words: &mut [[u32; W]]) {
    let Matrix { data, stride, sides, depth, .. } = matrix;
    for (group, words) in words.iter_mut().enumerate() {
        let start = group * U::GROUP;
        if sides == W && start + U::GROUP <= depth {
            // In an array of its own, whose elements the compiler keeps in vectors.
            let mut sums = [mask; W];
            for position in 0..U::GROUP {
                let (elements, _) = data[(start + position) * stride..][..W].as_chunks::<W>();
                for (word, element) in sums.iter_mut().zip(elements[0]) {
                    *word ^= U::bits(element, position);
                }
            }
            *words = sums;
            continue;
        }
        *words = [mask; W];
        for k in start..(start + U::GROUP).min(depth) {
            let elements = &data[k * stride..][..sides];
            words.iter_mut().zip(elements).for_each(|(word, element)| *word ^= U::bits(*element, k - start));
        }
    }
}

#[inline(always)]
pub(super) fn word<U: Unit>(group: &[U::Element]) -> u32 {
    let mut word = 0;
    for (position, element) in group.iter().enumerate() {
        word |= U::bits(*element, position);
    }
    word
}

thread_local! {
    static KEPT: Cell<[Vec<u32>; 2]> = const { Cell::new([Vec::new(), Vec::new()]) };
}

/// Memory for a block of each operand, which a thread keeps for its next call.
pub(super) struct Buffers {
    pub left: Vec<u32>,
    pub right: Vec<u32>,
}

impl Buffers {
    pub fn take() -> Self {
        // It fails while the thread ends.
        let [left, right] = KEPT.try_with(Cell::take).unwrap_or_default();
        Buffers { left, right }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let blocks = [&mut self.left, &mut self.right].map(std::mem::take);
        if blocks[0].len() <= super::LEFT_BLOCK + super::LINE && blocks[1].len() <= super::RIGHT_BLOCK + super::LINE {
            // It fails while the thread ends, which frees the memory.
            let _ = KEPT.try_with(|kept| kept.set(blocks));
        }
    }
}
