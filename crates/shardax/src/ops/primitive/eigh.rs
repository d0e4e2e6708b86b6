//! The eigendecomposition of Hermitian matrices.

use smallvec::{SmallVec, smallvec};

use super::gather::{GatherScatterMode, take_along};
use super::matrix::{adjoint, batch_first, eye_like, matrices, product, square, widened, with_last};
use super::unary::{ABS, SQRT, real};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::trace::bind;
use crate::core::program::{Aval, Flops};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::select::where_;

/// The eigendecomposition `a v = v w`: eigenvectors as columns, and eigenvalues in ascending order, of Hermitian
/// matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Eigh;

impl Eigh {
    #[track_caller]
    pub fn apply(self, a: &Array) -> Outputs {
        bind(std::sync::Arc::new(self), std::slice::from_ref(a))
    }
}

/// One step of iterative refinement of eigenvectors and eigenvalues, which squares the error
/// ([Ogita and Aishima, Iterative refinement for symmetric eigenvalue
/// decomposition](https://doi.org/10.1007/s13160-018-0310-3), algorithm 1).
fn refined(a: &Array, v: &Array) -> [Array; 2] {
    let rank = a.ndim();
    let eye = eye_like(a, a.shape()[rank - 1]);
    let is_diagonal = eye.equal(1);
    // The deviations from orthogonality and from diagonality.
    let r = eye - product(&adjoint(v), v);
    let s = product(&adjoint(v), &product(a, v));
    let w = real(&s.last_diagonal(0)) / (-real(&r.last_diagonal(0)) + 1);

    // Eigenvalues that are closer than this are treated as equal.
    let close = (frobenius_norm(&where_(&is_diagonal, 0, &s)) + frobenius_norm(a) * frobenius_norm(&r)) * 2;
    let gaps = w.expand_dims(-2) - w.expand_dims(-1);
    let apart = ABS.apply(&gaps).greater(close) & !is_diagonal;
    let turned = (s + &r * w.expand_dims(-2).astype(a.dtype())) / where_(&apart, &gaps, 1).astype(a.dtype());
    let v = v + product(v, &where_(apart, turned, r * 0.5));
    let order = w.argsort(-1);
    let columns = order.expand_dims(-2).broadcast_to(a.shape());
    let mode = GatherScatterMode::PromiseInBounds;
    [take_along(&v, &columns, rank - 1, mode, true), take_along(&w, &order, rank - 2, mode, true)]
}

/// The Frobenius norm of each matrix, as a matrix of size 1.
fn frobenius_norm(x: &Array) -> Array {
    SQRT.apply(&(ABS.apply(x) * ABS.apply(x)).sum([-2, -1])).expand_dims([-2, -1])
}

impl Primitive for Eigh {
    fn name(&self) -> &'static str {
        "eigh"
    }

    fn output_count(&self) -> usize {
        2
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let n = square("eigh", &args[0])?;
        let dtype = args[0].dtype.real();
        Ok(smallvec![args[0].clone(), Aval { dtype, ..with_last(&args[0], &[n]) }])
    }

    /// The reduction to a tridiagonal matrix, and its vectors; approximate, for each matrix.
    fn flops(&self, args: &[Aval], _outs: &[Aval]) -> Flops {
        matrices(&args[0], |_, n| 9.0 * n * n * n)
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.batch_only(2)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let n = outs[1].shape.last().copied().unwrap_or_default();
        if n < 2 || outs[0].size() == 0 {
            return cx.expand(args, |a| Ok(vec![eye_like(&a[0], n), real(&a[0].last_diagonal(0))]));
        }
        let results = widened(cx, args, outs, |cx, args, outs| {
            // Jacobi's method; reads the lower triangle, sorts the eigenvalues, at most 100 sweeps, with this
            // tolerance.
            let attrs = "call_target_name = \"Eigh\", backend_config = \"1,1,100,1e-6\"";
            let results = cx.op_with("stablehlo.custom_call", args, attrs, Vec::new(), outs);
            if outs[1].dtype != DType::F64 {
                return Ok(results);
            }
            // These eigenvectors are accurate to half of the digits, whatever the tolerance.
            cx.expand(&[args[0], results[0]], |args| {
                let [v, _] = refined(&args[0], &args[1]);
                Ok(refined(&args[0], &v).into())
            })
        })?;
        nan_unless_finite(cx, args[0], &results)
    }

    /// With `x = vᴴ da v`: `dw = diag(x)` and `dv = v (f * x)`, where `f[i, j] = 1 / (w[j] - w[i])`, and 0 on the
    /// diagonal ([Giles, An extended collection of matrix derivative
    /// results](https://people.maths.ox.ac.uk/gilesm/files/NA-08-01.pdf), 3.1).
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let outs = self.apply(&args[0]);
        let Some(da) = &tangents[0] else { return Ok((outs, vec![None; 2])) };
        let (v, w) = (&outs[0], &outs[1]);
        let n = w.shape()[w.ndim() - 1];
        let x = product(&adjoint(v), &product(da, v));
        let diagonal = eye_like(v, n).equal(1);
        let gaps = where_(&diagonal, 1, w.expand_dims(-2) - w.expand_dims(-1)).astype(v.dtype());
        let dv = product(v, &where_(diagonal, 0, &x / gaps));
        let dw = real(&x.last_diagonal(0));
        Ok((outs, vec![Some(dv), Some(dw)]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((self.apply(&batch_first(axis, args, dims)[0]), vec![Some(0); 2]))
    }
}

/// The eigenvectors and eigenvalues `found` of `a`, or NaN for a matrix that is not finite: the methods return finite
/// numbers.
pub(crate) fn nan_unless_finite(cx: &mut Lowering, a: Value, found: &[Value]) -> Result<Vec<Value>> {
    if !cx.has_quirk("finite-eigenvalues-of-nan") {
        return Ok(found.to_vec());
    }
    cx.expand(&[a, found[0], found[1]], |a| {
        let finite = a[0].isfinite().all([-2, -1]);
        let results = [(&a[1], &[-2, -1][..]), (&a[2], &[-1])]
            .map(|(x, axes)| where_(finite.expand_dims(axes), x, f64::NAN).astype(x.dtype()));
        Ok(results.into())
    })
}
