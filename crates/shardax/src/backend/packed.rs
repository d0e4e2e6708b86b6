//! Elements of fewer than 8 bits on CPU and GPU, computed in bytes and in float32.
//!
//! The CPU plugin's kernels for them (xla-cpu-pjrt 0.0.1) abort the process, or return wrong numbers, because elements
//! that share a byte are loaded as if each had a byte. Conversions are right. Checked by `narrow::packed_elements`.
//!
//! The CUDA plugin (jax-cuda13-plugin 0.11.2) does not compile sorts and reductions of int4, and on an H100 several
//! conversions of one array of int2 in a program lost its upper bits.

use super::rules::by_rule;
use crate::core::lower::{Lowering, Platform, Value};
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::{DType, Scalar};
use crate::error::Result;

/// The type that can represent all numbers of a packed type.
fn wide(aval: &Aval) -> Option<Aval> {
    let packed = aval.dtype.bits() < 8;
    let dtype = match aval.dtype.is_float() {
        true => DType::F32,
        false if aval.dtype.is_signed() => DType::I8,
        false => DType::U8,
    };
    packed.then(|| aval.with_dtype(dtype))
}

/// Conversions, calls of text with its types, and functions that widen their operands themselves.
const SUPPORTED: [&str; 6] = ["convert", "bitcast_convert_type", "iota", "call_exported", "population_count", "clz"];

/// Writes an operation; on CPU and GPU, if elements are packed, between conversions.
pub(super) fn lower(
    cx: &mut Lowering,
    primitive: &dyn Primitive,
    inputs: &[Value],
    outs: &[Aval],
) -> Result<Vec<Value>> {
    let bits = inputs.iter().map(|v| cx.dtype(*v).bits()).chain(outs.iter().map(|out| out.dtype.bits())).min();
    if cx.platform == Platform::Gpu && bits == Some(2) {
        let operation = format!("{} of int2 and uint2", primitive.name());
        return Err(cx.platform.lacks(&operation, "use int4 or int8"));
    }
    let as_is = SUPPORTED.contains(&primitive.name());
    let has_kernels = !matches!(cx.platform, Platform::Cpu | Platform::Gpu);
    if has_kernels
        || !cx.has_quirk("packed-elements")
        || as_is
        || bits.is_none_or(|bits| bits >= 8)
        || !primitive.programs().is_empty()
    {
        return by_rule(cx, primitive, inputs, outs);
    }
    // The next number is another one in a wider type.
    if primitive.name() == "nextafter" {
        return Err(cx
            .platform
            .lacks("nextafter of elements of fewer than 8 bits", "convert the operands with `astype`"));
    }
    let mut wide_inputs: Vec<Value> = inputs
        .iter()
        .map(|&v| match wide(&cx.aval(v)) {
            Some(aval) => cx.op("stablehlo.convert", &[v], "", &aval),
            None => v,
        })
        .collect();
    if primitive.name() == "shift_right_logical" {
        wide_inputs[0] = without_sign_bits(cx, wide_inputs[0], cx.dtype(inputs[0]).bits());
    }
    let widened: Vec<Aval> = outs.iter().map(|out| wide(out).unwrap_or_else(|| out.clone())).collect();
    let values = by_rule(cx, primitive, &wide_inputs, &widened)?;
    let narrowed = values.into_iter().zip(outs).map(|(v, out)| {
        if out.dtype.bits() < 8 {
            // Prevents the compiler from moving the conversion above this value.
            let aval = cx.aval(v);
            let v = cx.op("stablehlo.optimization_barrier", &[v], "", &aval);
            cx.op("stablehlo.convert", &[v], "", out)
        } else {
            v
        }
    });
    Ok(narrowed.collect())
}

/// Clears the bits of a byte above the bits of a packed element: a conversion has copied the sign into them.
fn without_sign_bits(cx: &mut Lowering, byte: Value, bits: usize) -> Value {
    let aval = cx.aval(byte);
    let mask = cx.constant(Scalar::Int((1 << bits) - 1), &aval);
    cx.op("stablehlo.and", &[byte, mask], "", &aval)
}
