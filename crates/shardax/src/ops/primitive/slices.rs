//! Primitives that split and join arrays: slice, pad, concatenate, reverse.

use smallvec::{SmallVec, smallvec};

use super::reshard::with_addends;
use super::shape_ops::{Ints, linear_jvp, list};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value, ints};
use crate::core::primitive::{
    BatchAxis, Dims, EagerForm, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result, err};
use crate::shape::Shape;
use crate::sharding::UnreducedKind;

/// A part with constant bounds: `start` to `limit`, every `strides`-th element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slice {
    pub start: Ints,
    pub limit: Ints,
    pub strides: Ints,
}

impl Primitive for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn print_params(&self) -> String {
        format!("start={} limit={} strides={}", list(&self.start), list(&self.limit), list(&self.strides))
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn eager_form(&self, _operand: &Aval) -> Option<EagerForm> {
        self.with_start_as_operand()
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let x = &args[0];
        let rank = x.rank();
        if self.start.len() != rank || self.limit.len() != rank || self.strides.len() != rank {
            return Err(err!(
                Type,
                "slice of {x} needs {rank} bounds, got start {} limit {}",
                list(&self.start),
                list(&self.limit)
            )
            .help("pass a start, a limit and a stride for each dimension"));
        }
        // XLA would clamp some of these bounds and reject others, so all are checked here.
        let mut shape = Shape::new();
        for d in 0..rank {
            let (a, b, s) = (self.start[d], self.limit[d], self.strides[d]);
            if a > b || b > x.shape[d] || s == 0 {
                return Err(err!(
                    Index,
                    "slice {a}..{b} by {s} is out of bounds for dimension {d} of size {} of an array of shape {}",
                    x.shape[d],
                    list(&x.shape)
                )
                .help("slices with constant bounds must lie inside; `get` clamps ranges"));
            }
            shape.push((b - a).div_ceil(s));
        }
        Ok(smallvec![x.with_shape(shape)])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.resized()
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial()
    }

    fn keeps_unreduced(&self, _kind: UnreducedKind) -> bool {
        true
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        with_addends(cx, args, &outs[0], |cx, args| Ok(cx.slice(args[0], &self.start, &self.limit, &self.strides)))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok(linear_jvp(self, args, tangents))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let operand = args[0].aval();
        Ok(vec![cts[0].as_ref().map(|ct| {
            let config = (0..operand.rank())
                .map(|d| {
                    let (n, s) = (ct.shape()[d], self.strides[d]);
                    let covered = if n == 0 { 0 } else { 1 + (n - 1) * s };
                    let low = self.start[d] as i64;
                    (low, operand.shape[d] as i64 - low - covered as i64, s as i64 - 1)
                })
                .collect();
            let zero = Array::literal(Scalar::Int(0), ct.dtype(), false);
            bind1(Pad { config }, &[ct.clone(), zero])
        })])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let d = dims[0].unwrap_or(0);
        let mut s = self.clone();
        s.start.insert(d, 0);
        s.limit.insert(d, axis.size);
        s.strides.insert(d, 1);
        Ok((smallvec![bind1(s, args)], vec![Some(d)]))
    }
}

/// Padding with a value: low, high (negative to cut) and between elements, for each dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pad {
    pub config: SmallVec<[(i64, i64, i64); 4]>,
}

impl Primitive for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn print_params(&self) -> String {
        let entries: Vec<_> = self.config.iter().map(|c| format!("({},{},{})", c.0, c.1, c.2)).collect();
        format!("padding=({})", entries.join(","))
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (x, value) = (&args[0], &args[1]);
        if self.config.len() != x.rank() || value.rank() != 0 || value.dtype != x.dtype {
            return Err(err!(Type, "pad of {x} with value {value} got {} padding entries", self.config.len())
                .help("pass a scalar of the array's dtype, and (low, high, interior) for each dimension"));
        }
        let mut shape = Shape::new();
        for (&n, &(low, high, interior)) in x.shape.iter().zip(&self.config) {
            let n = n as i64;
            // 128 bits cannot overflow; a result too large for memory is rejected with the shape.
            let m =
                i128::from(low) + i128::from(high) + i128::from(n) + i128::from(interior) * i128::from(n - 1).max(0);
            if interior < 0
                || m < 0
                || [low, high, m.clamp(0, i64::MAX as i128) as i64].iter().any(|v| v.unsigned_abs() > 1 << 60)
            {
                return Err(err!(
                    Value,
                    "pad ({low}, {high}, {interior}) of a dimension of size {n} gives {m}: sizes and interior padding must not be negative, nor too large"
                ).help("negative edges cut elements off, at most as many as there are"));
            }
            shape.push(m as usize);
        }
        Ok(smallvec![x.with_shape(shape)])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.resized()
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial_of_first()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        with_addends(cx, args, &outs[0], |cx, args| Ok(cx.pad(args[0], args[1], &self.config)))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = bind1(self.clone(), args);
        let operand_tangents =
            [0, 1].map(|i| tangents[i].clone().unwrap_or_else(|| Array::zeros_of(&args[i].aval().strip_weak_type())));
        let tangent = bind1(self.clone(), &operand_tangents);
        Ok((smallvec![out], vec![Some(tangent)]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(vec![None, None]) };
        let operand = args[0].aval();
        // Undoes the edges by padding with their negatives, then skips the interior padding.
        let zero = Array::literal(Scalar::Int(0), ct.dtype(), false);
        let edges = self.config.iter().map(|c| (-c.0, -c.1, 0)).collect();
        let inner = bind1(Pad { config: edges }, &[ct.clone(), zero]);
        let in_ct = bind1(
            Slice {
                start: smallvec![0; operand.rank()],
                limit: inner.shape().into(),
                strides: self.config.iter().map(|c| c.2 as usize + 1).collect(),
            },
            &[inner],
        );
        let value = args[1].is_linear().then(|| ct.sum(..) - in_ct.sum(..));
        Ok(vec![args[0].is_linear().then_some(in_ct), value])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let x = axis.moved(&args[0], dims[0], 0);
        let mut config = self.config.clone();
        config.insert(0, (0, 0, 0));
        let Some(d) = dims[1] else {
            return Ok((smallvec![bind1(Pad { config }, &[x, args[1].clone()])], vec![Some(0)]));
        };
        // A padding value per entry: pads a mask too, and selects by it.
        debug_assert_eq!(d, 0);
        let zero = Array::literal(Scalar::Int(0), x.dtype(), false);
        let padded = bind1(Pad { config: config.clone() }, &[x.clone(), zero]);
        let inside = crate::ops::constants::filled(x.shape(), Scalar::Bool(true), DType::Bool);
        let inside = bind1(Pad { config }, &[inside, Array::literal(Scalar::Bool(false), DType::Bool, false)]);
        let value = args[1].broadcast_in_dim(padded.shape(), &[0]);
        Ok((smallvec![super::binary::Select.apply(&inside, &value, &padded)], vec![Some(0)]))
    }
}

