//! Products that a loop need not compute step by step.
//!
//! A loop over a sequence multiplies the few rows of a step with matrices that are the same in all steps, and its
//! gradient adds the product of two such steps to the gradient of each matrix. XLA (xla-cpu-pjrt 0.0.1) computes these
//! products in the loop, where reading and writing the matrices takes most of the time. One product over all steps reads
//! and writes them once. Therefore this file takes three kinds of products out of a `scan`:
//!
//! - products of a scanned operand with a constant of the loop, before the loop;
//! - products with a constant that are only outputs of the loop, after it;
//! - sums of products over the steps, after the loop: the steps become a further contracted dimension.
//!
//! The operands of products after the loop are stacked instead of the products. Results differ only in the order of the
//! sums over steps.

use std::sync::Arc;

use super::super::rules::Lowered;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::Primitive;
use crate::core::program::{Atom, Aval, Eqn, Program, Var};
use crate::ops::primitive::dot::DotGeneral;
use crate::ops::primitive::scan::Scan;
use crate::shape::sizes_are_open;
use crate::sharding::DimSpec;

/// The minimum number of elements of the matrix that is read once instead of in each step. The compiler computes loops
/// over smaller arrays as one function.
const MIN_MATRIX: usize = 1 << 11;

/// The maximum number of elements that are stacked, compared with the operands and results that the loop stacks anyway,
/// so that the loop needs little more memory than before.
const MAX_STACKED: usize = 2;

/// Writes a loop without the products that can be computed for all steps at once.
pub(super) fn lower(scan: &Scan, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Lowered {
    if cx.portable || !cx.is_local() || sizes_are_open() || scan.length < 2 {
        return Ok(None);
    }
    let Some(parts) = Parts::of(scan) else { return Ok(None) };
    let products = cx.program(&parts.before, args)?;
    let remaining = args.iter().zip(&parts.is_kept).filter(|(_, is_kept)| **is_kept).map(|(arg, _)| *arg);
    let operands: Vec<Value> = remaining.chain(products).collect();
    let results = parts.scan.lower(cx, &operands, &parts.result_avals())?;
    cx.program(&parts.after, &[args, &results].concat()).map(Some)
}

/// A loop, and the programs before and after it.
struct Parts {
    /// Maps the operands of the original loop to further scanned operands of `scan`.
    before: Program,
    scan: Scan,
    /// Marks the operands of the original loop that are operands of `scan`.
    is_kept: Vec<bool>,
    /// Maps the operands of the original loop and the results of `scan` to the results of the original loop.
    after: Program,
}

impl Parts {
    /// Returns `None` if all products stay in the loop.
    fn of(scan: &Scan) -> Option<Parts> {
        let mut split = Split::new(scan);
        split.move_before();
        let outputs: Vec<Output> = (0..scan.body.outputs.len()).map(|index| split.output(index)).collect();
        let is_split = !split.before.is_empty() || outputs.iter().any(|output| !matches!(output, Output::Kept));
        is_split.then(|| split.into_parts(&outputs))
    }

    /// The types of the loop's results.
    fn result_avals(&self) -> Vec<Aval> {
        let avals = self.scan.body.out_avals().into_iter().enumerate();
        avals
            .map(|(i, aval)| if i < self.scan.num_carry { aval } else { for_all_steps(&aval, self.scan.length) })
            .collect()
    }
}

/// The place where an output of the loop's body is computed.
enum Output {
    /// In the loop.
    Kept,
    /// By this equation, a product, after the loop.
    Product(usize),
    /// A carry to which each step adds products and these other terms.
    Sum { add: usize, products: Vec<Moved>, rest: Vec<Var> },
}

impl Output {
    /// Returns `true` if the loop computes the output, or some of its terms.
    fn is_in_loop(&self) -> bool {
        match self {
            Output::Kept => true,
            Output::Product(_) => false,
            Output::Sum { rest, .. } => !rest.is_empty(),
        }
    }
}

/// A product and the equations that transpose or reshape it, the last one first.
struct Moved {
    product: usize,
    moves: Vec<usize>,
}

/// The inputs that a value of the loop's body depends on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Dependence {
    Constants,
    Step,
}

