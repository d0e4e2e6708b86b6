//! The LU decomposition with partial pivoting, and solution of linear systems with it.

use smallvec::{SmallVec, smallvec};

use super::add_tangents;
use super::gather::{GatherScatterMode, take_along};
use super::matrix::{batch_first, matrices, matrix, part, product, square_of_inexact, widened, with_last};
use super::triangular_solve::{Op, TriangularSolve, solve_together};
use super::unary::{ABS, IMAG, REAL};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Operand, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::trace::{bind, bind1};
use crate::core::program::{Aval, Flops};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::control_flow::fori_loop;
use crate::ops::lax;
use crate::ops::select::where_;

/// The decomposition `a[permutation] = l u`: both triangles in one matrix (without the unit diagonal of `l`), the row
/// that each row was exchanged with, and the permutation of the rows that is the product of all exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lu;

/// The number of columns eliminated one by one before the rest of the matrix is updated.
const BLOCK: usize = 128;

impl Lu {
    #[track_caller]
    pub fn apply(self, a: &Array) -> Outputs {
        bind(std::sync::Arc::new(self), std::slice::from_ref(a))
    }
}

/// Solves with the lower triangle, with a unit diagonal.
pub(crate) const UNIT_LOWER: TriangularSolve =
    TriangularSolve { left_side: true, lower: true, op: Op::Plain, unit_diagonal: true };
/// Solves with the upper triangle.
pub(crate) const UPPER: TriangularSolve =
    TriangularSolve { left_side: true, lower: false, op: Op::Plain, unit_diagonal: false };

/// Permutes the rows.
pub(crate) fn permuted(x: &Array, permutation: &Array) -> Array {
    let rank = x.ndim();
    let dims: Vec<usize> = (0..rank - 1).collect();
    let indices = permutation.broadcast_in_dim(x.shape(), &dims);
    take_along(x, &indices, rank - 2, GatherScatterMode::PromiseInBounds, true)
}

/// The criterion for the largest pivot: for complex numbers the sum of both parts' absolute values, as in LAPACK.
fn size(x: &Array) -> Array {
    if x.dtype().is_complex() { ABS.apply(&REAL.apply(x)) + ABS.apply(&IMAG.apply(x)) } else { ABS.apply(x) }
}

/// Completes a matrix with `k` rows or columns to `size` rows and columns, with ones on the added diagonal.
fn completed(x: &Array, size: usize, k: usize) -> Array {
    let rank = x.ndim();
    let mut config = vec![(0, 0, 0); rank];
    for d in [rank - 2, rank - 1] {
        config[d].1 = (size - x.shape()[d]) as i64;
    }
    let zero = Array::zeros_of(&Aval::scalar(x.dtype()));
    let diagonal = super::matrix::eye_like(x, size);
    let is_added = lax::iota(DType::I32, diagonal.shape(), rank - 1).greater_equal(k as i32);
    lax::pad(x, &zero, &config) + where_(is_added, diagonal, 0)
}

/// The decomposition column by column.
fn unblocked(a: &Array) -> Result<[Array; 3]> {
    let rank = a.ndim();
    let (batch, m, n) = (&a.shape()[..rank - 2], a.shape()[rank - 2], a.shape()[rank - 1]);
    let (row, column) = (lax::iota(DType::I32, a.shape(), rank - 2), lax::iota(DType::I32, a.shape(), rank - 1));
    let steps = m.min(n);
    let places = lax::iota(DType::I32, &[batch, &[m]].concat(), rank - 2);
    let pivots = lax::iota(DType::I32, &[batch, &[steps]].concat(), rank - 2);
    let step = |k: Array, (a, pivots, permutation): (Array, Array, Array)| {
        // The largest element on and below the diagonal.
        let below = where_(row.greater_equal(&k) & column.equal(&k), size(&a), -1).max(-1);
        let pivot = below.argmax(-1).expand_dims(-1);
        // Exchanges its row with row k.
        let (is_pivot_row, is_row_k) = (row.equal(pivot.expand_dims(-1)), row.equal(&k));
        let [upper, lower] = [&is_pivot_row, &is_row_k].map(|is_row| where_(is_row, &a, 0).sum_keepdims(-2));
        let a = where_(is_row_k, &upper, where_(is_pivot_row, &lower, a));
        let (is_pivot, is_k) = (places.equal(&pivot), places.equal(&k));
        let [at_pivot, at_k] = [&is_pivot, &is_k].map(|is_place| where_(is_place, &permutation, 0).sum_keepdims(-1));
        let permutation = where_(is_k, at_pivot, where_(is_pivot, at_k, permutation));
        let index = lax::iota(DType::I32, pivots.shape(), rank - 2);
        let pivots = where_(index.equal(&k), &pivot, pivots);
        // A column of zeros needs no elimination.
        let diagonal = where_(row.equal(&k) & column.equal(&k), &a, 0).sum_keepdims(-1).sum_keepdims(-2);
        let divisor = where_(diagonal.equal(0), 1, diagonal);
        let factors = where_(row.greater(&k) & column.equal(&k), &a / divisor, 0).sum_keepdims(-1);
        let eliminated = &a - &factors * &upper;
        let below_k = where_(column.greater(&k), eliminated, where_(column.equal(&k), factors, &a));
        let a = where_(row.greater(&k), below_k, &a);
        (a, pivots, permutation)
    };
    let (a, pivots, permutation) = fori_loop(0, steps as i32, step, (a.clone(), pivots, places.clone()))?;
    Ok([a, pivots, permutation])
}

