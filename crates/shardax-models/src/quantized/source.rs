//! The kernels of GPTQ, AWQ, and the experts of gpt-oss.

use shardax::prelude::*;

use super::scaled::numbers;
use super::{Groups, Integers};
use crate::gguf::{doubled_e2m1, half_of_power};
use crate::huggingface::Raw;

/// The output, among eight, that each integer of an `int32` belongs to.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Returns the 32-bit words of an array.
pub(super) fn words(raw: &Raw) -> Option<Vec<u32>> {
    let is_words = matches!(raw.dtype, DType::I32 | DType::U32);
    is_words.then(|| raw.bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// Extracts the integer at an index from a word.
pub(super) fn bits_of(word: u32, index: usize, bits: usize) -> i32 {
    (word >> (index * bits) & ((1 << bits) - 1)) as i32
}

/// Converts the integers of a kernel `[inputs, outputs]` to one row for each output, in which the inputs of a group are
/// neighbors.
///
/// `group_of` contains the group of each input, and `integer` returns the integer at an input and an output. Integers
/// of 8 bits are stored with an offset of -128.
pub(super) fn rows_of_inputs(
    (inputs, outputs, groups): (usize, usize, usize),
    bits: usize,
    group_of: &[usize],
    integer: impl Fn(usize, usize) -> i32,
    scale_and_zero: impl Fn(usize, usize) -> (f32, i32),
) -> Option<Groups> {
    let group = inputs.checked_div(groups).filter(|group| group * groups == inputs && *group > 0)?;
    // Sort the inputs by group. The sort is stable, so inputs that are already in order stay in place.
    let mut sorted: Vec<usize> = (0..inputs).collect();
    sorted.sort_by_key(|input| group_of[*input]);
    if sorted.iter().enumerate().any(|(position, input)| group_of[*input] != position / group) {
        return None;
    }
    let (integers, offset) = if bits == 4 { (Integers::Unsigned4, 0) } else { (Integers::Signed8, 128) };
    let mut result = Groups::with_capacity(&[outputs, inputs], group, integers, true);
    for output in 0..outputs {
        result.values.extend(sorted.iter().map(|input| (integer(*input, output) - offset) as i8));
        for group in 0..groups {
            let (scale, zero) = scale_and_zero(group, output);
            result.scales.push(scale);
            // The product is exact in float32, because scales have at most 11 significant bits and zero points 8.
            result.minima.push(scale * (zero - offset) as f32);
        }
    }
    if sorted.iter().enumerate().any(|(position, input)| position != *input) {
        let mut order = vec![0; inputs];
        for (position, input) in sorted.iter().enumerate() {
            order[*input] = i32::try_from(position).ok()?;
        }
        result.order = Some(order);
    }
    Some(result)
}

/// Combines the parts of a kernel of GPTQ. Without `group_of`, the inputs of a group are neighbors.
pub(super) fn gptq(
    (bits, zero_offset): (usize, i32),
    weights: &Raw,
    zeros: &Raw,
    scales: &Raw,
    group_of: Option<&Raw>,
) -> Option<Groups> {
    let per_word = 32 / bits;
    let (&[rows, outputs], &[groups, _]) = (weights.shape.as_slice(), scales.shape.as_slice()) else { return None };
    let inputs = rows * per_word;
    let fits = scales.shape == [groups, outputs]
        && zeros.shape == [groups, outputs.div_ceil(per_word)]
        && group_of.is_none_or(|group_of| group_of.shape == [inputs]);
    let (weights, zeros, scales) = (words(weights)?, words(zeros)?, numbers(scales)?);
    let group_of: Vec<usize> = match group_of {
        Some(group_of) => words(group_of)?.into_iter().map(|group| group as usize).collect(),
        None => (0..inputs).map(|input| input / inputs.div_ceil(groups.max(1)).max(1)).collect(),
    };
    if !fits || group_of.iter().any(|group| *group >= groups) {
        return None;
    }
    let integer =
        |input: usize, output: usize| bits_of(weights[input / per_word * outputs + output], input % per_word, bits);
    let zero_words = outputs.div_ceil(per_word);
    rows_of_inputs((inputs, outputs, groups), bits, &group_of, integer, |group: usize, output: usize| {
        let zero = bits_of(zeros[group * zero_words + output / per_word], output % per_word, bits);
        (scales[group * outputs + output], zero + zero_offset)
    })
}

/// Combines the parts of a kernel of AWQ.
pub(super) fn awq(weights: &Raw, zeros: &Raw, scales: &Raw) -> Option<Groups> {
    let (&[inputs, columns], &[groups, outputs]) = (weights.shape.as_slice(), scales.shape.as_slice()) else {
        return None;
    };
    let (weights, zero_words, scales) = (words(weights)?, words(zeros)?, numbers(scales)?);
    if outputs != columns * 8 || zeros.shape != [groups, columns] || groups == 0 || !inputs.is_multiple_of(groups) {
        return None;
    }
    let mut position = [0; 8];
    for (nibble, output) in AWQ_ORDER.into_iter().enumerate() {
        position[output] = nibble;
    }
    let group_of: Vec<usize> = (0..inputs).map(|input| input / (inputs / groups)).collect();
    let nibble =
        |words: &[u32], row: usize, output: usize| bits_of(words[row * columns + output / 8], position[output % 8], 4);
    let scale_and_zero =
        |group: usize, output: usize| (scales[group * outputs + output], nibble(&zero_words, group, output));
    rows_of_inputs(
        (inputs, outputs, groups),
        4,
        &group_of,
        |input, output| nibble(&weights, input, output),
        scale_and_zero,
    )
}

/// Combines the parts of the experts of gpt-oss.
pub(super) fn mxfp4(blocks: &Raw, scales: &Raw) -> Option<Groups> {
    let (&[experts, outputs, groups, 16], shape) = (blocks.shape.as_slice(), scales.shape.as_slice()) else {
        return None;
    };
    if shape != [experts, outputs, groups] || blocks.dtype != DType::U8 || scales.dtype != DType::U8 {
        return None;
    }
    let mut result = Groups::with_capacity(&[experts, outputs, groups * 32], 32, Integers::Signed8, false);
    result.values.extend(blocks.bytes.iter().flat_map(|byte| [doubled_e2m1(byte & 15), doubled_e2m1(byte >> 4)]));
    result.scales.extend(scales.bytes.iter().map(|exponent| half_of_power(*exponent)));
    Some(result)
}
