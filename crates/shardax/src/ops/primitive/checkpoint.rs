//! `checkpoint`, which runs a program whose intermediate values are recomputed for its gradient instead of being saved.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::call::{call_thread_state, in_place, inline_calls};
use super::checkpoint_policy::{CheckpointPolicy, Decision, Offload};
use super::device_put::DevicePut;
use super::optimization_barrier::OptimizationBarrier;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, ThreadState, TypedOuts,
};
use crate::core::program::trace::{Traced, bind1, trace};
use crate::core::program::{Atom, Aval, Eqn, Program, Var};
use crate::error::{Result, err};
use crate::interpret::ad::{backward, jvp_program};
use crate::interpret::batching::batch_program;
use crate::interpret::eval::eval;
use crate::interpret::higher_order::{
    Residual, Split, bind_checked, marked, marked_tangents, operand_sets, sets_of, spread_marked, varying,
};
use crate::ops::state::check_unwritten;
use crate::scope::{self, Part, RECOMPUTED};
use crate::sharding::UnreducedKind;
use crate::sharding::memory::MemoryKind;

/// A checkpointed program, with the program's operands and results.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Checkpoint {
    pub program: Program,
    pub policy: CheckpointPolicy,
    pub prevent_cse: bool,
}

impl Checkpoint {
    /// Runs another program on its captures followed by the operands.
    fn run(&self, Traced { program, captures }: Traced, args: &[Array]) -> Result<Outputs> {
        let program = program.simplified();
        bind_checked(Checkpoint { program, ..self.clone() }, &[&captures, args].concat())
    }

    /// Returns the program for operands that vary over the axes of `args`.
    fn fit(&self, args: &[Array]) -> Result<Program> {
        let avals: Vec<&Aval> = self.program.in_avals().collect();
        match operand_sets(avals.into_iter(), &sets_of(args)) {
            Some(sets) => varying(&self.program, &sets, &[]),
            None => Ok(self.program.clone()),
        }
    }
}

/// A program that also returns the residuals of its gradient, split in two. The first program returns its outputs and
/// the saved values; the second recomputes the residuals from the inputs and the saved values.
struct Recomputed {
    saving: Program,
    again: Program,
}

impl Recomputed {
    /// Splits a program. Its first `count` outputs are the outputs of the checkpointed function.
    fn of(program: &Program, count: usize, policy: &CheckpointPolicy) -> Recomputed {
        // A saved value, or its offloaded copy, which adds one equation to each part.
        let (mut avals, mut saved) = (program.avals.clone(), Vec::new());
        let (mut saving, mut again) = (program.eqns.clone(), Vec::new());
        for eqn in &program.eqns {
            match policy.decide(program, eqn) {
                Decision::Recompute => again.push(eqn.clone()),
                Decision::Save => saved.extend_from_slice(&eqn.outputs),
                Decision::Offload(Offload { src, dst }) => {
                    for &value in &eqn.outputs {
                        let copy = Var(avals.len() as u32);
                        avals.push(program.aval_of(value).clone());
                        saving.push(copied_to(dst, eqn, value, copy));
                        again.push(copied_to(src, eqn, copy, value));
                        saved.push(copy);
                    }
                }
            }
        }
        let mut again = Program {
            inputs: [&program.inputs[..], &saved].concat(),
            eqns: again,
            outputs: program.outputs[count..].to_vec(),
            avals: avals.clone(),
        }
        .simplified();
        let (inputs, mut needed) = (program.inputs.len(), again.used_inputs());
        needed[..inputs].fill(true);
        let saved = marked(&saved, &needed[inputs..]).into_iter().map(Atom::Var);
        let outputs = program.outputs[..count].iter().copied().chain(saved).collect();
        again.inputs = marked(&again.inputs, &needed);
        Recomputed {
            saving: Program { inputs: program.inputs.clone(), eqns: saving, outputs, avals }.simplified(),
            again,
        }
    }
}

