//! The table of dtypes: categories, names, and codes in files.

use std::fmt;

use safetensors::tensor::Dtype;
use shardax_pjrt::ElementType;

use super::Category;

/// Rows are `name: category, element type on devices, name in NumPy and JAX, short name, element type in safetensors
/// files x the number of these elements per element, number in files of jax.export`.
macro_rules! dtypes {
    (numbers { $($numbers:tt)* } others { $($others:tt)* }) => {
        dtypes! { @all $($numbers)* $($others)* }
        dtypes! { @numbers $($numbers)* }
    };
    (@all $( $(#[$doc:meta])* $name:ident: $category:ident, $element:ident, $text:literal, $short:literal,
        $stored:ident x $count:literal, $jax:expr; )*) => {
        /// The type of an array's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType { $( $(#[$doc])* $name, )* }

        impl DType {
            const TABLE: &[DType] = &[ $( DType::$name, )* ];

            /// Returns the category, which decides promotion.
            pub fn category(self) -> Category {
                match self { $( DType::$name => Category::$category, )* }
            }

            pub(crate) fn element_type(self) -> ElementType {
                match self { $( DType::$name => ElementType::$element, )* }
            }

            /// Returns the name in NumPy and JAX: `float32`.
            ///
            /// ```
            /// # use shardax::prelude::*;
            /// assert_eq!(ones(3).dtype().name(), "float32");
            /// ```
            pub fn name(self) -> &'static str {
                match self { $( DType::$name => $text, )* }
            }

            /// Returns the short name in a printed program: `f32`, `i32`, `bool`, `c64`, `f8_e4m3fn`.
            pub fn short(self) -> &'static str {
                match self { $( DType::$name => $short, )* }
            }

            /// Returns the element type in a safetensors file, and the number of its elements that store one element of
            /// this dtype. Complex numbers are stored as pairs (few readers support them), keys as their `key_data`
            /// words, and types without a safetensors name as bytes. float4 is stored as bytes, too, because two
            /// elements of the format's float4 share a byte.
            #[doc(hidden)]
            pub fn stored(self) -> (Dtype, usize) {
                match self { $( DType::$name => (Dtype::$stored, $count), )* }
            }

            /// The number in files of jax.export.
            fn jax_number(self) -> Option<u8> {
                match self { $( DType::$name => $jax, )* }
            }
        }
    };
    (@numbers $( $(#[$doc:meta])* $name:ident: $category:ident, $element:ident, $text:literal, $short:literal,
        $stored:ident x $count:literal, $jax:expr; )*) => {
        impl DType {
            /// All dtypes of numbers and booleans: every dtype except `float0` and the dtypes of random keys.
            pub const ALL: [DType; 28] = [ $( DType::$name, )* ];
        }
    };
}

