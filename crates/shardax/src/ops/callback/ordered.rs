//! Ordered effects: host calls that wait for the previous one.
//!
//! Inside a program, a token passes from call to call, through loops and branches, and is the program's last result.
//! Programs, and calls outside of programs, wait for each other on the host.

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
use crate::local::{Lasting, LastingKey};

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
        let mut is_concerned = false;
        program.for_each_distinct_eqn(&mut |eqn| is_concerned |= is_ordered(eqn).is_some());
        is_concerned
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
        // Later calls must wait for all devices.
        state[0] = state[0].max(..);
        check_usable(&state[0])
    }
}

/// Threads a token through the program's ordered calls and adds it to the outputs. Returns `None` if the program has no
/// such calls.
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
    /// Completion events of the programs that were started inside the call that holds the turn, while this thread holds
    /// it.
    static INSIDE: Lasting<Option<Vec<pjrt::Event>>> = const { Lasting::new(None) };
}

/// The lock on ordered execution, which guards the completion events of the last programs with ordered calls. `None`
/// inside a call that already holds the turn.
pub(crate) struct Turn(Option<MutexGuard<'static, Vec<pjrt::Event>>>);

/// Waits until earlier ordered calls are done. Other threads wait until the turn is dropped, so that programs with
/// ordered calls are launched in the order in which they acquired their turns. A call inside another ordered call is
/// part of the outer one and does not wait, because the outer call would wait for it.
pub(crate) fn turn() -> Turn {
    static LAST: Mutex<Vec<pjrt::Event>> = Mutex::new(Vec::new());
    if pjrt::ffi::in_function() || INSIDE.with_borrow(Option::is_some) {
        return Turn(None);
    }
    let mut last_events = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    // The results of that program report its error.
    last_events.drain(..).for_each(|event| drop(event.wait()));
    // Programs that this thread starts from here on belong to this turn.
    INSIDE.with_borrow_mut(|inside| *inside = Some(Vec::new()));
    Turn(Some(last_events))
}

impl Turn {
    /// Ends the turn. The next turn begins when these events are ready.
    pub fn ends_with(self, tokens: impl Iterator<Item = pjrt::Event>) {
        INSIDE.with_borrow_mut(|inside| inside.get_or_insert_default().extend(tokens));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(last) = &mut self.0 {
            last.extend(INSIDE.with_borrow_mut(Option::take).unwrap_or_default());
        }
    }
}
