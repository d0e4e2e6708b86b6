//! More elementwise functions: angles, signs, the parts of floats, and arithmetic that ignores NaN.

use super::{
    checked_or_failed, convert, floor_divide, isnan, promote_args, promote_dtypes, to_inexact, to_strong_type, where_,
};
use crate::core::array::Array;
use crate::dtype::{Category, DType, Scalar};
use crate::error::{Result, err};
use crate::ops::constants::ones_like;
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::composite::{composite, composite1};
use crate::ops::primitive::reduce::accumulator;
use crate::ops::primitive::reshard::sharded_alike;
use crate::ops::primitive::special::products::LOGADDEXP2;
use crate::ops::primitive::special::turns::SIN_PI;
use crate::ops::promotion::convert_clamped;

/// Converts two arrays to a common floating point dtype, broadcasts them and applies `f`.
#[track_caller]
fn floats(
    name: &'static str,
    x: impl ArrayLike,
    y: impl ArrayLike,
    f: impl FnOnce(&Array, &Array) -> Result<Array>,
) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(if x.ndim() >= y.ndim() { &x } else { &y }, || {
        let args = sharded_alike(&super::broadcast_args(name, &promote_dtypes(&[&x, &y], to_inexact)?)?);
        f(&args[0], &args[1])
    })
}

/// Converts an array to floating point and applies `f`.
#[track_caller]
fn float(x: impl ArrayLike, f: impl FnOnce(&Array) -> Result<Array>) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || f(&convert(&x, to_inexact(x.dtype()), x.weak_type())))
}

fn real_only(name: &str, x: &Array) -> Result<()> {
    if !x.dtype().is_complex() {
        Ok(())
    } else {
        Err(err!(Type, "{name} does not support complex-valued inputs, got {}", x.type_name())
            .help("pass a real array, such as `real(..)`, `imag(..)` or `abs(..)` of the array"))
    }
}

/// Returns the larger element of each pair. If only one is NaN, the result is the other.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::fmax;
/// assert_eq!(fmax(array([1.0f32, f32::NAN]), 0.5).to_vec::<f32>()?, [1.0, 0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn fmax(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    ordered("fmax", x, y, |x, y| x.greater(y))
}

/// Returns the smaller element of each pair. If only one is NaN, the result is the other.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(fmin(array([1.0f32, f32::NAN]), 0.5).to_vec::<f32>()?, [0.5, 0.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn fmin(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    ordered("fmin", x, y, |x, y| x.less(y))
}

#[track_caller]
fn ordered(name: &str, x: impl ArrayLike, y: impl ArrayLike, first: impl FnOnce(&Array, &Array) -> Array) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(if x.ndim() >= y.ndim() { &x } else { &y }, || {
        let args = sharded_alike(&promote_args(name, &[&x, &y])?);
        Ok(where_(first(&args[0], &args[1]) | isnan(&args[1]), &args[0], &args[1]))
    })
}

/// Returns [`floor_divide`] and [`remainder`](super::remainder()) of both arrays.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::divmod;
/// let (quotient, rest) = divmod(array([7, -7]), 2);
/// assert_eq!((quotient.to_vec::<i32>()?, rest.to_vec::<i32>()?), (vec![3, -4], vec![1, 1]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn divmod(x: impl ArrayLike, y: impl ArrayLike) -> (Array, Array) {
    let (x, y) = (x.into_array(), y.into_array());
    (floor_divide(&x, &y), super::remainder(&x, &y))
}

/// Raises `x` to the power `y`, floating point.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(float_power(array([2, 4]), -1).to_vec::<f32>()?, [0.5, 0.25]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn float_power(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    floats("float_power", x, y, |x, y| Ok(crate::ops::primitive::binary::POW.apply(x, y)))
}

/// Returns the step function: 0 for negative `x`, 1 for positive, `y` at 0. Floating point.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::heaviside;
/// assert_eq!(heaviside(array([-1.5f32, 0.0, 2.0]), 0.5).to_vec::<f32>()?, [0.0, 0.5, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn heaviside(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    floats("heaviside", x, y, |x, y| {
        real_only("heaviside", x)?;
        Ok(where_(x.less(0), 0, where_(x.greater(0), 1, where_(isnan(x), x, y))))
    })
}

