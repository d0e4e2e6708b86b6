//! Positions of maxima and minima on CPU, as two reductions.
//!
//! XLA (xla-cpu-pjrt 0.0.1) does not vectorize a reduction of pairs of a number and its index. The maximum of integers, and
//! the smallest index of the elements that are equal to it, are vectorized reductions. Both read the operand.

use super::{bfloat16, extremes, sums};
use crate::backend::rules::Lowered;
use crate::core::lower::{Lowering, Value, ints};
use crate::core::program::Aval;
use crate::dtype::Scalar;
use crate::ops::primitive::reduce::{ArgMax, Reducer, highest};
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
    let keys = match extremes::ordered_integers(cx, args[0], reducer) {
        // Zeros are equal: the bits of -0 are just below the bits of 0.
        Some(keys) => {
            let aval = cx.aval(keys);
            let (below, zero) = (cx.constant(Scalar::Int(-1), &aval), cx.constant(Scalar::Int(0), &aval));
            let is_negative_zero = cx.compare("EQ", keys, below);
            cx.op("stablehlo.select", &[is_negative_zero, zero, keys], "", &aval)
        }
        None if operand.dtype.is_integer() && operand.dtype.bits() >= 8 => args[0],
        None => return bfloat16::compare_in_float32(argmax, cx, args, outs),
    };
    let axes = [argmax.axis];
    let keys_aval = cx.aval(keys);
    let extreme = sums::reduce(reducer, &axes, cx, keys, &outs[0].with_dtype(keys_aval.dtype))?;
    let kept: Vec<usize> = (0..operand.rank()).filter(|axis| *axis != argmax.axis).collect();
    let dims = format!("broadcast_dimensions = {}", ints(&kept));
    let extreme = cx.op("stablehlo.broadcast_in_dim", &[extreme], &dims, &keys_aval);
    let is_extreme = cx.compare("EQ", keys, extreme);
    let indices_aval = operand.with_dtype(argmax.index_dtype);
    let iota = format!("iota_dimension = {} : i64", argmax.axis);
    let indices = cx.op("stablehlo.iota", &[], &iota, &indices_aval);
    let last = cx.constant(highest(argmax.index_dtype), &indices_aval);
    let indices = cx.op("stablehlo.select", &[is_extreme, indices, last], "", &indices_aval);
    Ok(Some(vec![sums::reduce(Reducer::Min, &axes, cx, indices, &outs[0])?]))
}
