//! Positions of maxima and minima on CPU, as two reductions.
//!
//! XLA (xla-cpu-pjrt 0.0.1) does not vectorize a reduction of pairs of a number and its index. The maximum of integers, and
//! the smallest index of the elements that are equal to it, are vectorized reductions. Both read the operand: integers
//! that both used would be stored, which takes as much memory as the operand.

use super::extremes::{is_nan_of_bits, magnitude, ordered_integers, reordered};
use super::{bfloat16, sums};
use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value, ints};
use crate::core::program::Aval;
use crate::dtype::Scalar;
use crate::ops::primitive::reduce::{ArgMax, Reducer, highest, lowest};
use crate::shape::{size, sizes_are_open};

/// The number of elements from which two reductions are faster than one.
const MIN_ELEMENTS: usize = 1 << 10;

pub(super) fn lower(argmax: &ArgMax, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let operand = cx.aval(args[0]);
    // The compiler does not know how to combine the parts of a partitioned operand.
    if !cx.is_local() || sizes_are_open() || size(&operand.shape) < MIN_ELEMENTS {
        return bfloat16::compare_in_float32(argmax, cx, args, outs);
    }
    let reducer = if argmax.min { Reducer::Min } else { Reducer::Max };
    let axes = [argmax.axis];
    let row_axes: Vec<usize> = (0..operand.rank()).filter(|axis| *axis != argmax.axis).collect();
    let is_extreme = match ordered_integers(cx, args[0], reducer) {
        Some(keys) => {
            let rows = outs[0].with_dtype(cx.dtype(keys));
            let extreme = sums::reduce(reducer, &axes, cx, keys, &rows)?;
            is_extreme_number(cx, args[0], extreme, &row_axes)
        }
        None if operand.dtype.is_integer() && operand.dtype.bits() >= 8 => {
            let extreme = sums::reduce(reducer, &axes, cx, args[0], &outs[0].with_dtype(operand.dtype))?;
            equal_rows(cx, args[0], extreme, &row_axes)
        }
        None => return bfloat16::compare_in_float32(argmax, cx, args, outs),
    };
    let indices_aval = operand.with_dtype(argmax.index_dtype);
    let iota = format!("iota_dimension = {} : i64", argmax.axis);
    let indices = cx.op("stablehlo.iota", &[], &iota, &indices_aval);
    let last = cx.constant(highest(argmax.index_dtype), &indices_aval);
    let indices = cx.op("stablehlo.select", &[is_extreme, indices, last], "", &indices_aval);
    Ok(Some(vec![sums::reduce(Reducer::Min, &axes, cx, indices, &outs[0])?]))
}

/// Compares `x` with a value for each row; `row_axes` are the dimensions of `x` that rows have.
fn equal_rows(cx: &mut Lowering, x: Value, rows: Value, row_axes: &[usize]) -> Value {
    let aval = cx.aval(x);
    let dims = format!("broadcast_dimensions = {}", ints(row_axes));
    let rows = cx.op("stablehlo.broadcast_in_dim", &[rows], &dims, &aval);
    cx.compare("EQ", x, rows)
}

/// Returns `true` for the elements of `x` that are the extreme number of their row, `ordered`: equal, both zero, or NaN. They
/// are compared as bits, because threads of the plugin take subnormal numbers for zeros.
fn is_extreme_number(cx: &mut Lowering, x: Value, ordered: Value, row_axes: &[usize]) -> Value {
    let rows = cx.aval(ordered);
    let extreme = reordered(cx, ordered, &rows);
    // The other zero, if the extreme number is a zero, and otherwise the number again.
    let magnitude = magnitude(cx, extreme, &rows);
    let zero = cx.constant(Scalar::Int(0), &rows);
    let is_zero = cx.compare("EQ", magnitude, zero);
    let sign = cx.constant(lowest(rows.dtype), &rows);
    let negated = cx.op("stablehlo.xor", &[extreme, sign], "", &rows);
    let other = cx.op("stablehlo.select", &[is_zero, negated, extreme], "", &rows);
    let bits_aval = cx.aval(x).with_dtype(rows.dtype);
    let bits = cx.op("stablehlo.bitcast_convert", &[x], "", &bits_aval);
    // A row with a NaN has it as its extreme number.
    let is_nan = is_nan_of_bits(cx, bits, cx.dtype(x));
    let either = [extreme, other].map(|number| equal_rows(cx, bits, number, row_axes));
    let mask = cx.aval(is_nan);
    let is_equal = cx.op("stablehlo.or", &either, "", &mask);
    cx.op("stablehlo.or", &[is_equal, is_nan], "", &mask)
}
