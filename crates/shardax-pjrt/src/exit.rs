//! The end of the process: it waits for the programs that still run, for a while.
//!
//! When `main` returns, or something calls `exit`, the C library destroys the plugin's statics, compiled kernels among
//! them, while the plugin's threads go on running programs that nobody waited for: the process would die of a signal.
//! C's `exit` first runs the destructors of the calling thread's locals, then what was registered with `on_exit` and the
//! destructors of statics, the latest first. Both are used:
//!
//! - a thread that has launched something waits, at its end, for what is under way; and with the main thread's end
//!   no other thread can launch anything any more. The main thread still can, from destructors of its other locals, and
//!   waits there for each launch;
//! - a function registered with `on_exit` does the same, for an `exit` elsewhere, and ends it for the main thread too.
//!   The plugin makes some of its statics only when a program first runs, so it is registered anew after the first run of
//!   every program.
//!
//! Nobody waits longer than `SHARDAX_EXIT_SECONDS` (10): then the process says so and ends at once, with the exit status
//! that it was to have, and no more destructors. So does a process in which a function of the host calls `exit`, since
//! its program waits for that very function; and the child of a `fork`, which has none of XLA's threads.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::client::ClientInner;
use crate::error::{Error, Result};
use crate::event::{self, Event};
use crate::settings::EXIT_SECONDS;

/// How long a process waits at its end for the programs under way, unless `SHARDAX_EXIT_SECONDS` says otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// Further off than a clock can say is as good as a year.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The same for a client whose programs can be expected to hang.
const PATIENCE_IF_BROKEN: Duration = Duration::from_secs(1);

/// How far the process is.
static STAGE: AtomicU8 = AtomicU8::new(RUNNING);
const RUNNING: u8 = 0;
/// Its main thread has ended.
const ENDING: u8 = 1;
/// Nothing is launched any more.
const ENDED: u8 = 2;
/// It is the child of a `fork`.
const FORKED: u8 = 3;

static CLIENTS: Mutex<Vec<Weak<ClientInner>>> = Mutex::new(Vec::new());

#[cfg(all(target_os = "linux", target_env = "gnu"))]
unsafe extern "C" {
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Fails when nothing may be launched any more.
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
        FORKED => Err(forked()),
        _ => Err(Error::failed_precondition("the process is ending, so nothing can be launched any more")),
    }
}

/// Whether this process was forked from one that uses a plugin. Its threads are not here, and whoever waits for them
/// waits for ever.
#[inline]
pub(crate) fn is_forked() -> bool {
    STAGE.load(Ordering::Relaxed) == FORKED
}

#[cold]
pub(crate) fn forked() -> Error {
    Error::failed_precondition(
        "this process was forked from one that uses the plugin, whose threads are not here. Fork before the first use, \
         or start another program (std::process::Command)",
    )
}

/// Has the process wait, at its end, for what this client runs.
pub(crate) fn watch(client: &Arc<ClientInner>) {
    static AT_FORK: Once = Once::new();
    extern "C" fn in_child() {
        STAGE.store(FORKED, Ordering::SeqCst);
    }
    // SAFETY: the function takes nothing, only stores, and lives as long as the process.
    AT_FORK.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child as unsafe extern "C" fn()));
    });
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    clients.retain(|client| client.strong_count() > 0);
    clients.push(Arc::downgrade(client));
    drop(clients);
    register();
}

/// To be called after the first launch of a program.
#[cold]
pub(crate) fn after_first_launch(completion: &[Arc<Event>]) {
    for event in completion {
        Event::call_when_ready(event.clone(), |_| register());
    }
    if completion.is_empty() {
        register();
    }
}

/// Has this thread wait, at its end, for what is under way by then.
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
            wait_for_present();
        }
    }
    thread_local! {
        static THREAD: Thread = Thread { is_main: is_main_thread() };
    }
    // A thread whose locals are going waits now: there is no later.
    THREAD.try_with(|_| ()).unwrap_or_else(|_| wait_for_present());
}

/// By its number: a name is whatever somebody chose.
fn is_main_thread() -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: neither takes anything.
    unsafe {
        libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid())
    }
    #[cfg(target_os = "macos")]
    // SAFETY: it takes nothing.
    unsafe {
        libc::pthread_main_np() != 0
    }
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    false
}

fn wait_for_present() {
    let deadline = Instant::now() + patience();
    for client in clients() {
        client.gate.wait_for_present(client_deadline(&client, deadline));
    }
}

fn register() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function takes what is passed, and lives as long as the process.
    unsafe {
        on_exit(end, std::ptr::null_mut());
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        // Without the exit status.
        extern "C" fn end_somehow() {
            end(1, std::ptr::null_mut());
        }
        // SAFETY: the function takes nothing, and lives as long as the process.
        unsafe { libc::atexit(end_somehow) };
    }
}

/// What is done last, with the exit status.
static LAST: OnceLock<fn(i32)> = OnceLock::new();

/// Has the process call a function at its end, with its exit status, once the programs under way have ended; not when
/// they do not. The first one given counts.
pub fn at_exit(function: fn(i32)) {
    let _ = LAST.set(function);
    register();
}

extern "C" fn end(status: c_int, _: *mut c_void) {
    if event::in_callback() || is_forked() {
        leave(status);
    }
    STAGE.store(ENDED, Ordering::SeqCst);
    // Registered many times, and the patience is for all of them together.
    static DEADLINE: OnceLock<Instant> = OnceLock::new();
    let deadline = *DEADLINE.get_or_init(|| Instant::now() + patience());
    if !clients().all(|client| client.gate.drain(client_deadline(&client, deadline))) {
        eprintln!(
            "shardax: the process ends while programs still run. It has waited for them; SHARDAX_EXIT_SECONDS says for \
             how long"
        );
        leave(status);
    }
    static DONE: Once = Once::new();
    if let Some(function) = LAST.get() {
        DONE.call_once(|| function(status));
    }
}

/// Ends the process without the destructors of statics.
fn leave(status: c_int) -> ! {
    // SAFETY: null means all of C's streams; the other takes a number.
    unsafe {
        libc::fflush(std::ptr::null_mut());
        libc::_exit(status)
    }
}

fn patience() -> Duration {
    EXIT_SECONDS.get().unwrap_or(PATIENCE).min(FOREVER)
}

fn client_deadline(client: &ClientInner, deadline: Instant) -> Instant {
    match client.is_broken() {
        true => deadline.min(Instant::now() + PATIENCE_IF_BROKEN),
        false => deadline,
    }
}

fn clients() -> impl Iterator<Item = Arc<ClientInner>> {
    let clients = match event::in_callback() || is_forked() {
        true => Vec::new(), // a program waits for this very thread, or it is not here
        false => CLIENTS.lock().unwrap_or_else(PoisonError::into_inner).clone(),
    };
    clients.into_iter().filter_map(|client| client.upgrade())
}
