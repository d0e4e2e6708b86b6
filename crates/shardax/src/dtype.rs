//! Element types, their host types, and JAX's promotion.

mod narrow;
mod promotion;
mod stored;

use std::fmt;

use half::{bf16, f16};
pub(crate) use narrow::Format;
pub use narrow::{
    F4E2M1Fn, F8E3M4, F8E4M3, F8E4M3B11Fnuz, F8E4M3Fn, F8E4M3Fnuz, F8E5M2, F8E5M2Fnuz, F8E8M0Fnu, I2, I4, U2, U4,
};
use num_complex::Complex;
pub use promotion::promote;
use shardax_pjrt::ElementType;
use zerocopy::{FromBytes, IntoBytes};

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// IEEE half precision: 11 bits of precision, up to 65504.
    F16,
    /// The upper half of a float32: 8 bits of precision, the range of float32.
    Bf16,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// A complex number of two float32.
    Complex64,
    /// A complex number of two float64.
    Complex128,
    /// Signed, 2 bits: -2 to 1. Elements narrower than a byte take one byte on the host.
    I2,
    /// Signed, 4 bits: -8 to 7.
    I4,
    /// Unsigned, 2 bits: 0 to 3.
    U2,
    /// Unsigned, 4 bits: 0 to 15.
    U4,
    /// 4 bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
    F4E2M1Fn,
    /// 8 bits: 5 bits of precision, up to 15.5.
    F8E3M4,
    /// 8 bits: 4 bits of precision, up to 240, with infinities.
    F8E4M3,
    /// 8 bits: 4 bits of precision, up to 30, without infinities and -0.
    F8E4M3B11Fnuz,
    /// 8 bits: 4 bits of precision, up to 448, without infinities: the format for values in training.
    F8E4M3Fn,
    /// 8 bits: 4 bits of precision, up to 240, without infinities and -0.
    F8E4M3Fnuz,
    /// 8 bits: 3 bits of precision, up to 57344, with infinities: the format for gradients in training.
    F8E5M2,
    /// 8 bits: 3 bits of precision, up to 57344, without infinities and -0.
    F8E5M2Fnuz,
    /// 8 bits: the powers of two from 2⁻¹²⁷ to 2¹²⁷ and NaN, for the scales of blocks.
    F8E8M0Fnu,
    /// The type of the gradient of a value that is not differentiable (JAX's `float0`): one
    /// boolean `false` an element on the device.
    Float0,
    /// A random key (JAX's `key<fry>`), made by [`random::key`](crate::random::key()): the two words of a Threefry-2x32 key.
    /// On the device an element is a uint64, whose low half is the first word.
    Key,
}

/// The arithmetic category of a dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    /// `bool`.
    Bool,
    /// Integers from 0.
    Unsigned,
    /// Integers with a sign.
    Signed,
    /// Real floating point.
    Float,
    /// Complex floating point.
    Complex,
    /// Random keys, which are no numbers.
    Key,
}

impl DType {
    /// All dtypes of numbers and booleans: every dtype but `float0` and that of random keys.
    pub const ALL: [DType; 28] = [
        DType::Bool,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
        DType::F16,
        DType::Bf16,
        DType::F32,
        DType::F64,
        DType::Complex64,
        DType::Complex128,
        DType::I2,
        DType::I4,
        DType::U2,
        DType::U4,
        DType::F4E2M1Fn,
        DType::F8E3M4,
        DType::F8E4M3,
        DType::F8E4M3B11Fnuz,
        DType::F8E4M3Fn,
        DType::F8E4M3Fnuz,
        DType::F8E5M2,
        DType::F8E5M2Fnuz,
        DType::F8E8M0Fnu,
    ];

    /// The size of an element in bytes on the host. Devices may pack several elements of fewer than 8 [`bits`](DType::bits)
    /// into a byte.
    pub fn byte_size(self) -> usize {
        self.element_type().byte_size()
    }

    /// The size of an element in bits.
    pub fn bits(self) -> usize {
        self.element_type().bits()
    }

