//! The Cholesky decomposition.

use smallvec::{SmallVec, smallvec};

use super::matrix::{batch_first, matrices, product, square, widened};
use super::triangular_solve::{Op, TriangularSolve};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::trace::bind1;
use crate::core::program::{Aval, Flops};
use crate::dtype::Scalar;
use crate::error::Result;
use crate::ops::elementwise::complex;
use crate::ops::select::where_;

/// The lower triangular `l` with `l lᴴ = a`, for Hermitian matrices, reading the lower triangle; NaN unless they
/// are positive definite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cholesky;

impl Cholesky {
    #[track_caller]
    pub fn apply(self, a: &Array) -> Array {
        bind1(self, std::slice::from_ref(a))
    }
}

impl Primitive for Cholesky {
    fn name(&self) -> &'static str {
        "cholesky"
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        square("cholesky", &args[0])?;
        Ok(smallvec![args[0].clone()])
    }

    /// A third of the cubed size, for each matrix.
    fn flops(&self, args: &[Aval], _outs: &[Aval]) -> Flops {
        matrices(&args[0], |_, n| n * n * n / 3.0)
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.batch_only(2)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        if outs[0].size() == 0 {
            return Ok(args.to_vec());
        }
        widened(cx, args, outs, |cx, args, outs| {
            let l = cx.op("stablehlo.cholesky", args, "lower = true", &outs[0]);
            // The elements above the diagonal are unspecified.
            cx.expand(&[l], |l| Ok(vec![with_nan(&l[0]).tril(0)]))
        })
    }

    /// `dl = l Φ(l⁻¹ da l⁻ᴴ)`, where `Φ` takes the lower triangle and half of the diagonal: equation 8 of
    /// [Murray, Differentiation of the Cholesky decomposition](https://arxiv.org/abs/1602.07527).
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let l = self.apply(&args[0]);
        let tangent = tangents[0].as_ref().map(|da| {
            let solve = TriangularSolve { left_side: true, lower: true, op: Op::Plain, unit_diagonal: false };
            let right = TriangularSolve { left_side: false, op: Op::Adjoint, ..solve };
            let inner = right.apply(&l, &solve.apply(&l, da));
            // Cotangents above the diagonal must not reach the product, because 0 times infinity is NaN.
            product(&l, &((inner.tril(0) + inner.tril(-1)) * 0.5)).tril(0)
        });
        Ok((smallvec![l], vec![tangent]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((smallvec![self.apply(&batch_first(axis, args, dims)[0])], vec![Some(0)]))
    }
}

/// Makes the factor of a matrix that is not positive definite NaN. XLA computes the columns before the first diagonal element
/// that is zero, and marks complex factors by a real part of NaN and an imaginary part of 0.
fn with_nan(l: &Array) -> Array {
    let real = l.dtype().real();
    let nan = Array::literal(Scalar::float(f64::NAN), real, false);
    let nan = if l.dtype().is_complex() { complex(&nan, &nan) } else { nan };
    // NaN is not greater than zero either.
    let is_definite = l.diagonal(0, -2, -1).real().greater(Array::literal(Scalar::float(0.0), real, false));
    let is_definite = is_definite.all(-1).expand_dims([-2, -1]);
    where_(is_definite, l, nan)
}
