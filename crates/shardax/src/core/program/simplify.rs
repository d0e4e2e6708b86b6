//! Dead code elimination and common subexpression elimination, before a program is lowered or nested.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::{Atom, Eqn, Program, Var};

impl Program {
    /// Drops equations whose results are not used, merges equal equations, and renumbers the variables. It keeps all
    /// inputs, even unused ones.
    pub(crate) fn simplified(&self) -> Program {
        let merged = self.merge_equal();
        merged.drop_unused()
    }

    /// Removes equations that return their operand.
    pub(crate) fn without(&self, is_removed: impl Fn(&Eqn) -> bool) -> Program {
        let mut replaced: HashMap<Var, Atom> = HashMap::new();
        let mut eqns = Vec::with_capacity(self.eqns.len());
        for eqn in &self.eqns {
            let mut eqn = eqn.clone();
            for atom in &mut eqn.inputs {
                *atom = replacement(&replaced, *atom);
            }
            match (eqn.inputs.as_slice(), eqn.outputs.as_slice()) {
                ([operand], [result]) if is_removed(&eqn) => drop(replaced.insert(*result, *operand)),
                _ => eqns.push(eqn),
            }
        }
        let outputs = self.outputs.iter().map(|atom| replacement(&replaced, *atom)).collect();
        Program { avals: self.avals.clone(), inputs: self.inputs.clone(), eqns, outputs }
    }

    fn merge_equal(&self) -> Program {
        let mut replaced: HashMap<Var, Var> = HashMap::new();
        let mut outputs_of_eqn: HashMap<Eqn, SmallVec<[Var; 1]>> = HashMap::new();
        let mut eqns = Vec::with_capacity(self.eqns.len());
        for eqn in &self.eqns {
            let mut eqn = eqn.clone();
            for atom in &mut eqn.inputs {
                *atom = resolve(&replaced, atom);
            }
            // Hashing the body of a loop costs more than merging an equal one would save.
            if !eqn.primitive.programs().is_empty() || eqn.primitive.has_effects() {
                eqns.push(eqn);
                continue;
            }
            let outputs = std::mem::take(&mut eqn.outputs);
            match outputs_of_eqn.get(&eqn) {
                Some(earlier) if same_types(self, earlier, &outputs) => {
                    replaced.extend(outputs.iter().copied().zip(earlier.iter().copied()));
                }
                _ => {
                    outputs_of_eqn.insert(eqn.clone(), outputs.clone());
                    eqns.push(Eqn { outputs, ..eqn });
                }
            }
        }
        let outputs = self.outputs.iter().map(|a| resolve(&replaced, a)).collect();
        Program { avals: self.avals.clone(), inputs: self.inputs.clone(), eqns, outputs }
    }

    fn drop_unused(&self) -> Program {
        let mut used = vec![false; self.avals.len()];
        mark(&mut used, &self.outputs);
        // An equation is used by an equation after it, so one pass from the end finds all that are used.
        let mut keep = vec![false; self.eqns.len()];
        for (i, eqn) in self.eqns.iter().enumerate().rev() {
            keep[i] = eqn.outputs.iter().any(|v| used[v.index()]) || eqn.primitive.has_effects();
            if keep[i] {
                mark(&mut used, &eqn.inputs);
            }
        }

        // Numbers the variables anew, so that the program has no types of variables that are gone.
        let mut renamed = vec![Var(u32::MAX); self.avals.len()];
        let mut out = Program::default();
        for &var in &self.inputs {
            let var = self.define_in(&mut out, var, &mut renamed);
            out.inputs.push(var);
        }
        for (eqn, _) in self.eqns.iter().zip(&keep).filter(|(_, keep)| **keep) {
            let inputs = eqn.inputs.iter().map(|atom| rename(&renamed, atom)).collect();
            let outputs = eqn.outputs.iter().map(|&v| self.define_in(&mut out, v, &mut renamed)).collect();
            out.eqns.push(Eqn { inputs, outputs, ..eqn.clone() });
        }
        out.outputs = self.outputs.iter().map(|atom| rename(&renamed, atom)).collect();
        out
    }

    /// Adds a variable of the type of `var` to `out`, and enters it in `renamed`.
    fn define_in(&self, out: &mut Program, var: Var, renamed: &mut [Var]) -> Var {
        let new = Var(out.avals.len() as u32);
        out.avals.push(self.aval_of(var).clone());
        renamed[var.index()] = new;
        new
    }

    /// Marks the variables that an equation uses or that are returned.
    pub(crate) fn used(&self) -> Vec<bool> {
        let mut used = vec![false; self.avals.len()];
        self.eqns.iter().for_each(|eqn| mark(&mut used, &eqn.inputs));
        mark(&mut used, &self.outputs);
        used
    }

    /// Marks the inputs that an equation uses or that are returned.
    pub(crate) fn used_inputs(&self) -> Vec<bool> {
        let used = self.used();
        self.inputs.iter().map(|v| used[v.index()]).collect()
    }
}

fn mark(used: &mut [bool], atoms: &[Atom]) {
    for atom in atoms {
        if let Atom::Var(v) = atom {
            used[v.index()] = true;
        }
    }
}

/// Replaces a merged variable by the one that it equals.
fn resolve(replaced: &HashMap<Var, Var>, atom: &Atom) -> Atom {
    match atom {
        Atom::Var(v) => Atom::Var(*replaced.get(v).unwrap_or(v)),
        literal => *literal,
    }
}

fn rename(renamed: &[Var], atom: &Atom) -> Atom {
    match atom {
        Atom::Var(v) => Atom::Var(renamed[v.index()]),
        literal => *literal,
    }
}

fn same_types(program: &Program, a: &[Var], b: &[Var]) -> bool {
    a.iter().zip(b).all(|(a, b)| program.aval_of(*a) == program.aval_of(*b))
}

fn replacement(replaced: &HashMap<Var, Atom>, atom: Atom) -> Atom {
    match atom {
        Atom::Var(var) => *replaced.get(&var).unwrap_or(&atom),
        literal => literal,
    }
}