/// The decomposition by blocks of columns, so that most of the work is matrix multiplication.
fn blocked(a: &Array) -> Result<[Array; 3]> {
    let rank = a.ndim();
    let (m, n) = (a.shape()[rank - 2], a.shape()[rank - 1]);
    let steps = m.min(n);
    if steps <= BLOCK {
        return unblocked(a);
    }
    let mut a = a.clone();
    let mut pivots = Vec::new();
    let mut permutation = lax::iota(DType::I32, &[&a.shape()[..rank - 2], &[m]].concat(), rank - 2);
    // Decomposes a panel of columns, applies its permutation to the columns on both sides, and eliminates the panel from
    // the columns on its right.
    for k in (0..steps).step_by(BLOCK) {
        let end = (k + BLOCK).min(steps);
        let [panel, panel_pivots, order] = unblocked(&part(&a, k..m, k..end))?;
        pivots.push(panel_pivots + k as i32);
        let (finished, moved) = (lax::slice_in_dim(&permutation, 0, k, -1), lax::slice_in_dim(&permutation, k, m, -1));
        let moved = take_along(&moved, &order, rank - 2, GatherScatterMode::PromiseInBounds, true);
        permutation = lax::concatenate(&[finished, moved], -1);
        let left_part = permuted(&part(&a, k..m, 0..k), &order);
        let right = permuted(&part(&a, k..m, end..n), &order);
        let width = end - k;
        let top = UNIT_LOWER.apply(&part(&panel, 0..width, 0..width), &part(&right, 0..width, 0..n - end));
        let below = part(&right, width..m - k, 0..n - end) - product(&part(&panel, width..m - k, 0..width), &top);
        let right = lax::concatenate(&[top, below], -2);
        let rows = lax::concatenate(&[left_part, panel, right], -1);
        a = lax::concatenate(&[part(&a, 0..k, 0..n), rows], -2);
    }
    Ok([a, lax::concatenate(&pivots, -1), permutation])
}

