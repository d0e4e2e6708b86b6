//! Maxima and minima of floating-point numbers on CPU, computed with integers.
//!
//! XLA (xla-cpu-pjrt 0.0.1) keeps a NaN in a maximum only by comparisons that it vectorizes badly, and maxima of
//! integers are single instructions. The bits of a number, read as an integer, have the order of the numbers after all
//! bits of a negative number except the sign are inverted. A NaN becomes the largest integer for maxima and the
//! smallest one for minima. Both are a NaN again when they are read as numbers.

use super::sums;
use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::{DType, Scalar};
use crate::ops::primitive::reduce::{Reduce, Reducer, highest, lowest};
use crate::shape::size;

/// Lowers maxima and minima.
pub(super) fn lower(reduce: &Reduce, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    // The compiler does not know how to combine the parts of a partitioned operand, and the integers have no place for
    // the result of no elements.
    if !cx.has_quirk("maximum-drops-nan") || !cx.is_local() || size(cx.shape(args[0])) == 0 {
        return Ok(None);
    }
    let Some(ordered) = ordered_integers(cx, args[0], reduce.reducer) else { return Ok(None) };
    let out = outs[0].with_dtype(cx.dtype(ordered));
    let extreme = sums::reduce(reduce.reducer, &reduce.axes, cx, ordered, &out)?;
    let bits = reordered(cx, extreme, &out);
    Ok(Some(vec![cx.op("stablehlo.bitcast_convert", &[bits], "", &outs[0])]))
}

/// Integers with the order of the numbers, in which NaN is larger than all of them for maxima, and smaller for minima. `None`
/// if the dtype has no such integers.
pub(super) fn ordered_integers(cx: &mut Lowering, x: Value, reducer: Reducer) -> Option<Value> {
    let dtype = cx.dtype(x);
    let integer = integer_of(dtype)?;
    let nan = if reducer == Reducer::Max { highest(integer) } else { lowest(integer) };
    let operand = cx.aval(x).with_dtype(integer);
    let bits = cx.op("stablehlo.bitcast_convert", &[x], "", &operand);
    let ordered = reordered(cx, bits, &operand);
    let is_nan = is_nan_of_bits(cx, bits, dtype);
    let nan = cx.constant(nan, &operand);
    Some(cx.op("stablehlo.select", &[is_nan, nan, ordered], "", &operand))
}

/// Returns `true` for the bits of a NaN of `dtype`.
pub(super) fn is_nan_of_bits(cx: &mut Lowering, bits: Value, dtype: DType) -> Value {
    let aval = cx.aval(bits);
    let magnitude = magnitude(cx, bits, &aval);
    let infinity = cx.constant(infinity_bits(dtype), &aval);
    cx.compare("GT", magnitude, infinity)
}

/// The bits without the sign.
pub(super) fn magnitude(cx: &mut Lowering, bits: Value, aval: &Aval) -> Value {
    let all_but_sign = cx.constant(highest(aval.dtype), aval);
    cx.op("stablehlo.and", &[bits, all_but_sign], "", aval)
}

/// The integer of the same size, for dtypes with infinities and fast integers.
fn integer_of(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F64 => Some(DType::I64),
        DType::F32 => Some(DType::I32),
        DType::Bf16 | DType::F16 => Some(DType::I16),
        _ => None,
    }
}

/// The bits of infinity.
fn infinity_bits(dtype: DType) -> Scalar {
    Scalar::Int(match dtype {
        DType::F64 => f64::INFINITY.to_bits().into(),
        DType::F32 => f32::INFINITY.to_bits().into(),
        DType::Bf16 => (f32::INFINITY.to_bits() >> 16).into(),
        // Five bits of exponent.
        _ => 0x1f << 10,
    })
}

/// Inverts all bits except the sign of negative integers. It is its own inverse.
pub(super) fn reordered(cx: &mut Lowering, bits: Value, aval: &Aval) -> Value {
    let shift = cx.constant(Scalar::Int(aval.dtype.bits() as i128 - 1), aval);
    let sign = cx.op("stablehlo.shift_right_arithmetic", &[bits, shift], "", aval);
    let all_but_sign = cx.constant(highest(aval.dtype), aval);
    let inverted = cx.op("stablehlo.and", &[sign, all_but_sign], "", aval);
    cx.op("stablehlo.xor", &[bits, inverted], "", aval)
}
