//! Reductions in the group's order, starting from the identity of the operation, as in the CPU plugin (xla-cpu-pjrt
//! 0.0.1).

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use num_complex::Complex;
use shardax_pjrt::ElementType as E;

use crate::Outcome;

/// The number of elements that are reduced at a time, so that sums stay in the cache.
const BLOCK: usize = 4096;

/// An element type.
trait Number: Copy {
    const SIZE: usize;
    fn read(bytes: &[u8]) -> impl Iterator<Item = Self>;
    fn write(numbers: &[Self], bytes: &mut [u8]);
    /// Calls `fold` with the identity and the function of an operation.
    fn combine(op: &str, fold: impl Fold<Self>) -> Option<()>;
}

/// A loop over elements, compiled separately for each operation so that the function is inlined.
trait Fold<T> {
    fn by(self, start: T, function: impl Fn(T, T) -> T);
}

macro_rules! bytes {
    ($ty:ty) => {
        const SIZE: usize = size_of::<$ty>();
        fn read(bytes: &[u8]) -> impl Iterator<Item = $ty> {
            bytes.as_chunks().0.iter().map(|x| <$ty>::from_ne_bytes(*x))
        }
        fn write(numbers: &[$ty], bytes: &mut [u8]) {
            bytes.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(to, x)| *to = x.to_ne_bytes());
        }
    };
}

macro_rules! integers {
    ($( $ty:ty )*) => { $(
        impl Number for $ty {
            bytes!($ty);
            fn combine(op: &str, fold: impl Fold<$ty>) -> Option<()> {
                match op {
                    "add" => fold.by(0, <$ty>::wrapping_add),
                    "multiply" => fold.by(1, <$ty>::wrapping_mul),
                    "minimum" => fold.by(<$ty>::MAX, Ord::min),
                    "maximum" => fold.by(<$ty>::MIN, Ord::max),
                    "and" => fold.by(!0, |a, b| a & b),
                    "or" => fold.by(0, |a, b| a | b),
                    _ => return None,
                }
                Some(())
            }
        }
    )* };
}
integers!(i8 i16 i32 i64 u8 u16 u32 u64);

macro_rules! floats {
    ($( $ty:ty )*) => { $(
        impl Number for $ty {
            bytes!($ty);
            fn combine(op: &str, fold: impl Fold<$ty>) -> Option<()> {
                match op {
                    "add" => fold.by(0.0, |a, b| a + b),
                    "multiply" => fold.by(1.0, |a, b| a * b),
                    // As in the plugin: a comparison with NaN is false, so the accumulator stays.
                    "minimum" => fold.by(<$ty>::INFINITY, |a, b| if b < a { b } else { a }),
                    "maximum" => fold.by(<$ty>::NEG_INFINITY, |a, b| if a < b { b } else { a }),
                    _ => return None,
                }
                Some(())
            }
        }
    )* };
}
floats!(f32 f64);

macro_rules! complex {
    ($( $ty:ty )*) => { $(
        impl Number for Complex<$ty> {
            const SIZE: usize = 2 * size_of::<$ty>();
            fn read(bytes: &[u8]) -> impl Iterator<Item = Self> {
                let halves = bytes.as_chunks().0.iter().map(|x| <$ty>::from_ne_bytes(*x));
                let (re, im) = (halves.clone().step_by(2), halves.skip(1).step_by(2));
                re.zip(im).map(|(re, im)| Complex::new(re, im))
            }
            fn write(numbers: &[Self], bytes: &mut [u8]) {
                let halves = numbers.iter().flat_map(|x| [x.re, x.im]);
                bytes.as_chunks_mut().0.iter_mut().zip(halves).for_each(|(to, x)| *to = x.to_ne_bytes());
            }
            fn combine(op: &str, fold: impl Fold<Self>) -> Option<()> {
                match op {
                    "add" => fold.by(Complex::new(0.0, 0.0), |a, b| a + b),
                    "multiply" => fold.by(Complex::new(1.0, 0.0), |a, b| a * b),
                    _ => return None,
                }
                Some(())
            }
        }
    )* };
}
complex!(f32 f64);

/// Reduces arrays of one type, in the group's order, to `out`.
pub(crate) fn reduce(ty: E, op: &str, parts: &[&[u8]], out: &mut [u8]) -> Outcome<()> {
    if parts.iter().any(|part| part.len() != out.len()) {
        return Err("the devices pass arrays of different sizes".into());
    }
    let result = match ty {
        E::F32 => f32::combine(op, Exact { parts, out }),
        E::F64 => f64::combine(op, Exact { parts, out }),
        E::S8 => i8::combine(op, Exact { parts, out }),
        E::S16 => i16::combine(op, Exact { parts, out }),
        E::S32 => i32::combine(op, Exact { parts, out }),
        E::S64 => i64::combine(op, Exact { parts, out }),
        E::U8 => u8::combine(op, Exact { parts, out }),
        E::U16 => u16::combine(op, Exact { parts, out }),
        E::U32 => u32::combine(op, Exact { parts, out }),
        E::U64 => u64::combine(op, Exact { parts, out }),
        E::C64 => Complex::<f32>::combine(op, Exact { parts, out }),
        E::C128 => Complex::<f64>::combine(op, Exact { parts, out }),
        // A boolean is a byte that is 0 or 1, so that logical operations are bitwise ones.
        E::Pred => {
            let op = match op {
                "add" | "maximum" => "or",
                "multiply" | "minimum" => "and",
                op => op,
            };
            u8::combine(op, Exact { parts, out })
        }
        // The plugin sums bf16 in f32 and rounds once, but rounds f16 after every step.
        E::Bf16 => f32::combine(op, Widened { parts, out, number: bf16::ZERO, rounds: false }),
        E::F16 => f32::combine(op, Widened { parts, out, number: f16::ZERO, rounds: true }),
        _ => None,
    };
    result.ok_or_else(|| format!("arrays of {ty} cannot be reduced by {op:?} between processes"))
}

