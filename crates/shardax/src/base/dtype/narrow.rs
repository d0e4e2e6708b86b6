//! Dtypes of 8 bits and fewer that have no Rust type: their formats, and their elements on the host.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{DType, Element, Scalar};

/// The codes of a narrow floating point format that are not finite numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    /// Infinities and NaN, as in IEEE 754.
    Ieee,
    /// NaN has all bits set (`fn`).
    Nan,
    /// The code of -0 is NaN (`fnuz`).
    NanForMinusZero,
    /// There are none: every code is a number.
    Finite,
    /// Powers of two without a sign and without 0; NaN has all bits set (`fnu`).
    Unsigned,
}

/// A narrow floating point format.
#[derive(Clone, Copy)]
pub(crate) struct Format {
    /// The number of exponent bits.
    pub exponent: u32,
    /// The number of stored mantissa bits.
    pub mantissa: u32,
    bias: i32,
    special: Special,
}

impl Format {
    /// Returns the format of a floating point dtype of 8 bits and fewer.
    pub fn of(dtype: DType) -> Option<Format> {
        use Special::*;
        let (exponent, mantissa, bias, special) = match dtype {
            DType::F8E3M4 => (3, 4, 3, Ieee),
            DType::F8E4M3 => (4, 3, 7, Ieee),
            DType::F8E5M2 => (5, 2, 15, Ieee),
            DType::F8E4M3Fn => (4, 3, 7, Nan),
            DType::F8E4M3Fnuz => (4, 3, 8, NanForMinusZero),
            DType::F8E5M2Fnuz => (5, 2, 16, NanForMinusZero),
            DType::F8E4M3B11Fnuz => (4, 3, 11, NanForMinusZero),
            DType::F4E2M1Fn => (2, 1, 1, Finite),
            DType::F8E8M0Fnu => (8, 0, 127, Unsigned),
            _ => return None,
        };
        Some(Format { exponent, mantissa, bias, special })
    }

    /// The code of the largest exponent with an empty mantissa: the infinity of IEEE formats.
    fn infinity(self) -> u32 {
        ((1 << self.exponent) - 1) << self.mantissa
    }

    /// The bits below the sign.
    fn magnitude(self) -> u32 {
        (1 << (self.exponent + self.mantissa)) - 1
    }

    /// The code of the largest finite number.
    fn largest(self) -> u32 {
        match self.special {
            Special::Ieee => self.infinity() - 1,
            Special::Nan | Special::Unsigned => self.magnitude() - 1,
            Special::NanForMinusZero | Special::Finite => self.magnitude(),
        }
    }

    /// The code of NaN, and of numbers that are too large. If the format has no NaN, it is -0, as in other libraries.
    fn nan(self, sign: u32) -> u32 {
        match self.special {
            Special::Ieee => sign | self.infinity() | 1 << (self.mantissa - 1),
            Special::Nan => sign | self.magnitude(),
            Special::Unsigned => self.magnitude(),
            Special::NanForMinusZero | Special::Finite => self.magnitude() + 1,
        }
    }

    /// Returns the largest finite number.
    pub fn max(self) -> f64 {
        self.decode(self.largest() as u8)
    }

    /// Returns the lowest finite number.
    pub fn min(self) -> f64 {
        if self.special == Special::Unsigned { self.smallest_normal() } else { -self.max() }
    }

    /// Returns the smallest positive number of full precision.
    pub fn smallest_normal(self) -> f64 {
        self.power(if self.special == Special::Unsigned { 0 } else { 1 })
    }

    /// Returns the smallest positive number.
    pub fn smallest_subnormal(self) -> f64 {
        self.smallest_normal() * 2f64.powi(-(self.mantissa as i32))
    }

    /// Numbers of at most this size round to 0, if the format has no -0.
    pub fn rounds_to_unsigned_zero(self) -> Option<f64> {
        (self.special == Special::NanForMinusZero).then_some(self.smallest_subnormal() / 2.0)
    }

