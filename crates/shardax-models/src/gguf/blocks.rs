//! The block formats of ggml.
//!
//! A block contains 32 or 256 elements of a row. In every format an element is `scale * integer - minimum`, where groups
//! of 16 or 32 elements share a scale and a minimum, and float32 can represent both exactly. So all formats are
//! unpacked to the same representation, [`Groups`].

use crate::quantized::{Groups, Integers};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)] // ggml's names.
pub(crate) enum BlockType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
}

/// The number of elements in a block of the `K` types.
const SUPER: usize = 256;

impl BlockType {
    pub const ALL: [BlockType; 18] = [
        BlockType::F32,
        BlockType::F16,
        BlockType::BF16,
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q8_0,
        BlockType::Q2_K,
        BlockType::Q3_K,
        BlockType::Q4_K,
        BlockType::Q5_K,
        BlockType::Q6_K,
        BlockType::IQ4_NL,
        BlockType::IQ4_XS,
        BlockType::TQ1_0,
        BlockType::TQ2_0,
        BlockType::MXFP4,
    ];

    /// Returns the number of the type in files, its name, the numbers of elements and bytes in a block, and the number of
    /// elements in a group.
    const fn description(self) -> (u32, &'static str, usize, usize, usize) {
        match self {
            BlockType::F32 => (0, "F32", 1, 4, 1),
            BlockType::F16 => (1, "F16", 1, 2, 1),
            BlockType::BF16 => (30, "BF16", 1, 2, 1),
            BlockType::Q4_0 => (2, "Q4_0", 32, 18, 32),
            BlockType::Q4_1 => (3, "Q4_1", 32, 20, 32),
            BlockType::Q5_0 => (6, "Q5_0", 32, 22, 32),
            BlockType::Q5_1 => (7, "Q5_1", 32, 24, 32),
            BlockType::Q8_0 => (8, "Q8_0", 32, 34, 32),
            BlockType::Q2_K => (10, "Q2_K", SUPER, 84, 16),
            BlockType::Q3_K => (11, "Q3_K", SUPER, 110, 16),
            BlockType::Q4_K => (12, "Q4_K", SUPER, 144, 32),
            BlockType::Q5_K => (13, "Q5_K", SUPER, 176, 32),
            BlockType::Q6_K => (14, "Q6_K", SUPER, 210, 16),
            BlockType::IQ4_NL => (20, "IQ4_NL", 32, 18, 32),
            BlockType::IQ4_XS => (23, "IQ4_XS", SUPER, 136, 32),
            BlockType::TQ1_0 => (34, "TQ1_0", SUPER, 54, 32),
            BlockType::TQ2_0 => (35, "TQ2_0", SUPER, 66, 32),
            BlockType::MXFP4 => (39, "MXFP4", 32, 17, 32),
        }
    }

    pub fn from_code(code: u32) -> Option<BlockType> {
        BlockType::ALL.into_iter().find(|block| block.description().0 == code)
    }

