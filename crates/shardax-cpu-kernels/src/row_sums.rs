//! Cumulative sums of rows of f32.
//!
//! One addition after the other waits for the result of the one before it. Here a vector of elements is summed up in three steps. Each
//! step adds elements at twice the distance, and only the last sum of a vector is carried to the next one.

use pulp::{Arch, Simd, WithSimd};

/// The elements of a vector of f64 with AVX-512.
const LANES: usize = 8;

/// The elements whose results are checked together for overflow.
const BLOCK: usize = 8 * LANES;

/// The sum of no elements: adding it changes no number, not even -0.
const EMPTY: f64 = -0.0;

/// Writes the cumulative sums of each row of `n` elements, from the end if `is_reversed`. Sums are computed in f64, and each result is
/// rounded once. A result that overflows stays infinite.
pub(crate) fn row_sums(x: &[f32], n: usize, is_reversed: bool, out: &mut [f32]) {
    if is_reversed {
        Arch::new().dispatch(Rows::<true> { x, n, out });
    } else {
        Arch::new().dispatch(Rows::<false> { x, n, out });
    }
}

struct Rows<'a, const IS_REVERSED: bool> {
    x: &'a [f32],
    n: usize,
    out: &'a mut [f32],
}

impl<const IS_REVERSED: bool> WithSimd for Rows<'_, IS_REVERSED> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (x, out) in self.x.chunks_exact(self.n).zip(self.out.chunks_exact_mut(self.n)) {
            let mut total = EMPTY;
            if IS_REVERSED {
                let blocks = x.rchunks(BLOCK).zip(out.rchunks_mut(BLOCK));
                blocks.for_each(|(x, out)| total = block_sums::<IS_REVERSED>(total, x, out));
            } else {
                let blocks = x.chunks(BLOCK).zip(out.chunks_mut(BLOCK));
                blocks.for_each(|(x, out)| total = block_sums::<IS_REVERSED>(total, x, out));
            }
        }
    }
}

/// Writes the sums of a block, and returns the last one. `total` is the sum of the elements before the block.
#[inline(always)]
fn block_sums<const IS_REVERSED: bool>(total: f64, x: &[f32], out: &mut [f32]) -> f64 {
    let (Ok(x), Ok(out)) = (<&[f32; BLOCK]>::try_from(x), <&mut [f32; BLOCK]>::try_from(&mut *out)) else {
        return sequential::<IS_REVERSED>(total, x, out);
    };
    let mut sum = total;
    let (from, to) = (x.as_chunks::<LANES>().0, out.as_chunks_mut::<LANES>().0);
    for index in 0..BLOCK / LANES {
        let index = if IS_REVERSED { BLOCK / LANES - 1 - index } else { index };
        let sums = vector_sums::<IS_REVERSED>(from[index]);
        to[index] = sums.map(|partial| (sum + partial) as f32);
        sum += if IS_REVERSED { sums[0] } else { sums[LANES - 1] };
    }
    let is_finite = out.iter().fold(true, |all, sum| all & sum.is_finite());
    if is_finite { sum } else { sequential::<IS_REVERSED>(total, x, out) }
}

/// The cumulative sums of a vector.
#[inline(always)]
fn vector_sums<const IS_REVERSED: bool>(x: [f32; LANES]) -> [f64; LANES] {
    let mut sums = x.map(f64::from);
    for distance in [1, 2, 4] {
        let before = sums;
        for (lane, sum) in sums.iter_mut().enumerate() {
            let other = if IS_REVERSED { lane + distance } else { lane.wrapping_sub(distance) };
            *sum += if other < LANES { before[other] } else { EMPTY };
        }
    }
    sums
}

/// Adds one element after the other. A result that overflows becomes the total, so that it stays infinite.
#[inline(never)]
fn sequential<const IS_REVERSED: bool>(mut total: f64, x: &[f32], out: &mut [f32]) -> f64 {
    for index in 0..x.len() {
        let index = if IS_REVERSED { x.len() - 1 - index } else { index };
        total += f64::from(x[index]);
        out[index] = total as f32;
        if out[index].is_infinite() {
            total = out[index].into();
        }
    }
    total
}
