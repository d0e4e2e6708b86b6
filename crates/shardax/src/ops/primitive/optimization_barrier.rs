//! `optimization_barrier`: the compiler computes all of these values before any of them is used.

use smallvec::SmallVec;

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::Aval;
use crate::core::program::trace::bind;
use crate::error::Result;
use crate::interpret::higher_order::{marked, spread_marked};
use crate::shape::AxisSet;
use crate::sharding::UnreducedKind;

/// Results are the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OptimizationBarrier {
    count: usize,
}

impl OptimizationBarrier {
    #[track_caller]
    pub fn apply(args: &[Array]) -> Outputs {
        match args.len() {
            0 => Outputs::new(),
            count => bind(std::sync::Arc::new(OptimizationBarrier { count }), args),
        }
    }
}

/// A barrier of the arrays that are present.
fn barrier_of_some(arrays: &[Option<Array>]) -> Tangents {
    let marks: Vec<bool> = arrays.iter().map(Option::is_some).collect();
    let some: Vec<Array> = marked(arrays, &marks).into_iter().flatten().collect();
    spread_marked(OptimizationBarrier::apply(&some), &marks)
}

impl Primitive for OptimizationBarrier {
    fn name(&self) -> &'static str {
        "optimization_barrier"
    }

    fn output_count(&self) -> usize {
        self.count
    }

    fn casts_operands(&self) -> bool {
        false
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(args.into())
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(args.into())
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        Ok((0..rule.args().len()).map(|i| rule.arg(i)).collect())
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    fn keeps_unreduced(&self, _kind: UnreducedKind) -> bool {
        true
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(cx.op_with("stablehlo.optimization_barrier", args, "", Vec::new(), outs))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((OptimizationBarrier::apply(args), barrier_of_some(tangents)))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        Ok(barrier_of_some(cts))
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((OptimizationBarrier::apply(args), dims.to_vec()))
    }
}
