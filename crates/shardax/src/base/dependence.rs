//! Dependences of the trace of a function, besides the types of its arguments.
//!
//! Traces are cached by the types of the arguments and by settings. A function can query more while it is traced, and
//! then its trace is valid for fewer calls.

use std::cell::Cell;

/// The kinds of queries that a traced function has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dependence {
    /// The devices of the context mesh.
    pub devices: bool,
    /// The mesh of the arguments.
    pub argument_meshes: bool,
    /// The value of an argument.
    pub values: bool,
    /// A gradient, which differs between devices where the argument's uses do.
    pub gradients: bool,
}

thread_local! {
    // The traces on a thread are nested, so one record serves them all: `recorded` sets it aside for the inner trace.
    static QUERIED: Cell<Dependence> = const { Cell::new(Dependence::NONE) };
}

impl Dependence {
    const NONE: Self = Dependence { devices: false, argument_meshes: false, values: false, gradients: false };

    /// Combines two records. An enclosing trace depends on everything that its inner traces depend on.
    fn or(self, other: Self) -> Self {
        Dependence {
            devices: self.devices || other.devices,
            argument_meshes: self.argument_meshes || other.argument_meshes,
            values: self.values || other.values,
            gradients: self.gradients || other.gradients,
        }
    }
}

/// Records a dependence of the functions that this thread traces.
pub(crate) fn depend_on(query: Dependence) {
    QUERIED.set(QUERIED.get().or(query));
}

/// Runs `trace` and returns its dependences.
pub(crate) fn recorded<R>(trace: impl FnOnce() -> R) -> (R, Dependence) {
    /// Adds the outer record again, also if `trace` panics.
    struct Outer(Dependence);
    impl Drop for Outer {
        fn drop(&mut self) {
            depend_on(self.0);
        }
    }
    let _outer = Outer(QUERIED.replace(Dependence::NONE));
    let result = trace();
    (result, QUERIED.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_traces_have_the_dependences_of_inner_traces() {
        let (inner, outer) = recorded(|| {
            depend_on(Dependence { devices: true, ..Dependence::default() });
            recorded(|| depend_on(Dependence { values: true, ..Dependence::default() })).1
        });
        assert_eq!(inner, Dependence { values: true, ..Dependence::default() });
        assert_eq!(outer, Dependence { devices: true, values: true, ..Dependence::default() });
        assert_eq!(recorded(|| ()).1, Dependence::default());
    }
}
