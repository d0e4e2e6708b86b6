//! `cond`: one of several programs, selected by an index.

use smallvec::SmallVec;

use super::binary::Select;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, ThreadState, TypedOuts,
};
use crate::core::program::trace::{Traced, trace};
use crate::core::program::{Aval, Flops, Program};
use crate::core::sharding_rule::agrees;
use crate::dtype::DType;
use crate::error::{Result, bail};
use crate::interpret::ad::{backward, jvp_program};
use crate::interpret::backward_logs::{self, Layout};
use crate::interpret::batching::{batch_eval, batch_program};
use crate::interpret::eval::eval;
use crate::interpret::higher_order::{
    Residual, Split, bind_checked, cast_all, join, marked, marked_tangents, operand_sets, sets_of, spread_marked,
    tangent_or_zeros, varying, with_outputs, zeros,
};
use crate::interpret::thread_state::thread_state;
use crate::interpret::vary;
use crate::ops::checkify::counting;
use crate::scope::Part;
use crate::shape::AxisSet;

/// A conditional. Operands are the index (an int32 scalar within range) and the operands that all branches share;
/// results are the results of the selected branch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cond {
    pub branches: Vec<Program>,
}

impl Cond {
    /// The conditional and the branches' operands, cast to agree on the manual axes that each operand varies over.
    ///
    /// If the index varies over an axis, so must all operands of a branch: a branch that runs on only some of the
    /// devices must not communicate, and the transpose of a cast communicates.
    pub(crate) fn fit(&self, index: &Array, args: &[Array]) -> Result<(Cond, Vec<Array>)> {
        match self.fit_sets(&index.vma(), &sets_of(args))? {
            Some((cond, sets)) => Ok((cond, cast_all(args, &sets))),
            None => Ok((self.clone(), args.to_vec())),
        }
    }

    /// Returns the conditional for operands that vary over these axes, and the axes to cast the operands to, or `None`
    /// if they already agree.
    fn fit_sets(&self, index: &AxisSet, args: &[AxisSet]) -> Result<Option<(Cond, Vec<AxisSet>)>> {
        let args: Vec<AxisSet> = args.iter().map(|set| set.union(index)).collect();
        let inputs = operand_sets(self.in_avals().iter(), &args);
        let outs = self.branches.iter().map(Program::out_avals).collect::<Vec<_>>();
        let sets: Vec<AxisSet> = outs.first().into_iter().flatten().map(|aval| aval.vma.union(index)).collect();
        if inputs.is_none() && outs.iter().all(|avals| sets.iter().zip(avals).all(|(set, aval)| *set == aval.vma)) {
            return Ok(None);
        }
        let sets = inputs.unwrap_or(args);
        let out_sets = self.out_sets(index, &sets)?;
        let branches = self.branches.iter().map(|b| varying(b, &sets, &out_sets)).collect::<Result<_>>()?;
        Ok(Some((Cond { branches }, sets)))
    }

    fn out_sets(&self, index: &AxisSet, inputs: &[AxisSet]) -> Result<Vec<AxisSet>> {
        let mut union = vec![index.clone(); self.output_count()];
        for branch in &self.branches {
            let outs = vary::outputs(branch, inputs)?;
            union.iter_mut().zip(outs).for_each(|(set, out)| *set = set.union(&out));
        }
        Ok(union)
    }

    /// Selects among programs traced on the types of `args`.
    fn run(branches: Vec<Traced>, index: &Array, args: &[Array]) -> Result<Outputs> {
        let (branches, captures) = join(branches);
        let branches = branches.iter().map(Program::simplified).collect();
        let (this, args) = Cond { branches }.fit(index, &[&captures, args].concat())?;
        bind_checked(this, &[std::slice::from_ref(index), &args].concat())
    }

    fn in_avals(&self) -> Vec<Aval> {
        self.branches.first().map(|b| b.in_avals().cloned().collect()).unwrap_or_default()
    }
}