    /// The category, which decides promotion.
    pub fn category(self) -> Category {
        match self {
            DType::Bool | DType::Float0 => Category::Bool,
            DType::U2 | DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64 => Category::Unsigned,
            DType::I2 | DType::I4 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => Category::Signed,
            DType::Complex64 | DType::Complex128 => Category::Complex,
            DType::Key => Category::Key,
            _ => Category::Float,
        }
    }

    /// Returns `true` if it is real floating point.
    pub fn is_float(self) -> bool {
        self.category() == Category::Float
    }

    /// Returns `true` if it is complex.
    pub fn is_complex(self) -> bool {
        self.category() == Category::Complex
    }

    /// Returns `true` if it is real or complex floating point, and so differentiable.
    pub fn is_inexact(self) -> bool {
        matches!(self.category(), Category::Float | Category::Complex)
    }

    /// Returns `true` for the dtype of random keys (JAX's `issubdtype(dtype, dtypes.prng_key)`).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let key = random::key(0);
    /// assert!(key.dtype().is_key() && !random::key_data(&key).dtype().is_key());
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn is_key(self) -> bool {
        self == DType::Key
    }

    /// Returns `true` for floating point of 64 bits per part. Rust's literals have this type, JAX's do not: host data
    /// of this type is weakly typed, until its dtype is stated.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self, DType::F64 | DType::Complex128)
    }

    /// Returns `true` if it is a signed or unsigned integer; `bool` is not.
    pub fn is_integer(self) -> bool {
        matches!(self.category(), Category::Signed | Category::Unsigned)
    }

    /// Returns `true` if it is a signed integer, or real floating point.
    pub fn is_signed(self) -> bool {
        matches!(self.category(), Category::Signed | Category::Float)
    }

    /// Returns `true` for integers of fewer than 8 bits and floating point of 8 and fewer: they take part in no
    /// implicit promotion.
    pub(crate) fn is_narrow(self) -> bool {
        self.bits() < 8 || Format::of(self).is_some()
    }

    /// Returns `true` for floating point of 8 bits, of whose kinds any two may be multiplied.
    pub(crate) fn is_float8(self) -> bool {
        self.bits() == 8 && self.is_float()
    }

    /// The lowest and highest number of an integer type.
    pub(crate) fn integer_range(self) -> Option<(i128, i128)> {
        match self.category() {
            Category::Signed => Some((-1 << (self.bits() - 1), (1 << (self.bits() - 1)) - 1)),
            Category::Unsigned => Some((0, (1 << self.bits()) - 1)),
            _ => None,
        }
    }

    /// The real type of a complex type's parts; any other type itself.
    pub fn real(self) -> DType {
        match self {
            DType::Complex64 => DType::F32,
            DType::Complex128 => DType::F64,
            other => other,
        }
    }

    /// The name in StableHLO text.
    pub fn mlir(self) -> &'static str {
        self.element_type().mlir_name()
    }

    /// The short name in a printed program: `f32`, `i32`, `bool`, `c64`, `f8_e4m3fn`.
    pub fn short(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::Float0 => "float0",
            DType::Key => "key<fry>",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::Complex64 => "c64",
            DType::Complex128 => "c128",
            DType::U2 => "u2",
            DType::U4 => "u4",
            DType::F4E2M1Fn => "f4_e2m1fn",
            DType::F8E3M4 => "f8_e3m4",
            DType::F8E4M3 => "f8_e4m3",
            DType::F8E4M3B11Fnuz => "f8_e4m3b11fnuz",
            DType::F8E4M3Fn => "f8_e4m3fn",
            DType::F8E4M3Fnuz => "f8_e4m3fnuz",
            DType::F8E5M2 => "f8_e5m2",
            DType::F8E5M2Fnuz => "f8_e5m2fnuz",
            DType::F8E8M0Fnu => "f8_e8m0fnu",
            other => other.mlir(),
        }
    }

    /// The dtype of this element type, if there is one.
    pub(crate) fn of_element(ty: ElementType) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.element_type() == ty)
    }

    pub(crate) fn element_type(self) -> ElementType {
        match self {
            DType::Bool | DType::Float0 => ElementType::Pred,
            DType::I8 => ElementType::S8,
            DType::I16 => ElementType::S16,
            DType::I32 => ElementType::S32,
            DType::I64 => ElementType::S64,
            DType::U8 => ElementType::U8,
            DType::U16 => ElementType::U16,
            DType::U32 => ElementType::U32,
            DType::U64 | DType::Key => ElementType::U64,
            DType::F16 => ElementType::F16,
            DType::Bf16 => ElementType::Bf16,
            DType::F32 => ElementType::F32,
            DType::F64 => ElementType::F64,
            DType::Complex64 => ElementType::C64,
            DType::Complex128 => ElementType::C128,
            DType::I2 => ElementType::S2,
            DType::I4 => ElementType::S4,
            DType::U2 => ElementType::U2,
            DType::U4 => ElementType::U4,
            DType::F4E2M1Fn => ElementType::F4E2M1Fn,
            DType::F8E3M4 => ElementType::F8E3M4,
            DType::F8E4M3 => ElementType::F8E4M3,
            DType::F8E4M3B11Fnuz => ElementType::F8E4M3B11Fnuz,
            DType::F8E4M3Fn => ElementType::F8E4M3Fn,
            DType::F8E4M3Fnuz => ElementType::F8E4M3Fnuz,
            DType::F8E5M2 => ElementType::F8E5M2,
            DType::F8E5M2Fnuz => ElementType::F8E5M2Fnuz,
            DType::F8E8M0Fnu => ElementType::F8E8M0Fnu,
        }
    }
}