/// Computes `sin(πx) / (πx)`, 1 at 0 and 0 at infinity. Floating point.
///
/// ```
/// # use shardax::prelude::*;
/// assert!(allclose(sinc(array([0.0f32, 0.5])), array([1.0f32, 0.63661975]), 1e-6, 0.0)?);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn sinc(x: impl ArrayLike) -> Array {
    float(x, |x| {
        composite1("sinc", (), std::slice::from_ref(x), |(), args| {
            // Half precision is computed in float32, and rounded once.
            let x = &args[0].astype(accumulator(args[0].dtype()));
            // The derivatives of the quotient lose digits next to 0, so the series is used there. Complex numbers only use it at 0.
            let is_near = if x.dtype().is_complex() { x.equal(0) } else { x.abs().less(0.5) };
            let near = where_(&is_near, x, 0) * std::f64::consts::PI;
            let square = &near * &near;
            let terms = if x.dtype() == DType::F64 { 13 } else { 8 };
            let series =
                (1..terms).rev().fold(ones_like(x), |sum, k| 1 - sum * &square / f64::from(2 * k * (2 * k + 1)));
            // At infinity the limit is 0, like the value at 1.
            let far = if x.dtype().is_complex() { x.clone() } else { where_(x.isinf(), 1, x) };
            let far = where_(&is_near, 1, far);
            let scaled = &far * std::f64::consts::PI;
            let sine = if x.dtype().is_complex() { scaled.sin() } else { SIN_PI.apply(std::slice::from_ref(&far)) };
            Ok(vec![where_(is_near, series, sine / scaled).astype(args[0].dtype())])
        })
    })
}

/// Computes `log2(2^x + 2^y)`, without overflow. Floating point.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(logaddexp2(array([1000.0f32]), 1000.0).to_vec::<f32>()?, [1001.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn logaddexp2(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    floats("logaddexp2", x, y, |x, y| {
        if x.dtype().is_complex() {
            let ln2 = std::f64::consts::LN_2;
            return Ok(super::logaddexp(x * ln2, y * ln2) / ln2);
        }
        Ok(LOGADDEXP2.apply(&[x.clone(), y.clone()]))
    })
}

/// Marks elements that are infinite and positive.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
/// assert_eq!(isposinf(x).to_vec::<bool>()?, [true, false, false]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn isposinf(x: impl ArrayLike) -> Array {
    infinite(x, f64::INFINITY)
}

/// Marks elements that are infinite and negative.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
/// assert_eq!(isneginf(x).to_vec::<bool>()?, [false, true, false]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn isneginf(x: impl ArrayLike) -> Array {
    infinite(x, f64::NEG_INFINITY)
}

#[track_caller]
fn infinite(x: impl ArrayLike, value: f64) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || {
        real_only("isposinf and isneginf", &x)?;
        Ok(if x.dtype().is_float() { x.equal(value) } else { x.not_equal(&x) })
    })
}

/// Returns the absolute value of real numbers, floating point.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(fabs(array([-2, 3])).to_vec::<f32>()?, [2.0, 3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn fabs(x: impl ArrayLike) -> Array {
    float(x, |x| {
        real_only("fabs", x)?;
        Ok(x.abs())
    })
}

/// Rounds to the nearest integer, floating point. Halves are rounded to the even integer.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(rint(array([0.5f32, 1.5, -2.7])).to_vec::<f32>()?, [0.0, 2.0, -3.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn rint(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || Ok(if x.dtype().is_inexact() { x.round() } else { x.astype(to_inexact(x.dtype())) }))
}

/// Returns `x` itself.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(positive(array([-1, 2])).to_vec::<i32>()?, [-1, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for booleans, as in NumPy.
#[track_caller]
pub fn positive(x: impl ArrayLike) -> Array {
    x.into_array()
}

/// Converts radians to degrees. Floating point.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(degrees(std::f32::consts::PI).item::<f32>()?, 180.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn degrees(x: impl ArrayLike) -> Array {
    float(x, |x| Ok(x * (180.0 / std::f64::consts::PI)))
}

/// Converts degrees to radians. Floating point.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(radians(180.0f32).item::<f32>()?, std::f32::consts::PI);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn radians(x: impl ArrayLike) -> Array {
    float(x, |x| Ok(x * (std::f64::consts::PI / 180.0)))
}

/// Returns the angle of complex numbers in radians. It is 0 or π for real numbers.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(angle(array([-1.0f32, 2.0])).to_vec::<f32>()?, [std::f32::consts::PI, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn angle(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || {
        let (re, im) = (super::real(&x), super::imag(&x));
        let wide = to_inexact(re.dtype());
        Ok(super::arctan2(to_strong_type(&im, wide), to_strong_type(&re, wide)))
    })
}

/// Marks numbers whose imaginary part is not 0.
///
/// ```
/// # use shardax::prelude::*;
/// let z = complex(array([1.0f32, 2.0]), array([0.0f32, 3.0]));
/// assert_eq!(iscomplex(z).to_vec::<bool>()?, [false, true]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn iscomplex(x: impl ArrayLike) -> Array {
    super::imag(x.into_array()).not_equal(0)
}

/// Marks numbers whose imaginary part is 0.
///
/// ```
/// # use shardax::prelude::*;
/// let z = complex(array([1.0f32, 2.0]), array([0.0f32, 3.0]));
/// assert_eq!(isreal(z).to_vec::<bool>()?, [true, false]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn isreal(x: impl ArrayLike) -> Array {
    super::imag(x.into_array()).equal(0)
}

