//! Reverse mode of `scan`: residuals of the forward loop, and the backward loop.

use super::Role::{Carry, Const, Scanned};
use super::{Role, Scan};
use crate::core::array::Array;
use crate::core::primitive::{Operand, Primitive, Tangents};
use crate::core::program::trace::{Traced, is_linear, trace, trace_linear};
use crate::core::program::{Atom, Aval, Program};
use crate::error::{ErrorKind, Result, err};
use crate::interpret::ad::{Linearized, backward, tangent_aval};
use crate::interpret::backward_logs::{self, Layout};
use crate::interpret::eval::eval;
use crate::interpret::higher_order::{Residual, marked, spread_marked, tangent_or_zeros, zeros};
use crate::interpret::memo;

impl Scan {
    /// Returns the cotangents of the operands, for a body that varies like its operands.
    ///
    /// The loop may compute values that do not depend on linear operands, for example if the rule of a `custom_jvp`
    /// function applies `jvp` to a loop. If such a value is carried, the loop is split first.
    pub(super) fn transpose_fitted(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        match self.transpose_linear(cts, args) {
            Err(error) if error.kind() == ErrorKind::NotImplemented && self.carries_nonlinear(args)? => {
                self.transpose_split(cts, args)
            }
            result => result,
        }
    }

    /// Returns `true` if a carry does not depend on the linear operands.
    fn carries_nonlinear(&self, args: &[Operand]) -> Result<bool> {
        let tangents: Tangents = args.iter().map(|arg| arg.is_linear().then(|| zeros(&arg.aval()))).collect();
        if tangents.iter().all(Option::is_none) {
            return Ok(false);
        }
        let (_, nonzero) = self.split_body(&tangents)?;
        Ok(nonzero[self.num_consts..][..self.num_carry].contains(&false))
    }

    /// Computes the non-linear part of the loop, and transposes the linear part, which carries only linear values.
    fn transpose_split(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let marks: Vec<bool> = args.iter().map(Operand::is_linear).collect();
        // A linear function is its derivative at any point, so it is linearized at zero.
        let primals: Vec<Array> = args
            .iter()
            .map(|arg| match arg {
                Operand::NonLinear(array) => array.clone(),
                Operand::Linear(aval) => zeros(aval),
            })
            .collect();
        let avals: Vec<Aval> = args.iter().filter(|arg| arg.is_linear()).map(Operand::aval).collect();
        let mut nonzero_out = Vec::new();
        let Traced { program, captures } = trace_linear(&avals, |inputs| {
            let tangents = spread_marked(inputs.iter().cloned(), &marks);
            let (_, out_tangents) = self.linearize(&primals, &tangents)?;
            let out_tangents: Tangents = out_tangents.into_iter().map(|t| t.filter(is_linear)).collect();
            nonzero_out = out_tangents.iter().map(Option::is_some).collect();
            Ok(out_tangents.into_iter().flatten().collect())
        })?;
        let in_cts = Linearized { program, residuals: captures, nonzero_out }.pull_back(cts)?;
        Ok(spread_marked_options(in_cts, &marks))
    }

    fn transpose_linear(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let mut backward_loop = BackwardLoop::new(self, cts, args);
        check_carry(&backward_loop.out_avals[..self.num_carry])?;
        let search = memo::search();
        let (step, step_results) = loop {
            let (step, step_results) = backward_loop.trace_step()?;
            if !backward_loop.grow_carry(&step_results.has_carry) {
                break (step, step_results);
            }
        };
        drop(search);
        let results = backward_loop.run(step, &step_results, cts, args)?;
        backward_loop.distribute(&step_results, results, args)
    }
}

/// The backward loop of a scan.
///
/// It carries the cotangents of the carry, and sums the cotangents of the constants. The operands of a step are the known
/// values, the sums, the cotangents of the carry, and the cotangents of the stacked results.
struct BackwardLoop<'a> {
    scan: &'a Scan,
    in_roles: Vec<Role>,
    in_avals: Vec<Aval>,
    out_avals: Vec<Aval>,
    /// The types of the operands' cotangents. A cotangent of addends is equal on all devices, and a cotangent of a value that
    /// is equal on all devices is addends.
    in_cotangents: Vec<Aval>,
    /// Marks the operands whose values the loop reads.
    known: Vec<bool>,
    /// Marks the constants whose cotangents the loop sums.
    sums: Vec<bool>,
    /// Marks the carries that have a cotangent in some step. The loop carries no zeros for the others, so that it does
    /// not transpose what only they depend on.
    has_carry: Vec<bool>,
    /// Marks the stacked results that have a cotangent.
    has_ys: Vec<bool>,
}

