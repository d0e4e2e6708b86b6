//! The solution of triangular linear systems.

use smallvec::{SmallVec, smallvec};

use super::add_tangents;
use super::matrix::{adjoint, batch_first, product, square_of_inexact, widened};
use super::unary::conj;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Operand, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::trace::bind1;
use crate::core::program::{Aval, Flops};
use crate::error::{Result, err};

/// The transformation of a matrix before the solve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Plain,
    Transpose,
    Adjoint,
}

impl Op {
    pub(crate) fn of(self, a: &Array) -> Array {
        match self {
            Op::Plain => a.clone(),
            Op::Transpose => a.mt(),
            Op::Adjoint => adjoint(a),
        }
    }
}

/// Solves `op(a) x = b`, or `x op(a) = b` if `left_side` is false. Only one triangle of `a` is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TriangularSolve {
    pub left_side: bool,
    pub lower: bool,
    pub op: Op,
    /// Assumes a diagonal of ones, and does not read the diagonal.
    pub unit_diagonal: bool,
}

impl TriangularSolve {
    #[track_caller]
    pub fn apply(self, a: &Array, b: &Array) -> Array {
        bind1(self, &[a.clone(), b.clone()])
    }

    pub(crate) fn attrs(self) -> String {
        let op = match self.op {
            Op::Plain => "NO_TRANSPOSE",
            Op::Transpose => "TRANSPOSE",
            Op::Adjoint => "ADJOINT",
        };
        format!(
            "left_side = {}, lower = {}, unit_diagonal = {}, transpose_a = #stablehlo<transpose {op}>",
            self.left_side, self.lower, self.unit_diagonal
        )
    }

    /// Returns the triangle that is read.
    fn triangle(self, a: &Array) -> Array {
        let k = self.unit_diagonal as i32;
        if self.lower { a.tril(-k) } else { a.triu(k) }
    }

    /// Returns the operands in a program that the compiler partitions. The rows depend on each other, so only
    /// right-hand sides and entire matrices can be sharded.
    pub(crate) fn with_replicated_rows(self, cx: &mut Lowering, args: &[Value]) -> [Value; 2] {
        let rank = cx.shape(args[0]).len();
        let of_b = if self.left_side { rank - 2 } else { rank - 1 };
        [cx.with_replicated_dims(args[0], &[rank - 2, rank - 1]), cx.with_replicated_dims(args[1], &[of_b])]
    }
}

