//! Products and convolutions of bytes whose sums are integers that f32 contains, which are computed in f32. XLA (xla-cpu-pjrt 0.0.1) has fast
//! loops for f32, and takes three to fifteen times as long for integers.

use super::widen;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;

/// The largest number up to which f32 contains all integers.
const LARGEST: usize = 1 << 24;

/// Returns the operands in f32 if they are bytes, or integers converted from bytes, and if no sum of `depth` products, in any order, is
/// rounded.
pub(super) fn in_f32(cx: &mut Lowering, args: &[Value], depth: usize, out: &Aval) -> Option<Vec<Value>> {
    if !matches!(out.dtype, DType::I32 | DType::U32 | DType::I64 | DType::U64) {
        return None;
    }
    let bytes = [args[0], args[1]].map(|v| bytes_of(cx, v));
    let [Some((x, x_size)), Some((y, y_size))] = bytes else { return None };
    let is_exact = depth.saturating_mul(x_size * y_size) <= LARGEST;
    is_exact.then(|| widen(cx, &[x, y], Some(DType::F32)))
}

/// Converts sums in f32 to the type of the result. Negative sums wrap around in unsigned types.
pub(super) fn from_f32(cx: &mut Lowering, sums: Value, out: &Aval) -> Value {
    let signed = cx.op("stablehlo.convert", &[sums], "", &out.with_dtype(DType::I32));
    if out.dtype == DType::I32 { signed } else { cx.op("stablehlo.convert", &[signed], "", out) }
}

/// The bytes that a value consists of or was converted from, and their largest magnitude.
fn bytes_of(cx: &Lowering, v: Value) -> Option<(Value, usize)> {
    let is_integer = matches!(cx.dtype(v), DType::I32 | DType::U32 | DType::I64 | DType::U64);
    let bytes = cx.converted_from(v).filter(|_| is_integer).unwrap_or(v);
    match cx.dtype(bytes) {
        DType::I8 => Some((bytes, 128)),
        DType::U8 => Some((bytes, 255)),
        _ => None,
    }
}
