//! `scan`: a loop over the leading axis of arrays that carries a state and stacks its outputs.

mod reverse;

use reverse::reduce_stacked;
use smallvec::SmallVec;

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value, ints};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, ThreadState, TypedOuts,
};
use crate::core::program::trace::{Traced, trace};
use crate::core::program::{Aval, Flops, Program};
use crate::core::sharding_rule::agrees;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, bail};
use crate::interpret::ad::{Linearized, jvp_program};
use crate::interpret::batching::batch_program;
use crate::interpret::eval::eval;
use crate::interpret::higher_order::{
    Residual, Split, bind_checked, cast_all, cast_up, marked, marked_tangents, operand_sets, sets_of, spread_marked,
    tangent_or_zeros, varying,
};
use crate::interpret::memo;
use crate::interpret::thread_state::thread_state;
use crate::interpret::vary;
use crate::ops::lax;
use crate::ops::primitive::reshard::on_parts;
use crate::scope::Part;
use crate::shape::AxisSet;
use crate::sharding::{DimSpec, Typed};

/// A loop of `length` steps. Operands are the constants, the initial carry, and the arrays scanned along their
/// leading axis; results are the final carry and the outputs of all steps, stacked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scan {
    /// Maps constants, carry and one slice of each scanned array to carry and outputs.
    pub body: Program,
    pub length: usize,
    /// `true` if the steps run from the last slice to the first.
    pub reverse: bool,
    pub num_consts: usize,
    pub num_carry: usize,
    /// The number of steps per iteration of the compiled loop.
    pub unroll: usize,
}

/// The role of an operand or a result in the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Const,
    Carry,
    Scanned,
}

use Role::{Carry, Const, Scanned};

/// Sorts positions by role; positions with the same role stay in order.
fn by_role(roles: &[Role]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..roles.len()).collect();
    order.sort_by_key(|&i| roles[i]);
    order
}

impl Scan {
    fn in_roles(&self) -> Vec<Role> {
        let mut roles = vec![Scanned; self.body.inputs.len()];
        roles[..self.num_consts].fill(Const);
        roles[self.num_consts..][..self.num_carry].fill(Carry);
        roles
    }

    fn out_roles(&self) -> Vec<Role> {
        let mut roles = vec![Scanned; self.body.outputs.len()];
        roles[..self.num_carry].fill(Carry);
        roles
    }

    /// Splits the body into its non-linear and its linear part. Also marks the operands that have a tangent in the
    /// loop: a carry has a tangent if any step adds one, so the split is repeated until no further carry has one.
    fn split_body(&self, tangents: &[Option<Array>]) -> Result<(Split, Vec<bool>)> {
        let (nc, nk, in_roles) = (self.num_consts, self.num_carry, self.in_roles());
        let mut nonzero: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let _search = memo::search();
        loop {
            // Constants and scanned arrays are available to the linear loop too.
            let split = Split::of(&self.body, &nonzero, |i| in_roles[i] != Carry)?;
            let carry = &split.linear.nonzero_out[..nk];
            if carry.iter().zip(&nonzero[nc..]).all(|(out, has_tangent)| *has_tangent || !*out) {
                return Ok((split, nonzero));
            }
            nonzero[nc..nc + nk].iter_mut().zip(carry).for_each(|(has_tangent, out)| *has_tangent |= *out);
        }
    }

    /// Returns the body of the linear loop, which computes the tangents of the results from residuals and tangents. Also marks the
    /// results that have a tangent.
    fn linear_body(&self, linear: &Linearized, nonzero: &[bool]) -> Result<(Traced, Vec<bool>)> {
        let (nc, nk) = (self.num_consts, self.num_carry);
        let has: Vec<bool> = nonzero[nc..nc + nk].iter().chain(&linear.nonzero_out[nk..]).copied().collect();
        let avals: Vec<Aval> = linear.program.in_avals().cloned().collect();
        let out_avals = self.body.out_avals();
        let body = trace(&avals, |inputs| {
            let outs = spread_marked(eval(&linear.program, inputs)?, &linear.nonzero_out);
            let tangents = outs.iter().zip(&out_avals).map(|(t, aval)| cast_up(&tangent_or_zeros(t, aval), &aval.vma));
            Ok(marked(&tangents.collect::<Vec<Array>>(), &has))
        })?;
        Ok((body, has))
    }

