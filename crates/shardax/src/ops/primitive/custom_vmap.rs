//! `custom_vmap`: a program with a user-defined batching rule.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::call::{in_place, in_place_thread_state};
use super::custom_jvp::{RuleId, check_types, in_rule};
use crate::core::array::Array;
use crate::core::primitive::{
    BatchAxis, Dims, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, ThreadState, TypedOuts,
};
use crate::core::program::trace::{check_usable, trace};
use crate::core::program::{Aval, Program};
use crate::error::{Result, err};
use crate::interpret::ad::{jvp_eval, jvp_program, tangent_aval};
use crate::interpret::batching::move_batch;
use crate::interpret::higher_order::{bind_checked, spread_marked, tangent_or_zeros, zeros};
use crate::ops::control_flow::each;

/// Maps the size of the batch, the flags of batched arguments (in front), and the arguments to the results and their
/// flags.
pub(crate) type BatchFn = dyn Fn(usize, &[bool], &[Array]) -> Result<(Vec<Array>, Vec<bool>)> + Send + Sync;

/// The way to batch the program.
#[derive(Clone)]
pub(crate) enum VmapRule {
    /// Applies the program to one entry of the batch after another.
    Sequential,
    Custom(RuleId, Arc<BatchFn>),
}

impl VmapRule {
    fn id(&self) -> Option<&RuleId> {
        match self {
            VmapRule::Sequential => None,
            VmapRule::Custom(id, _) => Some(id),
        }
    }

    /// Returns the transformed rule; `id` transforms its identity, and `rule` the function.
    fn derived(&self, id: impl FnOnce(RuleId) -> RuleId, rule: impl FnOnce(Arc<BatchFn>) -> Arc<BatchFn>) -> VmapRule {
        match self {
            VmapRule::Sequential => VmapRule::Sequential,
            VmapRule::Custom(rule_id, function) => VmapRule::Custom(id(rule_id.clone()), rule(function.clone())),
        }
    }
}

/// A program with a custom batching rule. Operands are captured values, then the arguments.
#[derive(Clone)]
pub(crate) struct CustomVmap {
    pub program: Program,
    pub num_consts: usize,
    pub rule: VmapRule,
}

impl PartialEq for CustomVmap {
    fn eq(&self, other: &Self) -> bool {
        (self.rule.id(), self.num_consts, &self.program) == (other.rule.id(), other.num_consts, &other.program)
    }
}

impl Eq for CustomVmap {}

impl Hash for CustomVmap {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.rule.id().hash(state);
        self.program.hash(state);
    }
}

impl fmt::Debug for CustomVmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "custom_vmap {:?}", self.program)
    }
}

