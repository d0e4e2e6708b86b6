//! Exchange of elements of 8 bits or fewer, in a type that every platform can exchange.
//!
//! Sums are computed in 32 bits and rounded once. Integers smaller than a byte are widened to one byte each, and float4 to
//! float32; float8 moves as it is.

use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;

/// Lowers a collective with `write`, if there are elements, in another dtype if the platform cannot exchange the operand's.
pub(super) fn exchanged(
    cx: &mut Lowering,
    x: Value,
    out: &Aval,
    combines: bool,
    write: impl FnOnce(&mut Lowering, Value, &Aval) -> Result<Value>,
) -> Result<Vec<Value>> {
    // StableHLO rejects some exchanges of arrays without elements.
    if out.shape.contains(&0) {
        return Ok(vec![cx.op("stablehlo.reshape", &[x], "", out)]);
    }
    let dtype = out.dtype;
    let carrier = match (dtype.is_narrow(), dtype.is_float()) {
        (false, _) => return Ok(vec![write(cx, x, out)?]),
        (true, true) if !combines && dtype.is_float8() => return Ok(vec![write(cx, x, out)?]),
        (true, true) => DType::F32,
        (true, false) if combines => DType::I32,
        (true, false) => DType::I8,
    };
    let wide = cx.aval(x).with_dtype(carrier);
    let x = cx.op("stablehlo.convert", &[x], "", &wide);
    let y = write(cx, x, &out.with_dtype(carrier))?;
    Ok(vec![cx.op("stablehlo.convert", &[y], "", out)])
}
