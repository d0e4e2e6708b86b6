//! Ordered effects: host calls that wait for the previous one.
//!
//! Inside a program a token is passed from call to call, through loops and branches, and is the program's last result.
//! Programs and calls outside of them wait for each other on the host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardax_pjrt as pjrt;

use super::primitive::HostCall;
use crate::core::array::Array;
use crate::core::primitive::{Outputs, ThreadState};
use crate::core::program::trace::{bind_at, check_usable, trace};
use crate::core::program::{Aval, Eqn, Program};
use crate::dtype::DType;
use crate::error::Result;
use crate::interpret::thread_state::thread_eval;

/// The type of a token; its value does not matter.
pub(super) const TOKEN: DType = DType::I32;

/// Returns an ordered call that has no token yet.
fn is_ordered(eqn: &Eqn) -> Option<&HostCall> {
    eqn.primitive.as_any().downcast_ref::<HostCall>().filter(|call| call.ordered && !call.token)
}

/// The state is the token.
struct Tokens;

impl ThreadState for Tokens {
    fn concerns(&self, program: &Program) -> bool {
        let mut found = false;
        program.for_each_eqn(&mut |eqn| found |= is_ordered(eqn).is_some());
        found
    }

    fn apply(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        let Some(call) = is_ordered(eqn) else { return Ok(bind_at(eqn.primitive.clone(), args, eqn.source)) };
        let call = HostCall { token: true, ..call.clone() };
        let mut outs = bind_at(Arc::new(call), &[state, args].concat(), eqn.source);
        outs.iter().try_for_each(check_usable)?;
        state[0] = outs.remove(0);
        Ok(outs)
    }

    fn cast_state(&self, _state: &mut Vec<Array>) -> Result<()> {
        Ok(())
    }

    fn gather(&self, state: &mut Vec<Array>) -> Result<()> {
        // Later calls wait for all devices.
        state[0] = state[0].max(..);
        check_usable(&state[0])
    }
}

/// Threads a token through the program's ordered calls and adds it to the outputs. `None` if it has no such calls.
pub(crate) fn in_order(program: &Program) -> Result<Option<Program>> {
    if !Tokens.concerns(program) {
        return Ok(None);
    }
    let avals: Vec<Aval> = program.in_avals().cloned().collect();
    let traced = trace(&avals, |args| {
        let mut state = vec![Array::zeros_of(&Aval::scalar(TOKEN))];
        let outs = thread_eval(program, &Tokens, args, &mut state)?;
        Ok([outs, state].concat())
    })?;
    Ok(Some(traced.program))
}

/// The lock on ordered execution, with the end of the last program with ordered calls.
pub(crate) struct Turn(MutexGuard<'static, Vec<pjrt::Event>>);

/// Waits until earlier ordered calls are done. Others wait until the turn is dropped, so programs with ordered calls
/// are launched in the order in which they took their turns.
pub(crate) fn turn() -> Turn {
    static LAST: Mutex<Vec<pjrt::Event>> = Mutex::new(Vec::new());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    // An error there is reported by the results of that program.
    last.drain(..).for_each(|event| drop(event.wait()));
    Turn(last)
}

impl Turn {
    /// The next turn begins when these are ready.
    pub fn ends_with(mut self, tokens: impl Iterator<Item = pjrt::Event>) {
        self.0.extend(tokens);
    }
}
