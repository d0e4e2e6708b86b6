//! Primitives that rearrange elements: reshape, transpose, broadcast, iota.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::reshard::with_addends;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value, ints};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::shape::{Shape, size};
use crate::sharding::{DimSpec, Typed, UnreducedKind};

pub(super) type Ints = SmallVec<[usize; 4]>;

pub(crate) fn list(values: &[usize]) -> String {
    let inner: Vec<_> = values.iter().map(|v| v.to_string()).collect();
    format!("({}{})", inner.join(","), if values.len() == 1 { "," } else { "" })
}

/// The derivative of a linear primitive of one operand: result and tangent use the same operation.
pub(super) fn linear_jvp(
    p: &(impl Primitive + Clone + 'static),
    args: &[Array],
    tangents: &[Option<Array>],
) -> (Outputs, Tangents) {
    let out = bind1(p.clone(), args);
    (smallvec![out], vec![tangents[0].as_ref().map(|t| bind1(p.clone(), std::slice::from_ref(t)))])
}

/// Changes the shape, and keeps the elements and their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reshape {
    pub shape: Shape,
    /// The requested sharding of the result.
    pub out: Option<Arc<Typed>>,
}

impl Primitive for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn print_params(&self) -> String {
        format!("shape={}", list(&self.shape))
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        if size(&self.shape) != args[0].size() {
            return Err(err!(
                Type,
                "cannot reshape array of shape {} (size {}) into shape {} (size {})",
                list(&args[0].shape),
                args[0].size(),
                list(&self.shape),
                size(&self.shape)
            )
            .help("the number of elements must stay the same; one dimension may be -1"));
        }
        Ok(smallvec![args[0].with_shape(self.shape.clone())])
    }

    fn requested_sharding(&self) -> Option<&Typed> {
        self.out.as_deref()
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        match &self.out {
            Some(out) => rule.requested(out),
            None => rule.reshaped(&self.shape),
        }
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        if self.out.is_some() { Ok(Default::default()) } else { rule.keep_partial() }
    }

    fn keeps_unreduced(&self, _kind: UnreducedKind) -> bool {
        true
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        // The partitioner carries addends through it, unless they are to be others.
        let operand = cx.typed(args[0]);
        if operand.is_some_and(|typed| outs[0].sharding().is_some_and(|out| out.unreduced() == typed.unreduced())) {
            return Ok(vec![cx.op("stablehlo.reshape", args, "", &outs[0])]);
        }
        with_addends(cx, args, &outs[0], |cx, args| Ok(cx.op("stablehlo.reshape", args, "", &outs[0])))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok(linear_jvp(self, args, tangents))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let operand = args[0].aval();
        Ok(vec![cts[0].as_ref().map(|ct| {
            let out = operand.cotangent().sharding.filter(|_| ct.aval_ref().is_some_and(|ct| ct.sharding.is_some()));
            if ct.shape() == operand.shape.as_slice() {
                ct.clone()
            } else {
                bind1(Reshape { shape: operand.shape.clone(), out }, std::slice::from_ref(ct))
            }
        })])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let x = axis.moved(&args[0], dims[0], 0);
        let mut shape = self.shape.clone();
        shape.insert(0, axis.size);
        let out = axis.out(&self.out, 0)?;
        Ok((smallvec![bind1(Reshape { shape, out }, &[x])], vec![Some(0)]))
    }
}

/// Permutes dimensions: dimension `i` of the result is dimension `permutation[i]` of the operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Transpose {
    pub permutation: Ints,
}

impl Primitive for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn print_params(&self) -> String {
        format!("permutation={}", list(&self.permutation))
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let mut sorted = self.permutation.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..args[0].rank()) {
            return Err(err!(
                Type,
                "transpose permutation isn't a permutation of operand dimensions, got permutation {} for operand {}",
                list(&self.permutation),
                args[0]
            )
            .help("name every dimension once: `transpose(&[1, 0])` of a matrix"));
        }
        let shape: Shape = self.permutation.iter().map(|&d| args[0].shape[d]).collect();
        Ok(smallvec![args[0].with_shape(shape)])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.moved(&self.permutation)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial()
    }

    fn keeps_unreduced(&self, _kind: UnreducedKind) -> bool {
        true
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(vec![cx.op("stablehlo.transpose", args, &format!("permutation = {}", ints(&self.permutation)), &outs[0])])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok(linear_jvp(self, args, tangents))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        let mut permutation: Ints = smallvec![0; self.permutation.len()];
        for (i, &d) in self.permutation.iter().enumerate() {
            permutation[d] = i;
        }
        Ok(vec![cts[0].as_ref().map(|ct| bind1(Transpose { permutation }, std::slice::from_ref(ct)))])
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let d = dims[0].unwrap_or(0);
        let mut permutation: Ints = smallvec![d];
        permutation.extend(self.permutation.iter().map(|&p| if p >= d { p + 1 } else { p }));
        Ok((smallvec![bind1(Transpose { permutation }, args)], vec![Some(0)]))
    }
}