impl Primitive for Checkpoint {
    fn name(&self) -> &'static str {
        "checkpoint"
    }

    fn thread_state(&self, thread: &dyn ThreadState, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        call_thread_state(&self.program, thread, args, state, |program, operands| {
            bind_checked(Checkpoint { program, ..self.clone() }, operands)
        })
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    in_place!(_this => Some(Part::Name("checkpoint".into())));

    fn print_params(&self) -> String {
        format!("policy={:?} prevent_cse={}", self.policy, self.prevent_cse)
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let nonzero: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let count = self.output_count();
        let (derived, has) = jvp_program(&self.fit(args)?, &nonzero, &vec![false; count])?;
        let mut outs = self.run(derived, &[args, &marked_tangents(tangents, args, &nonzero)].concat())?;
        let out_tangents: Vec<Array> = outs.drain(count..).collect();
        Ok((outs, spread_marked(out_tangents, &has)))
    }

    fn linearize(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let nonzero: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let count = self.output_count();
        // The backward pass would repeat writes to references, so the program must not contain any.
        check_unwritten(&self.program, "checkpoint and its derivative")?;
        let program = self.fit(args)?;
        // A policy selects among the equations of all calls.
        let inlining = (self.policy != CheckpointPolicy::NothingSaveable).then(inline_calls);
        let Split { known, linear, residuals, .. } = Split::of(&program, &nonzero, |_| true)?;
        drop(inlining);
        let parts = Recomputed::of(&known.program, count, &self.policy);

        let inputs = [&known.captures, args].concat();
        let mut outs = eval(&parts.saving, &inputs)?;
        let residuals_and_inputs = [inputs, outs.split_off(count)].concat();

        // The linear part receives the operands of the program and the saved values.
        let operands = [&residuals_and_inputs[..], &marked_tangents(tangents, args, &nonzero)].concat();
        let types: Vec<Aval> = operands.iter().map(Array::aval).collect();
        let derived = trace(&types, |inputs| {
            let (residuals_and_inputs, tangents) = inputs.split_at(residuals_and_inputs.len());
            let stored = scope::within([Part::Name(RECOMPUTED.into())], || eval(&parts.again, residuals_and_inputs))?;
            let residuals: Vec<Array> = residuals
                .iter()
                .map(|residual| match residual {
                    Residual::Input(i) => residuals_and_inputs[known.captures.len() + i].clone(),
                    Residual::Outer(array) => array.clone(),
                    Residual::Stored(k) => stored[*k].clone(),
                })
                .collect();
            eval(&linear.program, &[&residuals, tangents].concat())
        })?;
        let out_tangents = self.run(derived, &operands)?;
        Ok((outs.into(), spread_marked(out_tangents, &linear.nonzero_out)))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let is_known: Vec<bool> = args.iter().map(|a| !a.is_linear()).collect();
        let has_ct: Vec<bool> = cts.iter().map(Option::is_some).collect();
        let mut operands: Vec<Array> =
            marked(args, &is_known).iter().map(|a| a.value().cloned()).collect::<Result<_>>()?;
        let count = operands.len();
        operands.extend(cts.iter().flatten().cloned());
        if self.prevent_cse {
            // XLA must not merge the recomputation with the first computation, and must not schedule it before it is
            // needed.
            operands = OptimizationBarrier::apply(&operands).into_vec();
        }
        let cts = spread_marked(operands.split_off(count), &has_ct);
        let mut operands = operands.into_iter();
        let args: Vec<Operand> =
            args.iter()
                .map(|arg| match arg {
                    Operand::Linear(aval) => Ok(Operand::Linear(aval.clone())),
                    Operand::NonLinear(_) => operands.next().map(Operand::NonLinear).ok_or_else(|| {
                        err!(Runtime, "internal error: a barrier has too few operands; please report this")
                    }),
                })
                .collect::<Result<_>>()?;
        backward(&self.program, &args, &cts)
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let (batched, has) = batch_program(&self.program, axis, dims, &vec![false; self.output_count()])?;
        Ok((self.run(batched, args)?, has.iter().map(|b| b.then_some(0)).collect()))
    }
}

/// Names a value for checkpoint policies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub name: String,
}

impl Name {
    #[track_caller]
    fn apply(&self, x: &Array) -> Array {
        bind1(self.clone(), std::slice::from_ref(x))
    }
}

impl Primitive for Name {
    fn name(&self) -> &'static str {
        "name"
    }

    fn print_params(&self) -> String {
        format!("name={}", self.name)
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        Ok(args.into())
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

    fn lower(&self, _cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(args.to_vec())
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], tangents.to_vec()))
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        Ok((smallvec![self.apply(&args[0])], dims.to_vec()))
    }
}

/// Returns an equation that copies `from`, a result of `eqn`, to another memory.
fn copied_to(kind: MemoryKind, eqn: &Eqn, from: Var, to: Var) -> Eqn {
    Eqn {
        mesh: None,
        primitive: Arc::new(DevicePut::to(kind)),
        inputs: smallvec![Atom::Var(from)],
        outputs: smallvec![to],
        ..eqn.clone()
    }
}
