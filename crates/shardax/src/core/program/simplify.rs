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

    fn merge_equal(&self) -> Program {
        let mut replaced: HashMap<Var, Var> = HashMap::new();
        let mut seen: HashMap<Eqn, SmallVec<[Var; 1]>> = HashMap::new();
        let resolve = |replaced: &HashMap<Var, Var>, atom: &Atom| match atom {
            Atom::Var(v) => Atom::Var(*replaced.get(v).unwrap_or(v)),
            literal => *literal,
        };
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
            match seen.get(&eqn) {
                Some(earlier) if same_types(self, earlier, &outputs) => {
                    replaced.extend(outputs.iter().copied().zip(earlier.iter().copied()));
                }
                _ => {
                    seen.insert(eqn.clone(), outputs.clone());
                    eqns.push(Eqn { outputs, ..eqn });
                }
            }
        }
        let outputs = self.outputs.iter().map(|a| resolve(&replaced, a)).collect();
        Program { avals: self.avals.clone(), inputs: self.inputs.clone(), eqns, outputs }
    }

    fn drop_unused(&self) -> Program {
        let mut used = vec![false; self.avals.len()];
        let mark = |used: &mut Vec<bool>, atoms: &[Atom]| {
            for atom in atoms {
                if let Atom::Var(v) = atom {
                    used[v.index()] = true;
                }
            }
        };
        mark(&mut used, &self.outputs);
        let mut keep = vec![false; self.eqns.len()];
        for (i, eqn) in self.eqns.iter().enumerate().rev() {
            keep[i] = eqn.outputs.iter().any(|v| used[v.index()]) || eqn.primitive.has_effects();
            if keep[i] {
                mark(&mut used, &eqn.inputs);
            }
        }

        let mut renamed = vec![Var(u32::MAX); self.avals.len()];
        let mut out = Program::default();
        let mut define = |out: &mut Program, var: Var| {
            let new = Var(out.avals.len() as u32);
            out.avals.push(self.aval_of(var).clone());
            renamed[var.index()] = new;
            new
        };
        for &var in &self.inputs {
            let var = define(&mut out, var);
            out.inputs.push(var);
        }
        let mut eqns = Vec::new();
        for (eqn, _) in self.eqns.iter().zip(&keep).filter(|(_, keep)| **keep) {
            let outputs = eqn.outputs.iter().map(|&v| define(&mut out, v)).collect();
            eqns.push(Eqn { outputs, ..eqn.clone() });
        }
        let rename = |atom: &Atom| match atom {
            Atom::Var(v) => Atom::Var(renamed[v.index()]),
            literal => *literal,
        };
        for eqn in &mut eqns {
            eqn.inputs = eqn.inputs.iter().map(rename).collect();
        }
        out.eqns = eqns;
        out.outputs = self.outputs.iter().map(rename).collect();
        out
    }

    /// Marks the inputs that an equation uses or that are returned.
    pub(crate) fn used_inputs(&self) -> Vec<bool> {
        let mut used = vec![false; self.avals.len()];
        for atom in self.eqns.iter().flat_map(|e| &e.inputs).chain(&self.outputs) {
            if let Atom::Var(v) = atom {
                used[v.index()] = true;
            }
        }
        self.inputs.iter().map(|v| used[v.index()]).collect()
    }
}

fn same_types(program: &Program, a: &[Var], b: &[Var]) -> bool {
    a.iter().zip(b).all(|(a, b)| program.aval_of(*a) == program.aval_of(*b))
}