impl Primitive for TriangularSolve {
    fn name(&self) -> &'static str {
        "triangular_solve"
    }

    fn print_params(&self) -> String {
        let TriangularSolve { left_side, lower, op, unit_diagonal } = self;
        format!("left_side={left_side} lower={lower} op={op:?} unit_diagonal={unit_diagonal}")
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (a, b) = (&args[0], &args[1]);
        let n = square_of_inexact("triangular_solve", a)?;
        if a.dtype != b.dtype {
            return Err(err!(Type, "triangular_solve requires arguments to have the same dtypes, got {a} and {b}")
                .help("convert one of them with `astype`"));
        }
        let fits = a.rank() == b.rank()
            && a.shape[..a.rank() - 2] == b.shape[..b.rank() - 2]
            && b.shape[b.rank() - if self.left_side { 2 } else { 1 }] == n;
        if !fits {
            let expected = if self.left_side { "[..., n, k]" } else { "[..., k, n]" };
            return Err(err!(Type, "triangular_solve got matrices {a} and incompatible right-hand sides {b}")
                .help(format!("for matrices [..., n, n] they are {expected}, with the same leading dimensions")));
        }
        Ok(smallvec![Aval { weak: a.weak && b.weak, ..b.clone() }])
    }

    /// Counts a multiply-add for each element of the right-hand side and half of the matrix's rows.
    fn flops(&self, args: &[Aval], outs: &[Aval]) -> Flops {
        let rows = args[0].shape.last().copied().unwrap_or(0) as f64;
        Flops::from_matmuls(rows * outs[0].size() as f64)
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        let rank = rule.args()[0].rank();
        let (rows, columns) = (rank - 2, rank - 1);
        // `summed` is the dimension of `a` that is summed over. `solved` is the dimension of `b` that is solved for,
        // and `free` the other one.
        let is_transposed = self.op != Op::Plain;
        let summed = if self.left_side != is_transposed { columns } else { rows };
        let (solved, free) = if self.left_side { (rows, columns) } else { (columns, rows) };
        rule.check_unsharded(0, [summed])?;
        rule.check_unsharded(1, [solved])?;
        let (from_a, from_b) = (rule.entry(0, rows + columns - summed), rule.entry(1, free));
        if let Some(axis) = from_a.axes().iter().find(|axis| from_b.axes().contains(axis)) {
            return Err(rule.error(
                format_args!("both dimensions of the result would be sharded over {axis:?}, for {}", rule.types()),
                "reshard the operands over different axes with `reshard(x, spec)`",
            ));
        }
        let matrix = if self.left_side { [from_a, from_b] } else { [from_b, from_a] };
        rule.dims(rule.batches(|_| 2)?.into_iter().chain(matrix))
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        if outs[0].size() == 0 {
            return Ok(vec![args[1]]);
        }
        let args = self.with_replicated_rows(cx, args);
        widened(cx, &args, outs, |cx, args, outs| {
            Ok(vec![cx.op("stablehlo.triangular_solve", args, &self.attrs(), &outs[0])])
        })
    }

    /// Differentiates `op(a) x = b` as `op(a) dx = db - op(da) x` ([Giles, An extended collection of matrix derivative
    /// results](https://people.maths.ox.ac.uk/gilesm/files/NA-08-01.pdf), 2.3.1).
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let x = self.apply(&args[0], &args[1]);
        let from_a = tangents[0].as_ref().map(|da| {
            let da = self.op.of(&self.triangle(da));
            -if self.left_side { product(&da, &x) } else { product(&x, &da) }
        });
        let rhs = add_tangents(from_a, tangents[1].clone());
        Ok((smallvec![x], vec![rhs.map(|rhs| self.apply(&args[0], &rhs))]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let a = args[0].value()?;
        // The transpose has no conjugation.
        let (a, op) = match self.op {
            Op::Plain => (a.clone(), Op::Transpose),
            Op::Transpose => (a.clone(), Op::Plain),
            Op::Adjoint => (conj(a), Op::Plain),
        };
        let back = TriangularSolve { op, ..*self };
        Ok(vec![None, cts[0].as_ref().map(|ct| back.apply(&a, ct))])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if let (None, Some(d)) = (dims[0], dims[1]) {
            let (x, at) = solve_together(&args[1], d, self.left_side, |b| self.apply(&args[0], b));
            return Ok((smallvec![x], vec![Some(at)]));
        }
        let args = batch_first(axis, args, dims);
        Ok((smallvec![self.apply(&args[0], &args[1])], vec![Some(0)]))
    }
}

/// Solves for batched right-hand sides of one matrix by placing them next to each other (below each other if the matrix
/// is on the right). Also returns the position of the batch.
pub(crate) fn solve_together(
    b: &Array,
    dim: usize,
    left_side: bool,
    solve: impl FnOnce(&Array) -> Array,
) -> (Array, usize) {
    let last_dim = b.ndim() - 1;
    let position = if left_side { last_dim } else { last_dim - 2 };
    let moved = b.moveaxis(dim as i32, position as i32);
    let spread = moved.shape_owned();
    let mut joined = spread.clone();
    let joined_dim = if left_side { last_dim - 1 } else { last_dim - 2 };
    joined[joined_dim] *= joined.remove(joined_dim + 1);
    (solve(&moved.reshape(joined.as_slice())).reshape(spread.as_slice()), position)
}