dtypes! {
    numbers {
        /// One byte, 0 or 1.
        Bool: Bool, Pred, "bool", "bool", BOOL x 1, Some(0);
        /// Signed, 8 bits.
        I8: Signed, S8, "int8", "i8", I8 x 1, Some(1);
        /// Signed, 16 bits.
        I16: Signed, S16, "int16", "i16", I16 x 1, Some(2);
        /// Signed, 32 bits.
        I32: Signed, S32, "int32", "i32", I32 x 1, Some(3);
        /// Signed, 64 bits.
        I64: Signed, S64, "int64", "i64", I64 x 1, Some(4);
        /// Unsigned, 8 bits.
        U8: Unsigned, U8, "uint8", "u8", U8 x 1, Some(5);
        /// Unsigned, 16 bits.
        U16: Unsigned, U16, "uint16", "u16", U16 x 1, Some(6);
        /// Unsigned, 32 bits.
        U32: Unsigned, U32, "uint32", "u32", U32 x 1, Some(7);
        /// Unsigned, 64 bits.
        U64: Unsigned, U64, "uint64", "u64", U64 x 1, Some(8);
        /// IEEE half precision: 11 bits of precision, up to 65504.
        F16: Float, F16, "float16", "f16", F16 x 1, Some(9);
        /// The upper half of a float32: 8 bits of precision, the range of float32.
        Bf16: Float, Bf16, "bfloat16", "bf16", BF16 x 1, Some(14);
        /// Single precision.
        F32: Float, F32, "float32", "f32", F32 x 1, Some(10);
        /// Double precision.
        F64: Float, F64, "float64", "f64", F64 x 1, Some(11);
        /// A complex number of two float32.
        Complex64: Complex, C64, "complex64", "c64", F32 x 2, Some(12);
        /// A complex number of two float64.
        Complex128: Complex, C128, "complex128", "c128", F64 x 2, Some(13);
        /// Signed, 2 bits: -2 to 1. Elements narrower than a byte take one byte on the host.
        I2: Signed, S2, "int2", "i2", I8 x 1, None;
        /// Signed, 4 bits: -8 to 7.
        I4: Signed, S4, "int4", "i4", I8 x 1, Some(15);
        /// Unsigned, 2 bits: 0 to 3.
        U2: Unsigned, U2, "uint2", "u2", U8 x 1, None;
        /// Unsigned, 4 bits: 0 to 15.
        U4: Unsigned, U4, "uint4", "u4", U8 x 1, Some(16);
        /// 4 bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
        F4E2M1Fn: Float, F4E2M1Fn, "float4_e2m1fn", "f4_e2m1fn", U8 x 1, Some(26);
        /// 8 bits: 5 bits of precision, up to 15.5.
        F8E3M4: Float, F8E3M4, "float8_e3m4", "f8_e3m4", U8 x 1, Some(24);
        /// 8 bits: 4 bits of precision, up to 240, with infinities.
        F8E4M3: Float, F8E4M3, "float8_e4m3", "f8_e4m3", U8 x 1, Some(23);
        /// 8 bits: 4 bits of precision, up to 30, without infinities and -0.
        F8E4M3B11Fnuz: Float, F8E4M3B11Fnuz, "float8_e4m3b11fnuz", "f8_e4m3b11fnuz", U8 x 1, Some(17);
        /// 8 bits: 4 bits of precision, up to 448, without infinities: the format for values in training.
        F8E4M3Fn: Float, F8E4M3Fn, "float8_e4m3fn", "f8_e4m3fn", F8_E4M3 x 1, Some(18);
        /// 8 bits: 4 bits of precision, up to 240, without infinities and -0.
        F8E4M3Fnuz: Float, F8E4M3Fnuz, "float8_e4m3fnuz", "f8_e4m3fnuz", U8 x 1, Some(19);
        /// 8 bits: 3 bits of precision, up to 57344, with infinities: the format for gradients in training.
        F8E5M2: Float, F8E5M2, "float8_e5m2", "f8_e5m2", F8_E5M2 x 1, Some(20);
        /// 8 bits: 3 bits of precision, up to 57344, without infinities and -0.
        F8E5M2Fnuz: Float, F8E5M2Fnuz, "float8_e5m2fnuz", "f8_e5m2fnuz", U8 x 1, Some(21);
        /// 8 bits: the powers of two from 2⁻¹²⁷ to 2¹²⁷ and NaN, for the scales of blocks.
        F8E8M0Fnu: Float, F8E8M0Fnu, "float8_e8m0fnu", "f8_e8m0fnu", F8_E8M0 x 1, Some(25);
    }
    others {
        /// The type of the gradient of a value that is not differentiable (JAX's `float0`): one boolean `false` per
        /// element on the device.
        Float0: Bool, Pred, "float0", "float0", BOOL x 1, Some(22);
        /// A random key (JAX's `key<fry>`), created by [`random::key`](crate::random::key()): the two words of a
        /// Threefry-2x32 key. On the device an element is a uint64, and its low half is the first word.
        Key: Key, U64, "key<fry>", "key<fry>", U32 x 2, Some(27);
        /// A random key of the device's own generator (JAX's `key<rbg>`), created by
        /// [`PrngImpl::Rbg`](crate::random::PrngImpl::Rbg). Its four words repeat the same two words, which are stored
        /// like a Threefry key.
        KeyRbg: Key, U64, "key<rbg>", "key<rbg>", U32 x 2, None;
    }
}

impl DType {
    /// The dtype of this element type, if there is one.
    pub(crate) fn from_element_type(ty: ElementType) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.element_type() == ty)
    }

    /// Returns the dtype with this name in a file, such as `float32`.
    #[doc(hidden)]
    pub fn from_name(name: &str) -> Option<DType> {
        DType::TABLE.iter().copied().find(|dtype| dtype.name() == name)
    }

    /// Returns the dtype for an element type of a safetensors file.
    #[doc(hidden)]
    pub fn from_safetensors(ty: Dtype) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.stored() == (ty, 1))
    }

    /// The dtype with this number in files of jax.export.
    pub(crate) fn from_jax_number(number: u8) -> Option<DType> {
        DType::TABLE.iter().copied().find(|dtype| dtype.jax_number() == Some(number))
    }
}

/// The name in NumPy and JAX: `float32`.
impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
