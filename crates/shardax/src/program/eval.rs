//! Evaluating a program on arrays: its equations are applied one by one in the trace in effect.

use super::trace::{bind_at, check_usable, with_source};
use super::{Atom, Eqn, Program, Var};
use crate::array::Array;
use crate::error::{Result, err};

/// The values of a program's variables while it is being interpreted.
pub(crate) struct Env<T> {
    values: Vec<Option<T>>,
}

impl<T: Clone> Env<T> {
    pub fn new(program: &Program) -> Self {
        Env { values: vec![None; program.avals.len()] }
    }

    pub fn set(&mut self, var: Var, value: T) {
        self.values[var.index()] = Some(value);
    }

    pub fn get(&self, var: Var) -> Option<&T> {
        self.values[var.index()].as_ref()
    }

    pub fn take(&mut self, var: Var) -> Option<T> {
        self.values[var.index()].take()
    }
}

impl Env<Array> {
    /// The array that an operand stands for.
    pub fn array(&self, atom: &Atom) -> Result<Array> {
        match atom {
            Atom::Literal { value, dtype, weak } => Ok(Array::literal(*value, *dtype, *weak)),
            Atom::Var(var) => self.get(*var).cloned().ok_or_else(|| err!(Runtime, "variable {var:?} has no value")),
        }
    }

    pub fn arrays(&self, atoms: &[Atom]) -> Result<Vec<Array>> {
        atoms.iter().map(|a| self.array(a)).collect()
    }

    /// Applies an equation as it is.
    pub fn apply(&mut self, eqn: &Eqn) -> Result<()> {
        let args = self.arrays(&eqn.inputs)?;
        let outs = bind_at(eqn.primitive.clone(), &args, eqn.source);
        for (var, out) in eqn.outputs.iter().zip(outs) {
            check_usable(&out)?;
            self.set(*var, out);
        }
        Ok(())
    }
}

/// The outputs of `program` on `args`.
pub(crate) fn eval(program: &Program, args: &[Array]) -> Result<Vec<Array>> {
    let mut env = Env::new(program);
    for (var, arg) in program.inputs.iter().zip(args) {
        env.set(*var, arg.clone());
    }
    for eqn in &program.eqns {
        with_source(eqn.source, || env.apply(eqn))?;
    }
    env.arrays(&program.outputs)
}
