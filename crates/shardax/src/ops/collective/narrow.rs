//! Elements of 8 bits and fewer between devices: exchanged in a type that every platform exchanges.
//!
//! Sums are made in 32 bits and rounded once. Elements that share bytes are moved in bytes of their own, and on CPU, whose
//! plugin (xla-cpu-pjrt 0.0.1) exchanges no float8, float8 is moved as its bits. Noticed by
//! `narrow::over_devices`.

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
        (true, true) if !combines && dtype.is_float8() => match cx.on_cpu() {
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