/// The elementwise union over the branches.
fn any_of(each: &[Vec<bool>]) -> Vec<bool> {
    let count = each.first().map(Vec::len).unwrap_or(0);
    (0..count).map(|i| each.iter().any(|marks| marks[i])).collect()
}

/// Extends branches with different optional results to the results in `want`; `has` marks the results that each branch
/// has, and `widen` adds the missing ones. The rule is applied to each branch only once, because applying it twice at
/// every level would be exponential in the depth of nested conditionals.
fn with_same_results(
    branches: Vec<Traced>,
    has: &[Vec<bool>],
    want: &[bool],
    widen: impl Fn(Vec<Array>, &[bool]) -> Vec<Array>,
) -> Result<Vec<Traced>> {
    let widened = branches
        .into_iter()
        .zip(has)
        .map(|(branch, has)| if has == want { Ok(branch) } else { with_outputs(&branch, |outs| widen(outs, has)) });
    widened.collect()
}

/// Adds zeros to the results of each branch for the values that the other branches log, so that every branch returns the
/// values of all branches in order. The logged values are the last results of a branch.
fn with_logs_of_all(branches: Vec<Traced>, logged: &[Vec<Aval>]) -> Result<Vec<Traced>> {
    if logged.iter().all(Vec::is_empty) {
        return Ok(branches);
    }
    let extended = branches.into_iter().enumerate().map(|(branch, traced)| {
        with_outputs(&traced, |mut outs| {
            let values = outs.split_off(outs.len() - logged[branch].len());
            [outs, zeros_of_all(&logged[..branch]), values, zeros_of_all(&logged[branch + 1..])].concat()
        })
    });
    extended.collect()
}

fn zeros_of_all(avals: &[Vec<Aval>]) -> Vec<Array> {
    avals.iter().flatten().map(|aval| zeros(&aval.clone().strip_weak_type())).collect()
}

/// The types of slots for the residuals of all branches, and the slots of each branch. Residuals of one type share a slot
/// among the results of the non-linear part, because only one branch runs.
fn shared_slots(splits: &[Split]) -> (Vec<Aval>, Vec<Vec<usize>>) {
    let mut slots: Vec<Aval> = Vec::new();
    let mut filled: Vec<Vec<usize>> = Vec::new();
    for split in splits {
        let mut used: Vec<usize> = Vec::new();
        for aval in &split.stored {
            let free = (0..slots.len()).find(|slot| slots[*slot] == *aval && !used.contains(slot));
            used.push(free.unwrap_or(slots.len()));
            if free.is_none() {
                slots.push(aval.clone());
            }
        }
        filled.push(used);
    }
    (slots, filled)
}

/// Computes the `count` results of a branch, then the residuals: `filled` has the slot of each. The other slots are zeros.
fn known_part(split: &Split, inputs: &[Array], count: usize, slots: &[Aval], filled: &[usize]) -> Result<Vec<Array>> {
    let mut outs = eval(&split.known.program, &[&split.known.captures, inputs].concat())?;
    let stored = outs.split_off(count);
    outs.extend(slots.iter().enumerate().map(|(s, aval)| match filled.iter().position(|f| *f == s) {
        Some(k) => stored[k].clone(),
        None => zeros(aval),
    }));
    Ok(outs)
}

