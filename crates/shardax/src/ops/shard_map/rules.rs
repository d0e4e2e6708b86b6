//! The rules of `shard_map`: types, differentiation, batching.

use smallvec::SmallVec;

use super::ShardMap;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, ThreadState, TypedOuts,
};
use crate::core::program::trace::{Traced, bind, check_usable, trace};
use crate::core::program::{Aval, Flops, Program};
use crate::error::{Result, err};
use crate::interpret::backward_logs::{self, Layout};
use crate::interpret::higher_order::{cast_up, is_same, marked, spread_marked};
use crate::interpret::thread_state::thread_eval;
use crate::interpret::vary;
use crate::interpret::{ad, batching};
use crate::ops::collective::axes::Axes;
use crate::ops::collective::reduce::AllReduce;
use crate::ops::primitive::reduce::Reducer;
use crate::shape::{AxisName, AxisSet};
use crate::sharding::typed::entry;
use crate::sharding::{NamedSharding, PartitionSpec, Sharding};

/// A spec that splits dimension 0 over these axes.
fn over(axes: &[AxisName]) -> PartitionSpec {
    PartitionSpec::default().insert(0, axes)
}

impl ShardMap {
    /// A copy with another body. Captured values of the body come first, and are replicated.
    fn with_body(
        &self,
        body: Program,
        captured: usize,
        in_specs: Vec<PartitionSpec>,
        out_specs: Vec<PartitionSpec>,
    ) -> Self {
        let in_specs = std::iter::repeat_n(PartitionSpec::default(), captured).chain(in_specs).collect();
        ShardMap { in_specs, out_specs, body, ..self.without_body() }
    }

    /// The spec of a value that is stacked along dimension 0 over the axes that it varies over, in the mesh's order.
    fn stacked_over(&self, set: &AxisSet) -> PartitionSpec {
        let axes: SmallVec<[AxisName; 2]> = self.axes().filter(|name| set.contains(*name)).collect();
        over(&axes)
    }

    fn in_body<R>(&self, f: impl FnOnce() -> R) -> R {
        ShardMap::bind_axes(&self.mesh, &self.manual, self.checked, f)
    }

    fn apply(self, captures: &[Array], args: impl IntoIterator<Item = Array>) -> Outputs {
        let args: Vec<Array> = captures.iter().cloned().chain(args).collect();
        bind(std::sync::Arc::new(self), &args)
    }
}

/// A value of one device that can be stacked: a scalar gets a dimension.
fn stackable(value: Array) -> Array {
    if value.ndim() == 0 { value.expand_dims(0) } else { value }
}

