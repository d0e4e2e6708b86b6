//! Elements of 8 bits and fewer between devices: exchanged in a type that every platform exchanges.
//!
//! Sums are made in 32 bits and rounded once. Elements that share bytes are moved in bytes of their own, and float8 as its
//! bits where the plugin exchanges no float8.

use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;

/// Writes a collective, which `write` does for an operand and a result of another dtype if that must be.
pub(super) fn exchanged(
    cx: &mut Lowering,
    x: Value,
    out: &Aval,
    combines: bool,
    write: impl FnOnce(&mut Lowering, Value, &Aval) -> Result<Value>,
) -> Result<Vec<Value>> {
    let dtype = out.dtype;
    let (carrier, cast) = match (dtype.is_narrow(), dtype.is_float()) {
        (false, _) => return Ok(vec![write(cx, x, out)?]),
        (true, true) if !combines && dtype.is_float8() => match cx.has_quirk("float8-between-devices") {
            true => (DType::U8, "stablehlo.bitcast_convert"),
            false => return Ok(vec![write(cx, x, out)?]),
        },
        (true, true) => (DType::F32, "stablehlo.convert"),
        (true, false) if combines => (DType::I32, "stablehlo.convert"),
        (true, false) => (DType::I8, "stablehlo.convert"),
    };
    let wide = cx.aval(x).with_dtype(carrier);
    let x = cx.op(cast, &[x], "", &wide);
    let y = write(cx, x, &out.with_dtype(carrier))?;
    Ok(vec![cx.op(cast, &[y], "", out)])
}