    /// Runs a loop like this one with another body, whose inputs (after its captures) and outputs have these roles,
    /// in any order; operands and results are in the order of the body's.
    fn run(&self, body: Traced, in_roles: &[Role], out_roles: &[Role], args: Vec<Array>) -> Result<Vec<Array>> {
        let captures = body.captures.len();
        let mut roles = vec![Const; captures];
        roles.extend(in_roles);
        let mut operands = body.captures;
        operands.extend(args);

        let order = by_role(&roles);
        let out_order = by_role(out_roles);
        let mut program = body.program.simplified();
        program.inputs = order.iter().map(|&i| program.inputs[i]).collect();
        program.outputs = out_order.iter().map(|&i| program.outputs[i]).collect();
        let scan = Scan {
            body: program,
            num_consts: roles.iter().filter(|r| **r == Const).count(),
            num_carry: roles.iter().filter(|r| **r == Carry).count(),
            ..*self
        };
        let operands: Vec<Array> = order.iter().map(|&i| operands[i].clone()).collect();
        let (scan, operands) = scan.fit(&operands)?;
        let mut results: Vec<(usize, Array)> = out_order.into_iter().zip(bind_checked(scan, &operands)?).collect();
        results.sort_by_key(|(i, _)| *i);
        Ok(results.into_iter().map(|(_, array)| array).collect())
    }

    /// The loop and its operands, cast to agree on the manual axes that each operand varies over.
    pub(crate) fn fit(&self, args: &[Array]) -> Result<(Scan, Vec<Array>)> {
        match self.fit_sets(&sets_of(args))? {
            Some((scan, sets)) => Ok((scan, cast_all(args, &sets))),
            None => Ok((self.clone(), args.to_vec())),
        }
    }

    /// The loop for operands that vary over these axes, and the axes to cast them to. `None` if they already
    /// agree.
    fn fit_sets(&self, args: &[AxisSet]) -> Result<Option<(Scan, Vec<AxisSet>)>> {
        let Some(mut sets) = operand_sets(self.body.inputs.iter().map(|v| self.body.aval_of(*v)), args) else {
            return Ok(None);
        };
        let carry = self.carry_sets(&mut sets)?;
        let body = varying(&self.body, &sets, &carry)?;
        Ok(Some((Scan { body, ..self.clone() }, sets)))
    }

    /// Returns the axes that the carry varies over: its initial axes, and the axes that the body adds in any number of
    /// steps. Extends the axes of the carry's operands in `sets` to them.
    fn carry_sets(&self, sets: &mut [AxisSet]) -> Result<Vec<AxisSet>> {
        let inputs = self.num_consts..self.num_consts + self.num_carry;
        loop {
            let outs = vary::outputs(&self.body, sets)?;
            let mut grown = false;
            for (set, out) in sets[inputs.clone()].iter_mut().zip(&outs) {
                grown |= !out.is_subset(set);
                *set = set.union(out);
            }
            if !grown {
                return Ok(sets[inputs].to_vec());
            }
        }
    }

    /// Returns the type of the operand that provides each step's input of type `aval`.
    fn operand(&self, role: Role, aval: &Aval) -> Aval {
        if role != Scanned {
            return aval.clone();
        }
        aval.with_dim(0, self.length, DimSpec::None)
    }
}