impl Primitive for ShardMap {
    fn name(&self) -> &'static str {
        "shard_map"
    }

    fn output_count(&self) -> usize {
        self.out_specs.len()
    }

    fn placed_on(&self) -> Option<Sharding> {
        Some(Sharding::Named(NamedSharding::new(&self.mesh, PartitionSpec::default())))
    }

    fn in_sharding(&self, operand: usize, _aval: &Aval) -> Option<Sharding> {
        Some(Sharding::Named(NamedSharding::new(&self.mesh, self.in_specs.get(operand)?.clone())))
    }

    fn out_sharding(&self, result: usize, _aval: &Aval) -> Option<NamedSharding> {
        // The compiler chooses the sharding over the axes that are not manual.
        let is_manual = self.mesh.axes().iter().all(|(name, size)| *size == 1 || self.manual.contains(name));
        is_manual.then(|| NamedSharding::new(&self.mesh, self.out_specs[result].clone()))
    }

    fn programs(&self) -> Vec<&Program> {
        vec![&self.body]
    }

    fn print_params(&self) -> String {
        format!(
            "mesh={} axis_names={:?} in_specs={:?} out_specs={:?} check_vma={}",
            self.mesh, self.manual, self.in_specs, self.out_specs, self.checked
        )
    }

    fn uses_axis(&self, name: AxisName) -> bool {
        // Its own axes shadow outer ones of the same name.
        !self.axes().any(|n| n == name) && self.body.eqns().iter().any(|e| e.primitive.uses_axis(name))
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        for (i, ((arg, spec), block)) in args.iter().zip(&self.in_specs).zip(self.body.in_avals()).enumerate() {
            let block_type = ShardMap::shard_aval(&self.mesh, &self.manual, spec, arg, self.checked)?;
            if block_type.shape != block.shape || block_type.dtype != block.dtype {
                return Err(err!(
                    Type,
                    "shard_map operand {i} of type {arg} has blocks of type {block_type}, but the body was traced for {block}"
                ));
            }
        }
        self.body.out_avals().iter().zip(&self.out_specs).map(|(block, spec)| self.unshard_aval(spec, block)).collect()
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        // Inside, operands also vary over the axes that split them. Results do not vary over the manual axes outside.
        let inner: Vec<AxisSet> =
            args.iter().zip(&self.in_specs).map(|(set, spec)| set.union(&self.inside(spec))).collect();
        let manual: AxisSet = self.axes().collect();
        Ok(vary::outputs(&self.body, &inner)?.iter().map(|set| set.minus(&manual)).collect())
    }

    /// Operands keep the axes of the enclosing map that they vary over.
    fn casts_operands(&self) -> bool {
        false
    }

    /// Each device along the manual axes executes the body.
    fn flops(&self, _args: &[Aval], _outs: &[Aval]) -> Flops {
        let devices: usize = self.axes().filter_map(|axis| self.mesh.axis_size(axis)).product();
        self.body.flops() * devices as f64
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        self.lower_call(cx, args, outs)
    }

    /// The state is replicated before the call, and has one entry per device after it.
    fn thread_state(&self, thread: &dyn ThreadState, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        thread.cast_state(state)?;
        let count = state.len();
        let axes: Vec<AxisName> = self.axes().collect();
        let blocks: Vec<Aval> = state.iter().map(Array::aval).chain(self.body.in_avals().cloned()).collect();
        let Traced { program, captures } = self.in_body(|| {
            trace(&blocks, |args| {
                let mut state = args[..count].to_vec();
                let outs = thread_eval(&self.body, thread, &args[count..], &mut state)?;
                thread.cast_state(&mut state)?;
                let varying: AxisSet = if self.checked { axes.iter().copied().collect() } else { AxisSet::default() };
                let state = state.iter().map(|s| cast_up(s, &varying).expand_dims(0));
                Ok(state.chain(outs).collect())
            })
        })?;
        // The operands are the state and the arguments; the results are the states of all devices and the results.
        let replicated = std::iter::repeat_n(PartitionSpec::default(), count);
        let in_specs = replicated.chain(self.in_specs.iter().cloned()).collect();
        let out_specs = std::iter::repeat_n(over(&axes), count).chain(self.out_specs.iter().cloned()).collect();
        let call = self.with_body(program.simplified(), captures.len(), in_specs, out_specs);
        let operands: Vec<Array> = [&state[..], args].concat();
        let mut outs = call.apply(&captures, operands);
        outs.iter().try_for_each(check_usable)?;
        let results = outs.drain(count..).collect();
        state.clone_from_slice(&outs);
        thread.gather(state)?;
        Ok(results)
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let nonzero: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let count = self.out_specs.len();
        let (Traced { program, captures }, has) =
            self.in_body(|| ad::jvp_program(&self.body, &nonzero, &vec![false; count]))?;
        let in_specs = self.in_specs.iter().cloned().chain(marked(&self.in_specs, &nonzero)).collect();
        let out_specs = self.out_specs.iter().cloned().chain(marked(&self.out_specs, &has)).collect();
        let call = self.with_body(program, captures.len(), in_specs, out_specs);
        let mut outs =
            call.apply(&captures, args.iter().cloned().chain(tangents.iter().flatten().cloned())).into_iter();
        let primal: Outputs = outs.by_ref().take(count).collect();
        Ok((primal, spread_marked(outs, &has)))
    }

    fn linearize(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let nonzero: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let (known, linear, mut residuals) = self.split_body(&nonzero)?;
        let (primal, residual_values) = self.run_known(known, &mut residuals, args)?;

        // The linear part receives the residuals as operands.
        let residual_avals: Vec<Aval> = residual_values
            .iter()
            .zip(&residuals.specs)
            .map(|(r, s)| ShardMap::shard_aval(&self.mesh, &self.manual, s, &r.aval(), self.checked))
            .collect::<Result<_>>()?;
        let blocks = self.body.in_avals().zip(&nonzero).filter(|(_, nz)| **nz);
        let tangent_avals = blocks.filter_map(|(a, _)| ad::tangent_aval(a));
        let avals: Vec<Aval> = residual_avals.into_iter().chain(tangent_avals).collect();
        let body = self.linear_body(&linear, &avals)?;
        let in_specs = residuals.specs.into_iter().chain(marked(&self.in_specs, &nonzero)).collect();
        let out_specs = marked(&self.out_specs, &linear.nonzero_out);
        let call = self.with_body(body.program, body.captures.len(), in_specs, out_specs);
        let outs = call.apply(&body.captures, residual_values.into_iter().chain(tangents.iter().flatten().cloned()));
        Ok((primal, spread_marked(outs, &linear.nonzero_out)))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let linear: Vec<bool> = args.iter().map(Operand::is_linear).collect();
        let known_operands: Vec<Array> = args.iter().filter_map(|a| a.value().ok().cloned()).collect();
        let blocks: Vec<Aval> = self.body.in_avals().cloned().collect();
        let has: Vec<bool> = cts.iter().map(Option::is_some).collect();
        let outs: Vec<Aval> = self.body.out_avals();
        let known_flags: Vec<bool> = linear.iter().map(|l| !l).collect();
        // Cotangents enter with the sharding of the results, and the operands' leave with the sharding of the operands.
        let ct_specs: Vec<PartitionSpec> = marked(&self.out_specs, &has).iter().map(PartitionSpec::cotangent).collect();
        let back: Vec<PartitionSpec> = self.in_specs.iter().map(PartitionSpec::cotangent).collect();
        let ct_avals = self.cotangent_avals(&marked(&outs, &has), &ct_specs)?;
        let avals: Vec<Aval> = marked(&blocks, &known_flags).into_iter().chain(ct_avals).collect();

        let (mut has_in_ct, mut layout) = (Vec::new(), Layout::default());
        let body = self.in_body(|| {
            trace(&avals, |inputs| {
                let mut inputs = inputs.iter().cloned();
                let mut operands = Vec::with_capacity(blocks.len());
                for (is_linear, aval) in linear.iter().zip(&blocks) {
                    operands.push(if *is_linear {
                        Operand::Linear(aval.clone())
                    } else {
                        Operand::NonLinear(next_operand(&mut inputs)?)
                    });
                }
                let mut cts = Tangents::new();
                for (has, (aval, spec)) in has.iter().zip(outs.iter().zip(&self.out_specs)) {
                    cts.push(if *has { Some(self.incoming(next_operand(&mut inputs)?, aval, spec)) } else { None });
                }
                let (in_cts, logged, values) = backward_logs::nested(|| ad::backward(&self.body, &operands, &cts))?;
                has_in_ct = in_cts.iter().map(Option::is_some).collect();
                layout = logged;
                let in_cts =
                    in_cts.into_iter().zip(&self.in_specs).filter_map(|(ct, spec)| Some(self.outgoing(ct?, spec)));
                in_cts.chain(values.into_iter().map(|value| Ok(stackable(value)))).collect()
            })
        })?;
        let in_specs = marked(&self.in_specs, &known_flags).into_iter().chain(ct_specs).collect();
        let mut out_specs = marked(&back, &has_in_ct);
        let varying = self.varying(&body.program, body.captures.len())?;
        out_specs.extend(varying[out_specs.len()..].iter().map(|set| self.stacked_over(set)));
        let call = self.with_body(body.program, body.captures.len(), in_specs, out_specs);
        let mut outs = call.apply(&body.captures, known_operands.into_iter().chain(cts.iter().flatten().cloned()));
        let values: Vec<Array> = outs.drain(outs.len() - layout.count()..).collect();
        backward_logs::record(layout.entries(values))?;
        Ok(spread_marked(outs, &has_in_ct))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        // A mapped dimension that is split over manual axes stays so.
        let of_types = axis.explicit.axes().iter().copied().filter(|name| self.manual.contains(name));
        let spmd: SmallVec<[AxisName; 2]> =
            if axis.spmd_names.is_empty() { of_types.collect() } else { axis.spmd_names.clone() };
        let spmd = &spmd;
        for spec in self.in_specs.iter().chain(&self.out_specs) {
            if let Some(name) = spec.all_axes().find(|n| spmd.contains(n)) {
                let which = if self.in_specs.contains(spec) { "in_specs" } else { "out_specs" };
                return Err(err!(
                    Value,
                    "vmap spmd_axis_name cannot appear in shard_map {which}: {name:?} is in {spec}"
                )
                .help("name a mesh axis that the specs do not use"));
            }
        }
        let parts = self.mesh.axes_size(spmd)?;
        if !axis.size.is_multiple_of(parts) {
            return Err(err!(
                Value,
                "vmap spmd_axis_name {spmd:?} of size {parts} does not divide the mapped axis of size {}",
                axis.size
            )
            .help(format!("make the mapped axis a multiple of {parts}")));
        }
        // An axis of its own shadows the mapped one of the same name.
        let name = axis.name.filter(|n| !self.manual.contains(n));
        let free = axis.explicit.axes().iter().copied().filter(|name| !self.manual.contains(name));
        let inner = BatchAxis { size: axis.size / parts, name, explicit: entry(free), ..axis.clone() };
        let force = vec![!spmd.is_empty(); self.out_specs.len()];
        let (Traced { program, captures }, batched) =
            self.in_body(|| batching::batch_program(&self.body, &inner, dims, &force))?;
        let in_specs = self
            .in_specs
            .iter()
            .zip(dims)
            .map(|(spec, dim)| dim.map_or_else(|| spec.clone(), |d| spec.insert(d, spmd)))
            .collect();
        let out_specs = self
            .out_specs
            .iter()
            .zip(&batched)
            .map(|(spec, b)| if *b { spec.insert(0, spmd) } else { spec.clone() })
            .collect();
        let call = self.with_body(program, captures.len(), in_specs, out_specs);
        let outs = call.apply(&captures, args.iter().cloned());
        Ok((outs, batched.iter().map(|b| b.then_some(0)).collect()))
    }
}

