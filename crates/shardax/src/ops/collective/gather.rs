//! Collectives that move shards along named axes: all-gather and its transpose, reduce-scatter.

use smallvec::{SmallVec, smallvec};

use super::axes::Axes;
use super::{mapped, narrow};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{Result, bail, err};
use crate::ops::lax;
use crate::ops::primitive::reduce::Reducer;
use crate::shape::{AxisName, AxisSet};

/// Concatenates the values of all participants along a dimension: `all_gather`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AllGather {
    pub axes: Axes,
    /// The existing dimension along which values are concatenated (`tiled`).
    pub dim: usize,
    /// `true` if the type of the result says that it is equal on all participants.
    pub invariant: bool,
}

impl AllGather {
    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        self.axes.bind(self.clone(), x)
    }
}

impl Primitive for AllGather {
    fn name(&self) -> &'static str {
        "all_gather"
    }

    fn print_params(&self) -> String {
        format!("{} dimension={}", self.axes.print(), self.dim)
    }

    fn uses_axis(&self, name: AxisName) -> bool {
        self.axes.names.contains(&name)
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let mut out = args[0].clone();
        match out.shape.get_mut(self.dim) {
            Some(d) => *d *= self.axes.size,
            None => bail!(Index, "all_gather dimension {} is out of bounds for {}", self.dim, args[0]),
        }
        Ok(smallvec![out])
    }

    /// If types are checked, the result varies unless `invariant` is set, as in JAX, so that its transpose is a
    /// reduce-scatter.
    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        let same = self.axes.groups.is_none() && (self.invariant || !self.axes.checked);
        Ok(smallvec![if same { args[0].minus(&self.axes.set()) } else { args[0].clone() }])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.resized()
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs = format!(
            "all_gather_dim = {} : i64, {}, use_global_device_ids",
            self.dim,
            self.axes.attrs(cx, "replica_groups")?
        );
        narrow::exchanged(cx, args[0], &outs[0], false, |cx, x, out| {
            Ok(cx.op("stablehlo.all_gather", &[x], &attrs, out))
        })
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        let scatter = PsumScatter { axes: self.axes.clone(), dim: self.dim };
        Ok(vec![cts[0].as_ref().map(|ct| {
            let sum = scatter.apply(ct);
            // All participants share an invariant result, so its cotangent counts once.
            if self.invariant && self.axes.checked { sum / self.axes.size } else { sum }
        })])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if !self.axes.has(axis.name) {
            let d = dims[0].unwrap_or(0);
            let dim = if self.dim >= d { self.dim + 1 } else { self.dim };
            return Ok((smallvec![AllGather { dim, ..self.clone() }.apply(&args[0])], vec![Some(d)]));
        }
        if self.axes.groups.is_some() {
            return mapped::groups(&self.axes, "all_gather", axis, args, dims, |axes| AllGather {
                axes,
                ..self.clone()
            });
        }
        if self.axes.names.len() > 1 {
            // The innermost axis is gathered first, so that the first axis ends up outermost.
            return mapped::rewritten(axis, args, dims, |x| {
                let axes = self.axes.each(axis)?.into_iter().rev();
                Ok(axes.fold(x.clone(), |x, axes| AllGather { axes, ..self.clone() }.apply(&x)))
            });
        }
        // [N, …, n, …] becomes […, N * n, …].
        let x = axis.moved(&args[0], dims[0], 0);
        let x = x.moveaxis(0, self.dim as i32);
        let mut shape = x.shape_owned();
        let outer = shape.remove(self.dim);
        shape[self.dim] *= outer;
        Ok((smallvec![x.reshape(&shape)], vec![None]))
    }
}

/// Sums over all participants and scatters the sum along a dimension: `psum_scatter`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PsumScatter {
    pub axes: Axes,
    /// The scattered dimension, which stays in the result (`tiled`).
    pub dim: usize,
}

impl PsumScatter {
    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        match self.axes.groups {
            None => self.axes.bind_sum(self.clone(), x),
            Some(_) => self.axes.bind(self.clone(), x),
        }
    }
}

impl Primitive for PsumScatter {
    fn name(&self) -> &'static str {
        "reduce_scatter"
    }

    fn print_params(&self) -> String {
        format!("{} dimension={}", self.axes.print(), self.dim)
    }

    fn uses_axis(&self, name: AxisName) -> bool {
        self.axes.names.contains(&name)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        if args[0].dtype == DType::Bool {
            return Err(err!(Type, "psum_scatter does not accept dtype bool")
                .help("convert it with `astype(DType::I32)` to count"));
        }
        let mut out = args[0].clone();
        match out.shape.get_mut(self.dim) {
            Some(d) if *d % self.axes.size == 0 => *d /= self.axes.size,
            Some(d) => {
                return Err(err!(
                    Value,
                    "tiled reduce_scatter operand scatter dimension size {d} must be divisible by shard_count {}",
                    self.axes.size
                )
                .help("make the dimension a multiple of the number of participants"));
            }
            None => bail!(Index, "psum_scatter dimension {} is out of bounds for {}", self.dim, args[0]),
        }
        Ok(smallvec![out])
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(smallvec![args[0].union(&self.axes.set())])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.resized()
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial().map(|(unreduced, reduced)| (unreduced.minus(&self.axes.set()), reduced))
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let attrs = format!(
            "scatter_dimension = {} : i64, {}, use_global_device_ids",
            self.dim,
            self.axes.attrs(cx, "replica_groups")?
        );
        narrow::exchanged(cx, args[0], &outs[0], true, |cx, x, out| {
            let region = Reducer::Sum.region(cx, out.dtype)?;
            Ok(cx.op_with("stablehlo.reduce_scatter", &[x], &attrs, vec![region], std::slice::from_ref(out))[0])
        })
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        // If the operand holds addends, their cotangents are equal on all participants.
        let operand = args[0].aval();
        let invariant = operand.sharding().is_some_and(|typed| !typed.unreduced().is_empty());
        let gather = AllGather { axes: self.axes.clone(), dim: self.dim, invariant };
        Ok(vec![
            cts[0]
                .as_ref()
                .map(|ct| if invariant { self.axes.spread(&gather.apply(ct), &operand) } else { gather.apply(ct) }),
        ])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if !self.axes.has(axis.name) {
            let d = dims[0].unwrap_or(0);
            let dim = if self.dim >= d { self.dim + 1 } else { self.dim };
            return Ok((smallvec![PsumScatter { dim, ..self.clone() }.apply(&args[0])], vec![Some(d)]));
        }
        if self.axes.groups.is_some() {
            return mapped::groups(&self.axes, self.name(), axis, args, dims, |axes| PsumScatter {
                axes,
                ..self.clone()
            });
        }
        if self.axes.names.len() > 1 {
            return mapped::rewritten(axis, args, dims, |x| {
                let axes = self.axes.each(axis)?.into_iter();
                Ok(axes.fold(x.clone(), |x, axes| PsumScatter { axes, ..self.clone() }.apply(&x)))
            });
        }
        let sum = match dims[0] {
            Some(d) => lax::reduce_with(&args[0], Reducer::Sum, &[d]),
            None => &args[0] * axis.size,
        };
        // […, N * n, …] becomes [N, …, n, …].
        let mut shape = sum.shape_owned();
        shape[self.dim] /= axis.size;
        shape.insert(self.dim, axis.size);
        let out = sum.reshape(&shape).moveaxis(self.dim as i32, 0);
        Ok((smallvec![out], vec![Some(0)]))
    }
}