impl Primitive for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn output_count(&self) -> usize {
        self.body.outputs.len()
    }

    fn programs(&self) -> Vec<&Program> {
        vec![&self.body]
    }

    fn print_params(&self) -> String {
        format!(
            "length={} reverse={} num_consts={} num_carry={} unroll={}",
            self.length, self.reverse, self.num_consts, self.num_carry, self.unroll
        )
    }

    fn casts_operands(&self) -> bool {
        false
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (in_roles, outs) = (self.in_roles(), self.body.out_avals());
        if args.len() != in_roles.len() || outs.len() < self.num_carry {
            bail!(Type, "scan takes {} operands, got {}", in_roles.len(), args.len());
        }
        for ((arg, role), aval) in args.iter().zip(&in_roles).zip(self.body.in_avals()) {
            let want = self.operand(*role, aval);
            if (arg.dtype, &arg.shape) != (want.dtype, &want.shape) {
                bail!(Type, "scan needs an operand of type {want}, got {arg}");
            }
        }
        let carry = &args[self.num_consts..][..self.num_carry];
        for (arg, out) in carry.iter().zip(&outs) {
            if (arg.dtype, &arg.shape) != (out.dtype, &out.shape) || !agrees(arg, out) {
                bail!(
                    Type,
                    "scan body function carry input and carry output must have equal types, got {arg} and {out}"
                );
            }
        }
        // A carry is weakly typed if it is before and after a step, and keeps its initial sharding otherwise.
        let typed = outs.iter().zip(self.out_roles()).enumerate().map(|(i, (out, role))| {
            let weak = out.weak && carry.get(i).is_none_or(|arg| arg.weak);
            let sharding = out.sharding.clone().or_else(|| carry.get(i)?.sharding.clone());
            self.operand(role, &Aval { weak, sharding, ..out.clone() })
        });
        Ok(typed.collect())
    }

    fn vary(&self, args: &[AxisSet]) -> Result<SmallVec<[AxisSet; 1]>> {
        let mut sets = args.to_vec();
        let carry = self.carry_sets(&mut sets)?;
        let outs = vary::outputs(&self.body, &sets)?;
        Ok(carry.into_iter().chain(outs.into_iter().skip(self.num_carry)).collect())
    }

    fn flops(&self, _args: &[Aval], _outs: &[Aval]) -> Flops {
        self.body.flops() * self.length as f64
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.from_results()
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let (consts, rest) = args.split_at(self.num_consts);
        let (init, xs) = rest.split_at(self.num_carry);
        let stacked = &outs[self.num_carry..];
        let mut state: Vec<Value> = init.to_vec();
        for aval in stacked {
            let zeros = cx.constant(Scalar::Int(0), aval);
            state.push(match aval.sharding().filter(|typed| !typed.unreduced().is_empty()) {
                Some(typed) => cx.constrain(zeros, typed),
                None => zeros,
            });
        }

        let mut sizes = vec![self.length];
        xs.iter().for_each(|v| sizes.extend(cx.shape(*v).iter()));
        stacked.iter().for_each(|aval| sizes.extend(aval.shape.iter()));
        let index = Aval::scalar(DType::for_indices(&sizes));
        let unroll = self.unroll.clamp(1, self.length.max(1));
        let loop_steps = if self.length / unroll > 1 { self.length - self.length % unroll } else { 0 };
        if loop_steps > 0 {
            state = self.lower_loop(cx, (consts, xs), state, &index, (loop_steps, unroll))?;
        }
        // The remaining steps, fewer than `unroll`, are written after the loop.
        for step in loop_steps..self.length {
            let position = if self.reverse { self.length - 1 - step } else { step };
            let position = cx.constant(Scalar::Int(position as i128), &index);
            state = self.lower_step(cx, position, consts, xs, &state)?;
        }
        Ok(state)
    }

    fn thread_state(&self, thread: &dyn ThreadState, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        thread.cast_state(state)?;
        let count = state.len();
        let body = thread_state(&self.body, thread, self.num_consts, state)?;
        let carry = std::iter::repeat_n(Carry, count);
        let mut in_roles = self.in_roles();
        in_roles.splice(self.num_consts..self.num_consts, carry.clone());
        let out_roles: Vec<Role> = carry.chain(self.out_roles()).collect();
        let mut operands = args.to_vec();
        operands.splice(self.num_consts..self.num_consts, state.drain(..));
        let mut outs = self.run(body, &in_roles, &out_roles, operands)?;
        state.extend(outs.drain(..count));
        Ok(outs.into())
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let (scan, args) = self.fit(args)?;
        let (nc, nk) = (scan.num_consts, scan.num_carry);
        let (in_roles, out_roles) = (scan.in_roles(), scan.out_roles());
        // A carry has a tangent if any step adds one.
        let mut nonzero: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        let search = memo::search();
        let (body, has) = loop {
            let mut want = vec![false; out_roles.len()];
            want[..nk].copy_from_slice(&nonzero[nc..nc + nk]);
            let (body, has) = jvp_program(&scan.body, &nonzero, &want)?;
            if has[..nk] == want[..nk] {
                break (body, has);
            }
            nonzero[nc..nc + nk].copy_from_slice(&has[..nk]);
        };
        drop(search);
        let in_tangents = marked_tangents(tangents, &args, &nonzero);
        let operands = [args, in_tangents].concat();
        let ins = [in_roles.clone(), marked(&in_roles, &nonzero)].concat();
        let outs = [out_roles.clone(), marked(&out_roles, &has)].concat();
        let mut results = scan.run(body, &ins, &outs, operands)?;
        let out_tangents = results.split_off(out_roles.len());
        Ok((results.into(), spread_marked(out_tangents, &has)))
    }

    fn linearize(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let (scan, args) = self.fit(args)?;
        let (in_roles, out_roles) = (scan.in_roles(), scan.out_roles());
        let (split, nonzero) = scan.split_body(tangents)?;
        let Split { known, linear, mut residuals, .. } = split;

        // The non-linear loop stacks the residuals of each step as further scanned results.
        let nonlinear = reduce_stacked(known, &mut residuals, (&in_roles, &out_roles), &args)?;
        let mut outs = out_roles.clone();
        outs.resize(nonlinear.program.outputs.len(), Scanned);
        let mut results = scan.run(nonlinear, &in_roles, &outs, args.clone())?;

        // The linear loop receives the residuals and the tangents.
        let (body, has) = scan.linear_body(&linear, &nonzero)?;
        let (mut ins, mut operands): (Vec<Role>, Vec<Array>) = residuals
            .into_iter()
            .map(|residual| match residual {
                Residual::Input(i) => (in_roles[i], args[i].clone()),
                Residual::Outer(array) => (Const, array),
                Residual::Stored(k) => (Scanned, results[k].clone()),
            })
            .unzip();
        ins.extend(marked(&in_roles, &nonzero));
        operands.extend(marked_tangents(tangents, &args, &nonzero));
        let out_tangents = scan.run(body, &ins, &marked(&out_roles, &has), operands)?;
        results.truncate(out_roles.len());
        Ok((results.into(), spread_marked(out_tangents, &has)))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        match self.fit_sets(&args.iter().map(|a| a.aval().vma).collect::<Vec<_>>())? {
            Some((scan, _)) => scan.transpose_fitted(cts, args),
            None => self.transpose_fitted(cts, args),
        }
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let (scan, args) = self.fit(args)?;
        let (nc, nk) = (scan.num_consts, scan.num_carry);
        let (in_roles, out_roles) = (scan.in_roles(), scan.out_roles());
        // A carry is batched if any step makes it so.
        let mut batched: Vec<bool> = dims.iter().map(Option::is_some).collect();
        let search = memo::search();
        let (body, has) = loop {
            let inner: Dims = (0..args.len())
                .map(|i| batched[i].then(|| if in_roles[i] == Const { dims[i].unwrap_or(0) } else { 0 }))
                .collect();
            let mut force = vec![false; out_roles.len()];
            force[..nk].copy_from_slice(&batched[nc..nc + nk]);
            let (body, has) = batch_program(&scan.body, axis, &inner, &force)?;
            if has[..nk] == force[..nk] {
                break (body, has);
            }
            batched[nc..nc + nk].copy_from_slice(&has[..nk]);
        };
        drop(search);
        // The batch axis follows the scanned axis, because the loop scans the leading one.
        let operands = args.iter().zip(scan.body.in_avals()).enumerate().map(|(i, (arg, entry))| match in_roles[i] {
            Carry if batched[i] => axis.first_carry(arg, dims[i], entry),
            Scanned if batched[i] => axis.moved(arg, dims[i], 1),
            _ => arg.clone(),
        });
        let results = scan.run(body, &in_roles, &out_roles, operands.collect())?;
        let out_dims = has.iter().zip(&out_roles).map(|(has, role)| has.then_some(if *role == Carry { 0 } else { 1 }));
        Ok((results.into(), out_dims.collect()))
    }
}

