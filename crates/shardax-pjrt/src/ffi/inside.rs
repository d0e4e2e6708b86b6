//! Threads that are inside of a function that a program calls.

use std::cell::Cell;

use crate::error::{Error, Result};
use crate::event::guard_callback;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside of a function that a program calls. The program goes on when the function returns, so
/// what waits for the plugin's threads, or for the program, may wait for ever.
#[inline]
pub fn in_function() -> bool {
    INSIDE.get()
}

/// Fails inside of a function that a program calls: it cannot run programs.
#[inline]
pub(crate) fn check_outside() -> Result<()> {
    match in_function() {
        false => Ok(()),
        true => Err(inside()),
    }
}

#[cold]
fn inside() -> Error {
    Error::failed_precondition(
        "a function of the host that a program calls cannot run programs: the threads that would run them may all be \
         waiting for such functions. Let it compute with the elements, or move what it computes into the program",
    )
}

/// Calls a function for a program; a panic is an error.
pub(super) fn guarded(function: impl FnOnce() -> std::result::Result<(), String>) -> std::result::Result<(), String> {
    let outer = INSIDE.replace(true);
    let result = guard_callback(function).unwrap_or_else(|panic| Err(format!("panicked: {panic}")));
    INSIDE.set(outer);
    result
}