/// The next operand of a traced body.
fn next_operand(operands: &mut impl Iterator<Item = Array>) -> Result<Array> {
    operands.next().ok_or_else(|| err!(Runtime, "internal error: shard_map has too few operands; please report this"))
}

/// The residuals of a linearized body.
struct Residuals {
    /// For each residual, the operand that it is equal to, or `None` if the non-linear part computes it and returns it after the
    /// results.
    operands: Vec<Option<usize>>,
    specs: Vec<PartitionSpec>,
}

impl ShardMap {
    /// Splits the body into its non-linear part, which also returns the residuals that it computes, and its linear part.
    fn split_body(&self, nonzero: &[bool]) -> Result<(Traced, ad::Linearized, Residuals)> {
        let blocks: Vec<Aval> = self.body.in_avals().cloned().collect();
        let mut linear = None;
        let mut residuals = Residuals { operands: Vec::new(), specs: Vec::new() };
        let known = self.in_body(|| {
            trace(&blocks, |inputs| {
                let (mut outs, linear_part) = ad::linearize_nested(&self.body, inputs, nonzero)?;
                for residual in &linear_part.residuals {
                    // A residual that is an operand is not returned.
                    let operand = inputs.iter().position(|i| is_same(i, residual));
                    residuals.operands.push(operand);
                    match operand {
                        Some(i) => residuals.specs.push(self.in_specs[i].clone()),
                        None => {
                            outs.push(stackable(residual.clone()));
                            residuals.specs.push(PartitionSpec::default());
                        }
                    }
                }
                linear = Some(linear_part);
                Ok(outs)
            })
        })?;
        let linear = linear
            .ok_or_else(|| err!(Runtime, "internal error: linearization recorded no linear map; please report this"))?;
        Ok((known, linear, residuals))
    }