/// The dtype in which the bits of a float are inspected. Narrow floats are converted to float32, which represents all of their numbers.
fn wide(dtype: DType) -> DType {
    if dtype.is_narrow() { DType::F32 } else { dtype }
}

/// The bits of a float as signed integers of its width.
fn bits(x: &Array) -> (Array, DType) {
    let bits_dtype = signed_of_width(x.dtype().bits());
    (lax::bitcast_convert_type(x, bits_dtype), bits_dtype)
}

/// The signed integer dtype of this many bits.
fn signed_of_width(bits: usize) -> DType {
    match bits {
        16 => DType::I16,
        32 => DType::I32,
        _ => DType::I64,
    }
}

/// Marks elements whose sign bit is set, with booleans. -0 and negative NaN are marked too.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::signbit;
/// assert_eq!(signbit(array([-0.0f32, 0.0, -1.0])).to_vec::<bool>()?, [true, false, true]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn signbit(x: impl ArrayLike) -> Array {
    let x = x.into_array();
    checked_or_failed(&x, || {
        real_only("signbit", &x)?;
        Ok(match x.dtype().category() {
            Category::Float => composite1("signbit", (), std::slice::from_ref(&x), |(), args| {
                Ok(vec![bits(&to_strong_type(&args[0], wide(args[0].dtype()))).0.less(0)])
            })?,
            Category::Signed => x.less(0),
            _ => x.not_equal(&x),
        })
    })
}

/// Returns `x` with the sign of `y`. Floating point.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(copysign(array([1.0f32, 2.0]), array([-0.0f32, 3.0])).to_vec::<f32>()?, [-1.0, 2.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn copysign(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    floats("copysign", x, y, |x, y| {
        real_only("copysign", x)?;
        Ok(where_(signbit(y), -x.abs(), x.abs()))
    })
}

/// Returns the fractional and the integral part, both with the sign of `x`. Floating point.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::modf;
/// let (part, whole) = modf(array([1.5f32, -2.25]));
/// assert_eq!((part.to_vec::<f32>()?, whole.to_vec::<f32>()?), (vec![0.5, -0.25], vec![1.0, -2.0]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn modf(x: impl ArrayLike) -> (Array, Array) {
    let x = x.into_array();
    let integral = float(&x, |x| {
        real_only("modf", x)?;
        Ok(lax::trunc(x))
    });
    (float(&x, |x| Ok(x - &integral)), integral)
}

/// Returns the mantissa, at least 0.5 and less than 1 in absolute value, and the exponent, int32: `x = mantissa *
/// 2^exponent`. For 0, infinities, NaN and subnormal numbers, the mantissa is the number itself and the exponent is 0.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::frexp;
/// let (mantissa, exponent) = frexp(array([8.0f32, -0.75]));
/// assert_eq!((mantissa.to_vec::<f32>()?, exponent.to_vec::<i32>()?), (vec![0.5, -0.75], vec![4, 0]));
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn frexp(x: impl ArrayLike) -> (Array, Array) {
    let x = x.into_array();
    crate::core::program::trace::at_caller(|| {
        mantissa_and_exponent(&x).unwrap_or_else(|e| {
            let failed = Array::from_result(Err(e), &x);
            (failed.clone(), failed)
        })
    })
}

fn mantissa_and_exponent(x: &Array) -> Result<(Array, Array)> {
    x.check()?;
    real_only("frexp", x)?;
    let x = to_strong_type(x, to_inexact(x.dtype()));
    if x.dtype().is_narrow() {
        let (mantissa, exponent) = frexp(x.astype(DType::F32));
        return Ok((mantissa.astype(x.dtype()), exponent));
    }
    let parts = composite("frexp", (), 2, std::slice::from_ref(&x), |(), args| {
        let x = crate::ops::primitive::stop_gradient::stop_gradient(args[0].clone());
        let (exponent, is_normal) = exponent(&x)?;
        Ok(vec![exponent, is_normal])
    })?;
    let (exponent, is_normal) = (&parts[0], &parts[1]);
    // Scales in two steps, because the power of two for a single step may not be a normal number.
    let half = super::floor_divide(exponent, 2);
    let mantissa = &x * power_of_two(&-&half, x.dtype())?;
    let mantissa = mantissa * power_of_two(&-(exponent - &half), x.dtype())?;
    Ok((where_(is_normal, mantissa, &x), exponent.clone()))
}

