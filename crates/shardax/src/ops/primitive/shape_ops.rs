//! Primitives that rearrange elements: reshape, transpose, broadcast, slice, pad, concatenate, reverse, iota.

use smallvec::{SmallVec, smallvec};

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value, ints};
use crate::core::primitive::{BatchAxis, Dims, Operand, Outputs, Primitive, Tangents};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind, Result, err};
use crate::interpret::batching::move_batch;
use crate::shape::{Shape, size};

type Ints = SmallVec<[usize; 4]>;

pub(crate) fn list(values: &[usize]) -> String {
    let inner: Vec<_> = values.iter().map(|v| v.to_string()).collect();
    format!("({}{})", inner.join(","), if values.len() == 1 { "," } else { "" })
}

/// For a linear primitive of one operand: the result and its tangent are the same operation.
fn linear_jvp(
    p: &(impl Primitive + Clone + 'static),
    args: &[Array],
    tangents: &[Option<Array>],
) -> (Outputs, Tangents) {
    let out = bind1(p.clone(), args);
    (smallvec![out], vec![tangents[0].as_ref().map(|t| bind1(p.clone(), std::slice::from_ref(t)))])
}

/// The same elements in the same order, in another shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reshape {
    pub shape: Shape,
}

impl Primitive for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn print_params(&self) -> String {
        format!("shape={}", list(&self.shape))
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

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(vec![cx.op("stablehlo.reshape", args, "", &outs[0])])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok(linear_jvp(self, args, tangents))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        Ok(vec![cts[0].as_ref().map(|ct| ct.reshape(args[0].aval().shape.as_slice()))])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let x = move_batch(&args[0], dims[0], 0, axis.size);
        let mut shape = self.shape.clone();
        shape.insert(0, axis.size);
        Ok((smallvec![bind1(Reshape { shape }, &[x])], vec![Some(0)]))
    }
}

/// Dimensions in another order: dimension `i` of the result is dimension `permutation[i]` of the operand.
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

/// Repetition to a larger shape; operand dimension `i` becomes dimension `dims[i]` of the result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BroadcastInDim {
    pub shape: Shape,
    pub dims: Ints,
}

impl Primitive for BroadcastInDim {
    fn name(&self) -> &'static str {
        "broadcast_in_dim"
    }

    fn print_params(&self) -> String {
        format!("shape={} dims={}", list(&self.shape), list(&self.dims))
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
                "name for each dimension of the operand, in order, one of the shape that has its size; size 1 fits any",
            ));
        }
        Ok(smallvec![x.with_shape(self.shape.clone())])
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(vec![cx.broadcast_in_dim(args[0], &self.dims, &outs[0])])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok(linear_jvp(self, args, tangents))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let operand = args[0].aval();
        Ok(vec![cts[0].as_ref().map(|ct| {
            // Sum over the dimensions that are new, and those that were repeated from 1.
            let repeated = |d: usize| match self.dims.iter().position(|&e| e == d) {
                Some(i) => operand.shape[i] == 1 && self.shape[d] != 1,
                None => true,
            };
            let axes: Vec<usize> = (0..self.shape.len()).filter(|&d| repeated(d)).collect();
            let sum = if axes.is_empty() { ct.clone() } else { crate::ops::lax::reduce_sum(ct, &axes) };
            if sum.shape() == operand.shape.as_slice() { sum } else { sum.reshape(operand.shape.as_slice()) }
        })])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let x = move_batch(&args[0], dims[0], 0, axis.size);
        let mut shape = self.shape.clone();
        shape.insert(0, axis.size);
        let mut new_dims: Ints = smallvec![0];
        new_dims.extend(self.dims.iter().map(|d| d + 1));
        Ok((smallvec![bind1(BroadcastInDim { shape, dims: new_dims }, &[x])], vec![Some(0)]))
    }
}

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
            .help("give a start, a limit and a stride for each dimension"));
        }
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

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs = format!(
            "start_indices = {}, limit_indices = {}, strides = {}",
            ints(&self.start),
            ints(&self.limit),
            ints(&self.strides)
        );
        Ok(vec![cx.op("stablehlo.slice", args, &attrs, &outs[0])])
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
        let all: Vec<_> = self.config.iter().map(|c| format!("({},{},{})", c.0, c.1, c.2)).collect();
        format!("padding=({})", all.join(","))
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (x, value) = (&args[0], &args[1]);
        if self.config.len() != x.rank() || value.rank() != 0 || value.dtype != x.dtype {
            return Err(err!(Type, "pad of {x} with value {value} got {} padding entries", self.config.len())
                .help("give a scalar of the array's dtype, and (low, high, interior) for each dimension"));
        }
        let mut shape = Shape::new();
        for (&n, &(low, high, interior)) in x.shape.iter().zip(&self.config) {
            let n = n as i64;
            // Nothing overflows in 128 bits; what is too large for memory is refused with the shape.
            let wide = |v: i64| v as i128;
            let m = wide(low) + wide(high) + wide(n) + wide(interior) * wide(n - 1).max(0);
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

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let column = |f: fn(&(i64, i64, i64)) -> i64| ints(&self.config.iter().map(f).collect::<Vec<_>>());
        let attrs = format!(
            "edge_padding_low = {}, edge_padding_high = {}, interior_padding = {}",
            column(|c| c.0),
            column(|c| c.1),
            column(|c| c.2)
        );
        Ok(vec![cx.op("stablehlo.pad", args, &attrs, &outs[0])])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = bind1(self.clone(), args);
        let zero = |i: usize| tangents[i].clone().unwrap_or_else(|| Array::zeros_of(&args[i].aval().settled()));
        let tangent = bind1(self.clone(), &[zero(0), zero(1)]);
        Ok((smallvec![out], vec![Some(tangent)]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(vec![None, None]) };
        let operand = args[0].aval();
        // Undo the edges by padding with their negatives, then skip what was put between.
        let zero = Array::literal(Scalar::Int(0), ct.dtype(), false);
        let edges = self.config.iter().map(|c| (-c.0, -c.1, 0)).collect();
        let inner = bind1(Pad { config: edges }, &[ct.clone(), zero]);
        let taken = bind1(
            Slice {
                start: smallvec![0; operand.rank()],
                limit: inner.shape().into(),
                strides: self.config.iter().map(|c| c.2 as usize + 1).collect(),
            },
            &[inner],
        );
        let value = args[1].is_linear().then(|| ct.sum(..) - taken.sum(..));
        Ok(vec![args[0].is_linear().then_some(taken), value])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let x = move_batch(&args[0], dims[0], 0, axis.size);
        let mut config = self.config.clone();
        config.insert(0, (0, 0, 0));
        let Some(d) = dims[1] else {
            return Ok((smallvec![bind1(Pad { config }, &[x, args[1].clone()])], vec![Some(0)]));
        };
        // A value for each entry: pad a mask along, and choose by it.
        debug_assert_eq!(d, 0);
        let zero = Array::literal(Scalar::Int(0), x.dtype(), false);
        let padded = bind1(Pad { config: config.clone() }, &[x.clone(), zero]);
        let inside = crate::ops::numpy::full(x.shape(), Scalar::Bool(true), DType::Bool);
        let inside = bind1(Pad { config }, &[inside, Array::literal(Scalar::Bool(false), DType::Bool, false)]);
        let value = args[1].broadcast_in_dim(padded.shape(), &[0]);
        Ok((smallvec![super::binary::Select.apply(&inside, &value, &padded)], vec![Some(0)]))
    }
}

