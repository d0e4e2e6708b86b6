//! The softmax. Its derivative only needs its result, `y * (t - sum(y * t))`: there is only one residual,
//! and the gradient reads memory half as often as the derivatives of the parts would.

use smallvec::{SmallVec, smallvec};

use super::elementwise_rules::Accepts;
use super::reduce::in_accumulator;
use super::stop_gradient::stop_gradient;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::trace::bind1;
use crate::core::program::{Aval, Flops};
use crate::error::Result;

/// `exp(x) / sum(exp(x))` over these axes of floating point.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Softmax {
    pub axes: SmallVec<[usize; 4]>,
}

impl Softmax {
    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        bind1(self.clone(), std::slice::from_ref(x))
    }

    fn axes(&self) -> SmallVec<[i32; 4]> {
        self.axes.iter().map(|&axis| axis as i32).collect()
    }
}

/// `x` minus its maximum over `axes`, which keeps the exponentials finite without changing their ratios.
#[track_caller]
pub(crate) fn shifted(x: &Array, axes: &[i32]) -> Array {
    // An empty array has no maximum; only the shape matters.
    let max = if x.size() == 0 { x.sum_keepdims(axes) } else { x.max_keepdims(axes) };
    x - stop_gradient(max)
}

impl Primitive for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn print_params(&self) -> String {
        format!("axes={:?}", self.axes)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Accepts::Float.check(self.name(), args[0].dtype)?;
        Ok(smallvec![args[0].clone().strip_weak_type()])
    }

    /// A maximum, a difference, an exponential, a sum and a quotient.
    fn flops(&self, _args: &[Aval], outs: &[Aval]) -> Flops {
        Flops::from_elements(outs) * 5.0
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.like(0)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_reduced()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        let axes = self.axes();
        cx.expand(args, |args| {
            Ok(vec![in_accumulator(&args[0], |x| {
                let exponentials = shifted(x, &axes).exp();
                &exponentials / exponentials.sum_keepdims(&axes[..])
            })])
        })
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let y = self.apply(&args[0]);
        let tangent = tangents[0].as_ref().map(|t| &y * (t - (&y * t).sum_keepdims(&self.axes()[..])));
        Ok((smallvec![y], vec![tangent]))
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let row = dims[0].unwrap_or(0);
        let axes = self.axes.iter().map(|&axis| axis + usize::from(axis >= row)).collect();
        Ok((smallvec![Softmax { axes }.apply(&args[0])], vec![Some(row)]))
    }
}
