//! `while`, a loop that runs while a condition on its carry holds.

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
use crate::error::{Result, bail, err};
use crate::interpret::ad::{jvp_program, tangent_aval};
use crate::interpret::batching::{batch_eval, batch_program};
use crate::interpret::eval::eval;
use crate::interpret::higher_order::{
    bind_checked, cast_all, marked, marked_tangents, new_var, operand_sets, sets_of, spread_marked, varying,
};
use crate::interpret::memo;
use crate::interpret::thread_state::thread_eval;
use crate::interpret::vary;
use crate::ops::checkify::counting;
use crate::scope::Part;
use crate::shape::AxisSet;

/// A loop. Operands are the constants of the condition, the constants of the body, and the initial carry; results are
/// the final carry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct While {
    /// Maps the condition's constants and the carry to one boolean.
    pub cond: Program,
    /// Maps the body's constants and the carry to the next carry.
    pub body: Program,
    pub cond_consts: usize,
    pub body_consts: usize,
}

impl While {
    fn num_consts(&self) -> usize {
        self.cond_consts + self.body_consts
    }

    fn num_carry(&self) -> usize {
        self.body.outputs.len()
    }

    /// Returns the types of the operands.
    fn in_avals(&self) -> impl Iterator<Item = &Aval> + Clone {
        let cond = self.cond.inputs.iter().take(self.cond_consts).map(|v| self.cond.aval_of(*v));
        cond.chain(self.body.inputs.iter().map(|v| self.body.aval_of(*v)))
    }

    /// Splits a list into the constants of the condition, the constants of the body, and the carry.
    fn parts<'a, T>(&self, list: &'a [T]) -> (&'a [T], &'a [T], &'a [T]) {
        let (cond, rest) = list.split_at(self.cond_consts);
        let (body, carry) = rest.split_at(self.body_consts);
        (cond, body, carry)
    }

    /// Returns the axes that the carry varies over, and extends the axes of the carry's operands in `sets` to them.
    fn carry_sets(&self, sets: &mut [AxisSet]) -> Result<Vec<AxisSet>> {
        loop {
            let outs = vary::outputs(&self.body, &sets[self.cond_consts..])?;
            let mut grown = false;
            for (set, out) in sets[self.num_consts()..].iter_mut().zip(&outs) {
                grown |= !out.is_subset(set);
                *set = set.union(out);
            }
            if !grown {
                return Ok(sets[self.num_consts()..].to_vec());
            }
        }
    }

    /// Returns the loop and its operands, cast to agree on the manual axes that each operand varies over.
    pub(crate) fn fit(&self, args: &[Array]) -> Result<(While, Vec<Array>)> {
        let Some(mut sets) = operand_sets(self.in_avals(), &sets_of(args)) else {
            return Ok((self.clone(), args.to_vec()));
        };
        let carry = self.carry_sets(&mut sets)?;
        let (cond_sets, _, _) = self.parts(&sets);
        let cond = varying(&self.cond, &[cond_sets, &carry].concat(), &[])?;
        let body = varying(&self.body, &sets[self.cond_consts..], &carry)?;
        Ok((While { cond, body, ..*self }, cast_all(args, &sets)))
    }

    /// Runs the loop with captures separate from its operands.
    fn run(cond: Traced, body: Traced, cond_args: &[Array], body_args: &[Array], carry: &[Array]) -> Result<Outputs> {
        let this = While {
            cond_consts: cond.captures.len() + cond_args.len(),
            body_consts: body.captures.len() + body_args.len(),
            cond: cond.program.simplified(),
            body: body.program.simplified(),
        };
        let args = [&cond.captures[..], cond_args, &body.captures, body_args, carry].concat();
        let (this, args) = this.fit(&args)?;
        bind_checked(this, &args)
    }
}

fn types_of(arrays: &[Array]) -> Vec<Aval> {
    arrays.iter().map(Array::aval).collect()
}

