//! Effects in order: calls of the host that wait for the one before.
//!
//! Inside a program a token goes from call to call, through loops and branches, and is the program's last result. Programs
//! and calls outside of them wait for each other on the host.

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

/// The type of a token, of which only the order matters.
pub(super) const TOKEN: DType = DType::I32;

/// A call whose order is kept and that takes no token yet.
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

    fn settle(&self, _state: &mut Vec<Array>) -> Result<()> {
        Ok(())
    }

    fn gather(&self, state: &mut Vec<Array>) -> Result<()> {
        // What follows waits for all devices.
        state[0] = state[0].max(..);
        check_usable(&state[0])
    }
}

/// The program with its ordered calls in order, and a token after its outputs. `None` where it has no such calls.
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
    /// While this thread has the turn: the ends of programs that were started inside of the call that has it.
    static INSIDE: RefCell<Option<Vec<pjrt::Event>>> = const { RefCell::new(None) };
}

/// The turn to make ordered calls, until it is dropped: the ends of the last programs with such calls. None inside of a
/// call that has it.
pub(crate) struct Turn(Option<MutexGuard<'static, Vec<pjrt::Event>>>);

/// Waits until ordered calls that were asked for earlier are done. Others wait as long as the turn is held. A call inside
/// of another one is part of it: it is made in its place, and waits for nothing, since the other would wait for it.
pub(crate) fn turn() -> Turn {
    static LAST: Mutex<Vec<pjrt::Event>> = Mutex::new(Vec::new());
    if pjrt::ffi::in_function() || INSIDE.with_borrow(Option::is_some) {
        return Turn(None);
    }
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    // What went wrong there is the error of its own results.
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
