//! Dtypes by the names of Rust's types, so that `x.astype(f32)` reads like Rust, and complex dtypes by JAX's. A constant and
//! a type can have the same name, because they are in different namespaces.
#![allow(non_upper_case_globals)]

use super::DType;

macro_rules! dtypes {
    ($($name:ident $dtype:ident)*) => {$(
        #[doc = concat!("The dtype of elements of Rust's type `", stringify!($name), "`.")]
        pub const $name: DType = DType::$dtype;
    )*};
}

dtypes! {
    bool Bool
    i8 I8
    i16 I16
    i32 I32
    i64 I64
    u8 U8
    u16 U16
    u32 U32
    u64 U64
    f32 F32
    f64 F64
}

/// The dtype of pairs of two `f32`, by JAX's name.
pub const complex64: DType = DType::Complex64;
/// The dtype of pairs of two `f64`, by JAX's name.
pub const complex128: DType = DType::Complex128;
