//! Kernels whose numbers have scales in other arrays: FP8, compressed-tensors, bitsandbytes and BitNet. Most of them are
//! dequantized while they are read.

use serde_json::Value;
use shardax::dtype::{F8E4M3Fn, F8E5M2, F8E8M0Fnu};
use shardax::prelude::*;

use super::source::{bits_of, rows_of_inputs, words};
use super::{Endings, Groups};
use crate::gguf::doubled_e2m1;
use crate::huggingface::Raw;

/// The form of a kernel with scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaled {
    /// Numbers of 8 bits, with one scale for the kernel, one for each output, or one for each block.
    Bytes {
        /// The ending of the scales.
        scales: Scales,
        /// The rows and columns of a block.
        block: Option<[usize; 2]>,
    },
    /// Integers of 4 or 8 bits, packed along the inputs, where stored integers are larger by half of their range.
    Packed {
        /// The bits of an integer.
        bits: usize,
    },
    /// Numbers in the e2m1 format, with a scale of 8 bits for each 16 of them, and a scale of the kernel.
    Nvfp4,
    /// Indices of 4 bits into a table, with a scale for each block.
    Table,
    /// Integers of 8 bits, with the largest number of each output.
    Bnb8,
    /// -1, 0 and 1 in 2 bits, with a scale of the kernel.
    Ternary {
        /// True if kernels are divided by the scale.
        divides: bool,
    },
    /// Unquantized kernels, which the model rounds to three numbers.
    RoundedToTernary,
}

/// The ending of the array of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// The name in FP8 files of DeepSeek and Qwen. Despite the name, it is a factor of the kernel.
    Inverse,
    /// The name in other files.
    Usual,
}

/// Arrays that compressed-tensors stores next to kernels, which do not change them: scales of inputs and of caches.
const IGNORED: &[&str] =
    &[".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale", ".k_scale", ".v_scale"];

impl Scaled {
    /// Returns the endings of the names of a kernel's arrays.
    pub fn endings(self) -> Endings {
        let kernel = ".weight";
        match self {
            Scaled::Bytes { scales, .. } => {
                let first = match scales {
                    Scales::Inverse => ".weight_scale_inv",
                    Scales::Usual => ".weight_scale",
                };
                let ignored = &[
                    ".activation_scale",
                    ".input_scale",
                    ".input_scale_ub",
                    ".input_zero_point",
                    ".output_scale",
                    ".k_scale",
                    ".v_scale",
                ];
                Endings { first, kernel, others: &[".weight"], optional: &[".weight_zero_point"], ignored }
            }
            Scaled::Packed { .. } => Endings {
                first: ".weight_packed",
                kernel,
                others: &[".weight_scale"],
                optional: &[".weight_zero_point", ".weight_g_idx", ".weight_shape"],
                ignored: IGNORED,
            },
            Scaled::Nvfp4 => Endings {
                first: ".weight_packed",
                kernel,
                others: &[".weight_scale", ".weight_global_scale"],
                optional: &[],
                ignored: IGNORED,
            },
            Scaled::Table => Endings {
                first: ".weight.quant_map",
                kernel,
                others: &[".weight", ".weight.absmax"],
                optional: &[
                    ".weight.nested_absmax",
                    ".weight.nested_quant_map",
                    ".weight.quant_state.bitsandbytes__nf4",
                    ".weight.quant_state.bitsandbytes__fp4",
                ],
                ignored: &[],
            },
            Scaled::Bnb8 => {
                Endings { first: ".SCB", kernel, others: &[".weight"], optional: &[], ignored: &[".weight_format"] }
            }
            Scaled::Ternary { .. } => {
                Endings { first: ".weight_scale", kernel, others: &[".weight"], optional: &[], ignored: &[] }
            }
            Scaled::RoundedToTernary => {
                Endings { first: "_proj.weight", kernel: "_proj.weight", others: &[], optional: &[], ignored: &[] }
            }
        }
    }

