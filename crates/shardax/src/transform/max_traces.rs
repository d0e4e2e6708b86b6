//! `assert_max_traces`: fails when a function is traced more often than expected.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::core::function::{Function, function_name};
use crate::core::program::trace::is_tracing;
use crate::core::tree::Tree;
use crate::error::{Result, err};

/// A function with a limited number of traces; see [`assert_max_traces`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct MaxTraces<F, Args> {
    f: F,
    max: usize,
    traces: AtomicUsize,
    args: PhantomData<fn(Args)>,
}

/// Creates a function that fails when it is traced more than `max` times (Chex's `assert_max_traces`). Use it to detect
/// unintended recompilation.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(assert_max_traces(|x: Array| x * 2, 1));
/// let _ = f.call(array([1, 2]))?;
/// let _ = f.call(array([3, 4]))?;
/// assert!(f.call(array([1, 2, 3])).err().is_some_and(|e| e.message().contains("is traced > 1 times")));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn assert_max_traces<Args: Tree, F: Function<Args>>(f: F, max: usize) -> MaxTraces<F, Args> {
    MaxTraces { f, max, traces: AtomicUsize::new(0), args: PhantomData }
}

impl<F: Function<Args>, Args: Tree> Function<Args> for MaxTraces<F, Args> {
    type Output = F::Output;

    fn apply(&self, args: Args) -> Result<F::Output> {
        if is_tracing() && self.traces.fetch_add(1, Ordering::Relaxed) >= self.max {
            return Err(err!(
                Value,
                "Function '{}' is traced > {} times (AssertionError)",
                function_name::<F>(),
                self.max
            )
            .help("call `config::set_explain_cache_misses(true)` to see what differs between the calls"));
        }
        self.f.apply(args)
    }
}
