//! Detection of threads that are inside a host function of a program.

use std::cell::Cell;

use crate::error::{Error, Result};
use crate::event::guard_callback;

thread_local! {
    // Set on the plugin's threads while they call a function.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if this thread is inside a function that a program calls. The program continues when the function
/// returns, so waiting here for the program or for the plugin's threads can block forever.
#[inline]
pub fn in_function() -> bool {
    INSIDE.get()
}

/// Fails inside a function that a program calls, because such a function cannot run programs.
#[inline]
pub(crate) fn check_outside() -> Result<()> {
    if !in_function() { Ok(()) } else { Err(inside()) }
}

#[cold]
fn inside() -> Error {
    Error::failed_precondition(
        "a host function that a program calls cannot run programs: the threads that would run them may all be waiting \
         for such functions. Compute with the elements instead, or move the computation into the program",
    )
}

/// Calls a function for a program, and converts a panic to an error.
pub(super) fn guarded(function: impl FnOnce() -> std::result::Result<(), String>) -> std::result::Result<(), String> {
    let outer = INSIDE.replace(true);
    let result = guard_callback(function).unwrap_or_else(|panic| Err(format!("panicked: {panic}")));
    INSIDE.set(outer);
    result
}
