//! Clamping values to bounds.

use smallvec::{SmallVec, smallvec};

use super::elementwise_rules::{self, Accepts};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{BatchAxis, Dims, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::trace::bind1;
use crate::core::program::{Aval, Flops};
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::select::where_;

/// `clamp(min, x, max)`: the bounds are scalars or have the shape of `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Clamp;

impl Primitive for Clamp {
    fn name(&self) -> &'static str {
        "clamp"
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        elementwise_rules::dtype_of("clamp", Accepts::Real, args)?;
        let out = elementwise_rules::shape_of("clamp", args)?;
        if out.shape != args[1].shape {
            return Err(err!(
                Type,
                "clamp of {} got bounds {} and {}: they must be scalars or of its shape",
                args[1],
                args[0],
                args[2]
            )
            .help("`clip` broadcasts; or repeat the array with `broadcast_to`"));
        }
        Ok(smallvec![Aval { weak: args[1].weak, ..out }])
    }

    fn flops(&self, _args: &[Aval], outs: &[Aval]) -> Flops {
        Flops::from_elements(outs)
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.like(1)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_reduced()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        // XLA has no clamp of booleans.
        if outs[0].dtype == DType::Bool {
            let raised = elementwise_rules::lower_op(cx, "stablehlo.or", &args[..2], "", &outs[0]);
            return Ok(elementwise_rules::lower_op(cx, "stablehlo.and", &[raised[0], args[2]], "", &outs[0]));
        }
        Ok(elementwise_rules::lower_op(cx, "stablehlo.clamp", args, "", &outs[0]))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let (min, x, max) = (&args[0], &args[1], &args[2]);
        let out = bind1(*self, args);
        let mut sum: Option<Array> = None;
        for (i, t) in tangents.iter().enumerate() {
            let Some(t) = t else { continue };
            // Each point belongs to at most one operand; on a bound to none, as in JAX.
            let mask = match i {
                0 => min.greater(x) & min.less(max),
                1 => x.greater(min) & x.less(max),
                _ => max.less(x),
            };
            let term = where_(mask, t, 0);
            sum = Some(match sum {
                Some(s) => s + term,
                None => term,
            });
        }
        Ok((smallvec![out], vec![sum]))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        elementwise_rules::batch(axis, args, dims, |args| bind1(*self, args))
    }
}
