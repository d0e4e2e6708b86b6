//! Numbers that are rounded once to the type of a result.

use half::{bf16, f16};

/// The type of a result: a sum of type `S`, or a rounded sum.
pub trait Rounded<S>: Copy + Send + Sync {
    fn rounded(sum: S) -> Self;
}

impl Rounded<f32> for f32 {
    #[inline(always)]
    fn rounded(sum: f32) -> f32 {
        sum
    }
}

impl Rounded<f32> for bf16 {
    /// Rounds to the nearest number, ties to even, without branches.
    #[inline(always)]
    fn rounded(sum: f32) -> bf16 {
        let bits = sum.to_bits();
        let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        bf16::from_bits(if sum.is_nan() { (bits >> 16) | 0x40 } else { nearest } as u16)
    }
}

impl Rounded<f32> for f16 {
    /// Rounds to the nearest number, ties to even, without branches, so that the compiler can vectorize it. No intermediate number is a
    /// subnormal f32, because XLA's threads flush them to zero.
    #[inline(always)]
    fn rounded(sum: f32) -> f16 {
        let sign = sum.to_bits() & 0x8000_0000;
        let magnitude = sum.to_bits() ^ sign;
        // The exponent's bias changes from 127 to 15, and 13 digits are rounded.
        let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + ((magnitude >> 13) & 1)) >> 13;
        // The sum with 1/2 is rounded to the digits of a subnormal f16.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let least_normal = 113 << 23;
        let finite = if magnitude < least_normal { subnormal } else { normal };
        let infinite = if magnitude > f32::INFINITY.to_bits() { 0x7e00 } else { 0x7c00 };
        let bits = if magnitude >= 65536f32.to_bits() { infinite } else { finite };
        f16::from_bits((bits | (sign >> 16)) as u16)
    }
}

impl Rounded<i32> for i32 {
    #[inline(always)]
    fn rounded(sum: i32) -> i32 {
        sum
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::Rounded;

    /// Numbers of all exponents. Some are in the middle of two results, or next to it.
    #[test]
    fn half_precision_rounds_to_nearest() {
        for upper in (0..1u32 << 20).step_by(61) {
            for lower in [0, 1, 0x800, 0xfff] {
                let x = f32::from_bits((upper << 12) | lower);
                let (a, b) = (f16::from_f32(x), <f16 as Rounded<f32>>::rounded(x));
                assert!(a == b && a.to_bits() >> 15 == b.to_bits() >> 15 || a.is_nan() && b.is_nan(), "{x:e}: {b}");
                let (a, b) = (bf16::from_f32(x), <bf16 as Rounded<f32>>::rounded(x));
                assert!(a == b || a.is_nan() && b.is_nan(), "{x:e}: {b}");
            }
        }
    }
}
