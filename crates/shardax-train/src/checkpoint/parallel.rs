//! Parallel file work: a thread reads and checks about 1 GB/s, less than a disk.

use std::sync::{Mutex, PoisonError};

/// The maximal number of threads. It is small, because each has one array, or one file, in memory.
const MAX_THREADS: usize = 4;

/// Applies `work` to each item; returns the results in order, or the first error. Each thread has a separate state,
/// which `begin` creates.
pub(super) fn map_parallel<T: Send, R: Send, E: Send, S>(
    items: Vec<T>,
    begin: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = cores.min(MAX_THREADS).min(items.len());
    if threads < 2 {
        let mut state = begin();
        return items.into_iter().map(|item| work(&mut state, item)).collect();
    }
    let mut results: Vec<Option<Result<R, E>>> = items.iter().map(|_| None).collect();
    let done = Mutex::new(&mut results);
    // The locks are held only to take an item or to store a result, so a panic in `work` does not poison them.
    let queue = Mutex::new(items.into_iter().enumerate());
    let run = || {
        let mut state = begin();
        loop {
            let entry = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, item)) = entry else { return };
            let result = work(&mut state, item);
            let failed = result.is_err();
            done.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
            if failed {
                // After an error the other threads finish only their current items.
                queue.lock().unwrap_or_else(PoisonError::into_inner).by_ref().for_each(drop);
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
    // After an error some items have no result.
    results.into_iter().flatten().collect()
}
