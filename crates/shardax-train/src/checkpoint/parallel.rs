//! Parallel file work: a thread reads and checks about 1 GB/s, less than a disk.

use std::sync::{Mutex, PoisonError};

/// The maximal number of threads; each has one array, or one file, in memory.
const MOST: usize = 4;

/// Applies `work` to each item; returns the results in order, or the first error. Each thread has a state of its own.
pub(super) fn each<T: Send, R: Send, E: Send, S>(
    items: Vec<T>,
    begin: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, T) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = cores.min(MOST).min(items.len());
    if threads < 2 {
        let mut state = begin();
        return items.into_iter().map(|item| work(&mut state, item)).collect();
    }
    let mut results: Vec<Option<Result<R, E>>> = items.iter().map(|_| None).collect();
    let done = Mutex::new(&mut results);
    let left = Mutex::new(items.into_iter().enumerate());
    let run = || {
        let mut state = begin();
        loop {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((at, item)) = next else { return };
            let result = work(&mut state, item);
            let failed = result.is_err();
            done.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(result);
            if failed {
                // After an error the other threads finish their current items only.
                let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
                left.by_ref().for_each(drop);
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