    /// Returns the shape of the kernel without quantization, given the shapes of its parts. `read` reads a part.
    pub fn shape(self, shapes: &[Option<&[usize]>], read: impl Fn(usize) -> Option<Raw>) -> Option<Vec<usize>> {
        let stored = |index: usize| shapes.get(index).copied().flatten();
        match self {
            Scaled::Bytes { .. } | Scaled::Bnb8 => stored(1).map(<[usize]>::to_vec),
            Scaled::RoundedToTernary => stored(0).map(<[usize]>::to_vec),
            Scaled::Packed { bits } => {
                let &[outputs, words] = stored(0)? else { return None };
                // A row whose length is not a multiple of the integers of a word is padded.
                let inputs = match stored(4).and_then(|_| read(4)) {
                    Some(shape) => *numbers(&shape)?.get(1)? as usize,
                    None => words.checked_mul(32 / bits)?,
                };
                (inputs.div_ceil(32 / bits) == words).then(|| vec![outputs, inputs])
            }
            Scaled::Nvfp4 => {
                let &[outputs, bytes] = stored(0)? else { return None };
                Some(vec![outputs, bytes.checked_mul(2)?])
            }
            Scaled::Table => {
                let state = quant_state(&read(5).or_else(|| read(6))?)?;
                let sizes = state.get("shape")?.as_array()?.iter().map(|size| Some(size.as_u64()? as usize));
                sizes.collect()
            }
            Scaled::Ternary { .. } => {
                let &[packed, inputs] = stored(1)? else { return None };
                Some(vec![packed.checked_mul(TERNARY_PER_BYTE)?, inputs])
            }
        }
    }

    /// Combines the parts of a kernel without dequantizing it. Returns `None` if that is impossible.
    pub fn groups(self, parts: &[Option<Raw>]) -> Option<Groups> {
        match (self, parts) {
            (Scaled::Packed { bits }, [Some(packed), Some(scales), zeros, order, shape]) => {
                packed_groups(bits, packed, scales, [zeros, order, shape])
            }
            _ => None,
        }
    }

    /// Dequantizes a kernel of this shape. Returns `None` if its parts do not match each other.
    pub fn widened(self, shape: &[usize], parts: &[Option<Raw>]) -> Option<Raw> {
        let values = match (self, parts) {
            (Scaled::Packed { .. }, _) => self.groups(parts)?.widened(),
            (Scaled::Bytes { block, .. }, [Some(scales), Some(kernel), zeros]) => {
                let kernel = numbers(kernel)?;
                let scale = Blocks::of(shape, scales, block)?;
                let zero = match zeros {
                    Some(zeros) => Some(Blocks::of(shape, zeros, block)?),
                    None => None,
                };
                let columns = *shape.last()?;
                let value = |(index, value): (usize, f32)| {
                    let (row, column) = (index / columns, index % columns);
                    (value - zero.as_ref().map_or(0.0, |zero| zero.at(row, column))) * scale.at(row, column)
                };
                kernel.into_iter().enumerate().map(value).collect()
            }
            (Scaled::Nvfp4, [Some(packed), Some(scales), Some(global)]) => nvfp4(shape, packed, scales, global)?,
            (Scaled::Table, [Some(table), Some(kernel), Some(largest), nested, nested_table, nf4, fp4]) => {
                let state = quant_state(nf4.as_ref().or(fp4.as_ref())?)?;
                let nested = nested.as_ref().zip(nested_table.as_ref());
                from_table(shape.iter().product(), (table, kernel, largest), nested, &state)?
            }
            (Scaled::Bnb8, [Some(largest), Some(kernel)]) => {
                let (largest, kernel) = (numbers(largest)?, numbers(kernel)?);
                let columns = *shape.get(1).filter(|columns| **columns > 0)?;
                if largest.len() != shape[0] {
                    return None;
                }
                kernel.iter().enumerate().map(|(i, value)| value * largest[i / columns] / 127.0).collect()
            }
            (Scaled::Ternary { divides }, [Some(scale), Some(kernel)]) => ternary(shape, scale, kernel, divides)?,
            (Scaled::RoundedToTernary, [Some(kernel)]) => rounded_to_ternary(&numbers(kernel)?),
            _ => return None,
        };
        (values.len() == shape.iter().product::<usize>()).then(|| Raw::of_f32(shape.to_vec(), &values))
    }
}