struct Split<'a> {
    scan: &'a Scan,
    body: &'a Program,
    /// The equation that defines each variable.
    definitions: Vec<Option<usize>>,
    /// The number of uses of each variable.
    uses: Vec<usize>,
    dependences: Vec<Dependence>,
    is_scanned: Vec<bool>,
    /// The equations that are computed before the loop.
    before: Vec<usize>,
    /// The variables that become further outputs of the loop.
    stacked: Vec<Var>,
    /// The number of elements that each step may still stack.
    budget: usize,
}

impl<'a> Split<'a> {
    fn new(scan: &'a Scan) -> Self {
        let body = &scan.body;
        let count = body.avals.len();
        let (mut definitions, mut uses) = (vec![None; count], vec![0; count]);
        let mut dependences = vec![Dependence::Step; count];
        let mut is_scanned = vec![false; count];
        // Constants are known before the loop, and scanned operands are different in each step.
        body.inputs[..scan.num_consts].iter().for_each(|var| dependences[var.index()] = Dependence::Constants);
        let scanned = &body.inputs[scan.num_consts + scan.num_carry..];
        scanned.iter().for_each(|var| is_scanned[var.index()] = true);
        // An equation depends on the same as its inputs do. One with an effect must run in every step.
        for (index, eqn) in body.eqns.iter().enumerate() {
            let on_inputs = variables(&eqn.inputs).map(|var| dependences[var.index()]).max();
            let dependence =
                if eqn.primitive.has_effects() { Dependence::Step } else { on_inputs.unwrap_or(Dependence::Constants) };
            for var in &eqn.outputs {
                definitions[var.index()] = Some(index);
                dependences[var.index()] = dependence;
            }
        }
        let used = body.eqns.iter().flat_map(|eqn| &eqn.inputs).chain(&body.outputs);
        variables(used).for_each(|var| uses[var.index()] += 1);
        // What is stacked may not be much larger than what the loop stacks anyway.
        let outputs = body.outputs[scan.num_carry..].iter().map(|atom| body.atom_aval(atom).size());
        let elements = scanned.iter().map(|var| body.aval_of(*var).size()).chain(outputs);
        let budget = elements.fold(0, usize::saturating_add).saturating_mul(MAX_STACKED);
        Split {
            scan,
            body,
            definitions,
            uses,
            dependences,
            is_scanned,
            before: Vec::new(),
            stacked: Vec::new(),
            budget,
        }
    }

    /// The equation that defines a variable, if it is not an input.
    fn definition(&self, var: Var) -> Option<(usize, &'a Eqn)> {
        let index = self.definitions[var.index()]?;
        Some((index, &self.body.eqns[index]))
    }

    fn size(&self, var: Var) -> usize {
        self.body.aval_of(var).size()
    }

    fn is_constant(&self, var: Var) -> bool {
        self.dependences[var.index()] == Dependence::Constants
    }

    /// Finds the products of a scanned operand with a constant.
    fn move_before(&mut self) {
        for (index, eqn) in self.body.eqns.iter().enumerate() {
            let Some((_, [lhs, rhs])) = product(eqn) else { continue };
            let out = self.size(eqn.outputs[0]);
            if self.is_scanned[lhs.index()] && self.multiplies_constant(eqn, rhs, out) && self.spend(out) {
                self.before.push(index);
            }
        }
    }

    /// Returns `true` if an equation multiplies with a constant matrix that is larger than the `elements` that are stacked.
    fn multiplies_constant(&self, eqn: &Eqn, rhs: Var, elements: usize) -> bool {
        // The steps become rows, the first dimension of the result only if there is no batch.
        let has_batch = product(eqn).is_none_or(|(dot, _)| !dot.lhs_batch.is_empty());
        let matrix = self.size(rhs);
        !has_batch && self.is_constant(rhs) && matrix >= MIN_MATRIX && elements <= matrix / 2
    }

    fn spend(&mut self, elements: usize) -> bool {
        let is_possible = elements <= self.budget;
        if is_possible {
            self.budget -= elements;
        }
        is_possible
    }

