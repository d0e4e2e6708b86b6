//! Differentiation of programs: forward mode, linearization, and the transpose of linear programs.
//!
//! Reverse mode is linearize followed by transpose. Each function here interprets a program with the rules of its
//! primitives, and the current trace records the operations.

use super::backward_logs::{self, Logs};
use super::eval::at_eqn;
use super::higher_order::zeros;
use super::memo;
use crate::core::array::Array;
use crate::core::primitive::{Operand, Tangents};
use crate::core::program::trace::{Traced, is_linear, trace, trace_linear};
use crate::core::program::{Atom, Aval, Env, Eqn, Program, Var};
use crate::error::{Result, err};
use crate::scope;
use crate::sharding::{AxisType, Typed, UnreducedKind};

/// The type of the tangent of a value: the type of the value, but strongly typed. `None` if the value is not
/// differentiable.
pub(crate) fn tangent_aval(aval: &Aval) -> Option<Aval> {
    aval.dtype.is_inexact().then(|| aval.clone().strip_weak_type())
}

/// Computes the outputs of `program` and their tangents.
///
/// With `linear`, tangents are inputs of a linear trace, and the rules separate them from non-linear values.
pub(crate) fn jvp_eval(
    program: &Program,
    primals: &[Array],
    tangents: &[Option<Array>],
    linear: bool,
) -> Result<(Vec<Array>, Tangents)> {
    let _transformation = memo::transformation();
    let mut env = Env::new(program);
    let mut tenv: Env<Array> = Env::new(program);
    for ((var, primal), tangent) in program.inputs.iter().zip(primals).zip(tangents) {
        env.set(*var, primal.clone());
        if let Some(t) = tangent {
            tenv.set(*var, t.clone());
        }
    }
    for eqn in &program.eqns {
        at_eqn(eqn, || {
            let ts: Vec<_> = eqn.inputs.iter().map(|a| tangent_of(&tenv, a)).collect();
            if ts.iter().all(Option::is_none) {
                return env.apply(eqn);
            }
            let args = env.arrays(&eqn.inputs)?;
            check_kinds(eqn.primitive.name(), &args, &ts).map_err(|e| e.at(eqn.source))?;
            let rule = if linear { eqn.primitive.linearize(&args, &ts) } else { eqn.primitive.jvp(&args, &ts) };
            let (outs, out_ts) = rule.map_err(|e| e.at(eqn.source))?;
            for ((var, out), t) in eqn.outputs.iter().zip(outs).zip(out_ts) {
                env.set(*var, out);
                // A linear map has no constant part, so a tangent that does not depend on the input tangents is zero.
                if let Some(t) = t
                    && program.aval_of(*var).dtype.is_inexact()
                    && (!linear || is_linear(&t))
                {
                    tenv.set(*var, t);
                }
            }
            Ok(())
        })?;
    }
    let out_tangents = program.outputs.iter().map(|a| tangent_of(&tenv, a)).collect();
    Ok((env.arrays(&program.outputs)?, out_tangents))
}

/// Fails for differentiated operands that are unreduced maxima or minima, because their tangents would belong to one of
/// the devices.
fn check_kinds(operation: &str, args: &[Array], tangents: &[Option<Array>]) -> Result<()> {
    for (x, t) in args.iter().zip(tangents) {
        let kind = x.aval_ref().and_then(Aval::sharding).map_or(UnreducedKind::Sum, Typed::kind);
        if t.is_some() && kind != UnreducedKind::Sum {
            return Err(err!(NotImplemented, "{operation} of {} has no derivative", x.type_name())
                .help("combine the devices' values with `reshard(x, P![..])` outside of the differentiated function"));
        }
    }
    Ok(())
}

/// Returns the tangent of an atom, or `None` if it is zero.
fn tangent_of(tenv: &Env<Array>, atom: &Atom) -> Option<Array> {
    match atom {
        Atom::Var(v) => tenv.get(*v).cloned(),
        Atom::Literal { .. } => None,
    }
}