    /// Returns `true` if it has infinities.
    pub fn has_infinity(self) -> bool {
        self.special == Special::Ieee
    }

    /// The power of two of this exponent field.
    fn power(self, field: i32) -> f64 {
        2f64.powi(field - self.bias)
    }

    /// Returns the number with this code.
    pub fn decode(self, code: u8) -> f64 {
        let code = u32::from(code) & (self.magnitude() << 1 | 1);
        let (negative, magnitude) = (code > self.magnitude(), code & self.magnitude());
        let field = (magnitude >> self.mantissa) as i32;
        let fraction = f64::from(magnitude & ((1 << self.mantissa) - 1)) / f64::from(1 << self.mantissa);
        let value = match self.special {
            Special::Unsigned if magnitude == self.magnitude() => f64::NAN,
            Special::Unsigned => self.power(field),
            Special::Ieee if magnitude == self.infinity() => f64::INFINITY,
            Special::Ieee if magnitude > self.infinity() => f64::NAN,
            Special::Nan if magnitude == self.magnitude() => f64::NAN,
            Special::NanForMinusZero if negative && magnitude == 0 => f64::NAN,
            _ if field == 0 => fraction * self.power(1),
            _ => (1.0 + fraction) * self.power(field),
        };
        if negative { -value } else { value }
    }

    /// Returns the code of the number nearest to `value`; ties go to the even code. It rounds to float32 first, as
    /// other libraries do. Numbers that are too large become infinite, NaN, or the largest number, depending on the
    /// format.
    pub fn encode(self, value: f64) -> u8 {
        let value = f64::from(value as f32);
        let sign = if value.is_sign_negative() { self.magnitude() + 1 } else { 0 };
        let size = value.abs();
        let unsigned = self.special == Special::Unsigned;
        if value.is_nan() || unsigned && (value <= 0.0 || size.is_infinite()) {
            return self.nan(sign) as u8;
        }
        // Every float32 is a normal float64.
        let exponent = (size.to_bits() >> 52) as i32 - 1023;
        let code = if size.is_infinite() {
            u32::MAX
        } else if unsigned {
            // Powers of two have no even neighbour, so ties round up.
            (exponent + self.bias + i32::from(size / 2f64.powi(exponent) >= 1.5)).max(0) as u32
        } else {
            let exponent = exponent.max(1 - self.bias);
            let units = (size * 2f64.powi(self.mantissa as i32 - exponent)).round_ties_even() as u32;
            // Rounding up to the next power of two carries into the exponent.
            units + (((exponent + self.bias - 1) as u32) << self.mantissa)
        };
        let code = match self.special {
            _ if code <= self.largest() => code,
            Special::Ieee => self.infinity(),
            Special::Finite => self.largest(),
            _ => return self.nan(sign) as u8,
        };
        let minus_zero = code == 0 && self.special == Special::NanForMinusZero;
        (if unsigned || minus_zero { code } else { sign | code }) as u8
    }
}

/// The low bits of an integer, with the sign of a signed dtype.
pub(super) fn wrapped(value: i128, dtype: DType) -> i8 {
    let unused = 8 - dtype.bits();
    if dtype.is_signed() { ((value as i8) << unused) >> unused } else { (value as u8 & (u8::MAX >> unused)) as i8 }
}

macro_rules! element {
    ($name:ident, |$byte:ident| $read:expr) => {
        impl Element for $name {
            const DTYPE: DType = DType::$name;
            fn write(self, out: &mut Vec<u8>) {
                out.push(self.0 as u8);
            }
            fn read(bytes: &[u8]) -> Self {
                let $byte = bytes[0];
                $name($read)
            }
            fn to_scalar(self) -> Scalar {
                Scalar::read(DType::$name, &[self.0 as u8])
            }
            fn as_bytes(elements: &[Self]) -> Option<&[u8]> {
                Some(elements.as_bytes())
            }
        }
    };
}