    /// Stacks variables, unless that takes more than this number of elements in each step.
    fn stack(&mut self, vars: &[Var], limit: usize) -> bool {
        let mut added: Vec<Var> = Vec::new();
        for &var in vars {
            if !self.is_scanned[var.index()] && !self.stacked.contains(&var) && !added.contains(&var) {
                added.push(var);
            }
        }
        let elements = added.iter().map(|var| self.size(*var)).sum();
        let is_possible = elements <= limit && self.spend(elements);
        if is_possible {
            self.stacked.append(&mut added);
        }
        is_possible
    }

    /// Decides how the output is computed.
    fn output(&mut self, index: usize) -> Output {
        let Atom::Var(var) = self.body.outputs[index] else { return Output::Kept };
        if index < self.scan.num_carry {
            return self.sum(index, var).unwrap_or(Output::Kept);
        }
        let Some((equation, eqn)) = self.definition(var) else { return Output::Kept };
        let Some((_, [lhs, rhs])) = product(eqn) else { return Output::Kept };
        let is_output_only = self.uses[var.index()] == 1 && !self.before.contains(&equation);
        let can_move = is_output_only && !self.is_constant(lhs) && self.multiplies_constant(eqn, rhs, 0);
        if can_move && self.stack(&[lhs], self.size(rhs) / 2) { Output::Product(equation) } else { Output::Kept }
    }

    /// The terms that each step adds to a carry, if it has no other use.
    fn sum(&mut self, index: usize, out: Var) -> Option<Output> {
        let carry = self.body.inputs[self.scan.num_consts + index];
        let (add, eqn) = self.definition(out)?;
        if self.uses[carry.index()] != 1 || self.uses[out.index()] != 1 {
            return None;
        }
        let [a, b] = sum_operands(eqn)?;
        let term = if a == carry { b } else { a };
        if a != carry && b != carry || term == carry {
            return None;
        }
        let mut terms = Vec::new();
        self.terms(term, &mut terms);
        let (mut products, mut rest) = (Vec::new(), Vec::new());
        for term in terms {
            match self.summed_product(term) {
                Some(product) => products.push(product),
                None => rest.push(term),
            }
        }
        (!products.is_empty()).then_some(Output::Sum { add, products, rest })
    }

    /// Collects the terms of a sum.
    fn terms(&self, var: Var, terms: &mut Vec<Var>) {
        let operands = self.definition(var).filter(|_| self.uses[var.index()] == 1);
        match operands.and_then(|(_, eqn)| sum_operands(eqn)) {
            Some(operands) if operands.iter().all(|operand| self.size(*operand) == self.size(var)) => {
                operands.into_iter().for_each(|operand| self.terms(operand, terms));
            }
            _ => terms.push(var),
        }
    }

    /// The product that a term is, if its operands take less memory than it.
    fn summed_product(&mut self, term: Var) -> Option<Moved> {
        let (mut var, mut moves) = (term, Vec::new());
        loop {
            let (index, eqn) = self.definition(var).filter(|_| self.uses[var.index()] == 1)?;
            if let Some((_, operands)) = product(eqn) {
                let is_large = self.size(var) >= MIN_MATRIX && !self.before.contains(&index);
                let change = operands.iter().all(|operand| !self.is_constant(*operand));
                let is_moved = is_large && change && self.stack(&operands, self.size(var));
                return is_moved.then_some(Moved { product: index, moves });
            }
            let ("transpose" | "reshape", [Atom::Var(operand)]) = (eqn.primitive.name(), &eqn.inputs[..]) else {
                return None;
            };
            moves.push(index);
            var = *operand;
        }
    }

    /// The equations that depend only on constants, with the types of variables outside of the loop.
    fn outside(&self) -> Program {
        let (eqns, outputs) = Default::default();
        let mut program = Program { avals: self.body.avals.clone(), inputs: self.body.inputs.clone(), eqns, outputs };
        for var in self.body.inputs.iter().filter(|var| self.is_scanned[var.index()]) {
            program.avals[var.index()] = for_all_steps(self.body.aval_of(*var), self.scan.length);
        }
        let constants = self.body.eqns.iter().filter(|eqn| eqn.outputs.iter().all(|var| self.is_constant(*var)));
        program.eqns = constants.cloned().collect();
        program
    }