/// Arrays joined along a dimension.
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

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let Some(first) = args.first() else {
            return Err(err!(Value, "concatenate needs at least one array").help("give the arrays to join"));
        };
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
                ).help("all sizes but that of the joined dimension must be equal"));
            }
            shape[self.dimension] += arg.shape[self.dimension];
        }
        Ok(smallvec![Aval { weak: args.iter().all(|a| a.weak), ..first.with_shape(shape) }])
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(vec![cx.op("stablehlo.concatenate", args, &format!("dimension = {} : i64", self.dimension), &outs[0])])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = bind1(self.clone(), args);
        let ts: Vec<Array> = args
            .iter()
            .zip(tangents)
            .map(|(a, t)| t.clone().unwrap_or_else(|| Array::zeros_of(&a.aval().settled())))
            .collect();
        Ok((smallvec![out], vec![Some(bind1(self.clone(), &ts))]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(vec![None; args.len()]) };
        let mut at = 0;
        Ok(args
            .iter()
            .map(|arg| {
                let n = arg.aval().shape[self.dimension];
                at += n;
                arg.is_linear().then(|| crate::ops::lax::slice_in_dim(ct, at - n, at, self.dimension))
            })
            .collect())
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let moved: Vec<Array> = args.iter().zip(dims).map(|(a, d)| move_batch(a, *d, 0, axis.size)).collect();
        Ok((smallvec![bind1(Concatenate { dimension: self.dimension + 1 }, &moved)], vec![Some(0)]))
    }
}

/// The elements in reverse order along some dimensions.
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

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let rank = args[0].rank();
        if let Some((i, d)) = self.dims.iter().enumerate().find(|(i, d)| **d >= rank || self.dims[..*i].contains(d)) {
            let (kind, why) = match self.dims[..i].contains(d) {
                true => (ErrorKind::Value, "comes twice"),
                false => (ErrorKind::Index, "is out of bounds"),
            };
            return Err(Error::new(kind, format!("rev: dimension {d} {why} for {}", args[0]))
                .help(format!("name each dimension below {rank} once")));
        }
        Ok(smallvec![args[0].clone()])
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(vec![cx.op("stablehlo.reverse", args, &format!("dimensions = {}", ints(&self.dims)), &outs[0])])
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

/// Numbers counting up along a dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Iota {
    pub dtype: DType,
    pub shape: Shape,
    pub dimension: usize,
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
                "iota of dtype {} along dimension {} of shape {}",
                self.dtype,
                self.dimension,
                list(&self.shape)
            )
            .help("it counts, in a dtype of numbers, along a dimension that the shape has"));
        }
        Ok(smallvec![Aval::new(self.dtype, self.shape.clone())])
    }

    fn lower(&self, cx: &mut Lowering, _args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(vec![cx.op("stablehlo.iota", &[], &format!("iota_dimension = {} : i64", self.dimension), &outs[0])])
    }

    fn batch(&self, _axis: &BatchAxis, _args: &[Array], _dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((smallvec![bind1(self.clone(), &[])], vec![None]))
    }
}
