//! Element types, their host types, and JAX's promotion.

mod narrow;
mod promotion;
pub mod rust_names;
mod table;

use std::fmt;

use half::{bf16, f16};
pub(crate) use narrow::Format;
pub use narrow::{
    F4E2M1Fn, F8E3M4, F8E4M3, F8E4M3B11Fnuz, F8E4M3Fn, F8E4M3Fnuz, F8E5M2, F8E5M2Fnuz, F8E8M0Fnu, I2, I4, U2, U4,
};
use num_complex::Complex;
pub use promotion::promote;
pub use table::DType;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::error::Result;

/// The arithmetic category of a dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    /// `bool`.
    Bool,
    /// Integers without a sign.
    Unsigned,
    /// Integers with a sign.
    Signed,
    /// Real floating point.
    Float,
    /// Complex floating point.
    Complex,
    /// Random keys, which are not numbers.
    Key,
}

impl DType {
    /// Returns the size of an element in bytes on the host. Devices can pack several elements of fewer than 8
    /// [`bits`](DType::bits) into a byte.
    pub fn byte_size(self) -> usize {
        self.element_type().byte_size()
    }

    /// Returns the size of an element in bits.
    pub fn bits(self) -> usize {
        self.element_type().bits()
    }

    /// The dtype of positions in dimensions of these sizes: int32, or int64 if int32 does not hold every size.
    pub(crate) fn for_indices(sizes: &[usize]) -> DType {
        if sizes.iter().any(|size| *size > i32::MAX as usize) { DType::I64 } else { DType::I32 }
    }

    /// Returns `true` if the dtype is real floating point.
    pub fn is_float(self) -> bool {
        self.category() == Category::Float
    }

    /// Returns `true` if the dtype is complex.
    pub fn is_complex(self) -> bool {
        self.category() == Category::Complex
    }

    /// Returns `true` if the dtype is real or complex floating point, and therefore differentiable.
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
        self.category() == Category::Key
    }

    /// Returns `true` for floating point of 64 bits per part. Rust's literals have this type, but JAX's do not.
    /// Therefore host data of this type are weakly typed until their dtype is stated.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self, DType::F64 | DType::Complex128)
    }

    /// Returns `true` if the dtype is a signed or unsigned integer; `bool` is not.
    pub fn is_integer(self) -> bool {
        matches!(self.category(), Category::Signed | Category::Unsigned)
    }

    /// Returns `true` if the dtype is a signed integer or real floating point.
    pub fn is_signed(self) -> bool {
        matches!(self.category(), Category::Signed | Category::Float)
    }

    /// Returns `true` for integers of fewer than 8 bits and for floating point of at most 8 bits. They take part in no
    /// implicit promotion.
    pub(crate) fn is_narrow(self) -> bool {
        self.bits() < 8 || Format::of(self).is_some()
    }

    /// Returns `true` for floating point of 8 bits. You can multiply any two of these dtypes.
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

    /// Returns the real type of a complex type's parts. Other types are returned unchanged.
    pub fn real(self) -> DType {
        match self {
            DType::Complex64 => DType::F32,
            DType::Complex128 => DType::F64,
            other => other,
        }
    }

    /// Returns the name in StableHLO text.
    pub fn mlir(self) -> &'static str {
        self.element_type().mlir_name()
    }
}

/// Rust types of array elements on the host.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a type of array elements",
    label = "not an element type",
    note = "elements are `f32`, `f64`, `bf16`, `f16`, `i8` to `i64`, `u8` to `u64`, `bool`, `Complex<f32>` and `Complex<f64>`; convert `usize` to one of them"
)]
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

    /// Creates `len` elements from the bytes that `fill` writes.
    #[doc(hidden)]
    fn filled(len: usize, fill: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<Vec<Self>> {
        let mut bytes = vec![0; len * size_of::<Self>()];
        fill(&mut bytes)?;
        Ok(bytes.chunks_exact(size_of::<Self>()).map(Self::read).collect())
    }

    /// The elements in place, if the bytes have the right number and alignment.
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
            fn filled(len: usize, fill: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<Vec<Self>> {
                let mut elements = vec![<$t>::new_zeroed(); len];
                fill(elements.as_mut_bytes())?;
                Ok(elements)
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
    fn filled(len: usize, fill: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<Vec<Self>> {
        let bytes = u8::filled(len, fill)?;
        Ok(bytes.into_iter().map(|byte| byte != 0).collect())
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
            fn filled(len: usize, fill: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<Vec<Self>> {
                let parts = <$t>::filled(2 * len, fill)?;
                Ok(parts.chunks_exact(2).map(|pair| Complex::new(pair[0], pair[1])).collect())
            }
        }
    )*};
}

complex_element! { f32 => Complex64; f64 => Complex128; }

/// A host number of any dtype. Floats are stored as bits, so that scalars can be compared and hashed.
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
        // The usual cases need no memory. They run for each number in an eager operation.
        match (self, dtype) {
            (Scalar::Int(_) | Scalar::Float(_), DType::F32) => return Scalar::float(f64::from(self.to_f64() as f32)),
            (Scalar::Int(i), DType::I32) => return Scalar::Int(i128::from(i as i32)),
            _ => {}
        }
        let mut bytes = Vec::with_capacity(16);
        self.write(dtype, &mut bytes);
        Scalar::read(dtype, &bytes)
    }

    /// Returns the real number `v`.
    pub fn float(v: f64) -> Self {
        Scalar::Float(v.to_bits())
    }

    /// Returns the value as a float. For a complex number it is the real part.
    pub fn to_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => b as u8 as f64,
            Scalar::Int(i) => i as f64,
            Scalar::Float(bits) | Scalar::Complex(bits, _) => f64::from_bits(bits),
        }
    }

    /// Returns the imaginary part; 0 for other numbers.
    pub fn imag(self) -> f64 {
        match self {
            Scalar::Complex(_, im) => f64::from_bits(im),
            _ => 0.0,
        }
    }

    /// Returns `true` if the value is 0, false or -0.
    pub fn is_zero(self) -> bool {
        self.to_f64() == 0.0 && self.imag() == 0.0
    }

    /// Returns the value as an integer; floats truncate and saturate.
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
            DType::U64 | DType::Key | DType::KeyRbg => (i as u64).write(out),
            DType::F16 => f16::from_f64(f).write(out),
            DType::Bf16 => bf16::from_f64(f).write(out),
            DType::F32 => (f as f32).write(out),
            DType::F64 => f.write(out),
            DType::Complex64 => Complex::new(f as f32, self.imag() as f32).write(out),
            DType::Complex128 => Complex::new(f, self.imag()).write(out),
            // Every element of fewer than 8 bits has a byte of its own on the host.
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
            DType::U64 | DType::Key | DType::KeyRbg => u64::read(bytes).to_scalar(),
            DType::F16 => f16::read(bytes).to_scalar(),
            DType::Bf16 => bf16::read(bytes).to_scalar(),
            DType::F32 => f32::read(bytes).to_scalar(),
            DType::F64 => f64::read(bytes).to_scalar(),
            DType::Complex64 => Complex::<f32>::read(bytes).to_scalar(),
            DType::Complex128 => Complex::<f64>::read(bytes).to_scalar(),
            // Only the low bits of the byte are the element.
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
