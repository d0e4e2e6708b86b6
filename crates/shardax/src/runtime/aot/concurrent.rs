//! Concurrent compilation of several programs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Compiled, Lowered};
use crate::core::tree::Tree;
use crate::error::{AtCaller, Result};
use crate::runtime::multi_process::processes_of;

/// Compiles several functions concurrently, at most one per core at a time. Use it for a server's programs for several
/// batch sizes, for example. The compiler itself uses several cores for a large program, but only one for a small
/// program.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array| x.sin().sum(..));
/// let sizes = [1, 8, 64];
/// let lowered = sizes.map(|n| f.lower(shape_dtype_struct([n], DType::F32)));
/// let compiled = compile_all(&lowered.into_iter().collect::<shardax::Result<Vec<_>>>()?)?;
/// assert_eq!(compiled[1].call(zeros([8]))?.item::<f32>()?, 0.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns the error of the first function in the list that does not compile.
#[track_caller]
pub fn compile_all<Args: Tree, Out: Tree>(lowered: &[Lowered<Args, Out>]) -> Result<Vec<Compiled<Args, Out>>> {
    // Threads take the next function when they finish one, because compilation times differ much.
    let (next_index, finished) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // All processes must compile programs over shared devices in the same order, so these are compiled sequentially.
    let cores = if lowered.iter().any(|one| processes_of(one.lowered.request.place.devices()).is_some()) {
        1
    } else {
        std::thread::available_parallelism().map_or(1, |n| n.get())
    };
    std::thread::scope(|scope| {
        (1..cores.min(lowered.len())).for_each(|_| {
            scope.spawn(|| compile_remaining(lowered, &next_index, &finished));
        });
        compile_remaining(lowered, &next_index, &finished);
    });
    let mut finished = finished.into_inner().unwrap_or_else(PoisonError::into_inner);
    finished.sort_by_key(|(i, _)| *i);
    finished.into_iter().map(|(_, compiled)| compiled).collect::<Result<_>>().at_caller()
}

/// Compiles functions until all have been started by this thread or another.
fn compile_remaining<Args: Tree, Out: Tree>(
    lowered: &[Lowered<Args, Out>],
    next_index: &AtomicUsize,
    finished: &Mutex<Vec<(usize, Result<Compiled<Args, Out>>)>>,
) {
    while let Some(i) = Some(next_index.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < lowered.len()) {
        let compiled = lowered[i].compile();
        finished.lock().unwrap_or_else(PoisonError::into_inner).push((i, compiled));
    }
}
