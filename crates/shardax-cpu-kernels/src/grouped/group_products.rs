//! Products of groups by the tile registers of AMX: 16 columns of the matrix are multiplied with 16 rows of the left
//! operand at once.
#![expect(unsafe_code, reason = "instructions that a processor may lack are called")]

use std::arch::asm;
use std::arch::x86_64::*;
use std::slice::ChunksExact;

use super::words::{Lanes, Unit};
use crate::low_precision::tile_registers::{Configured, REGISTERS, TileRegisters};

/// The rows of the left operand, and the columns of the matrix, that are multiplied at once.
pub(super) const SIDE: usize = 16;

/// The numbers of bf16 whose sum is a number of f32.
pub(super) const PARTS: usize = 3;

/// The words of a line of the cache. Operands are in lines: memory that begins elsewhere would be read twice as slowly.
pub(super) type Line = [u32; 16];

/// Some groups of 16 columns and of 16 rows. A step is a part of a group that fits in a register.
#[derive(Clone, Copy)]
pub(super) struct Groups<'a> {
    /// For each step the pairs of integers of each column, as bf16. A step has as many lines as a column has pairs.
    pub columns: &'a [Line],
    /// For each step and each part of the numbers a line for each pair of elements, which contains the pairs of all rows.
    pub rows: &'a [Line],
    /// The pairs of elements in a step: 8 or 16.
    pub pairs: usize,
    /// The steps of a group.
    pub steps: usize,
    /// The number of groups.
    pub count: usize,
    /// The scales of the groups, column by column, with this distance between columns.
    pub scales: &'a [f32],
    pub stride: usize,
    /// The minima of the groups in the same order, and the sums of each group's elements in all rows.
    pub minima: Option<(&'a [f32], &'a [Lanes])>,
}

/// The registers of sums, of columns, and of the parts of the rows, in this order.
pub(super) fn configure(registers: TileRegisters, pairs: usize) -> Configured {
    let mut sizes = [[SIDE; 2]; REGISTERS];
    sizes[1] = [SIDE, pairs];
    sizes[2..2 + PARTS].fill([pairs, SIDE]);
    registers.configure(sizes)
}

/// The products of a group: a row for each column of the matrix.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Products([Lanes; SIDE]);

/// The number of groups between the products of a group and their addition to the sums, because the registers take longer than
/// the processor looks ahead.
const LAG: usize = 2;

/// Adds the products of all groups, times their scales, to the sums of each column. Does nothing if the lengths do not agree.
///
/// The registers must be [configured](configure) for the same number of pairs, by the thread that calls this.
pub(super) fn add(_: &Configured, groups: Groups<'_>, sums: &mut [Lanes; SIDE]) {
    let lines = groups.count * groups.steps * groups.pairs;
    let numbers = (SIDE - 1) * groups.stride + groups.count;
    let is_consistent = groups.columns.len() == lines
        && groups.rows.len() == PARTS * lines
        && groups.scales.len() >= numbers
        && groups.minima.is_none_or(|(minima, rows)| minima.len() >= numbers && rows.len() == groups.count);
    if is_consistent && lines > 0 {
        // SAFETY: registers are configured only where the processor has AVX-512, and the operands have these lengths.
        unsafe { add_unchecked(groups, sums) }
    }
}

/// # Safety
/// The processor must have AVX-512, the registers must be configured, and all operands must have this number of groups.
#[target_feature(enable = "avx512f")]
unsafe fn add_unchecked(groups: Groups<'_>, sums: &mut [Lanes; SIDE]) {
    const KEPT: usize = (LAG + 1).next_power_of_two();
    let mut products = [Products([[0.0; SIDE]; SIDE]); KEPT];
    // SAFETY: a row of sums has 16 numbers.
    let mut vectors: [__m512; SIDE] = std::array::from_fn(|i| unsafe { _mm512_loadu_ps(sums[i].as_ptr()) });
    for group in 0..groups.count + LAG {
        if group < groups.count {
            // SAFETY: the operands have this group.
            unsafe { multiply(groups, group, &mut products[group % KEPT]) };
        }
        let Some(group) = group.checked_sub(LAG) else { continue };
        let products = &products[group % KEPT].0;
        for (column, vector) in vectors.iter_mut().enumerate() {
            // SAFETY: each column has this group, and a row of products has 16 numbers.
            unsafe {
                let scale = _mm512_set1_ps(*groups.scales.get_unchecked(column * groups.stride + group));
                *vector = _mm512_fmadd_ps(_mm512_loadu_ps(products[column].as_ptr()), scale, *vector);
            }
        }
        if let Some((minima, rows)) = groups.minima {
            // SAFETY: there are sums of each group.
            let rows = unsafe { _mm512_loadu_ps(rows.get_unchecked(group).as_ptr()) };
            for (column, vector) in vectors.iter_mut().enumerate() {
                // SAFETY: each column has a minimum for each group.
                let minimum = _mm512_set1_ps(unsafe { *minima.get_unchecked(column * groups.stride + group) });
                *vector = _mm512_fnmadd_ps(rows, minimum, *vector);
            }
        }
    }
    for (sums, vector) in sums.iter_mut().zip(vectors) {
        // SAFETY: a row of sums has 16 numbers.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), vector) };
    }
}

