//! Tasks on several threads: the caller's and those of rayon's global pool. A thread that is started for a call often shares the
//! caller's core for milliseconds, until Linux moves it; one that waits is woken on an idle core.

use std::sync::{Mutex, PoisonError};

/// Runs the tasks, the last one first, on this many threads, each with its own state. A thread that starts late
/// runs fewer.
pub(crate) fn run_tasks<T: Send, Own>(
    tasks: Vec<T>,
    threads: usize,
    own: impl Fn() -> Own + Sync,
    work: impl Fn(&mut Own, T) + Sync,
) {
    let helpers = threads.min(tasks.len()).saturating_sub(1);
    let tasks = Mutex::new(tasks);
    let next = || tasks.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let run = || {
        let mut own = own();
        while let Some(task) = next() {
            work(&mut own, task);
        }
    };
    if helpers == 0 {
        return run();
    }
    rayon_core::in_place_scope(|scope| {
        (0..helpers).for_each(|_| scope.spawn(|_| run()));
        run();
    });
}
