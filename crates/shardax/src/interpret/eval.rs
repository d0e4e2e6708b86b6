//! Evaluation of a program on arrays. Its equations are applied one by one in the current trace.

use crate::core::array::Array;
use crate::core::program::trace::{bind_at, check_usable, with_source};
use crate::core::program::{Atom, Env, Eqn, Program};
use crate::error::{Result, err};
use crate::sharding::context::with_abstract_mesh;
use crate::stack::grow;

impl Env<Array> {
    /// Returns the array of an operand.
    pub fn array(&self, atom: &Atom) -> Result<Array> {
        match atom {
            Atom::Literal { value, dtype, weak } => Ok(Array::literal(*value, *dtype, *weak)),
            Atom::Var(var) => self
                .get(*var)
                .cloned()
                .ok_or_else(|| err!(Runtime, "internal error: variable {var:?} has no value; please report this")),
        }
    }

    /// Returns the arrays of these operands.
    pub fn arrays(&self, atoms: &[Atom]) -> Result<Vec<Array>> {
        atoms.iter().map(|a| self.array(a)).collect()
    }

    /// Applies an equation unchanged.
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

/// Runs `f` at the source line and under the names of an equation, with enough stack for its sub-programs.
pub(crate) fn at_eqn<R>(eqn: &Eqn, f: impl FnOnce() -> R) -> R {
    grow(|| {
        with_source(eqn.source, || {
            eqn.scope.within(|| match &eqn.mesh {
                Some(mesh) => with_abstract_mesh(Some(mesh.clone()), f),
                None => f(),
            })
        })
    })
}

/// Computes the outputs of `program` on `args`.
pub(crate) fn eval(program: &Program, args: &[Array]) -> Result<Vec<Array>> {
    let mut env = Env::new(program);
    for (var, arg) in program.inputs.iter().zip(args) {
        env.set(*var, arg.clone());
    }
    for eqn in &program.eqns {
        at_eqn(eqn, || env.apply(eqn))?;
    }
    env.arrays(&program.outputs)
}
