//! The end of the process: it waits for running programs, up to a time limit.
//!
//! When `main` returns or something calls `exit`, the C library destroys the plugin's statics, including compiled
//! kernels. Threads of the CPU plugin (xla-cpu-pjrt 0.0.1) can still run programs with them, and the process would die
//! of a signal. `exit` first runs the destructors of the calling thread's locals, then functions registered with
//! `on_exit` and destructors of statics in reverse order of registration. This module uses both:
//!
//! - A thread that has launched a program waits for it when the thread ends. After the main thread has ended, no other
//!   thread can launch; the main thread still can, from destructors of its other locals, and waits for each launch.
//! - A function registered with `on_exit` does the same for a call of `exit` on another thread, and stops all launches.
//!   The plugin creates some statics when a program first runs, so the function is registered again after the first run
//!   of every program: it must run before their destructors. After it, all calls of the plugin are errors, because
//!   handlers that the program registered earlier run among the destructors.
//!
//! The limit is `SHARDAX_EXIT_SECONDS` (10). After it, the process writes a message and ends immediately with its exit
//! status, without further destructors. It also ends immediately if a host function calls `exit`, because the program
//! waits for that function, and in the child of a `fork`, which has none of XLA's threads. Noticed by `tests/exit.rs`.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::client::ClientInner;
use crate::error::{Error, Result};
use crate::event::{self, Event};
use crate::settings::EXIT_SECONDS;

/// The time limit if `SHARDAX_EXIT_SECONDS` is not set.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The longest time limit. Adding `Duration::MAX` to an `Instant` overflows.
const LONGEST_TIME_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// The time limit for a client whose programs probably hang.
const BROKEN_TIME_LIMIT: Duration = Duration::from_secs(1);

/// The stage of the process.
static STAGE: AtomicU8 = AtomicU8::new(RUNNING);
const RUNNING: u8 = 0;
/// The main thread has ended.
const ENDING: u8 = 1;
/// Launches are rejected.
const ENDED: u8 = 2;
/// Statics of the plugin may have been destroyed: it is not called any more.
const STATICS_DESTROYED: u8 = 3;
/// This process is the child of a `fork`.
const FORKED: u8 = 4;

// The clients whose programs the process waits for at its end. The references are weak, so that clients are destroyed
// when the program drops them.
static CLIENTS: Mutex<Vec<Weak<ClientInner>>> = Mutex::new(Vec::new());

#[cfg(all(target_os = "linux", target_env = "gnu"))]
unsafe extern "C" {
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Fails if launches are no longer accepted.
#[inline]
pub(crate) fn check() -> Result<()> {
    match STAGE.load(Ordering::SeqCst) {
        RUNNING => Ok(()),
        stage => check_late(stage),
    }
}

#[cold]
fn check_late(stage: u8) -> Result<()> {
    match stage {
        ENDING if is_main_thread() => Ok(()),
        STATICS_DESTROYED | FORKED => check_plugin(),
        _ => Err(Error::failed_precondition("the process is ending and accepts no more launches")),
    }
}

/// Fails if the plugin must not be called: at the end of the process, whose handlers (`atexit`) run among the destructors
/// of the plugin's statics, and in the child of a process that uses a plugin.
#[inline]
pub(crate) fn check_plugin() -> Result<()> {
    if STAGE.load(Ordering::Relaxed) < STATICS_DESTROYED { Ok(()) } else { Err(no_plugin()) }
}

/// Returns true in the child of a process that uses a plugin. The plugin's threads do not exist there, and waiting for
/// them never ends.
fn is_forked() -> bool {
    STAGE.load(Ordering::Relaxed) == FORKED
}

#[cold]
fn no_plugin() -> Error {
    Error::failed_precondition(if is_forked() {
        "this process was forked from one that uses the plugin, whose threads do not exist here. Fork before the \
             first use, or start another program (std::process::Command)"
    } else {
        "the process is ending, and the plugin may be gone. Use arrays before `main` returns or `exit` is called, \
             not in a handler of `atexit`"
    })
}

/// Registers a client, so that the process waits for its programs when it ends.
pub(crate) fn register_client(client: &Arc<ClientInner>) {
    static AT_FORK: Once = Once::new();
    extern "C" fn in_child() {
        STAGE.store(FORKED, Ordering::SeqCst);
    }
    // SAFETY: the function takes no arguments, only stores a number, and is never unloaded.
    AT_FORK.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child as unsafe extern "C" fn()));
    });
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    clients.retain(|client| client.strong_count() > 0);
    clients.push(Arc::downgrade(client));
    drop(clients);
    register();
}