/// A reduction in the type of the arrays.
struct Exact<'a> {
    parts: &'a [&'a [u8]],
    out: &'a mut [u8],
}

impl<T: Number> Fold<T> for Exact<'_> {
    fn by(self, start: T, function: impl Fn(T, T) -> T) {
        // All parts are added to one block before the next block starts, so that the sums stay in the cache.
        let mut sums = vec![start; BLOCK];
        for (block, out) in self.out.chunks_mut(BLOCK * T::SIZE).enumerate() {
            let offset = block * BLOCK * T::SIZE;
            sums.fill(start);
            for part in self.parts {
                for (sum, x) in sums.iter_mut().zip(T::read(&part[offset..offset + out.len()])) {
                    *sum = function(*sum, x);
                }
            }
            T::write(&sums, out);
        }
    }
}

/// A reduction of 16-bit floats in `f32`, rounded at the end or after every step.
struct Widened<'a, H> {
    parts: &'a [&'a [u8]],
    out: &'a mut [u8],
    /// Any value, which determines the type.
    number: H,
    rounds: bool,
}

impl<H: Copy> Fold<f32> for Widened<'_, H>
where
    [H]: HalfFloatSliceExt,
{
    fn by(self, start: f32, function: impl Fn(f32, f32) -> f32) {
        let (mut sums, mut wide) = (vec![start; BLOCK], vec![0.0; BLOCK]);
        let mut narrow = [self.number; BLOCK];
        for (block, out) in self.out.chunks_mut(BLOCK * 2).enumerate() {
            let offset = block * BLOCK * 2;
            sums.fill(start);
            for part in self.parts {
                let bits = u16::read(&part[offset..offset + out.len()]);
                narrow.reinterpret_cast_mut().iter_mut().zip(bits).for_each(|(to, bits)| *to = bits);
                narrow.convert_to_f32_slice(&mut wide);
                sums.iter_mut().zip(&wide).for_each(|(sum, &x)| *sum = function(*sum, x));
                if self.rounds {
                    narrow.convert_from_f32_slice(&sums);
                    narrow.convert_to_f32_slice(&mut sums);
                }
            }
            narrow.convert_from_f32_slice(&sums);
            u16::write(narrow.reinterpret_cast(), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_ne_bytes()).collect()
    }

    #[test]
    fn sums_are_in_the_order_of_the_group() {
        let parts = [f32s(&[1e8, 1.0]), f32s(&[1.0, 2.0]), f32s(&[-1e8, 3.0])];
        let views: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let mut out = vec![0; 8];
        reduce(E::F32, "add", &views, &mut out).unwrap();
        assert_eq!(out, f32s(&[0.0, 6.0]));
        reduce(E::F32, "add", &[views[0], views[2], views[1]], &mut out).unwrap();
        assert_eq!(out, f32s(&[1.0, 6.0]));
    }

    /// The plugin starts from the identity, which is visible if all values are `-0` or NaN.
    #[test]
    fn reductions_start_from_the_identity() {
        let (zero, nan) = (f32s(&[-0.0]), f32s(&[f32::NAN]));
        let mut out = vec![0; 4];
        reduce(E::F32, "add", &[&zero, &zero], &mut out).unwrap();
        assert_eq!(out, f32s(&[0.0]));
        reduce(E::F32, "maximum", &[&nan, &nan], &mut out).unwrap();
        assert_eq!(out, f32s(&[f32::NEG_INFINITY]));
    }

    fn bf16_bytes(x: f32) -> Vec<u8> {
        bf16::from_f32(x).to_bits().to_ne_bytes().to_vec()
    }

    fn f16_bytes(x: f32) -> Vec<u8> {
        f16::from_f32(x).to_bits().to_ne_bytes().to_vec()
    }

    #[test]
    fn bf16_is_rounded_once_and_f16_at_every_step() {
        // 1/256 is lost when it is added to 1 in bf16.
        let parts: Vec<Vec<u8>> = [1.0].into_iter().chain([1.0 / 256.0; 4]).map(bf16_bytes).collect();
        let mut out = vec![0; 2];
        reduce(E::Bf16, "add", &parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut out).unwrap();
        assert_eq!(out, bf16_bytes(1.0 + 4.0 / 256.0));
        let parts: Vec<Vec<u8>> = [1.0].into_iter().chain([1.0 / 2048.0; 4]).map(f16_bytes).collect();
        reduce(E::F16, "add", &parts.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut out).unwrap();
        assert_eq!(out, f16_bytes(1.0));
    }

    #[test]
    fn integers_wrap_and_booleans_are_logical() {
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
    fn unsupported_reductions_are_errors() {
        let error = reduce(E::F8E5M2, "add", &[&[1]], &mut [0]).unwrap_err();
        assert_eq!(error, "arrays of f8e5m2 cannot be reduced by \"add\" between processes");
        assert!(reduce(E::F32, "and", &[&[0; 4]], &mut [0; 4]).is_err());
        assert_eq!(
            reduce(E::U8, "add", &[&[0; 4], &[0; 3]], &mut [0; 4]).unwrap_err(),
            "the devices pass arrays of different sizes"
        );
    }
}
