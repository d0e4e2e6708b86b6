//! Transposes on CPU: finds the results that are read from memory, which a kernel can write.
//!
//! XLA computes a transpose in the loop of the operation that uses it, which saves a copy. But some users read memory: the program's
//! caller, calls, loops, sorts, scatters, and products of a transpose that is reshaped. XLA writes an array for these, one element after the other.

use super::materialize::operands;
use crate::core::lower::ResultUse;
use crate::core::program::{Atom, Eqn, Program};

/// The operations that read a transpose in place, or write a transposed result, because they accept any order of dimensions.
const ANY_ORDER: [&str; 2] = ["dot_general", "conv_general_dilated"];

/// The operations that XLA computes in the loops of their users at other positions.
const MOVES: [&str; 7] = ["transpose", "broadcast_in_dim", "slice", "pad", "concatenate", "rev", "dynamic_slice"];

/// The operations whose result is the operand's memory.
const KEEPS: [&str; 5] = ["reshape", "reshard", "pcast", "stop_gradient", "name"];

/// The reductions, for which XLA reduces over other dimensions instead of transposing.
const REDUCTIONS: [&str; 8] =
    ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "argmax", "argmin"];

/// The calls of functions that XLA inlines: their first operations can compute the operand in their loops.
const INLINED: [&str; 5] = ["jit", "checkpoint", "custom_jvp", "custom_vjp", "custom_vmap_call"];

/// Returns where the results of transposes are read, by variable. The list is empty if there are no transposes.
pub(in crate::backend) fn uses(program: &Program) -> Vec<ResultUse> {
    if !program.eqns.iter().any(is_transpose) {
        return Vec::new();
    }
    let sources = Sources::of(program);
    let mut uses = vec![ResultUse::Fused; program.avals.len()];
    for atom in &program.outputs {
        if let Atom::Var(var) = atom {
            uses[var.index()] = ResultUse::Memory;
        }
    }
    for eqn in program.eqns.iter().rev() {
        let result = eqn.outputs.first().map_or(ResultUse::Memory, |out| uses[out.index()]);
        for var in operands(eqn) {
            let new_use = use_by(program, eqn, result, sources.transposed[var.index()]);
            uses[var.index()] = uses[var.index()].max(new_use);
        }
    }
    for eqn in program.eqns.iter().filter(|eqn| is_transpose(eqn)) {
        let Some(operand) = operands(eqn).next() else { continue };
        let result = &mut uses[eqn.outputs[0].index()];
        *result = (*result).min(sources.best_use(operand.index()));
    }
    uses
}

/// Returns how an equation, whose result is used like this, reads an operand.
fn use_by(program: &Program, eqn: &Eqn, result: ResultUse, is_transposed: bool) -> ResultUse {
    match eqn.primitive.name() {
        name if KEEPS.contains(&name) => result,
        name if ANY_ORDER.contains(&name) && is_transposed => ResultUse::Fused,
        name if MOVES.contains(&name) || REDUCTIONS.contains(&name) => ResultUse::Fused,
        // A gather of few elements reads them from the operand.
        "gather" if reads_few(eqn, program) => ResultUse::Fused,
        name if INLINED.contains(&name) => ResultUse::Elementwise,
        _ if eqn.primitive.is_fused() => result.min(ResultUse::Elementwise),
        _ => ResultUse::Memory,
    }
}

/// Returns `true` if an equation's result has less than half of the elements of its first operand.
fn reads_few(eqn: &Eqn, program: &Program) -> bool {
    let [Some(operand), Some(result)] = [operands(eqn).next(), eqn.outputs.first().copied()] else { return false };
    2 * program.avals[result.index()].size() < program.avals[operand.index()].size()
}

fn is_transpose(eqn: &Eqn) -> bool {
    eqn.primitive.name() == "transpose"
}

/// The origin of each value of a program.
struct Sources {
    /// `true` for transposes, and values that are computed element by element from one.
    transposed: Vec<bool>,
    /// `true` for values that XLA computes in the loops of their users. A call that reads one needs another loop, which writes it.
    computed: Vec<bool>,
    /// `true` for the results of operations that write any order of dimensions.
    in_any_order: Vec<bool>,
}

impl Sources {
    fn of(program: &Program) -> Sources {
        let none = vec![false; program.avals.len()];
        let mut sources = Sources { transposed: none.clone(), computed: none.clone(), in_any_order: none };
        for eqn in &program.eqns {
            let name = eqn.primitive.name();
            let (keeps, is_fused) = (KEEPS.contains(&name), eqn.primitive.is_fused() || KEEPS.contains(&name));
            let transposed = name != "reshape" && operands(eqn).any(|var| sources.transposed[var.index()]);
            let computed = !keeps || operands(eqn).any(|var| sources.computed[var.index()]);
            for out in eqn.outputs.iter().map(|out| out.index()) {
                sources.transposed[out] = is_transpose(eqn) || is_fused && transposed && !MOVES.contains(&name);
                sources.computed[out] = is_fused && computed;
                sources.in_any_order[out] = ANY_ORDER.contains(&name);
            }
        }
        sources
    }

    /// Returns the use of a transpose of this value for which a call is not too expensive.
    fn best_use(&self, operand: usize) -> ResultUse {
        if self.transposed[operand] || self.in_any_order[operand] {
            // XLA orders the dimensions of the value so that no transpose is left.
            ResultUse::Fused
        } else if self.computed[operand] {
            ResultUse::Elementwise
        } else {
            ResultUse::Memory
        }
    }
}