    pub fn name(self) -> &'static str {
        self.description().1
    }

    /// Returns the number of elements in a block.
    pub fn elements(self) -> usize {
        self.description().2
    }

    /// Returns the number of bytes in a block.
    pub fn bytes(self) -> usize {
        self.description().3
    }

    /// Returns the number of elements that share a scale.
    pub fn group(self) -> usize {
        self.description().4
    }

    /// Returns the size of a tensor in bytes, or `None` if its rows do not consist of entire blocks or the size overflows.
    pub fn bytes_of(self, shape: &[usize]) -> Option<u64> {
        let columns = shape.last().copied().unwrap_or(1);
        if !columns.is_multiple_of(self.elements()) {
            return None;
        }
        let elements = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size as u64))?;
        (elements / self.elements() as u64).checked_mul(self.bytes() as u64)
    }

    /// Unpacks the blocks of a tensor. `bytes` must contain all blocks for `shape`.
    pub fn groups(self, shape: &[usize], bytes: &[u8]) -> Groups {
        let mut groups = Groups::with_capacity(shape, self.group(), self.integers(), self.has_minima());
        for block in bytes.chunks_exact(self.bytes()) {
            self.push_block(block, &mut groups);
        }
        groups
    }

    /// Returns the range of the integers.
    fn integers(self) -> Integers {
        match self {
            BlockType::Q4_0 | BlockType::Q3_K | BlockType::Q2_K | BlockType::TQ1_0 | BlockType::TQ2_0 => {
                Integers::Signed4
            }
            BlockType::Q4_1 | BlockType::Q4_K => Integers::Unsigned4,
            _ => Integers::Signed8,
        }
    }

    /// Returns `true` for floating-point types, which have no blocks.
    pub fn is_plain(self) -> bool {
        matches!(self, BlockType::F32 | BlockType::F16 | BlockType::BF16)
    }

    fn has_minima(self) -> bool {
        matches!(self, BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q2_K | BlockType::Q4_K | BlockType::Q5_K)
    }

    /// Appends the groups of one block.
    fn push_block(self, block: &[u8], groups: &mut Groups) {
        // The byte ranges are the fields of ggml's structs. Minima change their sign, because ggml subtracts them and
        // `Groups` adds them.
        match self {
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => {}
            BlockType::Q4_0 => {
                groups.values.extend(nibbles(&block[2..18]).map(|nibble| nibble as i8 - 8));
                groups.scales.push(half_at(block, 0));
            }
            BlockType::Q4_1 => {
                groups.values.extend(nibbles(&block[4..20]).map(|nibble| nibble as i8));
                groups.scales.push(half_at(block, 0));
                groups.minima.push(-half_at(block, 2));
            }
            BlockType::Q5_0 => {
                groups.values.extend(five_bits(&block[2..6], &block[6..22]).map(|value| value as i8 - 16));
                groups.scales.push(half_at(block, 0));
            }
            BlockType::Q5_1 => {
                groups.values.extend(five_bits(&block[4..8], &block[8..24]).map(|value| value as i8));
                groups.scales.push(half_at(block, 0));
                groups.minima.push(-half_at(block, 2));
            }
            BlockType::Q8_0 => {
                groups.values.extend(block[2..34].iter().map(|byte| *byte as i8));
                groups.scales.push(half_at(block, 0));
            }
            BlockType::Q2_K => push_q2_k(block, groups),
            BlockType::Q3_K => push_q3_k(block, groups),
            BlockType::Q4_K => {
                push_scales_and_minima(block, groups);
                for quarter in block[16..144].chunks_exact(32) {
                    groups.values.extend(nibbles(quarter).map(|nibble| nibble as i8));
                }
            }
            BlockType::Q5_K => {
                push_scales_and_minima(block, groups);
                let (high, low) = (&block[16..48], &block[48..176]);
                for (quarter, bytes) in low.chunks_exact(32).enumerate() {
                    for (i, nibble) in nibbles(bytes).enumerate() {
                        let bit = high[i % 32] >> (2 * quarter + i / 32) & 1;
                        groups.values.push((nibble | bit << 4) as i8);
                    }
                }
            }
            BlockType::Q6_K => push_q6_k(block, groups),
            BlockType::IQ4_NL => {
                groups.values.extend(nibbles(&block[2..18]).map(unevenly_spaced));
                groups.scales.push(half_at(block, 0));
            }
            BlockType::IQ4_XS => push_iq4_xs(block, groups),
            BlockType::TQ1_0 => {
                groups.values.extend(ternary_digits(&block[..32], 5));
                groups.values.extend(ternary_digits(&block[32..48], 5));
                groups.values.extend(ternary_digits(&block[48..52], 4));
                groups.scales.extend([half_at(block, 52); SUPER / 32]);
            }
            BlockType::TQ2_0 => {
                for half in block[..64].chunks_exact(32) {
                    for shift in [0, 2, 4, 6] {
                        groups.values.extend(half.iter().map(|byte| (byte >> shift & 3) as i8 - 1));
                    }
                }
                groups.scales.extend([half_at(block, 64); SUPER / 32]);
            }
            BlockType::MXFP4 => {
                groups.values.extend(nibbles(&block[1..17]).map(doubled_e2m1));
                groups.scales.push(half_of_power(block[0]));
            }
        }
    }
}

/// Returns the lower four bits of all bytes, then the upper four bits.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4))
}

/// Returns 32 integers of 5 bits. `high` contains the highest bits, `low` the others.
fn five_bits(high: &[u8], low: &[u8]) -> impl Iterator<Item = u8> {
    nibbles(low).enumerate().map(|(i, nibble)| nibble | (high[i / 8] >> (i % 8) & 1) << 4)
}

/// Reads the float16 number at an offset of a block.
fn half_at(block: &[u8], offset: usize) -> f32 {
    half::f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}