/// Concatenates arrays along a dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Concatenate {
    pub dimension: usize,
}

impl Primitive for Concatenate {
    fn name(&self) -> &'static str {
        "concatenate"
    }

    fn print_params(&self) -> String {
        format!("dimension={}", self.dimension)
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let Some(first) = args.first() else {
            return Err(err!(Value, "concatenate needs at least one array").help("pass the arrays to join"));
        };
        // The result is weakly typed only if all arrays are.
        let mut shape = first.shape.clone();
        if self.dimension >= shape.len() {
            return Err(err!(
                Index,
                "concatenate dimension {} is out of bounds for arrays of rank {}",
                self.dimension,
                shape.len()
            )
            .help("join along an existing dimension, or along a new one with `stack`"));
        }
        for arg in &args[1..] {
            let fits = arg.rank() == first.rank()
                && arg.dtype == first.dtype
                && (0..shape.len()).all(|d| d == self.dimension || arg.shape[d] == first.shape[d]);
            if !fits {
                return Err(err!(
                    Type,
                    "Cannot concatenate arrays with shapes that differ in dimensions other than the one being concatenated: concatenating along dimension {} for {first} and {arg}",
                    self.dimension
                ).help("use arrays whose sizes are equal in all dimensions except the joined one"));
            }
            shape[self.dimension] += arg.shape[self.dimension];
        }
        Ok(smallvec![Aval { weak: args.iter().all(|a| a.weak), ..first.with_shape(shape) }])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        Ok(smallvec![rule.common(0..rule.args().len(), "operands")?])
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial()
    }

    fn keeps_unreduced(&self, _kind: UnreducedKind) -> bool {
        true
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs = format!("dimension = {} : i64", self.dimension);
        with_addends(cx, args, &outs[0], |cx, args| Ok(cx.op("stablehlo.concatenate", args, &attrs, &outs[0])))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = bind1(self.clone(), args);
        let ts: Vec<Array> = args
            .iter()
            .zip(tangents)
            .map(|(a, t)| t.clone().unwrap_or_else(|| Array::zeros_of(&a.aval().strip_weak_type())))
            .collect();
        Ok((smallvec![out], vec![Some(bind1(self.clone(), &ts))]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(vec![None; args.len()]) };
        let mut end = 0;
        let in_cts = args.iter().map(|arg| {
            let start = end;
            end += arg.aval().shape[self.dimension];
            arg.is_linear().then(|| crate::ops::lax::slice_in_dim(ct, start, end, self.dimension))
        });
        Ok(in_cts.collect())
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let moved: Vec<Array> = args.iter().zip(dims).map(|(a, d)| axis.moved(a, *d, 0)).collect();
        Ok((smallvec![bind1(Concatenate { dimension: self.dimension + 1 }, &moved)], vec![Some(0)]))
    }
}

/// Reverses the elements along some dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reverse {
    pub dims: Ints,
}

impl Primitive for Reverse {
    fn name(&self) -> &'static str {
        "rev"
    }

    fn print_params(&self) -> String {
        format!("dimensions={}", list(&self.dims))
    }

    fn is_fused(&self) -> bool {
        true
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let rank = args[0].rank();
        if let Some((i, d)) = self.dims.iter().enumerate().find(|(i, d)| **d >= rank || self.dims[..*i].contains(d)) {
            let (kind, why) = if self.dims[..i].contains(d) {
                (ErrorKind::Value, "comes twice")
            } else {
                (ErrorKind::Index, "is out of bounds")
            };
            return Err(Error::new(kind, format!("rev: dimension {d} {why} for {}", args[0]))
                .help(format!("name each dimension below {rank} once")));
        }
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

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs = format!("dimensions = {}", ints(&self.dims));
        with_addends(cx, args, &outs[0], |cx, args| Ok(cx.op("stablehlo.reverse", args, &attrs, &outs[0])))
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok(linear_jvp(self, args, tangents))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        Ok(vec![cts[0].as_ref().map(|ct| bind1(self.clone(), std::slice::from_ref(ct)))])
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let d = dims[0].unwrap_or(0);
        let dims = self.dims.iter().map(|&e| if e >= d { e + 1 } else { e }).collect();
        Ok((smallvec![bind1(Reverse { dims }, args)], vec![Some(d)]))
    }
}
