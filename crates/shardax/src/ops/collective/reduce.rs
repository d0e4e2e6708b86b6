//! Collectives that combine values over named axes, and casts of varying axes.

use smallvec::{SmallVec, smallvec};

use super::axes::{Axes, Names};
use super::{mapped, narrow};
use crate::choice::NamedOption;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::primitive::elementwise_rules::Accepts;
use crate::ops::primitive::reduce::Reducer;
use crate::shape::{AxisName, AxisSet};
use crate::sharding::{AbstractMesh, Typed, UnreducedKind, get_abstract_mesh};

/// Methods that tracing and the interpreters need to keep varying axes consistent.
impl Array {
    /// Casts the array so that it also varies over `axes`.
    pub(crate) fn varying_over(&self, axes: &AxisSet) -> Array {
        let missing: Names = axes.minus(&self.vma()).iter().collect();
        if missing.is_empty() { self.clone() } else { Pcast { axes: missing, to: CastTo::Varying }.apply(self) }
    }

    /// Makes a cotangent vary over exactly `axes`: casts it if it varies over fewer axes, and sums it over the surplus
    /// axes otherwise.
    pub(crate) fn varying_as(&self, axes: &AxisSet) -> Array {
        let vma = self.vma();
        if vma == *axes {
            return self.clone();
        }
        let extra: Names = vma.minus(axes).iter().collect();
        let x = if extra.is_empty() {
            self.clone()
        } else {
            AllReduce { reducer: Reducer::Sum, axes: Axes::summed(extra, true) }.apply(self)
        };
        x.varying_over(axes)
    }

    /// Casts a cotangent to the varying, unreduced and reduced axes of the type `want`, where all axes are manual. It
    /// is summed over unreduced axes that `want` lacks. If it is equal on devices that should each hold an addend, it
    /// is divided among them.
    pub(crate) fn partial_as(&self, want: &Aval) -> Array {
        let Some(typed) = want.sharding() else { return self.varying_as(&want.vma) };
        let unreduced = self.aval_ref().and_then(Aval::sharding).map(|typed| typed.unreduced().clone());
        let unreduced = unreduced.unwrap_or_default();
        let summed: Names = unreduced.minus(typed.unreduced()).iter().collect();
        let mut x = if summed.is_empty() {
            self.clone()
        } else {
            AllReduce { reducer: Reducer::Sum, axes: Axes::summed(summed, true) }.apply(self)
        };
        let added = typed.unreduced().minus(&unreduced);
        let equal = added.minus(&x.vma());
        let parts: usize = equal.iter().filter_map(|name| typed.mesh().axis_size(name)).product();
        if parts > 1 {
            x = x / parts;
        }
        x = x.varying_as(&want.vma.union(&added));
        let reduced = x.aval_ref().and_then(Aval::sharding).map(|typed| typed.reduced().clone());
        let missing = typed.reduced().minus(&reduced.unwrap_or_default());
        for (axes, to) in [(added, CastTo::Unreduced), (missing, CastTo::Reduced)] {
            if !axes.is_empty() {
                x = Pcast { axes: axes.iter().collect(), to }.apply(&x);
            }
        }
        x
    }
}

/// The state of a value over an axis; [`pcast_to`](super::pcast_to) casts to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CastTo {
    /// The value can differ between participants.
    Varying,
    /// Participants hold the addends of a sum that has not been computed yet.
    Unreduced,
    /// The value is equal on all participants, and its cotangent is unreduced.
    Reduced,
}

/// JAX's names.
impl NamedOption for CastTo {
    const KIND: &'static str = "state";
    const NAMES: &'static [(&'static str, Self)] =
        &[("varying", CastTo::Varying), ("unreduced", CastTo::Unreduced), ("reduced", CastTo::Reduced)];
}

/// Casts between equal, varying, reduced and unreduced values without communication.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pcast {
    pub axes: Names,
    pub to: CastTo,
}

impl Pcast {
    #[track_caller]
    pub fn apply(self, x: &Array) -> Array {
        bind1(self, std::slice::from_ref(x))
    }

    fn set(&self) -> AxisSet {
        self.axes.iter().copied().collect()
    }
}

fn summed_over(x: &Array, axes: &AxisSet) -> Array {
    if axes.is_empty() {
        return x.clone();
    }
    AllReduce { reducer: Reducer::Sum, axes: Axes::summed(axes.iter().collect(), true) }.apply(x)
}

