//! Maxima and minima of floating point numbers over devices, computed as maxima and minima of integers in the same
//! order.
//!
//! The plugin's all-reduce does not propagate NaN. As an integer, NaN is ordered last.

use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::collective::reduce::AllReduce;
use crate::ops::primitive::reduce::{Reducer, highest, lowest};

pub(super) fn lower(of: &AllReduce, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let is_extreme = matches!(of.reducer, Reducer::Max | Reducer::Min) && outs[0].dtype.is_float();
    if !is_extreme || !cx.has_quirk("all-reduce-loses-nan") {
        return Ok(None);
    }
    of.lower_by(cx, args[0], &outs[0], |cx, x, attrs, out| all_reduce(of.reducer, cx, x, attrs, out)).map(Some)
}

/// The maximum or minimum of a floating point value over devices; `attrs` has the groups.
fn all_reduce(reducer: Reducer, cx: &mut Lowering, x: Value, attrs: &str, out: &Aval) -> Result<Value> {
    let dtype = match out.dtype.bits() {
        16 => DType::I16,
        32 => DType::I32,
        64 => DType::I64,
        bits => {
            return Err(err!(NotImplemented, "{} over devices does not support numbers of {bits} bits", reducer.op()));
        }
    };
    let ints = out.with_dtype(dtype);
    let nan = cx.compare("NE", x, x);
    let last = if reducer == Reducer::Max { highest(dtype) } else { lowest(dtype) };
    let last = cx.constant(last, &ints);
    let bits = cx.op("stablehlo.bitcast_convert", &[x], "", &ints);
    let key = flipped(cx, bits, &ints);
    let key = cx.op("stablehlo.select", &[nan, last, key], "", &ints);
    let region = reducer.region(cx, dtype)?;
    let key = cx.op_with("stablehlo.all_reduce", &[key], attrs, vec![region], std::slice::from_ref(&ints))[0];
    let bits = flipped(cx, key, &ints);
    Ok(cx.op("stablehlo.bitcast_convert", &[bits], "", out))
}

/// Reorders the bits of floating point numbers as integers: flips the bits below the sign of negative numbers. The
/// function is self-inverse.
fn flipped(cx: &mut Lowering, bits: Value, ints: &Aval) -> Value {
    let mask = cx.constant(highest(ints.dtype), ints);
    let zero = cx.constant(Scalar::Int(0), ints);
    let negative = cx.compare("LT", bits, zero);
    let turned = cx.op("stablehlo.xor", &[bits, mask], "", ints);
    cx.op("stablehlo.select", &[negative, turned, bits], "", ints)
}
