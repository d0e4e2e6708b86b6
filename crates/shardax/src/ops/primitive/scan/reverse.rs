//! Reverse mode of `scan`: residuals of the forward loop, and the backward loop.

use super::Role::{Carry, Const, Scanned};
use super::{Role, Scan};
use crate::core::array::Array;
use crate::core::primitive::{Operand, Tangents};
use crate::core::program::trace::{Traced, trace};
use crate::core::program::{Atom, Aval};
use crate::error::{Result, err};
use crate::interpret::ad::{backward, tangent_aval};
use crate::interpret::backward_logs::{self, Layout};
use crate::interpret::eval::eval;
use crate::interpret::higher_order::{Residual, marked, spread_marked, tangent_or_zeros, zeros};

impl Scan {
    /// The cotangents of the operands, for a body that varies like its operands.
    pub(super) fn transpose_fitted(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let (in_roles, nk) = (self.in_roles(), self.num_carry);
        let ins: Vec<Aval> = self.body.in_avals().cloned().collect();
        let outs = self.body.out_avals();
        check_carry(&outs[..nk])?;
        // A carry is linear throughout, even if it starts from zeros that are non-linear.
        let linear: Vec<bool> = args.iter().zip(&in_roles).map(|(a, role)| *role == Carry || a.is_linear()).collect();
        let known: Vec<bool> = linear.iter().map(|l| !l).collect();
        let sums: Vec<bool> = in_roles.iter().zip(&linear).map(|(role, l)| *role == Const && *l).collect();
        let has_ys: Vec<bool> = cts[nk..].iter().map(Option::is_some).collect();

        // The backward loop carries the cotangents of the carry, and sums the cotangents of the constants. A cotangent of addends is
        // equal on all devices, and a cotangent of such a value is addends.
        let in_cotangents: Vec<Aval> = ins.iter().map(Aval::cotangent).collect();
        let out_cotangents: Vec<Aval> = outs.iter().map(Aval::cotangent).collect();
        let (carry_cotangents, ys_cotangents) = out_cotangents.split_at(nk);
        let avals = [
            marked(&ins, &known),
            marked(&in_cotangents, &sums),
            carry_cotangents.to_vec(),
            marked(ys_cotangents, &has_ys),
        ]
        .concat();
        let avals: Vec<Aval> = avals.into_iter().map(Aval::strip_weak_type).collect();
        let at_sums = known.iter().filter(|k| **k).count();
        let at_carry = at_sums + sums.iter().filter(|s| **s).count();
        let (mut has_sum, mut has_xs, mut layout) = (Vec::new(), Vec::new(), Layout::default());
        let body = trace(&avals, |inputs| {
            let mut known_inputs = inputs.iter().cloned();
            let operands = ins.iter().zip(&known).map(|(aval, known)| {
                let input = if *known { known_inputs.next() } else { None };
                input.map_or_else(|| Operand::Linear(aval.clone()), Operand::NonLinear)
            });
            let operands: Vec<Operand> = operands.collect();
            let mut out_cts: Tangents = inputs[at_carry..at_carry + nk].iter().cloned().map(Some).collect();
            out_cts.extend(spread_marked(inputs[at_carry + nk..].iter().cloned(), &has_ys));
            let (in_cts, logged, values) = backward_logs::nested(|| backward(&self.body, &operands, &out_cts))?;
            layout = logged;

            // Results: the sums for constants, the cotangents of the carry, of the scanned operands, and logged values.
            let consts = marked(&in_cts, &sums);
            has_sum = consts.iter().map(Option::is_some).collect();
            let sums = consts.iter().zip(&inputs[at_sums..]);
            let mut outs: Vec<Array> =
                sums.map(|(ct, sum)| ct.as_ref().map_or_else(|| sum.clone(), |ct| sum + ct)).collect();
            let carried = in_cts.iter().zip(&in_cotangents).zip(&in_roles).filter(|(_, role)| **role == Carry);
            outs.extend(carried.map(|((ct, aval), _)| tangent_or_zeros(ct, aval)));
            has_xs = in_cts.iter().zip(&in_roles).map(|(ct, role)| *role == Scanned && ct.is_some()).collect();
            outs.extend(marked(&in_cts, &has_xs).into_iter().flatten());
            outs.extend(values);
            Ok(outs)
        })?;

        // Runs the loop backwards: from known values, zeros for the sums, and the cotangents of the results.
        let mut operands: Vec<Array> =
            args.iter().zip(&known).filter(|(_, k)| **k).map(|(a, _)| a.value().cloned()).collect::<Result<_>>()?;
        operands.extend(marked(&in_cotangents, &sums).iter().map(|aval| zeros(&aval.clone().strip_weak_type())));
        operands.extend(cts.iter().zip(&outs).take(nk).map(|(ct, aval)| tangent_or_zeros(ct, &aval.cotangent())));
        operands.extend(cts[nk..].iter().flatten().cloned());
        let mut roles = marked(&in_roles, &known);
        roles.resize(at_carry + nk, Carry);
        roles.resize(operands.len(), Scanned);
        let xs = has_xs.iter().filter(|x| **x).count() + layout.count();
        let out_roles = [vec![Carry; at_carry - at_sums + nk], vec![Scanned; xs]].concat();
        let back = Scan { reverse: !self.reverse, ..self.clone() };
        let mut results = back.run(body, &roles, &out_roles, operands)?.into_iter();

        // Its results are in the order of the operands. An operand without a cotangent has a result too if it is a sum or
        // a carry.
        let mut in_cts: Tangents = vec![None; args.len()];
        let mut has_sum = has_sum.into_iter();
        for (i, ct) in in_cts.iter_mut().enumerate() {
            let is_linear = args[i].is_linear();
            if sums[i] {
                *ct = results.next().filter(|_| has_sum.next() == Some(true));
            } else if in_roles[i] == Carry {
                *ct = results.next().filter(|_| is_linear);
            } else if has_xs[i] {
                *ct = results.next();
            }
        }
        // The values that steps log are stacked like the cotangents of scanned operands.
        backward_logs::record(layout.entries(results))?;
        Ok(in_cts)
    }
}

/// Fails for a carry without a tangent type.
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
