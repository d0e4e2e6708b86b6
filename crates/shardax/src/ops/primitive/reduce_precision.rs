//! Rounding to fewer bits, without changing the dtype.

use smallvec::{SmallVec, smallvec};

use super::elementwise_rules::{self, Accepts};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::error::{Result, err};

/// Rounds each element to the precision of a float with these bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReducePrecision {
    pub exponent_bits: u32,
    pub mantissa_bits: u32,
}

impl ReducePrecision {
    #[track_caller]
    pub fn apply(self, x: &Array) -> Array {
        bind1(self, std::slice::from_ref(x))
    }
}

impl Primitive for ReducePrecision {
    fn name(&self) -> &'static str {
        "reduce_precision"
    }

    fn print_params(&self) -> String {
        format!("exponent_bits={} mantissa_bits={}", self.exponent_bits, self.mantissa_bits)
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Accepts::Float.check("reduce_precision", args[0].dtype)?;
        if self.exponent_bits == 0 || self.exponent_bits > 11 || self.mantissa_bits > 52 {
            return Err(err!(
                Value,
                "reduce_precision has no format of {} bits of exponent and {} of mantissa",
                self.exponent_bits,
                self.mantissa_bits
            )
            .help("an exponent has from 1 to 11 bits, a mantissa up to 52: bfloat16 has 8 and 7"));
        }
        Ok(smallvec![args[0].clone()])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.like(0)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_reduced()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs =
            format!("exponent_bits = {} : i32, mantissa_bits = {} : i32", self.exponent_bits, self.mantissa_bits);
        Ok(vec![cx.op("stablehlo.reduce_precision", args, &attrs, &outs[0])])
    }

    /// As in JAX, tangents and cotangents are rounded the same way.
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        Ok(vec![cts[0].as_ref().map(|ct| self.apply(ct))])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        elementwise_rules::batch(axis, args, dims, |args| self.apply(&args[0]))
    }
}