/// Computes the products of a group.
///
/// # Safety
/// The registers must be configured for this number of pairs, and the operands must have this group.
#[inline(always)]
unsafe fn multiply(groups: Groups<'_>, group: usize, products: &mut Products) {
    let lines = groups.steps * groups.pairs;
    // SAFETY: the operands have lines for all groups up to this one.
    unsafe {
        asm!(
            "tilezero tmm0",
            "2:",
            "tileloadd tmm1, [{columns} + {column_bytes}]",
            "tileloadd tmm2, [{rows} + {row_bytes}]",
            "tdpbf16ps tmm0, tmm1, tmm2",
            "add {rows}, {part}",
            "tileloadd tmm3, [{rows} + {row_bytes}]",
            "tdpbf16ps tmm0, tmm1, tmm3",
            "add {rows}, {part}",
            "tileloadd tmm4, [{rows} + {row_bytes}]",
            "tdpbf16ps tmm0, tmm1, tmm4",
            "add {rows}, {part}",
            "add {columns}, {part}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{products} + {row_bytes}], tmm0",
            columns = inout(reg) groups.columns.as_ptr().add(group * lines) => _,
            rows = inout(reg) groups.rows.as_ptr().add(PARTS * group * lines) => _,
            steps = inout(reg) groups.steps => _,
            products = in(reg) products.0.as_mut_ptr(),
            column_bytes = in(reg) 4 * groups.pairs,
            row_bytes = in(reg) 4 * SIDE,
            part = in(reg) size_of::<Line>() * groups.pairs,
            options(nostack)
        );
    }
}

/// Widens the integers of a column to bf16, and writes the integers of each step to the words of this column in the step's lines. Does
/// nothing if the lengths do not agree.
pub(super) fn widen<U: Unit>(_: &Configured, bytes: &[u8], pairs: usize, column: usize, lines: &mut [Line]) {
    let bytes_of_step = 2 * pairs * U::BITS / 8;
    let words = lines.as_flattened_mut();
    let has_pairs = pairs == SIDE || (U::BITS, pairs) == (8, SIDE / 2);
    if !has_pairs || column >= SIDE || bytes.len() / bytes_of_step * SIDE * pairs > words.len() {
        return;
    }
    // SAFETY: registers are configured only where the processor has AVX-512.
    unsafe { widen_steps::<U>(bytes.chunks_exact(bytes_of_step), pairs, column, words) }
}

/// # Safety
/// The processor must have AVX-512.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn widen_steps<U: Unit>(steps: ChunksExact<'_, u8>, pairs: usize, column: usize, words: &mut [u32]) {
    for (bytes, words) in steps.zip(words.chunks_exact_mut(SIDE * pairs)) {
        let words = words[column * pairs..].as_mut_ptr();
        // SAFETY: both pointers have this number of pairs.
        unsafe {
            match (U::BITS, pairs) {
                (4, _) => widen_16_bytes::<U>(bytes.as_ptr(), words),
                (_, SIDE) => widen_32_integers(bytes.as_ptr(), words),
                _ => widen_16_integers(bytes.as_ptr(), words),
            }
        }
    }
}

/// Widens 32 integers of 4 bits: a byte is a pair.
///
/// # Safety
/// The processor must have AVX-512. There must be 16 bytes and 16 words.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn widen_16_bytes<U: Unit>(bytes: *const u8, words: *mut u32) {
    // bf16 of all integers, twice, because indices have five bits.
    let numbers: [u16; 32] = std::array::from_fn(|integer| {
        let number = ((integer as u32 & 15) ^ U::EXCESS) as f32 - U::EXCESS as f32;
        (number.to_bits() >> 16) as u16
    });
    // SAFETY: the pointers are as this function requires.
    unsafe {
        let numbers = _mm512_loadu_si512(numbers.as_ptr().cast());
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.cast()));
        // Each half of a word is an index: of the first integer, and of the second one.
        let indices = _mm512_or_si512(bytes, _mm512_slli_epi32::<12>(bytes));
        let indices = _mm512_and_si512(indices, _mm512_set1_epi32(0x000f_000f));
        _mm512_storeu_si512(words.cast(), _mm512_permutexvar_epi16(indices, numbers));
    }
}

/// Widens 32 signed integers of 8 bits.
///
/// # Safety
/// The processor must have AVX-512. There must be 32 bytes and 16 words.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn widen_32_integers(bytes: *const u8, words: *mut u32) {
    let upper_halves: [u16; 32] = std::array::from_fn(|i| 2 * i as u16 + 1);
    // SAFETY: the pointers are as this function requires.
    unsafe {
        let first = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.cast())));
        let second = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.add(16).cast())));
        let upper_halves = _mm512_loadu_si512(upper_halves.as_ptr().cast());
        let [first, second] = [_mm512_castps_si512(first), _mm512_castps_si512(second)];
        _mm512_storeu_si512(words.cast(), _mm512_permutex2var_epi16(first, upper_halves, second));
    }
}

/// Widens 16 signed integers of 8 bits.
///
/// # Safety
/// The processor must have AVX-512. There must be 16 bytes and 8 words.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn widen_16_integers(bytes: *const u8, words: *mut u32) {
    // SAFETY: the pointers are as this function requires.
    unsafe {
        let numbers = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.cast())));
        let halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_castps_si512(numbers)));
        _mm256_storeu_si256(words.cast(), halves);
    }
}
