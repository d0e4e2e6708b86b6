//! The mesh axes that [`no_collectives`](crate::no_collectives) forbids on a thread. They are one of the defaults that a trace
//! depends on.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::local::{Guard, Guarded, GuardedKey};
use crate::shape::AxisName;

/// Forbidden axes, sorted. A set is stored once, so that it can be copied into the defaults that traces are compared by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Forbidden(&'static [AxisName]);

// The guard forbids axes on one thread only, so that another thread can use them meanwhile.
thread_local! {
    static FORBIDDEN: Guarded<Forbidden> = const { Guarded::new() };
}

impl Forbidden {
    /// The stored set of these axes. It stays for the life of the process.
    fn stored(mut axes: Vec<AxisName>) -> Forbidden {
        static INTERNED_AXES: Mutex<Vec<&'static [AxisName]>> = Mutex::new(Vec::new());
        axes.sort_unstable();
        axes.dedup();
        let mut stored = INTERNED_AXES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = stored.iter().find(|known| **known == axes) {
            return Forbidden(known);
        }
        // Leaked once per distinct set; programs forbid only a few sets.
        let axes: &'static [AxisName] = Vec::leak(axes);
        stored.push(axes);
        Forbidden(axes)
    }

    /// Forbids these axes on this thread until the guard is dropped.
    pub fn guard(axes: Vec<AxisName>) -> Guard<Forbidden> {
        FORBIDDEN.guard(Forbidden::stored(axes))
    }

    /// Returns the axes, sorted.
    pub fn axes(self) -> &'static [AxisName] {
        self.0
    }

    /// Returns the axes that are forbidden on this thread.
    pub fn current() -> Forbidden {
        FORBIDDEN.with_last(|axes| axes.copied()).unwrap_or_default()
    }
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(AxisName::as_str).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}