/// The name in NumPy and JAX: `float32`.
impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::Bool => "bool",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::U8 => "uint8",
            DType::U16 => "uint16",
            DType::U32 => "uint32",
            DType::U64 => "uint64",
            DType::F16 => "float16",
            DType::Bf16 => "bfloat16",
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::Complex64 => "complex64",
            DType::Complex128 => "complex128",
            DType::I2 => "int2",
            DType::I4 => "int4",
            DType::U2 => "uint2",
            DType::U4 => "uint4",
            DType::F4E2M1Fn => "float4_e2m1fn",
            DType::F8E3M4 => "float8_e3m4",
            DType::F8E4M3 => "float8_e4m3",
            DType::F8E4M3B11Fnuz => "float8_e4m3b11fnuz",
            DType::F8E4M3Fn => "float8_e4m3fn",
            DType::F8E4M3Fnuz => "float8_e4m3fnuz",
            DType::F8E5M2 => "float8_e5m2",
            DType::F8E5M2Fnuz => "float8_e5m2fnuz",
            DType::F8E8M0Fnu => "float8_e8m0fnu",
            DType::Float0 => "float0",
            DType::Key => "key<fry>",
        })
    }
}

/// Rust types of array elements on the host.
pub trait Element: Copy + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The dtype of arrays of this type.
    const DTYPE: DType;

    /// Appends the bytes of the element in the machine's byte order.
    fn write(self, out: &mut Vec<u8>);
    /// Reads an element from its bytes in the machine's byte order.
    fn read(bytes: &[u8]) -> Self;
    /// Converts the value to a [`Scalar`], exactly.
    fn to_scalar(self) -> Scalar;

    /// The bytes of the elements in place, if no conversion is needed.
    #[doc(hidden)]
    fn as_bytes(_elements: &[Self]) -> Option<&[u8]> {
        None
    }

    /// The elements in place of bytes of the right number and alignment.
    #[doc(hidden)]
    fn from_bytes(_bytes: &[u8]) -> Option<&[Self]> {
        None
    }
}

