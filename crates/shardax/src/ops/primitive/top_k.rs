//! The largest elements of each row, and their indices.

use smallvec::{SmallVec, smallvec};

use super::elementwise_rules::Accepts;
use super::gather::{GatherScatterMode, take_along};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::bind;
use crate::dtype::DType;
use crate::error::{Result, err};

/// The `k` largest elements along the last dimension, in descending order, and their indices. Of equal elements, the
/// first comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TopK {
    pub k: usize,
}

impl TopK {
    #[track_caller]
    pub fn apply(self, x: &Array) -> Outputs {
        bind(std::sync::Arc::new(self), std::slice::from_ref(x))
    }
}

impl Primitive for TopK {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn output_count(&self) -> usize {
        2
    }

    fn print_params(&self) -> String {
        format!("k={}", self.k)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Accepts::Real.check("top_k", args[0].dtype)?;
        let Some(&n) = args[0].shape.last() else {
            return Err(err!(Type, "top_k operand must have at least one dimension, got {}", args[0])
                .help("add a dimension with `x.reshape([1])`"));
        };
        if self.k > n {
            return Err(err!(
                Value,
                "top_k argument k={} must be no larger than the last dimension of {}",
                self.k,
                args[0]
            )
            .help("use a `k` of at most the size of the last dimension"));
        }
        if DType::for_indices(&[n]) != DType::I32 {
            return Err(err!(Value, "top_k of {} has indices that do not fit int32", args[0]).help(
                "take the first of a sort, or reshape the last dimension to parts of at most 2147483647 elements",
            ));
        }
        // The indices are not differentiated, so they have no sharding of their own beyond the varying axes.
        let mut shape = args[0].shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = self.k;
        }
        let indices = Aval { vma: args[0].vma.clone(), ..Aval::new(DType::I32, shape.clone()) };
        Ok(smallvec![args[0].with_shape(shape), indices])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.check_unsharded(0, rule.args()[0].rank().checked_sub(1))?;
        rule.like(0)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_reduced()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(cx.op_with("chlo.top_k", args, &format!("k = {} : i64", self.k), Vec::new(), outs))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let outs = self.apply(&args[0]);
        let axis = args[0].ndim().saturating_sub(1);
        let tangent =
            tangents[0].as_ref().map(|t| take_along(t, &outs[1], axis, GatherScatterMode::PromiseInBounds, true));
        Ok((outs, vec![tangent, None]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((self.apply(&axis.moved(&args[0], dims[0], 0)), vec![Some(0), Some(0)]))
    }
}