impl Primitive for Lu {
    fn name(&self) -> &'static str {
        "lu"
    }

    fn output_count(&self) -> usize {
        3
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (m, n) = matrix("lu", &args[0])?;
        let [pivots, permutation] =
            [m.min(n), m].map(|len| with_last(&args[0], &[len]).with_dtype(DType::I32).strip_weak_type());
        Ok(smallvec![args[0].clone(), pivots, permutation])
    }

    /// The elimination, for each matrix.
    fn flops(&self, args: &[Aval], _outs: &[Aval]) -> Flops {
        matrices(&args[0], |m, n| {
            let k = m.min(n);
            k * k * (m.max(n) - k / 3.0)
        })
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.batch_only(2)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        widened(cx, args, outs, |cx, args, _| {
            cx.expand(args, |a| {
                if a[0].size() > 0 {
                    return Ok(blocked(&a[0])?.into());
                }
                let [pivots, permutation] =
                    [&outs[1], &outs[2]].map(|aval| lax::iota(DType::I32, &aval.shape, aval.rank() - 1));
                Ok(vec![a[0].clone(), pivots, permutation])
            })
        })
    }

    /// With `x = l⁻¹ da u⁻¹`: `dl = l tril(x, -1)` and `du = triu(x) u`, where `l` and `u` are completed to square
    /// matrices by ones on the diagonal. This follows from `da = dl u + l du`, because `l⁻¹ dl` is strictly lower
    /// triangular and `du u⁻¹` is upper triangular.
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let outs = self.apply(&args[0]);
        let Some(da) = &tangents[0] else { return Ok((outs, vec![None; 3])) };
        let (lu, rank) = (&outs[0], outs[0].ndim());
        let (m, n) = (lu.shape()[rank - 2], lu.shape()[rank - 1]);
        let k = m.min(n);
        let l = completed(&part(lu, 0..m, 0..k).tril(-1), m, k);
        let l = where_(super::matrix::eye_like(lu, m).equal(1), 1, l);
        let u = completed(&part(lu, 0..k, 0..n).triu(0), n, k);
        let x = UNIT_LOWER.apply(&l, &permuted(da, &outs[2]));
        let x = TriangularSolve { left_side: false, ..UPPER }.apply(&u, &x);
        let tangent = product(&l, &x.tril(-1)) + product(&x.triu(0), &u);
        Ok((outs, vec![Some(tangent), None, None]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((self.apply(&batch_first(axis, args, dims)[0]), vec![Some(0); 3]))
    }
}

/// Solves `a x = b`, or `aᵀ x = b`, with `lu` and `permutation` of `a`. Its derivative is the derivative of the
/// solution and uses the same decomposition, so these two operands have no tangents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Solve {
    pub transpose: bool,
}

impl Solve {
    #[track_caller]
    pub fn apply(self, a: &Array, lu: &Array, permutation: &Array, b: &Array) -> Array {
        bind1(self, &[a.clone(), lu.clone(), permutation.clone(), b.clone()])
    }
}

impl Primitive for Solve {
    fn name(&self) -> &'static str {
        "linear_solve"
    }

    fn print_params(&self) -> String {
        format!("transpose={}", self.transpose)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        square_of_inexact("linear_solve", &args[0])?;
        Ok(smallvec![Aval { weak: args[0].weak && args[3].weak, ..args[3].clone() }])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        // Each matrix, its factors and permutation, and its right hand sides.
        rule.check_batches(&[2, 2, 1, 2], 3)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        if outs[0].size() == 0 {
            return Ok(vec![args[3]]);
        }
        widened(cx, &args[1..], outs, |cx, args, _| {
            cx.expand(args, |args| {
                let [lu, permutation, b] = args else { return Ok(Vec::new()) };
                Ok(vec![if !self.transpose {
                    UPPER.apply(lu, &UNIT_LOWER.apply(lu, &permuted(b, permutation)))
                } else {
                    let op = Op::Transpose;
                    let y = TriangularSolve { op, ..UPPER }.apply(lu, b);
                    let x = TriangularSolve { op, ..UNIT_LOWER }.apply(lu, &y);
                    permuted(&x, &permutation.argsort(-1))
                }])
            })
        })
    }

    /// From `a x = b`: `a dx = db - da x`
    /// ([Giles, An extended collection of matrix derivative
    /// results](https://people.maths.ox.ac.uk/gilesm/files/NA-08-01.pdf), 2.3.1).
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let [a, lu, permutation, b] = args else { return Ok((SmallVec::new(), Vec::new())) };
        let x = self.apply(a, lu, permutation, b);
        let from_a = tangents[0].as_ref().map(|da| -product(&if self.transpose { da.mt() } else { da.clone() }, &x));
        let rhs = add_tangents(from_a, tangents[3].clone());
        Ok((smallvec![x], vec![rhs.map(|rhs| self.apply(a, lu, permutation, &rhs))]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let (a, lu, permutation) = (args[0].value()?, args[1].value()?, args[2].value()?);
        let back = Solve { transpose: !self.transpose };
        let ct = cts[0].as_ref().map(|ct| back.apply(a, lu, permutation, ct));
        Ok(vec![None, None, None, ct])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if let ([None, None, None, Some(d)], [a, lu, permutation, b]) = (dims, args) {
            let (x, at) = solve_together(b, *d, true, |b| self.apply(a, lu, permutation, b));
            return Ok((smallvec![x], vec![Some(at)]));
        }
        let args = batch_first(axis, args, dims);
        Ok((smallvec![bind1(*self, &args)], vec![Some(0)]))
    }
}
