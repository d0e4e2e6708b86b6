//! Values combined one by one in the group's order, from the operation's identity on, as the plugin does it.

use half::{bf16, f16};
use num_complex::Complex;
use shardax_pjrt::ElementType as E;

use crate::Outcome;

/// Bytes of the result that are combined at a time, so that they stay near.
const BLOCK: usize = 16 << 10;

/// An operation on numbers of one type.
trait Number: Copy {
    const SIZE: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    /// The operation, and what it starts from.
    fn function(op: &str) -> Option<(Self, fn(Self, Self) -> Self)>;
}

macro_rules! bytes {
    ($ty:ty) => {
        const SIZE: usize = size_of::<$ty>();
        fn read(bytes: &[u8]) -> $ty {
            <$ty>::from_ne_bytes(bytes.try_into().unwrap_or_default())
        }
        fn write(self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.to_ne_bytes());
        }
    };
}

macro_rules! integers {
    ($( $ty:ty )*) => { $(
        impl Number for $ty {
            bytes!($ty);
            fn function(op: &str) -> Option<($ty, fn($ty, $ty) -> $ty)> {
                Some(match op {
                    "add" => (0, <$ty>::wrapping_add),
                    "multiply" => (1, <$ty>::wrapping_mul),
                    "minimum" => (<$ty>::MAX, Ord::min),
                    "maximum" => (<$ty>::MIN, Ord::max),
                    "and" => (!0, |a, b| a & b),
                    "or" => (0, |a, b| a | b),
                    _ => return None,
                })
            }
        }
    )* };
}
integers!(i8 i16 i32 i64 u8 u16 u32 u64);

macro_rules! floats {
    ($( $ty:ty )*) => { $(
        impl Number for $ty {
            bytes!($ty);
            fn function(op: &str) -> Option<($ty, fn($ty, $ty) -> $ty)> {
                Some(match op {
                    "add" => (0.0, |a, b| a + b),
                    "multiply" => (1.0, |a, b| a * b),
                    // As the plugin's own: a comparison with NaN keeps what there was.
                    "minimum" => (<$ty>::INFINITY, |a, b| if b < a { b } else { a }),
                    "maximum" => (<$ty>::NEG_INFINITY, |a, b| if a < b { b } else { a }),
                    _ => return None,
                })
            }
        }
    )* };
}
floats!(f32 f64);

macro_rules! complex {
    ($( $ty:ty )*) => { $(
        impl Number for Complex<$ty> {
            const SIZE: usize = 2 * size_of::<$ty>();
            fn read(bytes: &[u8]) -> Self {
                let (re, im) = bytes.split_at(size_of::<$ty>());
                Complex::new(<$ty>::read(re), <$ty>::read(im))
            }
            fn write(self, bytes: &mut [u8]) {
                let (re, im) = bytes.split_at_mut(size_of::<$ty>());
                self.re.write(re);
                self.im.write(im);
            }
            fn function(op: &str) -> Option<(Self, fn(Self, Self) -> Self)> {
                Some(match op {
                    "add" => (Complex::new(0.0, 0.0), |a, b| a + b),
                    "multiply" => (Complex::new(1.0, 0.0), |a, b| a * b),
                    _ => return None,
                })
            }
        }
    )* };
}
complex!(f32 f64);

/// Combines arrays of one type, given in the group's order, into `out`.
pub(crate) fn reduce(ty: E, op: &str, parts: &[&[u8]], out: &mut [u8]) -> Outcome<()> {
    if parts.iter().any(|part| part.len() != out.len()) {
        return Err("the devices bring arrays of several sizes".into());
    }
    let done = match ty {
        E::F32 => exact::<f32>(op, parts, out),
        E::F64 => exact::<f64>(op, parts, out),
        E::S8 => exact::<i8>(op, parts, out),
        E::S16 => exact::<i16>(op, parts, out),
        E::S32 => exact::<i32>(op, parts, out),
        E::S64 => exact::<i64>(op, parts, out),
        E::U8 => exact::<u8>(op, parts, out),
        E::U16 => exact::<u16>(op, parts, out),
        E::U32 => exact::<u32>(op, parts, out),
        E::U64 => exact::<u64>(op, parts, out),
        E::C64 => exact::<Complex<f32>>(op, parts, out),
        E::C128 => exact::<Complex<f64>>(op, parts, out),
        // One byte that is 0 or 1.
        E::Pred => exact::<u8>(
            match op {
                "add" | "maximum" => "or",
                "multiply" | "minimum" => "and",
                op => op,
            },
            parts,
            out,
        ),
        // The plugin promotes these to f32 for the whole sum, and rounds those after every step.
        E::Bf16 => widened(op, parts, out, |x| bf16::from_bits(x).to_f32(), |x| bf16::from_f32(x).to_bits(), |x| x),
        E::F16 => {
            let round = |x| f16::from_f32(x).to_f32();
            widened(op, parts, out, |x| f16::from_bits(x).to_f32(), |x| f16::from_f32(x).to_bits(), round)
        }
        _ => None,
    };
    done.ok_or_else(|| format!("arrays of {ty} cannot be combined by {op:?} between processes"))
}

