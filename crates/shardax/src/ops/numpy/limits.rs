//! The limits of dtypes: `finfo` and `iinfo`.

use crate::dtype::{Category, DType, Format};
use crate::error::{Result, err};

/// The limits of a floating point dtype; see [`finfo`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct FInfo {
    /// The dtype, or the dtype of the parts of a complex dtype.
    pub dtype: DType,
    /// The number of bits.
    pub bits: usize,
    /// The difference of 1 and the next larger number.
    pub eps: f64,
    /// The difference of 1 and the next smaller number.
    pub epsneg: f64,
    /// The largest finite number.
    pub max: f64,
    /// The smallest finite number, `-max`.
    pub min: f64,
    /// The smallest positive number of full precision.
    pub smallest_normal: f64,
    /// Another name of `smallest_normal`.
    pub tiny: f64,
    /// The smallest positive number.
    pub smallest_subnormal: f64,
    /// The number of stored mantissa bits.
    pub nmant: i32,
    /// The number of exponent bits.
    pub nexp: i32,
}

/// Returns the limits of a floating point dtype, or of the parts of a complex dtype.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::finfo;
/// assert_eq!(finfo(DType::F32)?.eps, f64::from(f32::EPSILON));
/// assert_eq!(finfo(DType::Bf16)?.max, 3.3895313892515355e38);
/// assert_eq!(finfo(DType::F8E4M3Fn)?.max, 448.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for other dtypes.
#[track_caller]
pub fn finfo(dtype: DType) -> Result<FInfo> {
    if let Some(format) = Format::of(dtype) {
        let eps = 2f64.powi(-(format.mantissa as i32));
        return Ok(FInfo {
            dtype,
            bits: dtype.bits(),
            eps,
            epsneg: (eps / 2.0).max(format.smallest_subnormal()),
            max: format.max(),
            min: format.min(),
            smallest_normal: format.smallest_normal(),
            tiny: format.smallest_normal(),
            smallest_subnormal: format.smallest_subnormal(),
            nmant: format.mantissa as i32,
            nexp: format.exponent as i32,
        });
    }
    // Stored mantissa bits, exponent bits.
    let (nmant, nexp) = match dtype.real() {
        DType::F64 => (52, 11),
        DType::F32 => (23, 8),
        DType::F16 => (10, 5),
        DType::Bf16 => (7, 8),
        _ => {
            return Err(err!(Value, "data type {dtype} is not inexact").help("call `iinfo` for the limits of integers"));
        }
    };
    let top = (1 << (nexp - 1)) - 1;
    let eps = 2f64.powi(-nmant);
    let max = (2.0 - eps) * 2f64.powi(top);
    let smallest_normal = 2f64.powi(1 - top);
    Ok(FInfo {
        dtype: dtype.real(),
        bits: dtype.real().bits(),
        eps,
        epsneg: eps / 2.0,
        max,
        min: -max,
        smallest_normal,
        tiny: smallest_normal,
        // The product of two powers, because a subnormal number cannot always be computed as a single power of two.
        smallest_subnormal: smallest_normal * eps,
        nmant,
        nexp,
    })
}

/// The limits of an integer dtype; see [`iinfo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IInfo {
    /// The dtype.
    pub dtype: DType,
    /// The number of bits.
    pub bits: usize,
    /// The smallest number.
    pub min: i128,
    /// The largest number.
    pub max: i128,
}

/// Returns the limits of an integer dtype.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::iinfo;
/// assert_eq!(iinfo(DType::I8)?.min, -128);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error for other dtypes.
#[track_caller]
pub fn iinfo(dtype: DType) -> Result<IInfo> {
    let bits = dtype.bits();
    let (min, max) = match dtype.category() {
        Category::Signed => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        Category::Unsigned => (0, (1i128 << bits) - 1),
        _ => return Err(err!(Value, "Invalid integer data type {dtype}").help("call `finfo` for the limits of floats")),
    };
    Ok(IInfo { dtype, bits, min, max })
}