/// The linear part of a function at a point.
#[derive(Clone)]
pub(crate) struct Linearized {
    /// Maps the residuals and the nonzero tangents to the nonzero output tangents.
    pub program: Program,
    pub residuals: Vec<Array>,
    /// Marks the outputs that have a tangent.
    pub nonzero_out: Vec<bool>,
}

/// Merges equal equations of a program that contains derivatives.
///
/// Each derivative computes parts of the function again. Therefore, unless equal equations are merged before each
/// derivative, a derivative of order n has a number of equations that grows exponentially with n.
pub(crate) fn merged_if_nested(program: Program) -> Program {
    let is_nested = program.eqns.iter().any(|eqn| eqn.scope.parts().contains(&scope::Part::Transform("jvp")));
    if is_nested { program.simplified() } else { program }
}

/// Computes the outputs of `program` at `primals`, and the linear map of tangents at that point.
///
/// `nonzero` marks the inputs that have a tangent.
pub(crate) fn linearize(program: &Program, primals: &[Array], nonzero: &[bool]) -> Result<(Vec<Array>, Linearized)> {
    linear_map(program, primals, nonzero, [scope::Part::Transform("jvp")])
}

/// Like [`linearize`], for a program inside a higher-order primitive. Its equation already has the scope of the
/// derivative.
pub(crate) fn linearize_nested(
    program: &Program,
    primals: &[Array],
    nonzero: &[bool],
) -> Result<(Vec<Array>, Linearized)> {
    linear_map(program, primals, nonzero, [])
}

fn linear_map(
    program: &Program,
    primals: &[Array],
    nonzero: &[bool],
    names: impl IntoIterator<Item = scope::Part>,
) -> Result<(Vec<Array>, Linearized)> {
    let avals: Vec<Aval> = program
        .in_avals()
        .zip(nonzero)
        .filter(|(_, nz)| **nz)
        .map(|(aval, _)| tangent_aval(aval).ok_or_else(|| err!(Type, "a value of type {aval} has no tangent")))
        .collect::<Result<_>>()?;
    let mut outs = Vec::new();
    let mut nonzero_out = Vec::new();
    let Traced { program, captures } = trace_linear(&avals, |inputs| {
        let mut inputs = inputs.iter().cloned();
        let tangents: Tangents = nonzero.iter().map(|nz| if *nz { inputs.next() } else { None }).collect();
        let (o, ts) = scope::within(names, || jvp_eval(program, primals, &tangents, true))?;
        outs = o;
        nonzero_out = ts.iter().map(Option::is_some).collect();
        Ok(ts.into_iter().flatten().collect())
    })?;
    Ok((outs, Linearized { program, residuals: captures, nonzero_out }))
}

impl Linearized {
    /// Computes the output tangents for these input tangents, one for each nonzero input.
    pub fn apply(&self, tangents: &[Array]) -> Result<Tangents> {
        let args: Vec<Array> = self.residuals.iter().chain(tangents).cloned().collect();
        let mut outs = super::eval::eval(&self.program, &args)?.into_iter();
        Ok(self.nonzero_out.iter().map(|nz| if *nz { outs.next() } else { None }).collect())
    }

    /// Computes the cotangents of the nonzero inputs from the cotangents of all outputs.
    pub fn transpose(&self, cts: &[Option<Array>]) -> Result<Tangents> {
        Ok(backward_logs::collect(false, || self.pull_back(cts))?.0)
    }

    /// Like [`transpose`](Self::transpose), and returns the values that rules of `custom_vjp` functions log.
    pub fn transpose_with_logs(&self, cts: &[Option<Array>]) -> Result<(Tangents, Logs)> {
        backward_logs::collect(true, || self.pull_back(cts))
    }

