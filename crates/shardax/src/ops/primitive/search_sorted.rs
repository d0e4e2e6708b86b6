//! The positions of values among the elements of an ascending array.

use smallvec::{SmallVec, smallvec};

use super::binary::Compare;
use super::elementwise_rules::Accepts;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::trace::{bind1, trace};
use crate::core::program::{Aval, Flops};
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::interpret::batching::batch_eval;
use crate::ops::constants::filled;
use crate::ops::select::where_;

/// `search_sorted(sorted, values)`: the number of elements of an ascending vector that are less than each value, or
/// equal to it with `counts_equal`. NaN is greater than all numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SearchSorted {
    pub counts_equal: bool,
}

impl SearchSorted {
    #[track_caller]
    pub fn apply(self, sorted: &Array, values: &Array) -> Array {
        bind1(self, &[sorted.clone(), values.clone()])
    }

    /// The search in terms of simpler operations: a bisection of all values at once.
    fn expand(self, sorted: &Array, values: &Array) -> Array {
        let n = sorted.shape()[0];
        let mut count = filled(values.shape(), Scalar::Int(0), DType::for_indices(&[n]));
        // More than 2³¹ elements need 64 bits.
        let mut step: i64 = if n == 0 { 0 } else { 1 << n.ilog2() };
        while step > 0 {
            let more = &count + Array::literal(Scalar::Int(step.into()), count.dtype(), true);
            let probe = sorted.get(&more - 1);
            let mut before = if self.counts_equal { probe.less_equal(values) } else { probe.less(values) };
            if values.dtype().is_float() {
                // Comparisons with NaN are false, but all numbers sort before NaN.
                let nan = is_nan(values);
                before |= if self.counts_equal { nan } else { nan & !is_nan(&probe) };
            }
            count = where_(before & more.less_equal(n), &more, &count);
            step /= 2;
        }
        count
    }
}

fn is_nan(x: &Array) -> Array {
    Compare::Ne.apply(x, x)
}

impl Primitive for SearchSorted {
    fn name(&self) -> &'static str {
        "search_sorted"
    }

    fn print_params(&self) -> String {
        format!("counts_equal={}", self.counts_equal)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let [sorted, values] = args else {
            return Err(err!(Type, "search_sorted takes 2 operands, got {}", args.len()));
        };
        if sorted.rank() != 1 || sorted.dtype != values.dtype {
            return Err(err!(Type, "search_sorted needs a vector and values of its dtype, got {sorted} and {values}"));
        }
        Accepts::Real.check("searchsorted", sorted.dtype)?;
        Ok(smallvec![Aval::new(DType::for_indices(&sorted.shape), values.shape.clone())])
    }

    fn flops(&self, _args: &[Aval], outs: &[Aval]) -> Flops {
        Flops::from_elements(outs)
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.check_unsharded(0, [0])?;
        rule.like(1)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_reduced()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        cx.expand(args, |args| Ok(vec![self.expand(&args[0], &args[1])]))
    }

    /// Positions are integers, so that they have no tangents.
    fn jvp(&self, args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0], &args[1])], vec![None]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if dims[0].is_none() {
            return Ok((smallvec![self.apply(&args[0], &args[1])], vec![dims[1]]));
        }
        // A search in several vectors is the batched bisection.
        let entries: Vec<Aval> = args
            .iter()
            .zip(dims)
            .map(|(arg, dim)| {
                let mut shape = arg.shape_owned();
                dim.map(|dim| shape.remove(dim));
                Aval::new(arg.dtype(), shape)
            })
            .collect();
        let expanded = trace(&entries, |args| Ok(vec![self.expand(&args[0], &args[1])]))?;
        let (outs, dims) = batch_eval(&expanded.program, axis, args, dims)?;
        Ok((outs.into(), dims))
    }
}
