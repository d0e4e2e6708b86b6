//! Element types of buffers, and their numbers in PJRT and in XLA's protos.

use std::fmt;

macro_rules! element_types {
    ($( $(#[$doc:meta])* $name:ident = $pjrt:literal, $xla:literal, $bits:literal, $hlo:literal, $mlir:literal; )*) => {
        /// The type of an element of a buffer.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum ElementType { $(
            #[doc = concat!("`", $hlo, "` in HLO, `", $mlir, "` in StableHLO.")]
            #[doc = ""]
            $(#[$doc])*
            $name,
        )* }

        impl ElementType {
            /// Every element type, in PJRT's order.
            pub const ALL: &'static [ElementType] = &[$( ElementType::$name, )*];

            /// The number in the PJRT C API (`PJRT_Buffer_Type`).
            pub fn to_raw(self) -> i32 {
                match self { $( ElementType::$name => $pjrt, )* }
            }

            /// The type with this number in the PJRT C API; `None` for tokens and unknown types.
            pub fn from_raw(raw: i32) -> Option<ElementType> {
                match raw { $( $pjrt => Some(ElementType::$name), )* _ => None }
            }

            /// The type with this number in XLA's `PrimitiveType` (HLO protos and FFI); `None` for tuples and tokens.
            pub fn from_xla(raw: i32) -> Option<ElementType> {
                match raw { $( $xla => Some(ElementType::$name), )* _ => None }
            }

            /// Width in bits on the device.
            pub fn bits(self) -> usize {
                match self { $( ElementType::$name => $bits, )* }
            }

            /// Name in HLO text, e.g. `f32`, `pred`, `c64`.
            pub fn hlo_name(self) -> &'static str {
                match self { $( ElementType::$name => $hlo, )* }
            }

            /// Name in StableHLO text, e.g. `f32`, `i1`, `complex<f32>`.
            pub fn mlir_name(self) -> &'static str {
                match self { $( ElementType::$name => $mlir, )* }
            }
        }
    };
}

element_types! {
    /// A Boolean of one byte.
    Pred = 1, 1, 8, "pred", "i1";
    S8 = 2, 2, 8, "s8", "i8";
    S16 = 3, 3, 16, "s16", "i16";
    S32 = 4, 4, 32, "s32", "i32";
    S64 = 5, 5, 64, "s64", "i64";
    U8 = 6, 6, 8, "u8", "ui8";
    U16 = 7, 7, 16, "u16", "ui16";
    U32 = 8, 8, 32, "u32", "ui32";
    U64 = 9, 9, 64, "u64", "ui64";
    F16 = 10, 10, 16, "f16", "f16";
    F32 = 11, 11, 32, "f32", "f32";
    F64 = 12, 12, 64, "f64", "f64";
    Bf16 = 13, 16, 16, "bf16", "bf16";
    /// A complex number of two `f32`.
    C64 = 14, 15, 64, "c64", "complex<f32>";
    /// A complex number of two `f64`.
    C128 = 15, 18, 128, "c128", "complex<f64>";
    F8E5M2 = 16, 19, 8, "f8e5m2", "f8E5M2";
    F8E4M3Fn = 17, 20, 8, "f8e4m3fn", "f8E4M3FN";
    F8E4M3B11Fnuz = 18, 23, 8, "f8e4m3b11fnuz", "f8E4M3B11FNUZ";
    F8E5M2Fnuz = 19, 24, 8, "f8e5m2fnuz", "f8E5M2FNUZ";
    F8E4M3Fnuz = 20, 25, 8, "f8e4m3fnuz", "f8E4M3FNUZ";
    S4 = 21, 21, 4, "s4", "i4";
    U4 = 22, 22, 4, "u4", "ui4";
    S2 = 24, 26, 2, "s2", "i2";
    U2 = 25, 27, 2, "u2", "ui2";
    F8E4M3 = 26, 28, 8, "f8e4m3", "f8E4M3";
    F8E3M4 = 27, 29, 8, "f8e3m4", "f8E3M4";
    F8E8M0Fnu = 28, 33, 8, "f8e8m0fnu", "f8E8M0FNU";
    F4E2M1Fn = 29, 32, 4, "f4e2m1fn", "f4E2M1FN";
}

impl ElementType {
    /// Bytes of one element in host memory, where types narrower than a byte take one byte.
    pub fn byte_size(self) -> usize {
        self.bits().div_ceil(8)
    }

    /// Returns true if the device can pack several elements into one byte.
    pub(crate) fn is_sub_byte(self) -> bool {
        self.bits() < 8
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.hlo_name())
    }
}

/// Formats an element type with dimensions as HLO does: `f32[4,8]`.
pub(crate) struct ShapeText<'a>(pub ElementType, pub &'a [i64]);

impl fmt::Display for ShapeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.0)?;
        for (i, dim) in self.1.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

/// Bytes of dense host data of this shape; `None` for a negative dimension or an overflow.
pub(crate) fn dense_byte_size(ty: ElementType, dims: &[i64]) -> Option<usize> {
    let mut size = ty.byte_size();
    for &dim in dims {
        size = size.checked_mul(usize::try_from(dim).ok()?)?;
    }
    Some(size)
}

/// Bytes of dense data of this shape in a program's memory, where elements of fewer than 8 bits share bytes; `None` for a negative
/// dimension or an overflow.
pub(crate) fn packed_byte_size(ty: ElementType, dims: &[i64]) -> Option<usize> {
    let bytes = dense_byte_size(ty, dims)?;
    Some(if ty.is_sub_byte() { bytes.div_ceil(8 / ty.bits()) } else { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_are_distinct() {
        for &ty in ElementType::ALL {
            assert_eq!(ElementType::from_raw(ty.to_raw()), Some(ty));
        }
        assert_eq!(ElementType::from_raw(0), None);
        assert_eq!(ElementType::from_raw(23), None, "tokens are not an element type");
        assert_eq!(ElementType::C128.byte_size(), 16);
        assert_eq!(ElementType::S4.byte_size(), 1);
    }

    #[test]
    fn invalid_sizes_are_rejected() {
        assert_eq!(dense_byte_size(ElementType::F32, &[2, 3]), Some(24));
        assert_eq!(dense_byte_size(ElementType::F32, &[]), Some(4));
        assert_eq!(dense_byte_size(ElementType::F32, &[0, 3]), Some(0));
        assert_eq!(dense_byte_size(ElementType::F32, &[-1]), None);
        assert_eq!(dense_byte_size(ElementType::F32, &[i64::MAX, 8]), None);
    }
}