impl Scan {
    /// Writes a loop over the first `steps` steps, whose body has `unroll` steps. Returns the state after it.
    fn lower_loop(
        &self,
        cx: &mut Lowering,
        (consts, xs): (&[Value], &[Value]),
        state: Vec<Value>,
        index: &Aval,
        (steps, unroll): (usize, usize),
    ) -> Result<Vec<Value>> {
        // All values that the loop reads are its operands: a partitioned loop must not refer to text outside of it.
        let counter = cx.constant(Scalar::Int(0), index);
        let operands: Vec<Value> = consts.iter().chain(xs).chain([&counter]).chain(&state).copied().collect();
        let types: Vec<Aval> = operands.iter().map(|v| cx.aval(*v)).collect();
        let (xs_start, counter_start) = (consts.len(), consts.len() + xs.len());
        let condition = cx.region(&types, |cx, v| {
            let limit = cx.constant(Scalar::Int(steps as i128), index);
            Ok(vec![cx.compare("LT", v[counter_start], limit)])
        })?;
        let body = cx.region(&types, |cx, v| {
            let v = cx.with_addends_of(&operands, v);
            cx.set_invariant(&v[..xs_start]);
            let mut counter = v[counter_start];
            let mut state = v[counter_start + 1..].to_vec();
            let increment = cx.constant(Scalar::Int(1), index);
            for _ in 0..unroll {
                let position = if self.reverse {
                    let last_step = cx.constant(Scalar::Int(self.length as i128 - 1), index);
                    cx.op("stablehlo.subtract", &[last_step, counter], "", index)
                } else {
                    counter
                };
                state = self.lower_step(cx, position, &v[..xs_start], &v[xs_start..counter_start], &state)?;
                counter = cx.op("stablehlo.add", &[counter, increment], "", index);
            }
            let mut next_operands = v[..counter_start].to_vec();
            next_operands.push(counter);
            next_operands.extend(state);
            Ok(next_operands)
        })?;
        let results = cx.op_with("stablehlo.while", &operands, "", vec![condition, body], &types);
        Ok(results[counter_start + 1..].to_vec())
    }