    /// Like [`transpose`](Self::transpose), as a part of an enclosing transpose, which collects the logged values.
    pub fn pull_back(&self, cts: &[Option<Array>]) -> Result<Tangents> {
        let cts: Vec<_> = cts.iter().zip(&self.nonzero_out).filter(|(_, nz)| **nz).map(|(ct, _)| ct.clone()).collect();
        let count = self.program.inputs.len() - self.residuals.len();
        let args: Vec<Operand> = self
            .residuals
            .iter()
            .map(|r| Operand::NonLinear(r.clone()))
            .chain(self.program.in_avals().rev_skip(count))
            .collect();
        let input_cts = scope::transform("transpose", || backward(&self.program, &args, &cts))?;
        Ok(input_cts[self.residuals.len()..].to_vec())
    }
}

/// Converts the last `count` types of an iterator to linear operands.
trait RevSkip {
    fn rev_skip(self, count: usize) -> impl Iterator<Item = Operand>;
}

impl<'a, I: ExactSizeIterator<Item = &'a Aval>> RevSkip for I {
    fn rev_skip(self, count: usize) -> impl Iterator<Item = Operand> {
        let skip = self.len() - count;
        self.skip(skip).map(|aval| Operand::Linear(aval.clone()))
    }
}

/// Computes the cotangents of the linear operands of a program that is linear in them.
///
/// Equations that depend only on non-linear operands are evaluated first; the others are transposed in reverse order.
pub(crate) fn backward(program: &Program, args: &[Operand], cts: &[Option<Array>]) -> Result<Tangents> {
    let _transformation = memo::transformation();
    let mut linear = LinearPart::evaluated(program, args)?;
    linear.add_cotangents(&program.outputs, cts.iter().cloned());
    // The last equation comes first, so that all cotangents of a value are added before its equation.
    for eqn in std::mem::take(&mut linear.pending).into_iter().rev() {
        at_eqn(eqn, || linear.transpose(eqn))?;
    }
    Ok(program
        .inputs
        .iter()
        .zip(args)
        .map(|(v, arg)| if arg.is_linear() { linear.cotangents.get(*v).cloned() } else { None })
        .collect())
}

/// The part of a program that is linear in its linear operands, while it is transposed.
struct LinearPart<'p> {
    program: &'p Program,
    /// Marks the values that depend on linear operands.
    marks: Vec<bool>,
    /// The values that do not depend on them.
    known: Env<Array>,
    /// The equations that depend on linear operands, in the order of the program.
    pending: Vec<&'p Eqn>,
    /// The sums of the cotangents of linear values so far.
    cotangents: Env<Array>,
}

impl<'p> LinearPart<'p> {
    /// Evaluates the equations that do not depend on linear operands, and marks the values of the others as linear.
    fn evaluated(program: &'p Program, args: &[Operand]) -> Result<Self> {
        let mut known = Env::new(program);
        let mut marks = vec![false; program.avals.len()];
        for (var, arg) in program.inputs.iter().zip(args) {
            match arg {
                Operand::NonLinear(array) => known.set(*var, array.clone()),
                Operand::Linear(_) => marks[var.index()] = true,
            }
        }
        let mut pending = Vec::new();
        for eqn in &program.eqns {
            if eqn.inputs.iter().any(|a| is_marked(&marks, a)) {
                eqn.outputs.iter().for_each(|v| marks[v.index()] = true);
                pending.push(eqn);
            } else {
                at_eqn(eqn, || known.apply(eqn))?;
            }
        }
        Ok(LinearPart { program, marks, known, pending, cotangents: Env::new(program) })
    }

    /// Adds cotangents of these values. Cotangents of values that are not linear are dropped.
    fn add_cotangents(&mut self, atoms: &[Atom], cts: impl IntoIterator<Item = Option<Array>>) {
        for (atom, ct) in atoms.iter().zip(cts) {
            if let (Atom::Var(v), Some(ct)) = (atom, ct)
                && self.marks[v.index()]
            {
                add_cotangent(&mut self.cotangents, *v, self.program.aval_of(*v), ct);
            }
        }
    }

