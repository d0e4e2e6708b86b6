//! The QR decomposition.

use smallvec::{SmallVec, smallvec};

use super::matrix::{adjoint, batch_first, eye_like, matrices, matrix, product, widened, with_last};
use super::triangular_solve::{Op, TriangularSolve};
use super::unary::IMAG;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::trace::bind;
use crate::core::program::{Aval, Flops};
use crate::error::{Result, err};
use crate::ops::constants::zeros_like;
use crate::ops::lax;

/// The QR decomposition `a = q r` of `m` by `n` matrices. The columns of `q` are orthonormal, and `r` is upper triangular. `q`
/// has `m` columns if `full` is set, and otherwise `min(m, n)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Qr {
    pub full: bool,
}

impl Qr {
    #[track_caller]
    pub fn apply(self, a: &Array) -> Outputs {
        bind(std::sync::Arc::new(self), std::slice::from_ref(a))
    }

    /// Returns the number of columns of `q`.
    fn width(self, m: usize, n: usize) -> usize {
        if self.full { m } else { m.min(n) }
    }
}

/// Returns the first `n` entries of the dimension `dim`.
fn first(x: &Array, n: usize, dim: i32) -> Array {
    lax::slice_in_dim(x, 0, n, dim)
}

impl Primitive for Qr {
    fn name(&self) -> &'static str {
        "qr"
    }

    fn output_count(&self) -> usize {
        2
    }

    fn print_params(&self) -> String {
        format!("full_matrices={}", self.full)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (m, n) = matrix("qr", &args[0])?;
        let k = self.width(m, n);
        Ok(smallvec![with_last(&args[0], &[m, k]), with_last(&args[0], &[k, n])])
    }

    /// Counts the operations of Householder's method for each matrix.
    fn flops(&self, args: &[Aval], _outs: &[Aval]) -> Flops {
        matrices(&args[0], |m, n| {
            let k = m.min(n);
            2.0 * k * k * (m.max(n) - k / 3.0)
        })
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.batch_only(2)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let (m, n) = matrix("qr", &cx.aval(args[0]))?;
        if m == 0 || n == 0 {
            return cx.expand(args, |_| {
                let q = first(&eye_like(&Array::zeros_of(&outs[0]), m), self.width(m, n), -1);
                Ok(vec![q, Array::zeros_of(&outs[1])])
            });
        }
        widened(cx, args, outs, |cx, args, outs| {
            // XLA returns `r`, with the reflectors that form `q` below its diagonal, and the factors of the reflectors.
            let packed = cx.aval(args[0]);
            let factors = with_last(&packed, &[m.min(n)]);
            let attrs = "call_target_name = \"Qr\"";
            let packed_and_factors = cx.op_with("stablehlo.custom_call", args, attrs, Vec::new(), &[packed, factors]);
            let k = self.width(m, n);
            let parts = cx.expand(&packed_and_factors[..1], |packed| {
                let mut config = vec![(0, 0, 0); packed[0].ndim()];
                config[packed[0].ndim() - 1].1 = k as i64 - n as i64;
                let zero = Array::zeros_of(&Aval::scalar(packed[0].dtype()));
                Ok(vec![lax::pad(&packed[0], &zero, &config), first(&packed[0].triu(0), k, -2)])
            })?;
            let attrs = "call_target_name = \"ProductOfElementaryHouseholderReflectors\"";
            let q = cx.op("stablehlo.custom_call", &[parts[0], packed_and_factors[1]], attrs, &outs[0]);
            Ok(vec![q, parts[1]])
        })
    }

    /// Let `x = da r⁻¹` and `w = qᴴ x`. Then `dq = x + q (ω - w)` and `dr = (w - ω) r`. The matrix `ω = qᴴ dq` is
    /// skew-Hermitian, and its strictly lower triangle equals the strictly lower triangle of `w`. Its diagonal is the imaginary
    /// part of the diagonal of `w`, so that the diagonal of `r` stays real. See [Walter and Lehmann, Algorithmic
    /// differentiation of linear algebra functions](https://arxiv.org/abs/1001.1654), section 2.1.
    ///
    /// For a wide matrix, these formulas apply to the leading square block. The remaining columns of `r` are `qᴴ` times the
    /// remaining columns of `a`, so their tangent follows from the product rule.
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let a = &args[0];
        let (m, n) = matrix("qr", &a.aval())?;
        if self.full && m > n {
            return Err(err!(
                NotImplemented,
                "the complete QR decomposition of tall matrices cannot be differentiated, got {}",
                a.type_name()
            )
            .help("use the reduced decomposition, `qr`: the other columns of `q` are not unique"));
        }
        let outs = self.apply(a);
        let Some(da) = &tangents[0] else { return Ok((outs, vec![None; 2])) };
        if a.size() == 0 {
            return Ok((outs, vec![None; 2]));
        }
        let (q, r) = (&outs[0], &outs[1]);
        let k = m.min(n);
        let r_square = first(r, k, -1);
        let solve = TriangularSolve { left_side: false, lower: false, op: Op::Plain, unit_diagonal: false };
        let x = solve.apply(&r_square, &first(da, k, -1));
        let w = product(&adjoint(q), &x);
        let lower = w.tril(-1);
        let mut omega = &lower - adjoint(&lower);
        if w.dtype().is_complex() {
            // Keeps the diagonal of `r` real.
            let diagonal = IMAG.apply(&(&w * eye_like(&w, k)));
            omega = omega + lax::complex(&zeros_like(&diagonal), &diagonal);
        }
        let upper = &w - omega;
        let dq = x - product(q, &upper);
        let mut dr = product(&upper, &r_square);
        if m < n {
            // The remaining columns of a wide matrix, by the product rule.
            let [a, da] = [a, da].map(|x| lax::slice_in_dim(x, m, n, -1));
            let remaining = product(&adjoint(&dq), &a) + product(&adjoint(q), &da);
            dr = lax::concatenate(&[dr, remaining], -1);
        }
        Ok((outs, vec![Some(dq), Some(dr)]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((self.apply(&batch_first(axis, args, dims)[0]), vec![Some(0); 2]))
    }
}