fn exact<T: Number>(op: &str, parts: &[&[u8]], out: &mut [u8]) -> Option<()> {
    let (start, function) = T::function(op)?;
    let block = BLOCK / T::SIZE * T::SIZE;
    for at in (0..out.len()).step_by(block) {
        let range = at..out.len().min(at + block);
        let out = &mut out[range.clone()];
        out.chunks_exact_mut(T::SIZE).for_each(|to| start.write(to));
        for part in parts {
            for (to, x) in out.chunks_exact_mut(T::SIZE).zip(part[range.clone()].chunks_exact(T::SIZE)) {
                function(T::read(to), T::read(x)).write(to);
            }
        }
    }
    Some(())
}

/// Numbers of 16 bits, combined as `f32`; `round` is done after every step.
fn widened(
    op: &str,
    parts: &[&[u8]],
    out: &mut [u8],
    widen: fn(u16) -> f32,
    narrow: fn(f32) -> u16,
    round: fn(f32) -> f32,
) -> Option<()> {
    let (start, function) = f32::function(op)?;
    for (i, to) in out.chunks_exact_mut(2).enumerate() {
        let at = |part: &[u8]| widen(u16::read(&part[2 * i..2 * i + 2]));
        let sum = parts.iter().fold(start, |sum, part| round(function(sum, at(part))));
        narrow(sum).write(to);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_ne_bytes()).collect()
    }

    #[test]
    fn sums_are_taken_in_the_groups_order() {
        let parts = [f32s(&[1e8, 1.0]), f32s(&[1.0, 2.0]), f32s(&[-1e8, 3.0])];
        let views: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let mut out = vec![0; 8];
        reduce(E::F32, "add", &views, &mut out).unwrap();
        assert_eq!(out, f32s(&[0.0, 6.0]));
        reduce(E::F32, "add", &[views[0], views[2], views[1]], &mut out).unwrap();
        assert_eq!(out, f32s(&[1.0, 6.0]));
    }

    /// The plugin starts from the identity, which shows where all are `-0` or NaN.
    #[test]
    fn combining_starts_from_the_operations_identity() {
        let (zero, nan) = (f32s(&[-0.0]), f32s(&[f32::NAN]));
        let mut out = vec![0; 4];
        reduce(E::F32, "add", &[&zero, &zero], &mut out).unwrap();
        assert_eq!(out, f32s(&[0.0]));
        reduce(E::F32, "maximum", &[&nan, &nan], &mut out).unwrap();
        assert_eq!(out, f32s(&[f32::NEG_INFINITY]));
    }

    #[test]
    fn bf16_is_rounded_once_and_f16_at_every_step() {
        let half = |x: f32| bf16::from_f32(x).to_bits().to_ne_bytes().to_vec();
        // 1/256 is lost when it is added to 1 in bf16, one by one.
        let parts: Vec<Vec<u8>> = [1.0].into_iter().chain([1.0 / 256.0; 4]).map(half).collect();
        let mut out = vec![0; 2];
        reduce(E::Bf16, "add", &parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut out).unwrap();
        assert_eq!(out, half(1.0 + 4.0 / 256.0));
        let half = |x: f32| f16::from_f32(x).to_bits().to_ne_bytes().to_vec();
        let parts: Vec<Vec<u8>> = [1.0].into_iter().chain([1.0 / 2048.0; 4]).map(half).collect();
        reduce(E::F16, "add", &parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut out).unwrap();
        assert_eq!(out, half(1.0));
    }

    #[test]
    fn integers_wrap_and_booleans_are_logic() {
        let mut out = [0; 1];
        reduce(E::S8, "add", &[&[127], &[1]], &mut out).unwrap();
        assert_eq!(out, [128]);
        reduce(E::U8, "maximum", &[&[127], &[200]], &mut out).unwrap();
        assert_eq!(out, [200]);
        reduce(E::Pred, "add", &[&[1], &[1]], &mut out).unwrap();
        assert_eq!(out, [1]);
        reduce(E::Pred, "minimum", &[&[1], &[0]], &mut out).unwrap();
        assert_eq!(out, [0]);
    }

    #[test]
    fn what_cannot_be_combined_is_an_error() {
        let error = reduce(E::F8E5M2, "add", &[&[1]], &mut [0]).unwrap_err();
        assert_eq!(error, "arrays of f8e5m2 cannot be combined by \"add\" between processes");
        assert!(reduce(E::F32, "and", &[&[0; 4]], &mut [0; 4]).is_err());
        assert_eq!(
            reduce(E::U8, "add", &[&[0; 4], &[0; 3]], &mut [0; 4]).unwrap_err(),
            "the devices bring arrays of several sizes"
        );
    }
}