macro_rules! element {
    ($($t:ty => $dtype:ident, |$v:ident| $scalar:expr;)*) => {$(
        impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            fn write(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_ne_bytes());
            }
            fn read(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$t>()];
                raw.copy_from_slice(bytes);
                <$t>::from_ne_bytes(raw)
            }
            fn to_scalar(self) -> Scalar {
                let $v = self;
                $scalar
            }
            fn as_bytes(elements: &[Self]) -> Option<&[u8]> {
                Some(elements.as_bytes())
            }
            fn from_bytes(bytes: &[u8]) -> Option<&[Self]> {
                <[$t]>::ref_from_bytes(bytes).ok()
            }
        }
    )*};
}

element! {
    i8 => I8, |v| Scalar::Int(v as i128);
    i16 => I16, |v| Scalar::Int(v as i128);
    i32 => I32, |v| Scalar::Int(v as i128);
    i64 => I64, |v| Scalar::Int(v as i128);
    u8 => U8, |v| Scalar::Int(v as i128);
    u16 => U16, |v| Scalar::Int(v as i128);
    u32 => U32, |v| Scalar::Int(v as i128);
    u64 => U64, |v| Scalar::Int(v as i128);
    f16 => F16, |v| Scalar::float(v.to_f64());
    bf16 => Bf16, |v| Scalar::float(v.to_f64());
    f32 => F32, |v| Scalar::float(v as f64);
    f64 => F64, |v| Scalar::float(v);
}

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn write(self, out: &mut Vec<u8>) {
        out.push(self as u8);
    }
    fn read(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
    fn to_scalar(self) -> Scalar {
        Scalar::Bool(self)
    }
    fn as_bytes(elements: &[Self]) -> Option<&[u8]> {
        Some(elements.as_bytes())
    }
}

macro_rules! complex_element {
    ($($t:ty => $dtype:ident;)*) => {$(
        impl Element for Complex<$t> {
            const DTYPE: DType = DType::$dtype;
            fn write(self, out: &mut Vec<u8>) {
                self.re.write(out);
                self.im.write(out);
            }
            fn read(bytes: &[u8]) -> Self {
                let half = size_of::<$t>();
                Complex::new(<$t>::read(&bytes[..half]), <$t>::read(&bytes[half..]))
            }
            fn to_scalar(self) -> Scalar {
                Scalar::Complex((self.re as f64).to_bits(), (self.im as f64).to_bits())
            }
        }
    )*};
}

complex_element! { f32 => Complex64; f64 => Complex128; }

/// A host number of any dtype; floats are stored as bits, so that scalars compare and hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// A boolean.
    Bool(bool),
    /// An integer of any dtype.
    Int(i128),
    /// A real number, as the bits of an `f64`.
    Float(u64),
    /// A complex number, as the bits of two `f64`.
    Complex(u64, u64),
}

impl Scalar {
    /// Converts the value to an element of `dtype`.
    pub(crate) fn converted(self, dtype: DType) -> Scalar {
        let mut bytes = Vec::with_capacity(16);
        self.write(dtype, &mut bytes);
        Scalar::read(dtype, &bytes)
    }

    /// The real number `v`.
    pub fn float(v: f64) -> Self {
        Scalar::Float(v.to_bits())
    }

