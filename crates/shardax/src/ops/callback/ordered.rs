//! Ordered effects: host calls that wait for the previous one.
//!
//! Inside a program a token is passed from call to call, through loops and branches, and is the program's last result.
//! Programs and calls outside of them wait for each other on the host.

use std::cell::RefCell;
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
        program.for_each_distinct_eqn(&mut |eqn| found |= is_ordered(eqn).is_some());
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

    fn apply_nested(&self, eqn: &Eqn, args: &[Array], state: &mut Vec<Array>) -> Result<Outputs> {
        eqn.primitive.thread_state(self, args, state)
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

thread_local! {
    /// While this thread has the turn: the ends of programs that were started inside the call that has it.
    static INSIDE: RefCell<Option<Vec<pjrt::Event>>> = const { RefCell::new(None) };
}

/// The lock on ordered execution, with the ends of the last programs with ordered calls. `None` inside a
/// call that has the turn.
pub(crate) struct Turn(Option<MutexGuard<'static, Vec<pjrt::Event>>>);

/// Waits until earlier ordered calls are done. Others wait until the turn is dropped, so programs with ordered calls
/// are launched in the order in which they took their turns. A call inside another one is part of it: it waits for
/// nothing, because the outer one would wait for it.
pub(crate) fn turn() -> Turn {
    static LAST: Mutex<Vec<pjrt::Event>> = Mutex::new(Vec::new());
    if pjrt::ffi::in_function() || INSIDE.with_borrow(Option::is_some) {
        return Turn(None);
    }
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    // An error there is reported by the results of that program.
    last.drain(..).for_each(|event| drop(event.wait()));
    INSIDE.set(Some(Vec::new()));
    Turn(Some(last))
}

impl Turn {
    /// The next turn begins when these are ready.
    pub fn ends_with(self, tokens: impl Iterator<Item = pjrt::Event>) {
        INSIDE.with_borrow_mut(|inside| inside.get_or_insert_default().extend(tokens));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(last) = &mut self.0 {
            last.extend(INSIDE.take().unwrap_or_default());
        }
    }
}
