//! `stop_gradient`, the identity with a zero derivative.

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::core::tree::{self, IntoTree};
use crate::error::Result;
use crate::sharding::UnreducedKind;
use smallvec::{SmallVec, smallvec};

/// The identity with a zero derivative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StopGradient;

impl Primitive for StopGradient {
    fn name(&self) -> &'static str {
        "stop_gradient"
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(smallvec![args[0].clone()])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.like(0)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial()
    }

    fn keeps_unreduced(&self, _kind: UnreducedKind) -> bool {
        true
    }

    fn lower(&self, _cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(args.to_vec())
    }

    fn jvp(&self, args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        // The result is stopped again, because a second derivative goes through this program too.
        Ok((smallvec![bind1(*self, args)], vec![None]))
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((smallvec![bind1(*self, args)], dims.to_vec()))
    }
}

/// Returns the tree and stops gradients from flowing through it: derivatives treat its arrays as constants. Values do not change.
///
/// ```
/// # use shardax::prelude::*;
/// let loss = |x: Array| &x * stop_gradient(x.square());
/// assert_eq!(grad(loss).call(3.0)?.item::<f32>()?, 9.0); // instead of 27
/// assert_eq!(grad(grad(loss)).call(3.0)?.item::<f32>()?, 0.0);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn stop_gradient<T: IntoTree>(x: T) -> T::Tree {
    let _line = crate::source::enter();
    let x = x.into_tree();
    let unchanged = x.clone();
    tree::map(
        |a| {
            if a.is_traced() && a.dtype().is_inexact() { bind1(StopGradient, &[a]) } else { a }
        },
        x,
    )
    .unwrap_or(unchanged)
}
