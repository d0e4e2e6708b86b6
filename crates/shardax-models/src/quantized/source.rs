//! Kernels that files of `transformers` store as several arrays: GPTQ, AWQ, and the experts of gpt-oss.

use serde_json::Value;
use shardax::error::Result;
use shardax::prelude::*;

use super::{Groups, Integers};
use crate::error::value_error;
use crate::gguf::{doubled_e2m1, half_of_power};
use crate::huggingface::Raw;

/// A quantization method that stores a kernel as several arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Integers of 4 or 8 bits, packed along the inputs.
    Gptq {
        bits: usize,
        /// The number that is added to stored zero points: 1 in the first version of the format.
        zero_offset: i32,
    },
    /// Integers of 4 bits, packed along the outputs in a special order.
    Awq,
    /// Blocks of 32 numbers in the e2m1 format.
    Mxfp4,
}

/// The output, among eight, that each integer of an `int32` belongs to.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

impl Method {
    /// Reads the method from a `quantization_config`.
    ///
    /// Returns an error for unknown methods, and for variants of a method that are not supported.
    pub fn of(about: &Value) -> Result<Method> {
        let bits = about.get("bits").and_then(Value::as_u64).unwrap_or(4);
        match text_of(about, "quant_method") {
            Some("gptq") => match (bits, text_of(about, "checkpoint_format").unwrap_or("gptq")) {
                (4 | 8, "gptq") => Ok(Method::Gptq { bits: bits as usize, zero_offset: 1 }),
                (4 | 8, "gptq_v2") => Ok(Method::Gptq { bits: bits as usize, zero_offset: 0 }),
                (_, format) => not_read(format!(
                    "is GPTQ with {bits} bits in the format {format:?}, but only 4 and 8 bits in the formats \"gptq\" and \"gptq_v2\" are supported"
                )),
            },
            Some("awq") => match (bits, text_of(about, "version").unwrap_or("gemm").to_lowercase().as_str()) {
                (4, "gemm") => Ok(Method::Awq),
                (_, version) => not_read(format!(
                    "is AWQ with {bits} bits in the version {version:?}, but only 4 bits in the version \"gemm\" are supported"
                )),
            },
            Some("mxfp4") => Ok(Method::Mxfp4),
            other => not_read(format!("has the quant_method {other:?}, but only gptq, awq and mxfp4 are supported")),
        }
    }

    /// Returns the suffix of the array that represents all parts, the suffix of the kernel's name, and the suffixes of
    /// the other parts.
    pub fn endings(self) -> (&'static str, &'static str, &'static [&'static str]) {
        match self {
            Method::Gptq { .. } => (".qweight", ".weight", &[".qzeros", ".scales", ".g_idx"]),
            Method::Awq => (".qweight", ".weight", &[".qzeros", ".scales"]),
            Method::Mxfp4 => ("_blocks", "", &["_scales"]),
        }
    }

    /// Returns the shape of the kernel without quantization, given the shape of the first part.
    pub fn shape(self, first: &[usize]) -> Option<Vec<usize>> {
        match (self, first) {
            (Method::Gptq { bits, .. }, &[words, outputs]) => Some(vec![outputs, words.checked_mul(32 / bits)?]),
            (Method::Awq, &[inputs, words]) => Some(vec![words.checked_mul(8)?, inputs]),
            // `transformers` stores the inputs first.
            (Method::Mxfp4, &[experts, outputs, blocks, 16]) => Some(vec![experts, blocks.checked_mul(32)?, outputs]),
            _ => None,
        }
    }

    /// Combines the parts of a kernel, with one row for each output. Returns `None` if the parts do not match each
    /// other.
    pub fn groups(self, parts: &[Raw]) -> Option<Groups> {
        match (self, parts) {
            (Method::Gptq { bits, zero_offset }, [weights, zeros, scales, group_of]) => {
                gptq((bits, zero_offset), weights, zeros, scales, group_of)
            }
            (Method::Awq, [weights, zeros, scales]) => awq(weights, zeros, scales),
            (Method::Mxfp4, [blocks, scales]) => mxfp4(blocks, scales),
            _ => None,
        }
    }
}

/// Returns the 32-bit words of an array.
fn words(raw: &Raw) -> Option<Vec<u32>> {
    let is_words = matches!(raw.dtype, DType::I32 | DType::U32);
    is_words.then(|| raw.bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// Returns the numbers of a floating-point array.
fn floats(raw: &Raw) -> Option<Vec<f32>> {
    let pairs = raw.bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    match raw.dtype {
        DType::F16 => Some(pairs.map(|b| half::f16::from_le_bytes(b).to_f32()).collect()),
        DType::Bf16 => Some(pairs.map(|b| half::bf16::from_le_bytes(b).to_f32()).collect()),
        DType::F32 => Some(raw.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
        _ => None,
    }
}

/// Extracts the integer at an index from a word.
fn bits_of(word: u32, index: usize, bits: usize) -> i32 {
    (word >> (index * bits) & ((1 << bits) - 1)) as i32
}

/// Converts the integers of a kernel `[inputs, outputs]` to one row for each output, in which the inputs of a group are
/// neighbors.
///
/// `group_of` contains the group of each input, and `integer` returns the integer at an input and an output. Integers
/// of 8 bits are stored with an offset of -128.
fn rows_of_inputs(
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

fn gptq((bits, zero_offset): (usize, i32), weights: &Raw, zeros: &Raw, scales: &Raw, group_of: &Raw) -> Option<Groups> {
    let per_word = 32 / bits;
    let (&[rows, outputs], &[groups, _]) = (weights.shape.as_slice(), scales.shape.as_slice()) else { return None };
    let inputs = rows * per_word;
    let fits = scales.shape == [groups, outputs]
        && zeros.shape == [groups, outputs.div_ceil(per_word)]
        && group_of.shape == [inputs];
    let (weights, zeros, scales, group_of) = (words(weights)?, words(zeros)?, floats(scales)?, words(group_of)?);
    let group_of: Vec<usize> = group_of.into_iter().map(|group| group as usize).collect();
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

fn awq(weights: &Raw, zeros: &Raw, scales: &Raw) -> Option<Groups> {
    let (&[inputs, columns], &[groups, outputs]) = (weights.shape.as_slice(), scales.shape.as_slice()) else {
        return None;
    };
    let (weights, zero_words, scales) = (words(weights)?, words(zeros)?, floats(scales)?);
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

fn mxfp4(blocks: &Raw, scales: &Raw) -> Option<Groups> {
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

fn text_of<'a>(about: &'a Value, name: &str) -> Option<&'a str> {
    about.get(name).and_then(Value::as_str)
}

fn not_read(what: String) -> Result<Method> {
    let help = "load the model with `transformers`, dequantize it and save it with `save_pretrained`";
    Err(value_error(format!("`quantization_config` of config.json {what}"), help))
}
