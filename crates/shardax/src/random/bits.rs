//! Random bits. Threefry encrypts the index of each element, so that a device can compute any part of an array independently;
//! `rbg` calls the device's own generator.

use super::continuous::unsigned;
use super::keys::{Kind, join_pairs, pairs};
use super::prng::PrngImpl;
use super::{pair, word};
use crate::core::array::Array;
use crate::dtype::DType;
use crate::ops::constants::integer;
use crate::ops::lax;
use crate::ops::primitive::binary::{ADD, MUL, OR, SHIFT_LEFT, SHIFT_RIGHT_LOGICAL, XOR};
use crate::ops::primitive::threefry::Threefry2x32;

/// The encrypted index of each element (64 bits, row-major), as high and low words.
pub(super) fn blocks([k0, k1]: [Array; 2], shape: &[usize]) -> [Array; 2] {
    let [high, low] = element_indices(shape);
    pair(Threefry2x32.apply(&[k0, k1, high, low]))
}

/// Random bits as unsigned integers of this width.
pub(crate) fn random_bits(key: &Array, shape: &[usize], width: usize) -> Array {
    if Kind::of(key).prng() == PrngImpl::Rbg {
        return device_bits(key, shape, width);
    }
    let [high, low] = blocks(pairs(key).remove(0), shape);
    if width <= 32 {
        return XOR.apply(&high, &low).astype(unsigned(width));
    }
    let high = SHIFT_LEFT.apply(&high.astype(DType::U64), &integer(32, DType::U64));
    OR.apply(&high, &low.astype(DType::U64))
}

/// Random bits of the device's generator. The words of the key are the generator's state.
fn device_bits(key: &Array, shape: &[usize], width: usize) -> Array {
    let words = join_pairs(Kind::Raw(PrngImpl::Rbg), &pairs(key));
    lax::rng_bit_generator(&words, shape, unsigned(width), lax::RandomAlgorithm::Default).1
}

/// The row-major index of each element, as high and low words.
///
/// The index is the sum of one iota per dimension, so that each device of a partitioned array counts only its own shard.
fn element_indices(shape: &[usize]) -> [Array; 2] {
    let size = shape.iter().map(|&d| d as u128).product::<u128>();
    let dtype = if size <= 1 << 32 { DType::U32 } else { DType::U64 };
    let mut stride = size;
    let mut sum: Option<Array> = None;
    for (d, &n) in shape.iter().enumerate().filter(|(_, n)| **n != 1) {
        stride /= (n as u128).max(1);
        let count = lax::iota(dtype, shape, d);
        let term = if stride > 1 { MUL.apply(&count, &integer(stride as i128, dtype)) } else { count };
        sum = Some(match sum {
            Some(sum) => ADD.apply(&sum, &term),
            None => term,
        });
    }
    let low = sum.unwrap_or_else(|| word(0).broadcast_to(shape));
    if dtype == DType::U32 {
        return [word(0), low];
    }
    let high = SHIFT_RIGHT_LOGICAL.apply(&low, &integer(32, dtype));
    [high.astype(DType::U32), low.astype(DType::U32)]
}
