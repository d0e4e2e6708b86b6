//! The derivatives of attention: the tangent of its results, and the transpose of the tangent.

use smallvec::{SmallVec, smallvec};

use super::unfused::Block;
use super::{Attention, Operands, PresentOperands, blockwise, depth, products, sharding_of, with_batch};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    Avals, BatchAxis, Dims, Operand, Outputs, Primitive, ShardingRule, Tangents, TypedOuts, bind,
};
use crate::core::program::trace::trace;
use crate::core::program::{Aval, Flops};
use crate::dtype::DType;
use crate::error::Result;
use crate::interpret::ad::{backward, jvp_eval};

/// Differentiates the unfused implementation.
fn jvp_of(
    args: &[Array],
    tangents: &[Option<Array>],
    f: impl FnOnce(&[Array]) -> Result<Vec<Array>>,
) -> Result<(Outputs, Tangents)> {
    let avals: Vec<Aval> = args.iter().map(Array::aval).collect();
    let traced = trace(&avals, f)?;
    let (outs, tangents) = jvp_eval(&traced.program, args, tangents, false)?;
    Ok((outs.into(), tangents))
}

/// The tangents of [`Attention`]'s output and of its sums. Operands: the attention operands, its three results, then the
/// tangents of query, key, value and bias. It is linear in the tangents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AttentionTangent {
    pub of: Attention,
    /// `true` if the bias has a tangent.
    pub bias: bool,
}

impl AttentionTangent {
    fn unfused(&self, args: &[Array]) -> Result<Vec<Array>> {
        let n = self.of.present.count();
        let [max, sum] = [&args[n + 1], &args[n + 2]];
        let block = Block::all(&self.of, Operands::of(self.of.present, args));
        Ok(block.tangent([max, sum], [&args[n + 3], &args[n + 4], &args[n + 5]], args.get(n + 6)))
    }
}

impl Primitive for AttentionTangent {
    fn name(&self) -> &'static str {
        "attention_tangent"
    }

    fn print_params(&self) -> String {
        self.of.print()
    }

    fn output_count(&self) -> usize {
        2
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        let n = self.of.present.count();
        Ok(smallvec![args[n].clone(), args[n + 2].clone()])
    }

    /// Counts the recomputed scores and one term for each tangent.
    fn flops(&self, args: &[Aval], _outs: &[Aval]) -> Flops {
        let (keys, values) = (depth(&args[0]), depth(&args[2]));
        let recomputed = products(args, keys);
        let elementwise = 5.0 * products(args, 1);
        Flops { recomputed, elementwise, ..Flops::from_matmuls(recomputed + products(args, 2 * keys + 2 * values)) }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        match blockwise::applies(&self.of, cx, args) {
            true => cx.expand(args, |args| blockwise::tangent(&self.of, args)),
            false => cx.expand(args, |args| self.unfused(args)),
        }
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        jvp_of(args, tangents, |args| self.unfused(args))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let n = self.of.present.count();
        let values = args[..n + 3].iter().map(|arg| arg.value().cloned());
        let mut operands = values.collect::<Result<Vec<Array>>>()?;
        operands.push(cts[0].clone().unwrap_or_else(|| Array::zeros_of(&operands[n].aval())));
        operands.extend(cts[1].clone());
        let bias = args.get(n + 6).is_some_and(Operand::is_linear);
        let primitive = AttentionGradient { of: self.of.clone(), of_sum: cts[1].is_some(), bias };
        let gradients = bind(primitive, &operands).into_iter();
        let linear = [n + 3, n + 4, n + 5].into_iter().chain(bias.then_some(n + 6));
        let mut in_cts = vec![None; args.len()];
        gradients.zip(linear).filter(|(_, i)| args[*i].is_linear()).for_each(|(ct, i)| in_cts[i] = Some(ct));
        Ok(in_cts)
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let mut repeated = self.of.present.broadcast();
        if self.bias {
            // The bias and its tangent must have the same shape.
            let bias_tangent = args.len() - 1;
            match (dims[PresentOperands::BIAS], dims[bias_tangent]) {
                (None, None) => repeated.push(bias_tangent),
                _ => repeated.retain(|at| *at != PresentOperands::BIAS),
            }
        }
        with_batch(AttentionTangent { of: self.of.batched(axis), ..*self }, &repeated, axis, args, dims)
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        sharding_of(rule, [Some(0), None])
    }
}

/// The cotangents of queries, keys, values and bias. Operands: the attention operands, its three results, the cotangent
/// of the output, and the cotangent of the sums.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AttentionGradient {
    pub of: Attention,
    /// `true` if the sums have a cotangent.
    pub of_sum: bool,
    /// `true` if the cotangent of the bias is requested.
    pub bias: bool,
}

impl AttentionGradient {
    /// Returns the cotangent of the output, and the softmax's correction of the weights' cotangents (one number per
    /// query).
    pub fn cotangent<'a>(&self, args: &'a [Array]) -> (&'a Array, Array) {
        let n = self.of.present.count();

        let (y, sum, ct) = (&args[n], &args[n + 2], &args[n + 3]);
        let mean = (ct.astype(DType::F32) * y.astype(DType::F32)).sum(-1).swapaxes(-1, -2);
        (ct, args.get(n + 4).map_or(mean.clone(), |of_sum| mean - sum * of_sum))
    }

    fn unfused(&self, args: &[Array]) -> Result<Vec<Array>> {
        let n = self.of.present.count();
        let (ct, mean) = self.cotangent(args);
        let block = Block::all(&self.of, Operands::of(self.of.present, args));
        let mut gradient = block.gradient([&args[n + 1], &args[n + 2]], ct, &mean);
        gradient.truncate(self.output_count());
        Ok(gradient)
    }
}

impl Primitive for AttentionGradient {
    fn name(&self) -> &'static str {
        "attention_gradient"
    }

    fn print_params(&self) -> String {
        self.of.print()
    }

    fn output_count(&self) -> usize {
        if self.bias { 4 } else { 3 }
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        Ok(args[..self.output_count()].iter().cloned().collect())
    }

    /// Counts the recomputed scores, and two matmuls for each of queries and keys.
    fn flops(&self, args: &[Aval], _outs: &[Aval]) -> Flops {
        let (keys, values) = (depth(&args[0]), depth(&args[2]));
        let recomputed = products(args, keys);
        let elementwise = 3.0 * products(args, 1);
        Flops { recomputed, elementwise, ..Flops::from_matmuls(recomputed + products(args, 2 * keys + 2 * values)) }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        match blockwise::applies(&self.of, cx, args) {
            true => cx.expand(args, |args| blockwise::gradient(self, args)),
            false => cx.expand(args, |args| self.unfused(args)),
        }
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        jvp_of(args, tangents, |args| self.unfused(args))
    }

    /// Transposes the gradient, which is linear in the cotangents.
    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let avals: Vec<Aval> = args.iter().map(Operand::aval).collect();
        let traced = trace(&avals, |args| self.unfused(args))?;
        backward(&traced.program, args, cts)
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let mut repeated = self.of.present.broadcast();
        // If the bias needs a gradient, it is materialized for every entry instead of broadcast, so that each entry
        // has a separate gradient.
        if self.bias {
            repeated.retain(|at| *at != PresentOperands::BIAS);
        }
        with_batch(AttentionGradient { of: self.of.batched(axis), ..*self }, &repeated, axis, args, dims)
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        let results: SmallVec<[_; 4]> = (0..self.output_count()).map(Some).collect();
        sharding_of(rule, results)
    }
}
