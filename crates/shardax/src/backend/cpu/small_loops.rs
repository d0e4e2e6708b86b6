//! Small loops as one function.
//!
//! The plugin (xla-cpu-pjrt 0.0.1) runs each fused operation of each iteration separately, with its own dispatch and
//! its own loop over the elements, unless the loop reads and writes less than 1,024 bytes. A call with the attribute
//! `xla_cpu_small_call` is compiled as one function, in half of the time, and runs up to three times as fast. The
//! function runs on one thread and calls no library, and its exponentials are not vectorized, so that loops with long
//! arrays, matmuls, sorts or transcendental functions are slower in this form, or not possible.
//!
//! Results are equal, except where XLA fuses a product and a sum into one rounding in only one of the forms.

use super::super::rules::Lowered;
use crate::backend::quirks;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::{Aval, Program};
use crate::shape::{size, sizes_are_open};

/// The maximum size in bytes of an array of an iteration. Longer arrays are computed on several threads.
const MAX_BYTES: usize = 1 << 16;

/// The maximum number of equations. The compiler's time grows faster than the length of a function.
const MAX_EQUATIONS: usize = 256;

const ATTRIBUTES: &str = "mhlo.frontend_attributes = {inlineable = \"false\", xla_cpu_small_call = \"true\"}";

/// The operations that are as fast in one function, and need nothing from the plugin while they run.
const OPERATIONS: [&str; 46] = [
    "func.return",
    "stablehlo.abs",
    "stablehlo.add",
    "stablehlo.and",
    "stablehlo.bitcast_convert",
    "stablehlo.broadcast_in_dim",
    "stablehlo.ceil",
    "stablehlo.clamp",
    "stablehlo.compare",
    "stablehlo.concatenate",
    "stablehlo.constant",
    "stablehlo.convert",
    "stablehlo.count_leading_zeros",
    "stablehlo.divide",
    "stablehlo.dynamic_slice",
    "stablehlo.dynamic_update_slice",
    "stablehlo.floor",
    "stablehlo.iota",
    "stablehlo.maximum",
    "stablehlo.minimum",
    "stablehlo.multiply",
    "stablehlo.negate",
    "stablehlo.not",
    "stablehlo.optimization_barrier",
    "stablehlo.or",
    "stablehlo.pad",
    "stablehlo.popcnt",
    "stablehlo.reduce",
    "stablehlo.remainder",
    "stablehlo.reshape",
    "stablehlo.return",
    "stablehlo.reverse",
    "stablehlo.round_nearest_afz",
    "stablehlo.round_nearest_even",
    "stablehlo.rsqrt",
    "stablehlo.select",
    "stablehlo.shift_left",
    "stablehlo.shift_right_arithmetic",
    "stablehlo.shift_right_logical",
    "stablehlo.sign",
    "stablehlo.slice",
    "stablehlo.sqrt",
    "stablehlo.subtract",
    "stablehlo.transpose",
    "stablehlo.while",
    "stablehlo.xor",
];

/// Writes a small loop as a call of one function.
pub(super) fn lower<P: Primitive>(primitive: &P, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    let is_loop_here = !cx.many_devices && !cx.portable && !cx.is_outlining() && !sizes_are_open();
    if !is_loop_here || !quirks::has(cx.platform, "slow-small-loops") || !primitive.programs().into_iter().all(is_small)
    {
        return Ok(None);
    }
    // A conditional over platforms is written by the number of the platform, which an argument of a function loses.
    if args.iter().any(|arg| cx.platform_index(*arg).is_some()) {
        return Ok(None);
    }
    cx.outline(("loop", ATTRIBUTES), args, outs, |cx, args| primitive.lower(cx, args, outs), accepts)
}

/// Returns `true` if all arrays of an iteration are small.
fn is_small(program: &Program) -> bool {
    let (mut equations, mut is_small) = (program.eqns.len(), has_small_arrays(program));
    program.for_each_distinct_eqn(&mut |eqn| {
        equations += eqn.primitive.programs().into_iter().map(|program| program.eqns.len()).sum::<usize>();
        is_small &= eqn.primitive.programs().into_iter().all(has_small_arrays);
    });
    is_small && equations <= MAX_EQUATIONS
}

fn has_small_arrays(program: &Program) -> bool {
    program.avals.iter().all(|aval| size(&aval.shape).saturating_mul(aval.dtype.bits().div_ceil(8)) <= MAX_BYTES)
}

/// Returns `true` if the text contains a loop, and no operation that is slower in one function.
fn accepts(text: &str) -> bool {
    // An operation is written as `"name"(operands)`, and locations are references, which have no names.
    let mut operations = text.match_indices("\"(").map(|(end, _)| text[..end].rsplit('"').next().unwrap_or_default());
    let mut updates = text.lines().filter(|line| line.contains("\"stablehlo.dynamic_update_slice\"("));
    text.contains("\"stablehlo.while\"(")
        && operations.all(|name| OPERATIONS.contains(&name))
        && updates.all(writes_one_row)
}

/// Returns `true` if this `dynamic_update_slice` writes one row. The elements of several rows are computed one after
/// the other if the function computes them where they are written.
fn writes_one_row(line: &str) -> bool {
    let types = line.rsplit_once(" : (").map_or("", |(_, types)| types);
    types.split(", ").nth(1).is_some_and(|update| update.starts_with("tensor<1x"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_found_in_text_with_locations() {
        let text = "    %9:2 = \"stablehlo.while\"(%1, %0) ({\n      %2 = \"stablehlo.add\"(%1, %1) : (tensor<i32>, tensor<i32>) -> tensor<i32> loc(#loc1)\n    }) : (tensor<i32>) -> (tensor<i32>)\n";
        assert!(accepts(text));
        assert!(!accepts(&text.replace("stablehlo.add", "stablehlo.dot_general")));
        assert!(!accepts(&text.replace("stablehlo.while", "stablehlo.add")));
    }

    #[test]
    fn updates_of_several_rows_are_not_accepted() {
        let line = "\"stablehlo.dynamic_update_slice\"(%1, %2, %3) : (tensor<9xf32>, tensor<1xf32>, tensor<i32>) -> tensor<9xf32>";
        assert!(writes_one_row(line));
        assert!(!writes_one_row(&line.replace("<1x", "<3x")));
    }
}
