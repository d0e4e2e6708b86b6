//! Element types, their host types, and JAX's promotion.

mod promotion;

use std::fmt;

use half::{bf16, f16};
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
    /// The type of the gradient of a value that is not differentiable (JAX's `float0`): one
    /// boolean `false` an element on the device.
    Float0,
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
}

impl DType {
    /// All dtypes with values: every dtype but `float0`.
    pub const ALL: [DType; 15] = [
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
    ];

    /// The size of an element in bytes, on the host and on the device.
    pub fn byte_size(self) -> usize {
        match self {
            DType::Bool | DType::I8 | DType::U8 | DType::Float0 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::Bf16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 | DType::Complex64 => 8,
            DType::Complex128 => 16,
        }
    }

    /// The size of an element in bits.
    pub fn bits(self) -> usize {
        self.byte_size() * 8
    }

    /// The category, which decides promotion.
    pub fn category(self) -> Category {
        match self {
            DType::Bool | DType::Float0 => Category::Bool,
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => Category::Unsigned,
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => Category::Signed,
            DType::F16 | DType::Bf16 | DType::F32 | DType::F64 => Category::Float,
            DType::Complex64 | DType::Complex128 => Category::Complex,
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
        self.category() >= Category::Float
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
        match self {
            DType::Bool | DType::Float0 => "i1",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "ui8",
            DType::U16 => "ui16",
            DType::U32 => "ui32",
            DType::U64 => "ui64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::Complex64 => "complex<f32>",
            DType::Complex128 => "complex<f64>",
        }
    }

    /// The short name in a printed program: `f32`, `i32`, `bool`, `c64`.
    pub fn short(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::Float0 => "float0",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::Complex64 => "c64",
            DType::Complex128 => "c128",
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
            DType::U64 => ElementType::U64,
            DType::F16 => ElementType::F16,
            DType::Bf16 => ElementType::Bf16,
            DType::F32 => ElementType::F32,
            DType::F64 => ElementType::F64,
            DType::Complex64 => ElementType::C64,
            DType::Complex128 => ElementType::C128,
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
            DType::Float0 => "float0",
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
            DType::U64 => (i as u64).write(out),
            DType::F16 => f16::from_f64(f).write(out),
            DType::Bf16 => bf16::from_f64(f).write(out),
            DType::F32 => (f as f32).write(out),
            DType::F64 => f.write(out),
            DType::Complex64 => Complex::new(f as f32, self.imag() as f32).write(out),
            DType::Complex128 => Complex::new(f, self.imag()).write(out),
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
            DType::U64 => u64::read(bytes).to_scalar(),
            DType::F16 => f16::read(bytes).to_scalar(),
            DType::Bf16 => bf16::read(bytes).to_scalar(),
            DType::F32 => f32::read(bytes).to_scalar(),
            DType::F64 => f64::read(bytes).to_scalar(),
            DType::Complex64 => Complex::<f32>::read(bytes).to_scalar(),
            DType::Complex128 => Complex::<f64>::read(bytes).to_scalar(),
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