/// The exponent of [`frexp`], and a mark for normal numbers.
fn exponent(x: &Array) -> Result<(Array, Array)> {
    let limits = super::finfo(x.dtype())?;
    let plain = x.isfinite() & x.abs().greater_equal(limits.smallest_normal);
    let (bits, of) = bits(x);
    let exponents = (1i64 << limits.nexp) - 1;
    let biased =
        (super::right_shift(&bits, number(limits.nmant as i64, of)) & number(exponents, of)).astype(DType::I32);
    let exponent = biased - (bias(x.dtype())? - 1);
    Ok((where_(&plain, exponent, 0), plain))
}

/// The bias of the exponents of a dtype.
fn bias(dtype: DType) -> Result<i32> {
    Ok((1 << (super::finfo(dtype)?.nexp - 1)) - 1)
}

/// 2 to the power of integers, exactly: the bits are computed from the exponent. The results must be normal numbers.
fn power_of_two(exponent: &Array, dtype: DType) -> Result<Array> {
    let bits_dtype = signed_of_width(dtype.bits());
    let biased = (exponent + bias(dtype)?).astype(bits_dtype);
    let bits = super::left_shift(biased, number(super::finfo(dtype)?.nmant.into(), bits_dtype));
    Ok(lax::bitcast_convert_type(&bits, dtype))
}

fn number(value: i64, dtype: DType) -> Array {
    Array::literal(Scalar::Int(value.into()), dtype, false)
}

/// Computes `x * 2^y` for integers `y`, without intermediate overflow. Floating point.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::ldexp;
/// assert_eq!(ldexp(array([0.5f32, 3.0]), array([4, -1])).to_vec::<f32>()?, [8.0, 1.5]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn ldexp(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(if x.ndim() >= y.ndim() { &x } else { &y }, || {
        x.check()?;
        y.check()?;
        if x.dtype().is_complex() || y.dtype().is_inexact() {
            return Err(err!(Value, "ldexp not supported for input types {} and {}", x.type_name(), y.type_name())
                .help("pass real numbers and integer exponents"));
        }
        if x.dtype().is_narrow() && x.dtype().is_float() {
            return Ok(ldexp(x.astype(DType::F32), &y).astype(x.dtype()));
        }
        let args = sharded_alike(&super::broadcast_args("ldexp", &[x.clone(), y.clone()])?);
        let (x, y) = (convert(&args[0], to_inexact(x.dtype()), x.weak_type()), &args[1]);
        // Scales in four steps, so that no power of two overflows. Larger exponents would not change the result any more.
        let max_exponent = 4 * (bias(x.dtype())? - 4);
        let exponent = convert_clamped(y, DType::I32).clip(-max_exponent, max_exponent);
        let part = super::floor_divide(&exponent, 4);
        let quarter = power_of_two(&part, x.dtype())?;
        let last_quarter = power_of_two(&(&exponent - &part * 3), x.dtype())?;
        Ok(&x * &quarter * &quarter * &quarter * last_quarter)
    })
}

/// Returns the greatest common divisor of integers.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::{gcd, lcm};
/// assert_eq!(gcd(array([12, 0, -8]), array([18, 5, 12])).to_vec::<i32>()?, [6, 5, 4]);
/// assert_eq!(lcm(array([4, 0]), array([6, 5])).to_vec::<i32>()?, [12, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn gcd(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(if x.ndim() >= y.ndim() { &x } else { &y }, || {
        let args = promote_args("gcd", &[&x, &y])?;
        if !args[0].dtype().is_integer() {
            return Err(err!(Value, "Arguments to gcd must be integers, got {} and {}", x.type_name(), y.type_name())
                .help("convert them with `astype(DType::I32)`"));
        }
        let magnitudes = [&args[0], &args[1]].map(|x| convert(x, x.dtype(), false).abs());
        let args = sharded_alike(&super::broadcast_arrays(magnitudes)?);
        let start = (args[0].clone(), args[1].clone());
        let (gcd, _) = crate::ops::control_flow::while_loop(
            |(_, y): (Array, Array)| y.not_equal(0).any(..),
            |(x, y): (Array, Array)| {
                let done = y.equal(0);
                let remainder = lax::rem(&x, &where_(&done, 1, &y));
                (where_(&done, &x, &y), where_(&done, 0, remainder))
            },
            start,
        )?;
        Ok(gcd)
    })
}

/// Returns the least common multiple of integers; 0 where either is 0.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lcm(array([4, 0]), 6).to_vec::<i32>()?, [12, 0]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn lcm(x: impl ArrayLike, y: impl ArrayLike) -> Array {
    let (x, y) = (x.into_array(), y.into_array());
    checked_or_failed(if x.ndim() >= y.ndim() { &x } else { &y }, || {
        let args = sharded_alike(&promote_args("lcm", &[&x, &y])?);
        let (x, y) = (args[0].abs(), args[1].abs());
        let divisor = gcd(&x, &y);
        divisor.check()?;
        let both_zero = divisor.equal(0);
        Ok(where_(&both_zero, 0, &x * floor_divide(&y, where_(&both_zero, 1, &divisor))))
    })
}