/// Registers the exit function again, after the first launch of a program has completed.
#[cold]
pub(crate) fn after_first_launch(completion: &[Arc<Event>]) {
    for event in completion {
        Event::call_when_ready(event.clone(), |_| register());
    }
    if completion.is_empty() {
        register();
    }
}

/// Makes this thread wait at its end for the programs in flight by then.
#[inline]
pub(crate) fn thread_launched() {
    struct Thread {
        is_main: bool,
    }
    impl Drop for Thread {
        fn drop(&mut self) {
            if self.is_main {
                let _ = STAGE.compare_exchange(RUNNING, ENDING, Ordering::SeqCst, Ordering::SeqCst);
            }
            wait_for_launches_in_flight();
        }
    }
    thread_local! {
        static THREAD: Thread = Thread { is_main: is_main_thread() };
    }
    // If this thread's locals have been dropped, it waits now.
    THREAD.try_with(|_| ()).unwrap_or_else(|_| wait_for_launches_in_flight());
}

/// Compares thread ids: the name of a thread is arbitrary.
fn is_main_thread() -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: neither takes arguments.
    unsafe {
        libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid())
    }
    #[cfg(target_os = "macos")]
    // SAFETY: it takes no arguments.
    unsafe {
        libc::pthread_main_np() != 0
    }
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    false
}

fn wait_for_launches_in_flight() {
    let deadline = Instant::now() + time_limit();
    for client in clients() {
        client.limiter.wait_for_launches_in_flight(client_deadline(&client, deadline));
    }
}

fn register() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function has the expected signature and is never unloaded.
    unsafe {
        on_exit(end, std::ptr::null_mut());
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        // `atexit` does not pass the exit status.
        extern "C" fn end_somehow() {
            end(1, std::ptr::null_mut());
        }
        // SAFETY: the function takes no arguments and is never unloaded.
        unsafe { libc::atexit(end_somehow) };
    }
}

/// The function of [`at_exit`].
static EXIT_FUNCTION: OnceLock<fn(i32)> = OnceLock::new();

/// Registers a function that the process calls at its end with its exit status, after the running programs have ended.
/// It is not called if they do not end in time. Only the first registration counts.
pub fn at_exit(function: fn(i32)) {
    let _ = EXIT_FUNCTION.set(function);
    register();
}

extern "C" fn end(status: c_int, _: *mut c_void) {
    if event::in_callback() || is_forked() {
        exit_now(status);
    }
    STAGE.store(ENDED, Ordering::SeqCst);
    // This function is registered many times; all its calls share one deadline.
    static DEADLINE: OnceLock<Instant> = OnceLock::new();
    let deadline = *DEADLINE.get_or_init(|| Instant::now() + time_limit());
    if !clients().all(|client| client.limiter.drain(client_deadline(&client, deadline))) {
        eprintln!(
            "shardax: the process ends while programs still run, after waiting for them. SHARDAX_EXIT_SECONDS sets the \
             time limit"
        );
        exit_now(status);
    }
    static DONE: Once = Once::new();
    if let Some(function) = EXIT_FUNCTION.get() {
        DONE.call_once(|| function(status));
    }
    // What runs next may be a destructor of the plugin.
    STAGE.store(STATICS_DESTROYED, Ordering::SeqCst);
}

/// Ends the process without running destructors of statics.
fn exit_now(status: c_int) -> ! {
    // SAFETY: null flushes all of C's streams; `_exit` takes a number.
    unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::_exit(status)
    }
}

fn time_limit() -> Duration {
    EXIT_SECONDS.get().unwrap_or(TIME_LIMIT).min(LONGEST_TIME_LIMIT)
}

fn client_deadline(client: &ClientInner, deadline: Instant) -> Instant {
    if client.is_broken() { deadline.min(Instant::now() + BROKEN_TIME_LIMIT) } else { deadline }
}

fn clients() -> impl Iterator<Item = Arc<ClientInner>> {
    // Waiting would not end: in a callback, a program waits for this thread, and in a forked process the threads that run
    // programs do not exist.
    let clients = if event::in_callback() || is_forked() {
        Vec::new()
    } else {
        CLIENTS.lock().unwrap_or_else(PoisonError::into_inner).clone()
    };
    clients.into_iter().filter_map(|client| client.upgrade())
}