    fn into_parts(self, outputs: &[Output]) -> Parts {
        let carries = self.scan.num_consts..self.scan.num_consts + self.scan.num_carry;
        let is_kept: Vec<bool> = (0..self.body.inputs.len())
            .map(|index| !carries.contains(&index) || outputs[index - carries.start].is_in_loop())
            .collect();
        let num_carry = is_kept[carries].iter().filter(|is_kept| **is_kept).count();
        let scan = Scan { body: self.inside(outputs, &is_kept), num_carry, ..self.scan.clone() };
        Parts { before: self.before(), scan, is_kept, after: self.after(outputs) }
    }

    /// The program of the products before the loop.
    fn before(&self) -> Program {
        let mut program = self.outside();
        for &index in &self.before {
            let eqn = &self.body.eqns[index];
            let out = eqn.outputs[0];
            program.avals[out.index()] = for_all_steps(self.body.aval_of(out), self.scan.length);
            program.eqns.push(over_steps(eqn, [true, false]));
            program.outputs.push(Atom::Var(out));
        }
        program.simplified()
    }

    /// The body of the loop without the products. Its outputs are the carries and outputs that the loop still computes, and
    /// the operands of products after the loop.
    fn inside(&self, outputs: &[Output], is_kept: &[bool]) -> Program {
        let mut program = self.body.clone();
        let in_loop = self.body.eqns.iter().enumerate().filter(|(index, _)| !self.before.contains(index));
        program.eqns = in_loop.map(|(_, eqn)| eqn.clone()).collect();
        let remaining = self.body.inputs.iter().zip(is_kept).filter(|(_, is_kept)| **is_kept).map(|(var, _)| *var);
        program.inputs = remaining.chain(self.before.iter().map(|index| self.body.eqns[*index].outputs[0])).collect();
        program.outputs.clear();
        for (index, output) in outputs.iter().enumerate().filter(|(_, output)| output.is_in_loop()) {
            let original = self.body.outputs[index];
            let Output::Sum { add, rest, .. } = output else {
                program.outputs.push(original);
                continue;
            };
            let carry = Atom::Var(self.body.inputs[self.scan.num_consts + index]);
            let sum = rest.iter().fold(carry, |sum, term| {
                let var = fresh(&mut program, self.body.atom_aval(&original));
                program.eqns.push(sum_of(&self.body.eqns[*add], [sum, Atom::Var(*term)], var));
                Atom::Var(var)
            });
            program.outputs.push(sum);
        }
        program.outputs.extend(self.stacked.iter().map(|var| Atom::Var(*var)));
        program.simplified()
    }

    /// The program of the products after the loop, whose further inputs are the results of the new loop.
    fn after(&self, outputs: &[Output]) -> Program {
        let Split { scan, body, .. } = *self;
        // The inputs are the results of the loop, then the stacked variables.
        let mut program = self.outside();
        let mut from_loop: Vec<Option<Var>> = Vec::new();
        for (index, output) in outputs.iter().enumerate() {
            let aval = body.atom_aval(&body.outputs[index]);
            let outer = if index < scan.num_carry { aval } else { for_all_steps(&aval, scan.length) };
            from_loop.push(output.is_in_loop().then(|| fresh(&mut program, outer)));
        }
        let mut outside_of: Vec<Option<Var>> = vec![None; body.avals.len()];
        for &var in &self.stacked {
            outside_of[var.index()] = Some(fresh(&mut program, for_all_steps(body.aval_of(var), scan.length)));
        }
        let stacked = self.stacked.iter().filter_map(|var| outside_of[var.index()]);
        program.inputs.extend(from_loop.iter().flatten().copied().chain(stacked));

        // A product of stacked variables computes the products of all steps at once. A sum over steps adds such products.
        for (index, output) in outputs.iter().enumerate() {
            let result = match output {
                Output::Kept => from_loop[index],
                Output::Product(product) => {
                    let eqn = renamed(over_steps(&body.eqns[*product], [true, false]), &outside_of);
                    let out = eqn.outputs[0];
                    program.avals[out.index()] = for_all_steps(body.aval_of(out), scan.length);
                    program.eqns.push(eqn);
                    Some(out)
                }
                Output::Sum { add, products, .. } => {
                    let mut sum = from_loop[index].unwrap_or(body.inputs[scan.num_consts + index]);
                    for moved in products {
                        let product = over_steps(&body.eqns[moved.product], [true, true]);
                        program.eqns.push(renamed(product, &outside_of));
                        program.eqns.extend(moved.moves.iter().rev().map(|index| body.eqns[*index].clone()));
                        let last = body.eqns[*moved.moves.first().unwrap_or(&moved.product)].outputs[0];
                        let var = fresh(&mut program, body.atom_aval(&body.outputs[index]));
                        program.eqns.push(sum_of(&body.eqns[*add], [Atom::Var(sum), Atom::Var(last)], var));
                        sum = var;
                    }
                    Some(sum)
                }
            };
            program.outputs.extend(result.map(Atom::Var));
        }
        program.simplified()
    }
}

