//! The determinant.

use smallvec::{SmallVec, smallvec};

use super::lu::{Lu, UNIT_LOWER, UPPER, permuted};
use super::matrix::{batch_first, eye_like, square, with_last};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::lax;
use crate::ops::promotion::convert;
use crate::ops::select::where_;
use crate::rank_promotion;

/// The determinants of square matrices, from the LU decomposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Det;

impl Det {
    #[track_caller]
    pub fn apply(self, a: &Array) -> Array {
        bind1(self, std::slice::from_ref(a))
    }
}

/// Returns the sign of the permutation in this dtype: 1 if the number of row exchanges is even, otherwise -1.
pub(crate) fn parity(pivots: &Array, dtype: DType) -> Array {
    let identity = lax::iota(DType::I32, pivots.shape(), pivots.ndim() - 1);
    let odd = pivots.not_equal(identity).astype(DType::I32).sum(-1) % 2;
    convert(&(odd * -2 + 1), dtype, dtype.is_wide())
}

/// Returns `true` for matrices of `lu` that have a pivot of 0 before the last one.
fn has_zero_pivot(lu: &Array) -> Array {
    let pivots = lu.last_diagonal(0);
    let n = pivots.shape()[pivots.ndim() - 1];
    lax::slice_in_dim(&pivots, 0, n - 1, -1).abs().greater(0).logical_not().any(-1)
}

/// Multiplies matrices by the reflection `1 - 2 v vᵀ / (vᵀ v)`. The vector has no simple ratios, so that the leading
/// columns of the products are independent unless the rank is too small.
fn columns_mixed(x: &Array) -> Array {
    let _ranks = rank_promotion::allow();
    let n = x.shape()[x.ndim() - 1];
    let v = convert(&lax::iota(DType::F32, &[n], 0), x.dtype(), true).sin() + 1.5;
    let along = (x * &v).sum_keepdims(-1);
    x - along * (&v * 2 / v.square().sum(..))
}

impl Primitive for Det {
    fn name(&self) -> &'static str {
        "det"
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        square("det", &args[0])?;
        Ok(smallvec![with_last(&args[0], &[])])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.batch_only(2)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        cx.expand(args, |a| {
            let lu = Lu.apply(&a[0]);
            Ok(vec![lu[0].last_diagonal(0).prod(-1) * parity(&lu[1], a[0].dtype())])
        })
    }

    /// Differentiates by Jacobi's formula, `tr(adj(a) da)` ([Giles, An extended collection of matrix derivative
    /// results](https://people.maths.ox.ac.uk/gilesm/files/NA-08-01.pdf), 2.2.4).
    ///
    /// The adjugate is computed from the factors: `adj(u) l⁻¹` times the permutation and its sign. The adjugate of `u =
    /// [v w; 0 c]` is `det(v) [c v⁻¹, -v⁻¹ w; 0, 1]`, which also holds if the last pivot `c` is 0.
    ///
    /// If an earlier pivot is 0, the columns are mixed by a reflection `q` of determinant -1, so that only the last pivots
    /// are 0: `tr(adj(a) da) = -tr(adj(a q) da q)`. If more than one of them is 0, the adjugate is 0.
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = self.apply(&args[0]);
        let Some(da) = &tangents[0] else { return Ok((smallvec![out], vec![None])) };
        let is_mixed = has_zero_pivot(&Lu.apply(&args[0])[0]);
        let for_matrices = is_mixed.expand_dims([-2, -1]);
        let [a, da] = [&args[0], da].map(|x| where_(&for_matrices, columns_mixed(x), x));
        let lu = Lu.apply(&a);
        let (u, rank) = (&lu[0], lu[0].ndim());
        let n = u.shape()[rank - 1];
        let row = lax::iota(DType::I32, u.shape(), rank - 2);
        let is_last = row.equal(n as i32 - 1);
        let is_diagonal = eye_like(u, n).equal(1);
        let pivots = where_(&is_diagonal & &is_last, 1, u).last_diagonal(0);
        let c = lax::slice_in_dim(&u.last_diagonal(0), n - 1, n, -1).expand_dims(-1);
        let x = UNIT_LOWER.apply(u, &permuted(&da, &lu[2]));
        let solvable = where_(is_diagonal & (&is_last | u.equal(0)), 1, u);
        let x = UPPER.apply(&solvable, &where_(is_last, &x, &x * c));
        let trace = x.last_diagonal(0).sum(-1);
        let sign = where_(is_mixed, -1, 1) * parity(&lu[1], u.dtype());
        Ok((smallvec![out], vec![Some(trace * (pivots.prod(-1) * sign))]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((smallvec![self.apply(&batch_first(axis, args, dims)[0])], vec![Some(0)]))
    }
}
