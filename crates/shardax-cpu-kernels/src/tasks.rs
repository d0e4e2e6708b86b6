//! Tasks on several threads: the caller's thread and the threads of a pool. The pool's threads wait for tasks instead
//! of being started for each call, because a new thread often shares the caller's core for milliseconds until Linux
//! moves it, whereas a waiting thread is woken on an idle core.

use std::sync::{Mutex, OnceLock, PoisonError};

use rayon_core::{ThreadPool, ThreadPoolBuilder};

/// Returns the pool with one thread per remaining core, or `None` if there is only one core or the system starts no threads.
///
/// Rayon's global pool cannot be used, because its threads can all be waiting for a program that calls a kernel.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    POOL.get_or_init(|| {
        let cores = std::thread::available_parallelism().ok()?.get();
        let builder = ThreadPoolBuilder::new().num_threads(cores - 1).thread_name(|i| format!("shardax-kernel-{i}"));
        // Rayon reads 0 as "one thread per core".
        if cores == 1 { None } else { builder.build().ok() }
    })
    .as_ref()
}

/// Runs the tasks on at most `threads` threads, the last task first. `init` creates the state of a thread, such as its scratch
/// memory. Threads take tasks from a common list, so that a thread which starts late runs fewer of them.
pub(crate) fn run_tasks<T: Send, State>(
    tasks: Vec<T>,
    threads: usize,
    init: impl Fn() -> State + Sync,
    work: impl Fn(&mut State, T) + Sync,
) {
    let helpers = threads.min(tasks.len()).saturating_sub(1);
    let tasks = Mutex::new(tasks);
    run_on_threads(helpers, &|| run_until_empty(&tasks, &init, &work));
}

/// Runs `work` on the caller's thread and on so many threads of the pool. It is not generic, because it would be compiled for the tasks
/// of each kernel, which took a tenth of the time of this crate's compilation.
fn run_on_threads(helpers: usize, work: &(dyn Fn() + Sync)) {
    match pool() {
        Some(pool) if helpers > 0 => pool.in_place_scope(|scope| {
            (0..helpers).for_each(|_| scope.spawn(|_| work()));
            work();
        }),
        _ => work(),
    }
}

/// Runs tasks on the calling thread until the list is empty.
fn run_until_empty<T, State>(tasks: &Mutex<Vec<T>>, init: &impl Fn() -> State, work: &impl Fn(&mut State, T)) {
    let mut state = init();
    loop {
        // The lock must not be held while the task runs, so the guard is dropped with this statement.
        let Some(task) = tasks.lock().unwrap_or_else(PoisonError::into_inner).pop() else { return };
        work(&mut state, task);
    }
}
