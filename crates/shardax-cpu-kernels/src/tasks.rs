//! Tasks on several threads: the caller's thread and the threads of a pool. A thread that is started for a call often shares the
//! caller's core for milliseconds, until Linux moves it, whereas a waiting thread is woken on an idle core.

use std::sync::{Mutex, OnceLock, PoisonError};

use rayon_core::{ThreadPool, ThreadPoolBuilder};

/// The threads beside the caller's; `None` on one core, and where the system starts no threads.
///
/// It is not rayon's global pool, whose threads may all be waiting for a program that calls a kernel.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let others = || std::thread::available_parallelism().ok().map(|n| n.get() - 1).filter(|n| *n > 0);
    let name = |i| format!("shardax-kernel-{i}");
    POOL.get_or_init(|| ThreadPoolBuilder::new().num_threads(others()?).thread_name(name).build().ok()).as_ref()
}

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
    match pool() {
        Some(pool) if helpers > 0 => pool.in_place_scope(|scope| {
            (0..helpers).for_each(|_| scope.spawn(|_| run()));
            run();
        }),
        _ => run(),
    }
}