macro_rules! narrow_floats {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// Returns the number nearest to `value`, which is rounded to float32 first; ties go to the even number.
            pub fn from_f64(value: f64) -> Self {
                $name(Format::of(DType::$name).map_or(0, |format| format.encode(value)))
            }

            /// Returns the number with these bits.
            pub const fn from_bits(bits: u8) -> Self {
                $name(bits)
            }

            /// Returns the bits.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// Returns the number, exactly.
            pub fn to_f64(self) -> f64 {
                Format::of(DType::$name).map_or(0.0, |format| format.decode(self.0))
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.to_f64() == other.to_f64()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                self.to_f64().partial_cmp(&other.to_f64())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.to_f64())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.to_f64())
            }
        }

        impl From<$name> for f64 {
            fn from(value: $name) -> f64 {
                value.to_f64()
            }
        }

        element!($name, |byte| byte);
    )*};
}

narrow_floats! {
    /// An element of `float8_e3m4`: 4 bits of mantissa, up to 15.5, with infinities.
    F8E3M4;
    /// An element of `float8_e4m3`: 3 bits of mantissa, up to 240, with infinities.
    F8E4M3;
    /// An element of `float8_e4m3fn`: 3 bits of mantissa, up to 448, no infinities; for values in training.
    ///
    /// ```
    /// use shardax::dtype::F8E4M3Fn;
    ///
    /// assert_eq!(F8E4M3Fn::from_f64(0.3).to_f64(), 0.3125);
    /// assert_eq!(F8E4M3Fn::from_f64(448.0).to_bits(), 0x7e);
    /// assert!(F8E4M3Fn::from_f64(1000.0).to_f64().is_nan());
    /// ```
    F8E4M3Fn;
    /// An element of `float8_e4m3fnuz`: 3 bits of mantissa, up to 240, no infinities and no -0.
    F8E4M3Fnuz;
    /// An element of `float8_e4m3b11fnuz`: 3 bits of mantissa, up to 30, no infinities and no -0.
    F8E4M3B11Fnuz;
    /// An element of `float8_e5m2`: 2 bits of mantissa, up to 57344, with infinities; for gradients in training.
    F8E5M2;
    /// An element of `float8_e5m2fnuz`: 2 bits of mantissa, up to 57344, no infinities and no -0.
    F8E5M2Fnuz;
    /// An element of `float8_e8m0fnu`: a power of two from 2⁻¹²⁷ to 2¹²⁷ or NaN; for the scales of blocks.
    F8E8M0Fnu;
    /// An element of `float4_e2m1fn`: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
    F4E2M1Fn;
}

macro_rules! narrow_integers {
    ($($(#[$doc:meta])* $name:ident: $raw:ty;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, IntoBytes, Immutable)]
        #[repr(transparent)]
        pub struct $name($raw);

        impl $name {
            /// Returns the number with the low bits of `value`: larger numbers wrap, as in `astype`.
            pub fn wrapping(value: $raw) -> Self {
                $name(wrapped(value.into(), DType::$name) as $raw)
            }

            /// Returns the number.
            pub const fn get(self) -> $raw {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl From<$name> for $raw {
            fn from(value: $name) -> $raw {
                value.0
            }
        }

        // Only the low bits are used.
        element!($name, |byte| wrapped(byte.into(), DType::$name) as $raw);
    )*};
}

narrow_integers! {
    /// An element of `int4`: -8 to 7, in one byte on the host.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::dtype::I4;
    ///
    /// let x = array([I4::wrapping(-8), I4::wrapping(7)]);
    /// assert_eq!((x.dtype(), x.astype(DType::I32).to_vec::<i32>()?), (DType::I4, vec![-8, 7]));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    I4: i8;
    /// An element of `uint4`: 0 to 15, in one byte on the host.
    U4: u8;
    /// An element of `int2`: -2 to 1, in one byte on the host.
    I2: i8;
    /// An element of `uint2`: 0 to 3, in one byte on the host.
    U2: u8;
}
