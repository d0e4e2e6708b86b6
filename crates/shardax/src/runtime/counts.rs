//! Counts and logs of traces, lowerings and compilations.

use std::cell::Cell;
use std::ops::Sub;
use std::time::Instant;

use crate::config;
use crate::core::program::Aval;
use crate::warning;

// Counted per thread, so that tests that run at the same time do not disturb each other.
thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { traces: 0, lowerings: 0, compilations: 0 }) };
}

/// The number of traces, lowerings and compilations; see [`count`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counts {
    /// Functions traced for compilation: by `jit` and `pmap` for new arguments, and by transformations outside of `jit`
    /// and `pmap`.
    pub traces: u64,
    /// Programs written as StableHLO.
    pub lowerings: u64,
    /// Programs compiled, or read from the cache on disk. Each operation outside of `jit` is a program too.
    pub compilations: u64,
}

impl Sub for Counts {
    type Output = Counts;
    fn sub(self, before: Counts) -> Counts {
        Counts {
            traces: self.traces - before.traces,
            lowerings: self.lowerings - before.lowerings,
            compilations: self.compilations - before.compilations,
        }
    }
}

/// Runs `f`, and returns its result with the number of traces, lowerings and compilations on this thread. Use it in
/// tests to check that a step does not compile again.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array| x * 2);
/// let (_, first) = shardax::count(|| f.call(ones(3)));
/// assert_eq!((first.traces, first.lowerings), (1, 1));
/// let x = ones(3);
/// let (_, again) = shardax::count(|| f.call(&x));
/// assert_eq!(again, shardax::Counts::default());
/// ```
pub fn count<R>(f: impl FnOnce() -> R) -> (R, Counts) {
    let before = COUNTS.get();
    let result = f();
    (result, COUNTS.get() - before)
}

/// Runs `f` without counting.
pub(super) fn uncounted<R>(f: impl FnOnce() -> R) -> R {
    let before = COUNTS.get();
    let result = f();
    COUNTS.set(before);
    result
}

fn log(text: impl FnOnce() -> String) {
    if config::logs_compiles() {
        warning::log(&text());
    }
}

fn add(add: impl FnOnce(&mut Counts)) {
    let mut counts = COUNTS.get();
    add(&mut counts);
    COUNTS.set(counts);
}

/// Records the trace of a function.
pub(crate) fn traced(name: &str, begun: Instant) {
    add(|c| c.traces += 1);
    log(|| format!("Finished tracing {name} in {:.6} sec", begun.elapsed().as_secs_f64()));
}

/// Records the lowering of a program.
pub(crate) fn lowered(name: &str, begun: Instant) {
    add(|c| c.lowerings += 1);
    log(|| format!("Finished program to MLIR module conversion {name} in {:.6} sec", begun.elapsed().as_secs_f64()));
}

/// Records the start of a compilation.
pub(crate) fn compiling<'a>(name: &str, types: impl Iterator<Item = &'a Aval>) {
    log(|| {
        let types: Vec<String> = types.map(Aval::to_string).collect();
        format!("Compiling {name} with global shapes and types [{}]", types.join(", "))
    });
}

/// Records a compilation.
pub(crate) fn compiled(name: &str, begun: Instant) {
    add(|c| c.compilations += 1);
    log(|| format!("Finished XLA compilation of {name} in {:.6} sec", begun.elapsed().as_secs_f64()));
}
