//! Elementwise functions on all platforms, where XLA's operation loses digits or computes another number.

use super::rules::{Lowered, Rules};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::{DType, Format, Scalar};
use crate::ops::primitive::binary::{Binary, Convert, POW};
use crate::ops::primitive::special::{self, widened_unary};
use crate::ops::primitive::unary::{ABS, COS, EXPM1, IMAG, REAL, SIN, Unary};
use crate::ops::select::where_;

pub(super) fn add(rules: &mut Rules) {
    rules.add_everywhere(unary);
    rules.add_everywhere(power);
    rules.add_everywhere(convert);
}

fn unary(unary: &Unary, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let (operand, result) = (cx.dtype(args[0]), outs[0].dtype);
    match unary.name() {
        "sin" | "cos" if result.is_complex() && cx.has_quirk("complex-sine-overflow") => {
            let index = usize::from(unary.name() == "cos");
            cx.expand(args, |x| Ok(vec![complex_sin_cos(&x[0])[index].clone()])).map(Some)
        }
        "abs" if operand.is_complex() && cx.has_quirk("complex-size-of-infinity") => {
            infinite_size(unary, cx, args, outs).map(Some)
        }
        "population_count" | "clz" if result.bits() < 8 && cx.has_quirk("bits-of-packed-elements") => {
            cx.expand(args, |x| Ok(vec![count_in_bytes(unary, &x[0])])).map(Some)
        }
        "expm1" | "lgamma" | "digamma" if !result.is_complex() && cx.has_quirk("digits-near-roots") => {
            let function = match unary.name() {
                "expm1" => special::expm1,
                "lgamma" => special::log_gamma,
                _ => special::digamma,
            };
            cx.expand(args, |x| Ok(vec![widened_unary(&x[0], function)])).map(Some)
        }
        "cbrt" if result.bits() >= 32 && cx.has_quirk("digits-of-cube-roots") => {
            let root = cx.op(unary.operation(), args, "", &outs[0]);
            cx.expand(&[args[0], root], |x| Ok(vec![refine_cube_root(&x[0], &x[1])])).map(Some)
        }
        // XLA's series of rational functions is slower, and has larger errors.
        "bessel_i1e" => cx.expand(args, |x| Ok(vec![widened_unary(&x[0], special::i1e)])).map(Some),
        _ => Ok(None),
    }
}

/// Returns the sine and the cosine of complex numbers. A part that is 0 stays 0 if the other part overflows.
fn complex_sin_cos(x: &Array) -> [Array; 2] {
    let (a, b) = (REAL.apply(x), IMAG.apply(x));
    let (sin, cos) = (SIN.apply(&a), COS.apply(&a));
    // `expm1` is accurate for small numbers.
    let (up, down) = (EXPM1.apply(&b), EXPM1.apply(&-&b));
    let (sinh, cosh) = ((&up - &down) / 2, (up + down + 2) / 2);
    let real = a.equal(0);
    let sine = crate::ops::lax::complex(&zero_where(&real, &sin * &cosh), &(&cos * &sinh));
    [sine, crate::ops::lax::complex(&(cos * cosh), &zero_where(&real, -sin * sinh))]
}

/// Writes the absolute value of complex numbers, which is infinite if a part is infinite, even if the other part is NaN.
fn infinite_size(unary: &Unary, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> crate::error::Result<Vec<Value>> {
    let size = cx.op(unary.operation(), args, "", &outs[0]);
    cx.expand(&[args[0], size], |x| {
        let is_infinite = is_infinite(&REAL.apply(&x[0])) | is_infinite(&IMAG.apply(&x[0]));
        Ok(vec![where_(is_infinite, f64::INFINITY, &x[1]).astype(x[1].dtype())])
    })
}

/// A step of Newton's method, after which a cube root has all digits. Zeros and infinities have theirs. A subnormal number counts as
/// zero in the step, but not in XLA's power, so its root is not refined.
fn refine_cube_root(x: &Array, root: &Array) -> Array {
    let is_final = x.equal(0) | is_infinite(root);
    let y = where_(&is_final, 1, root).astype(root.dtype());
    where_(is_final, root, &y - (&y - x / (&y * &y)) * (1.0 / 3.0))
}

/// Counts bits of elements of fewer than 8 bits in bytes.
fn count_in_bytes(unary: &Unary, x: &Array) -> Array {
    let bits = x.dtype().bits() as i32;
    let byte = x.astype(DType::U8) & ((1 << bits) - 1);
    let count = unary.apply(&byte);
    let count = if unary.name() == "clz" { count - (8 - bits) } else { count };
    count.astype(x.dtype())
}

/// Writes a selection after a power. XLA rewrites log(power(x, y)) as y log(|x|), which is a number even if the power is
/// NaN (in JAX too). A selection between the two operations, which changes no value, prevents the rewrite.
fn power(binary: &Binary, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if *binary != POW || !cx.has_quirk("logarithms-of-powers") {
        return Ok(None);
    }
    let power = binary.lower(cx, args, outs)?[0];
    let is_nan = cx.compare("NE", power, power);
    let nan = cx.op("stablehlo.add", &[power, power], "", &outs[0]);
    Ok(Some(vec![cx.op("stablehlo.select", &[is_nan, nan, power], "", &outs[0])]))
}

/// Rounds small negative numbers to 0 in formats without -0: XLA would round them to -0, whose bits are NaN there. Converts elements
/// of formats without infinities to integers by way of float32: XLA would take the largest number for infinity.
fn convert(convert: &Convert, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let from = cx.dtype(args[0]);
    if from == DType::F4E2M1Fn && convert.dtype.is_integer() && cx.has_quirk("largest-float4-is-infinite") {
        let wide = cx.aval(args[0]).with_dtype(DType::F32);
        let x = cx.op("stablehlo.convert", args, "", &wide);
        return Ok(Some(vec![cx.op("stablehlo.convert", &[x], "", &outs[0])]));
    }
    let rounds_to_zero = Format::of(convert.dtype).and_then(Format::rounds_to_unsigned_zero);
    let Some(limit) = rounds_to_zero.filter(|_| from.is_float() && from != convert.dtype) else { return Ok(None) };
    if !cx.has_quirk("negative-zero-of-narrow-floats") {
        return Ok(None);
    }
    let wide = cx.aval(args[0]).with_dtype(DType::F32);
    let x = cx.op("stablehlo.convert", args, "", &wide);
    let size = cx.op("stablehlo.abs", &[x], "", &wide);
    let limit = cx.constant(Scalar::float(limit), &wide);
    let is_small = cx.compare("LE", size, limit);
    let zero = cx.constant(Scalar::Int(0), &wide);
    let x = cx.op("stablehlo.select", &[is_small, zero, x], "", &wide);
    Ok(Some(vec![cx.op("stablehlo.convert", &[x], "", &outs[0])]))
}

fn zero_where(mask: &Array, part: Array) -> Array {
    let dtype = part.dtype();
    where_(mask, 0, part).astype(dtype)
}

fn is_infinite(x: &Array) -> Array {
    ABS.apply(x).equal(f64::INFINITY)
}
