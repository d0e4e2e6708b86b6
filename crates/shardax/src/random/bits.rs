//! Random bits: the cipher applied to the index of each element, so that any part can be computed alone; or those of the
//! device's generator.

use super::keys::{Kind, of_pairs, pairs};
use super::prng::PrngImpl;
use super::{pair, word};
use crate::core::array::Array;
use crate::dtype::{DType, Scalar};
use crate::ops::lax;
use crate::ops::primitive::binary::{ADD, MUL, OR, SHIFT_LEFT, SHIFT_RIGHT_LOGICAL, XOR};
use crate::ops::primitive::threefry::Threefry2x32;

/// The encrypted index of each element (64 bits, row-major), as high and low words.
pub(super) fn blocks([k0, k1]: [Array; 2], shape: &[usize]) -> [Array; 2] {
    let [high, low] = numbers(shape);
    pair(Threefry2x32.apply(&[k0, k1, high, low]))
}

/// Random bits as unsigned integers of this width.
pub(crate) fn random_bits(key: &Array, shape: &[usize], width: usize) -> Array {
    if Kind::of(key).prng() == PrngImpl::Rbg {
        return of_generator(key, shape, width);
    }
    let [first, second] = blocks(pairs(key).remove(0), shape);
    let narrow = |dtype| XOR.apply(&first, &second).astype(dtype);
    match width {
        8 => narrow(DType::U8),
        16 => narrow(DType::U16),
        32 => narrow(DType::U32),
        _ => {
            let by = Array::literal(Scalar::Int(32), DType::U64, false);
            OR.apply(&SHIFT_LEFT.apply(&first.astype(DType::U64), &by), &second.astype(DType::U64))
        }
    }
}

/// Random bits of the device's generator, whose state are the words of the key.
fn of_generator(key: &Array, shape: &[usize], width: usize) -> Array {
    let words = of_pairs(Kind::Raw(PrngImpl::Rbg), &pairs(key));
    let dtype = match width {
        8 => DType::U8,
        16 => DType::U16,
        32 => DType::U32,
        _ => DType::U64,
    };
    lax::rng_bit_generator(&words, shape, dtype, lax::RandomAlgorithm::Default).1
}

/// The row-major index of each element, as high and low words.
///
/// It is built from one count per dimension, so that each device of a partitioned array counts only its own shard.
fn numbers(shape: &[usize]) -> [Array; 2] {
    let size = shape.iter().map(|&d| d as u128).product::<u128>();
    let dtype = if size <= 1 << 32 { DType::U32 } else { DType::U64 };
    let number = |v: u128| Array::literal(Scalar::Int(v as i128), dtype, false);
    let mut stride = size;
    let mut sum: Option<Array> = None;
    for (d, &n) in shape.iter().enumerate().filter(|(_, n)| **n != 1) {
        stride /= (n as u128).max(1);
        let count = lax::iota(dtype, shape, d);
        let term = if stride > 1 { MUL.apply(&count, &number(stride)) } else { count };
        sum = Some(match sum {
            Some(sum) => ADD.apply(&sum, &term),
            None => term,
        });
    }
    let low = sum.unwrap_or_else(|| word(0).broadcast_to(shape));
    if dtype == DType::U32 {
        return [word(0), low];
    }
    [SHIFT_RIGHT_LOGICAL.apply(&low, &number(32)).astype(DType::U32), low.astype(DType::U32)]
}
