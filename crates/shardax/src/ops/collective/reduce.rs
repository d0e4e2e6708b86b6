//! Collectives that combine values over named axes, and casts of varying axes.

use smallvec::{SmallVec, smallvec};

use super::axes::{Axes, Names};
use super::{mapped, narrow, ordered};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Platform, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::primitive::elementwise::Accepts;
use crate::ops::primitive::reduce::Reducer;
use crate::shape::{AxisName, AxisSet};

/// Methods that tracing and the interpreters need to keep varying axes consistent.
impl Array {
    /// Casts the array to also vary over `axes`.
    pub(crate) fn varying_over(&self, axes: &AxisSet) -> Array {
        let missing: Names = axes.minus(&self.vma()).iter().collect();
        if missing.is_empty() { self.clone() } else { bind1(Pcast { axes: missing }, std::slice::from_ref(self)) }
    }

    /// Makes the array vary over exactly `axes`: cast if it varies over fewer, summed if over more. For cotangents.
    pub(crate) fn varying_as(&self, axes: &AxisSet) -> Array {
        let vma = self.vma();
        if vma == *axes {
            return self.clone();
        }
        let extra: Names = vma.minus(axes).iter().collect();
        let x = match extra.is_empty() {
            true => self.clone(),
            false => AllReduce { reducer: Reducer::Sum, axes: Axes::summed(extra, true) }.apply(self),
        };
        x.varying_over(axes)
    }
}

/// Casts a value that is equal on all devices to one that may vary. No communication; its transpose is a sum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pcast {
    pub axes: Names,
}

impl Primitive for Pcast {
    fn name(&self) -> &'static str {
        "pcast"
    }

    fn print_params(&self) -> String {
        format!("axes=({}) to=varying", self.axes.iter().map(|n| n.as_str()).collect::<Vec<_>>().join(","))
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(smallvec![args[0].clone()])
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(smallvec![args[0].union(&self.axes.iter().copied().collect())])
    }

    fn casts_operands(&self) -> bool {
        false
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.own()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    fn lower(&self, _cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(args.to_vec())
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = bind1(self.clone(), args);
        Ok((smallvec![out], vec![tangents[0].as_ref().map(|t| bind1(self.clone(), std::slice::from_ref(t)))]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        // Axes that the operand already varied over were not cast.
        let before = args[0].aval().vma;
        let cast: Names = self.axes.iter().copied().filter(|n| !before.contains(*n)).collect();
        if cast.is_empty() {
            return Ok(cts.to_vec());
        }
        let sum = AllReduce { reducer: Reducer::Sum, axes: Axes::summed(cast, true) };
        Ok(vec![cts[0].as_ref().map(|ct| sum.apply(ct))])
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((smallvec![bind1(self.clone(), args)], dims.to_vec()))
    }
}

/// The elementwise reduction over all participants, on all of them: `psum`, `pmax`, `pmin`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AllReduce {
    pub reducer: Reducer,
    pub axes: Axes,
}

impl AllReduce {
    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        self.axes.bind(self.clone(), x)
    }

    fn sum(&self) -> Self {
        AllReduce { reducer: Reducer::Sum, axes: self.axes.clone() }
    }
}

impl Primitive for AllReduce {
    fn name(&self) -> &'static str {
        match self.reducer {
            Reducer::Max => "pmax",
            Reducer::Min => "pmin",
            _ if self.axes.checked && self.axes.groups.is_none() => "psum_invariant",
            _ => "psum",
        }
    }

    fn print_params(&self) -> String {
        self.axes.print()
    }

    fn uses_axis(&self, name: AxisName) -> bool {
        self.axes.names.contains(&name)
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let accepts = if self.reducer == Reducer::Sum { Accepts::Number } else { Accepts::Real };
        accepts.check(self.name(), args[0].dtype)?;
        Ok(smallvec![args[0].clone()])
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        // Groups have different results; equal operands give equal results only if the groups have one size.
        Ok(smallvec![match (&self.axes.groups, self.axes.size) {
            (None, _) => args[0].minus(&self.axes.set()),
            (Some(_), 0) => args[0].union(&self.axes.set()),
            (Some(_), _) => args[0].clone(),
        }])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.like(0)
    }

    fn partial_rule(&self, rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        rule.keep_partial()
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        // The TPU compiler aborts the process for groups of different sizes.
        if cx.platform == Platform::Tpu && self.axes.groups.is_some() && self.axes.size == 0 {
            let operation = format!("{} over groups of different sizes", self.name());
            return Err(cx.platform.lacks(&operation, "give all groups as many members, or fill them up with zeros"));
        }
        if cx.platform == Platform::Tpu && self.reducer != Reducer::Sum && outs[0].dtype.bits() == 64 {
            let operation = format!("{} of {}", self.name(), outs[0].dtype);
            let way_round = "convert the operand to 32 bits, or reduce what `all_gather` gives";
            return Err(cx.platform.lacks(&operation, way_round));
        }
        let attrs = format!("{}, use_global_device_ids", self.axes.attrs(cx, "replica_groups")?);
        narrow::exchanged(cx, args[0], &outs[0], true, |cx, x, out| {
            if matches!(self.reducer, Reducer::Max | Reducer::Min) && out.dtype.is_float() && cx.on_cpu() {
                return ordered::all_reduce(self.reducer, cx, x, &attrs, out);
            }
            let region = self.reducer.region(cx, out.dtype)?;
            Ok(cx.op_with("stablehlo.all_reduce", &[x], &attrs, vec![region], std::slice::from_ref(out))[0])
        })
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let x = &args[0];
        let out = self.apply(x);
        let tangent = tangents[0].as_ref().map(|t| match self.reducer {
            Reducer::Max | Reducer::Min => {
                // Shared equally by the participants that have the maximum or minimum.
                let chosen = x.equal(&out).astype(x.dtype());
                self.sum().apply(&(t * &chosen)) / self.sum().apply(&chosen)
            }
            _ => self.apply(t),
        });
        Ok((smallvec![out], vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        if self.reducer != Reducer::Sum {
            return Err(err!(NotImplemented, "'{}' is not linear and has no transpose", self.name()));
        }
        // Each participant's operand contributes to the shared sum. If types are checked, a cotangent that is equal
        // everywhere is that of the sum; otherwise each participant has a part of it.
        let checked = self.axes.checked && self.axes.groups.is_none();
        Ok(vec![cts[0].as_ref().map(|ct| match (checked, self.axes.mapped()) {
            (false, _) => self.apply(ct),
            (true, None) => ct.varying_over(&ct.vma().union(&self.axes.set())),
            (true, Some(axes)) => {
                AllReduce { axes, ..self.clone() }.apply(ct).varying_over(&ct.vma().union(&self.axes.set()))
            }
        })])
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        if !self.axes.has(axis.name) {
            return Ok((smallvec![self.apply(&args[0])], dims.to_vec()));
        }
        if self.axes.groups.is_some() {
            return mapped::groups(&self.axes, self.name(), axis, args, dims, |axes| AllReduce {
                axes,
                ..self.clone()
            });
        }
        let local = match dims[0] {
            Some(d) => lax::reduce_with(&args[0], self.reducer, &[d]),
            None if self.reducer == Reducer::Sum => &args[0] * axis.size,
            None => args[0].clone(),
        };
        let out = match self.axes.without(axis) {
            Some(axes) => AllReduce { axes, ..self.clone() }.apply(&local),
            None => local,
        };
        Ok((smallvec![out], vec![None]))
    }
}