impl Primitive for Cond {
    fn name(&self) -> &'static str {
        "cond"
    }

    fn output_count(&self) -> usize {
        self.branches.first().map(|b| b.outputs.len()).unwrap_or(0)
    }

    fn programs(&self) -> Vec<&Program> {
        self.branches.iter().collect()
    }

    fn casts_operands(&self) -> bool {
        false
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let Some(first) = self.branches.first() else { bail!(Value, "Empty branch sequence") };
        let Some((index, args)) = args.split_first() else { bail!(Type, "cond takes an index") };
        // The result is weakly typed if it is in every branch, and takes its sharding from the first branch with one.
        if index.dtype != DType::I32 || index.rank() != 0 {
            bail!(Type, "Branch index must be an int32 scalar, got {index}");
        }
        let mut outs = first.out_avals();
        for branch in &self.branches {
            if branch.inputs.len() != args.len() {
                bail!(Type, "cond takes {} operands for its branches, got {}", branch.inputs.len(), args.len());
            }
            for (arg, want) in args.iter().zip(branch.in_avals()) {
                if (arg.dtype, &arg.shape) != (want.dtype, &want.shape) {
                    bail!(Type, "cond needs an operand of type {want}, got {arg}");
                }
            }
            for (out, other) in outs.iter_mut().zip(&branch.out_avals()) {
                if (out.dtype, &out.shape) != (other.dtype, &other.shape) || !agrees(out, other) {
                    bail!(Type, "cond branches must have equal output types but they differ: {out} and {other}");
                }
                out.weak &= other.weak;
                out.sharding = out.sharding.take().or_else(|| other.sharding.clone());
            }
        }
        Ok(outs.into())
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        let Some((index, inputs)) = args.split_first() else { bail!(Type, "cond takes an index") };
        Ok(self.out_sets(index, inputs)?.into())
    }

    fn flops(&self, _args: &[Aval], _outs: &[Aval]) -> Flops {
        self.branches.iter().map(Program::flops).fold(Flops::default(), Flops::max)
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        if let Some(branch) = cx.platform_index(args[0]).and_then(|index| self.branches.get(index)) {
            return cx.program(branch, &args[1..]);
        }
        let mut regions = Vec::new();
        for (i, branch) in self.branches.iter().enumerate() {
            let part = Part::Name(format!("cond/branch_{i}_fun").into());
            regions.push(cx.region(&[], |cx, _| cx.named(Some(part), |cx| cx.program(branch, &args[1..])))?);
        }
        Ok(cx.op_with("stablehlo.case", &args[..1], "", regions, outs))
    }

    fn thread_state(&self, thread: &dyn ThreadState, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        thread.cast_state(state)?;
        let branches: Vec<_> =
            self.branches.iter().map(|b| thread_state(b, thread, 0, state)).collect::<Result<_>>()?;
        let mut outs = Cond::run(branches, &args[0], &[state, &args[1..]].concat())?;
        let results = outs.drain(state.len()..).collect();
        state.clone_from_slice(&outs);
        Ok(results)
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let index = &args[0];
        let (this, args) = self.fit(index, &args[1..])?;
        let nonzero: Vec<bool> = tangents[1..].iter().map(Option::is_some).collect();
        let count = self.output_count();
        let no_tangents = vec![false; count];
        let derived: Vec<_> =
            this.branches.iter().map(|b| jvp_program(b, &nonzero, &no_tangents)).collect::<Result<_>>()?;
        let (branches, has): (Vec<Traced>, Vec<Vec<bool>>) = derived.into_iter().unzip();
        let any = any_of(&has);
        let zeros: Vec<Array> = this.branches[0].out_avals().iter().map(Array::zeros_of).collect();
        let branches = with_same_results(branches, &has, &any, |mut outs, has| {
            let tangents = spread_marked(outs.drain(count..), has);
            let filled: Vec<Array> =
                tangents.into_iter().zip(&zeros).map(|(t, zero)| t.unwrap_or_else(|| zero.clone())).collect();
            outs.extend(marked(&filled, &any));
            outs
        })?;
        let operands = [&args[..], &marked_tangents(&tangents[1..], &args, &nonzero)].concat();
        let mut results = Cond::run(branches, index, &operands)?;
        let out_tangents: Vec<Array> = results.drain(count..).collect();
        Ok((results, spread_marked(out_tangents, &any)))
    }

    fn linearize(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let index = &args[0];
        let (this, args) = self.fit(index, &args[1..])?;
        let nonzero: Vec<bool> = tangents[1..].iter().map(Option::is_some).collect();
        let avals = this.in_avals();
        let count = this.output_count();
        let splits: Vec<Split> =
            this.branches.iter().map(|b| Split::of(b, &nonzero, |_| true)).collect::<Result<_>>()?;

        // Branches must have equal result types. Therefore the residuals of all branches share slots, and a branch
        // fills the slots that it does not use with zeros.
        let (slots, filled) = shared_slots(&splits);
        let known_branches = splits.iter().zip(&filled);
        let known_branches = known_branches
            .map(|(split, filled)| trace(&avals, |inputs| known_part(split, inputs, count, &slots, filled)))
            .collect::<Result<_>>()?;
        let mut results = Cond::run(known_branches, index, &args)?;
        let stored: Vec<Array> = results.drain(count..).collect();

        // The linear branches run as a second `cond` with the same index. A tangent that is nonzero in any branch is a
        // result of all of them.
        let any = any_of(&splits.iter().map(|s| s.linear.nonzero_out.clone()).collect::<Vec<_>>());
        let linear_operands = marked_tangents(&tangents[1..], &args, &nonzero);
        let operands = [&args[..], &stored, &linear_operands].concat();
        let types: Vec<Aval> = operands.iter().map(Array::aval).collect();
        let out_avals = this.branches[0].out_avals();
        let linear = splits
            .iter()
            .zip(&filled)
            .map(|(split, filled)| {
                trace(&types, |inputs| {
                    let mut operands: Vec<Array> = split
                        .residuals
                        .iter()
                        .map(|residual| match residual {
                            Residual::Input(i) => inputs[*i].clone(),
                            Residual::Outer(array) => array.clone(),
                            Residual::Stored(k) => inputs[args.len() + filled[*k]].clone(),
                        })
                        .collect();
                    operands.extend_from_slice(&inputs[args.len() + slots.len()..]);
                    let outs = spread_marked(eval(&split.linear.program, &operands)?, &split.linear.nonzero_out);
                    let filled: Vec<Array> =
                        outs.iter().zip(&out_avals).map(|(t, aval)| tangent_or_zeros(t, aval)).collect();
                    Ok(marked(&filled, &any))
                })
            })
            .collect::<Result<_>>()?;
        let out_tangents = Cond::run(linear, index, &operands)?;
        Ok((results, spread_marked(out_tangents, &any)))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let index = args[0].value()?;
        let args = &args[1..];
        let sets: Vec<AxisSet> = args.iter().map(|a| a.aval().vma).collect();
        let this = self.fit_sets(&index.vma(), &sets)?.map_or_else(|| self.clone(), |(this, _)| this);
        let mut operands: Vec<Array> =
            args.iter().filter(|a| !a.is_linear()).map(|a| a.value().cloned()).collect::<Result<_>>()?;
        let known_count = operands.len();
        operands.extend(cts.iter().flatten().cloned());
        let has_ct: Vec<bool> = cts.iter().map(Option::is_some).collect();
        let types: Vec<Aval> = operands.iter().map(Array::aval).collect();
        let ins = this.in_avals();

        // Traces the transpose of each branch: it returns the cotangents that are not zero, then the logged values.
        let (mut back, mut has, mut logged, mut layouts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for branch in &this.branches {
            back.push(trace(&types, |inputs| {
                let mut known_inputs = inputs[..known_count].iter().cloned();
                let operands = args.iter().map(|arg| match arg {
                    Operand::NonLinear(array) => {
                        Operand::NonLinear(known_inputs.next().unwrap_or_else(|| array.clone()))
                    }
                    Operand::Linear(aval) => Operand::Linear(aval.clone()),
                });
                let operands: Vec<Operand> = operands.collect();
                let cts = spread_marked(inputs[known_count..].iter().cloned(), &has_ct);
                let (in_cts, layout, values) = backward_logs::nested(|| backward(branch, &operands, &cts))?;
                has.push(in_cts.iter().map(Option::is_some).collect::<Vec<bool>>());
                logged.push(values.iter().map(Array::aval).collect::<Vec<Aval>>());
                layouts.push(layout);
                Ok(in_cts.into_iter().flatten().chain(values).collect())
            })?);
        }
        // Gives all branches the same results: the logs of all branches, and the cotangents that any branch has.
        let back = with_logs_of_all(back, &logged)?;
        let (want, log_count) = (any_of(&has), logged.iter().map(Vec::len).sum::<usize>());
        let back = with_same_results(back, &has, &want, |mut outs, has| {
            let values = outs.split_off(outs.len() - log_count);
            let in_cts = spread_marked(outs, has);
            let filled: Vec<Array> =
                in_cts.iter().zip(&ins).map(|(ct, aval)| tangent_or_zeros(ct, &aval.cotangent())).collect();
            [marked(&filled, &want), values].concat()
        })?;
        let mut results = Cond::run(back, index, &operands)?;
        let mut values = results.drain(results.len() - log_count..).collect::<Vec<_>>().into_iter();
        let logs: Vec<_> = layouts.iter().map(|layout: &Layout| layout.entries(values.by_ref())).collect();
        backward_logs::record(backward_logs::join_branches(index, &logs))?;
        let mut in_cts = vec![None];
        in_cts.extend(spread_marked(results, &want));
        Ok(in_cts)
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let index = &args[0];
        let (this, args) = self.fit(index, &args[1..])?;
        if dims[0].is_some() {
            return this.batch_by_select(axis, index, &args, &dims[1..]);
        }
        let no_outputs = vec![false; this.output_count()];
        let batched: Vec<_> =
            this.branches.iter().map(|b| batch_program(b, axis, &dims[1..], &no_outputs)).collect::<Result<_>>()?;
        let (branches, has): (Vec<Traced>, Vec<Vec<bool>>) = batched.into_iter().unzip();
        let any = any_of(&has);
        let branches = with_same_results(branches, &has, &any, |outs, has| {
            let batched = outs
                .iter()
                .zip(has)
                .zip(&any)
                .map(|((out, has), any)| if any & !has { axis.moved(out, None, 0) } else { out.clone() });
            batched.collect()
        })?;
        let results = Cond::run(branches, index, &args)?;
        Ok((results, any.iter().map(|b| b.then_some(0)).collect()))
    }
}

