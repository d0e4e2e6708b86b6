//! Threads a state through a program. Each equation can change it, and loops, branches and calls carry it.
//!
//! The state is a list of arrays: the first failed check so far, or the token that keeps effects in order.

use crate::core::array::Array;
use crate::core::primitive::ThreadState;
use crate::core::program::trace::{Traced, check_usable, trace};
use crate::core::program::{Aval, Env, Program};
use crate::error::Result;
use crate::interpret::eval::at_eqn;

/// Computes the outputs of `program` on `args`, and updates the state.
pub(crate) fn thread_eval(
    program: &Program,
    thread: &dyn ThreadState,
    args: &[Array],
    state: &mut Vec<Array>,
) -> Result<Vec<Array>> {
    let mut env = Env::new(program);
    for (var, arg) in program.inputs.iter().zip(args) {
        env.set(*var, arg.clone());
    }
    for eqn in &program.eqns {
        at_eqn(eqn, || {
            // Equations whose programs do not access the state are evaluated as they are, so that calls stay calls.
            let nested = eqn.primitive.programs();
            if !nested.is_empty() && !nested.iter().any(|program| thread.concerns(program)) {
                return env.apply(eqn);
            }
            let args = env.arrays(&eqn.inputs)?;
            let outs = if nested.is_empty() {
                thread.apply(eqn, &args, state)?
            } else {
                thread.apply_nested(eqn, &args, state).map_err(|e| e.at(eqn.source))?
            };
            for (var, out) in eqn.outputs.iter().zip(outs) {
                check_usable(&out)?;
                env.set(*var, out);
            }
            Ok(())
        })?;
    }
    env.arrays(&program.outputs)
}

/// Adds the state to the program. The new program receives the state after its first `before` inputs, and returns a
/// state of the same types before its outputs. Captures of the trace come first.
pub(crate) fn thread_state(
    program: &Program,
    thread: &dyn ThreadState,
    before: usize,
    state: &[Array],
) -> Result<Traced> {
    traced(program, before, state, |args, state| {
        let outs = thread_eval(program, thread, args, state)?;
        thread.cast_state(state)?;
        Ok(outs)
    })
}

/// Adds the state to the program before its inputs and outputs. The returned state can have other types, with an entry
/// for each device of a `shard_map`.
pub(crate) fn thread_call(program: &Program, thread: &dyn ThreadState, state: &[Array]) -> Result<Traced> {
    traced(program, 0, state, |args, state| thread_eval(program, thread, args, state))
}

fn traced(
    program: &Program,
    before: usize,
    state: &[Array],
    eval: impl Fn(&[Array], &mut Vec<Array>) -> Result<Vec<Array>>,
) -> Result<Traced> {
    let mut avals: Vec<Aval> = program.in_avals().cloned().collect();
    avals.splice(before..before, state.iter().map(Array::aval));
    trace(&avals, |inputs| {
        let mut args = inputs.to_vec();
        let mut state = args.splice(before..before + state.len(), []).collect();
        let outs = eval(&args, &mut state)?;
        Ok([state, outs].concat())
    })
}