    /// One step of the loop: from the carry and the stacked outputs so far to the next.
    fn lower_step(
        &self,
        cx: &mut Lowering,
        at: Value,
        consts: &[Value],
        xs: &[Value],
        state: &[Value],
    ) -> Result<Vec<Value>> {
        let (carry, stacked) = state.split_at(self.num_carry);
        let mut inputs = [consts, carry].concat();
        // A step reads one row of each scanned array, and writes one row of each stacked output.
        let slices: Vec<Aval> = self.body.in_avals().skip(inputs.len()).cloned().collect();
        for (x, aval) in xs.iter().zip(&slices) {
            if let Some(step) = aval.sharding().filter(|typed| !typed.unreduced().is_empty() && !cx.is_local()) {
                inputs.push(addends_at(cx, *x, at, (aval, step))?);
                continue;
            }
            let mut sizes = aval.shape.clone();
            sizes.insert(0, 1);
            let operands = indices(cx, &[*x], at, aval.rank());
            let attrs = format!("slice_sizes = {}", ints(&sizes));
            let slice = cx.op("stablehlo.dynamic_slice", &operands, &attrs, &aval.with_shape(sizes));
            inputs.push(cx.op("stablehlo.reshape", &[slice], "", aval));
        }
        let mut outs = cx.named(Some(Part::Name("while/body".into())), |cx| cx.program(&self.body, &inputs))?;
        let ys = outs.split_off(self.num_carry);
        for (buffer, y) in stacked.iter().zip(ys) {
            if let Some(typed) = cx.typed(y).filter(|typed| !typed.unreduced().is_empty() && !cx.is_local()) {
                outs.push(with_addends_at(cx, *buffer, at, (y, &typed))?);
                continue;
            }
            let mut row = cx.aval(y);
            let rank = row.rank();
            row.shape.insert(0, 1);
            let row = cx.op("stablehlo.reshape", &[y], "", &row);
            let operands = indices(cx, &[*buffer, row], at, rank);
            let aval = cx.aval(*buffer);
            outs.push(cx.op("stablehlo.dynamic_update_slice", &operands, "", &aval));
        }
        Ok(outs)
    }
}