/// The results of a step of a backward loop: the sums, the cotangents of the carry, the cotangents of scanned operands, and
/// logged values.
struct StepResults {
    /// Is true for each summed constant that has a cotangent.
    has_sum: Vec<bool>,
    /// Marks the carries for which the step computes a cotangent.
    has_carry: Vec<bool>,
    /// Marks the scanned operands that have a cotangent.
    has_xs: Vec<bool>,
    layout: Layout,
}

impl<'a> BackwardLoop<'a> {
    fn new(scan: &'a Scan, cts: &[Option<Array>], args: &[Operand]) -> Self {
        let in_roles = scan.in_roles();
        let in_avals: Vec<Aval> = scan.body.in_avals().cloned().collect();
        // A carry is linear throughout, even if it starts from zeros that are non-linear.
        let linear: Vec<bool> = args.iter().zip(&in_roles).map(|(a, role)| *role == Carry || a.is_linear()).collect();
        let has_ys: Vec<bool> = cts[scan.num_carry..].iter().map(Option::is_some).collect();
        let mut has_carry: Vec<bool> = cts[..scan.num_carry].iter().map(Option::is_some).collect();
        let carries = scan.num_consts..scan.num_consts + scan.num_carry;
        loop {
            let used = inputs_of_results(&scan.body, &[&has_carry[..], &has_ys].concat());
            if !mark_also(&mut has_carry, &used[carries.clone()]) {
                break;
            }
        }
        BackwardLoop {
            scan,
            out_avals: scan.body.out_avals(),
            in_cotangents: in_avals.iter().map(Aval::cotangent).collect(),
            known: linear.iter().map(|l| !l).collect(),
            sums: in_roles.iter().zip(&linear).map(|(role, l)| *role == Const && *l).collect(),
            has_carry,
            has_ys,
            in_roles,
            in_avals,
        }
    }

    /// Returns the position of the first sum among the operands of a step.
    fn first_sum(&self) -> usize {
        count(&self.known)
    }

    /// Returns the position of the first cotangent of the carry among the operands of a step.
    fn first_carry(&self) -> usize {
        self.first_sum() + count(&self.sums)
    }

    /// Marks these carries too. Returns `true` if one of them was not marked before.
    fn grow_carry(&mut self, has_carry: &[bool]) -> bool {
        mark_also(&mut self.has_carry, has_carry)
    }

    /// Returns the types of the operands of a step.
    fn step_avals(&self) -> Vec<Aval> {
        let out_cotangents: Vec<Aval> = self.out_avals.iter().map(Aval::cotangent).collect();
        let (carry_cotangents, ys_cotangents) = out_cotangents.split_at(self.scan.num_carry);
        let avals = [
            marked(&self.in_avals, &self.known),
            marked(&self.in_cotangents, &self.sums),
            marked(carry_cotangents, &self.has_carry),
            marked(ys_cotangents, &self.has_ys),
        ];
        avals.concat().into_iter().map(Aval::strip_weak_type).collect()
    }

    /// Traces a step: the reverse mode of the scan's body.
    fn trace_step(&self) -> Result<(Traced, StepResults)> {
        let (mut has_sum, mut has_carry, mut has_xs) = (Vec::new(), Vec::new(), Vec::new());
        let mut layout = Layout::default();
        let step = trace(&self.step_avals(), |inputs| {
            let (operands, out_cts) = self.body_operands(inputs);
            let (in_cts, logged, values) = backward_logs::nested(|| backward(&self.scan.body, &operands, &out_cts))?;
            layout = logged;

            let consts = marked(&in_cts, &self.sums);
            has_sum = consts.iter().map(Option::is_some).collect();
            let sums = consts.iter().zip(&inputs[self.first_sum()..]);
            let mut outs: Vec<Array> =
                sums.map(|(ct, sum)| ct.as_ref().map_or_else(|| sum.clone(), |ct| sum + ct)).collect();
            let first = self.scan.num_consts;
            let carried = &in_cts[first..][..self.scan.num_carry];
            has_carry = carried.iter().map(Option::is_some).collect();
            let carried = carried.iter().zip(&self.in_cotangents[first..]).zip(&self.has_carry);
            outs.extend(carried.filter(|(_, has)| **has).map(|((ct, aval), _)| tangent_or_zeros(ct, aval)));
            has_xs = in_cts.iter().zip(&self.in_roles).map(|(ct, role)| *role == Scanned && ct.is_some()).collect();
            outs.extend(marked(&in_cts, &has_xs).into_iter().flatten());
            outs.extend(values);
            Ok(outs)
        })?;
        Ok((step, StepResults { has_sum, has_carry, has_xs, layout }))
    }