impl Primitive for CustomVmap {
    fn name(&self) -> &'static str {
        "custom_vmap_call"
    }

    /// The rule knows nothing of the state, so the state passes through it unchanged.
    fn thread_state(&self, thread: &dyn ThreadState, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        let count = state.len();
        let rule = self.rule.derived(
            |of| RuleId::Threaded { of: Box::new(of), count },
            |rule| {
                Arc::new(move |size, batched: &[bool], args: &[Array]| {
                    let (outs, flags) = rule(size, &batched[count..], &args[count..])?;
                    Ok(([&args[..count], &outs].concat(), [&batched[..count], &flags].concat()))
                })
            },
        );
        in_place_thread_state(&self.program, thread, self.num_consts, args, state, |program, num_consts, operands| {
            bind_checked(CustomVmap { program, num_consts, rule }, operands)
        })
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    in_place!(_this => None);

    /// The derivative's batching rule is the derivative of the rule.
    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let marks: Vec<bool> = self.program.in_avals().map(|aval| tangent_aval(aval).is_some()).collect();
        let operand_tangents: Vec<Array> = args
            .iter()
            .zip(tangents)
            .zip(&marks)
            .filter(|(_, mark)| **mark)
            .map(|((arg, t), _)| tangent_or_zeros(t, &arg.aval()))
            .collect();
        let (consts, own) = marks.split_at(self.num_consts);
        let (captured, own_tangents) = operand_tangents.split_at(consts.iter().filter(|mark| **mark).count());
        if tangents[..self.num_consts].iter().any(Option::is_some) {
            let problem = "Detected differentiation of a custom_vmap function with respect to a closed-over value";
            return Err(err!(NotImplemented, "{problem}, which its rule says nothing about")
                .help("pass the value as an argument of the function"));
        }
        let out_marks: Vec<bool> = self.program.out_avals().iter().map(|a| tangent_aval(a).is_some()).collect();
        let (derivative, _) = jvp_program(&self.program, &marks, &out_marks)?;
        let rule = {
            let (own, out_marks) = (own.to_vec(), out_marks.clone());
            self.rule.derived(
                |of| RuleId::Derived { of: Box::new(of) },
                |rule| {
                    Arc::new(move |size, batched: &[bool], args: &[Array]| {
                        derive(&rule, size, batched, args, &own, &out_marks)
                    })
                },
            )
        };
        // The derivative's captures, and the constants with their tangents, come first.
        let mut program = derivative.program.simplified();
        let count = derivative.captures.len();
        let inputs = program.inputs.clone();
        let (captures, rest) = inputs.split_at(count);
        let (primals, given_inputs) = rest.split_at(args.len());
        let (const_inputs, own_inputs) = primals.split_at(self.num_consts);
        let (captured_inputs, tangent_inputs) = given_inputs.split_at(captured.len());
        program.inputs = [captures, const_inputs, captured_inputs, own_inputs, tangent_inputs].concat();
        let (const_args, own_args) = args.split_at(self.num_consts);
        let num_consts = count + self.num_consts + captured.len();
        let operands = [&derivative.captures, const_args, captured, own_args, own_tangents].concat();
        let mut outs = bind_checked(CustomVmap { program, num_consts, rule }, &operands)?.into_iter();
        let values = outs.by_ref().take(out_marks.len()).collect();
        Ok((values, spread_marked(outs, &out_marks)))
    }

    fn linearize(&self, _args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Err(err!(
            NotImplemented,
            "Linearization failed to produce known values for all output primals: a custom_vmap function does not support reverse-mode differentiation"
        )
        .help("map it first (`grad` of a function that calls `vmap` of it), use `jvp`, or give the function a derivative with `custom_vjp` around it"))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let VmapRule::Custom(_, rule) = &self.rule else {
            return Ok((each(self.clone(), args, dims, axis.size)?, vec![Some(0); self.output_count()]));
        };
        let (consts, arg_dims) = dims.split_at(self.num_consts);
        if consts.iter().any(Option::is_some) {
            return Err(err!(
                NotImplemented,
                "a custom_vmap function captured a value of the function being mapped, which its rule says nothing about"
            )
            .help("pass the value as an argument of the function"));
        }
        let args: Vec<Array> = args[self.num_consts..]
            .iter()
            .zip(arg_dims)
            .map(|(arg, dim)| match dim {
                Some(_) => axis.moved(arg, *dim, 0),
                None => arg.clone(),
            })
            .collect();
        // The rule decides which results are batched, so its results are checked against that decision.
        let batched: Vec<bool> = arg_dims.iter().map(Option::is_some).collect();
        let (outs, flags) = in_rule("custom_vmap", || {
            let (outs, flags) = rule(axis.size, &batched, &args)?;
            outs.iter().try_for_each(check_usable)?;
            Ok((outs, flags))
        })?;
        let avals: Vec<Aval> = self
            .program
            .out_avals()
            .into_iter()
            .zip(&flags)
            .map(|(aval, batched)| if *batched { aval.with_dim(0, axis.size, axis.explicit.clone()) } else { aval })
            .collect();
        check_types("custom vmap rule must return what the function returns, with the batch in front", &outs, &avals)?;
        Ok((outs.into(), flags.iter().map(|batched| batched.then_some(0)).collect()))
    }
}

/// The derivative of a rule. It takes the arguments, and then the tangents of the arguments that have one. It returns
/// the results, and then the tangents of the results that have one.
fn derive(
    rule: &Arc<BatchFn>,
    size: usize,
    batched: &[bool],
    args: &[Array],
    marks: &[bool],
    out_marks: &[bool],
) -> Result<(Vec<Array>, Vec<bool>)> {
    let (primals, operand_tangents) = args.split_at(marks.len());
    let mut operand_tangents = operand_tangents.iter().zip(&batched[marks.len()..]);
    // An argument and its tangent are batched together.
    let mut flags = Vec::new();
    let (mut values, mut tangents) = (Vec::new(), Vec::new());
    for ((primal, is_primal_batched), mark) in primals.iter().zip(batched).zip(marks) {
        let tangent = if *mark { operand_tangents.next() } else { None };
        let flag = *is_primal_batched || tangent.is_some_and(|(_, batched)| *batched);
        let size = flag.then_some(size);
        values.push(with_batch(primal, *is_primal_batched, size));
        tangents.push(tangent.map(|(t, is_batched)| with_batch(t, *is_batched, size)));
        flags.push(flag);
    }
    let avals: Vec<Aval> = values.iter().map(Array::aval).collect();
    let mut out_flags = Vec::new();
    let traced = trace(&avals, |args| {
        let (outs, flags) = rule(size, &flags, args)?;
        out_flags = flags;
        Ok(outs)
    })?;
    let primals = [&traced.captures[..], &values].concat();
    let tangents = [vec![None; traced.captures.len()], tangents].concat();
    let (outs, out_tangents) = jvp_eval(&traced.program, &primals, &tangents, false)?;
    let tangents = outs
        .iter()
        .zip(out_tangents)
        .zip(out_marks)
        .filter(|(_, mark)| **mark)
        .map(|((out, t), _)| t.unwrap_or_else(|| zeros(&out.aval().strip_weak_type())));
    let tangents: Vec<Array> = tangents.collect();
    let tangent_flags: Vec<bool> = out_flags.iter().zip(out_marks).filter(|(_, m)| **m).map(|(f, _)| *f).collect();
    Ok(([outs, tangents].concat(), [out_flags, tangent_flags].concat()))
}

/// Moves the batch of `array` to the front, or adds one of this size; without a size, the array has no batch.
fn with_batch(array: &Array, is_batched: bool, size: Option<usize>) -> Array {
    match size {
        Some(size) => move_batch(array, is_batched.then_some(0), 0, size),
        None => array.clone(),
    }
}