/// Returns the numbers of an array of floating-point numbers or of integers of at most 32 bits.
pub(super) fn numbers(raw: &Raw) -> Option<Vec<f32>> {
    let bytes = || raw.bytes.iter().copied();
    let pairs = || raw.bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    let fours = || raw.bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
    Some(match raw.dtype {
        DType::F8E4M3Fn => bytes().map(|byte| F8E4M3Fn::from_bits(byte).to_f64() as f32).collect(),
        DType::F8E5M2 => bytes().map(|byte| F8E5M2::from_bits(byte).to_f64() as f32).collect(),
        DType::F8E8M0Fnu => bytes().map(|byte| F8E8M0Fnu::from_bits(byte).to_f64() as f32).collect(),
        DType::I8 => bytes().map(|byte| f32::from(byte as i8)).collect(),
        DType::U8 => bytes().map(f32::from).collect(),
        DType::F16 => pairs().map(|pair| half::f16::from_le_bytes(pair).to_f32()).collect(),
        DType::Bf16 => pairs().map(|pair| half::bf16::from_le_bytes(pair).to_f32()).collect(),
        DType::F32 => fours().map(f32::from_le_bytes).collect(),
        DType::I32 => fours().map(|four| i32::from_le_bytes(four) as f32).collect(),
        DType::I64 => {
            let eights = raw.bytes.chunks_exact(8).filter_map(|b| <[u8; 8]>::try_from(b).ok());
            eights.map(|eight| i64::from_le_bytes(eight) as f32).collect()
        }
        _ => return None,
    })
}

/// Numbers of the blocks of a matrix.
struct Blocks {
    values: Vec<f32>,
    rows: usize,
    columns: usize,
    per_row: usize,
}

impl Blocks {
    /// Returns the numbers of a matrix of this shape. Without the sizes of a block, there is one number, or one for each row.
    fn of(shape: &[usize], scales: &Raw, block: Option<[usize; 2]>) -> Option<Blocks> {
        let &[rows, columns] = shape else { return None };
        // Files without the dtype of powers of two store their exponents as integers.
        let values = match scales.dtype {
            DType::U8 => scales.bytes.iter().map(|byte| F8E8M0Fnu::from_bits(*byte).to_f64() as f32).collect(),
            _ => numbers(scales)?,
        };
        let [block_rows, block_columns] = match block {
            _ if values.len() == 1 => [rows.max(1), columns.max(1)],
            Some(block) => block,
            None => [1, columns.max(1)],
        };
        let per_row = columns.div_ceil(block_columns);
        let fits = rows.div_ceil(block_rows).checked_mul(per_row) == Some(values.len());
        fits.then_some(Blocks { values, rows: block_rows, columns: block_columns, per_row })
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        self.values[row / self.rows * self.per_row + column / self.columns]
    }
}

/// Combines integers that are packed along the inputs, with their scales and zero points.
fn packed_groups(bits: usize, packed: &Raw, scales: &Raw, [zeros, order, shape]: [&Option<Raw>; 3]) -> Option<Groups> {
    let (&[outputs, row_words], &[scale_rows, groups]) = (&packed.shape[..], &scales.shape[..]) else { return None };
    let per_word = 32 / bits;
    let inputs = match shape {
        Some(shape) => *numbers(shape)?.get(1)? as usize,
        None => row_words.checked_mul(per_word)?,
    };
    let group = inputs.checked_div(groups).filter(|group| *group > 0 && group * groups == inputs)?;
    let group_of: Vec<usize> = match order {
        // A first entry of -1 means that the order of the inputs is not changed.
        Some(order) if numbers(order)?.first() != Some(&-1.0) => {
            numbers(order)?.into_iter().map(|index| index as usize).collect()
        }
        _ => (0..inputs).map(|input| input / group).collect(),
    };
    let (stored, scales) = (words(packed)?, numbers(scales)?);
    let zero_words = match zeros {
        Some(zeros) if zeros.shape == [outputs.div_ceil(per_word), groups] => Some(words(zeros)?),
        Some(_) => return None,
        None => None,
    };
    let fits = scale_rows == outputs && group_of.len() == inputs && inputs.div_ceil(per_word) == row_words;
    if !fits || group_of.iter().any(|group| *group >= groups) {
        return None;
    }
    // Without zero points, integers are symmetric around zero.
    let middle = 1 << (bits - 1);
    let integer =
        |input: usize, output: usize| bits_of(stored[output * row_words + input / per_word], input % per_word, bits);
    rows_of_inputs((inputs, outputs, groups), bits, &group_of, integer, |group: usize, output: usize| {
        let zero = zero_words
            .as_ref()
            .map_or(middle, |zeros| bits_of(zeros[output / per_word * groups + group], output % per_word, bits));
        (scales[output * groups + group], zero)
    })
}