    /// Runs the non-linear part of the body. Returns its results, and the values of all residuals.
    fn run_known(&self, known: Traced, residuals: &mut Residuals, args: &[Array]) -> Result<(Outputs, Vec<Array>)> {
        let Traced { program, captures } = known;
        let computed: Vec<bool> = residuals.operands.iter().map(Option::is_none).collect();
        let computed_specs = residuals.specs.iter_mut().zip(&computed).filter(|(_, c)| **c).map(|(spec, _)| spec);
        self.stack_residuals(computed_specs, &program, captures.len())?;
        let out_specs = self.out_specs.iter().cloned().chain(marked(&residuals.specs, &computed)).collect();
        let call = self.with_body(program, captures.len(), self.in_specs.clone(), out_specs);
        let mut outs = call.apply(&captures, args.iter().cloned()).into_iter();
        let primal: Outputs = outs.by_ref().take(self.out_specs.len()).collect();
        let values = residuals.operands.iter().map(|operand| match operand {
            Some(i) => Ok(args[*i].clone()),
            None => outs
                .next()
                .ok_or_else(|| err!(Runtime, "internal error: shard_map has too few residuals; please report this")),
        });
        Ok((primal, values.collect::<Result<_>>()?))
    }

    /// Sets the specs of the residuals that `known` computes after its results: they leave split along dimension 0 over
    /// every axis that they can vary over.
    fn stack_residuals<'a>(
        &self,
        specs: impl Iterator<Item = &'a mut PartitionSpec>,
        known: &Program,
        captured: usize,
    ) -> Result<()> {
        let count = self.out_specs.len();
        let varying = self.varying(known, captured)?;
        let types = known.out_avals();
        for (spec, (set, aval)) in specs.zip(varying[count..].iter().zip(&types[count..])) {
            *spec = self.stacked_over(set);
            if let Some(typed) = aval.sharding().filter(|typed| typed.is_partial()) {
                *spec = spec.clone().with_partial_of(&typed.spec());
            }
        }
        Ok(())
    }

    /// Traces the linear part for residuals and tangents of these types.
    fn linear_body(&self, lin: &ad::Linearized, avals: &[Aval]) -> Result<Traced> {
        let out_avals: Vec<Aval> = self.body.out_avals();
        self.in_body(|| {
            trace(avals, |inputs| {
                let (residuals, tangents) = inputs.split_at(lin.residuals.len());
                // Scalars were stacked along a dimension that they do not have.
                let residuals = residuals.iter().zip(&lin.residuals).map(|(stacked, residual)| {
                    if residual.ndim() == 0 && stacked.ndim() == 1 { stacked.squeeze(0) } else { stacked.clone() }
                });
                let args: Vec<Array> = residuals.chain(tangents.iter().cloned()).collect();
                let outs = crate::interpret::eval::eval(&lin.program, &args)?;
                let avals_with_tangent = out_avals.iter().zip(&lin.nonzero_out).filter(|(_, nz)| **nz).map(|(a, _)| a);
                Ok(outs.iter().zip(avals_with_tangent).map(|(o, a)| o.varying_as(&a.vma)).collect())
            })
        })
    }

    /// The types of cotangents inside the body, which enter with these specs.
    fn cotangent_avals(&self, outs: &[Aval], specs: &[PartitionSpec]) -> Result<Vec<Aval>> {
        let blocks = outs.iter().zip(specs).map(|(block, spec)| {
            let outside = self.unshard_aval(spec, block)?;
            Ok(ShardMap::shard_aval(&self.mesh, &self.manual, spec, &outside, self.checked)?.strip_weak_type())
        });
        blocks.collect()
    }

    /// Returns the axes that each result of `body`, whose first inputs are captured, can vary over: as typed, or, if
    /// types do not track it, by analysis of the body.
    pub fn varying(&self, body: &Program, captured: usize) -> Result<Vec<AxisSet>> {
        if self.checked {
            return Ok(body.out_avals().into_iter().map(|aval| aval.vma).collect());
        }
        let captures = std::iter::repeat_n(AxisSet::default(), captured);
        let inputs: Vec<AxisSet> = captures.chain(self.in_specs.iter().map(PartitionSpec::varying)).collect();
        vary::outputs(body, &inputs)
    }

    /// The axes over which an operand of this spec varies inside.
    fn inside(&self, spec: &PartitionSpec) -> AxisSet {
        if self.checked { spec.all_axes().collect() } else { spec.varying() }
    }

    /// The cotangent of an output, for the body. If types do not track varying axes, the devices that hold
    /// one value share its cotangent equally.
    fn incoming(&self, ct: Array, out: &Aval, spec: &PartitionSpec) -> Array {
        if self.checked {
            return ct.partial_as(&out.cotangent());
        }
        let shared = self.mesh.axes_size(&self.unmentioned(spec)).unwrap_or(1);
        if shared == 1 { ct } else { ct / shared }
    }

    /// The cotangent of an operand, from the body: an operand that all devices hold gets the sum of theirs.
    fn outgoing(&self, ct: Array, spec: &PartitionSpec) -> Result<Array> {
        if self.checked {
            return Ok(ct.varying_as(&ct.vma().minus(&self.axes().collect()).union(&self.inside(spec))));
        }
        let ct = self.sum_cotangent(ct, spec)?;
        let axes = self.unmentioned(spec);
        if axes.is_empty() {
            return Ok(ct);
        }
        Ok(AllReduce { reducer: Reducer::Sum, axes: Axes::summed(axes, false) }.apply(&ct))
    }

    /// The cotangent of a sum: the mean of the cotangents of its addends, which are equal.
    fn sum_cotangent(&self, ct: Array, spec: &PartitionSpec) -> Result<Array> {
        let addends: SmallVec<[AxisName; 2]> = spec.unreduced_axes().iter().collect();
        if addends.is_empty() {
            return Ok(ct);
        }
        let sum = AllReduce { reducer: Reducer::Sum, axes: Axes::summed(addends.clone(), false) }.apply(&ct);
        Ok(sum / self.mesh.axes_size(&addends)?)
    }
}
