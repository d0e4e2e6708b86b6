//! Constants and dtypes by the names that `jax.numpy` gives them.
#![allow(non_upper_case_globals)]

pub use super::index::NewAxis as newaxis;
use crate::dtype::DType;

/// The ratio of a circle's circumference to its diameter.
pub const pi: f64 = std::f64::consts::PI;
/// The base of the natural logarithm.
pub const e: f64 = std::f64::consts::E;
/// The Euler–Mascheroni constant ([OEIS A001620](https://oeis.org/A001620)).
pub const euler_gamma: f64 = 0.577_215_664_901_532_9;
/// Infinity.
pub const inf: f64 = f64::INFINITY;
/// Not a number.
pub const nan: f64 = f64::NAN;

macro_rules! dtypes {
    ($($name:ident $dtype:ident)*) => {$(
        #[doc = concat!("The dtype `", stringify!($name), "`.")]
        pub const $name: DType = DType::$dtype;
    )*};
}

dtypes! {
    bool_ Bool
    int4 I4
    int8 I8
    int16 I16
    int32 I32
    int64 I64
    uint4 U4
    uint8 U8
    uint16 U16
    uint32 U32
    uint64 U64
    float8_e4m3fn F8E4M3Fn
    float8_e5m2 F8E5M2
    float16 F16
    bfloat16 Bf16
    float32 F32
    float64 F64
    complex64 Complex64
    complex128 Complex128
}