/// The number of elements with one scale in the NVFP4 format.
const NVFP4_BLOCK: usize = 16;

fn nvfp4(shape: &[usize], packed: &Raw, scales: &Raw, global: &Raw) -> Option<Vec<f32>> {
    let &[outputs, inputs] = shape else { return None };
    let (scales, global) = (numbers(scales)?, *numbers(global)?.first()?);
    if packed.dtype != DType::U8
        || scales.len() != outputs.checked_mul(inputs / NVFP4_BLOCK)?
        || inputs % NVFP4_BLOCK != 0
    {
        return None;
    }
    let nibbles = packed.bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
    let value =
        |(index, nibble): (usize, u8)| f32::from(doubled_e2m1(nibble)) * 0.5 * (scales[index / NVFP4_BLOCK] / global);
    Some(nibbles.enumerate().map(value).collect())
}

/// Returns the description of a kernel that bitsandbytes stores as the bytes of a JSON text.
fn quant_state(raw: &Raw) -> Option<Value> {
    serde_json::from_slice(&raw.bytes).ok()
}

/// Looks up indices of 4 bits in a table, and multiplies by the largest numbers of blocks, which can be indices into another
/// table.
fn from_table(
    count: usize,
    (table, kernel, largest): (&Raw, &Raw, &Raw),
    nested: Option<(&Raw, &Raw)>,
    state: &Value,
) -> Option<Vec<f32>> {
    let size_of =
        |name: &str| state.get(name).and_then(Value::as_u64).map(|size| size as usize).filter(|size| *size > 0);
    let (table, block) = (numbers(table)?, size_of("blocksize")?);
    let largest = match nested {
        Some((nested, nested_table)) => {
            let (nested, nested_table) = (numbers(nested)?, numbers(nested_table)?);
            let (nested_block, offset) = (size_of("nested_blocksize")?, state.get("nested_offset")?.as_f64()? as f32);
            let entries = largest.bytes.iter().enumerate();
            let entries = entries.map(|(index, byte)| {
                Some(nested_table.get(usize::from(*byte))? * nested.get(index / nested_block)? + offset)
            });
            entries.collect::<Option<Vec<f32>>>()?
        }
        None => numbers(largest)?,
    };
    if kernel.dtype != DType::U8 || table.len() < 16 || largest.len() < count.div_ceil(block) {
        return None;
    }
    // The first number of each byte is in its upper bits.
    let nibbles = kernel.bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).take(count);
    Some(nibbles.enumerate().map(|(index, nibble)| table[usize::from(nibble)] * largest[index / block]).collect())
}

/// The numbers in a byte of a ternary kernel.
const TERNARY_PER_BYTE: usize = 4;

fn ternary(shape: &[usize], scale: &Raw, kernel: &Raw, divides: bool) -> Option<Vec<f32>> {
    let &[outputs, inputs] = shape else { return None };
    let scale = *numbers(scale)?.first()?;
    let scale = if divides { scale.recip() } else { scale };
    let rows = outputs / TERNARY_PER_BYTE;
    if kernel.dtype != DType::U8 || kernel.shape != [rows, inputs] {
        return None;
    }
    // The bits of a byte belong to rows that are a quarter of all rows apart.
    let value = |index: usize| {
        let (row, column) = (index / inputs, index % inputs);
        let byte = kernel.bytes[row % rows * inputs + column];
        (f32::from(byte >> (2 * (row / rows)) & 3) - 1.0) * scale
    };
    Some((0..outputs * inputs).map(value).collect())
}

/// Rounds numbers to three values, which are multiples of their mean absolute value.
fn rounded_to_ternary(values: &[f32]) -> Vec<f32> {
    let mean = values.iter().map(|value| f64::from(value.abs())).sum::<f64>() / values.len().max(1) as f64;
    let mean = mean.max(1e-5) as f32;
    values.iter().map(|value| (value / mean).round_ties_even().clamp(-1.0, 1.0) * mean).collect()
}
