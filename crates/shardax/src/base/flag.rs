//! Settings of the process that are on or off.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use shardax_pjrt::Setting;

const OFF: u8 = 0;
const ON: u8 = 1;
const NOT_READ: u8 = 2;

/// A setting that a function sets. Before that it has the value of an environment variable, or is off. Reading it is one
/// load, because every call reads flags.
pub(crate) struct Flag {
    state: AtomicU8,
    variable: &'static Setting<bool>,
}

impl Flag {
    /// A flag that has the value of this variable until it is set.
    pub(crate) const fn new(variable: &'static Setting<bool>) -> Flag {
        Flag { state: AtomicU8::new(NOT_READ), variable }
    }

    pub(crate) fn set(&self, on: bool) {
        self.state.store(if on { ON } else { OFF }, Relaxed);
    }

    pub(crate) fn get(&self) -> bool {
        match self.state.load(Relaxed) {
            NOT_READ => self.read_variable(),
            state => state == ON,
        }
    }

    #[cold]
    fn read_variable(&self) -> bool {
        let on = self.variable.get().unwrap_or(false);
        // Another thread may have set the flag since; then its value remains.
        let _ = self.state.compare_exchange(NOT_READ, if on { ON } else { OFF }, Relaxed, Relaxed);
        self.state.load(Relaxed) == ON
    }
}

/// Reads `true`, `false`, `1` or `0`.
pub(crate) fn parse(text: &str) -> Option<bool> {
    match text.trim().to_lowercase().as_str() {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}
