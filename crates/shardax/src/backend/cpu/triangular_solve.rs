//! Triangular systems on CPU, by substitution as in LAPACK. The plugin's operation (xla-cpu-pjrt 0.0.1) multiplies by
//! inverted blocks, so a NaN in the last row of `b` or a zero on the diagonal makes the entire solution NaN. Checked by
//! `triangular_solves_keep_nan_in_its_place`.

use crate::backend::rules::Lowered;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::error::Result;
use crate::ops::control_flow::fori_loop;
use crate::ops::lax;
use crate::ops::primitive::matrix::{part, product, widened};
use crate::ops::primitive::triangular_solve::{Op, TriangularSolve};

/// The number of rows solved one by one before the rest is updated.
const BLOCK: usize = 128;

pub(super) fn lower(of: &TriangularSolve, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if outs[0].size() == 0 {
        return Ok(None);
    }
    let args = of.with_replicated_rows(cx, args);
    widened(cx, &args, outs, |cx: &mut Lowering, args: &[Value], outs: &[Aval]| {
        #[cfg(feature = "decompositions")]
        if let Some(x) = super::kernels::decompositions::lower_triangular_solve(*of, cx, args, outs) {
            return Ok(x);
        }
        if cx.has_quirk("triangular-solve-spreads-nan") {
            cx.expand(args, |args| Ok(vec![substitute(of, &args[0], &args[1])?]))
        } else {
            Ok(vec![cx.op("stablehlo.triangular_solve", args, &of.attrs(), &outs[0])])
        }
    })
    .map(Some)
}

/// Solves `op(a) x = b`, or `x op(a) = b`.
fn substitute(of: &TriangularSolve, a: &Array, b: &Array) -> Result<Array> {
    let (a, b) = if of.left_side {
        (of.op.of(a), b.clone())
    } else {
        // After the transposition, `a` is on the left.
        (of.op.of(a).mt(), b.mt())
    };
    let lower = of.lower ^ (of.op != Op::Plain) ^ !of.left_side;
    let x = by_blocks(&a, &b, lower, of.unit_diagonal)?;
    Ok(if of.left_side { x } else { x.mt() })
}

/// Solves `a x = b` recursively by halves, so that most of the work is matrix multiplication.
fn by_blocks(a: &Array, b: &Array, lower: bool, unit: bool) -> Result<Array> {
    let (n, columns) = (b.shape()[b.ndim() - 2], b.shape()[b.ndim() - 1]);
    if n <= BLOCK {
        return by_rows(a, b, lower, unit);
    }
    let halves = [0..n / 2, n / 2..n];
    let [first, second] = if lower { [0, 1] } else { [1, 0] }.map(|i: usize| halves[i].clone());
    let solve =
        |rows: &std::ops::Range<usize>, b: &Array| by_blocks(&part(a, rows.clone(), rows.clone()), b, lower, unit);
    let x = solve(&first, &part(b, first.clone(), 0..columns))?;
    let remaining = part(b, second.clone(), 0..columns) - product(&part(a, second.clone(), first), &x);
    let y = solve(&second, &remaining)?;
    Ok(lax::concatenate(&if lower { [x, y] } else { [y, x] }, -2))
}

/// Solves `a x = b` row by row.
fn by_rows(a: &Array, b: &Array, lower: bool, unit: bool) -> Result<Array> {
    let off_diagonal = if lower { a.tril(-1) } else { a.triu(1) };
    let diagonal = a.last_diagonal(0).expand_dims(-1);
    let last = b.shape()[b.ndim() - 2] as i32 - 1;
    fori_loop(
        0,
        last + 1,
        |k: Array, x: Array| {
            let i = if lower { k } else { last - k };
            let remainder = row(b, &i) - product(&row(&off_diagonal, &i), &x);
            let solved = match (unit, b.dtype().is_complex()) {
                (true, _) => remainder,
                (false, false) => remainder / row(&diagonal, &i),
                // The quotient of infinities would be infinite, while LAPACK's product is NaN.
                (false, true) => remainder * (1 / row(&diagonal, &i)),
            };
            lax::dynamic_update_slice_in_dim(&x, &solved, &i, -2)
        },
        Array::zeros_of(&b.aval()),
    )
}

fn row(matrix: &Array, i: &Array) -> Array {
    lax::dynamic_slice_in_dim(matrix, i, 1, -2)
}