/// The type of a value of all steps.
fn for_all_steps(aval: &Aval, length: usize) -> Aval {
    aval.with_dim(0, length, DimSpec::None)
}

fn fresh(program: &mut Program, aval: Aval) -> Var {
    program.avals.push(aval);
    Var(program.avals.len() as u32 - 1)
}

fn variables<'a>(atoms: impl IntoIterator<Item = &'a Atom>) -> impl Iterator<Item = Var> {
    atoms.into_iter().filter_map(|atom| match atom {
        Atom::Var(var) => Some(*var),
        Atom::Literal { .. } => None,
    })
}

/// The product that an equation computes, and its operands.
fn product(eqn: &Eqn) -> Option<(&DotGeneral, [Var; 2])> {
    let dot: &DotGeneral = eqn.primitive.as_any().downcast_ref()?;
    match eqn.inputs[..] {
        [Atom::Var(lhs), Atom::Var(rhs)] if dot.out.is_none() => Some((dot, [lhs, rhs])),
        _ => None,
    }
}

/// The operands of an addition.
fn sum_operands(eqn: &Eqn) -> Option<[Var; 2]> {
    match (eqn.primitive.name(), &eqn.inputs[..]) {
        ("add", [Atom::Var(a), Atom::Var(b)]) => Some([*a, *b]),
        _ => None,
    }
}

/// An addition like this one, of other operands.
fn sum_of(add: &Eqn, operands: [Atom; 2], out: Var) -> Eqn {
    Eqn { inputs: operands.into_iter().collect(), outputs: std::iter::once(out).collect(), ..add.clone() }
}

/// The product of an equation for all steps. Its operands are stacked as stated: if both are, the steps are a further
/// contracted dimension, otherwise they are the first dimension of the result.
fn over_steps(eqn: &Eqn, [is_lhs_stacked, is_rhs_stacked]: [bool; 2]) -> Eqn {
    let Some((dot, _)) = product(eqn) else { return eqn.clone() };
    let steps = (is_lhs_stacked && is_rhs_stacked).then_some(0);
    let shifted =
        |dims: &[usize], is_stacked: bool| dims.iter().map(|d| d + usize::from(is_stacked)).collect::<Vec<_>>();
    let dot = DotGeneral {
        lhs_contract: steps.into_iter().chain(shifted(&dot.lhs_contract, is_lhs_stacked)).collect(),
        rhs_contract: steps.into_iter().chain(shifted(&dot.rhs_contract, is_rhs_stacked)).collect(),
        lhs_batch: shifted(&dot.lhs_batch, is_lhs_stacked).into(),
        rhs_batch: shifted(&dot.rhs_batch, is_rhs_stacked).into(),
        ..dot.clone()
    };
    Eqn { primitive: Arc::new(dot), ..eqn.clone() }
}

/// An equation whose operands have other names outside of the loop.
fn renamed(mut eqn: Eqn, outside_of: &[Option<Var>]) -> Eqn {
    for atom in &mut eqn.inputs {
        if let Atom::Var(var) = atom {
            *var = outside_of[var.index()].unwrap_or(*var);
        }
    }
    eqn
}