impl Primitive for Pcast {
    fn name(&self) -> &'static str {
        "pcast"
    }

    fn print_params(&self) -> String {
        let to = format!("{:?}", self.to).to_lowercase();
        format!("axes=({}) to={to}", self.axes.iter().map(|n| n.as_str()).collect::<Vec<_>>().join(","))
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(smallvec![args[0].clone()])
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        Ok(smallvec![match self.to {
            CastTo::Varying => args[0].union(&self.set()),
            CastTo::Unreduced => args[0].minus(&self.set()),
            CastTo::Reduced => args[0].clone(),
        }])
    }

    fn casts_operands(&self) -> bool {
        false
    }

    fn enters_mesh(&self) -> Option<AbstractMesh> {
        if self.to == CastTo::Varying { None } else { get_abstract_mesh() }
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        let typed = rule.arg(0);
        let (unreduced, reduced) = (typed.unreduced().clone(), typed.reduced().clone());
        // Only the addends of sums can be cast to other unreduced and reduced axes.
        if typed.kind() != UnreducedKind::Sum && self.to != CastTo::Varying {
            return Err(rule.error(
                format_args!(
                    "operands with the unreduced_kind {} are not cast, got {}",
                    typed.kind().name(),
                    rule.types()
                ),
                "combine them with `pmax` or `pmin` first",
            ));
        }
        let (unreduced, reduced) = match self.to {
            CastTo::Varying if self.axes.iter().any(|name| unreduced.contains(*name)) => {
                return Err(rule.error(
                    format_args!("unreduced operands do not vary, got {} for the axes {:?}", rule.types(), self.axes),
                    "sum them with `psum` first",
                ));
            }
            CastTo::Varying => (unreduced, reduced.minus(&self.set())),
            CastTo::Unreduced => (unreduced.union(&self.set()), reduced),
            CastTo::Reduced => (unreduced, reduced.union(&self.set())),
        };
        Ok(smallvec![typed.with_partial(unreduced, reduced)])
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
        let operand = args[0].aval();
        // The cotangent of a reduced value is unreduced, and the cotangent of an unreduced value is reduced.
        let in_ct = cts[0].as_ref().map(|ct| match self.to {
            CastTo::Varying => {
                // Axes that the operand already varied over were not cast.
                let cast = self.set().minus(&operand.vma);
                let reduced = operand.sharding().map_or_else(AxisSet::default, |typed| typed.reduced().clone());
                let addends: Names = cast.iter().filter(|name| reduced.contains(*name)).collect();
                let ct = summed_over(ct, &cast.minus(&reduced));
                if addends.is_empty() { ct } else { Pcast { axes: addends, to: CastTo::Unreduced }.apply(&ct) }
            }
            CastTo::Unreduced => ct.varying_over(&ct.vma().union(&self.set())),
            CastTo::Reduced => summed_over(ct, &self.set()),
        });
        Ok(vec![in_ct])
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((smallvec![bind1(self.clone(), args)], dims.to_vec()))
    }
}

/// Reduces elementwise over all participants. Each of them receives the result: `psum`, `pmax`, `pmin`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AllReduce {
    pub reducer: Reducer,
    pub axes: Axes,
}

impl AllReduce {
    /// Lowers the reduction. `write` receives the operand and the attributes of the groups.
    pub(crate) fn lower_by(
        &self,
        cx: &mut Lowering,
        x: Value,
        out: &Aval,
        write: impl FnOnce(&mut Lowering, Value, &str, &Aval) -> Result<Value>,
    ) -> Result<Vec<Value>> {
        let attrs = format!("{}, use_global_device_ids", self.axes.attrs(cx, "replica_groups")?);
        narrow::exchanged(cx, x, out, true, |cx, x, out| write(cx, x, &attrs, out))
    }

    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        let kind = x.aval_ref().and_then(Aval::sharding).map_or(UnreducedKind::Sum, Typed::kind);
        let keeps = self.reducer == Reducer::Sum || (kind != UnreducedKind::Sum && self.keeps_unreduced(kind));
        if keeps && self.axes.groups.is_none() {
            self.axes.bind_sum(self.clone(), x)
        } else {
            self.axes.bind(self.clone(), x)
        }
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
        // Groups have different results. Equal operands give equal results only if all groups have the same size.
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
        match self.reducer {
            Reducer::Sum => {
                rule.keep_partial().map(|(unreduced, reduced)| (unreduced.minus(&self.axes.set()), reduced))
            }
            _ if rule.arg(0).kind() != UnreducedKind::Sum => {
                let typed = rule.arg(0);
                Ok((typed.unreduced().minus(&self.axes.set()), typed.reduced().clone()))
            }
            _ => rule.keep_reduced(),
        }
    }

    fn keeps_unreduced(&self, kind: UnreducedKind) -> bool {
        self.reducer.unreduced_kind() == Some(kind)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        self.lower_by(cx, args[0], &outs[0], |cx, x, attrs, out| {
            let region = self.reducer.region(cx, out.dtype)?;
            Ok(cx.op_with("stablehlo.all_reduce", &[x], attrs, vec![region], std::slice::from_ref(out))[0])
        })
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let x = &args[0];
        let out = self.apply(x);
        let tangent = tangents[0].as_ref().map(|t| match self.reducer {
            Reducer::Max | Reducer::Min => {
                // Participants that tie for the maximum or minimum share the tangent equally.
                let chosen = x.equal(&out).astype(x.dtype());
                self.sum().apply(&(t * &chosen)) / self.sum().apply(&chosen)
            }
            _ => self.apply(t),
        });
        Ok((smallvec![out], vec![tangent]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        if self.reducer != Reducer::Sum {
            return Err(err!(NotImplemented, "'{}' is not linear and has no transpose", self.name()));
        }
        // Each participant's operand contributes to the shared sum. If types are checked, a cotangent that is equal on
        // all participants is the cotangent of the sum; otherwise each participant holds a part of it.
        let checked = self.axes.checked && self.axes.groups.is_none();
        Ok(vec![cts[0].as_ref().map(|ct| match (checked, self.axes.mapped()) {
            (false, _) => self.apply(ct),
            (true, None) => self.axes.spread(ct, &args[0].aval()),
            (true, Some(axes)) => self.axes.spread(&AllReduce { axes, ..self.clone() }.apply(ct), &args[0].aval()),
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