    /// The value as a float; a complex number's real part.
    pub fn to_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => b as u8 as f64,
            Scalar::Int(i) => i as f64,
            Scalar::Float(bits) | Scalar::Complex(bits, _) => f64::from_bits(bits),
        }
    }

    /// The imaginary part; 0 for other numbers.
    pub fn imag(self) -> f64 {
        match self {
            Scalar::Complex(_, im) => f64::from_bits(im),
            _ => 0.0,
        }
    }

    /// Returns `true` if it is 0, false or -0.
    pub fn is_zero(self) -> bool {
        self.to_f64() == 0.0 && self.imag() == 0.0
    }

    /// The value as an integer; floats truncate and saturate.
    pub fn to_i128(self) -> i128 {
        match self {
            Scalar::Int(i) => i,
            other => other.to_f64() as i128,
        }
    }

    /// Appends the bytes of the value as an element of `dtype`, converted as by `astype`: integers wrap, floats
    /// truncate and saturate.
    pub fn write(self, dtype: DType, out: &mut Vec<u8>) {
        let f = self.to_f64();
        let i = match self {
            Scalar::Int(i) => i,
            _ => dtype.integer_range().map_or(0, |(low, high)| (f as i128).clamp(low, high)),
        };
        match dtype {
            DType::Bool => (!self.is_zero()).write(out),
            DType::Float0 => false.write(out),
            DType::I8 => (i as i8).write(out),
            DType::I16 => (i as i16).write(out),
            DType::I32 => (i as i32).write(out),
            DType::I64 => (i as i64).write(out),
            DType::U8 => (i as u8).write(out),
            DType::U16 => (i as u16).write(out),
            DType::U32 => (i as u32).write(out),
            DType::U64 | DType::Key => (i as u64).write(out),
            DType::F16 => f16::from_f64(f).write(out),
            DType::Bf16 => bf16::from_f64(f).write(out),
            DType::F32 => (f as f32).write(out),
            DType::F64 => f.write(out),
            DType::Complex64 => Complex::new(f as f32, self.imag() as f32).write(out),
            DType::Complex128 => Complex::new(f, self.imag()).write(out),
            DType::I2 | DType::I4 | DType::U2 | DType::U4 => narrow::wrapped(i, dtype).write(out),
            DType::F4E2M1Fn
            | DType::F8E3M4
            | DType::F8E4M3
            | DType::F8E4M3B11Fnuz
            | DType::F8E4M3Fn
            | DType::F8E4M3Fnuz
            | DType::F8E5M2
            | DType::F8E5M2Fnuz
            | DType::F8E8M0Fnu => out.push(Format::of(dtype).map_or(0, |format| format.encode(f))),
        }
    }

    /// Reads an element of `dtype` from its bytes.
    pub fn read(dtype: DType, bytes: &[u8]) -> Scalar {
        match dtype {
            DType::Bool | DType::Float0 => bool::read(bytes).to_scalar(),
            DType::I8 => i8::read(bytes).to_scalar(),
            DType::I16 => i16::read(bytes).to_scalar(),
            DType::I32 => i32::read(bytes).to_scalar(),
            DType::I64 => i64::read(bytes).to_scalar(),
            DType::U8 => u8::read(bytes).to_scalar(),
            DType::U16 => u16::read(bytes).to_scalar(),
            DType::U32 => u32::read(bytes).to_scalar(),
            DType::U64 | DType::Key => u64::read(bytes).to_scalar(),
            DType::F16 => f16::read(bytes).to_scalar(),
            DType::Bf16 => bf16::read(bytes).to_scalar(),
            DType::F32 => f32::read(bytes).to_scalar(),
            DType::F64 => f64::read(bytes).to_scalar(),
            DType::Complex64 => Complex::<f32>::read(bytes).to_scalar(),
            DType::Complex128 => Complex::<f64>::read(bytes).to_scalar(),
            DType::I2 | DType::I4 | DType::U2 | DType::U4 => {
                Scalar::Int(narrow::wrapped(i128::from(bytes[0]), dtype).into())
            }
            DType::F4E2M1Fn
            | DType::F8E3M4
            | DType::F8E4M3
            | DType::F8E4M3B11Fnuz
            | DType::F8E4M3Fn
            | DType::F8E4M3Fnuz
            | DType::F8E5M2
            | DType::F8E5M2Fnuz
            | DType::F8E8M0Fnu => Scalar::float(Format::of(dtype).map_or(0.0, |format| format.decode(bytes[0]))),
        }
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(b) => write!(f, "{b}"),
            Scalar::Int(i) => write!(f, "{i}"),
            Scalar::Float(bits) => write!(f, "{:?}", f64::from_bits(*bits)),
            Scalar::Complex(re, im) => write!(f, "({:?}, {:?})", f64::from_bits(*re), f64::from_bits(*im)),
        }
    }
}