    /// Returns the operands and the cotangents for the reverse mode of the scan's body, from the operands of a step.
    fn body_operands(&self, inputs: &[Array]) -> (Vec<Operand>, Tangents) {
        let mut known_inputs = inputs.iter().cloned();
        let operands = self.in_avals.iter().zip(&self.known).map(|(aval, known)| {
            let input = if *known { known_inputs.next() } else { None };
            input.map_or_else(|| Operand::Linear(aval.clone()), Operand::NonLinear)
        });
        let (carry, ys) = inputs[self.first_carry()..].split_at(count(&self.has_carry));
        let mut out_cts = spread_marked(carry.iter().cloned(), &self.has_carry);
        out_cts.extend(spread_marked(ys.iter().cloned(), &self.has_ys));
        (operands.collect(), out_cts)
    }

    /// Runs the loop from known values, zeros for the sums, and the cotangents of the results.
    fn run(
        &self,
        step: Traced,
        step_results: &StepResults,
        cts: &[Option<Array>],
        args: &[Operand],
    ) -> Result<Vec<Array>> {
        let num_carry = self.scan.num_carry;
        let known_args = args.iter().zip(&self.known).filter(|(_, known)| **known);
        let mut operands: Vec<Array> = known_args.map(|(arg, _)| arg.value().cloned()).collect::<Result<_>>()?;
        let sums = marked(&self.in_cotangents, &self.sums);
        operands.extend(sums.into_iter().map(|aval| zeros(&aval.strip_weak_type())));
        let carry = cts.iter().zip(&self.out_avals).zip(&self.has_carry).filter(|(_, has)| **has);
        operands.extend(carry.map(|((ct, aval), _)| tangent_or_zeros(ct, &aval.cotangent())));
        operands.extend(cts[num_carry..].iter().flatten().cloned());

        let mut roles = marked(&self.in_roles, &self.known);
        roles.resize(self.first_carry() + count(&self.has_carry), Carry);
        roles.resize(operands.len(), Scanned);
        let carried = count(&self.sums) + count(&self.has_carry);
        let scanned = count(&step_results.has_xs) + step_results.layout.count();
        let out_roles = [vec![Carry; carried], vec![Scanned; scanned]].concat();
        let reversed = Scan { reverse: !self.scan.reverse, ..self.scan.clone() };
        reversed.run(step, &roles, &out_roles, operands)
    }

    /// Assigns the results of the loop to the operands of the scan, and records the logged values.
    fn distribute(&self, step_results: &StepResults, results: Vec<Array>, args: &[Operand]) -> Result<Tangents> {
        // The results are in the order of the operands. An operand without a cotangent has a result too if it is a sum or a
        // carry.
        let mut results = results.into_iter();
        let mut has_sum = step_results.has_sum.iter();
        let mut in_cts: Tangents = vec![None; args.len()];
        for (i, ct) in in_cts.iter_mut().enumerate() {
            if self.sums[i] {
                *ct = results.next().filter(|_| has_sum.next() == Some(&true));
            } else if self.in_roles[i] == Carry {
                let has_carry = self.has_carry[i - self.scan.num_consts];
                *ct = if has_carry { results.next().filter(|_| args[i].is_linear()) } else { None };
            } else if step_results.has_xs[i] {
                *ct = results.next();
            }
        }
        // The values that steps log are stacked like the cotangents of scanned operands.
        backward_logs::record(step_results.layout.entries(results))?;
        Ok(in_cts)
    }
}