impl Primitive for While {
    fn name(&self) -> &'static str {
        "while"
    }

    fn output_count(&self) -> usize {
        self.num_carry()
    }

    fn programs(&self) -> Vec<&Program> {
        vec![&self.cond, &self.body]
    }

    fn print_params(&self) -> String {
        format!("cond_consts={} body_consts={}", self.cond_consts, self.body_consts)
    }

    fn casts_operands(&self) -> bool {
        false
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let count = self.num_consts() + self.num_carry();
        if args.len() != count {
            bail!(Type, "while takes {count} operands, got {}", args.len());
        }
        for (arg, expected) in args.iter().zip(self.in_avals()) {
            if (arg.dtype, &arg.shape) != (expected.dtype, &expected.shape) {
                bail!(Type, "while needs an operand of type {expected}, got {arg}");
            }
        }
        let predicate = self.cond.out_avals();
        if !matches!(&predicate[..], [p] if p.dtype == DType::Bool && p.rank() == 0) {
            bail!(Type, "cond_fun must return a boolean scalar, but got output type(s) {predicate:?}");
        }
        // A carry is weakly typed if it is before and after a step.
        let (_, _, carry) = self.parts(args);
        carry
            .iter()
            .zip(self.body.out_avals())
            .map(|(arg, out)| {
                if (arg.dtype, &arg.shape) == (out.dtype, &out.shape) && agrees(arg, &out) {
                    let sharding = out.sharding.clone().or_else(|| arg.sharding.clone());
                    Ok(Aval { weak: arg.weak && out.weak, sharding, ..out })
                } else {
                    Err(err!(Type, "body_fun output and input must have identical types, got {arg} and {out}").help(
                        "return the loop state with the shapes and dtypes that it had, for example with `astype`",
                    ))
                }
            })
            .collect()
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        let mut sets = args.to_vec();
        let carry = self.carry_sets(&mut sets)?;
        // Devices that leave the loop at different times have different values, whatever the body does.
        let (cond_sets, _, _) = self.parts(&sets);
        let predicate = vary::outputs(&self.cond, &[cond_sets, &carry].concat())?;
        Ok(carry.iter().map(|set| predicate.iter().fold(set.clone(), |a, b| a.union(b))).collect())
    }

    fn flops(&self, _args: &[Aval], _outs: &[Aval]) -> Flops {
        let once = self.cond.flops() + self.body.flops();
        Flops { unbounded_loops: once.unbounded_loops + 1, ..once }
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let types: Vec<Aval> = args.iter().map(|v| cx.aval(*v)).collect();
        // Everything that the loop reads is an operand, because a partitioned loop must not refer to text outside of it.
        let condition = cx.region(&types, |cx, v| {
            let v = cx.with_addends_of(args, v);
            let (consts, _, carry) = self.parts(&v);
            cx.named(Some(Part::Name("while/cond".into())), |cx| cx.program(&self.cond, &[consts, carry].concat()))
        })?;
        let body = cx.region(&types, |cx, v| {
            let v = cx.with_addends_of(args, v);
            cx.set_invariant(&v[..self.num_consts()]);
            let body = Part::Name("while/body".into());
            let next_carry = cx.named(Some(body), |cx| cx.program(&self.body, &v[self.cond_consts..]))?;
            Ok([&v[..self.num_consts()], &next_carry].concat())
        })?;
        let mut results = cx.op_with("stablehlo.while", args, "", vec![condition, body], &types);
        Ok(results.split_off(results.len() - outs.len()))
    }

    /// The condition is evaluated before the loop and at the end of each step, so that it updates the state exactly
    /// once per evaluation.
    fn thread_state(&self, thread: &dyn ThreadState, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        thread.cast_state(state)?;
        let (cond_args, body_args, carry) = self.parts(args);
        let predicate = thread_eval(&self.cond, thread, &[cond_args, carry].concat(), state)?;
        thread.cast_state(state)?;
        let count = state.len();
        let carry: Vec<Array> = [state, &predicate[..], carry].concat();
        let cond = trace(&types_of(&carry), |args| Ok(vec![args[count].clone()]))?;
        let body = trace(&types_of(&[cond_args, body_args, &carry].concat()), |args| {
            let (cond_args, body_args, carry) = self.parts(args);
            let mut state = carry[..count].to_vec();
            let next_carry = thread_eval(&self.body, thread, &[body_args, &carry[count + 1..]].concat(), &mut state)?;
            let continues = thread_eval(&self.cond, thread, &[cond_args, &next_carry].concat(), &mut state)?;
            thread.cast_state(&mut state)?;
            Ok([state, continues, next_carry].concat())
        })?;
        let outs = While::run(cond, body, &[], &[cond_args, body_args].concat(), &carry)?;
        state.clone_from_slice(&outs[..count]);
        Ok(outs[count + 1..].into())
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let (this, args) = self.fit(args)?;
        let (cond_args, body_args, carry) = this.parts(&args);
        // The condition and its constants have no derivative.
        let tangents = &tangents[this.cond_consts..];
        let mut nonzero: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let carry_start = this.body_consts;
        let search = memo::search();
        let (mut body, has) = loop {
            let (body, has) = jvp_program(&this.body, &nonzero, &nonzero[carry_start..])?;
            if has == nonzero[carry_start..] {
                break (body, has);
            }
            nonzero[carry_start..].copy_from_slice(&has);
        };
        drop(search);
        // Reorders the inputs from (captures, constants, carry, constants' tangents, carry's tangents) to (captures,
        // constants, constants' tangents, carry, carry's tangents).
        let const_tangents = nonzero[..carry_start].iter().filter(|nz| **nz).count();
        let first_carry_input = body.captures.len() + carry_start;
        body.program.inputs[first_carry_input..first_carry_input + carry.len() + const_tangents]
            .rotate_left(carry.len());

        let mut cond = this.cond.clone();
        for aval in marked(&carry.iter().map(Array::aval).collect::<Vec<_>>(), &has) {
            // The condition takes the carry's tangents too, but does not use them.
            let unused = new_var(&mut cond, tangent_aval(&aval).unwrap_or(aval));
            cond.inputs.push(unused);
        }
        let operand_tangents = marked_tangents(tangents, &args[this.cond_consts..], &nonzero);
        let (given_consts, given_carry) = operand_tangents.split_at(const_tangents);
        let mut results = While::run(
            Traced { program: cond, captures: Vec::new() },
            body,
            cond_args,
            &[body_args, given_consts].concat(),
            &[carry, given_carry].concat(),
        )?;
        let out_tangents: Vec<Array> = results.drain(this.num_carry()..).collect();
        Ok((results, spread_marked(out_tangents, &has)))
    }

    fn linearize(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        // The number of steps is unknown, so residuals cannot be stacked. Instead, the linear part repeats the
        // non-linear one. This suffices for forward mode; reverse mode needs a transpose, which is an error.
        let (this, args) = self.fit(args)?;
        let count = this.num_carry();
        let outs = bind_checked(this, &args)?;
        if tangents[self.cond_consts..].iter().all(Option::is_none) {
            return Ok((outs, vec![None; count]));
        }
        let (_, out_tangents) = self.jvp(&args, tangents)?;
        Ok((outs, out_tangents))
    }

    fn transpose(&self, _cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        Err(err!(
            Value,
            "Reverse-mode differentiation does not work for while_loop or fori_loop with a dynamic trip count; \
             use scan or fori_loop with static bounds"
        )
        .help("reverse mode needs the values of every step: bound the steps with `fori_loop(0, n, ..)` or `scan`, and let those past the end keep the carry with `where_`; the derivative of a root or a fixed point needs no steps with `control_flow::custom_root`; forward mode (`jvp`) works as it is"))
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let (this, args) = self.fit(args)?;
        let (cond_args, body_args, carry) = this.parts(&args);
        let (cond_dims, body_dims, carry_dims) = this.parts(dims);
        let mut batched: Vec<bool> = carry_dims.iter().map(Option::is_some).collect();
        let search = memo::search();
        let (cond, body, each) = loop {
            let inner: Dims = batched.iter().map(|b| b.then_some(0)).collect();
            let (body, has) = batch_program(&this.body, axis, &[body_dims, &inner].concat(), &batched)?;
            if has != batched {
                batched = has;
                continue;
            }
            let (cond, each) = batch_program(&this.cond, axis, &[cond_dims, &inner].concat(), &[false])?;
            if each == [true] && !batched.iter().all(|b| *b) {
                // Each entry stops at a different step, so the entire carry differs between entries.
                batched.fill(true);
                continue;
            }
            break (cond, body, each == [true]);
        };
        drop(search);
        let entries = this.body.in_avals().skip(body_args.len());
        let moved: Vec<Array> = entries
            .enumerate()
            .map(|(i, entry)| match batched[i] {
                true => axis.first_carry(&carry[i], carry_dims[i], entry),
                false => carry[i].clone(),
            })
            .collect();
        let out_dims = batched.iter().map(|b| b.then_some(0)).collect();
        if !each {
            return Ok((While::run(cond, body, cond_args, body_args, &moved)?, out_dims));
        }

        // The loop runs while any entry does; finished entries keep their carry.
        let any = trace(&[types_of(cond_args), types_of(&moved)].concat(), |inputs| {
            let (consts, carry) = inputs.split_at(cond_args.len());
            Ok(vec![evaluate_condition(&cond, consts, carry)?.any(..)])
        })?;
        let step = trace(&[types_of(cond_args), types_of(body_args), types_of(&moved)].concat(), |inputs| {
            let (consts, rest) = inputs.split_at(cond_args.len());
            let (_, carry) = rest.split_at(body_args.len());
            let running = evaluate_condition(&cond, consts, carry)?;
            let next = match counting(&this.body)? {
                None => eval(&body.program, &[&body.captures, rest].concat())?,
                Some(counted) => {
                    let inner: Dims = vec![Some(0); carry.len()];
                    let dims = [&[Some(0)], body_dims, &inner].concat();
                    let counted_args = [std::slice::from_ref(&running), rest].concat();
                    let (outs, dims) = batch_eval(&counted, axis, &counted_args, &dims)?;
                    outs.iter().zip(dims).map(|(out, dim)| axis.moved(out, dim, 0)).collect()
                }
            };
            Ok(carry
                .iter()
                .zip(next)
                .map(|(old, new)| {
                    let running = running.broadcast_in_dim(new.shape(), &[0]);
                    Select.apply(&running, old, &new)
                })
                .collect())
        })?;
        Ok((While::run(any, step, cond_args, &[cond_args, body_args].concat(), &moved)?, out_dims))
    }
}

fn evaluate_condition(cond: &Traced, args: &[Array], carry: &[Array]) -> Result<Array> {
    let outs = eval(&cond.program, &[&cond.captures, args, carry].concat())?;
    outs.into_iter()
        .next()
        .ok_or_else(|| err!(Runtime, "internal error: the condition of a while loop has no result; please report this"))
}
