//! Analysis of the axes over which a program's outputs vary, to distinguish replicated results from others.

use smallvec::SmallVec;

use crate::core::program::{Atom, Env, Program};
use crate::error::Result;
use crate::shape::AxisSet;
use crate::stack::grow;

/// The axes over which each output varies if the inputs vary over `inputs`.
pub(crate) fn outputs(program: &Program, inputs: &[AxisSet]) -> Result<Vec<AxisSet>> {
    let mut env: Env<AxisSet> = Env::new(program);
    for (var, set) in program.inputs.iter().zip(inputs) {
        env.set(*var, set.clone());
    }
    for eqn in &program.eqns {
        let args: SmallVec<[AxisSet; 3]> = eqn.inputs.iter().map(|a| axes_of(&env, a)).collect();
        let sets = grow(|| match eqn.primitive.callee() {
            Some(callee) => callee.varying_once(&args, || outputs(callee, &args)).map(SmallVec::from_vec),
            None => eqn.primitive.vary(&args),
        })?;
        for (var, set) in eqn.outputs.iter().zip(sets) {
            env.set(*var, set);
        }
    }
    Ok(program.outputs.iter().map(|a| axes_of(&env, a)).collect())
}

fn axes_of(env: &Env<AxisSet>, atom: &Atom) -> AxisSet {
    match atom {
        Atom::Var(v) => env.get(*v).cloned().unwrap_or_default(),
        Atom::Literal { .. } => AxisSet::default(),
    }
}