/// One item for each mark: the next of `items` if the mark is set, otherwise `None`.
fn spread_marked_options(items: Tangents, marks: &[bool]) -> Tangents {
    let mut items = items.into_iter();
    marks.iter().map(|mark| if *mark { items.next().flatten() } else { None }).collect()
}

/// Sets the marks that are set in `others`. Returns `true` if one of them was not set before.
fn mark_also(marks: &mut [bool], others: &[bool]) -> bool {
    let before = count(marks);
    marks.iter_mut().zip(others).for_each(|(mark, other)| *mark |= *other);
    count(marks) > before
}

/// Marks the inputs of a program that the marked results depend on, as far as operations without programs of their own
/// tell. Tracing finds the others.
fn inputs_of_results(program: &Program, results: &[bool]) -> Vec<bool> {
    let mut used = vec![false; program.avals.len()];
    let mark = |used: &mut [bool], atom: &Atom| {
        if let Atom::Var(var) = atom {
            used[var.index()] = true;
        }
    };
    program.outputs.iter().zip(results).filter(|(_, marked)| **marked).for_each(|(atom, _)| mark(&mut used, atom));
    for eqn in program.eqns.iter().rev().filter(|eqn| eqn.primitive.programs().is_empty()) {
        if eqn.outputs.iter().any(|var| used[var.index()]) {
            eqn.inputs.iter().for_each(|atom| mark(&mut used, atom));
        }
    }
    program.inputs.iter().map(|var| used[var.index()]).collect()
}

fn count(marks: &[bool]) -> usize {
    marks.iter().filter(|mark| **mark).count()
}

/// Returns an error for a carry without a tangent type.
fn check_carry(types: &[Aval]) -> Result<()> {
    match types.iter().find(|aval| tangent_aval(aval).is_none()) {
        None => Ok(()),
        Some(aval) => Err(err!(
            NotImplemented,
            "reverse-mode differentiation of a scan that carries a value of type {aval} is not supported"
        )
        .help(
            "carry floating point or complex values, and compute other values outside of the differentiated function",
        )),
    }
}

/// Reduces the values that the non-linear loop stacks. Residuals that are equal in every step are computed once, before
/// the loop, and a residual that is also a result of the loop is not stacked again. Positions of stored residuals
/// become positions among all results of the non-linear loop.
pub(super) fn reduce_stacked(
    known: Traced,
    residuals: &mut [Residual],
    roles: (&[Role], &[Role]),
    args: &[Array],
) -> Result<Traced> {
    let (in_roles, out_roles) = roles;
    let Traced { program, captures } = known;
    let mut program = program.simplified();
    let mut changes = vec![false; program.avals.len()];
    for (var, role) in program.inputs[captures.len()..].iter().zip(in_roles) {
        changes[var.index()] = *role != Const;
    }
    // A value changes if it depends on a carry or a scanned array, or on an effect.
    for eqn in &program.eqns {
        let any = eqn.primitive.has_effects() || eqn.inputs.iter().any(|a| is_changing(a, &changes));
        eqn.outputs.iter().for_each(|v| changes[v.index()] = any);
    }

    let (outs, stored) = program.outputs.split_at(out_roles.len());
    let once: Vec<bool> = stored.iter().map(|a| !is_changing(a, &changes)).collect();
    // The evaluated part depends on none of the operands that change.
    let mut before = program.clone();
    before.outputs = marked(stored, &once);
    let before = before.simplified();
    let operands: Vec<Array> = captures.iter().chain(args).cloned().collect();
    let mut values = eval(&before, &operands)?.into_iter();
    let mut outputs = outs.to_vec();
    for residual in residuals {
        let Residual::Stored(k) = residual else { continue };
        if once[*k] {
            if let Some(value) = values.next() {
                *residual = Residual::Outer(value);
            }
            continue;
        }
        let stacked = outputs.iter().enumerate().skip_while(|(i, _)| out_roles.get(*i) == Some(&Carry));
        let position = stacked.into_iter().find(|(_, out)| **out == stored[*k]).map(|(i, _)| i);
        if position.is_none() {
            outputs.push(stored[*k]);
        }
        *k = position.unwrap_or(outputs.len() - 1);
    }
    program.outputs = outputs;
    Ok(Traced { program, captures })
}

fn is_changing(atom: &Atom, changes: &[bool]) -> bool {
    matches!(atom, Atom::Var(v) if changes[v.index()])
}