/// Returns the addends of one step from the addends of all steps. Each device slices its addends, because the
/// partitioner would sum them (see [`on_parts`]).
fn addends_at(cx: &mut Lowering, xs: Value, at: Value, (aval, step): (&Aval, &Typed)) -> Result<Value> {
    let in_types = [step.inserted(0, DimSpec::None), Typed::replicated(step.mesh(), 0)];
    on_parts(cx, &[xs, at], &in_types, (aval, step), |args| {
        Ok(lax::reshape(&lax::dynamic_index_in_dim(&args[0], &args[1], 0), &args[0].shape()[1..]))
    })
}

/// Writes the addends of one step to their row of the addends of all steps; see [`addends_at`].
fn with_addends_at(cx: &mut Lowering, all: Value, at: Value, (y, step): (Value, &Typed)) -> Result<Value> {
    let stacked = step.inserted(0, DimSpec::None);
    let in_types = [stacked.clone(), step.clone(), Typed::replicated(step.mesh(), 0)];
    let aval = cx.aval(all);
    on_parts(cx, &[all, y, at], &in_types, (&aval, &stacked), |args| {
        Ok(lax::dynamic_update_index_in_dim(&args[0], &args[1], &args[2], 0))
    })
}

/// The operands followed by the index of a row: `at`, and zeros for the other dimensions.
fn indices(cx: &mut Lowering, operands: &[Value], at: Value, rank: usize) -> Vec<Value> {
    let mut operands_and_indices = operands.to_vec();
    operands_and_indices.push(at);
    if rank > 0 {
        let zero = cx.constant(Scalar::Int(0), &Aval::scalar(cx.dtype(at)));
        operands_and_indices.resize(operands_and_indices.len() + rank, zero);
    }
    operands_and_indices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tree::Flat;
    use crate::interpret::flat::{flat_fn, trace_flat};
    use crate::prelude::*;

    /// The scans in the gradient of `f`.
    fn scans_of_grad(f: impl Fn(Array, Array) -> Result<Array>, w: Array, xs: Array) -> Result<Vec<Scan>> {
        let g = grad(f);
        let flat = Flat::of(&(w, xs));
        let avals: Vec<Aval> = flat.leaves.iter().map(Array::aval).collect();
        let (traced, _) = trace_flat(&flat.def, &avals, &flat_fn(&g))?;
        let program = traced.program.simplified();
        Ok(program.eqns.iter().filter_map(|e| e.primitive.as_any().downcast_ref::<Scan>().cloned()).collect())
    }

    #[test]
    fn constants_and_outputs_are_not_stored_again() -> Result<()> {
        fn sum_of_outputs(w: Array, xs: Array) -> Result<Array> {
            let (_, ys) = scan(
                |h: Array, x: Array| {
                    let y = (w.sin() * h + x).exp();
                    (y.clone(), y)
                },
                Array::from(0.0),
                xs,
            )?;
            Ok(ys.sum(..))
        }
        let scans = scans_of_grad(sum_of_outputs, array(0.1f32), array([0.1f32, 0.2]))?;
        let [forward, backward] = &scans[..] else { panic!("{scans:?}") };
        // The last carry, the outputs (the derivative of exp), and the carry at the start of each step;
        // sin(w) and cos(w) are constants.
        assert_eq!(forward.body.outputs.len(), 3, "{:?}", forward.body);
        assert_eq!((backward.num_consts, backward.num_carry, backward.reverse), (2, 2, true), "{:?}", backward.body);
        Ok(())
    }
}