/// Broadcasts to a larger shape; operand dimension `i` becomes dimension `dims[i]` of the result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BroadcastInDim {
    pub shape: Shape,
    pub dims: Ints,
    /// The requested sharding of the result.
    pub out: Option<Arc<Typed>>,
}

impl Primitive for BroadcastInDim {
    fn name(&self) -> &'static str {
        "broadcast_in_dim"
    }

    fn print_params(&self) -> String {
        format!("shape={} dims={}", list(&self.shape), list(&self.dims))
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let x = &args[0];
        let fits = self.dims.len() == x.rank()
            && self.dims.windows(2).all(|w| w[0] < w[1])
            && self.dims.iter().zip(&x.shape).all(|(&d, &n)| self.shape.get(d).is_some_and(|&m| n == m || n == 1));
        if !fits {
            return Err(err!(
                Type,
                "broadcast_in_dim cannot repeat {x} to shape {} along dimensions {}",
                list(&self.shape),
                list(&self.dims)
            )
            .help(
                "for each dimension of the operand, in ascending order, name a dimension of the shape with the same size; size 1 fits any size",
            ));
        }
        Ok(smallvec![x.with_shape(self.shape.clone())])
    }

    fn requested_sharding(&self) -> Option<&Typed> {
        self.out.as_deref()
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        if let Some(out) = &self.out {
            return rule.requested(out);
        }
        let mut dims: SmallVec<[DimSpec; 4]> = smallvec![DimSpec::None; self.shape.len()];
        for (i, &d) in self.dims.iter().enumerate() {
            if rule.args()[0].shape[i] == self.shape[d] {
                dims[d] = rule.entry(0, i);
            }
        }
        rule.dims(dims)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        if self.out.is_some() { Ok(Default::default()) } else { rule.keep_partial() }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        with_addends(cx, args, &outs[0], |cx, args| Ok(cx.broadcast_in_dim(args[0], &self.dims, &outs[0])))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok(linear_jvp(self, args, tangents))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let operand = args[0].aval();
        Ok(vec![cts[0].as_ref().map(|ct| {
            // Sums over the new dimensions, and those broadcast from 1.
            let repeated = (0..self.shape.len()).filter(|&d| match self.dims.iter().position(|&e| e == d) {
                Some(i) => operand.shape[i] == 1 && self.shape[d] != 1,
                None => true,
            });
            let axes: Vec<usize> = repeated.collect();
            let sum = if axes.is_empty() { ct.clone() } else { crate::ops::lax::reduce_sum(ct, &axes) };
            if sum.shape() == operand.shape.as_slice() {
                return sum;
            }
            let out = operand.cotangent().sharding.filter(|_| sum.aval_ref().is_some_and(|ct| ct.sharding.is_some()));
            bind1(Reshape { shape: operand.shape.clone(), out }, &[sum])
        })])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let x = axis.moved(&args[0], dims[0], 0);
        let mut shape = self.shape.clone();
        shape.insert(0, axis.size);
        let mut new_dims: Ints = smallvec![0];
        new_dims.extend(self.dims.iter().map(|d| d + 1));
        let out = axis.out(&self.out, 0)?;
        Ok((smallvec![bind1(BroadcastInDim { shape, dims: new_dims, out }, &[x])], vec![Some(0)]))
    }
}

/// Numbers counting up along a dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Iota {
    pub dtype: DType,
    pub shape: Shape,
    pub dimension: usize,
    /// The requested sharding of the result.
    pub out: Option<Arc<Typed>>,
}

impl Primitive for Iota {
    fn name(&self) -> &'static str {
        "iota"
    }

    fn print_params(&self) -> String {
        format!("dtype={} shape={} dimension={}", self.dtype, list(&self.shape), self.dimension)
    }

    fn infer(&self, _args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        if self.dtype == DType::Bool || self.dimension >= self.shape.len() {
            return Err(err!(
                Type,
                "iota cannot count in dtype {} along dimension {} of shape {}",
                self.dtype,
                self.dimension,
                list(&self.shape)
            )
            .help("use a dtype of numbers, and a dimension of the shape"));
        }
        Ok(smallvec![Aval::new(self.dtype, self.shape.clone())])
    }

    fn requested_sharding(&self) -> Option<&Typed> {
        self.out.as_deref()
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        match &self.out {
            Some(out) => rule.requested(out),
            None => rule.replicated(),
        }
    }

    fn lower(&self, cx: &mut Lowering, _args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs = format!("iota_dimension = {} : i64", self.dimension);
        with_addends(cx, &[], &outs[0], |cx, _| Ok(cx.op("stablehlo.iota", &[], &attrs, &outs[0])))
    }

    fn batch(&self, _axis: &BatchAxis, _args: &[Array], _dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((smallvec![bind1(self.clone(), &[])], vec![None]))
    }
}
