//! Sums of products of pairs of int8, widened to 16 bits, by AVX2, for matrices whose columns are contiguous. Their elements are widened in
//! registers, because packing few words of each takes longer than the products of few rows.

use std::arch::x86_64::*;

use pulp::cast;

use super::LINE;
use crate::prefetch::{AHEAD, prefetch};

/// The sums of the products of `C` columns whose elements are contiguous and `H` rows.
#[target_feature(enable = "avx2")]
pub(super) fn int8_pair_dots<const H: usize, const C: usize>(
    rows: &[[[u32; LINE]; H]],
    columns: [&[i8]; C],
) -> [[i32; C]; H] {
    let mut vectors = [[_mm256_setzero_si256(); C]; H];
    for (step, rows) in rows.iter().enumerate() {
        for (index, column) in columns.iter().enumerate() {
            prefetch(column, step * 2 * LINE + AHEAD / 4);
            let [low, high] = match column.as_chunks::<LINE>().0.get(2 * step..2 * step + 2) {
                Some(&[low, high]) => [low, high],
                _ => last(column, step),
            };
            let [low, high] = [_mm256_cvtepi8_epi16(cast(low)), _mm256_cvtepi8_epi16(cast(high))];
            for (vectors, row) in vectors.iter_mut().zip(rows) {
                let [x_low, x_high]: [__m256i; 2] = cast(*row);
                let products = _mm256_add_epi32(_mm256_madd_epi16(x_low, low), _mm256_madd_epi16(x_high, high));
                vectors[index] = _mm256_add_epi32(vectors[index], products);
            }
        }
    }
    let mut sums = [[0; C]; H];
    for (sum, vector) in sums.as_flattened_mut().iter_mut().zip(vectors.as_flattened()) {
        let lanes: [i32; 8] = cast(*vector);
        *sum = lanes.iter().fold(0, |sum: i32, lane| sum.wrapping_add(*lane));
    }
    sums
}

/// The last elements of a column, followed by zeros.
fn last(column: &[i8], step: usize) -> [[i8; LINE]; 2] {
    let mut elements = [0; 2 * LINE];
    let rest = column.get(step * 2 * LINE..).unwrap_or_default();
    elements.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    cast(elements)
}