    /// Transposes a linear equation: adds the cotangents of its operands, which follow from the cotangents of its results.
    fn transpose(&mut self, eqn: &Eqn) -> Result<()> {
        let cts: Vec<_> = eqn.outputs.iter().map(|v| self.cotangents.take(*v)).collect();
        if cts.iter().all(Option::is_none) {
            return Ok(());
        }
        let operands = eqn.inputs.iter().map(|a| {
            if is_marked(&self.marks, a) {
                Ok(Operand::Linear(self.program.atom_aval(a)))
            } else {
                self.known.array(a).map(Operand::NonLinear)
            }
        });
        let operands: Vec<Operand> = operands.collect::<Result<_>>()?;
        let in_cts = eqn.primitive.transpose(&cts, &operands).map_err(|e| e.at(eqn.source))?;
        self.add_cotangents(&eqn.inputs, in_cts);
        Ok(())
    }
}

fn is_marked(marks: &[bool], atom: &Atom) -> bool {
    matches!(atom, Atom::Var(v) if marks[v.index()])
}

/// Adds a cotangent to the sum of a variable, after it is sharded like the cotangents of the variable's type.
fn add_cotangent(ct_env: &mut Env<Array>, var: Var, aval: &Aval, ct: Array) {
    let ct = match aval.sharding() {
        None => ct.varying_as(&aval.vma),
        Some(typed) if typed.mesh().is_all(AxisType::Manual) => ct.partial_as(&aval.cotangent()),
        Some(_) => ct.varying_as(&aval.vma).sharded_as(&aval.cotangent()),
    };
    let sum = match ct_env.get(var) {
        Some(existing) => existing + &ct,
        None => ct,
    };
    ct_env.set(var, sum);
}

/// Traces the forward-mode derivative of a program. Its inputs are the program's inputs and the nonzero tangents. It
/// returns the outputs, then the tangents of the outputs marked in `want` (zeros if an output has none) and of any
/// other output that has one.
///
/// Returns the derivative, and marks the outputs that have a tangent in it.
pub(crate) fn jvp_program(program: &Program, nonzero: &[bool], want: &[bool]) -> Result<(Traced, Vec<bool>)> {
    memo::derived("jvp", program, &(nonzero, want), captures_nothing, || derive_jvp(program, nonzero, want))
}

/// Returns `true` if a derived program can be used again, because it captures no values of this trace.
pub(super) fn captures_nothing((traced, _): &(Traced, Vec<bool>)) -> bool {
    traced.captures.is_empty()
}

fn derive_jvp(program: &Program, nonzero: &[bool], want: &[bool]) -> Result<(Traced, Vec<bool>)> {
    let mut avals: Vec<Aval> = program.in_avals().cloned().collect();
    let count = avals.len();
    avals.extend(program.in_avals().zip(nonzero).filter(|(_, nz)| **nz).filter_map(|(a, _)| tangent_aval(a)));
    let mut has_tangent = Vec::new();
    let traced = trace(&avals, |args| {
        let mut nonzero_tangents = args[count..].iter().cloned();
        let tangents: Tangents = nonzero.iter().map(|nz| if *nz { nonzero_tangents.next() } else { None }).collect();
        let (mut outs, ts) = jvp_eval(program, &args[..count], &tangents, false)?;
        has_tangent = ts.iter().zip(want).map(|(t, want)| t.is_some() || *want).collect();
        let out_tangents: Vec<Array> = ts
            .into_iter()
            .zip(&has_tangent)
            .zip(program.out_avals())
            .filter(|((_, has_tangent), _)| **has_tangent)
            .map(|((t, _), aval)| t.map(|t| t.varying_as(&aval.vma)).unwrap_or_else(|| zeros(&aval)))
            .collect();
        outs.extend(out_tangents);
        Ok(outs)
    })?;
    Ok((traced, has_tangent))
}