/// Decodes four bits of the `IQ4` types, whose numbers are closer to each other near zero.
fn unevenly_spaced(bits: u8) -> i8 {
    const NUMBERS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    NUMBERS[usize::from(bits & 15)]
}

/// Returns numbers from -1 to 1: the first ones of all bytes, then the second ones, and so on. A byte is a fraction of 256 in
/// base 3, whose digits are the numbers plus 1.
fn ternary_digits(bytes: &[u8], digits: u32) -> impl Iterator<Item = i8> {
    (0..digits).flat_map(move |digit| {
        bytes.iter().map(move |byte| {
            let rest = byte.wrapping_mul(3u8.wrapping_pow(digit));
            ((u16::from(rest) * 3) >> 8) as i8 - 1
        })
    })
}

/// Decodes four bits in the format e2m1. Returns twice the number, because that is an integer.
pub(crate) fn doubled_e2m1(bits: u8) -> i8 {
    const MAGNITUDES: [i8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];
    let magnitude = MAGNITUDES[usize::from(bits & 7)];
    if bits & 8 == 0 { magnitude } else { -magnitude }
}

/// Decodes a byte in the format e8m0. Returns half of the number, `2^(exponent - 128)`.
pub(crate) fn half_of_power(exponent: u8) -> f32 {
    match exponent {
        // The results 2^-128 and 2^-127 are subnormal.
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

/// Appends the scales and minima of a `Q4_K` or `Q5_K` block, which are eight pairs of 6-bit integers in twelve bytes.
fn push_scales_and_minima(block: &[u8], groups: &mut Groups) {
    let (scale, minimum, packed) = (half_at(block, 0), half_at(block, 2), &block[4..16]);
    for i in 0..8 {
        let (a, b) = match i {
            0..4 => (packed[i] & 63, packed[i + 4] & 63),
            _ => (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4),
        };
        groups.scales.push(scale * f32::from(a));
        groups.minima.push(minimum * f32::from(b));
    }
}

fn push_q2_k(block: &[u8], groups: &mut Groups) {
    let (scale, minimum) = (half_at(block, 80), half_at(block, 82));
    for byte in &block[..16] {
        groups.scales.push(scale * f32::from(byte & 15));
        groups.minima.push(minimum * f32::from(byte >> 4));
    }
    for half in block[16..80].chunks_exact(32) {
        for shift in [0, 2, 4, 6] {
            groups.values.extend(half.iter().map(|byte| (byte >> shift & 3) as i8));
        }
    }
}

fn push_q3_k(block: &[u8], groups: &mut Groups) {
    let (high, low, packed, scale) = (&block[..32], &block[32..96], &block[96..108], half_at(block, 108));
    for i in 0..16 {
        let low_bits = packed[i % 8] >> (i / 8 * 4) & 15;
        let high_bits = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        groups.scales.push(scale * f32::from((low_bits | high_bits << 4) as i8 - 32));
    }
    for (i, half) in low.chunks_exact(32).enumerate() {
        for shift in 0..4 {
            for (byte, mask) in half.iter().zip(high) {
                let bit = mask >> (i * 4 + shift) & 1;
                groups.values.push((byte >> (2 * shift) & 3) as i8 - if bit == 1 { 0 } else { 4 });
            }
        }
    }
}

fn push_iq4_xs(block: &[u8], groups: &mut Groups) {
    let (scale, high, low) = (half_at(block, 0), u16::from_le_bytes([block[2], block[3]]), &block[4..8]);
    for (group, bytes) in block[8..136].chunks_exact(16).enumerate() {
        let low_bits = low[group / 2] >> (group % 2 * 4) & 15;
        let high_bits = (high >> (2 * group) & 3) as u8;
        groups.scales.push(scale * f32::from((low_bits | high_bits << 4) as i8 - 32));
        groups.values.extend(nibbles(bytes).map(unevenly_spaced));
    }
}

fn push_q6_k(block: &[u8], groups: &mut Groups) {
    let (low, high, scales, scale) = (&block[..128], &block[128..192], &block[192..208], half_at(block, 208));
    groups.scales.extend(scales.iter().map(|byte| scale * f32::from(*byte as i8)));
    for (low, high) in low.chunks_exact(64).zip(high.chunks_exact(32)) {
        for (i, nibble) in nibbles(low).enumerate() {
            let bits = high[i % 32] >> (i / 32 * 2) & 3;
            groups.values.push((nibble | bits << 4) as i8 - 32);
        }
    }
}