impl Cond {
    /// Each entry has a separate index, so all branches run and each entry selects its results.
    fn batch_by_select(
        &self,
        axis: &BatchAxis,
        index: &Array,
        args: &[Array],
        dims: &[Option<usize>],
    ) -> Result<(Outputs, Dims)> {
        let mut chosen: Option<Vec<Array>> = None;
        for (i, branch) in self.branches.iter().enumerate() {
            let is_selected = index.equal(i);
            // Branches with checks count only the entries that select them.
            let (outs, out_dims) = match counting(branch)? {
                None => batch_eval(branch, axis, args, dims)?,
                Some(branch) => {
                    let counted_args = [std::slice::from_ref(&is_selected), args].concat();
                    batch_eval(&branch, axis, &counted_args, &[&[Some(0)], dims].concat())?
                }
            };
            let outs: Vec<Array> = outs.iter().zip(out_dims).map(|(out, dim)| axis.moved(out, dim, 0)).collect();
            let Some(others) = &mut chosen else {
                chosen = Some(outs);
                continue;
            };
            for (other, out) in others.iter_mut().zip(outs) {
                let is_selected = is_selected.broadcast_in_dim(out.shape(), &[0]);
                *other = Select.apply(&is_selected, other, &out);
            }
        }
        let chosen = chosen.unwrap_or_default();
        let count = chosen.len();
        Ok((chosen.into(), vec![Some(0); count]))
    }
}
